// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// Cursor goes through pairs in ascending order. It belongs to one goroutine.
type Cursor interface {
	// Next advances to the next pair, at first to the first one. It returns
	// false at the end or on error.
	Next() bool
	// Key returns the key. It is valid until the next call of Next or Close.
	Key() []byte
	// Payload returns the payload. It is valid until the next call of Next or Close.
	Payload() []byte
	// Err returns what ended the cursor too early, if anything did.
	Err() error
	// Close frees what the cursor holds. It may be called more than once.
	Close()
}

// head is the pair where a cursor stands, and its key's code against the key
// before it. The first key's code is against nothing: as if it differed from
// its base in the first byte.
type head struct {
	key, payload []byte
	code         uint64
}

// Key returns the key.
func (h *head) Key() []byte { return h.key }

// Payload returns the payload.
func (h *head) Payload() []byte { return h.payload }

func (h *head) self() *head { return h }

// coded is a Cursor that knows the codes of its keys.
type coded interface {
	Cursor
	self() *head
}

// runCursor reads a range of a run. It holds one decoded block and rebuilds one
// key at a time.
type runCursor struct {
	head
	raw  []byte // the decoded block and slack bytes more
	pos  int    // of the next pair in raw
	size int    // of the block, without slack
	left uint32 // pairs that the block still has

	keyBuf []byte // the key, and at least 2 x slack bytes more
	keyLen int

	run        *Run
	lo, hi     []byte
	block, end int // blocks to come
	checkFrom  int // first block that may hold keys of hi or more
	checkHi    bool
	started    bool
	err        error
}

func (c *runCursor) Err() error { return c.err }

func (c *runCursor) Close() {
	giveBuffer(c.raw)
	c.raw, c.keyBuf = nil, nil
	c.key, c.payload = nil, nil
	c.left, c.block, c.end = 0, 0, 0
}

// Next is the hot path: pairs that are not the first of their block.
func (c *runCursor) Next() bool {
	if c.left == 0 {
		return c.nextBlock()
	}
	if c.pos+3 > c.size {
		return c.corrupt("a pair is cut short")
	}
	raw, pos := c.raw, c.pos
	var shared, suffix, payload int
	// raw has slack bytes after size.
	if b := raw[pos : pos+3 : pos+3]; b[0]|b[1]|b[2] < 0x80 {
		shared, suffix, payload = int(b[0]), int(b[1]), int(b[2])
		pos += 3
	} else if shared, suffix, payload, pos = pairLengths(raw[:c.size], pos); pos < 0 {
		return c.corrupt("lengths of a pair are impossible")
	}
	split := pos + suffix
	end := split + payload
	if end > c.size || shared > c.keyLen {
		return c.corrupt("lengths of a pair are impossible")
	}
	n := shared + suffix
	if n+2*slack > len(c.keyBuf) {
		c.growKey(n)
	}
	buf := c.keyBuf
	if suffix == 0 && n == c.keyLen {
		c.code = codeSame
	} else {
		c.code = codeOfJoined(buf, raw[pos:], n, shared)
	}
	if suffix <= slack {
		*(*[slack]byte)(buf[shared:]) = *(*[slack]byte)(raw[pos:])
	} else {
		copy(buf[shared:], raw[pos:split])
	}
	c.keyLen, c.key = n, buf[:n:n]
	c.payload = raw[split:end:end]
	c.pos = end
	c.left--
	if c.checkHi && bytes.Compare(c.key, c.hi) >= 0 {
		c.Close()
		return false
	}
	return true
}

