// SPDX-License-Identifier: Apache-2.0

package quantise

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/quernmr/quern/shuffle/wire"
)

// NonFinite says what is done with values that are NaN or infinite. They are never added to others.
type NonFinite uint8

// What can be done.
const (
	// Refuse ends the call at all members, with one error that names element and member.
	Refuse NonFinite = iota
	// Count leaves them out, as if they were 0, and counts them in the Report.
	Count
)

// Rule says how values become integers. All members have the same one.
type Rule struct {
	// Quantum fixes what values are rounded to multiples of; a power of two, else the next lower one is taken.
	// It saves a small round of the group. A value that is too large for it ends the call at all members: the
	// largest is Quantum times 2^Bits. 0: every block has its own, the smallest that can't overflow.
	Quantum float64
	// Block is the number of values of a block. 0: as many as a frame has, 168 of 64 and 336 of 32 bits.
	Block int
	// Terms is the number of terms of every sum, of all members together. 0: one a member. Every doubling costs a
	// bit. At most MaxTerms64 or MaxTerms32.
	Terms     int
	NonFinite NonFinite
	// Measure has the Report tell the error that was really made. It takes a second sum of 64-bit integers.
	Measure bool
}

// The largest numbers of terms. 2^20 terms leave 32-bit sums 10 bits a value: who has many adds
// them up before, or takes Float64.
const (
	MaxTerms64 = 1 << 30
	MaxTerms32 = 1 << 20
)

// Report is what is known of a result. All members get the same one.
type Report struct {
	// Bound is what no element's absolute error exceeds: half a quantum for every term that there was, and the rounding of the
	// sum to the result's format. A block's quantum is its largest value, rounded up to a power of two, over
	// 2^Bits; Bound is that of the worst block.
	Bound float64
	// Quantum is the largest one of all blocks; 0: there were only zeros.
	Quantum float64
	// Bits is what a block's largest value has in its quanta: 62 for a single term of Float64, 30 of Float32, one
	// less for every doubling of Terms.
	Bits int
	// Measured is the largest absolute error of any element, rounded up, if Rule.Measure is set.
	Measured float64
	// NaN, PosInf and NegInf count values that were left out, of all terms and elements.
	NaN, PosInf, NegInf int64
}

// Errors that values are the reason of come as a *ValueError that wraps one of these.
var (
	ErrNonFinite = errors.New("the value is not finite; leave such values out (Count), or find out where it comes from")
	ErrQuantum   = errors.New("too large for the quantum; use a larger one, fewer terms, or none, which finds its own")
	ErrOverflow  = errors.New("the sum is beyond the largest finite number")
	ErrLength    = errors.New("the terms of a sum differ in length")
)

// ErrRule is returned for a rule that can't be, or that is not the same at all members.
var ErrRule = errors.New("rule of quantising")

// ValueError names what a call failed for, at all members alike. The group is as good as before.
type ValueError struct {
	Element int     // index; of ErrLength the term's at its member
	Member  int     // rank; -1: it is the sum
	Value   float64 // of ErrLength the term's length
	Err     error
}

func (e *ValueError) Error() string {
	switch {
	case errors.Is(e.Err, ErrLength):
		return fmt.Sprintf("term %d of member %d has %.0f values: %v", e.Element, e.Member, e.Value, e.Err)
	case e.Member < 0:
		return fmt.Sprintf("element %d: %v", e.Element, e.Err)
	}
	return fmt.Sprintf("element %d of member %d: value %v: %v", e.Element, e.Member, e.Value, e.Err)
}

// Unwrap returns what it wraps.
func (e *ValueError) Unwrap() error { return e.Err }

// format is that of values: their mantissa's bits, and the exponent of the smallest number above 0.
type format struct{ mantissa, unit int }

var (
	format64 = format{53, -1074}
	format32 = format{24, -149}
	format16 = format{8, -133}
)

// plan is a rule for one call.
type plan struct {
	format
	wide   bool // sums have 64 bits
	n      int  // values
	block  int
	blocks int
	terms  int64 // that there may be
	had    int64 // that there were
	bits   int
	fixed  bool
	place  int // log2 of the fixed quantum
	count  bool
	check  uint64 // of what must be the same at all members
}

