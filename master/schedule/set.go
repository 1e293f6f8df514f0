// SPDX-License-Identifier: Apache-2.0

package schedule

import "math/bits"

// set holds integers from 0 to size-1. Every call costs a few steps for each
// factor of 64 in size, so the least element of a million is as quickly found as
// that of a hundred. A bit of a level says that its word of the level below is not 0.
type set struct {
	levels [][]uint64
	size   int
	count  int
}

func newSet(size int) set {
	s := set{size: size}
	for {
		words := (size + 63) / 64
		s.levels = append(s.levels, make([]uint64, max(words, 1)))
		if words <= 1 {
			return s
		}
		size = words
	}
}

func (s *set) has(i int) bool { return s.levels[0][i/64]>>(i%64)&1 != 0 }

func (s *set) add(i int) {
	if s.has(i) {
		return
	}
	s.count++
	for _, l := range s.levels {
		was := l[i/64]
		l[i/64] = was | 1<<(i%64)
		if was != 0 {
			return
		}
		i /= 64
	}
}

func (s *set) remove(i int) {
	if !s.has(i) {
		return
	}
	s.count--
	for _, l := range s.levels {
		l[i/64] &^= 1 << (i % 64)
		if l[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// next returns the least element that is not below i, or -1.
func (s *set) next(i int) int {
	level := 0
	for level < len(s.levels) {
		l := s.levels[level]
		if i/64 >= len(l) {
			return -1
		}
		if w := l[i/64] >> (i % 64); w != 0 {
			i += bits.TrailingZeros64(w)
			for level > 0 {
				level--
				i = i*64 + bits.TrailingZeros64(s.levels[level][i])
			}
			return i
		}
		i = i/64 + 1
		level++
	}
	return -1
}
