// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"
	"iter"
	"math"
	"strconv"

	"github.com/quernmr/quern/shuffle/quantise"
)

// BFloat16 is a float32 of which there is only the high half: 8 bits of mantissa.
type BFloat16 uint16

// BFloat16Of returns the nearest bfloat16, ties to even.
func BFloat16Of(v float32) BFloat16 { return BFloat16(quantise.ToBFloat16(v)) }

// Float32 returns the number.
func (b BFloat16) Float32() float32 { return quantise.FromBFloat16(uint16(b)) }

// MarshalJSON writes the number, with as many digits as tell it from all float32.
func (b BFloat16) MarshalJSON() ([]byte, error) {
	v := float64(b.Float32())
	if v-v != 0 {
		return nil, fmt.Errorf("bfloat16 %v: JSON has no such number", v)
	}
	return strconv.AppendFloat(nil, v, 'g', -1, 32), nil
}

var formatBFloat16 = format{8, -133, 0x1.fep127}

// VectorFloat64Sum adds vectors of n floats, each element as Float64Sum does: without any error, rounded once
// to the nearest float64, the same to the last bit for any order and any cutting of the input. A sum
// beyond the largest finite number is ErrFloatOverflow and names key and element. A vector of another length ends
// the job with an error that names the record. An element that is skipped (SkipNonFinite) or counted (CountNonFinite, which
// has the numbers of all elements of a key) is as good as 0.
//
// It emits a pair for every two elements that are not both 0, or two if they are in different ranges of size, which are
// 2^32 wide; for values of 32 bits one for every four, or more if they are in different ranges, 2^16 wide. With Quantum it is one for every four elements
// that are not all 0, and one lane each in place of two. An element takes some 20 to 50 ns to emit.
func VectorFloat64Sum[V Float](n int, opts ...FloatOption) Fold[[]V, []float64] {
	same := func(v float64) float64 { return v }
	return vectorFloatSum("VectorFloat64Sum", n, newFloatOptions(opts), formatFloat64, single[V](), func(v V) float64 { return float64(v) }, same)
}

// VectorFloat32Sum is VectorFloat64Sum, rounded once to the nearest float32.
func VectorFloat32Sum[V ~float32](n int, opts ...FloatOption) Fold[[]V, []float32] {
	return vectorFloatSum("VectorFloat32Sum", n, newFloatOptions(opts), formatFloat32, true, func(v V) float64 { return float64(v) }, func(v float64) float32 { return float32(v) })
}

// VectorBFloat16Sum is VectorFloat64Sum of bfloat16, rounded once to the nearest one.
func VectorBFloat16Sum(n int, opts ...FloatOption) Fold[[]BFloat16, []BFloat16] {
	return vectorFloatSum("VectorBFloat16Sum", n, newFloatOptions(opts), formatBFloat16, true, func(v BFloat16) float64 { return float64(v.Float32()) }, func(v float64) BFloat16 { return BFloat16Of(float32(v)) })
}

