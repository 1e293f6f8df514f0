// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// headBytes is what stands before a message on the paths without our protocol: its
// length and its number, u64 each.
const headBytes = 16

// message is room for a message with its head.
type message []byte

// newMessage makes a message of the largest size, whose bytes look random.
func newMessage(size int) message {
	m := make(message, headBytes+size)
	x := uint64(0x9e3779b97f4a7c15)
	for b := m[headBytes:]; len(b) > 0; b = b[min(8, len(b)):] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], x)
		copy(b, w[:])
	}
	return m
}

// cut makes it the message of a number and returns it with its head. The number
// is among its bytes as well.
func (m message) cut(size int, number uint64) []byte {
	binary.LittleEndian.PutUint64(m, uint64(size))
	binary.LittleEndian.PutUint64(m[8:], number)
	binary.LittleEndian.PutUint64(m[headBytes:], number)
	return m[:headBytes+size]
}

// Digest is that of a message's bytes.
type Digest struct {
	Hi, Lo uint64
}

func digest(b []byte) Digest {
	h := xxh3.Hash128(b)
	return Digest{h.Hi, h.Lo}
}

// number returns that of a message, which stands at the beginning.
func number(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
