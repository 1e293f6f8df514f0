// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"encoding/binary"
	"unicode"
	"unicode/utf8"
)

// appendLowerASCII appends src with the ASCII letters in lower case; no other
// byte changes.
func appendLowerASCII(dst, src []byte) []byte {
	n := len(dst)
	dst = append(dst, src...)
	out := dst[n:]
	for len(out) >= 8 {
		x := binary.LittleEndian.Uint64(out)
		y := x & lowBits
		upper := (y + (0x80-'A')*ones) &^ (y + (0x80-'Z'-1)*ones) & highBits &^ x
		binary.LittleEndian.PutUint64(out, x|upper>>2)
		out = out[8:]
	}
	for i, b := range out {
		if 'A' <= b && b <= 'Z' {
			out[i] = b | 0x20
		}
	}
	return dst
}

func isASCII(p []byte) bool {
	for len(p) >= 8 {
		if binary.LittleEndian.Uint64(p)&highBits != 0 {
			return false
		}
		p = p[8:]
	}
	for _, b := range p {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendLower appends src with every letter in lower case (Unicode's simple
// mapping, rune by rune); bytes that are no valid UTF-8 stay as they are.
func appendLower(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		b := src[i]
		if b < utf8.RuneSelf {
			if 'A' <= b && b <= 'Z' {
				b |= 0x20
			}
			dst = append(dst, b)
			i++
			continue
		}
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, b)
		} else {
			dst = utf8.AppendRune(dst, unicode.ToLower(r))
		}
		i += n
	}
	return dst
}
