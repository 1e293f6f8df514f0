// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
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
		"cast": func() error { return ServeRole(os.Args[1], os.Stdin, os.Stdout) },
		"fold": func() error { return foldbench.ServeRole(os.Args[1], os.Stdin, os.Stdout) },
	}[os.Getenv("CASTBENCH_ROLE")]
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
	return foldbench.Place{Command: []string{self}, Env: []string{"CASTBENCH_ROLE=" + role}}
}

func options(t *testing.T) Options {
	return Options{
		Members: []int{2}, Sizes: []int{1400, 64000, 2_000_000}, Paths: Paths, Conditions: []string{Idle, Busy},
		Blocks: 1, Rounds: 5, Time: time.Minute, Place: place(t, "cast"), Spin: place(t, "fold"), Quick: true, Log: t.Output(),
	}
}

func TestCheck(t *testing.T) {
	good := options(t)
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for says, spoil := range map[string]func(o *Options){
		"no members":     func(o *Options) { o.Members = nil },
		"no bytes":       func(o *Options) { o.Sizes = nil },
		"no path":        func(o *Options) { o.Paths = nil },
		"no condition":   func(o *Options) { o.Conditions = nil },
		"0 members":      func(o *Options) { o.Members = []int{8, 0} },
		"65 members":     func(o *Options) { o.Members = []int{65} },
		"7 bytes":        func(o *Options) { o.Sizes = []int{7} },
		`"pigeon"`:       func(o *Options) { o.Paths = []string{Kernel, "pigeon"} },
		`"tired"`:        func(o *Options) { o.Conditions = []string{"tired"} },
		"0 turns":        func(o *Options) { o.Blocks = 0 },
		"3 turns of 0 ":  func(o *Options) { o.Blocks, o.Rounds = 3, 0 },
		"-1 chains":      func(o *Options) { o.Chains = -1 },
		"window of -1":   func(o *Options) { o.Window = -1 },
		`"tin cans"`:     func(o *Options) { o.Network = "tin cans" },
		"1073741825 byt": func(o *Options) { o.Sizes = []int{1<<30 + 1} },
	} {
		o := options(t)
		spoil(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func TestSizeWords(t *testing.T) {
	for n, want := range map[int]string{1400: "1,400", 64000: "64KB", 65536: "64KiB", 64_000_000: "64MB", 1 << 20: "1MiB", 8: "8", 1000: "1KB", 65537: "65,537"} {
		if got := sizeWords(n); got != want {
			t.Errorf("%d is %s, not %s", n, got, want)
		}
	}
}

// TestResult has figures worked out by hand.
func TestResult(t *testing.T) {
	us := time.Microsecond
	all := tally{rounds: 7, again: 14, woken: 7, chains: 3, wrong: 1}
	for i := 1; i <= 100; i++ {
		all.known = append(all.known, time.Duration(101-i)*us)
		all.confirmed = append(all.confirmed, time.Duration(i)*10*us)
	}
	all.plain = spent{rounds: 4, bytes: 10, cpu: 8000}
	all.confirming = spent{rounds: 2, bytes: 100, cpu: 3000}
	r := all.result()
	if r.P50us != 50 || r.P99us != 99 || r.ConfirmedP50us != 500 || r.ConfirmedP99us != 990 {
		t.Errorf("%+v", r)
	}
	if r.CPUus == nil || *r.CPUus != 2 || r.ConfirmedCPUus == nil || *r.ConfirmedCPUus != 1.5 || r.SourceBytes != 2.5 {
		t.Errorf("%+v", r)
	}
	if r.Again != 2 || r.Woken != 1 || r.Rounds != 100 || r.Chains != 3 || r.Mismatches != 1 {
		t.Errorf("%+v", r)
	}
	all.plain = spent{}
	if r := all.result(); *r.CPUus != 1.5 || r.SourceBytes != 50 {
		t.Errorf("of turns with confirmations alone: %+v", r)
	}
	if r := (&tally{known: all.known, plain: spent{rounds: 1}}).result(); r.CPUus != nil || r.ConfirmedP50us != 0 || r.ConfirmedCPUus != nil {
		t.Errorf("without processor times: %+v", r)
	}
}

func TestReport(t *testing.T) {
	cpu := 12.5
	r := Report{Switch, []Result{
		{Path: Kernel, Members: 8, Bytes: 1400, Condition: Idle, P50us: 20, P99us: 40, SourceBytes: 11999.6, CPUus: &cpu, ConfirmedP50us: 50, ConfirmedP99us: 60, Rounds: 7},
		{Path: Sequential, Members: 8, Bytes: 1400, Condition: Idle, P50us: 400, P99us: 500, Rounds: 7},
		{Path: Loop, Members: 8, Bytes: 1400, Condition: Idle, P50us: 200, P99us: 800, Rounds: 7},
		{Path: Parallel, Members: 8, Bytes: 1400, Condition: Busy, P50us: 1, P99us: 1},
		{Path: Parallel, Members: 8, Bytes: 1401, Condition: Idle, P50us: 1, P99us: 1},
		{Path: Parallel, Members: 4, Bytes: 1400, Condition: Idle, P50us: 1, P99us: 1},
	}}
	if best := r.Best(&r.Results[0]); best == nil || best.Path != Loop || best.Members != 8 {
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
		"kernel 8 1,400 idle 7 20.0 40.0 50.0 60.0 12,000 12.5 0",
		"tcp-sequential 8 1,400 idle 7 400.0 500.0 - - 0 - 0",
		"by a switch in XDP (xdp-switch)",
		"kernel 8 1,400 idle udp-loop 10.00 x 90.0 % 20.00 x 4.00 x",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	if n := strings.Count(all, "%"); n != 1 {
		t.Errorf("%d comparisons in\n%s", n, all)
	}
	b, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Network string
		Results []map[string]any
	}
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Network != "xdp-switch" {
		t.Errorf("network %q in %s", back.Network, b)
	}
	for _, name := range []string{"path", "members", "bytes", "condition", "p50_us", "p99_us", "source_bytes", "cpu_us", "rounds", "mismatches"} {
		if _, ok := back.Results[1][name]; !ok {
			t.Errorf("%s is not in %s", name, b)
		}
	}
	if back.Results[1]["cpu_us"] != nil || back.Results[0]["cpu_us"] != 12.5 {
		t.Errorf("processor times in %s", b)
	}
}

func TestMessage(t *testing.T) {
	m := newMessage(100)
	a := bytes.Clone(m.cut(50, 7))
	if len(a) != headBytes+50 || binary.LittleEndian.Uint64(a) != 50 || number(a[8:]) != 7 || number(a[headBytes:]) != 7 {
		t.Errorf("%x", a)
	}
	if b := m.cut(50, 8); digest(a[headBytes:]) == digest(b[headBytes:]) {
		t.Error("two numbers, one message")
	}
	if len(bytes.Trim(m[headBytes+8:], "\x00")) < 80 {
		t.Errorf("%x is nothing but zeros", []byte(m))
	}
}

// TestRoom looks at what a member finds wrong.
func TestRoom(t *testing.T) {
	var r room
	put := func(size, announced, is uint64) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		b, err := r.begin(size, announced)
		if err == nil {
			binary.LittleEndian.PutUint64(b, is)
			r.end()
		}
		return err
	}
	for _, size := range []uint64{0, 7, MaxBytes + 1, 1 << 63} {
		if err := put(size, 1, 1); err == nil {
			t.Errorf("a message of %d bytes was taken", size)
		}
	}
	steps := []struct {
		size, announced, is uint64
		wrong               int
	}{
		{8, 5, 5, 0}, {1000, 6, 6, 0}, {20, 6, 6, 1} /* again */, {20, 9, 8, 1} /* other bytes */, {20, 4, 3, 2}, {20, 5, 5, 0},
	}
	for i, s := range steps {
		if err := put(s.size, s.announced, s.is); err != nil {
			t.Fatal(err)
		}
		got, err := r.got()
		if err != nil || got.Wrong != s.wrong || got.Messages != 1 || got.Number != s.announced || got.Bytes != int(s.size) {
			t.Errorf("step %d: %+v, %v", i, got, err)
		}
	}
	r.fail(os.ErrClosed)
	if _, err := r.got(); err == nil {
		t.Error("a failure was not told")
	}
}

// sent gives messages of several sizes and looks at what the members got.
func sent(t *testing.T, rooms []*room, send func(m []byte, number uint64) error) {
	t.Helper()
	m := newMessage(1 << 20)
	for i, size := range []int{8, 1448, 1449, 100_000, readAhead - headBytes, readAhead - headBytes + 1, 1 << 20, 1400} {
		num := uint64(i + 1)
		b := m.cut(size, num)
		if err := send(b, num); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		for j, r := range rooms {
			got, err := r.got()
			if want := (Taken{1, 0, num, size, digest(b[headBytes:])}); got != want || err != nil {
				t.Errorf("member %d got %+v, %v, not %+v", j, got, err, want)
			}
		}
	}
}

func TestTCP(t *testing.T) {
	var rooms []*room
	var addresses []string
	for range 3 {
		r := &room{}
		m, err := listenTCP("127.0.0.1", r)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		rooms, addresses = append(rooms, r), append(addresses, m.listener.Addr().String())
	}
	for _, way := range []func(*tcpSource, []byte, int) error{(*tcpSource).sequential, (*tcpSource).parallel} {
		s, err := dialTCP(t.Context(), addresses)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rooms {
			r.number = 0
		}
		sent(t, rooms, func(m []byte, _ uint64) error { return way(s, m, len(rooms)) })
		s.close()
	}
}

// lossy passes datagrams on to a member and back, and loses every n-th.
func lossy(t *testing.T, to netip.AddrPort, n int) netip.AddrPort {
	t.Helper()
	listen := func() *net.UDPConn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadBuffer(udpBuffer); err != nil {
			t.Fatal(err)
		}
		return c
	}
	front, back := listen(), listen()
	var wait sync.WaitGroup
	var source netip.AddrPort
	var mu sync.Mutex
	pass := func(in, out *net.UDPConn, where func(from netip.AddrPort) netip.AddrPort) {
		wait.Go(func() {
			b := make([]byte, 2000)
			for i := 1; ; i++ {
				k, from, err := in.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				if to := where(from); i%n != 0 {
					_, _ = out.WriteToUDPAddrPort(b[:k], to)
				}
			}
		})
	}
	pass(front, back, func(from netip.AddrPort) netip.AddrPort {
		mu.Lock()
		defer mu.Unlock()
		source = from
		return to
	})
	pass(back, front, func(netip.AddrPort) netip.AddrPort {
		mu.Lock()
		defer mu.Unlock()
		return source
	})
	t.Cleanup(func() {
		front.Close()
		back.Close()
		wait.Wait()
	})
	return front.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestUDP(t *testing.T) {
	for _, lose := range []int{0, 97} {
		t.Run(fmt.Sprintf("lose %d", lose), func(t *testing.T) {
			var rooms []*room
			var addresses []netip.AddrPort
			for range 3 {
				r := &room{}
				m, err := listenUDP("127.0.0.1", r)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(m.close)
				a := m.conn.LocalAddr().(*net.UDPAddr).AddrPort()
				if lose > 0 {
					a = lossy(t, a, lose)
				}
				rooms, addresses = append(rooms, r), append(addresses, a)
			}
			s, err := openUDP("127.0.0.1", addresses)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			sent(t, rooms, func(m []byte, number uint64) error { return s.send(t.Context(), m[headBytes:], number, len(rooms)) })
			if lose > 0 && s.again == 0 {
				t.Error("nothing was sent again")
			}
		})
	}
}

// TestUDPAnswer looks at the bits of answers.
func TestUDPAnswer(t *testing.T) {
	m := udpMember{room: &room{}}
	size := 5*udpData + 1
	take := func(place uint32) {
		t.Helper()
		b := make([]byte, udpHead+min(udpData, size-int(place)*udpData))
		(&datagram{place, 1, uint64(size)}).put(b)
		if err := m.take(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []struct {
		place  uint32
		before uint32
		set    uint64
	}{{1, 0, 0b1}, {4, 0, 0b1001}, {4, 0, 0b1001}, {0, 2, 0b10}, {3, 2, 0b11}, {2, 5, 0}, {5, 6, 0}} {
		take(s.place)
		var b [udpAnswer]byte
		m.answer(b[:])
		if before, set := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[16:]); before != s.before || set != s.set {
			t.Errorf("after place %d: before %d and %b, not %d and %b", s.place, before, set, s.before, s.set)
		}
	}
	e := udpEnd{before: 2, set: 0b101}
	for place, has := range []bool{true, true, false, true, false, true, false} {
		if e.has(place) != has {
			t.Errorf("place %d: %v", place, !has)
		}
	}
	for _, bad := range [][]byte{nil, make([]byte, udpHead), func() []byte {
		b := make([]byte, udpHead+5)
		(&datagram{0, 1, uint64(size)}).put(b)
		return b
	}(), func() []byte {
		b := make([]byte, udpHead+1)
		(&datagram{6, 1, uint64(size)}).put(b)
		return b
	}()} {
		if m.take(bad) == nil {
			t.Errorf("%x was taken", bad)
		}
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
	if want := len(o.Paths) * len(o.Sizes) * len(o.Conditions); len(report.Results) != want {
		t.Errorf("%d results, not %d", len(report.Results), want)
	}
	for _, r := range report.Results {
		if r.Mismatches != 0 || r.Rounds < 1 || r.P50us <= 0 || r.P99us < r.P50us {
			t.Errorf("%+v", r)
		}
		// The source sends a message once to each member or, through chains, at least once.
		least, most := float64(r.Bytes), 1.3*float64(r.Bytes*r.Members)+400
		if !ours(r.Path) {
			least = float64(r.Bytes * r.Members)
		}
		if r.SourceBytes < least || r.Again == 0 && r.SourceBytes > most {
			t.Errorf("%s sent %.0f bytes of %d to %d members", r.Path, r.SourceBytes, r.Bytes, r.Members)
		}
		if ours(r.Path) && (r.ConfirmedP50us <= 0 || r.Bytes > small && r.ConfirmedP50us < r.P50us || r.Chains < 1) {
			t.Errorf("%+v", r)
		}
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestBridge measures the kernel's path over the machine's bridge.
func TestBridge(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	o := options(t)
	o.Network, o.Paths, o.Sizes, o.Conditions = Bridge, []string{Kernel}, []int{64000}, []string{Idle}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 1 || report.Results[0].Mismatches != 0 || report.Network != Bridge {
		t.Errorf("%+v", report)
	}
}
