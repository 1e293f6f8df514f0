// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"sync/atomic"
	"unsafe"
)

// ClaimUser claims a frame for user space, and says whether that succeeded: nobody had
// claimed it. seq is below Segment.
func (s *Stream) ClaimUser(seq uint32) bool {
	word, bit := &s.Seen[seq/32], uint64(1)<<(seq%32)
	for {
		old := atomic.LoadUint64(word)
		if old&bit != 0 {
			return false
		}
		if atomic.CompareAndSwapUint64(word, old, old|bit|bit<<32) {
			return true
		}
	}
}

// ClaimKernel claims a frame as programs do, and says whether that succeeded.
func (s *Stream) ClaimKernel(seq uint32) bool {
	bit := uint64(1) << (seq % 32)
	return atomic.OrUint64(&s.Seen[seq/32], bit)&bit == 0
}

// Claimed says whether anybody has claimed a frame.
func (s *Stream) Claimed(seq uint32) bool {
	return atomic.LoadUint64(&s.Seen[seq/32])>>(seq%32)&1 != 0
}

// Place returns where a cell's pairs of a key class go (a vector's: class 0): the table, 0 for none,
// else a TableID + 1, and the hash bits to drop. A reader may see one of the two new and
// the other old; then keys stand elsewhere in the table, which is as good.
func (c *Cell) Place(class int) (table uint32, shift uint8) {
	table = atomic.LoadUint32(&c.Table[class])
	w := atomic.LoadUint32((*uint32)(unsafe.Pointer(&c.Shift)))
	return table, (*[Classes]uint8)(unsafe.Pointer(&w))[class]
}

// SetPlace sets what [Cell.Place] returns. One goroutine at a time may call it for a cell.
func (c *Cell) SetPlace(class int, table uint32, shift uint8) {
	p := (*uint32)(unsafe.Pointer(&c.Shift))
	w := atomic.LoadUint32(p)
	(*[Classes]uint8)(unsafe.Pointer(&w))[class] = shift
	atomic.StoreUint32(p, w)
	atomic.StoreUint32(&c.Table[class], table)
}
