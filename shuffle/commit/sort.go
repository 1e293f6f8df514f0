// SPDX-License-Identifier: Apache-2.0

package commit

import (
	"bytes"
	"cmp"
	"math/bits"
	"slices"
)

const (
	few        = 32 // so many entries are sorted by insertion
	digitBits  = 11 // more groups at once cost more cache misses than they save passes
	digitDepth = 64/4 + 1
)

// sorter sorts the entries of a store by hash, then key. Further pairs of a key
// stay behind it in the order in which they came.
type sorter struct {
	key    func(entry) []byte
	counts [digitDepth][]uint32 // per level of digits
}

// sort sorts e, with swap as scratch of the same length, and returns the one of
// the two that holds the result.
func (s *sorter) sort(e, swap []entry) []entry {
	if s.digits(e, swap, 64, 0) {
		return swap
	}
	return e
}

// digits sorts e by the bits below top. The result is in swap if it returns
// true. Hashes are spread evenly, so that few levels are needed.
func (s *sorter) digits(e, swap []entry, top uint, level int) bool {
	if len(e) <= few {
		s.insert(e)
		return false
	}
	if top == 0 {
		// Only one key added again and again, or a broken hash, comes here.
		slices.SortStableFunc(e, s.compare)
		return false
	}
	width := min(uint(max(bits.Len(uint(len(e)))-3, 4)), digitBits, top)
	shift := top - width
	mask := uint64(1)<<width - 1
	if cap(s.counts[level]) <= int(mask) {
		s.counts[level] = make([]uint32, mask+1)
	}
	counts := s.counts[level][:mask+1]
	clear(counts)
	for i := range e {
		counts[e[i].hash>>shift&mask]++
	}
	sum := uint32(0)
	for i, c := range counts {
		counts[i] = sum
		sum += c
	}
	for i := range e {
		at := &counts[e[i].hash>>shift&mask]
		swap[*at] = e[i]
		*at++
	}
	from := uint32(0)
	for _, to := range counts {
		if to-from > 1 {
			if g, h := swap[from:to], e[from:to]; s.digits(g, h, shift, level+1) {
				copy(g, h)
			}
		}
		from = to
	}
	return true
}

func (s *sorter) insert(e []entry) {
	for i := 1; i < len(e); i++ {
		x := e[i]
		j := i
		for j > 0 && (e[j-1].hash > x.hash || e[j-1].hash == x.hash && s.compare(e[j-1], x) > 0) {
			e[j] = e[j-1]
			j--
		}
		e[j] = x
	}
}

func (s *sorter) compare(a, b entry) int {
	if c := cmp.Compare(a.hash, b.hash); c != 0 {
		return c
	}
	return bytes.Compare(s.key(a), s.key(b))
}
