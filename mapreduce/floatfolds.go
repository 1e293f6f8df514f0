// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"unsafe"
)

// Float is any floating-point type.
type Float interface{ ~float32 | ~float64 }

// NonFinite says what a fold of floats does with a value that is no number (NaN)
// or infinite. Such values are never added to others. It is a FloatOption.
//
// To have them counted beside the result of their key, see CountNonFinite.
type NonFinite uint8

const (
	// ErrorOnNonFinite ends the job with an error that names the record and its key.
	// It is the default.
	ErrorOnNonFinite NonFinite = iota
	// SkipNonFinite leaves them out as if they had not been emitted: a key that has
	// no others gets no row. Result.Counters has how many there were, as "NaN values
	// skipped" and "infinite values skipped".
	SkipNonFinite
	countNonFinite
)

// The counters of SkipNonFinite.
const (
	skippedNaN      = "NaN values skipped"
	skippedInfinite = "infinite values skipped"
)

// ErrNonFinite is why a job ends that meets a value which is NaN or infinite.
var ErrNonFinite = errors.New("the value cannot be folded; leave such values out (SkipNonFinite) or have them counted (CountNonFinite)")

// ErrFloatOverflow is returned when the exact result is beyond the largest finite number.
var ErrFloatOverflow = errors.New("float overflow: the exact result is beyond the largest finite number")

// FloatOption is an option of a fold of floats: ErrorOnNonFinite, SkipNonFinite or Quantum.
type FloatOption interface{ setFloat(o *floatOptions) }

type floatOptions struct {
	nonFinite NonFinite
	quantum   float64 // 0: exact
	err       error
}

func (n NonFinite) setFloat(o *floatOptions) { o.nonFinite = n }

func newFloatOptions(opts []FloatOption) floatOptions {
	var o floatOptions
	for _, x := range opts {
		x.setFloat(&o)
	}
	return o
}

// exactOnly refuses a quantum for folds that have no use for it.
func (o *floatOptions) exactOnly(name string) {
	if o.quantum != 0 && o.err == nil {
		o.err = fmt.Errorf("fold %s: it takes no Quantum, being exact as it is", name)
	}
}

// Parts of keys that hold how many values were not finite; all others are below.
const (
	subNaN = math.MaxUint32 - iota
	subPositive
	subNegative
	subSpecial = subNegative
)

// finite says whether v is a number, and deals with it otherwise.
func (p *Parts) finite(v float64) bool {
	if math.Float64bits(v)&(0x7ff<<52) != 0x7ff<<52 {
		return true
	}
	p.notFinite(v)
	return false
}

func (p *Parts) notFinite(v float64) {
	switch p.nonFinite {
	case SkipNonFinite:
		p.skip(v)
	case countNonFinite:
		clear(p.Lanes)
		p.Lanes[0] = 1
		switch {
		case v > 0:
			p.Put(subPositive)
		case v < 0:
			p.Put(subNegative)
		default:
			p.Put(subNaN)
		}
	default:
		p.Fail(fmt.Errorf("value %v: %w", v, ErrNonFinite))
	}
}

// nonFiniteLanes count values that are not finite, behind the lanes of a fold
// whose keys have no parts.
const nonFiniteLanes = 3

// wholeFinite is finite for folds whose keys have no parts.
func (p *Parts) wholeFinite(v float64) bool {
	switch {
	case math.Float64bits(v)&(0x7ff<<52) != 0x7ff<<52:
		return true
	case p.nonFinite != countNonFinite:
		p.notFinite(v)
		return false
	}
	copy(p.Lanes, p.idle)
	counts := p.Lanes[len(p.Lanes)-nonFiniteLanes:]
	switch {
	case v > 0:
		counts[1] = 1
	case v < 0:
		counts[2] = 1
	default:
		counts[0] = 1
	}
	p.fold()
	return false
}

// skip counts a value that is left out.
func (p *Parts) skip(v float64) {
	c, name := &p.infs, skippedInfinite
	if v != v {
		c, name = &p.nans, skippedNaN
	}
	if *c == nil {
		*c = p.counter(name)
	}
	(*c).Add(1)
}

