// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"math"
	"math/big"
	"math/bits"
)

// Finite floats are integers times a power of two, so that their sums can be
// exact. A number is m x 2^pos in units of the smallest subnormal number, m
// having 53 or 24 bits. It goes to the part of its key that is numbered by the
// high bits of pos, its window, shifted left by the low ones, cut into as many
// lanes as leave each lane room for 2^21 numbers and more before its sum wraps.
// Wraps are counted and cost no more than another record in memory. Windows are
// added, and rounded once, when the result of the key is made: nothing in this
// depends on the order or the cutting of the input.

const (
	// unit64 and unit32 are the exponents of the smallest subnormal numbers.
	unit64 = -1074
	unit32 = -149
	// unitProduct is that of products of two float64.
	unitProduct = 2 * unit64

	window64   = 5  // log2 of the values of pos in a window
	window32   = 4  // 24 + 15 bits in one lane
	lane64     = 42 // 53 + 31 bits in two lanes
	laneSquare = 35 // 106 + 31 bits in four lanes
)

// split64 gives sign (0 or -1), mantissa and place of a finite float.
func split64(v float64) (sign int64, m uint64, pos uint) {
	b := math.Float64bits(v)
	sign = int64(b) >> 63
	exp := uint(b>>52) & 0x7ff
	m = b & (1<<52 - 1)
	if exp == 0 {
		return sign, m, 0
	}
	return sign, m | 1<<52, exp - 1
}

// put64 writes a finite float to two lanes and returns its window.
func put64(dst []int64, v float64) uint32 {
	sign, m, pos := split64(v)
	s := pos & (1<<window64 - 1)
	dst[1] = (int64(m>>(lane64-s)) ^ sign) - sign
	dst[0] = (int64(m<<s&(1<<lane64-1)) ^ sign) - sign
	return uint32(pos >> window64)
}

// put32 writes a finite float32 to one lane and returns its window.
func put32(dst []int64, v float32) uint32 {
	b := math.Float32bits(v)
	sign := int64(int32(b) >> 31)
	exp := uint(b>>23) & 0xff
	m := int64(b & (1<<23 - 1))
	pos := uint(0)
	if exp != 0 {
		m |= 1 << 23
		pos = exp - 1
	}
	dst[0] = (m<<(pos&(1<<window32-1)) ^ sign) - sign
	return uint32(pos >> window32)
}

// putProduct writes the exact product of two finite floats to four lanes and
// returns its window, of units of unitProduct.
func putProduct(dst []int64, a, b float64) uint32 {
	sa, ma, pa := split64(a)
	sb, mb, pb := split64(b)
	sign, pos := sa^sb, pa+pb
	hi, lo := bits.Mul64(ma, mb)
	s := pos & (1<<window64 - 1)
	w0, w1, w2 := lo<<s, hi<<s|lo>>(64-s), hi>>(64-s)
	const mask = 1<<laneSquare - 1
	_ = dst[3]
	dst[0] = (int64(w0&mask) ^ sign) - sign
	dst[1] = (int64((w0>>35|w1<<29)&mask) ^ sign) - sign
	dst[2] = (int64(w1>>6&mask) ^ sign) - sign
	dst[3] = (int64(w1>>41|w2<<23) ^ sign) - sign
	return uint32(pos >> window64)
}

const (
	// fractionWords stand below the unit, for quotients.
	fractionWords = 3
	// exactWords hold 4,096 + 106 bits of products, 63 + 63 bits of how many were
	// added, and the fraction.
	exactWords = fractionWords + 69
)

// exact is a sum in two's complement. Its first words are a fraction.
type exact [exactWords]uint64

// add adds (v + carry x 2^64) x 2^shift.
func (a *exact) add(v, carry int64, shift uint) {
	hi := carry + v>>63
	ext := uint64(hi >> 63)
	s := shift & 63
	i := fractionWords + int(shift>>6)
	var c uint64
	a[i], c = bits.Add64(a[i], uint64(v)<<s, 0)
	a[i+1], c = bits.Add64(a[i+1], uint64(hi)<<s|uint64(v)>>(64-s), c)
	a[i+2], c = bits.Add64(a[i+2], ext<<s|uint64(hi)>>(64-s), c)
	for i += 3; i < len(a) && c != ext&1; i++ {
		a[i], c = bits.Add64(a[i], ext, c)
	}
}

// magnitude makes a its own absolute value and says whether it was negative.
func (a *exact) magnitude() bool {
	if int64(a[len(a)-1]) >= 0 {
		return false
	}
	c := uint64(1)
	for i, w := range a {
		a[i], c = bits.Add64(^w, 0, c)
	}
	return true
}

// top returns the number of words up to the highest that is not 0.
func (a *exact) top() int {
	n := len(a)
	for n > 0 && a[n-1] == 0 {
		n--
	}
	return n
}

