// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// A slot: meta, mark, lanes, carries of lanes 1 and on, key. Lanes are kept xor their
// operation's identity, so that zeros are identities.
const (
	slotMark  = 4
	slotLanes = 8
	markSet   = 1 // a value was applied
)

// HomeSlot returns the slot where the search for a pair begins, in a table of 1<<bits slots that
// drops the top shift bits of hashes.
func HomeSlot(meta uint32, shift uint8, bits int) int {
	return int(meta >> 7 << shift & (1<<HashBits - 1) >> (HashBits - bits))
}

// TableOf returns the head of a table in memory, which is aligned to 8 bytes and has room
// for it. Programs count in it: read it atomically.
func TableOf(mem []byte) *Table { return (*Table)(unsafe.Pointer(unsafe.SliceData(mem[:TableHead]))) }

// Slots are the slots of a keyed table in memory, as programs keep them. Programs may write
// at the same time only if the caller can bear with it: a table that is drained is
// one that no cell names, since the last quiesce.
type Slots struct {
	mem         []byte
	class       int
	lanes       int
	size        int
	bits        int
	keyAt       int
	ops         uint16
	identity    [MaxLanes]int64
	keyB, count int
}

// NewSlots looks at a table's memory, head included. Errors wrap ErrTable.
func NewSlots(mem []byte, class, lanes int, ops uint16) (*Slots, error) {
	if class < 0 || class >= Classes || lanes < 1 || lanes > MaxLanes {
		return nil, fmt.Errorf("%w: key class %d, %d lanes", ErrTable, class, lanes)
	}
	s := &Slots{mem: mem, class: class, lanes: lanes, ops: ops, size: SlotSize(class, lanes), keyB: 8 << class}
	s.count = (len(mem) - TableHead) / s.size
	n := s.count - Probes
	if n < 1 || n&(n-1) != 0 || TableHead+s.count*s.size != len(mem) {
		return nil, fmt.Errorf("%w: %d bytes are no table of slots of %d", ErrTable, len(mem), s.size)
	}
	s.bits = bits.TrailingZeros(uint(n))
	if s.bits > MaxBits {
		return nil, fmt.Errorf("%w: 2^%d slots", ErrTable, s.bits)
	}
	s.keyAt = slotLanes + 8*lanes + 8*(lanes/2)
	for i := range lanes {
		if OpOf(ops, i) > OpSumBound {
			return nil, fmt.Errorf("%w: operations %#x", ErrTable, ops)
		}
		s.identity[i] = Identity(OpOf(ops, i))
	}
	return s, nil
}

// Bits returns the logarithm of the number of slots.
func (s *Slots) Bits() int { return s.bits }

// Len returns the number of slots, those included that only probes reach.
func (s *Slots) Len() int { return s.count }

// Used returns the number of slots taken, as the table's head has it.
func (s *Slots) Used() uint64 { return atomic.LoadUint64(&TableOf(s.mem).Used) }

// Pairs returns the number of pairs applied, as the table's head has it.
func (s *Slots) Pairs() uint64 { return atomic.LoadUint64(&TableOf(s.mem).Pairs) }

// CountPairs adds to the pairs applied.
func (s *Slots) CountPairs(n int) { atomic.AddUint64(&TableOf(s.mem).Pairs, uint64(n)) }

func (s *Slots) at(i int) []byte { return s.mem[TableHead+i*s.size:][:s.size:s.size] }

// Find returns the slot of a key, or takes one for it. key is padded to its class. ok is false if there
// is neither within the reach of probes.
func (s *Slots) Find(meta uint32, key []byte, shift uint8) (slot int, ok bool) {
	home := HomeSlot(meta, shift, s.bits)
	for i := home; i < home+Probes; i++ {
		p := s.at(i)
		switch m := le.Uint32(p); {
		case m == 0:
			le.PutUint32(p, meta)
			copy(p[s.keyAt:], key[:s.keyB])
			atomic.AddUint64(&TableOf(s.mem).Used, 1)
			return i, true
		case m == meta && bytes.Equal(p[s.keyAt:], key[:s.keyB]):
			return i, true
		}
	}
	return 0, false
}

