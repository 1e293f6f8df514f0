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

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// takeBuffer returns a buffer of length n, its content arbitrary.
func takeBuffer(n int) []byte {
	p := buffers.Get().(*[]byte)
	if cap(*p) >= n {
		return (*p)[:n]
	}
	if *p != nil {
		buffers.Put(p) // too small for us, good enough for another
	}
	return make([]byte, n)
}

// giveBuffer takes back what takeBuffer handed out. b must not be used again.
func giveBuffer(b []byte) {
	if cap(b) == 0 || cap(b) > maxPooled {
		return
	}
	buffers.Put(&b)
}
