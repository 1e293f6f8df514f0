// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"reflect"
	"slices"
	"testing"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// TestCases looks at what is drawn: it can happen, all kinds occur, and a seed gives the same again.
func TestCases(t *testing.T) {
	l := Limits{Hosts: 9, Kernel: 5, Mortal: 3, Members: 8, Calls: 60, Largest: 100_000}
	seen := map[string]int{}
	for seed := range uint64(2000) {
		c := NewCase(seed, l)
		if again := NewCase(seed, l); !reflect.DeepEqual(c, again) {
			t.Fatalf("seed %d: %s, and then %s", seed, c, again)
		}
		for _, g := range c.Groups {
			if n := len(g.Members); n < 2 || n > l.Members || n != len(slices.Compact(slices.Sorted(slices.Values(g.Members)))) {
				t.Fatalf("%s: members", c)
			}
			for _, h := range g.Members {
				if h < 1 || h > l.Hosts || c.Flavour == Programs && !l.hasKernel(h) {
					t.Fatalf("%s: host %d", c, h)
				}
			}
			for _, call := range g.Calls {
				if call.Len < 1 || call.Len > l.Largest || call.Op > allreduce.Max {
					t.Fatalf("%s: %+v", c, call)
				}
				seen[call.Op.String()]++
			}
		}
		for _, e := range c.Killed {
			if !l.mortal(c.Groups[0].Members[e.Rank]) || e.Call >= len(c.Groups[0].Calls) {
				t.Fatalf("%s: killed", c)
			}
		}
		seen[string(c.Flavour)]++
		seen["streams "+c.Streams.String()]++
		for what, is := range map[string]bool{
			"IPv6": c.IPv6, "two groups": len(c.Groups) == 2, "killed": len(c.Killed) > 0, "give up": len(c.GivesUp) > 0, "pauses": len(c.Pauses) > 0,
			"answers": len(c.Answers) > 0, "loss": c.Faults.Loss > 0, "duplicates": c.Faults.Duplicate > 0, "damage": c.Faults.Corrupt > 0,
			"reordering": c.Faults.Reorder > 0, "delay": c.Faults.Delay > 0, "all at once": len(c.Groups[0].Members) == l.Members, "whole": c.whole(),
			"faults of TCP": !c.Faults.UDPOnly,
		} {
			if is {
				seen[what]++
			}
		}
	}
	if len(seen) != 3+3+3+14 {
		t.Errorf("of all kinds there were %v", seen)
	}
}

// TestCheck holds the check to values that were worked out by hand, and to ones that are wrong.
func TestCheck(t *testing.T) {
	at := func(values ...int64) func(int) int64 { return func(rank int) int64 { return values[rank] } }
	narrow := func(values ...int32) func(int) int32 { return func(rank int) int32 { return values[rank] } }
	for _, c := range []struct{ got, want int64 }{
		{reduced(allreduce.Sum, 3, at(1, -5, 10)), 6},
		{reduced(allreduce.Sum, 2, at(1<<63-1, 1)), -1 << 63},
		{reduced(allreduce.Min, 3, at(1, -5, 10)), -5},
		{reduced(allreduce.Max, 3, at(1, -5, 10)), 10},
		{reduced(allreduce.Max, 1, at(-7)), -7},
		{int64(reduced(allreduce.Sum, 2, narrow(1<<31-1, 2))), -1<<31 + 1},
		{int64(reduced(allreduce.Min, 2, narrow(1<<31-1, -1<<31))), -1 << 31},
	} {
		if c.got != c.want {
			t.Errorf("%d, want %d", c.got, c.want)
		}
	}
	for _, wide := range []bool{false, true} {
		c, s := Call{Op: allreduce.Max, Wide: wide, Len: 10}, numbersOf(1, 2, 3)
		v := c.fill(s, 0) // of a group of one
		if err := c.check(s, 1, v); err != nil {
			t.Error(err)
		}
		if c.check(s, 2, c.fill(s, 0)) == nil || c.check(s, 1, c.fill(s+1, 0)) == nil || c.check(s, 1, c.fill(s, 1)) == nil {
			t.Error("values of others pass")
		}
		c.Len++
		if c.check(s, 1, v) == nil {
			t.Error("a value less passes")
		}
	}
}
