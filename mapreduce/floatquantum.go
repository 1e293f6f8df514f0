// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"math/bits"
)

// Quantum has a sum or mean of floats add multiples of q, which must be finite and
// above 0: each value is rounded to the nearest one, ties to the even multiple.
// That takes one lane in place of two and no parts of keys. The sum of n values is
// off by at most n x q/2 beside its own rounding to the nearest float, and is the
// same to the last bit for any order and any cutting of the input. Nothing
// overflows: sums beyond 64 bits are carried on, and a value of 2^62 x q or more
// ends the job with an error that names the record.
//
// MeasuredSum tells the error that a quantum makes.
func Quantum(q float64) FloatOption { return quantumOption(q) }

type quantumOption float64

func (q quantumOption) setFloat(o *floatOptions) {
	o.quantum = float64(q)
	if !(q > 0) || math.IsInf(float64(q), 0) {
		o.quantum = 1
		o.err = fmt.Errorf("quantum %v: it must be a finite number above 0", float64(q))
	}
}

// ErrQuantum is why a job ends that meets a value too large for its quantum.
var ErrQuantum = errors.New("too large for the quantum; use a larger one, or none, which is exact")

// quantum is a step that values are rounded to.
type quantum struct {
	q   float64
	m   uint64 // q is m x 2^exp
	exp int
}

func newQuantum(q float64) quantum {
	_, m, pos := split64(q)
	return quantum{q, m, int(pos) + unit64}
}

// count returns the multiple of the quantum nearest to v, which must be finite.
// It is false if that is 2^62 or more.
func (q *quantum) count(v float64) (int64, bool) {
	t := v / q.q
	k := math.RoundToEven(t)
	// t is rounded, but not across a tie, which can be written down exactly: it is on
	// the right side of it, if it is not the tie itself.
	if math.Abs(t) < 1<<52 && math.Abs(t-k) != 0.5 {
		return int64(k), true
	}
	if !(math.Abs(t) < 1<<62) {
		return 0, false
	}
	return q.countExactly(v), true
}

// countExactly divides mantissas.
func (q *quantum) countExactly(v float64) int64 {
	sign, m, pos := split64(v)
	up := int(pos) + unit64 - q.exp
	var k, r, den uint64
	switch {
	case up >= 0: // the quotient has 62 bits, so that the shifted mantissa fits 128
		den = q.m
		k, r = bits.Div64(m>>(64-min(up, 64))<<max(0, up-64), m<<up, den)
	case up <= -64 || q.m>>(63+up) != 0: // 2^63 or more, where the mantissa is below 2^53
		return 0
	default:
		den = q.m << -up
		k, r = m/den, m%den
	}
	if r > den-r || r == den-r && k&1 != 0 {
		k++
	}
	return (int64(k) ^ sign) - sign
}

// times returns n x q, rounded once.
func (q *quantum) times(n *big.Int, f format) float64 {
	p := new(big.Int).Mul(n, new(big.Int).SetUint64(q.m))
	v := f.round(words64(p), q.exp, false)
	if n.Sign() < 0 {
		return -v
	}
	return v
}

func (q *quantum) put(p *Parts, v float64) bool {
	k, ok := q.count(v)
	if !ok {
		p.Fail(fmt.Errorf("value %v: %w (%v)", v, ErrQuantum, q.q))
		return false
	}
	p.Lanes[0] = k
	return true
}

func (q *quantum) notes(bound string) []string {
	return []string{fmt.Sprintf("values were rounded to the nearest multiple of %v: before it is rounded to a 64-bit float, %s", q.q, fmt.Sprintf(bound, halfUp(q.q)))}
}

const (
	boundSum  = "a sum of n values is off by at most n x %[1]v"
	boundMean = "a mean is off by at most %[1]v"
)

func quantumSum[V Float](o floatOptions, f format) Fold[V, float64] {
	q := newQuantum(o.quantum)
	return Fold[V, float64]{
		ops: []Op{OpSum}, floats: true, nonFinite: o.nonFinite, err: o.err, notes: q.notes(boundSum),
		putSome: func(p *Parts, v V) {
			if p.wholeFinite(float64(v)) && q.put(p, float64(v)) {
				p.whole()
			}
		},
		get: func(l Lanes) (float64, error) {
			const exact = 1 << 53
			if v := l.V[0]; l.Carry == nil && v > -exact && v < exact && f == formatFloat64 {
				return finite(float64(v) * q.q)
			}
			return finite(q.times(l.Big(0), f))
		},
	}
}

