// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"encoding/binary"
	"math"
)

// A code describes a key against an earlier key that is no larger, its base.
// Cut both keys into columns of six bytes, padded with zeros. The code holds the
// first column in which the two differ (upside down, in the high 16 bits) and
// what stands in that column of the key (the low 48 bits).
//
// For two keys with the same base:
//   - If the codes differ, the key with the smaller code is the smaller one:
//     who agrees with the base for longer is smaller, since the base is no larger
//     than either; and in one column the smaller content is smaller. The larger
//     key's code is then also its code against the smaller key.
//   - If the codes are equal, the keys agree up to and including that column or
//     in all but trailing zeros, and the rest must be compared.
//
// A loser tree keeps the promise of the common base by itself: whoever stands on
// the path of the last winner has lost against it, hence is coded against it;
// and the winner's successor is coded against its predecessor, the winner.
const (
	columnBytes = 6
	columnBits  = 8 * columnBytes

	// codeSame is the code of a key that equals its base.
	codeSame = uint64(0)
	// belowDiffers is above the codes of keys that equal their bases; the low
	// bits of such codes may then hold the start of a payload.
	belowDiffers = uint64(1) << columnBits
	// codeEnd is above all codes: a cursor that has no more pairs.
	codeEnd = uint64(math.MaxUint64)

	topColumn = 0xFFFE
	// lastColumn stands for all columns from there on (keys of more than 393
	// kB); its content is always 0, so that a comparison is forced.
	lastColumn = 0xFFFD
)

// codeOf returns the code of key against a base with which it has the first
// common bytes in common, and to which it is not equal.
func codeOf(key []byte, common int) uint64 {
	column := common / columnBytes
	if column >= lastColumn {
		return uint64(topColumn-lastColumn) << columnBits
	}
	return uint64(topColumn-column)<<columnBits | prefix48(key[column*columnBytes:])
}

// codeStart returns the offset of the column that a code is about.
func codeStart(code uint64) int {
	return (topColumn - int(code>>columnBits)) * columnBytes
}

// prefix48 returns the first six bytes of b, big-endian, padded with zeros.
func prefix48(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b) >> 16
	}
	var v uint64
	n := min(len(b), columnBytes)
	for _, c := range b[:n] {
		v = v<<8 | uint64(c)
	}
	return v << (8 * uint(columnBytes-n))
}
