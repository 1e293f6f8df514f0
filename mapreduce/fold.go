// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"iter"
	"unsafe"

	"github.com/quernmr/quern/shuffle/fold"
)

// Lanes is the folded value of a key, as a fold's finishing function sees it,
// which must not keep its slices.
type Lanes struct {
	V []int64 // one per lane
	// Carry counts, for sum lanes, how often V wrapped: the sum is
	// V + Carry x 2^64. Nil if no lane of the key wrapped.
	Carry []int64
	// Scale is, for folds of decimals, the digits after the point per lane (see
	// Emitter.SetScale). Nil if the job set none.
	Scale []uint8
}

// Fold combines the values of a key in lanes of 64-bit integers. Make one with
// Sum, Count, Min, Max, Mean, MinMaxMean, And, Or, Distinct, Histogram or NewFold;
// for floats, Float64Sum, FloatMean and those beside them; for money, DecimalSum.
type Fold[V, R any] struct {
	ops    []fold.Op
	put    func(dst []int64, v V)
	get    func(l Lanes) (R, error)
	putSub func(p *Parts, v V)
	getSub func(subs iter.Seq2[uint32, Lanes]) (R, error)
	// putSome is put for folds that leave out some values, or fail on them.
	putSome func(p *Parts, v V)
	plain   bool // a V in memory is the only lane
	direct  bool // a V is a slice of all lanes
	safe    bool // get can only fail if a sum lane wrapped

	floats    bool      // values may be NaN or infinite
	nonFinite NonFinite // what Parts.finite does
	notes     []string  // said once to the user of a job
	err       error     // what is wrong with the fold itself
}

// NewFold makes a fold of len(ops) lanes, 1 to fold.MaxLanes (1 to 4 can run in
// the kernel). put writes a value's lanes, get makes the result of a key's.
func NewFold[V, R any](ops []Op, put func(dst []int64, v V), get func(l Lanes) (R, error)) Fold[V, R] {
	return Fold[V, R]{ops: ops, put: put, get: get}
}

// NewLaneFold makes a fold whose values are the lanes themselves: what Emit is
// handed must have len(ops) of them.
func NewLaneFold[R any](ops []Op, get func(l Lanes) (R, error)) Fold[[]int64, R] {
	return Fold[[]int64, R]{ops: ops, put: func(dst, v []int64) { copy(dst, v) }, get: get, direct: true}
}

// Then makes a fold whose result is another fold's, turned into something else.
func Then[V, R, S any](f Fold[V, R], then func(R) (S, error)) Fold[V, S] {
	g := Fold[V, S]{
		ops: f.ops, put: f.put, putSub: f.putSub, putSome: f.putSome, plain: f.plain, direct: f.direct,
		floats: f.floats, nonFinite: f.nonFinite, notes: f.notes, err: f.err,
	}
	if f.get != nil {
		g.get = func(l Lanes) (S, error) {
			r, err := f.get(l)
			if err != nil {
				var none S
				return none, err
			}
			return then(r)
		}
	}
	if f.getSub != nil {
		g.getSub = func(subs iter.Seq2[uint32, Lanes]) (S, error) {
			r, err := f.getSub(subs)
			if err != nil {
				var none S
				return none, err
			}
			return then(r)
		}
	}
	return g
}

// NewSubFold makes a fold whose keys have numbered parts, such as the registers
// of a sketch or the bins of a histogram: put writes a value's lanes and names
// the part they go to; get sees all parts of a key that got a value, in
// ascending order.
func NewSubFold[V, R any](ops []Op, put func(dst []int64, v V) uint32, get func(subs iter.Seq2[uint32, Lanes]) (R, error)) Fold[V, R] {
	return Fold[V, R]{ops: ops, getSub: get, putSub: func(p *Parts, v V) { p.Put(put(p.Lanes, v)) }}
}

// NewPartsFold is NewSubFold for values that go to any number of parts of their
// key: put fills in p.Lanes and calls p.Put for each. A value that goes to none
// is left out: a key that has no others gets no row.
func NewPartsFold[V, R any](ops []Op, put func(p *Parts, v V), get func(subs iter.Seq2[uint32, Lanes]) (R, error)) Fold[V, R] {
	return Fold[V, R]{ops: ops, putSub: put, getSub: get}
}

// Parts takes what a fold makes of a value. It belongs to one goroutine.
type Parts struct {
	// Lanes are those of the part that the next Put names, which need all to be written.
	Lanes []int64

	comb      *fold.Combiner
	buf       []byte // the escaped key of the value in hand, and a part's number
	key       int    // bytes of the key
	nonFinite NonFinite
	one       bool               // the only lane is a sum
	idle      []int64            // what changes nothing, per lane
	four      [partLanes]float64 // elements of a vector in hand
	counter   func(name string) *Counter
	nans      *Counter // of values skipped
	infs      *Counter
	err       error // the first Fail
	named     bool  // err names the key
}

// Put folds Lanes into a part of the value's key.
func (p *Parts) Put(sub uint32) {
	p.buf = appendSub(p.buf[:p.key], sub)
	p.comb.Add(unsafe.Pointer(unsafe.SliceData(p.buf)), len(p.buf), p.Lanes)
}

// whole folds Lanes into the value's key itself, of folds whose keys have no parts.
func (p *Parts) whole() {
	if p.nonFinite == countNonFinite {
		clear(p.Lanes[len(p.Lanes)-nonFiniteLanes:])
	}
	p.fold()
}

func (p *Parts) fold() {
	if p.one {
		p.comb.Add1(unsafe.Pointer(unsafe.SliceData(p.buf)), len(p.buf), p.Lanes[0])
		return
	}
	p.comb.Add(unsafe.Pointer(unsafe.SliceData(p.buf)), len(p.buf), p.Lanes)
}

// Fail ends the job because of a value that can't be folded, once Map returns; the
// error it ends with names the record (or the block, of block mappers) and the key.
func (p *Parts) Fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Op is what a lane does with a further value.
type Op = fold.Op

// The operations of lanes.
const (
	OpSum = fold.Sum
	OpMin = fold.Min
	OpMax = fold.Max
	OpAnd = fold.And
	OpOr  = fold.Or
	OpXor = fold.Xor
)

// MaxLanes is the largest number of lanes of a fold.
const MaxLanes = fold.MaxLanes

// MaxScale is the largest decimal scale of a lane.
const MaxScale = fold.MaxScale