func quantumMean[V Float](o floatOptions) Fold[V, float64] {
	q := newQuantum(o.quantum)
	return Fold[V, float64]{
		ops: []Op{OpSum, OpSum}, floats: true, nonFinite: o.nonFinite, err: o.err, notes: q.notes(boundMean),
		putSome: func(p *Parts, v V) {
			if p.wholeFinite(float64(v)) && q.put(p, float64(v)) {
				p.Lanes[1] = 1
				p.whole()
			}
		},
		get: func(l Lanes) (float64, error) {
			if l.V[1] == 0 {
				return math.NaN(), nil
			}
			n := l.Big(0)
			return quotient(n.Mul(n, new(big.Int).SetUint64(q.m)), l.Big(1), q.exp), nil
		},
	}
}

// Measured is a sum of multiples of a quantum beside the exact one.
type Measured struct {
	Sum   float64 // of the multiples, rounded once
	Exact float64 // of the values, rounded once
	Error float64 // Sum - Exact, as they were before they were rounded
	Bound float64 // the largest that |Error| could be: Count x q/2
	Count int64   // values
}

// MeasuredSum is Float64Sum with Quantum(q) and, to see what the quantum costs,
// without. It takes twice the time and more.
func MeasuredSum[V Float](q float64, opts ...FloatOption) Fold[V, Measured] {
	o := newFloatOptions(append(opts[:len(opts):len(opts)], Quantum(q)))
	step, s := newQuantum(o.quantum), shapeOf[V](0)
	const subQuantum = 1 << 16 // above all windows
	return Fold[V, Measured]{
		ops: []Op{OpSum, OpSum}, floats: true, nonFinite: o.nonFinite, err: o.err,
		putSub: func(p *Parts, v V) {
			if !p.finite(float64(v)) || !step.put(p, float64(v)) {
				return
			}
			p.Lanes[1] = 1
			p.Put(subQuantum)
			if s.single {
				p.Lanes[1] = 0
				p.Put(put32(p.Lanes, float32(v)))
			} else {
				p.Put(put64(p.Lanes, float64(v)))
			}
		},
		getSub: func(subs iter.Seq2[uint32, Lanes]) (m Measured, err error) {
			var a exact
			multiples := new(big.Int)
			for sub, l := range subs {
				if sub != subQuantum {
					if err := s.add(&a, sub, l); err != nil {
						return m, err
					}
					continue
				}
				multiples.Set(l.Big(0))
				if m.Count, err = l.sum(1); err != nil {
					return m, err
				}
			}
			if m.Sum, err = finite(step.times(multiples, formatFloat64)); err != nil {
				return m, err
			}
			// The difference, in units of 2^unit64.
			d := multiples.Mul(multiples, new(big.Int).SetUint64(step.m))
			d.Lsh(d, uint(step.exp-unit64))
			sum := a.integer()
			d.Sub(d, sum.Lsh(sum, uint(s.unit-unit64)))
			if m.Error = formatFloat64.round(words64(d), unit64, false); d.Sign() < 0 {
				m.Error = -m.Error
			}
			if m.Exact, err = finite(a.rounded(formatFloat64, s.unit)); err != nil {
				return m, err
			}
			m.Bound = halfUp(timesUp(m.Count, step.q))
			return m, nil
		},
	}
}

// timesUp returns n x q, rounded up.
func timesUp(n int64, q float64) float64 {
	f := float64(n)
	p := f * q
	if math.FMA(f, q, -p) > 0 {
		return math.Nextafter(p, math.Inf(1))
	}
	return p
}

// halfUp returns v / 2, rounded up: half of an odd subnormal number is none.
func halfUp(v float64) float64 {
	if h := v / 2; h+h >= v {
		return h
	}
	return math.Nextafter(v/2, math.Inf(1))
}
