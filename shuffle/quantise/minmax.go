// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"context"
	"fmt"
	"math"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// MinMax is Reducer.MinMax64 or MinMax32 for one call.
func MinMax[T float32 | float64](ctx context.Context, g allreduce.Group, op allreduce.Op, vec []T) error {
	r := NewReducer(g)
	switch v := any(vec).(type) {
	case []float32:
		return r.MinMax32(ctx, op, v)
	case []float64:
		return r.MinMax64(ctx, op, v)
	}
	return nil
}

// MinMax64 replaces vec's values by the smallest (allreduce.Min) or largest (allreduce.Max) over those of
// all members, exactly, as Go's min and max have it: -0 is smaller than +0, infinities are values like others, and
// where one member has NaN all get it.
func (r *Reducer) MinMax64(ctx context.Context, op allreduce.Op, vec []float64) error {
	r.wide = sized(r.wide, len(vec))
	nan, err := r.extreme(op, math.MaxInt64, math.MinInt64)
	if err != nil {
		return err
	}
	to := r.wide[:len(vec)]
	for i, v := range vec {
		b := int64(math.Float64bits(v))
		if b ^= int64(uint64(b>>63) >> 1); v != v {
			b = nan
		}
		to[i] = b
	}
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: op, Int64: to}); err != nil {
		return fmt.Errorf("the extremes of %d values: %w", len(vec), err)
	}
	for i, b := range to {
		if vec[i] = math.Float64frombits(uint64(b ^ int64(uint64(b>>63)>>1))); b == nan {
			vec[i] = math.NaN()
		}
	}
	return nil
}

// MinMax32 is MinMax64 for 32 bits.
func (r *Reducer) MinMax32(ctx context.Context, op allreduce.Op, vec []float32) error {
	r.narrow = sized(r.narrow, len(vec))
	wide, err := r.extreme(op, math.MaxInt32, math.MinInt32)
	if err != nil {
		return err
	}
	nan := int32(wide)
	to := r.narrow[:len(vec)]
	for i, v := range vec {
		b := int32(math.Float32bits(v))
		if b ^= int32(uint32(b>>31) >> 1); v != v {
			b = nan
		}
		to[i] = b
	}
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: op, Int32: to}); err != nil {
		return fmt.Errorf("the extremes of %d values: %w", len(vec), err)
	}
	for i, b := range to {
		if vec[i] = math.Float32frombits(uint32(b ^ int32(uint32(b>>31)>>1))); b == nan {
			vec[i] = float32(math.NaN())
		}
	}
	return nil
}

// extreme returns what stands for NaN, which wins and no other value is.
func (r *Reducer) extreme(op allreduce.Op, largest, smallest int64) (int64, error) {
	switch op {
	case allreduce.Max:
		return largest, nil
	case allreduce.Min:
		return smallest, nil
	}
	return 0, r.leave(fmt.Errorf("%w: operation %d is neither Min nor Max", ErrRule, op))
}
