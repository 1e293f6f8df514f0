// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"math/bits"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
	lows  = 0x7f7f7f7f7f7f7f7f
	// gather collects the highest bits of eight bytes in the highest byte.
	gather = 0x0002040810204081
)

// room is how many entries markAfter may write beyond the last true one.
const room = 64

// markAfter finds every comma and every newline in data[from:to] and writes the
// position after it to marks, from marks[n] on; it returns the new n. marks
// must have room for n + (to-from) + room entries.
//
// It looks at eight bytes at a time (SWAR) and turns the hits of 64 bytes into
// positions without a branch per hit, since where fields end is just what a
// branch predictor cannot know.
func markAfter(marks []uint32, n int, data []byte, from, to int, comma byte) int {
	commas, newlines := uint64(comma)*ones, uint64('\n')*ones
	i := from
	for ; i+64 <= to; i += 64 {
		b := (*[64]byte)(data[i:])
		m := hits(b[0:8], commas, newlines) |
			hits(b[8:16], commas, newlines)<<8 |
			hits(b[16:24], commas, newlines)<<16 |
			hits(b[24:32], commas, newlines)<<24 |
			hits(b[32:40], commas, newlines)<<32 |
			hits(b[40:48], commas, newlines)<<40 |
			hits(b[48:56], commas, newlines)<<48 |
			hits(b[56:64], commas, newlines)<<56
		count := bits.OnesCount64(m)
		base := uint32(i) + 1
		out := (*[64]uint32)(marks[n:])
		out[0] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[1] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[2] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[3] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[4] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[5] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[6] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[7] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[8] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[9] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[10] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		out[11] = base + uint32(bits.TrailingZeros64(m))
		m &= m - 1
		for k := 12; m != 0; k++ {
			out[k&63] = base + uint32(bits.TrailingZeros64(m))
			m &= m - 1
		}
		n += count
	}
	for ; i < to; i++ {
		if c := data[i]; c == comma || c == '\n' {
			marks[n] = uint32(i) + 1
			n++
		}
	}
	return n
}

// hits tells by a bit for each of eight bytes, the first the lowest, which are a
// comma or newline.
func hits(b []byte, commas, newlines uint64) uint64 {
	return either(binary.LittleEndian.Uint64(b), commas, newlines) * gather >> 56
}

// either has the highest bit set of every byte of w that equals that of x or y.
func either(w, x, y uint64) uint64 {
	x ^= w
	y ^= w
	x |= x&lows + lows
	y |= y&lows + lows
	return ^(x & y) & highs
}

// endOfField finds the first comma or newline at or after i; len(data) if none.
func endOfField(data []byte, i int, comma byte) int {
	commas, newlines := uint64(comma)*ones, uint64('\n')*ones
	for ; i+8 <= len(data); i += 8 {
		if hit := either(binary.LittleEndian.Uint64(data[i:]), commas, newlines); hit != 0 {
			return i + bits.TrailingZeros64(hit)>>3
		}
	}
	for ; i < len(data); i++ {
		if c := data[i]; c == comma || c == '\n' {
			return i
		}
	}
	return len(data)
}
