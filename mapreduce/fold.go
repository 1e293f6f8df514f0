// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"iter"

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
// Sum, Count, Min, Max, Mean, MinMaxMean, And, Or, Distinct, Histogram or NewFold.
type Fold[V, R any] struct {
	ops    []fold.Op
	put    func(dst []int64, v V)
	get    func(l Lanes) (R, error)
	putSub func(dst []int64, v V) uint32
	getSub func(subs iter.Seq2[uint32, Lanes]) (R, error)
	plain  bool // a V in memory is the only lane
	direct bool // a V is a slice of all lanes
	safe   bool // get can only fail if a sum lane wrapped
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
	g := Fold[V, S]{ops: f.ops, put: f.put, putSub: f.putSub, plain: f.plain, direct: f.direct}
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
	return Fold[V, R]{ops: ops, putSub: put, getSub: get}
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
