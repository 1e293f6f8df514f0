// SPDX-License-Identifier: Apache-2.0

package quantise_test

import (
	"math"
	"math/big"

	"pgregory.net/rapid"
)

// What results must be, worked out with fractions of any size, by the definition alone.

func rat(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }

// twoTo returns 2^e.
func twoTo(e int) *big.Rat {
	two := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(max(e, -e))))
	if e < 0 {
		two.Inv(two)
	}
	return two
}

// nearest returns the integer nearest to r, ties to even.
func nearest(r *big.Rat) *big.Int {
	twice := new(big.Int).Lsh(r.Denom(), 1)
	k, rest := new(big.Int).DivMod(new(big.Int).Add(new(big.Int).Lsh(r.Num(), 1), r.Denom()), twice, new(big.Int))
	if rest.Sign() == 0 && k.Bit(0) == 1 { // a tie that went up
		k.Sub(k, big.NewInt(1))
	}
	return k
}

// kind is a format of values.
type kind struct {
	name      string
	mantissa  int
	unit      int
	highest   int // all finite numbers are below 2^highest
	width     int // bits of the integers' magnitudes
	blockSize int
}

var (
	kind64 = kind{"float64", 53, -1074, 1024, 63, 168}
	kind32 = kind{"float32", 24, -149, 128, 31, 336}
	kind16 = kind{"bfloat16", 8, -133, 128, 31, 336}
)

// round rounds to the format, ties to even; an infinity is false.
func (k kind) round(r *big.Rat) (*big.Rat, bool) {
	if r.Sign() == 0 {
		return r, true
	}
	// e is the exponent of the highest bit.
	size := new(big.Rat).Abs(r)
	e := size.Num().BitLen() - size.Denom().BitLen()
	if size.Cmp(twoTo(e)) < 0 {
		e--
	}
	step := twoTo(max(e-k.mantissa+1, k.unit))
	n := new(big.Rat).SetInt(nearest(new(big.Rat).Quo(r, step)))
	n.Mul(n, step)
	return n, new(big.Rat).Abs(n).Cmp(twoTo(k.highest)) < 0
}

// bits is how many a term has: the most for which terms of them can't overflow.
func (k kind) bits(terms int) int {
	b := k.width
	for new(big.Int).Lsh(big.NewInt(int64(terms)), uint(b)).BitLen() > k.width {
		b--
	}
	return b
}

// quantum returns log2 of a block's, false if all terms are 0.
func (k kind) quantum(all []*big.Rat, terms int) (int, bool) {
	most := new(big.Rat)
	for _, v := range all {
		if a := new(big.Rat).Abs(v); a.Cmp(most) > 0 {
			most = a
		}
	}
	if most.Sign() == 0 {
		return 0, false
	}
	e := most.Num().BitLen() - most.Denom().BitLen() - 2
	for most.Cmp(twoTo(e)) >= 0 {
		e++
	}
	return max(e-k.bits(terms), k.unit), true
}

// expected is what an element's sum must be.
type expected struct {
	exact   *big.Rat // the sum of the terms
	sum     *big.Rat // of the terms' nearest multiples of the quantum
	result  *big.Rat // sum, rounded to the format
	finite  bool
	dropped []*big.Rat // of each term
}

// sums works out all elements: terms[t][i], block by block. fixed is log2 of a fixed quantum, if there is one.
func (k kind) sums(terms [][]*big.Rat, n, block, count int, fixed *int) []expected {
	if block == 0 {
		block = k.blockSize
	}
	out := make([]expected, n)
	for lo := 0; lo < n; lo += block {
		hi := min(lo+block, n)
		var all []*big.Rat
		for _, t := range terms {
			all = append(all, t[lo:hi]...)
		}
		p, some := k.quantum(all, count)
		if fixed != nil {
			p, some = max(*fixed, k.unit), true
		}
		for i := lo; i < hi; i++ {
			e := expected{exact: new(big.Rat), sum: new(big.Rat)}
			for _, t := range terms {
				e.exact.Add(e.exact, t[i])
				r := new(big.Rat)
				if some {
					q := twoTo(p)
					r.SetInt(nearest(new(big.Rat).Quo(t[i], q)))
					r.Mul(r, q)
				}
				e.sum.Add(e.sum, r)
				e.dropped = append(e.dropped, new(big.Rat).Sub(t[i], r))
			}
			e.result, e.finite = k.round(e.sum)
			out[i] = e
		}
	}
	return out
}

// hardFloat64 draws numbers of a kind that is drawn once for a vector.
func hardFloat64(t *rapid.T, kind string) float64 {
	b := rapid.Uint64().Draw(t, "bits")
	sign := b & (1 << 63)
	switch kind {
	case "subnormal":
		b = b&(1<<52-1) | sign
	case "ratios":
		return math.Float64frombits(sign|math.Float64bits(1)) * rapid.SampledFrom([]float64{1e308, 1e-308, 1e200, 1e-200, 1, 3e-324, 0}).Draw(t, "size")
	case "negative":
		return -rapid.Float64Range(1e-3, 1e6).Draw(t, "v")
	case "usual":
		return rapid.Float64Range(-1e3, 1e3).Draw(t, "v")
	case "ties": // of many quanta
		return math.Float64frombits(sign|math.Float64bits(1)) * math.Ldexp(float64(2*(b>>12&0xff)+1), -int(b&63))
	case "huge":
		return math.Float64frombits(sign | b>>12&(1<<52-1) | 2046<<52)
	case "zeros":
		return math.Float64frombits(sign)
	}
	if b&(0x7ff<<52) == 0x7ff<<52 {
		b &^= 1 << 60
	}
	return math.Float64frombits(b)
}

var kinds64 = []string{"any", "subnormal", "ratios", "negative", "usual", "ties", "huge", "zeros"}

// hardFloat32 is the like for 32 bits.
func hardFloat32(t *rapid.T, kind string) float32 {
	b := rapid.Uint32().Draw(t, "bits")
	sign := b & (1 << 31)
	switch kind {
	case "subnormal":
		b = b&(1<<23-1) | sign
	case "ratios":
		return math.Float32frombits(sign|math.Float32bits(1)) * rapid.SampledFrom([]float32{1e38, 1e-38, 1e10, 1e-10, 1, 2e-45, 0}).Draw(t, "size")
	case "negative":
		return -rapid.Float32Range(1e-3, 1e6).Draw(t, "v")
	case "usual":
		return rapid.Float32Range(-1e3, 1e3).Draw(t, "v")
	case "ties":
		return math.Float32frombits(sign|math.Float32bits(1)) * float32(math.Ldexp(float64(2*(b>>12&0xff)+1), -int(b&31)))
	case "huge":
		return math.Float32frombits(sign | b>>9&(1<<23-1) | 254<<23)
	case "zeros":
		return math.Float32frombits(sign)
	}
	if b&(0xff<<23) == 0xff<<23 {
		b &^= 1 << 29
	}
	return math.Float32frombits(b)
}