// Counted is a result beside the numbers of the key's values that are not finite
// and that it therefore leaves out.
type Counted[R any] struct {
	Value  R
	NaN    int64 // values that are no number
	PosInf int64 `json:"pos_inf"` // values that are +Inf
	NegInf int64 `json:"neg_inf"` // values that are -Inf
}

// CountNonFinite makes a fold of floats count the values that are not finite,
// whatever it would do with them otherwise. The result of a key that has no others is that of no value: 0 for sums, NaN for
// means, variances and weighted means, smallest and largest values.
// For FloatMin and FloatMax infinities are values like others and are not counted. It is not for VectorFloatMin and
// VectorFloatMax.
func CountNonFinite[V, R any](f Fold[V, R]) Fold[V, Counted[R]] {
	g := Then(f, func(r R) (Counted[R], error) { return Counted[R]{Value: r}, nil })
	g.nonFinite = countNonFinite
	switch {
	case !f.floats || f.nonFinite == countNonFinite:
		g.err = errors.New("fold CountNonFinite: it is for folds of floats, once")
	case f.getSub != nil && f.ops[0] != OpSum: // whose parts can't count
		g.err = errors.New("fold CountNonFinite: it is not for VectorFloatMin and VectorFloatMax")
	case f.putSome != nil: // lanes more, see wholeFinite
		g.ops = append(f.ops[:len(f.ops):len(f.ops)], make([]Op, nonFiniteLanes)...) // OpSum
		n := len(f.ops)
		g.get = func(l Lanes) (c Counted[R], err error) {
			for i, to := range []*int64{&c.NaN, &c.PosInf, &c.NegInf} {
				if *to, err = l.sum(n + i); err != nil {
					return c, err
				}
			}
			l.V = l.V[:n]
			if l.Carry != nil {
				l.Carry = l.Carry[:n]
			}
			if l.Scale != nil {
				l.Scale = l.Scale[:n]
			}
			c.Value, err = f.get(l)
			return c, err
		}
	case f.getSub != nil:
		g.getSub = func(subs iter.Seq2[uint32, Lanes]) (c Counted[R], err error) {
			c.Value, err = f.getSub(func(yield func(uint32, Lanes) bool) {
				more := true
				for sub, l := range subs {
					if sub < subSpecial {
						more = more && yield(sub, l)
						continue
					}
					to := &c.NaN
					switch sub {
					case subPositive:
						to = &c.PosInf
					case subNegative:
						to = &c.NegInf
					}
					*to = l.V[0]
				}
			})
			return c, err
		}
	}
	return g
}

// sum returns the sum of a lane, an error if it does not fit 64 bits.
func (l Lanes) sum(lane int) (int64, error) {
	if l.Carry != nil && l.Carry[lane] != 0 {
		return 0, fmt.Errorf("%w: %v", ErrOverflow, l.Big(lane))
	}
	return l.V[lane], nil
}

// errPart is returned for parts of keys that no value was put to.
var errPart = errors.New("damaged intermediate data: an unknown part of a key")

// Float64Sum adds floats without any error and rounds once, to the nearest
// float64, ties to even: the result is that of the exact sum, the same to the last
// bit for any order and any cutting of the input. Values may be as large, as small
// and as many as you like; a sum that rounds beyond the largest finite number is
// ErrFloatOverflow and names the key.
//
// A sum of exactly 0 is +0, whatever the signs of the zeros in it.
//
// Values of 32 bits take half the memory of others. With Quantum see there.
func Float64Sum[V Float](opts ...FloatOption) Fold[V, float64] {
	o := newFloatOptions(opts)
	if o.quantum != 0 {
		return quantumSum[V](o, formatFloat64)
	}
	return exactSum[V](o, formatFloat64)
}

// Float32Sum is Float64Sum, rounded once to the nearest float32.
func Float32Sum[V ~float32](opts ...FloatOption) Fold[V, float32] {
	o := newFloatOptions(opts)
	narrow := func(v float64) (float32, error) { return float32(v), nil }
	if o.quantum != 0 {
		return Then(quantumSum[V](o, formatFloat32), narrow)
	}
	return Then(exactSum[V](o, formatFloat32), narrow)
}

// single says whether values have 32 bits.
func single[V Float]() bool {
	var v V
	return unsafe.Sizeof(v) == 4
}

