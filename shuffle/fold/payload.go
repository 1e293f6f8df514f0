// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"encoding/binary"
	"errors"
)

// A folded value in a run: one byte that says whether carries follow, then the
// lanes and perhaps the carries as signed varints.

// AppendValue appends a value as runs of folded pairs have it. The sum in lane i is lanes[i] +
// carry[i] x 2^64; carry is nil if no sum has left 64 bits.
func AppendValue(dst []byte, lanes, carry []int64) []byte { return appendLanes(dst, lanes, carry) }

// DecodeValue reads what AppendValue wrote into lanes and carry, as many as the job
// has, and says whether there are carries; carry is left as it is if not.
func DecodeValue(b []byte, lanes, carry []int64) (carried bool, err error) {
	return decodeLanes(b, lanes, carry)
}

func appendLanes(dst []byte, lanes, carry []int64) []byte {
	flag := byte(0)
	if carry != nil {
		flag = 1
	}
	dst = append(dst, flag)
	for _, v := range lanes {
		dst = binary.AppendVarint(dst, v)
	}
	for _, v := range carry {
		dst = binary.AppendVarint(dst, v)
	}
	return dst
}

// ErrPayload is what errors about values that are none wrap.
var ErrPayload = errors.New("damaged lanes in a run")

// decodeLanes reads a value into lanes and carry and says whether there are carries.
func decodeLanes(b []byte, lanes, carry []int64) (bool, error) {
	if len(b) == 0 || b[0] > 1 {
		return false, ErrPayload
	}
	has := b[0] == 1
	b = b[1:]
	n := 0
	for i := range lanes {
		if lanes[i], n = binary.Varint(b); n <= 0 {
			return false, ErrPayload
		}
		b = b[n:]
	}
	if has {
		for i := range carry {
			if carry[i], n = binary.Varint(b); n <= 0 {
				return false, ErrPayload
			}
			b = b[n:]
		}
	}
	if len(b) != 0 {
		return false, ErrPayload
	}
	return has, nil
}
