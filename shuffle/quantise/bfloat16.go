// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"context"
	"math"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// BFloat16 is Reducer.BFloat16 for one call.
func BFloat16(ctx context.Context, g allreduce.Group, vec []uint16, f *Feedback, rule Rule) (Report, error) {
	return NewReducer(g).BFloat16(ctx, vec, f, rule)
}

// BFloat16 is Float32 for values in the high halves of float32: with 8 bits of mantissa. Sums are
// rounded once, to the nearest of these; 32-bit sums travel.
func (r *Reducer) BFloat16(ctx context.Context, vec []uint16, f *Feedback, rule Rule) (Report, error) {
	return r.sum32(ctx, len(vec), format16, f, rule,
		func(lo, hi int) []float32 {
			r.floats = sized(r.floats, hi-lo)
			for i, x := range vec[lo:hi] {
				r.floats[i] = FromBFloat16(x)
			}
			return r.floats
		},
		func(lo int, v []float32) {
			to := vec[lo:][:len(v)]
			for i, x := range v {
				to[i] = uint16(math.Float32bits(x) >> 16) // there is nothing in the low half
			}
		},
	)
}

// FromBFloat16 returns the number.
func FromBFloat16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// ToBFloat16 returns the nearest bfloat16, ties to even.
func ToBFloat16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 1<<6 // and not an infinity
	}
	return uint16((b + 1<<15 - 1 + b>>16&1) >> 16)
}

// round16 returns the nearest integer of 8 bits and zeros, ties to even.
func round16(n int32) float64 {
	const drop = 52 - 7
	b := math.Float64bits(float64(n))
	return math.Float64frombits((b + 1<<(drop-1) - 1 + b>>drop&1) &^ (1<<drop - 1))
}
