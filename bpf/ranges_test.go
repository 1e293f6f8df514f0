// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRanges(t *testing.T) {
	r := newRanges(10)
	take := func(n, want uint32) {
		t.Helper()
		if got, ok := r.take(n); !ok || got != want {
			t.Errorf("took %d from %d on (%v), want %d", n, got, ok, want)
		}
	}
	take(3, 0)
	take(3, 3)
	take(3, 6)
	if got, ok := r.take(2); ok {
		t.Errorf("of one left, two were taken from %d on", got)
	}
	r.give(3, 3)
	take(1, 3) // the lowest that fits
	take(2, 4)
	take(1, 9)
	if _, ok := r.take(1); ok || r.left() != 0 {
		t.Errorf("%d are left of nothing", r.left())
	}
	// Neighbours grow together, whichever comes back last.
	r.give(0, 3)
	r.give(6, 3)
	r.give(3, 1)
	r.give(4, 2)
	r.give(9, 1)
	if want := []span{{0, 10}}; !slices.Equal(r.free, want) {
		t.Errorf("free are %v, want %v", r.free, want)
	}
	if _, ok := r.take(0); ok {
		t.Error("nothing was taken from somewhere")
	}
	if _, ok := newRanges(0).take(1); ok {
		t.Error("one was taken of none")
	}
}

// No number is given out twice, the lowest that fit go first, and what comes back can be had again.
func TestRangesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all = 64
		r := newRanges(all)
		var used [all]bool
		var taken []span
		fits := func(n uint32) int {
			for i := range all - int(n) + 1 {
				if !slices.Contains(used[i:i+int(n)], true) {
					return i
				}
			}
			return -1
		}
		mark := func(s span, to bool) {
			for i := s.first; i < s.first+s.count; i++ {
				used[i] = to
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.Uint32Range(1, 20).Draw(t, "n")
				want := fits(n)
				got, ok := r.take(n)
				if ok != (want >= 0) || ok && int(got) != want {
					t.Fatalf("%d from %d on (%v), want %d", n, got, ok, want)
				}
				if ok {
					taken = append(taken, span{got, n})
					mark(span{got, n}, true)
				}
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip("nothing is taken")
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "i")
				r.give(taken[i].first, taken[i].count)
				mark(taken[i], false)
				taken = slices.Delete(taken, i, i+1)
			},
			"": func(t *rapid.T) {
				n := uint32(0)
				for _, u := range used {
					if !u {
						n++
					}
				}
				if r.left() != n {
					t.Fatalf("%d are left, want %d", r.left(), n)
				}
				for i := 1; i < len(r.free); i++ {
					if r.free[i-1].first+r.free[i-1].count >= r.free[i].first {
						t.Fatalf("free are %v", r.free)
					}
				}
			},
		})
	})
}
