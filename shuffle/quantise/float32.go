// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// Float32 is Reducer.Float32 for one call.
func Float32(ctx context.Context, g allreduce.Group, vec []float32, f *Feedback, rule Rule) (Report, error) {
	return NewReducer(g).Float32(ctx, vec, f, rule)
}

// Float32 replaces vec's values by the sums over those of all members, of which each has one. Sums are of 32-bit
// integers, rounded once to the nearest float32; a sum of 0 is +0. Feedback, if there is any, is added before and
// keeps what was dropped. Rule.Terms may be more than there are members: then results are those of a larger group.
func (r *Reducer) Float32(ctx context.Context, vec []float32, f *Feedback, rule Rule) (Report, error) {
	return r.sum32(ctx, len(vec), format32, f, rule,
		func(lo, hi int) []float32 { return vec[lo:hi] },
		func(lo int, v []float32) {}, // which are vec's own
	)
}

// sum32 has terms from load and hands results, in what load gave, to store.
func (r *Reducer) sum32(ctx context.Context, n int, f format, fb *Feedback, rule Rule, load func(lo, hi int) []float32, store func(lo int, v []float32)) (Report, error) {
	c, err := r.begin(rule, f, false, n)
	if err != nil {
		return Report{}, err
	}
	carried, err := fb.of(n)
	if err != nil {
		return Report{}, r.leave(err)
	}
	c.mine, c.carries = 1, carried != nil
	for b := range c.blocks {
		lo, hi := c.span(b)
		r.exps[b] = c.look32(lo, load(lo, hi), part(carried, lo, hi))
	}
	if err := r.scales(ctx, &c); err != nil {
		return Report{}, err
	}
	r.narrow = sized(r.narrow, n+trailer)
	sums := r.narrow
	for b := range c.blocks {
		lo, hi := c.span(b)
		if c.trouble.kind != 0 || r.exps[b] == nothing && !c.fixed {
			clear(sums[lo:hi])
			continue
		}
		c.put32(sums[lo:hi], load(lo, hi), part(carried, lo, hi), math.Ldexp(1, -c.placeOf(r.exps[b])))
	}
	trail(&c, sums[n:])
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: allreduce.Sum, Int32: sums}); err != nil {
		return Report{}, fmt.Errorf("the sums of %d values: %w", n, err)
	}
	if err := settle(ctx, r, &c, sums[n:], false); err != nil {
		return Report{}, err
	}
	round := round32
	if c.mantissa == format16.mantissa {
		round = round16
	}
	for b := range c.blocks { // before anything is changed
		lo, hi := c.span(b)
		size := size32(sums[lo:hi])
		c.judge(b, r.exps[b], size)
		if r.exps[b] == nothing && !c.fixed {
			continue
		}
		if place := c.placeOf(r.exps[b]); bits.Len64(size)+place >= 128 {
			q := math.Ldexp(1, place)
			for i, s := range sums[lo:hi] {
				if v := round(s) * q; math.Abs(v) >= 0x1p128 || math.IsInf(float64(float32(v)), 0) {
					return Report{}, &ValueError{lo + i, -1, v, ErrOverflow}
				}
			}
		}
	}
	if rule.Measure {
		if err := r.measure(ctx, &c, func(lo, hi int, rest []int64, s scale, fine float64) bool {
			return rest32(rest, load(lo, hi), part(carried, lo, hi), s.first, fine)
		}); err != nil {
			return Report{}, err
		}
		measured(r, &c, sums, func(s int32) float64 { return round(s) - float64(s) })
	}
	takes := r.group.Rank() == 0
	for b := range c.blocks {
		lo, hi := c.span(b)
		v := load(lo, hi)
		if r.exps[b] == nothing && !c.fixed {
			clear(v)
		} else {
			q := math.Ldexp(1, c.placeOf(r.exps[b]))
			if carried != nil {
				c.carry32(carried[lo:hi], v, sums[lo:hi], q, takes)
			}
			c.finish32(v, sums[lo:hi], q)
		}
		store(lo, v)
	}
	return c.report, nil
}

// part is v[lo:hi], nil if v is.
func part(v []float32, lo, hi int) []float32 {
	if v == nil {
		return nil
	}
	return v[lo:hi]
}

const (
	sign32 = 1 << 31
	inf32  = 0xff << 23
)