// divide divides a magnitude by n > 0. Words that no rounding looks at but for
// being 0 or not are not exact.
func (a *exact) divide(n uint64) {
	var r uint64
	left := 4 // words of quotient from the first one on
	for i := a.top() - 1; i >= 0; i-- {
		a[i], r = bits.Div64(r, a[i], n)
		if a[i] == 0 && left == 4 {
			continue
		}
		if left--; left == 0 {
			for _, w := range a[:i] {
				r |= w
			}
			clear(a[:i])
			break
		}
	}
	if r != 0 {
		a[0] |= 1
	}
}

// format is a binary floating-point format.
type format struct {
	bits int // of the mantissa
	unit int // exponent of the smallest subnormal number
	max  float64
}

var (
	formatFloat64 = format{53, unit64, math.MaxFloat64}
	formatFloat32 = format{24, unit32, math.MaxFloat32}
)

// round returns the nearest number of the format, ties to even, of a magnitude in
// words of 2^base: an infinity if it is beyond the largest. sticky says that the
// magnitude is larger by less than 1, at most in its lowest bit. Words must reach
// at least a bit below what the format keeps unless there is nothing to be rounded.
func (f format) round(words []uint64, base int, sticky bool) float64 {
	n := len(words)
	for n > 0 && words[n-1] == 0 {
		n--
	}
	if n == 0 {
		return 0
	}
	top := 64*(n-1) + bits.Len64(words[n-1]) // bits in all
	low := max(top-f.bits, f.unit-base, 0)   // the lowest bit kept
	if low > 64*n {
		return 0 // less than half of the smallest
	}
	m := bitsAt(words[:n], low)
	if low > 0 {
		half := low - 1
		if words[half/64]>>(half%64)&1 != 0 {
			rest := sticky || words[half/64]&(1<<(half%64)-1) != 0
			for i := 0; i < half/64 && !rest; i++ {
				rest = words[i] != 0
			}
			if rest || m&1 != 0 {
				m++
			}
		}
	}
	v := math.Ldexp(float64(m), low+base)
	if v > f.max {
		return math.Inf(1)
	}
	return v
}

// bitsAt returns the word that begins at a bit.
func bitsAt(words []uint64, at int) uint64 {
	i, s := at/64, uint(at%64)
	if i >= len(words) {
		return 0
	}
	w := words[i] >> s
	if i+1 < len(words) {
		w |= words[i+1] << (64 - s)
	}
	return w
}

// rounded returns the nearest number of the format to a x 2^unit, which is destroyed.
func (a *exact) rounded(f format, unit int) float64 {
	negative := a.magnitude()
	v := f.round(a[:], unit-64*fractionWords, false)
	if negative {
		return -v
	}
	return v
}

// mean returns the nearest float64 to a x 2^unit / n, n > 0; a is destroyed.
func (a *exact) mean(unit int, n uint64) float64 {
	negative := a.magnitude()
	a.divide(n)
	v := formatFloat64.round(a[:], unit-64*fractionWords, false)
	if negative {
		return -v
	}
	return v
}

// integer returns the sum as an integer of units. There must be no fraction.
func (a *exact) integer() *big.Int {
	b := *a
	negative := b.magnitude()
	words := b[fractionWords:]
	buf := make([]byte, 0, 8*len(words))
	for i := len(words) - 1; i >= 0; i-- {
		for s := 56; s >= 0; s -= 8 {
			buf = append(buf, byte(words[i]>>s))
		}
	}
	n := new(big.Int).SetBytes(buf)
	if negative {
		n.Neg(n)
	}
	return n
}

// words64 returns the words of a magnitude, the lowest first.
func words64(n *big.Int) []uint64 {
	buf := n.Bytes()
	words := make([]uint64, (len(buf)+7)/8)
	for i := range buf {
		words[i/8] |= uint64(buf[len(buf)-1-i]) << (8 * (i % 8))
	}
	return words
}

// quotient returns the nearest float64 to num / den x 2^exp, den not 0.
func quotient(num, den *big.Int, exp int) float64 {
	negative := num.Sign()*den.Sign() < 0
	num, den = new(big.Int).Abs(num), new(big.Int).Abs(den)
	// 66 bits are more than the mantissa and the bit that rounds it.
	up := max(0, 66-(num.BitLen()-den.BitLen()))
	q, r := new(big.Int).QuoRem(num.Lsh(num, uint(up)), den, new(big.Int))
	v := formatFloat64.round(words64(q), exp-up, r.Sign() != 0)
	if negative {
		return -v
	}
	return v
}

// root returns the nearest float64 to the square root of num / den x 2^exp, exp
// even, num not negative, den positive.
func root(num, den *big.Int, exp int) float64 {
	up := max(0, 134-(num.BitLen()-den.BitLen()))
	up += up & 1
	q, r := new(big.Int).QuoRem(new(big.Int).Lsh(num, uint(up)), den, new(big.Int))
	s := new(big.Int).Sqrt(q)
	sticky := r.Sign() != 0 || q.Cmp(new(big.Int).Mul(s, s)) != 0
	return formatFloat64.round(words64(s), (exp-up)/2, sticky)
}
