// SPDX-License-Identifier: Apache-2.0

package bpf

import "slices"

// ranges hands out runs of numbers, the lowest that fit first.
type ranges struct {
	free []span // in order, and none touches the next
}

type span struct{ first, count uint32 }

func newRanges(n uint32) *ranges {
	r := &ranges{}
	r.give(0, n)
	return r
}

// take returns the first of n numbers in a row; ok is false if there are not as many.
func (r *ranges) take(n uint32) (first uint32, ok bool) {
	i := slices.IndexFunc(r.free, func(s span) bool { return s.count >= n })
	if i < 0 || n == 0 {
		return 0, false
	}
	s := &r.free[i]
	first = s.first
	s.first, s.count = s.first+n, s.count-n
	if s.count == 0 {
		r.free = slices.Delete(r.free, i, i+1)
	}
	return first, true
}

// give takes back n numbers from first on, of which none is free.
func (r *ranges) give(first, n uint32) {
	if n == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(r.free, first, func(s span, first uint32) int {
		if s.first < first {
			return -1
		}
		return 1
	})
	r.free = slices.Insert(r.free, i, span{first, n})
	if i+1 < len(r.free) && first+n == r.free[i+1].first {
		r.free[i].count += r.free[i+1].count
		r.free = slices.Delete(r.free, i+1, i+2)
	}
	if i > 0 && r.free[i-1].first+r.free[i-1].count == first {
		r.free[i-1].count += r.free[i].count
		r.free = slices.Delete(r.free, i, i+1)
	}
}

// left returns how many numbers are free.
func (r *ranges) left() (n uint32) {
	for _, s := range r.free {
		n += s.count
	}
	return n
}
