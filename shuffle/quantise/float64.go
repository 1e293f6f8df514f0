// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// Float64 is Reducer.Float64 for one call.
func Float64(ctx context.Context, g allreduce.Group, vecs [][]float64, out []float64, rule Rule) (Report, error) {
	return NewReducer(g).Float64(ctx, vecs, out, rule)
}

// Float64 sets out to the sums, element by element, of all vectors of all members. Each is
// quantised by itself, and all members together have rule.Terms of them, a member any number: which member has
// which does not change a bit of the result. Vectors have out's length; out may be one of them. Sums are of 64-bit
// integers, rounded once to the nearest float64; a sum of 0 is +0.
func (r *Reducer) Float64(ctx context.Context, vecs [][]float64, out []float64, rule Rule) (Report, error) {
	c, err := r.begin(rule, format64, true, len(out))
	if err != nil {
		return Report{}, err
	}
	c.mine = int64(len(vecs))
	for i, v := range vecs {
		if len(v) != len(out) {
			c.worry(troubleLength, i, float64(len(v)))
		}
	}
	if c.trouble.kind == 0 {
		for b := range c.blocks {
			r.exps[b] = c.look64(b, vecs)
		}
	}
	if err := r.scales(ctx, &c); err != nil {
		return Report{}, err
	}
	r.wide = sized(r.wide, c.n+trailer)
	sums := r.wide
	clear(sums)
	if c.trouble.kind == 0 {
		for b := range c.blocks {
			lo, hi := c.span(b)
			if r.exps[b] == nothing && !c.fixed {
				continue
			}
			s := scaleOf(-c.placeOf(r.exps[b]))
			for _, v := range vecs {
				switch {
				case c.holes:
					addSome64(sums[lo:hi], v[lo:hi], s)
				case s.second != 1:
					addTiny64(sums[lo:hi], v[lo:hi], s)
				default:
					add64(sums[lo:hi], v[lo:hi], s.first)
				}
			}
		}
	}
	trail(&c, sums[c.n:])
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: allreduce.Sum, Int64: sums}); err != nil {
		return Report{}, fmt.Errorf("the sums of %d values: %w", c.n, err)
	}
	if err := settle(ctx, r, &c, sums[c.n:], true); err != nil {
		return Report{}, err
	}
	for b := range c.blocks { // before anything is changed: out may be a term
		lo, hi := c.span(b)
		size := size64(sums[lo:hi])
		c.judge(b, r.exps[b], size)
		if r.exps[b] == nothing && !c.fixed {
			continue
		}
		if place := c.placeOf(r.exps[b]); bits.Len64(size)+place >= 1024 {
			q := math.Ldexp(1, place)
			for i, n := range sums[lo:hi] {
				if v := float64(n) * q; math.IsInf(v, 0) {
					return Report{}, &ValueError{lo + i, -1, v, ErrOverflow}
				}
			}
		}
	}
	if rule.Measure {
		if err := r.measure(ctx, &c, func(lo, hi int, rest []int64, s scale, fine float64) (rounded bool) {
			for _, v := range vecs {
				rounded = rest64(rest, v[lo:hi], s, fine) || rounded
			}
			return rounded
		}); err != nil {
			return Report{}, err
		}
		measured(r, &c, sums, func(n int64) float64 { return float64(int64(float64(n)) - n) })
	}
	for b := range c.blocks {
		lo, hi := c.span(b)
		if r.exps[b] == nothing && !c.fixed {
			clear(out[lo:hi])
			continue
		}
		finish64(out[lo:hi], sums[lo:hi], math.Ldexp(1, c.placeOf(r.exps[b])))
	}
	return c.report, nil
}

const (
	sign64 = 1 << 63
	inf64  = 0x7ff << 52
)

// look64 finds the exponent of a block's largest value, and what can't be added.
func (c *call) look64(b int, vecs [][]float64) int32 {
	lo, hi := c.span(b)
	var most uint64
	for _, v := range vecs {
		most = max(most, most64(v[lo:hi]))
	}
	limit := uint64(inf64 - 1)
	if c.fixed {
		limit = min(limit, math.Float64bits(c.limit()))
	}
	if most > limit {
		most = 0
		for _, v := range vecs {
			for i, x := range v[lo:hi] {
				if n := math.Float64bits(x) &^ sign64; n > limit {
					c.misfit(lo+i, x)
				} else {
					most = max(most, n)
				}
			}
		}
	}
	if most == 0 {
		return nothing
	}
	return int32(exponent64(most))
}

// most64 returns the largest bits without a sign. Four at a time do not wait for one another.
func most64(v []float64) uint64 {
	var a, b, c, d uint64
	for ; len(v) >= 4; v = v[4:] {
		a = max(a, math.Float64bits(v[0])&^sign64)
		b = max(b, math.Float64bits(v[1])&^sign64)
		c = max(c, math.Float64bits(v[2])&^sign64)
		d = max(d, math.Float64bits(v[3])&^sign64)
	}
	for _, x := range v {
		a = max(a, math.Float64bits(x)&^sign64)
	}
	return max(a, b, c, d)
}

// add64 adds quanta. The product is exact, or so small that it is rounded to 0.
func add64(sums []int64, v []float64, s float64) {
	v = v[:len(sums)]
	for i, x := range v {
		sums[i] += int64(math.RoundToEven(x * s))
	}
}

func addTiny64(sums []int64, v []float64, s scale) {
	for i, x := range v {
		sums[i] += int64(math.RoundToEven(x * s.first * s.second))
	}
}

func addSome64(sums []int64, v []float64, s scale) {
	for i, x := range v {
		if x-x == 0 {
			sums[i] += int64(math.RoundToEven(x * s.first * s.second))
		}
	}
}

func finish64(out []float64, sums []int64, s float64) {
	sums = sums[:len(out)]
	for i, n := range sums {
		out[i] = float64(n) * s
	}
}

// size64 returns the or of the magnitudes, of negative numbers that of one more: a power of two is as exact as 0.
func size64(sums []int64) (size uint64) {
	for _, n := range sums {
		size |= uint64(n ^ n>>63)
	}
	return size
}

// rest64 adds what rounding to quanta dropped, in parts of a quantum, and says whether it had to round.
func rest64(rest []int64, v []float64, s scale, fine float64) (rounded bool) {
	for i, x := range v {
		if x-x != 0 {
			continue
		}
		t := x * s.first * s.second
		f := (t - math.RoundToEven(t)) * fine
		k := math.RoundToEven(f)
		rest[i] += int64(k)
		rounded = rounded || k != f || t == 0 && x != 0
	}
	return rounded
}
