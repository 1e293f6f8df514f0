// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// MaxScale is the most digits after the point that a decimal may have.
const MaxScale = 18

// pow10 holds the powers of ten that fit 64 bits.
var pow10 = [20]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19}

// ParseDecimal reads an exact decimal, such as "-12.50", "+3", "1e3" or
// "2.5E-4", with or without white space around it: it is mantissa x 10^-scale.
// The scale is the number of digits after the point as written (moved by the
// exponent), at most [MaxScale]; zeros at the end are left out only where there
// would be no room for them.
//
// It fails with a [*NumberError]: ErrNotNumber (also for NaN, infinities and
// hexadecimal numbers) or ErrRange, if the exact value has more than 18 digits
// after the point or a mantissa beyond 64 bits.
func ParseDecimal(b []byte) (mantissa int64, scale uint8, err error) {
	// A short text that can be read as one word, as nearly all can: fields are
	// followed by more of their block.
	if n := len(b); uint(n-1) < 8 && cap(b) >= 8 {
		w := binary.LittleEndian.Uint64(b[:8])
		neg := (w&0xff ^ '-' - 1) >> 63 // 1 if the first byte is a minus
		w >>= 8 * neg
		n -= int(neg)
		// The last character goes to the highest byte, what follows it out.
		w <<= uint(64-8*n) & 63
		dots := w ^ '.'*ones
		dots = ^(dots&lows + lows | dots) & highs
		if dots != 0 {
			at := uint(bits.TrailingZeros64(dots)) &^ 7
			scale = uint8(7 - at>>3)
			low := uint64(1)<<(at&63) - 1
			w = w&^(low<<8|0xff) | w&low<<8
			n--
		}
		w |= uint64('0') * ones >> 8 >> (uint(8*n-8) & 63) // leading zeros
		if n > 0 && ((w+0x46*ones)|(w-'0'*ones))&highs == 0 {
			w = (w & (0x0f * ones)) * (1 + 10<<8) >> 8
			w = (w & 0x00ff00ff00ff00ff) * (1 + 100<<16) >> 16
			w = (w & 0x0000ffff0000ffff) * (1 + 10000<<32) >> 32
			return int64(w ^ -neg + neg), scale, nil
		}
	}
	return parseDecimalSlow(b)
}

// parseDecimalSlow reads whatever is a decimal.
func parseDecimalSlow(b []byte) (int64, uint8, error) {
	if m, scale, ok := parsePlain(b); ok {
		return m, scale, nil
	}
	d, ok := parseDigits(b)
	if !ok {
		return 0, 0, notNumber(b)
	}
	scale := d.after - d.exp // as written
	if d.count == 0 {
		return 0, uint8(min(max(scale, 0), MaxScale)), nil
	}
	// The mantissa without zeros at its end.
	var m uint64
	zeros := 0
	for _, c := range d.text {
		switch c {
		case '.':
		case '0':
			zeros++
		default:
			var fits bool
			if m, fits = timesPow10(m, zeros+1); !fits || m+uint64(c-'0') < m {
				return 0, 0, outOfRange(b, decimalAdvice)
			}
			m += uint64(c - '0')
			zeros = 0
		}
	}
	least := scale - zeros
	if least > MaxScale {
		return 0, 0, outOfRange(b, decimalAdvice)
	}
	// As many of the zeros as were written and have room.
	for s := min(max(scale, 0), MaxScale); s >= max(least, 0); s-- {
		if s-least >= len(pow10) {
			continue
		}
		if v, fits := timesPow10(m, s-least); fits {
			if r, fits := signed(v, d.neg); fits {
				return r, uint8(s), nil
			}
		}
	}
	return 0, 0, outOfRange(b, decimalAdvice)
}

const decimalAdvice = "an exact decimal has at most 18 digits after the point and, without the point, lies between -9223372036854775808 and 9223372036854775807; round it or take another unit"

