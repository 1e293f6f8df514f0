// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"iter"
	"math"
	"math/big"
)

// momentLanes hold a product, or a float and what else is summed beside it.
const momentLanes = 4

// subSingles begins the parts that hold sums of single values, beside those of products.
const subSingles = 1 << 16

// Weighted is a value of WeightedMean.
type Weighted[V Float] struct{ Value, Weight V }

// WeightedMean is the sum of all values times their weights, divided by the sum of
// the weights; both sums are exact, and their quotient is rounded once to the
// nearest float64. It is NaN if the sum of the weights is 0. A pair of which one is
// not finite counts as what value x weight is.
func WeightedMean[V Float](opts ...FloatOption) Fold[Weighted[V], float64] {
	o := newFloatOptions(opts)
	o.exactOnly("WeightedMean")
	return Fold[Weighted[V], float64]{
		ops: make([]Op, momentLanes), floats: true, nonFinite: o.nonFinite, err: o.err,
		putSub: func(p *Parts, v Weighted[V]) {
			x, w := float64(v.Value), float64(v.Weight)
			if d := x - x + (w - w); d != 0 { // NaN unless both are finite
				p.notFinite(x * w)
				return
			}
			p.Put(putProduct(p.Lanes, x, w))
			p.Lanes[2], p.Lanes[3] = 0, 0
			p.Put(subSingles + put64(p.Lanes, w))
		},
		getSub: func(subs iter.Seq2[uint32, Lanes]) (float64, error) {
			m, err := gather(subs)
			if err != nil {
				return 0, err
			}
			weights := m.singles.integer()
			if weights.Sign() == 0 {
				return math.NaN(), nil
			}
			return finite(quotient(m.products.integer(), weights, unitProduct-unit64))
		},
	}
}

// moments are the sums of values (or weights) and products of a key.
type moments struct {
	singles, products exact
	n                 int64 // of values
}

func gather(subs iter.Seq2[uint32, Lanes]) (*moments, error) {
	m := &moments{}
	for sub, l := range subs {
		if sub < subSingles {
			if err := addProduct(&m.products, sub, l); err != nil {
				return nil, err
			}
			continue
		}
		if err := addDouble(&m.singles, sub-subSingles, l); err != nil {
			return nil, err
		}
		m.n += l.V[2]
	}
	return m, nil
}

// Variance is the mean square deviation from the mean, of the population:
// (n x sum of squares - square of sum) / n^2. Both sums are exact, and what is
// made of them is rounded once to the nearest float64, so that nothing cancels.
func Variance[V Float](opts ...FloatOption) Fold[V, float64] {
	return deviation[V]("Variance", 0, quotient, opts)
}

// SampleVariance is Variance of a sample: divided by n (n - 1). It is NaN for a
// single value.
func SampleVariance[V Float](opts ...FloatOption) Fold[V, float64] {
	return deviation[V]("SampleVariance", 1, quotient, opts)
}

// StdDev is the square root of Variance, rounded once.
func StdDev[V Float](opts ...FloatOption) Fold[V, float64] {
	return deviation[V]("StdDev", 0, root, opts)
}

// SampleStdDev is the square root of SampleVariance, rounded once. It is NaN for a
// single value.
func SampleStdDev[V Float](opts ...FloatOption) Fold[V, float64] {
	return deviation[V]("SampleStdDev", 1, root, opts)
}

// deviation makes the folds that are of (n x sum of squares - square of sum) / (n (n - less)).
func deviation[V Float](name string, less int64, result func(num, den *big.Int, exp int) float64, opts []FloatOption) Fold[V, float64] {
	o := newFloatOptions(opts)
	o.exactOnly(name)
	return Fold[V, float64]{
		ops: make([]Op, momentLanes), floats: true, nonFinite: o.nonFinite, err: o.err,
		putSub: func(p *Parts, v V) {
			x := float64(v)
			if !p.finite(x) {
				return
			}
			p.Put(putProduct(p.Lanes, x, x))
			p.Lanes[2], p.Lanes[3] = 1, 0
			p.Put(subSingles + put64(p.Lanes, x))
		},
		getSub: func(subs iter.Seq2[uint32, Lanes]) (float64, error) {
			m, err := gather(subs)
			if err != nil {
				return 0, err
			}
			if m.n <= less {
				return math.NaN(), nil
			}
			return finite(spread(&m.singles, &m.products, m.n, less, result))
		},
	}
}

// spread makes a result of (n x sum of squares - square of sum) / (n (n - less)).
func spread(singles, squares *exact, count, less int64, result func(num, den *big.Int, exp int) float64) float64 {
	n, sum, num := big.NewInt(count), singles.integer(), squares.integer()
	num.Sub(num.Mul(num, n), sum.Mul(sum, sum))
	den := big.NewInt(count - less)
	return result(num, den.Mul(den, n), unitProduct)
}
