// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/internal/foldbench"
	"github.com/quernmr/quern/internal/netlab"
)

// TestMain is also the hidden commands that serve roles.
func TestMain(m *testing.M) {
	serve := map[string]func() error{
		"reduce": func() error { return ServeRole(os.Args[1], os.Stdin, os.Stdout) },
		"fold":   func() error { return foldbench.ServeRole(os.Args[1], os.Stdin, os.Stdout) },
	}[os.Getenv("REDUCEBENCH_ROLE")]
	if serve != nil {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func place(t *testing.T, role string) foldbench.Place {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return foldbench.Place{Command: []string{self}, Env: []string{"REDUCEBENCH_ROLE=" + role}}
}

func options(t *testing.T) Options {
	return Options{
		Members: []int{2, 3}, Elements: []int{1000, 300_000}, Paths: Paths, Conditions: []string{Idle, Busy},
		Blocks: 1, Rounds: 6, Time: time.Minute, Place: place(t, "reduce"), Spin: place(t, "fold"), Quick: true, Log: t.Output(),
	}
}

func TestCheckOptions(t *testing.T) {
	good := options(t)
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for says, spoil := range map[string]func(o *Options){
		"no members":        func(o *Options) { o.Members = nil },
		"no elements":       func(o *Options) { o.Elements = nil },
		"no path":           func(o *Options) { o.Paths = nil },
		"no condition":      func(o *Options) { o.Conditions = nil },
		"1 members":         func(o *Options) { o.Members = []int{8, 1} },
		"33 members":        func(o *Options) { o.Members = []int{33} },
		"0 elements":        func(o *Options) { o.Elements = []int{0} },
		"67108865 elements": func(o *Options) { o.Elements = []int{1<<26 + 1} },
		`"pigeon"`:          func(o *Options) { o.Paths = []string{Kernel, "pigeon"} },
		`"tired"`:           func(o *Options) { o.Conditions = []string{"tired"} },
		"0 turns":           func(o *Options) { o.Blocks = 0 },
		`"tin cans"`:        func(o *Options) { o.Network = "tin cans" },
		"3 turns of 0 ":     func(o *Options) { o.Blocks, o.Rounds = 3, 0 },
	} {
		o := options(t)
		spoil(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestRoundTimes has times worked out by hand.
func TestRoundTimes(t *testing.T) {
	ran := []Ran{
		{Began: []int64{10, 30, 50, 70}, Ended: []int64{29, 49, 69, 200}},
		{Began: []int64{15, 31, 45, 71}, Ended: []int64{31, 44, 70, 100}},
	}
	if got := roundTimes(ran, 3); !slices.Equal(got, []time.Duration{16, 18, 20}) {
		t.Errorf("of three: %v", got)
	}
	if got := roundTimes(ran, 4); !slices.Equal(got, []time.Duration{18, 20, 129}) {
		t.Errorf("of four, the first of which does not count: %v", got)
	}
}

// TestResult has figures worked out by hand.
func TestResult(t *testing.T) {
	all := tally{rounds: 4, cpu: 8 * time.Millisecond, bytes: 10}
	for i := 1; i <= 100; i++ {
		all.times = append(all.times, time.Duration(101-i)*time.Microsecond)
	}
	if r := all.result(); r != (Result{P50us: 50, P99us: 99, CPUus: 2000, WireBytes: 2.5, Rounds: 100}) {
		t.Errorf("%+v", r)
	}
	if r := (&tally{}).result(); r != (Result{}) {
		t.Errorf("of nothing: %+v", r)
	}
	if r := (&tally{rounds: 1, cpu: -time.Millisecond}).result(); r.CPUus != 0 {
		t.Errorf("less than the background: %+v", r)
	}
}

func TestReport(t *testing.T) {
	r := Report{Plain, []Result{
		{Path: Kernel, Members: 8, Elements: 1024, Condition: Idle, P50us: 20, P99us: 40, WireBytes: 11999.6, CPUus: 12.5, Rounds: 7},
		{Path: Server, Members: 8, Elements: 1024, Condition: Idle, P50us: 400, P99us: 500, CPUus: 50, Rounds: 7},
		{Path: Ring, Members: 8, Elements: 1024, Condition: Idle, P50us: 200, P99us: 800, CPUus: 100, Rounds: 7},
		{Path: Ring, Members: 8, Elements: 1024, Condition: Busy, P50us: 1, P99us: 1},
		{Path: Ring, Members: 8, Elements: 1025, Condition: Idle, P50us: 1, P99us: 1},
		{Path: Ring, Members: 4, Elements: 1024, Condition: Idle, P50us: 1, P99us: 1},
	}}
	if best := r.Best(&r.Results[0]); best == nil || best.Path != Ring || best.Members != 8 {
		t.Errorf("best is %+v", best)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for l := range strings.Lines(table.String()) {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		"kernel 1,024 8 idle 7 20.0 40.0 12.5 12,000",
		"ring-tcp 1,024 8 busy 0 1.0 1.0 - 0",
		"by a switch in XDP",
		"kernel 1,024 8 idle ring-tcp 10.00 x 90.0 % 20.00 x 8.00 x",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	table.Reset()
	if err := (&Report{Switch, r.Results[:1]}).WriteTable(&table); err != nil || !strings.Contains(table.String(), "all but user: the hosts are joined by a switch in XDP") {
		t.Errorf("%v\n%s", err, table.String())
	}
	if n := strings.Count(all, "%"); n != 1 {
		t.Errorf("%d comparisons in\n%s", n, all)
	}
	b, err := json.Marshal(Report{Plain, r.Results[:1]})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"results":[{"path":"kernel","elements":1024,"members":8,"condition":"idle","round_p50_us":20,"round_p99_us":40,"cpu_us":12.5,"wire_bytes":11999.6}]}`; string(b) != want {
		t.Errorf("JSON %s, not %s", b, want)
	}
}

// TestVectors spoils sums in the ways that all-reduces could.
func TestVectors(t *testing.T) {
	const elements, members, round = 1000, 3, 7
	sum := func(members ...int) []int32 {
		s, v := make([]int32, elements), make([]int32, elements)
		for _, m := range members {
			fill(v, round, m)
			add(s, v)
		}
		return s
	}
	if err := check(sum(0, 1, 2), round, members); err != nil {
		t.Error(err)
	}
	moved := sum(0, 1, 2)
	copy(moved[100:], moved[:100])
	for name, bad := range map[string][]int32{
		"one lost": sum(0, 2), "one twice": sum(0, 1, 1, 2), "one for another": sum(0, 1, 1), "one more": sum(0, 1, 2, 3), "moved": moved,
	} {
		if check(bad, round, members) == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	if check(sum(0, 1, 2), round+1, members) == nil {
		t.Error("of another round: not noticed")
	}
}

func TestAdd(t *testing.T) {
	for n := range 20 {
		a, b := make([]int32, n), make([]int32, n+3)
		for i := range a {
			a[i], b[i] = int32(i)<<28, int32(3*i)
		}
		add(a, b)
		for i := range a {
			if want := int32(i)<<28 + int32(3*i); a[i] != want {
				t.Errorf("%d of %d: %d, not %d", i, n, a[i], want)
			}
		}
	}
}

// meet makes members in this process.
func meet(t *testing.T, n int) []*Member {
	t.Helper()
	all := make([]*Member, n)
	ports := make([]MemberPorts, n)
	for i := range all {
		all[i] = &Member{ctx: t.Context()}
		t.Cleanup(func() { all[i].Close() })
		if err := all[i].Open(&MemberSpec{Rank: i, TCP: "127.0.0.1"}, &ports[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range all {
		if err := m.Meet(&ports, nil); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// atOnce calls f for each of the first members at the same time.
func atOnce(t *testing.T, all []*Member, f func(m *Member) error) {
	t.Helper()
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, m := range all {
		wait.Go(func() { errs[i] = f(m) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestPeers has all sums of the paths over TCP checked, for vectors below and above what each of
// them sends in one piece.
func TestPeers(t *testing.T) {
	all := meet(t, 5)
	first := uint32(1)
	for _, members := range []int{2, 3, 5} {
		for _, elements := range []int{1, 4, 1000, serverPiece / 4, serverPiece/4 + 1, 100_000, members * ringQuiet / 4, 300_001} {
			for _, path := range []string{Server, Ring} {
				turn := Turn{Path: path, Members: members, Elements: elements, Rounds: 3}
				atOnce(t, all[:members], func(m *Member) error { return m.Prepare(&turn, nil) })
				for range 2 {
					burst := Burst{first, 3}
					first += 3
					atOnce(t, all[:members], func(m *Member) error { return m.Fill(&burst, nil) })
					atOnce(t, all[:members], func(m *Member) error { return m.Run(&burst, &Ran{}) })
					atOnce(t, all[:members], func(m *Member) error {
						if err := m.Check(&burst, nil); err != nil {
							return fmt.Errorf("%s, %d members, %d elements: member %d: %w", path, members, elements, m.spec.Rank, err)
						}
						return nil
					})
				}
				atOnce(t, all[:members], func(m *Member) error { return m.End(nil, nil) })
			}
		}
	}
}

// TestPeerGone closes a member's connections while others wait for it.
func TestPeerGone(t *testing.T) {
	for _, path := range []string{Server, Ring} {
		for _, elements := range []int{1000, 1_000_000} {
			all := meet(t, 3)
			turn := Turn{Path: path, Members: 3, Elements: elements, Rounds: 1}
			atOnce(t, all, func(m *Member) error { return m.Prepare(&turn, nil) })
			burst := Burst{1, 1}
			errs := make(chan error, 2)
			for _, m := range all[:2] {
				go func() { errs <- m.Run(&burst, &Ran{}) }()
			}
			time.Sleep(10 * time.Millisecond)
			all[2].streams.close()
			if path == Ring { // who does not hear of it itself hears of who does
				if err := <-errs; err == nil {
					t.Errorf("%s: no error", path)
				}
				all[0].streams.close()
				all[1].streams.close()
				<-errs
				continue
			}
			if err := <-errs; err == nil {
				t.Errorf("%s: no error", path)
			}
			all[0].streams.close()
			if err := <-errs; err == nil {
				t.Errorf("%s: no error of the others", path)
			}
		}
	}
}

// TestReader takes pieces of all sizes, written as the network likes.
func TestReader(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	const total = 3 * readAhead
	all := make([]byte, total)
	for i := range all {
		all[i] = byte(i * 7 >> 3)
	}
	go func() {
		defer a.Close()
		for rest, n := all, 1; len(rest) > 0; n = n*5%100_003 + 1 {
			k := min(n, len(rest))
			if _, err := a.Write(rest[:k]); err != nil {
				return
			}
			rest = rest[k:]
		}
	}()
	r := newReader(b, 1000)
	at := 0
	for n := 1; at+n < total; n = n*3%50_021 + 1 {
		var got []byte
		var err error
		if n%2 == 0 {
			got, err = r.take(n)
		} else {
			got = make([]byte, n)
			err = r.into(got)
		}
		if err != nil || !bytes.Equal(got, all[at:at+n]) {
			t.Fatalf("%d bytes at %d: %v", n, at, err)
		}
		at += n
	}
	if _, err := r.take(readAhead); err == nil {
		t.Error("more than there was")
	}
}

// TestRun measures everything, in a lab.
func TestRun(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	o := options(t)
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(o.Paths) * len(o.Elements) * len(o.Members) * len(o.Conditions); len(report.Results) != want {
		t.Errorf("%d results, not %d", len(report.Results), want)
	}
	for _, r := range report.Results {
		if r.Rounds < 1 || r.P50us <= 0 || r.P99us < r.P50us {
			t.Errorf("%+v", r)
		}
		// Whoever does not add up something sends it, and somebody sends the sum. Where a member has to wait for long,
		// on a slow machine, frames are sent again.
		repeats := nodeOf(r.Path) == Kernel || r.Path == User
		if least := float64(2 * 4 * r.Elements * (r.Members - 1)); r.WireBytes < least || r.WireBytes > 1.5*least+10_000 && !repeats {
			t.Errorf("%s with %d members: %.0f bytes for %d elements", r.Path, r.Members, r.WireBytes, r.Elements)
		}
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestSwitch has TCP go over the links of the kernel's path.
func TestSwitch(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	for _, paths := range [][]string{Usual, {Ring}} {
		o := options(t)
		o.Network, o.Paths, o.Members, o.Conditions = Switch, paths, []int{2}, []string{Idle}
		report, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Results {
			// Each packet has its heads.
			if least := float64(2*4*r.Elements) * 1.02; len(report.Results) != 2*len(paths) || r.WireBytes < least {
				t.Errorf("%d results, %+v", len(report.Results), r)
			}
		}
	}
}
