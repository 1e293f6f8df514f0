// SPDX-License-Identifier: Apache-2.0

package master

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

func here(int) (string, string) { return "w", "host:1" }

func mapRecord(n uint32, scale []uint8, parts ...task.Manifest) *journal.Map {
	return &journal.Map{
		Attempt: schedule.Attempt{Job: "j", Stage: schedule.Map, Task: n}, Worker: "w",
		Result: task.MapResult{Scale: scale, Parts: parts},
	}
}

// Sums by hand: map 0 has 1.5 (scale 1: 15) with hash 3, map 1 has 2 with hash 5, so that at
// scale 1 the check is 15 x 3 + 20 x 5 = 145 and the absolute values are 35.
func TestLedgerScales(t *testing.T) {
	l := newLedger(2, 1, []uint8{opSum})
	l.add(mapRecord(1, nil, task.Manifest{Pairs: 1, Digest: 2, Check: []uint64{10}, SumAbs: [][2]uint64{{0, 2}}, Keys: [5]uint64{1}}))
	if in := l.input(0, here); in.Check[0] != 10 || len(in.Scale) != 0 || in.Pairs != 1 {
		t.Errorf("one map: %v", in)
	}
	l.add(mapRecord(0, []uint8{1}, task.Manifest{Pairs: 1, Digest: 1, Check: []uint64{45}, SumAbs: [][2]uint64{{0, 15}}, Keys: [5]uint64{1}}))
	in := l.input(0, here)
	if in.Check[0] != 145 || !slices.Equal(in.Scale, []byte{1}) || in.Pairs != 2 || !in.Bound[0] || in.NoKeys || l.sums[0].abs[0].Int64() != 35 {
		t.Errorf("two maps: %v, %v", in, l.sums[0].abs[0])
	}
	if len(in.Outputs) != 2 || in.Outputs[0].Task != 0 || in.Outputs[1].Digest != 2 || in.Outputs[1].Address != "host:1" {
		t.Errorf("outputs: %v", in.Outputs)
	}
	// 145 at scale 1 is 1450 at scale 2.
	f := folded{}
	f.add(l, &journal.Reduce{Kernel: 1, User: 1, Scale: []uint8{1}, Result: task.ReduceResult{Check: []uint64{145}}})
	if err := l.balance(0, &f); err != nil {
		t.Error(err)
	}
	l.raise([]uint8{2})
	f = folded{}
	f.add(l, &journal.Reduce{Kernel: 1, User: 1, Scale: []uint8{1}, Result: task.ReduceResult{Check: []uint64{145}}})
	if err := l.balance(0, &f); err != nil {
		t.Error(err)
	}
	f.check[0]++
	if l.balance(0, &f) == nil {
		t.Error("a wrong check balances")
	}
	f.check[0]--
	f.pairs++
	if l.balance(0, &f) == nil {
		t.Error("a pair too many balances")
	}
}

// The bound is 2^63 exactly.
func TestLedgerBound(t *testing.T) {
	for _, tc := range []struct {
		abs  [2]uint64
		more uint64
		want bool
	}{
		{[2]uint64{0, 1<<63 - 1}, 0, true},
		{[2]uint64{0, 1<<63 - 1}, 1, false},
		{[2]uint64{1, 0}, 0, false},
		{[2]uint64{1<<64 - 1, 1<<64 - 1}, 1, false},
	} {
		l := newLedger(2, 1, []uint8{opSum, 1})
		l.add(mapRecord(0, nil, task.Manifest{Pairs: 1, SumAbs: [][2]uint64{tc.abs, {}}}))
		l.add(mapRecord(1, nil, task.Manifest{Pairs: 1, SumAbs: [][2]uint64{{0, tc.more}, {}}}))
		if got := l.sums[0].bound(l.ops); got[0] != tc.want || got[1] {
			t.Errorf("%v + %d: %v", tc.abs, tc.more, got)
		}
		f := folded{pairs: 3}
		// Sums beyond 64 bits travel in pieces, so more may be folded than there are.
		if err := l.balance(0, &f); (err == nil) == tc.want {
			t.Errorf("%v + %d: 3 pairs of 2: %v", tc.abs, tc.more, err)
		}
		f.pairs = 1
		if l.balance(0, &f) == nil {
			t.Error("a pair is missing and it balances")
		}
	}
}

