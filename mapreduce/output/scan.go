// SPDX-License-Identifier: Apache-2.0

package output

import (
	"encoding/binary"
	"slices"
)

// Most cells need no escape. They are copied and looked through in one go,
// eight bytes at a time: a machine word is treated as eight bytes, and the
// classic borrow trick tells whether any of them is zero or less than a bound.
// Which one does not matter here, so borrows between bytes do no harm: the
// first byte that is reported is always a true one.
const (
	eachByte = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special are the bytes for which a format looks twice, each repeated over a
// word: those less than low (at most 128), a and b.
type special struct{ low, a, b uint64 }

func newSpecial(low, a, b byte) special {
	return special{low: eachByte * uint64(low), a: eachByte * uint64(a), b: eachByte * uint64(b)}
}

// in is not 0 if one of the bytes of x is special.
func (s *special) in(x uint64) uint64 {
	a, b := x^s.a, x^s.b
	return ((x-s.low)&^x | (a-eachByte)&^a | (b-eachByte)&^b) & highBits
}

var (
	// Of the control characters up to CR only some are escaped; the others are
	// too rare to be told apart here.
	specialTSV  = newSpecial('\r'+1, '\\', '\\')
	specialCSV  = newSpecial('\r'+1, '"', ',')
	specialJSON = newSpecial(' ', '"', '\\')
)

// appendScanned appends b to dst. found says that b holds a special byte,
// ascii that it holds only ASCII.
func appendScanned(dst, b []byte, s *special) (out []byte, found, ascii bool) {
	at, n := len(dst), len(b)
	if cap(dst)-at < n {
		dst = slices.Grow(dst, n)
	}
	out = dst[:at+n]
	to := out[at:]
	var hit, high uint64
	switch {
	case n >= 8:
		for i := 0; i+8 <= n; i += 8 {
			x := binary.LittleEndian.Uint64(b[i:])
			binary.LittleEndian.PutUint64(to[i:], x)
			hit |= s.in(x)
			high |= x
		}
		// The last word overlaps the one before.
		x := binary.LittleEndian.Uint64(b[n-8:])
		binary.LittleEndian.PutUint64(to[n-8:], x)
		hit |= s.in(x)
		high |= x
	case n >= 4:
		first, last := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[n-4:])
		binary.LittleEndian.PutUint32(to, first)
		binary.LittleEndian.PutUint32(to[n-4:], last)
		high = uint64(first) | uint64(last)<<32
		hit = s.in(high)
	case n > 0:
		first, mid, last := b[0], b[n/2], b[n-1]
		to[0], to[n/2], to[n-1] = first, mid, last
		high = uint64(first)*0x0101010101 | uint64(mid)<<40 | uint64(mid)<<48 | uint64(last)<<56
		hit = s.in(high)
	}
	return out, hit != 0, high&highBits == 0
}