// parsePlain reads up to 18 digits with an optional minus and point.
func parsePlain(b []byte) (m int64, scale uint8, ok bool) {
	n := len(b)
	i := 0
	if n > 0 && b[0] == '-' {
		i = 1
	}
	if n == i || n-i > 18 {
		return 0, 0, false
	}
	var v uint64
	point := -1
	for j := i; j < n; j++ {
		c := b[j] - '0'
		if c > 9 {
			if b[j] != '.' || point >= 0 || n-i == 1 {
				return 0, 0, false
			}
			point = j
			continue
		}
		v = v*10 + uint64(c)
	}
	if point >= 0 {
		scale = uint8(n - 1 - point)
	}
	if i == 1 {
		return -int64(v), scale, true
	}
	return int64(v), scale, true
}

// timesPow10 gives v x 10^n; false: it does not fit 64 bits.
func timesPow10(v uint64, n int) (uint64, bool) {
	if v == 0 {
		return 0, true
	}
	if n >= len(pow10) {
		return 0, false
	}
	hi, lo := bits.Mul64(v, pow10[n])
	return lo, hi == 0
}

// signed puts the sign on a magnitude; false: it does not fit.
func signed(v uint64, neg bool) (int64, bool) {
	if neg {
		return -int64(v), v <= 1<<63
	}
	return int64(v), v <= math.MaxInt64
}

// RoundDecimal reads a decimal as ParseDecimal does, of any length, and gives
// its value times 10^places, rounded to the nearest integer, half to even.
// places is 0 to [MaxScale]. It fails with a [*NumberError]: ErrNotNumber, or
// ErrRange if the result does not fit 64 bits.
func RoundDecimal(b []byte, places int) (int64, error) {
	if places < 0 || places > MaxScale {
		return 0, fmt.Errorf("rows: cannot round to %d places: 0 to %d are possible", places, MaxScale)
	}
	if m, scale, ok := parsePlain(b); ok && int(scale) <= places {
		neg := m < 0
		if neg {
			m = -m
		}
		if v, fits := timesPow10(uint64(m), places-int(scale)); fits {
			if r, fits := signed(v, neg); fits {
				return r, nil
			}
		}
	}
	d, ok := parseDigits(b)
	if !ok {
		return 0, notNumber(b)
	}
	shift := d.exp - d.after + places
	keep := d.count + shift // how many digits stand before the place to round at
	if d.count == 0 || keep < 0 {
		return 0, nil
	}
	var v uint64
	fits := true
	first, rest := byte(0), false // what is cut off: its first digit, and if there is more
	i := 0
	for _, c := range d.text {
		if c == '.' {
			continue
		}
		switch c -= '0'; {
		case i < keep:
			if v, fits = timesPow10(v, 1); !fits || v+uint64(c) < v {
				return 0, outOfRange(b, roundAdvice)
			}
			v += uint64(c)
		case i == keep:
			first = c
		case c != 0:
			rest = true
		}
		i++
	}
	if keep > d.count {
		if v, fits = timesPow10(v, keep-d.count); !fits {
			return 0, outOfRange(b, roundAdvice)
		}
	}
	if first > 5 || first == 5 && (rest || v&1 == 1) {
		if v++; v == 0 { // it was 2^64 - 1
			return 0, outOfRange(b, roundAdvice)
		}
	}
	r, fits := signed(v, d.neg)
	if !fits {
		return 0, outOfRange(b, roundAdvice)
	}
	return r, nil
}

const roundAdvice = "in units of its last place the number must fit 64 bits; round to fewer places or take another unit"

// AppendDecimal appends mantissa x 10^-scale to dst, with scale digits after the
// point.
func AppendDecimal(dst []byte, mantissa int64, scale uint8) []byte {
	var buf [20]byte
	magnitude := uint64(mantissa)
	if mantissa < 0 {
		dst = append(dst, '-')
		magnitude = -magnitude
	}
	text := strconv.AppendUint(buf[:0], magnitude, 10)
	whole := len(text) - int(scale)
	if whole <= 0 {
		dst = append(dst, '0')
	} else {
		dst = append(dst, text[:whole]...)
		text = text[whole:]
	}
	if scale == 0 {
		return dst
	}
	dst = append(dst, '.')
	for ; whole < 0; whole++ {
		dst = append(dst, '0')
	}
	return append(dst, text...)
}