// look32 finds the exponent of a block's largest value, what is carried added, and what can't be added.
func (c *call) look32(lo int, v, carried []float32) int32 {
	if carried != nil {
		return c.lookCarried(lo, v, carried)
	}
	most := most32(v)
	limit := uint32(inf32 - 1)
	if c.fixed {
		limit = min(limit, math.Float32bits(float32(c.limit()))) // a power of two, 0 or infinite
	}
	if most > limit {
		most = 0
		for i, x := range v {
			if n := math.Float32bits(x) &^ sign32; n > limit {
				c.misfit(lo+i, float64(x))
			} else {
				most = max(most, n)
			}
		}
	}
	if most == 0 {
		return nothing
	}
	return int32(exponent32(most))
}

// most32 returns the largest bits without a sign.
func most32(v []float32) uint32 {
	var a, b, c, d uint32
	for ; len(v) >= 4; v = v[4:] {
		a = max(a, math.Float32bits(v[0])&^sign32)
		b = max(b, math.Float32bits(v[1])&^sign32)
		c = max(c, math.Float32bits(v[2])&^sign32)
		d = max(d, math.Float32bits(v[3])&^sign32)
	}
	for _, x := range v {
		a = max(a, math.Float32bits(x)&^sign32)
	}
	return max(a, b, c, d)
}

// size32 is size64 for 32 bits.
func size32(sums []int32) (size uint64) {
	var all int32
	for _, n := range sums {
		all |= n ^ n>>31
	}
	return uint64(all)
}

func (c *call) lookCarried(lo int, v, carried []float32) int32 {
	var most uint64
	carried = carried[:len(v)]
	for i, x := range v {
		most = max(most, math.Float64bits(float64(x)+float64(carried[i]))&^sign64)
	}
	limit := uint64(inf64 - 1)
	if c.fixed {
		limit = min(limit, math.Float64bits(c.limit()))
	}
	if most > limit {
		most = 0
		for i, x := range v {
			t := float64(x) + float64(carried[i])
			if n := math.Float64bits(t) &^ sign64; n > limit {
				c.misfit(lo+i, t)
			} else {
				most = max(most, n)
			}
		}
	}
	if most == 0 {
		return nothing
	}
	return int32(exponent64(most))
}

// Added to a number below 2^51 it leaves the nearest integer in the low bits, ties to even.
const toInteger = 3 << 51

func (c *call) put32(sums []int32, v, carried []float32, s float64) {
	v = v[:len(sums)]
	switch {
	case c.holes:
		for i, x := range v {
			t := float64(x)
			if carried != nil {
				t += float64(carried[i])
			}
			if t-t != 0 {
				t = 0
			}
			sums[i] = int32(math.Float64bits(t*s + toInteger))
		}
	case carried != nil:
		carried = carried[:len(sums)]
		for i, x := range v {
			sums[i] = int32(math.Float64bits((float64(x)+float64(carried[i]))*s + toInteger))
		}
	default:
		for i, x := range v {
			sums[i] = int32(math.Float64bits(float64(x)*s + toInteger))
		}
	}
}

// rest32 adds what rounding to quanta dropped, in parts of a quantum, and says whether it had to round.
func rest32(rest []int64, v, carried []float32, s, fine float64) (rounded bool) {
	for i, x := range v {
		t := float64(x)
		if carried != nil {
			t += float64(carried[i])
		}
		if t-t != 0 {
			continue
		}
		t *= s
		f := (t - math.RoundToEven(t)) * fine
		k := math.RoundToEven(f)
		rest[i] += int64(k)
		rounded = rounded || k != f
	}
	return rounded
}

// carry32 sets what is carried on, before the terms in v are gone.
func (c *call) carry32(carried, v []float32, sums []int32, q float64, takes bool) {
	s := 1 / q
	carried, sums = carried[:len(v)], sums[:len(v)]
	for i, x := range v {
		t := float64(x) + float64(carried[i])
		if t-t != 0 {
			t = float64(carried[i]) // left out, but for this
		} else {
			t -= float64(int32(math.Float64bits(t*s+toInteger))) * q
		}
		if takes {
			n := float64(sums[i])
			if c.mantissa == format16.mantissa {
				n -= round16(sums[i])
			} else {
				n -= round32(sums[i])
			}
			t += n * q
		}
		carried[i] = float32(t)
	}
}

// round32 returns the nearest integer of 24 bits and zeros, ties to even.
func round32(n int32) float64 { return float64(float32(n)) }

func (c *call) finish32(out []float32, sums []int32, q float64) {
	sums = sums[:len(out)]
	if c.mantissa == format16.mantissa {
		for i, n := range sums {
			out[i] = float32(round16(n) * q)
		}
		return
	}
	for i, n := range sums {
		out[i] = float32(float64(n) * q)
	}
}
