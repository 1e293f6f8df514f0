// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// Reducer keeps the memory that calls need, for one member of a group, so that calls of the same size allocate
// nothing: 8 bytes a value of Float64, 4 of Float32 and BFloat16, 8 more with Rule.Measure. One call at a time.
//
// All members call the same methods in the same order, with vectors of the same length and the same rule: as
// with allreduce.Group. A *ValueError is the same at all members and leaves the group as it was, and so do rules
// that are found to differ. An error that a member makes alone (a rule that can't be, a feedback of another length)
// closes its group, so that no other waits for it; those of the group itself break it. After any error
// results are not to be used; terms and feedback are as they were before, so that the round can be done again.
type Reducer struct {
	group  allreduce.Group
	exps   []int32
	wide   []int64
	narrow []int32
	rest   []int64
	floats []float32
	one    [1]int64
}

// NewReducer makes one for a member of a group, which it does not close but for the errors told above.
func NewReducer(g allreduce.Group) *Reducer { return &Reducer{group: g} }

// call is one call's state at this member.
type call struct {
	plan
	trouble trouble
	holes   bool // some values of this member are left out
	carries bool // there is feedback, from settle on that of any member
	counts  [3]int64
	mine    int64 // terms of this member
	report  Report
}

// trouble is what a member would end the call for.
type trouble struct {
	kind    int // 0: nothing
	element int
	value   float64
}

const (
	troubleNonFinite = 1 + iota
	troubleQuantum
	troubleLength
)

var troubles = [...]error{troubleNonFinite: ErrNonFinite, troubleQuantum: ErrQuantum, troubleLength: ErrLength}

func (c *call) worry(kind, element int, value float64) {
	if c.trouble.kind == 0 || element < c.trouble.element {
		c.trouble = trouble{kind, element, value}
	}
}

// misfit looks at a value that is not finite, or too large, and says whether it is left out.
func (c *call) misfit(element int, v float64) {
	switch {
	case v-v == 0:
		c.worry(troubleQuantum, element, v)
	case !c.count:
		c.worry(troubleNonFinite, element, v)
	default:
		c.holes = true
		switch {
		case v > 0:
			c.counts[1]++
		case v < 0:
			c.counts[2]++
		default:
			c.counts[0]++
		}
	}
}

// begin makes the plan.
func (r *Reducer) begin(rule Rule, f format, wide bool, n int) (c call, err error) {
	c.plan, err = newPlan(rule, f, wide, n, r.group.Size())
	if err != nil {
		return c, r.leave(err)
	}
	c.report.Bits = c.bits
	r.exps = sized(r.exps, c.blocks)
	return c, nil
}

// leave closes the group for an error that the others may not have.
func (r *Reducer) leave(err error) error {
	if e := r.group.Close(); e != nil {
		return fmt.Errorf("%w (closing the group: %v)", err, e)
	}
	return err
}

// scales agrees on the exponents of all blocks, unless the quantum is fixed.
func (r *Reducer) scales(ctx context.Context, c *call) error {
	if c.fixed || c.blocks == 0 {
		return nil
	}
	if c.trouble.kind != 0 {
		r.exps[0] = refused
	}
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: allreduce.Max, Int32: r.exps}); err != nil {
		return fmt.Errorf("the scales of %d blocks: %w", c.blocks, err)
	}
	if r.exps[0] == refused {
		return r.verdict(ctx, c)
	}
	return nil
}

// verdict finds which member's trouble it is that all end the call for: the one of the lowest element.
func (r *Reducer) verdict(ctx context.Context, c *call) error {
	r.one[0] = math.MaxInt64
	mine := int64(c.trouble.element)<<16 | int64(r.group.Rank())<<8 | int64(c.trouble.kind)
	if c.trouble.kind != 0 {
		r.one[0] = mine
	}
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: allreduce.Min, Int64: r.one[:]}); err != nil {
		return fmt.Errorf("which value can't be added: %w", err)
	}
	first := r.one[0]
	r.one[0] = 0
	if c.trouble.kind != 0 && first == mine {
		r.one[0] = int64(math.Float64bits(c.trouble.value))
	}
	if err := r.group.Reduce(ctx, allreduce.Vector{Op: allreduce.Sum, Int64: r.one[:]}); err != nil {
		return fmt.Errorf("which value can't be added: %w", err)
	}
	kind := int(first & 0xff)
	if kind == 0 || kind >= len(troubles) {
		return r.leave(fmt.Errorf("%w: members do not agree on what can't be added", ErrRule))
	}
	return &ValueError{int(first >> 16), int(first >> 8 & 0xff), math.Float64frombits(uint64(r.one[0])), troubles[kind]}
}

// Behind the values of a sum come numbers that are added up like them, in digits so small that 32 members' fit 32 bits.
const (
	trailCheck   = iota           // of the plan
	trailTrouble                  // 1, and from carriesBit on 1 for feedback
	trailTerms                    // two digits
	trailCounts  = trailTerms + 2 // three of three digits
	trailer      = trailCounts + 9
	digit        = 24

	carriesBit = 8
)

// trail writes them.
func trail[T int32 | int64](c *call, to []T) {
	to = to[:trailer]
	to[trailCheck] = T(c.check)
	to[trailTrouble] = 0
	if c.trouble.kind != 0 {
		to[trailTrouble] = 1
	}
	if c.carries {
		to[trailTrouble] += 1 << carriesBit
	}
	to[trailTerms], to[trailTerms+1] = T(c.mine&(1<<digit-1)), T(c.mine>>digit&(1<<digit-1))
	for i, n := range c.counts {
		for d := range 3 {
			to[trailCounts+3*i+d] = T(n >> (digit * d) & (1<<digit - 1))
		}
	}
}

// settle reads what they add up to, and fails if the sums are not to be used.
// What it finds all members find, so that none waits for another.
func settle[T int32 | int64](ctx context.Context, r *Reducer, c *call, from []T, allTerms bool) error {
	from = from[:trailer]
	if from[trailCheck] != T(r.group.Size())*T(c.check) {
		return fmt.Errorf("%w: members called with different ones, or with vectors of different kinds", ErrRule)
	}
	if from[trailTrouble]&(1<<carriesBit-1) != 0 {
		return r.verdict(ctx, c)
	}
	c.carries = from[trailTrouble]>>carriesBit != 0
	terms := int64(from[trailTerms]) + int64(from[trailTerms+1])<<digit
	if terms > c.terms || allTerms && terms != c.terms {
		return fmt.Errorf("%w: members had %d terms, Terms says %d", ErrRule, terms, c.terms)
	}
	c.had = terms
	for i, to := range []*int64{&c.report.NaN, &c.report.PosInf, &c.report.NegInf} {
		for d := range 3 {
			*to += int64(from[trailCounts+3*i+d]) << (digit * d)
		}
	}
	return nil
}

// judge takes a block's sums into the report: size is the or of their magnitudes.
func (c *call) judge(block int, exp int32, size uint64) {
	if exp == nothing && !c.fixed {
		return
	}
	place := c.placeOf(exp)
	c.report.Quantum = max(c.report.Quantum, math.Ldexp(1, place))
	c.report.Bound = max(c.report.Bound, c.bound(place, bits.Len64(size), !c.carries && place == c.unit))
}

// sized returns a slice of that length, the old one if there is room.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// scale is a factor 2^e, as two that are numbers.
type scale struct{ first, second float64 }

func scaleOf(e int) scale {
	if e > 1000 {
		return scale{0x1p600, math.Ldexp(1, e-600)}
	}
	return scale{math.Ldexp(1, e), 1}
}