func newPlan(r Rule, f format, wide bool, n, members int) (plan, error) {
	p := plan{format: f, wide: wide, n: n, block: r.Block, terms: int64(r.Terms), count: r.NonFinite == Count}
	if p.terms == 0 {
		p.terms = int64(members)
	}
	most, width := int64(MaxTerms32), 4
	if wide {
		most, width = MaxTerms64, 8
	}
	if p.block == 0 {
		p.block = wire.ChunkSize / width
	}
	switch {
	case p.block < 0:
		return p, fmt.Errorf("%w: blocks of %d values", ErrRule, r.Block)
	case p.terms < 0 || p.terms > most:
		return p, fmt.Errorf("%w: %d terms: 1 to %d are possible; add some up before, or take Float64", ErrRule, r.Terms, most)
	case r.NonFinite > Count:
		return p, fmt.Errorf("%w: NonFinite(%d)", ErrRule, r.NonFinite)
	case r.Quantum != 0 && !(r.Quantum > 0 && r.Quantum <= math.MaxFloat64):
		return p, fmt.Errorf("%w: quantum %v: it must be a finite number above 0", ErrRule, r.Quantum)
	}
	asked := p.block // all are to ask for the same, whatever comes of it
	p.block = min(asked, max(n, 1))
	p.blocks = (n + p.block - 1) / p.block
	// A term has at most 2^bits quanta, and terms of that size still fit.
	largest := int64(math.MaxInt32)
	if wide {
		largest = math.MaxInt64
	}
	p.bits = bits.Len64(uint64(largest/p.terms)) - 1
	if p.fixed = r.Quantum != 0; p.fixed {
		p.place = max(exponent64(math.Float64bits(r.Quantum))-1, p.unit)
	}
	p.check = 0x9e3779b97f4a7c15
	if r.Measure {
		p.check++
	}
	for _, v := range []uint64{uint64(n), uint64(asked), uint64(p.terms), math.Float64bits(r.Quantum), uint64(r.NonFinite), uint64(p.mantissa)} {
		p.check = (p.check ^ v) * 0xff51afd7ed558ccd
		p.check ^= p.check >> 32
	}
	return p, nil
}

// span is where a block's values are.
func (p *plan) span(block int) (lo, hi int) {
	lo = block * p.block
	return lo, min(lo+p.block, p.n)
}

// placeOf is log2 of the quantum of a block whose values are below 2^exp. At the smallest number of the
// format nothing is left to be rounded.
func (p *plan) placeOf(exp int32) int {
	if p.fixed {
		return p.place
	}
	return max(int(exp)-p.bits, p.unit)
}

// limit is the largest value that the fixed quantum takes.
func (p *plan) limit() float64 { return math.Ldexp(1, p.place+p.bits) }

// What stands for a block in place of the exponent.
const (
	nothing int32 = math.MinInt32 // only zeros
	refused int32 = math.MaxInt32 // a value that is not finite
)

// exponent64 returns the smallest e with |v| < 2^e of the bits of a finite float, without its sign, not 0.
func exponent64(b uint64) int {
	if e := int(b >> 52); e != 0 {
		return e - 1022
	}
	return bits.Len64(b) - 1074
}

// exponent32 is exponent64 for 32 bits.
func exponent32(b uint32) int {
	if e := int(b >> 23); e != 0 {
		return e - 126
	}
	return bits.Len32(b) - 149
}

// bound is that of a block's elements, whose sums have at most that many bits.
func (p *plan) bound(place, length int, exact bool) float64 {
	bound := 0.0
	if !exact {
		bound = math.Ldexp(float64(p.had), place-1)
	}
	if length > p.mantissa {
		bound = addUp(bound, math.Ldexp(1, place+length-p.mantissa-1))
	}
	return bound
}

// addUp returns a + b, rounded up; neither is negative.
func addUp(a, b float64) float64 {
	s := a + b
	if a < b {
		a, b = b, a
	}
	if s-a < b {
		s = math.Nextafter(s, math.Inf(1))
	}
	return s
}
