// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/big"

	"github.com/quernmr/quern/shuffle/wire"
)

// Pair is a key and its values, one per lane.
type Pair struct {
	Key   string
	Lanes []int64
}

// Fold folds pairs in the plainest way, with sums that can't overflow: what every
// other path must come to. ops are those of lanes, as in the wire package; there may be
// any number of them.
func Fold(ops []uint8, pairs ...Pair) map[string][]*big.Int {
	all := map[string][]*big.Int{}
	for _, p := range pairs {
		lanes := all[p.Key]
		if lanes == nil {
			lanes = make([]*big.Int, len(ops))
			for i, op := range ops {
				lanes[i] = big.NewInt(wire.Identity(op))
			}
			all[p.Key] = lanes
		}
		for i, op := range ops {
			merge(op, lanes[i], big.NewInt(p.Lanes[i]))
		}
	}
	return all
}

// Merge folds what was folded apart: from into into.
func Merge(ops []uint8, into, from map[string][]*big.Int) {
	for key, lanes := range from {
		have := into[key]
		if have == nil {
			into[key] = lanes
			continue
		}
		for i, op := range ops {
			merge(op, have[i], lanes[i])
		}
	}
}

func merge(op uint8, a, b *big.Int) {
	switch op {
	case wire.OpSum, wire.OpSumBound:
		a.Add(a, b)
	case wire.OpMin:
		if b.Cmp(a) < 0 {
			a.Set(b)
		}
	case wire.OpMax:
		if b.Cmp(a) > 0 {
			a.Set(b)
		}
	case wire.OpAnd:
		a.And(a, b)
	case wire.OpOr:
		a.Or(a, b)
	case wire.OpXor:
		a.Xor(a, b)
	}
}

// Exact returns the value of a lane and its carries.
func Exact(lane, carry int64) *big.Int {
	c := new(big.Int).Lsh(big.NewInt(carry), 64)
	return c.Add(c, big.NewInt(lane))
}

// Drain reads a keyed table into a map like that of [Fold].
func Drain(memory []byte, class, lanes int, ops uint16) (map[string][]*big.Int, error) {
	s, err := wire.NewSlots(memory, class, lanes, ops)
	if err != nil {
		return nil, err
	}
	each := make([]uint8, lanes)
	for i := range each {
		each[i] = wire.OpOf(ops, i)
	}
	all := map[string][]*big.Int{}
	err = s.Each(func(v *wire.Value) error {
		row := make([]*big.Int, lanes)
		for i := range row {
			row[i] = Exact(v.Lanes[i], v.Carries[i])
		}
		Merge(each, all, map[string][]*big.Int{string(v.Key): row})
		return nil
	})
	return all, err
}

// Diff says where two folds differ first, in no order; "" if they don't.
func Diff(got, want map[string][]*big.Int) string {
	for key, lanes := range want {
		have, ok := got[key]
		if !ok {
			return fmt.Sprintf("key %q is missing", key)
		}
		for i := range lanes {
			if have[i].Cmp(lanes[i]) != 0 {
				return fmt.Sprintf("key %q, lane %d: %v, not %v", key, i, have[i], lanes[i])
			}
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			return fmt.Sprintf("key %q is not expected", key)
		}
	}
	return ""
}