func exactSum[V Float](o floatOptions, f format) Fold[V, float64] {
	s := shapeOf[V](0)
	return Fold[V, float64]{
		ops: s.ops(), putSub: s.put(), floats: true, nonFinite: o.nonFinite, err: o.err,
		getSub: func(subs iter.Seq2[uint32, Lanes]) (float64, error) {
			var a exact
			for sub, l := range subs {
				if err := s.add(&a, sub, l); err != nil {
					return 0, err
				}
			}
			return finite(a.rounded(f, s.unit))
		},
	}
}

// finite returns a result that is not beyond the largest finite number.
func finite(v float64) (float64, error) {
	if math.IsInf(v, 0) {
		return 0, ErrFloatOverflow
	}
	return v, nil
}

// FloatMean is the arithmetic mean: the exact sum divided by the count, rounded
// once to the nearest float64. With Quantum see there.
func FloatMean[V Float](opts ...FloatOption) Fold[V, float64] {
	o := newFloatOptions(opts)
	if o.quantum != 0 {
		return quantumMean[V](o)
	}
	s := shapeOf[V](1)
	return Fold[V, float64]{
		ops: s.ops(), putSub: s.put(), floats: true, nonFinite: o.nonFinite, err: o.err,
		getSub: func(subs iter.Seq2[uint32, Lanes]) (float64, error) {
			var a exact
			var n int64
			for sub, l := range subs {
				if err := s.add(&a, sub, l); err != nil {
					return 0, err
				}
				n += l.V[s.lanes]
			}
			if n <= 0 {
				return math.NaN(), nil
			}
			return a.mean(s.unit, uint64(n)), nil
		},
	}
}

// shape is how sums of floats lie in lanes.
type shape[V Float] struct {
	single bool
	lanes  int // of sums
	counts int // lanes behind, which count values: 0 or 1
	unit   int
}

func shapeOf[V Float](counts int) shape[V] {
	if single[V]() {
		return shape[V]{true, 1, counts, unit32}
	}
	return shape[V]{false, 2, counts, unit64}
}

func (s shape[V]) ops() []Op { return make([]Op, s.lanes+s.counts) } // all OpSum

func (s shape[V]) put() func(p *Parts, v V) {
	switch {
	case s.single && s.counts == 0:
		return func(p *Parts, v V) {
			if p.finite(float64(v)) {
				p.Put(put32(p.Lanes, float32(v)))
			}
		}
	case s.single:
		return func(p *Parts, v V) {
			if p.finite(float64(v)) {
				p.Lanes[1] = 1
				p.Put(put32(p.Lanes, float32(v)))
			}
		}
	case s.counts == 0:
		return func(p *Parts, v V) {
			if p.finite(float64(v)) {
				p.Put(put64(p.Lanes, float64(v)))
			}
		}
	}
	return func(p *Parts, v V) {
		if p.finite(float64(v)) {
			p.Lanes[2] = 1
			p.Put(put64(p.Lanes, float64(v)))
		}
	}
}

// add adds a part of a key.
func (s shape[V]) add(a *exact, sub uint32, l Lanes) error {
	if s.single {
		return addSingle(a, sub, l)
	}
	return addDouble(a, sub, l)
}

// The numbers of windows.
const (
	windows64      = 2046 >> window64
	windows32      = 254 >> window32
	windowsProduct = 4091 >> window64
)

func addSingle(a *exact, window uint32, l Lanes) error {
	if window > windows32 {
		return errPart
	}
	a.add(l.V[0], carryOf(l, 0), uint(window)<<window32)
	return nil
}

func addDouble(a *exact, window uint32, l Lanes) error {
	if window > windows64 {
		return errPart
	}
	at := uint(window) << window64
	a.add(l.V[0], carryOf(l, 0), at)
	a.add(l.V[1], carryOf(l, 1), at+lane64)
	return nil
}

func addProduct(a *exact, window uint32, l Lanes) error {
	if window > windowsProduct {
		return errPart
	}
	at := uint(window) << window64
	for i := range uint(4) {
		a.add(l.V[i], carryOf(l, int(i)), at+i*laneSquare)
	}
	return nil
}

func carryOf(l Lanes, lane int) int64 {
	if l.Carry == nil {
		return 0
	}
	return l.Carry[lane]
}
