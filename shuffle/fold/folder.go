// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"unsafe"

	"github.com/quernmr/quern/shuffle/pairs"
)

// folder gives each key of a bucket one record: the first that it meets, into
// which it folds the others. It belongs to one goroutine.
type folder struct {
	arena   *pairs.Arena
	ops     []Op
	slots   []uint64 // tag<<32 | ref
	refs    []pairs.Ref
	carries map[uint64]int64
	folded  int64 // records taken in
}

func newFolder(cfg Config) *folder {
	return &folder{arena: cfg.Arena, ops: cfg.Ops, carries: map[uint64]int64{}}
}

// fold folds bucket b of all combiners and returns the records left, valid
// until the next call.
//
//go:nocheckptr
func (f *folder) fold(cs []*Combiner, b int) []pairs.Ref {
	words := int64(0)
	carries := false
	for _, c := range cs {
		words += c.buckets.Words(b)
		carries = carries || len(c.carries) > 0
	}
	f.refs = f.refs[:0]
	if words == 0 {
		return f.refs
	}
	lanes := len(f.ops)
	layout := pairs.Layout{Lanes: lanes}
	size := 256
	for int64(size)*4 < words {
		size *= 2
	}
	f.table(size)
	one := lanes == 1 && f.ops[0] == Sum
	mask := uint32(len(f.slots) - 1)
	limit := len(f.slots) / 2
	for _, c := range cs {
		c.buckets.Spans(b, func(r, end pairs.Ref) {
			for r < end {
				rec := f.arena.At(r)
				head := *(*uint64)(rec)
				n := int(head & 0x7fffffff)
				kw := pairs.KeyWords(n)
				tag := uint32(head >> 32)
				f.folded++
				for i := tag & mask; ; i = (i + 1) & mask {
					s := f.slots[i]
					if s == 0 {
						f.slots[i] = head&^0xffffffff | uint64(r)
						f.refs = append(f.refs, r)
						if carries {
							f.take(c, r, r)
						}
						if len(f.refs) > limit {
							f.grow()
							mask = uint32(len(f.slots) - 1)
							limit = len(f.slots) / 2
						}
						break
					}
					if uint32(s>>32) != tag {
						continue
					}
					into := f.arena.At(pairs.Ref(s))
					if !sameRecordKey(into, rec, kw) {
						continue
					}
					if one {
						lane := (*int64)(unsafe.Add(into, 8+uintptr(kw)<<3))
						a, v := *lane, *(*int64)(unsafe.Add(rec, 8+uintptr(kw)<<3))
						sum := a + v
						*lane = sum
						if (a^sum)&(v^sum) < 0 {
							f.carry(pairs.Ref(s), 0, v)
						}
					} else {
						f.apply(pairs.Ref(s), f.arena.Rec(pairs.Ref(s)).Lanes(lanes), f.arena.Rec(r).Lanes(lanes))
					}
					if carries {
						f.take(c, r, pairs.Ref(s))
					}
					break
				}
				r += pairs.Ref(1 + kw + layout.Lanes)
			}
		})
	}
	return f.refs
}

// sameRecordKey compares heads and padded keys word by word.
//
//go:nocheckptr
func sameRecordKey(a, b unsafe.Pointer, kw int) bool {
	for i := uintptr(0); i <= uintptr(kw)<<3; i += 8 {
		if *(*uint64)(unsafe.Add(a, i)) != *(*uint64)(unsafe.Add(b, i)) {
			return false
		}
	}
	return true
}

func (f *folder) table(size int) {
	if cap(f.slots) < size {
		f.slots = make([]uint64, size)
		return
	}
	f.slots = f.slots[:size]
	clear(f.slots)
}

func (f *folder) grow() {
	old := f.slots
	f.slots = make([]uint64, 2*len(old))
	mask := uint32(len(f.slots) - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := uint32(s>>32) & mask
		for f.slots[i] != 0 {
			i = (i + 1) & mask
		}
		f.slots[i] = s
	}
}

func (f *folder) apply(into pairs.Ref, lanes, v []int64) {
	for i, op := range f.ops {
		a, b := lanes[i], v[i]
		s := op.Apply(a, b)
		lanes[i] = s
		if op == Sum && (a^s)&(b^s) < 0 {
			f.carry(into, i, b)
		}
	}
}

// carry notes that lane i wrapped when v was added.
func (f *folder) carry(r pairs.Ref, i int, v int64) {
	f.carries[uint64(r)*MaxLanes+uint64(i)] += carryOf(v)
}

// carryOf is the carry of a sum that wrapped when v was added: upwards if v is
// positive, downwards if it is negative.
func carryOf(v int64) int64 {
	if v < 0 {
		return -1
	}
	return 1
}

// take hands the carries that c holds for record r on to record into.
func (f *folder) take(c *Combiner, r, into pairs.Ref) {
	for i := range f.ops {
		if n := c.carries[uint64(r)*MaxLanes+uint64(i)]; n != 0 {
			f.carries[uint64(into)*MaxLanes+uint64(i)] += n
		}
	}
}

// moveCarries hands the carries of record r on to its copy.
func (f *folder) moveCarries(r, at pairs.Ref, to map[uint64]int64) {
	for i := range f.ops {
		if n := f.carries[uint64(r)*MaxLanes+uint64(i)]; n != 0 {
			to[uint64(at)*MaxLanes+uint64(i)] = n
		}
	}
}
