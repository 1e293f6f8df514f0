// SPDX-License-Identifier: Apache-2.0

package model

import (
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// table is what a frame is folded into: one of both.
type table struct {
	slots  *wire.Slots
	vector *wire.Vector
}

// folding returns the table that a cell's entry names; nil if there is none that suits.
func (h *Host) folding(id uint32, dense bool, class, lanes int, ops uint16) *table {
	t := h.tables[shuffle.TableID(id-1)]
	if t == nil || t.Layout.Dense != dense {
		return nil
	}
	if dense {
		v, err := wire.NewVector(t.Memory, wire.OpOf(ops, 0))
		if err != nil {
			return nil
		}
		return &table{vector: v}
	}
	if t.Layout.Class != class || t.Layout.Lanes != lanes {
		return nil
	}
	s, err := wire.NewSlots(t.Memory, class, lanes, ops)
	if err != nil {
		return nil
	}
	return &table{slots: s}
}

// find is pass one: every key gets its slot, whose number replaces the hash.
func (t *table) find(shape wire.Shape, items int, body []byte, shift uint8) bool {
	if t.vector != nil {
		return uint64(le.Uint32(body))+uint64(items) <= uint64(t.vector.Len())
	}
	size := shape.PairSize()
	for i := range items {
		p := body[i*size:][:size]
		meta := le.Uint32(p[atMeta:])
		n := int(meta&metaMask) - 1
		if class, ok := wire.ClassOf(n); n < 0 || !ok || class != shape.Class() {
			return false
		}
		slot, ok := t.slots.Find(meta, p[size-shape.KeyBytes():], shift)
		if !ok {
			return false
		}
		le.PutUint32(p[atMeta:], uint32(slot)<<7|meta&metaMask)
	}
	return true
}

// apply is pass two: every value is applied to the slot that pass one found.
func (t *table) apply(shape wire.Shape, items int, body []byte) {
	var lanes [wire.MaxLanes]int64
	if t.vector != nil {
		offset := int(le.Uint32(body))
		for i := range items {
			t.vector.Apply(offset+i, value(shape, body[8+i*shape.ValueBytes():]))
		}
		t.vector.CountPairs(items)
		return
	}
	size := shape.PairSize()
	for i := range items {
		p := body[i*size:][:size]
		for l := range shape.Lanes() {
			lanes[l] = value(shape, p[4+l*shape.ValueBytes():])
		}
		t.slots.Apply(int(le.Uint32(p[atMeta:])>>7), lanes[:shape.Lanes()])
	}
	t.slots.CountPairs(items)
}

func value(shape wire.Shape, b []byte) int64 {
	if shape&wire.Wide != 0 {
		return int64(le.Uint64(b))
	}
	return int64(int32(le.Uint32(b)))
}
