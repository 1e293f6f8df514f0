// SPDX-License-Identifier: Apache-2.0

package mapreduce

import "math"

// FloatMin keeps the smallest value. Infinities are values like others; -0 is
// smaller than +0.
func FloatMin[V Float](opts ...FloatOption) Fold[V, V] { return extreme[V](OpMin, "FloatMin", opts) }

// FloatMax keeps the largest value. Infinities are values like others; -0 is
// smaller than +0.
func FloatMax[V Float](opts ...FloatOption) Fold[V, V] { return extreme[V](OpMax, "FloatMax", opts) }

func extreme[V Float](op Op, name string, opts []FloatOption) Fold[V, V] {
	o := newFloatOptions(opts)
	o.exactOnly(name)
	return Fold[V, V]{
		ops: []Op{op}, floats: true, nonFinite: o.nonFinite, err: o.err,
		putSome: func(p *Parts, v V) {
			if v == v || p.wholeFinite(float64(v)) {
				p.Lanes[0] = orderOf(float64(v))
				p.whole()
			}
		},
		get: func(l Lanes) (V, error) {
			if l.V[0] == op.Identity() { // which no float is
				return V(math.NaN()), nil
			}
			return V(floatAt(l.V[0])), nil
		},
	}
}

// orderOf maps floats to integers that sort as they do.
func orderOf(v float64) int64 {
	b := int64(math.Float64bits(v))
	return b ^ int64(uint64(b>>63)>>1)
}

// floatAt is the inverse of orderOf.
func floatAt(b int64) float64 { return math.Float64frombits(uint64(b ^ int64(uint64(b>>63)>>1))) }