// vectorFloatSum chooses how elements lie in parts: load and store convert them, exactly.
func vectorFloatSum[V, R any](name string, n int, o floatOptions, f format, narrow bool, load func(V) float64, store func(float64) R) Fold[[]V, []R] {
	s, err := newVector(name, n)
	if o.err != nil {
		err = o.err
	}
	fold := Fold[[]V, []R]{ops: []Op{OpSum, OpSum, OpSum, OpSum}, floats: true, nonFinite: o.nonFinite, err: err}
	var group func(p *Parts, g uint32) bool // puts p.four, finite or not, if there is anything to put
	var get func(subs iter.Seq2[uint32, Lanes], set func(i int, v float64)) error
	switch {
	case o.quantum != 0:
		q := newQuantum(o.quantum)
		fold.notes = q.notes(boundSum)
		group = q.putFour
		get = func(subs iter.Seq2[uint32, Lanes], set func(i int, v float64)) error {
			return s.elements(subs, func(i int, l Lanes, lane int) error {
				v, err := finite(q.times(l.Big(lane), f))
				set(i, v)
				return err
			})
		}
	case narrow:
		group, get = putNarrow, exactVector{s, f, partLanes, windows32, window32, unit32, addSingle}.get
	default:
		group, get = putWide, exactVector{s, f, 2, windows64, window64, unit64, addDouble}.get
	}
	fold.putSub = func(p *Parts, v []V) {
		if !s.fits(p, len(v)) {
			return
		}
		put := false
		for g := range (len(v) + partLanes - 1) / partLanes {
			w := v[partLanes*g:]
			if len(w) >= partLanes {
				p.four = [partLanes]float64{load(w[0]), load(w[1]), load(w[2]), load(w[3])}
			} else {
				clear(p.four[:])
				for i, x := range w {
					p.four[i] = load(x)
				}
			}
			if p.four == [partLanes]float64{} {
				continue
			}
			put = group(p, uint32(g)) || put
		}
		p.present(put)
	}
	fold.getSub = func(subs iter.Seq2[uint32, Lanes]) ([]R, error) {
		sums := make([]R, s.n)
		return sums, get(subs, func(i int, v float64) { sums[i] = store(v) })
	}
	return fold
}

// fourFinite says which of four elements are to be added, a bit each.
func (p *Parts) fourFinite() (some uint8) {
	for i, v := range p.four {
		if v != 0 && p.finite(v) {
			some |= 1 << i
		}
	}
	return some
}

// putFour puts multiples of the quantum.
func (q *quantum) putFour(p *Parts, g uint32) bool {
	some := p.fourFinite()
	clear(p.Lanes)
	put := false
	for i, v := range p.four {
		if some&(1<<i) != 0 {
			k, ok := q.count(v)
			if !ok {
				p.Fail(fmt.Errorf("element %d: value %v: %w (%v)", partLanes*int(g)+i, v, ErrQuantum, q.q))
				return false
			}
			p.Lanes[i] = k
			put = put || k != 0
		}
	}
	if put {
		p.Put(g)
	}
	return put
}

// putNarrow puts four elements of 32 bits, one lane each, in a part for every window that they are in.
func putNarrow(p *Parts, g uint32) bool {
	left := p.fourFinite()
	if left == 0 {
		return false
	}
	var window [partLanes]uint32
	var lanes [partLanes]int64
	for i, v := range p.four {
		if left&(1<<i) != 0 {
			window[i] = put32(lanes[i:i+1], float32(v))
		}
	}
	for i := range p.four {
		if left&(1<<i) == 0 {
			continue
		}
		clear(p.Lanes)
		for j := i; j < partLanes; j++ {
			if left&(1<<j) != 0 && window[j] == window[i] {
				p.Lanes[j] = lanes[j]
				left &^= 1 << j
			}
		}
		p.Put(g<<(8-window32) | window[i])
	}
	return true
}

// putWide puts two pairs of elements of 64 bits, two lanes each, in a part for every window that a pair is in.
func putWide(p *Parts, g uint32) bool {
	some := p.fourFinite()
	for half := range uint32(2) {
		a, b := some&(1<<(2*half)) != 0, some&(2<<(2*half)) != 0
		if !a && !b {
			continue
		}
		var wa, wb uint32
		lanes := (*[partLanes]int64)(p.Lanes)
		*lanes = [partLanes]int64{}
		if a {
			wa = put64(lanes[:2], p.four[2*half])
		}
		if b {
			wb = put64(lanes[2:], p.four[2*half+1])
		}
		sub := (2*g + half) << (11 - window64)
		if a && b && wa != wb {
			high := [2]int64(lanes[2:])
			lanes[2], lanes[3] = 0, 0
			p.Put(sub | wa)
			*lanes = [partLanes]int64{2: high[0], 3: high[1]}
			a = false
		}
		if a {
			p.Put(sub | wa)
		} else {
			p.Put(sub | wb)
		}
	}
	return some != 0
}

