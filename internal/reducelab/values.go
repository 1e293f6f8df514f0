// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"fmt"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// numbers are values that follow from a seed, one per member and place, of all sizes and both signs.
type numbers uint64

// of returns the number of a member at a place.
func (s numbers) of(rank, i int) int64 {
	return int64(mix(uint64(s) + uint64(rank)<<40 + uint64(i)))
}

// numbersOf returns those of a call of a group of a case.
func numbersOf(seed uint64, group, call int) numbers {
	return numbers(mix(mix(seed) + uint64(group)<<32 + uint64(call)))
}

// mix is a permutation of 64-bit numbers that leaves no pattern (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fill makes a member's vector for a call.
func (c Call) fill(s numbers, rank int) allreduce.Vector {
	v := allreduce.Vector{Op: c.Op}
	if c.Wide {
		v.Int64 = make([]int64, c.Len)
		for i := range v.Int64 {
			v.Int64[i] = s.of(rank, i)
		}
		return v
	}
	v.Int32 = make([]int32, c.Len)
	for i := range v.Int32 {
		v.Int32[i] = int32(s.of(rank, i))
	}
	return v
}

// check says where a vector is not what all members' values come to.
func (c Call) check(s numbers, members int, v allreduce.Vector) error {
	if len(v.Int64) != c.Len && len(v.Int32) != c.Len {
		return fmt.Errorf("%d values and %d, want %d", len(v.Int64), len(v.Int32), c.Len)
	}
	for i := range c.Len {
		var got, want int64
		if c.Wide {
			got, want = v.Int64[i], reduced(c.Op, members, func(rank int) int64 { return s.of(rank, i) })
		} else {
			got, want = int64(v.Int32[i]), int64(reduced(c.Op, members, func(rank int) int32 { return int32(s.of(rank, i)) }))
		}
		if got != want {
			return fmt.Errorf("value %d of %d is %d, want %d", i, c.Len, got, want)
		}
	}
	return nil
}

func reduced[T int32 | int64](op allreduce.Op, members int, of func(rank int) T) T {
	x := of(0)
	for rank := 1; rank < members; rank++ {
		switch y := of(rank); op {
		case allreduce.Min:
			x = min(x, y)
		case allreduce.Max:
			x = max(x, y)
		default:
			x += y // wraps, as it does there
		}
	}
	return x
}