// codeOfJoined is codeOf for a key of n bytes that is yet to be put together from
// the first shared bytes of last and what tail begins with. Both are read 8
// bytes beyond the key. (Joining first and then reading across the seam would
// make the processor wait for its own writes.)
func codeOfJoined(last, tail []byte, n, shared int) uint64 {
	column := shared / columnBytes
	if column >= lastColumn {
		return uint64(topColumn-lastColumn) << columnBits
	}
	start := column * columnBytes
	seam := 8 * uint(shared-start)
	old, fresh := binary.BigEndian.Uint64(last[start:]), binary.BigEndian.Uint64(tail)
	v := (old&^(^uint64(0)>>(seam&63)) | fresh>>(seam&63)) >> 16
	if rest := n - start; rest < columnBytes {
		junk := 8 * uint(columnBytes-rest)
		v = v >> (junk & 63) << (junk & 63)
	}
	return uint64(topColumn-column)<<columnBits | v
}

// pairLengths reads the three lengths of a pair at pos and returns where they
// end, or -1 if they are impossible.
func pairLengths(raw []byte, pos int) (shared, suffix, payload, end int) {
	var v [3]int
	for i := range v {
		u, n := binary.Uvarint(raw[pos:])
		if n <= 0 || u > maxRaw {
			return 0, 0, 0, -1
		}
		v[i] = int(u)
		pos += n
	}
	if v[1] > len(raw)-pos || v[2] > len(raw)-pos-v[1] {
		return 0, 0, 0, -1
	}
	return v[0], v[1], v[2], pos
}

func (c *runCursor) growKey(n int) {
	buf := make([]byte, max(64, 2*n)+2*slack)
	copy(buf, c.keyBuf[:c.keyLen])
	c.keyBuf = buf
}

// nextBlock goes to the first pair of the next block, and the first time to the
// first pair of the range.
func (c *runCursor) nextBlock() bool {
	if c.block >= c.end || c.err != nil {
		if c.err == nil && c.raw != nil && c.pos != c.size {
			return c.corrupt("block is longer than its pairs")
		}
		c.Close()
		return false
	}
	if c.raw != nil && c.pos != c.size {
		return c.corrupt("block is longer than its pairs")
	}
	raw, err := c.run.readBlock(c.block, c.raw)
	c.raw = raw
	if err != nil {
		c.err = err
		c.Close()
		return false
	}
	b := &c.run.index.blocks[c.block]
	c.pos, c.size, c.left = 0, int(b.raw), b.pairs
	c.checkHi = c.block >= c.checkFrom
	c.block++
	if !c.firstPair() {
		return false
	}
	if c.started {
		return true
	}
	c.started = true
	if c.lo != nil {
		for bytes.Compare(c.key, c.lo) < 0 {
			if !c.Next() {
				return false
			}
		}
	}
	c.code = codeOf(c.key, 0)
	return true
}

// firstPair reads the first pair of a block, which does not say how much its key
// has in common with the last key of the block before.
func (c *runCursor) firstPair() bool {
	shared, suffix, payload, pos := pairLengths(c.raw[:c.size], 0)
	if pos < 0 || shared != 0 {
		return c.corrupt("lengths of the first pair of a block are impossible")
	}
	key := c.raw[pos : pos+suffix]
	common := commonPrefix(c.keyBuf[:c.keyLen], key)
	same := common == suffix && common == c.keyLen
	if suffix+2*slack > len(c.keyBuf) {
		c.growKey(suffix)
	}
	copy(c.keyBuf, key)
	c.keyLen, c.key = suffix, c.keyBuf[:suffix:suffix]
	if c.code = codeSame; !same {
		c.code = codeOf(c.key, common)
	}
	pos += suffix
	c.payload = c.raw[pos : pos+payload : pos+payload]
	c.pos = pos + payload
	c.left--
	if c.checkHi && bytes.Compare(c.key, c.hi) >= 0 {
		c.Close()
		return false
	}
	return true
}

// corrupt ends the cursor because of the current block.
func (c *runCursor) corrupt(reason string) bool {
	off := int64(0)
	if c.block > 0 {
		off = c.run.index.blocks[c.block-1].off
	}
	c.err = &CorruptError{c.run.path, off, reason}
	c.Close()
	return false
}

var errUnsorted = errors.New("spill: cursor yields keys out of order")
