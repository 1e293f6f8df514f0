// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"encoding/binary"
	"math/bits"
	"sync"
)

// commonPrefix returns how many bytes a and b have in common at their start.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)>>3
		}
	}
	for ; i < n; i++ {
		if a[i] != b[i] {
			break
		}
	}
	return i
}

// maxPooled is the largest buffer worth keeping for the next one who needs one.
const maxPooled = 1 << 20

// buffers keeps buffers whose capacity is the power of two that is the index.
var buffers [21]sync.Pool

// bufferSize returns the capacity of what takeBuffer returns for n.
func bufferSize(n int) int {
	if n > maxPooled || n <= 0 {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// takeBuffer returns a buffer of length n, its content arbitrary.
func takeBuffer(n int) []byte {
	size := bufferSize(n)
	if 0 < size && size <= maxPooled {
		if p, ok := buffers[bits.Len(uint(n-1))].Get().(*[]byte); ok {
			return (*p)[:n]
		}
	}
	return make([]byte, n, size)
}

// giveBuffer takes back what takeBuffer handed out, or what took its place. b must
// not be used again.
func giveBuffer(b []byte) {
	if c := cap(b); c > 0 && c <= maxPooled && c&(c-1) == 0 {
		buffers[bits.Len(uint(c-1))].Put(&b)
	}
}
