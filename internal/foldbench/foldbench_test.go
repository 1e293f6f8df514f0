// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/wire"
)

// TestMain is also the hidden command that serves roles.
func TestMain(m *testing.M) {
	if role := os.Getenv("FOLDBENCH_ROLE"); role != "" {
		if err := ServeRole(os.Args[1], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func here(t *testing.T) Place {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Place{Command: []string{self}, Env: []string{"FOLDBENCH_ROLE=1"}}
}

func linux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("processor times are read on Linux alone")
	}
}

func TestPairs(t *testing.T) {
	random, err := Pairs(1000, RandomOrder)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := Pairs(1000, HashOrder)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Pairs(1, "other"); err == nil {
		t.Error("no error for another order")
	}
	cut := func(b []byte) (all []string) {
		for p := range slices.Chunk(b, PairBytes) {
			all = append(all, string(p))
		}
		return all
	}
	r, h := cut(random), cut(hash)
	if len(r) != 1000 || len(h) != 1000 {
		t.Fatalf("%d and %d pairs", len(r), len(h))
	}
	var last uint64
	for _, p := range h {
		hash := Seed.HashBytes([]byte(p[8:]))
		if hash < last {
			t.Fatal("not in order of hashes")
		}
		last = hash
		if meta := binary.LittleEndian.Uint32([]byte(p)); meta != wire.Meta(hash, 16) || meta&127 != 17 {
			t.Fatalf("meta %x of hash %x", meta, hash)
		}
		if p[4:8] != "\x01\x00\x00\x00" {
			t.Fatalf("value %q", p[4:8])
		}
	}
	if slices.Equal(r, h) {
		t.Error("random order is hash order")
	}
	slices.Sort(r)
	slices.Sort(h)
	if !slices.Equal(r, h) {
		t.Error("the orders have different pairs")
	}
	if len(slices.Compact(r)) != 1000 {
		t.Error("keys repeat")
	}
	if s := wire.Keyed(1, 1, false); s.PairSize() != PairBytes {
		t.Errorf("a pair has %d bytes, in a frame %d", PairBytes, s.PairSize())
	}
}

func TestTableBits(t *testing.T) {
	for keys, want := range map[int]int{1: 4, 9: 4, 10: 5, 1000: 11, 100_000: 18, 1_000_000: 21, 10_000_000: 24} {
		got := TableBits(keys)
		if got != want || float64(keys) > 0.6*float64(int(1)<<got) {
			t.Errorf("%d keys: 2^%d slots, want 2^%d", keys, got, want)
		}
	}
	for _, n := range []int{0, maxTableBits + 1} {
		if _, err := NewTable(n); err == nil {
			t.Errorf("a table of 2^%d slots", n)
		}
	}
}

// TestTable compares with a map: few keys, hashes that collide, nearly full tables.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "bits")
		keys := rapid.IntRange(1, 1<<n-1).Draw(t, "keys")
		table, err := NewTable(n)
		if err != nil {
			t.Fatal(err)
		}
		sums := map[string]int64{}
		var stream []byte
		count := rapid.IntRange(0, 100).Draw(t, "pairs")
		for range count {
			key := make([]byte, KeyBytes)
			key[rapid.SampledFrom([]int{0, 8, 15}).Draw(t, "place")] = 1
			key[1] = byte(rapid.IntRange(0, keys/3).Draw(t, "key"))
			v := rapid.Int32().Draw(t, "value")
			// A hash of few bits, the top ones, so that probes are long and wrap.
			hash := uint64(key[1]) << 61
			stream = binary.LittleEndian.AppendUint32(stream, wire.Meta(hash, KeyBytes))
			stream = append(binary.LittleEndian.AppendUint32(stream, uint32(v)), key...)
			sums[string(key)] += int64(v)
		}
		err = table.Fold(stream)
		if len(sums) >= 1<<n {
			if err == nil {
				t.Fatal("a full table took a key")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		want := Folded{Pairs: uint64(count), Keys: len(sums)}
		for k, v := range sums {
			want.Sum += v
			want.Check += uint64(v) * Seed.HashBytes([]byte(k))
		}
		if got := table.Folded(); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
	table, _ := NewTable(4)
	if err := table.Fold(make([]byte, PairBytes+1)); err == nil {
		t.Error("half a pair was taken")
	}
}

func TestExpect(t *testing.T) {
	table, _ := NewTable(TableBits(500))
	for _, order := range []string{RandomOrder, HashOrder, HashOrder} {
		p, err := Pairs(500, order)
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Fold(p); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := table.Folded(), Expect(500, 3); got != want || want.Sum != 1500 || want.Check == 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// pieces is a connection that gives what it has in pieces.
type pieces struct {
	rest  []byte
	sizes []int
	out   bytes.Buffer
}

func (p *pieces) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := len(p.rest)
	if len(p.sizes) > 0 {
		n, p.sizes = min(p.sizes[0], n), p.sizes[1:]
	}
	n = copy(b, p.rest[:n])
	p.rest = p.rest[n:]
	return n, nil
}

func TestFoldStream(t *testing.T) {
	p, err := Pairs(10, RandomOrder)
	if err != nil {
		t.Fatal(err)
	}
	batch := func(b []byte) []byte { return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...) }
	stream := slices.Concat(batch(p[:3*PairBytes]), batch(nil), batch(p[3*PairBytes:]), batch(nil))
	rapid.Check(t, func(t *rapid.T) {
		table, _ := NewTable(5)
		c := &pieces{rest: stream, sizes: rapid.SliceOf(rapid.IntRange(1, 100)).Draw(t, "sizes")}
		if err := foldStream(c, table); err != nil {
			t.Fatal(err)
		}
		if got := table.Folded(); got != Expect(10, 1) {
			t.Fatalf("got %+v", got)
		}
		if want := "\x03\x00\x00\x00\x00\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00"; c.out.String() != want {
			t.Fatalf("answers %q", c.out.String())
		}
	})
	for name, bad := range map[string][]byte{
		"cut":       stream[:len(stream)-1],
		"too large": binary.LittleEndian.AppendUint32(nil, batchBytes+1),
		"half pair": batch(p[:PairBytes+1]),
	} {
		table, _ := NewTable(5)
		if err := foldStream(&pieces{rest: bad}, table); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzFoldStream(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0})
	f.Add(append([]byte{PairBytes, 0, 0, 0}, make([]byte, PairBytes)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, _ := NewTable(10)
		_ = foldStream(&pieces{rest: b}, table)
	})
}

func TestQuantile(t *testing.T) {
	d := make([]time.Duration, 100)
	for i := range d {
		d[i] = time.Duration(100 - i)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := Quantile(d, q); got != want {
			t.Errorf("%v: got %d, want %d", q, got, want)
		}
	}
	if Quantile(nil, 0.5) != 0 || Quantile([]time.Duration{7}, 0.99) != 7 {
		t.Error("of none or one")
	}
}

func TestReport(t *testing.T) {
	r := Report{Results: []Result{{Path: "tcp", Keys: 1000, Condition: Idle, PairsPerSecond: 2e6, CPUNsPerPair: 40, RTTp50Us: 17}}}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"results":[{"path":"tcp","keys":1000,"condition":"idle","pairs_per_second":2000000,"cpu_ns_per_pair":40,` +
		`"send_cpu_ns_per_pair":0,"receive_cpu_ns_per_pair":0,"rtt_p50_us":17,"rtt_p99_us":0}]}`; string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "2.0") || strings.Count(b.String(), "\n") != 2 {
		t.Errorf("%v\n%s", err, b.String())
	}
	r.Results = append(r.Results, Result{Path: "kernel", Keys: 1000, Condition: Idle, CPUNsPerPair: 16}, Result{Path: "kernel", Keys: 1000, Condition: Busy})
	b.Reset()
	if err := r.WriteRatios(&b); err != nil || strings.Count(b.String(), "2.50 x") != 1 || strings.Count(b.String(), "\n") != 3 {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestTCP runs the baseline between two processes of this machine.
func TestTCP(t *testing.T) {
	linux(t)
	for _, c := range []Config{
		{Keys: 1, Order: HashOrder, Trips: 3},
		{Keys: 10_000, Order: RandomOrder, Trips: 10},
	} {
		s, err := openTCP(t.Context(), here(t), here(t), c)
		if err != nil {
			t.Fatal(err)
		}
		if sent, err := s.bulk(t.Context(), 100_001); err != nil || sent.Pairs < 100_001 || sent.Took <= 0 {
			t.Errorf("%+v, %v", sent, err)
		}
		if p50, p99, _, err := s.trip(t.Context()); err != nil || p50 <= 0 || p99 < p50 {
			t.Errorf("%v, %v, %v", p50, p99, err)
		}
		if err := s.verify(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSocket runs our own protocol without programs between two processes of this machine.
func TestSocket(t *testing.T) {
	linux(t)
	s, err := openStreams(t.Context(), here(t), here(t), "", Config{Keys: 10_000, Trips: 10})
	if err != nil {
		t.Fatal(err)
	}
	if sent, err := s.bulk(t.Context(), 100_001); err != nil || sent.Pairs != 110_000 || sent.Took <= 0 {
		t.Errorf("%+v, %v", sent, err)
	}
	if p50, p99, sent, err := s.trip(t.Context()); err != nil || p50 <= 0 || p99 < p50 || sent.Pairs != uint64(10*framePairs) {
		t.Errorf("%v, %v, %+v, %v", p50, p99, sent, err)
	}
	// A round more than was pushed must be noticed.
	s.(*streamSession).rounds++
	if err := s.verify(t.Context()); err == nil || !strings.Contains(err.Error(), "not 130000 pairs of 10000 keys") {
		t.Errorf("sums that are missing: %v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

func lab(t *testing.T) {
	t.Helper()
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
}

// TestFold runs all paths between two hosts: all figures are there.
func TestFold(t *testing.T) {
	lab(t)
	o := Options{
		Keys: []int{1000, 20_000}, Conditions: []string{Idle, Busy}, Paths: Paths, Runs: 1, Pairs: 40_000, Trips: 20,
		Place: here(t), Quick: true,
	}
	r, err := Fold(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 2*2*4 {
		t.Errorf("%d results", len(r.Results))
	}
	for i, x := range r.Results {
		if x.Keys != o.Keys[i/8] || x.Condition != o.Conditions[i/4%2] || x.Path != []string{"kernel", "socket", "tcp", "tcp"}[i%4] {
			t.Errorf("result %d is %+v", i, x)
		}
		if x.PairsPerSecond <= 0 || x.RTTp50Us <= 0 || x.RTTp99Us < x.RTTp50Us || (x.ProgramNsPerPair > 0) != (x.Path == "kernel") ||
			x.Condition == Busy && x.CPUNsPerPair <= 0 {
			t.Errorf("%+v", x)
		}
	}
}

func TestContention(t *testing.T) {
	lab(t)
	r, err := Contention(t.Context(), Options{
		Keys: []int{1000}, Conditions: []string{Busy}, Paths: Paths, Runs: 1, Trips: 20, Place: here(t), Quick: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 4 {
		t.Errorf("%d results", len(r.Results))
	}
	for _, x := range r.Results {
		if x.RTTp50Us <= 0 || x.RTTp99Us < x.RTTp50Us || x.Condition != Busy {
			t.Errorf("%+v", x)
		}
	}
}

func TestMedians(t *testing.T) {
	m := medians([]Result{{Path: "kernel", Keys: 7, CPUNsPerPair: 9, RTTp50Us: 1}, {CPUNsPerPair: 1, RTTp50Us: 3}, {CPUNsPerPair: 4, RTTp50Us: 2}})
	if want := (Result{Path: "kernel", Keys: 7, CPUNsPerPair: 4, RTTp50Us: 2}); m != want {
		t.Errorf("got %+v", m)
	}
	if m := medians([]Result{{PairsPerSecond: 1}, {PairsPerSecond: 4}}); m.PairsPerSecond != 2.5 {
		t.Errorf("of two: %v", m.PairsPerSecond)
	}
}

func TestPartitions(t *testing.T) {
	for keys, want := range map[int]int{1: 1, 1_000_000: 1, 1_000_001: 2, 10_000_000: 10} {
		if got := Partitions(keys); got != want {
			t.Errorf("%d keys: %d partitions, want %d", keys, got, want)
		}
	}
}

func TestRoles(t *testing.T) {
	linux(t)
	if _, err := Start(t.Context(), Place{}, "spin"); err == nil {
		t.Error("started a role without a command")
	}
	// A role that is not known ends by itself, and says why.
	p, err := Start(t.Context(), here(t), "unknown")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Call(t.Context(), "Used", &None{}, new(time.Duration)); err == nil {
		t.Error("a role that is not known answers")
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), `no role "unknown"`) {
		t.Errorf("got %v", err)
	}
	// Errors arrive, and calls end with their context.
	p, err = Start(t.Context(), here(t), "tcp-receive")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Call(t.Context(), "Folded", &None{}, &Folded{}); err == nil || !strings.Contains(err.Error(), "does not listen") {
		t.Errorf("got %v", err)
	}
	var address string
	if err := p.Call(t.Context(), "Listen", &TCPListen{Address: "127.0.0.1:0", Bits: 4}, &address); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Call(ctx, "Folded", &None{}, &Folded{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	_ = p.cmd.Process.Kill() // a call is in progress, so it would not end by itself
	_ = p.Close()
}

func TestTimes(t *testing.T) {
	linux(t)
	p, err := processTime()
	if err != nil || p <= 0 {
		t.Errorf("%v, %v", p, err)
	}
	if m, err := MachineTime(); err != nil || m <= 0 {
		t.Errorf("%v, %v", m, err)
	}
}