// A ledger that took results in, took some out and others in is that of the last ones alone.
func TestLedgerForgets(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		maps, parts := rapid.IntRange(1, 5).Draw(rt, "maps"), rapid.IntRange(1, 4).Draw(rt, "parts")
		ops := []uint8{opSum, 2}
		gen := func(n int) *journal.Map {
			r := mapRecord(uint32(n), []uint8{rapid.Uint8Max(6).Draw(rt, "scale"), 0})
			for range parts {
				r.Result.Parts = append(r.Result.Parts, task.Manifest{
					Pairs: rapid.Int64Range(0, 3).Draw(rt, "pairs"), Digest: rapid.Uint64().Draw(rt, "digest"),
					Check:  []uint64{rapid.Uint64().Draw(rt, "check"), 0},
					SumAbs: [][2]uint64{{rapid.Uint64().Draw(rt, "high"), rapid.Uint64().Draw(rt, "low")}, {}},
					Keys:   [5]uint64{rapid.Uint64Max(9).Draw(rt, "keys")},
				})
			}
			r.Result.Counters = map[string]int64{"c": rapid.Int64Max(1<<40).Draw(rt, "counter")}
			r.Result.Emitted = rapid.Int64Range(0, 100).Draw(rt, "emitted")
			return r
		}
		l := newLedger(maps, parts, ops)
		last := make([]*journal.Map, maps)
		for range rapid.IntRange(maps, 20).Draw(rt, "steps") {
			n := rapid.IntRange(0, maps-1).Draw(rt, "task")
			if last[n] != nil {
				l.remove(last[n])
			}
			last[n] = gen(n)
			l.add(last[n])
		}
		want := newLedger(maps, parts, ops)
		want.raise(l.scale)
		// What each partition has, counted anew with big numbers.
		for p := range parts {
			abs := new(big.Int)
			for _, r := range last {
				if r == nil {
					continue
				}
				f := new(big.Int).SetUint64(pow10(l0(l.scale) - r.Result.Scale[0]))
				abs.Add(abs, f.Mul(f, words(r.Result.Parts[p].SumAbs[0])))
			}
			if got := l.sums[p].abs[0]; got != nil && got.Cmp(abs) != 0 || got == nil && abs.Sign() != 0 {
				rt.Fatalf("partition %d: absolute values %v, want %v", p, got, abs)
			}
		}
		for _, r := range last {
			if r != nil {
				want.add(r)
			}
		}
		for p := range parts {
			a, b := l.input(p, here), want.input(p, here)
			if a.Pairs != b.Pairs || !slices.Equal(a.Check, b.Check) || !slices.Equal(a.Bound, b.Bound) || len(a.Outputs) != len(b.Outputs) || l.sums[p].keys != want.sums[p].keys {
				rt.Fatalf("partition %d: %v, want %v", p, a, b)
			}
			for i := range a.Outputs {
				if a.Outputs[i].Digest != b.Outputs[i].Digest || a.Outputs[i].Pairs != b.Outputs[i].Pairs {
					rt.Fatalf("partition %d, output %d: %v, want %v", p, i, a.Outputs[i], b.Outputs[i])
				}
			}
		}
		if l.totals != want.totals || l.counts["c"] != want.counts["c"] || l.done != want.done {
			rt.Fatalf("totals %+v, want %+v", l.totals, want.totals)
		}
	})
}

func l0(scale []uint8) uint8 {
	if len(scale) == 0 {
		return 0
	}
	return scale[0]
}

// Estimates lie between what one task has and what all have.
func TestEstimate(t *testing.T) {
	s := partSum{}
	for _, n := range []uint64{100, 400, 400} {
		s.add(&task.Manifest{Keys: [5]uint64{n, 0, 1}}, nil, 1)
	}
	// sqrt(900 x 400) = 600; sqrt(3 x 1) = 1.7
	if got := s.estimate(); !slices.Equal(got, []uint64{600, 0, 1, 0, 0}) {
		t.Errorf("%v", got)
	}
}
