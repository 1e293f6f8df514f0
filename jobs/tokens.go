// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"encoding/binary"
	"math/bits"
)

// A tokenizer cuts text into words: maximal runs of bytes that are not white
// space as Unicode defines it (unicode.IsSpace). Bytes that are no valid UTF-8
// belong to words.
//
// It works on 64 bytes at a time: a bit per byte says "white space", and the
// edges of words are where neighbouring bits differ. Bytes of 0xC0 and more are
// looked at one by one, and only in stretches that have any.
type tokenizer struct {
	data   []byte
	pos    int    // next byte to look at
	inWord uint64 // 1 if the byte before pos belongs to a word
	carry  uint64 // white-space bits of a rune that began before pos
	open   int    // start of the word that goes on beyond pos; -1: none
}

// edgeBuffer takes the edges of words: start, end, start, end, ...
type edgeBuffer [2048]int

const (
	ones     = 0x0101010101010101
	lowBits  = 0x7f * ones
	highBits = 0x80 * ones
)

func newTokenizer(data []byte) tokenizer { return tokenizer{data: data, open: -1} }

// next fills edges with those of whole words and returns how many; it returns
// 0 when there are no more.
func (t *tokenizer) next(edges *edgeBuffer) int {
	data, pos, inWord, carry := t.data, t.pos, t.inWord, t.carry
	k := 0
	if t.open >= 0 {
		edges[0] = t.open
		k = 1
	}
	for pos < len(data) && k <= len(edges)-66 {
		var space, lead uint64
		if len(data)-pos >= 64 {
			space, lead = spaceMask((*[64]byte)(data[pos:]))
		} else {
			var tail [64]byte
			for i := copy(tail[:], data[pos:]); i < len(tail); i++ {
				tail[i] = ' '
			}
			space, lead = spaceMask(&tail)
		}
		if lead|carry != 0 {
			var wide uint64
			wide, carry = wideSpaces(data, pos, lead, carry)
			space |= wide
		}
		edge := ^space ^ (^space<<1 | inWord)
		inWord = ^space >> 63
		for edge != 0 {
			edges[k&(len(edges)-1)] = pos + bits.TrailingZeros64(edge)
			k++
			edge &= edge - 1
		}
		pos += 64
	}
	if pos >= len(data) && k&1 == 1 {
		edges[k] = len(data) // the last word ends with the data, on a border of 64
		k++
		inWord = 0
	}
	t.pos, t.inWord, t.carry, t.open = pos, inWord, carry, -1
	if k&1 == 1 {
		k--
		t.open = edges[k]
	}
	return k
}

// spaceMask returns a bit for each byte that is ASCII white space (tab, LF, VT,
// FF, CR, space), and one for each byte of 0xC0 and more.
func spaceMask(p *[64]byte) (space, lead uint64) {
	x0 := binary.LittleEndian.Uint64(p[0:8])
	x1 := binary.LittleEndian.Uint64(p[8:16])
	x2 := binary.LittleEndian.Uint64(p[16:24])
	x3 := binary.LittleEndian.Uint64(p[24:32])
	x4 := binary.LittleEndian.Uint64(p[32:40])
	x5 := binary.LittleEndian.Uint64(p[40:48])
	x6 := binary.LittleEndian.Uint64(p[48:56])
	x7 := binary.LittleEndian.Uint64(p[56:64])
	space = transpose(asciiSpaces(x0)>>7 | asciiSpaces(x1)>>6 | asciiSpaces(x2)>>5 | asciiSpaces(x3)>>4 |
		asciiSpaces(x4)>>3 | asciiSpaces(x5)>>2 | asciiSpaces(x6)>>1 | asciiSpaces(x7))
	if (x0|x1|x2|x3|x4|x5|x6|x7)&highBits != 0 {
		lead = transpose(leadBytes(x0)>>7 | leadBytes(x1)>>6 | leadBytes(x2)>>5 | leadBytes(x3)>>4 |
			leadBytes(x4)>>3 | leadBytes(x5)>>2 | leadBytes(x6)>>1 | leadBytes(x7))
	}
	return space, lead
}

// asciiSpaces sets the high bit of each byte of x that is ASCII white space, and
// no other bit.
func asciiSpaces(x uint64) uint64 {
	// No byte of y exceeds 0x7f, so neither the sums nor the difference carry
	// from one byte into the next.
	y := x & lowBits
	notBelow := y + (0x80-'\t')*ones   // high bit: byte >= 9
	above := y + (0x80-'\r'-1)*ones    // high bit: byte > 13
	blank := highBits - (y ^ ' '*ones) // high bit: byte == ' '
	return (notBelow&^above | blank) & highBits &^ x
}

// leadBytes sets the high bit of each byte of x that is 0xC0 or more, and no
// other bit.
func leadBytes(x uint64) uint64 { return x & (x << 1) & highBits }

// transpose takes x as a matrix of 8 rows (bytes) by 8 columns (bits) and swaps
// rows and columns: bit i of byte j becomes bit j of byte i.
func transpose(x uint64) uint64 {
	t := (x ^ x>>7) & 0x00AA00AA00AA00AA
	x ^= t ^ t<<7
	t = (x ^ x>>14) & 0x0000CCCC0000CCCC
	x ^= t ^ t<<14
	t = (x ^ x>>28) & 0x00000000F0F0F0F0
	return x ^ t ^ t<<28
}

// wideSpaces returns the white-space bits of the 64 bytes at pos that stem from
// white space beyond ASCII; lead has a bit for each byte of 0xC0 or more.
// carryIn and carryOut are bits of runes that span two such stretches.
//
// All such runes begin with 0xC2, 0xE1, 0xE2 or 0xE3, bytes that never stand
// inside another rune, so they are found without decoding what is around them.
func wideSpaces(data []byte, pos int, lead, carryIn uint64) (mask, carryOut uint64) {
	mask = carryIn
	for ; lead != 0; lead &= lead - 1 {
		i := bits.TrailingZeros64(lead)
		n := wideSpaceLen(data[pos+i:])
		if n == 0 {
			continue
		}
		run := uint64(1)<<n - 1
		mask |= run << i
		carryOut |= run >> (64 - i) // 0 if i is 0: a shift by 64
	}
	return mask, carryOut
}

// wideSpaceLen returns the length of the white space beyond ASCII that b begins
// with, or 0.
func wideSpaceLen(b []byte) int {
	switch b[0] {
	case 0xC2: // U+0085, U+00A0
		if len(b) >= 2 && (b[1] == 0x85 || b[1] == 0xA0) {
			return 2
		}
	case 0xE1: // U+1680
		if len(b) >= 3 && b[1] == 0x9A && b[2] == 0x80 {
			return 3
		}
	case 0xE2: // U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F
		if len(b) < 3 {
			return 0
		}
		if b[1] == 0x80 && (b[2] >= 0x80 && b[2] <= 0x8A || b[2] == 0xA8 || b[2] == 0xA9 || b[2] == 0xAF) ||
			b[1] == 0x81 && b[2] == 0x9F {
			return 3
		}
	case 0xE3: // U+3000
		if len(b) >= 3 && b[1] == 0x80 && b[2] == 0x80 {
			return 3
		}
	}
	return 0
}