// exactVector makes elements of parts whose number is that of their group, and the window.
type exactVector struct {
	vector
	f       format
	group   int // elements of a part
	windows uint32
	window  int // log2 of the exponents in a window
	unit    int
	add     func(a *exact, window uint32, l Lanes) error
}

func (x exactVector) get(subs iter.Seq2[uint32, Lanes], set func(i int, v float64)) error {
	var sums [partLanes]exact // of the group in hand
	var used [partLanes]bool
	at, lanes := -1, partLanes/x.group
	flush := func() error {
		for k := range sums {
			if !used[k] {
				continue
			}
			i := x.group*at + k
			v, err := finite(sums[k].rounded(x.f, x.unit))
			if err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
			set(i, v)
			sums[k], used[k] = exact{}, false
		}
		return nil
	}
	bits := 11 - x.window
	if x.group == partLanes {
		bits = 8 - x.window
	}
	for sub, l := range subs {
		g, window := int(sub>>bits), sub&(1<<bits-1)
		if x.group*g >= x.n || window > x.windows {
			return errPart
		}
		if g != at {
			if err := flush(); err != nil {
				return err
			}
			at = g
		}
		for k := range min(x.group, x.n-x.group*g) {
			e := Lanes{V: l.V[k*lanes : (k+1)*lanes]}
			if l.Carry != nil {
				e.Carry = l.Carry[k*lanes : (k+1)*lanes]
			}
			if isZero(e.V) && isZero(e.Carry) {
				continue
			}
			used[k] = true
			if err := x.add(&sums[k], window, e); err != nil {
				return err
			}
		}
	}
	return flush()
}

func isZero(v []int64) bool {
	for _, x := range v {
		if x != 0 {
			return false
		}
	}
	return true
}

// VectorFloatMin keeps the smallest of each element of vectors of n floats, as FloatMin does. It emits a pair for
// every four elements. An element that had no number, all being skipped, is NaN.
func VectorFloatMin[V Float](n int, opts ...FloatOption) Fold[[]V, []V] {
	return vectorFloatExtreme[V]("VectorFloatMin", OpMin, n, opts)
}

// VectorFloatMax keeps the largest of each element of vectors of n floats, as FloatMax does. It emits a pair for
// every four elements. An element that had no number, all being skipped, is NaN.
func VectorFloatMax[V Float](n int, opts ...FloatOption) Fold[[]V, []V] {
	return vectorFloatExtreme[V]("VectorFloatMax", OpMax, n, opts)
}

func vectorFloatExtreme[V Float](name string, op Op, n int, opts []FloatOption) Fold[[]V, []V] {
	s, err := newVector(name, n)
	o := newFloatOptions(opts)
	o.exactOnly(name)
	if o.err != nil {
		err = o.err
	}
	none := op.Identity() // which no float is
	return Fold[[]V, []V]{
		ops: []Op{op, op, op, op}, floats: true, nonFinite: o.nonFinite, err: err,
		putSub: func(p *Parts, v []V) {
			if !s.fits(p, len(v)) {
				return
			}
			for g := range (len(v) + partLanes - 1) / partLanes {
				e := four(v, g, 0)
				for i, x := range e {
					if p.Lanes[i] = orderOf(float64(x)); x != x {
						p.notFinite(float64(x))
						p.Lanes[i] = none
					}
				}
				p.Put(uint32(g))
			}
		},
		getSub: func(subs iter.Seq2[uint32, Lanes]) ([]V, error) {
			got := make([]V, s.n)
			return got, s.elements(subs, func(i int, l Lanes, lane int) error {
				if got[i] = V(math.NaN()); l.V[lane] != none {
					got[i] = V(floatAt(l.V[lane]))
				}
				return nil
			})
		},
	}
}
