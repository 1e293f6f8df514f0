// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"encoding/binary"
)

// appendNumberKey appends bytes that sort as the decimal number that text holds
// (blanks around it aside), exactly and at any length or exponent. ok is false
// if text is no number; then bytes are appended that sort before all numbers.
func appendNumberKey(dst []byte, text []byte) (key []byte, ok bool) {
	d, ok := parseDigits(bytes.TrimSpace(text))
	if !ok {
		return append(dst, numberNone), false
	}
	if len(d.whole) == 0 && len(d.fraction) == 0 {
		return append(dst, numberZero), true
	}
	if d.negative {
		dst = append(dst, numberNegative)
	} else {
		dst = append(dst, numberPositive)
	}
	start := len(dst)
	// 0.DIGITS times ten to the power of exponent, whose first digit is not 0.
	dst = binary.BigEndian.AppendUint64(dst, uint64(d.exponent)^1<<63)
	dst = append(dst, d.whole...)
	dst = append(dst, d.fraction...)
	for dst[len(dst)-1] == '0' {
		dst = dst[:len(dst)-1]
	}
	dst = append(dst, 0) // fewer digits sort before more
	if d.negative {
		invert(dst[start:])
	}
	return dst, true
}

const (
	numberNone = iota
	numberNegative
	numberZero
	numberPositive
)

// digits is a decimal number: 0.WHOLE FRACTION times ten to the power of
// exponent. There are no leading zeros, and no digits at all for zero.
type digits struct {
	negative        bool
	whole, fraction []byte
	exponent        int64
}

// maxExponent bounds exponents so that sums of them cannot overflow; what is
// written with a larger one is no number to us.
const maxExponent = 1 << 40

func parseDigits(b []byte) (d digits, ok bool) {
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		d.negative = b[0] == '-'
		b = b[1:]
	}
	whole, b := leadingDigits(b)
	var fraction []byte
	if len(b) > 0 && b[0] == '.' {
		fraction, b = leadingDigits(b[1:])
	}
	if len(whole)+len(fraction) == 0 {
		return d, false
	}
	if len(b) > 0 && (b[0] == 'e' || b[0] == 'E') {
		negative := false
		b = b[1:]
		if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
			negative = b[0] == '-'
			b = b[1:]
		}
		var exponent []byte
		if exponent, b = leadingDigits(b); len(exponent) == 0 {
			return d, false
		}
		for _, c := range exponent {
			if d.exponent = d.exponent*10 + int64(c-'0'); d.exponent > maxExponent {
				return d, false
			}
		}
		if negative {
			d.exponent = -d.exponent
		}
	}
	if len(b) > 0 {
		return d, false
	}
	d.whole = bytes.TrimLeft(whole, "0")
	d.fraction = fraction
	d.exponent += int64(len(d.whole))
	if len(d.whole) == 0 {
		d.fraction = bytes.TrimLeft(fraction, "0")
		d.exponent -= int64(len(fraction) - len(d.fraction))
	} else if len(bytes.Trim(d.fraction, "0")) == 0 {
		d.fraction = nil
	}
	return d, true
}

func leadingDigits(b []byte) (digits, rest []byte) {
	i := 0
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return b[:i], b[i:]
}

// invert turns the order of the strings it is applied to around.
func invert(b []byte) {
	for i := range b {
		b[i] = ^b[i]
	}
}

// appendDescending appends bytes whose order is the opposite of that of text,
// also where one text is the beginning of another; parseDescending turns them
// back.
func appendDescending(dst, text []byte) []byte {
	for _, c := range text {
		// The inverse of: 0 as 0 1, all else as is, 0 0 at the end.
		if dst = append(dst, ^c); c == 0 {
			dst = append(dst, 0xFE)
		}
	}
	return append(dst, 0xFF, 0xFF)
}

// parseDescending appends the text that appendDescending was given.
func parseDescending(dst, key []byte) []byte {
	key = key[:max(0, len(key)-2)]
	for i := 0; i < len(key); i++ {
		dst = append(dst, ^key[i])
		if key[i] == 0xFF {
			i++
		}
	}
	return dst
}
