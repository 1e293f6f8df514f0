// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// What rounding dropped of a term is at most half a quantum, and a float. Rounded to parts of a quantum that are
// as small as 64 bits allow it is added up like the terms themselves: that is the error of a sum but
// for Terms/2 such parts, or for nothing if no member had to round to parts, which the last sum tells.

// fineBits is log2 of the parts of a quantum.
func (c *call) fineBits() int { return bits.Len64(uint64(math.MaxInt64/c.terms)) - 1 }

// measure adds up what was dropped: add does it for this member's terms of a block.
func (r *Reducer) measure(ctx context.Context, c *call, add func(lo, hi int, rest []int64, s scale, fine float64) (rounded bool)) error {
	r.rest = sized(r.rest, c.n+1)
	clear(r.rest)
	fine := math.Ldexp(1, c.fineBits())
	for b := range c.blocks {
		if r.exps[b] != nothing || c.fixed {
			lo, hi := c.span(b)
			if add(lo, hi, r.rest[lo:hi], scaleOf(-c.placeOf(r.exps[b])), fine) {
				r.rest[c.n] = 1
			}
		}
	}
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: allreduce.Sum, Int64: r.rest}); err != nil {
		return fmt.Errorf("the errors of %d values: %w", c.n, err)
	}
	return nil
}

// measured finds the largest error: rounded says what a sum's own rounding added, in quanta.
func measured[T int32 | int64](r *Reducer, c *call, sums []T, rounded func(n T) float64) {
	part := math.Ldexp(1, -c.fineBits())
	slack := 0.0
	if r.rest[c.n] != 0 {
		slack = float64(c.had) * part
	}
	for b := range c.blocks {
		if r.exps[b] == nothing && !c.fixed {
			continue
		}
		lo, hi := c.span(b)
		most := 0.0
		for i, n := range sums[lo:hi] {
			most = max(most, math.Abs(rounded(n)-float64(r.rest[lo+i])*part))
		}
		place := c.placeOf(r.exps[b])
		if place > c.unit || c.carries {
			most += slack
		}
		if most == 0 {
			continue
		}
		most *= 1 + 0x1p-50 // more than roundings here can have taken
		e := math.Ldexp(most, place)
		if place < -900 {
			e += math.SmallestNonzeroFloat64
		}
		c.report.Measured = max(c.report.Measured, e)
	}
}
