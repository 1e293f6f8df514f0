// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"bytes"
	"math"
	"math/bits"
	"slices"
	"unsafe"
)

// Entry is a record to be sorted, with eight bytes of its key at the depth that
// the sort has reached, as a big-endian number.
type Entry struct {
	prefix uint64
	ref    Ref
}

// Ref returns the record.
func (e Entry) Ref() Ref { return e.ref }

// Sorter sorts records by key, and by payload where keys are equal. It belongs
// to one goroutine and keeps its scratch memory.
type Sorter struct {
	arena  *Arena
	layout Layout
	swap   []Entry
}

// NewSorter makes a sorter of records in a.
func NewSorter(a *Arena, l Layout) *Sorter { return &Sorter{arena: a, layout: l} }

// Entry makes the entry of a record.
func (s *Sorter) Entry(r Ref) Entry {
	rec := s.arena.Rec(r)
	return Entry{prefixAt(s.key(rec), 0), r}
}

func (s *Sorter) key(r Record) []byte {
	if s.layout.Lanes < 0 {
		return r.PayloadKey()
	}
	return r.Key()
}

// prefixAt returns b's eight bytes from depth on as a big-endian number, zeros
// beyond its end. Records are padded to whole words, and their keys begin on a
// word, so reading a whole word is safe.
func prefixAt(b []byte, depth int) uint64 {
	n := len(b) - depth
	if n <= 0 {
		return 0
	}
	w := load8(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), depth))
	if n < 8 {
		w &= 1<<(8*uint(n)) - 1
	}
	return bits.ReverseBytes64(w)
}

// Sort sorts e, whose entries were made by Entry.
func (s *Sorter) Sort(e []Entry) {
	s.sortKeys(e, 0)
}

// sortKeys sorts entries whose keys agree before depth and whose prefixes are
// those at depth.
func (s *Sorter) sortKeys(e []Entry, depth int) {
	s.sortPrefixes(e)
	s.eachTie(e, func(tie []Entry) { s.breakTie(tie, depth+8) })
}

// maxDepth is how many bytes keys may share before they are simply compared: the
// sort descends once for every eight of them.
const maxDepth = 1 << 10

// breakTie sorts entries whose keys agree, with zeros beyond their ends, before depth.
func (s *Sorter) breakTie(tie []Entry, depth int) {
	// Of keys that agree, those that end here come first, the shorter the
	// earlier: "a" before "a\x00".
	const far = math.MaxInt
	ends := func(e Entry) int {
		if n := s.arena.Rec(e.ref).KeyLen(); n <= depth {
			return n
		}
		return far
	}
	same := true
	first := ends(tie[0])
	for _, e := range tie[1:] {
		if ends(e) != first {
			same = false
			break
		}
	}
	if !same {
		slices.SortFunc(tie, func(a, b Entry) int { return ends(a) - ends(b) })
	}
	for i := 0; i < len(tie); {
		n := ends(tie[i])
		j := i + 1
		for j < len(tie) && ends(tie[j]) == n {
			j++
		}
		group := tie[i:j]
		i = j
		if len(group) < 2 {
			continue
		}
		if n == far {
			for k := range group {
				group[k].prefix = prefixAt(s.key(s.arena.Rec(group[k].ref)), depth)
			}
			if len(group) <= 16 || depth > maxDepth {
				s.sortSmall(group, depth)
			} else {
				s.sortKeys(group, depth)
			}
			continue
		}
		if s.layout.Lanes < 0 {
			s.sortPayloads(group)
		}
	}
}

// sortSmall compares whole keys.
func (s *Sorter) sortSmall(e []Entry, depth int) {
	slices.SortFunc(e, func(a, b Entry) int {
		if a.prefix != b.prefix {
			if a.prefix < b.prefix {
				return -1
			}
			return 1
		}
		ra, rb := s.arena.Rec(a.ref), s.arena.Rec(b.ref)
		if c := bytes.Compare(s.key(ra)[depth:], s.key(rb)[depth:]); c != 0 || s.layout.Lanes >= 0 {
			return c
		}
		return bytes.Compare(ra.Payload(), rb.Payload())
	})
}

// sortPayloads sorts entries of one key.
func (s *Sorter) sortPayloads(e []Entry) {
	for i := range e {
		e[i].prefix = prefixAt(s.arena.Rec(e[i].ref).Payload(), 0)
	}
	s.sortPrefixes(e)
	s.eachTie(e, func(tie []Entry) {
		slices.SortFunc(tie, func(a, b Entry) int {
			return bytes.Compare(s.arena.Rec(a.ref).Payload(), s.arena.Rec(b.ref).Payload())
		})
	})
}

// eachTie calls fn for every run of two or more entries with equal prefixes.
func (s *Sorter) eachTie(e []Entry, fn func([]Entry)) {
	for i := 0; i < len(e); {
		p := e[i].prefix
		j := i + 1
		for j < len(e) && e[j].prefix == p {
			j++
		}
		if j-i > 1 {
			fn(e[i:j])
		}
		i = j
	}
}

// few is how many entries are sorted by insertion.
const few = 24

// sortPrefixes sorts by prefix alone: by the highest bits that differ, then
// each of the groups so made, until groups are small.
func (s *Sorter) sortPrefixes(e []Entry) {
	if len(e) <= few {
		insert(e)
		return
	}
	if cap(s.swap) < len(e) {
		s.swap = make([]Entry, len(e)+len(e)/4)
	}
	var or, and uint64 = 0, ^uint64(0)
	for i := range e {
		or |= e[i].prefix
		and &= e[i].prefix
	}
	differ := or &^ and
	if differ == 0 {
		return
	}
	lead := uint(bits.LeadingZeros64(differ))
	if len(e) < 1<<10 {
		s.sortDigit(e, lead, 64-8, 1<<8)
	} else {
		s.sortDigit(e, lead, 64-11, 1<<11)
	}
}

// sortDigit distributes entries by a digit of their prefixes, the bits from
// lead on down to shift, and sorts those that share it.
func (s *Sorter) sortDigit(e []Entry, lead, shift uint, size int) {
	var counts [1 << 11]uint32
	count := counts[:size]
	for i := range e {
		count[e[i].prefix<<(lead&63)>>(shift&63)&(1<<11-1)]++
	}
	sum := uint32(0)
	for i, c := range count {
		count[i] = sum
		sum += c
	}
	swap := s.swap[:len(e)]
	for i := range e {
		at := &count[e[i].prefix<<(lead&63)>>(shift&63)&(1<<11-1)]
		swap[*at] = e[i]
		*at++
	}
	copy(e, swap)
	from := uint32(0)
	for _, to := range count {
		if to-from > 1 {
			s.sortPrefixes(e[from:to])
		}
		from = to
	}
}

func insert(e []Entry) {
	for i := 1; i < len(e); i++ {
		x := e[i]
		j := i
		for j > 0 && e[j-1].prefix > x.prefix {
			e[j] = e[j-1]
			j--
		}
		e[j] = x
	}
}
