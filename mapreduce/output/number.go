// SPDX-License-Identifier: Apache-2.0

package output

import (
	"math"
	"strconv"
)

// appendPlain appends what every format writes without quotes or escapes. It
// must not be called for Bytes; Null appends nothing.
func appendPlain(dst []byte, v *Value) []byte {
	switch v.Kind {
	case Int:
		return appendInt(dst, v.I)
	case Uint:
		return strconv.AppendUint(dst, uint64(v.I), 10)
	case Float:
		return appendFloat(dst, v.F)
	case Decimal:
		return appendDecimal(dst, v.I, v.Scale)
	case Bool:
		return strconv.AppendBool(dst, v.I != 0)
	case JSON:
		return append(dst, v.B...)
	}
	return dst
}

// appendInt is strconv.AppendInt with a shorter way for what most counts are.
func appendInt(dst []byte, i int64) []byte {
	u := uint64(i)
	switch {
	case u < 10:
		return append(dst, byte('0'+u))
	case u < 100:
		return append(dst, byte('0'+u/10), byte('0'+u%10))
	case u < 1000:
		return append(dst, byte('0'+u/100), byte('0'+u/10%10), byte('0'+u%10))
	}
	return strconv.AppendInt(dst, i, 10)
}

// appendFloat appends the shortest text that reads back as the same float64.
// Only numbers too long for plain digits get an exponent. The names of what is
// no number are those that JavaScript, Java and most databases read.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64)
}

// appendDecimal appends unscaled x 10^-scale: all digits that matter, no
// trailing zeros, no exponent, a zero before the point.
func appendDecimal(dst []byte, unscaled int64, scale uint8) []byte {
	u := uint64(unscaled)
	if unscaled < 0 {
		u = -u // right for the smallest int64 too
	}
	if u == 0 {
		return append(dst, '0')
	}
	s := int(scale)
	for s > 0 && u%10 == 0 {
		u /= 10
		s--
	}
	if unscaled < 0 {
		dst = append(dst, '-')
	}
	if s == 0 {
		return strconv.AppendUint(dst, u, 10)
	}
	var buf [20]byte // digits of the largest uint64
	digits := strconv.AppendUint(buf[:0], u, 10)
	whole := len(digits) - s
	if whole > 0 {
		dst = append(dst, digits[:whole]...)
		dst = append(dst, '.')
		return append(dst, digits[whole:]...)
	}
	dst = append(dst, '0', '.')
	for ; whole < 0; whole++ {
		dst = append(dst, '0')
	}
	return append(dst, digits...)
}