// Apply applies a pair's values to a slot. It does not count the pair.
func (s *Slots) Apply(slot int, values []int64) {
	p := s.at(slot)
	mark := int32(le.Uint32(p[slotMark:])) | markSet
	for i, v := range values[:s.lanes] {
		lane := p[slotLanes+8*i:]
		r, carry := ApplyOp(OpOf(s.ops, i), int64(le.Uint64(lane))^s.identity[i], v)
		le.PutUint64(lane, uint64(r^s.identity[i]))
		switch {
		case carry == 0:
		case i == 0:
			mark += carry * 2
		default:
			c := p[slotLanes+8*s.lanes+4*(i-1):]
			le.PutUint32(c, le.Uint32(c)+uint32(carry))
		}
	}
	le.PutUint32(p[slotMark:], uint32(mark))
}

// Value is what a slot holds. Key lies in the table.
type Value struct {
	Slot    int
	Key     []byte
	Lanes   []int64
	Carries []int64 // the exact sum of lane i is Lanes[i] + Carries[i] x 2^64
}

// Each calls fn for every slot that a value was applied to, in their order; what v holds is valid
// during the call. It ends early with fn's error, or with one that wraps ErrTable if a
// slot holds what no program writes.
func (s *Slots) Each(fn func(v *Value) error) error {
	var lanes, carries [MaxLanes]int64
	v := Value{Lanes: lanes[:s.lanes], Carries: carries[:s.lanes]}
	least := leastKey(s.class)
	for i := range s.count {
		p := s.at(i)
		meta := le.Uint32(p)
		mark := int32(le.Uint32(p[slotMark:]))
		if meta == 0 {
			if mark != 0 {
				return fmt.Errorf("%w: slot %d is free and has values", ErrTable, i)
			}
			continue
		}
		n := int(meta&lenMask) - 1
		if n < least || n > s.keyB {
			return fmt.Errorf("%w: slot %d has a key of %d bytes", ErrTable, i, n)
		}
		if mark&markSet == 0 {
			continue
		}
		if !paddingZero(p[s.keyAt:], n) {
			return fmt.Errorf("%w: slot %d: the key's padding is not zero", ErrTable, i)
		}
		for l := range v.Lanes {
			v.Lanes[l] = int64(le.Uint64(p[slotLanes+8*l:])) ^ s.identity[l]
			if l == 0 {
				v.Carries[0] = int64(mark >> 1)
			} else {
				v.Carries[l] = int64(int32(le.Uint32(p[slotLanes+8*s.lanes+4*(l-1):])))
			}
		}
		v.Slot, v.Key = i, p[s.keyAt:][:n:n]
		if err := fn(&v); err != nil {
			return err
		}
	}
	return nil
}

// Vector is a dense table in memory: values alone, behind the head.
type Vector struct {
	mem      []byte
	op       uint8
	identity int64
}

// NewVector looks at a dense table's memory, head included. Errors wrap ErrTable.
func NewVector(mem []byte, op uint8) (*Vector, error) {
	n := (len(mem) - TableHead) / 8
	if len(mem) < TableHead+8 || TableHead+8*n != len(mem) {
		return nil, fmt.Errorf("%w: %d bytes are no vector", ErrTable, len(mem))
	}
	if op > OpSumBound || op == OpSum {
		return nil, fmt.Errorf("%w: operation %d on a vector, which has no carries", ErrTable, op)
	}
	return &Vector{mem: mem, op: op, identity: Identity(op)}, nil
}

// Len returns the number of values.
func (v *Vector) Len() int { return (len(v.mem) - TableHead) / 8 }

// Pairs returns the number of values applied, as the table's head has it.
func (v *Vector) Pairs() uint64 { return atomic.LoadUint64(&TableOf(v.mem).Pairs) }

// CountPairs adds to the values applied.
func (v *Vector) CountPairs(n int) { atomic.AddUint64(&TableOf(v.mem).Pairs, uint64(n)) }

// At returns a value; the operation's identity if none was applied.
func (v *Vector) At(i int) int64 { return int64(le.Uint64(v.mem[TableHead+8*i:])) ^ v.identity }

// Apply applies a value.
func (v *Vector) Apply(i int, value int64) {
	r, _ := ApplyOp(v.op, v.At(i), value)
	le.PutUint64(v.mem[TableHead+8*i:], uint64(r^v.identity))
}
