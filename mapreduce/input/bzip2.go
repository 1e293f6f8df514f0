// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"io"
	"math/bits"
)

// bzip2 data is a sequence of blocks that need nothing of each other, but they
// begin at any bit. They are found by their 48-bit mark, and each is made a
// file of its own for the standard library. A mark that happens to stand
// within a block (about once in 35 TB) cuts it in two: neither part is valid
// then, and the two are put together again.

const (
	blockMark = 0x314159265359
	endMark   = 0x177245385090
	mark48    = 1<<48 - 1
	// maxBzip2Block is more than any block takes: 900,000 symbols of at most 20 bits, and tables.
	maxBzip2Block = 4 << 20
)

// markTail[b] has bit s set if b may be the last byte but one that a mark covers
// when it ends s bits before the end of the byte after.
var markTail = func() (t [256]uint8) {
	for s := range 8 {
		for _, m := range []uint64{blockMark, endMark} {
			t[byte(m<<s>>8)] |= 1 << s
		}
	}
	return t
}()

// findMark returns the bit at which the first mark in b at or after bit from
// begins, or -1.
func findMark(b []byte, from int) (at int, end bool) {
	var w uint64
	for i := from / 8; i < len(b); i++ {
		w = w<<8 | uint64(b[i])
		if i == 0 {
			continue
		}
		for s := markTail[b[i-1]]; s != 0; s &= s - 1 {
			shift := bits.TrailingZeros8(s)
			v := w >> shift & mark48
			if v != blockMark && v != endMark {
				continue
			}
			if at := (i+1)*8 - 48 - shift; at >= from {
				return at, v == endMark
			}
		}
	}
	return -1, false
}

// bitRun is a run of bits that begins skip bits after the begin of b.
type bitRun struct {
	b    []byte
	skip int
	n    int
}

// bzip2Block is what lies between two marks.
type bzip2Block struct {
	raw   bitRun
	level byte
	last  bool   // the end mark follows
	sum   uint32 // of the stream, if last
}

type bitWriter struct {
	b []byte
	n int // bits
}

func (w *bitWriter) put(v uint64, n int) {
	for n > 0 {
		if w.n%8 == 0 {
			w.b = append(w.b, 0)
		}
		free := 8 - w.n%8
		k := min(free, n)
		w.b[len(w.b)-1] |= byte(v >> (n - k) & (1<<k - 1) << (free - k))
		w.n += k
		n -= k
	}
}

func (w *bitWriter) putBits(r bitRun) {
	i, left := r.skip/8, r.n
	if s := r.skip % 8; s > 0 && left > 0 {
		k := min(8-s, left)
		w.put(uint64(r.b[i])>>(8-s-k)&(1<<k-1), k)
		i++
		left -= k
	}
	if w.n%8 == 0 {
		w.b = append(w.b, r.b[i:i+left/8]...)
		w.n += left / 8 * 8
		i += left / 8
	} else {
		s := w.n % 8
		for ; left >= 8; left -= 8 {
			w.b[len(w.b)-1] |= r.b[i] >> s
			w.b = append(w.b, r.b[i]<<(8-s))
			w.n += 8
			i++
		}
	}
	if left %= 8; left > 0 {
		w.put(uint64(r.b[i]>>(8-left)), left)
	}
}

func (r bitRun) uint32At0() uint32 {
	var v uint64
	for i := range 5 {
		v = v << 8
		if at := r.skip/8 + i; at < len(r.b) {
			v |= uint64(r.b[at])
		}
	}
	return uint32(v >> (8 - r.skip%8))
}

// decompress makes a file of one block and reads it.
func (blk *bzip2Block) decompress() ([]byte, error) {
	if blk.raw.n < 32 {
		return nil, bzip2.StructuralError("a block is too short")
	}
	w := bitWriter{b: make([]byte, 0, len(blk.raw.b)+32)}
	w.b = append(w.b, 'B', 'Z', 'h', blk.level)
	w.n = 32
	w.put(blockMark, 48)
	w.putBits(blk.raw)
	w.put(endMark, 48)
	w.put(uint64(blk.raw.uint32At0()), 32)
	var out bytes.Buffer
	out.Grow(int(blk.level-'0')*100_000 + bytes.MinRead)
	if _, err := out.ReadFrom(bzip2.NewReader(bytes.NewReader(w.b))); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = bzip2.StructuralError("a block ends early")
		}
		return nil, err
	}
	return out.Bytes(), nil
}

// newBzip2Blocks decompresses the blocks of in in parallel.
func newBzip2Blocks(ctx context.Context, in *bufio.Reader, workers int) *ordered {
	o := &ordered{}
	var sum uint32 // of the current stream so far
	o.settle = func(p *piece) error {
		blk := p.data.(*bzip2Block)
		for range 3 {
			if p.err == nil || blk.last {
				break
			}
			next, err := o.take()
			if err != nil {
				break
			}
			more := next.data.(*bzip2Block)
			var w bitWriter
			w.putBits(blk.raw)
			w.put(blockMark, 48)
			w.putBits(more.raw)
			blk.raw = bitRun{b: w.b, n: w.n}
			blk.last, blk.sum = more.last, more.sum
			p.out, p.err = blk.decompress()
		}
		if p.err != nil {
			return p.err
		}
		sum = (sum<<1 | sum>>31) ^ blk.raw.uint32At0()
		if blk.last {
			if sum != blk.sum {
				return bzip2.StructuralError("checksum mismatch of a stream")
			}
			sum = 0
		}
		return nil
	}
	cut := func(hand func(*piece) error) error {
		c := &bzip2Cutter{in: in}
		return c.run(func(blk *bzip2Block) error { return hand(&piece{data: blk}) })
	}
	o.start(ctx, workers, cut, func(p *piece) {
		p.out, p.err = p.data.(*bzip2Block).decompress()
	})
	return o
}

// bzip2Cutter finds the blocks of bzip2 data.
type bzip2Cutter struct {
	in  *bufio.Reader
	buf []byte
	eof bool
}

// more reads on; it makes no difference at the end of the data.
func (c *bzip2Cutter) more() error {
	if c.eof {
		return nil
	}
	n := len(c.buf)
	if cap(c.buf) < n+(128<<10) {
		bigger := make([]byte, n, 2*n+(256<<10))
		copy(bigger, c.buf)
		c.buf = bigger
	}
	m, err := io.ReadFull(c.in, c.buf[n:n+(128<<10)])
	c.buf = c.buf[:n+m]
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		c.eof = true
		err = nil
	}
	return err
}

// need makes c.buf at least n bytes long unless the data ends before.
func (c *bzip2Cutter) need(n int) error {
	for len(c.buf) < n && !c.eof {
		if err := c.more(); err != nil {
			return err
		}
	}
	return nil
}

// header says whether b begins with a stream's header and a mark. ok is also
// true if b is too short to tell.
func header(b []byte) (whole, ok bool) {
	const begin = "BZh"
	for i := 0; i < len(b) && i < 3; i++ {
		if b[i] != begin[i] {
			return false, false
		}
	}
	if len(b) > 3 && (b[3] < '1' || b[3] > '9') {
		return false, false
	}
	if len(b) < 10 {
		return false, true
	}
	m := string(b[4:10])
	return true, m == bzip2BlockMark || m == bzip2EndMark
}

// run calls hand with every block.
func (c *bzip2Cutter) run(hand func(*bzip2Block) error) error {
	for {
		if err := c.need(10); err != nil {
			return err
		}
		whole, ok := header(c.buf)
		switch {
		case !ok:
			return bzip2.StructuralError("no stream begins where one should")
		case !whole:
			return io.ErrUnexpectedEOF
		}
		level := c.buf[3]
		if string(c.buf[4:10]) == bzip2EndMark {
			if err := c.need(14); err != nil {
				return err
			}
			if len(c.buf) < 14 {
				return io.ErrUnexpectedEOF
			}
			if !bytes.Equal(c.buf[10:14], make([]byte, 4)) {
				return bzip2.StructuralError("checksum mismatch of an empty stream")
			}
			c.buf = c.buf[14:]
		} else {
			c.buf = c.buf[10:]
			if err := c.stream(level, hand); err != nil {
				return err
			}
		}
		if err := c.need(1); err != nil {
			return err
		}
		if len(c.buf) == 0 {
			return nil
		}
	}
}

// stream hands over the blocks of one stream. The first begins at bit 0 of c.buf.
func (c *bzip2Cutter) stream(level byte, hand func(*bzip2Block) error) error {
	skip, from := 0, 0 // of the block, and where to look for its end
	for {
		at, end := findMark(c.buf, from)
		if at < 0 {
			if c.eof {
				return io.ErrUnexpectedEOF
			}
			if len(c.buf) > maxBzip2Block {
				return bzip2.StructuralError("a block has no end")
			}
			from = max(skip, len(c.buf)*8-48)
			if err := c.more(); err != nil {
				return err
			}
			continue
		}
		blk := &bzip2Block{level: level, last: end}
		next := at + 48
		if end {
			stop := (next + 32 + 7) / 8
			if err := c.need(stop + 10); err != nil {
				return err
			}
			if len(c.buf) < stop {
				return io.ErrUnexpectedEOF
			}
			if _, ok := header(c.buf[stop:]); !ok {
				from = at + 1 // what looks like the end is data
				if c.eof && noMarks(c.buf, from) {
					return bzip2.StructuralError("the last stream is followed by something else")
				}
				continue
			}
			blk.sum = bitRun{b: c.buf, skip: next, n: 32}.uint32At0()
			next = stop * 8
		}
		first, last := skip/8, (at+7)/8
		blk.raw = bitRun{b: append([]byte(nil), c.buf[first:last]...), skip: skip % 8, n: at - skip}
		if err := hand(blk); err != nil {
			return err
		}
		c.buf = c.buf[next/8:]
		skip = next % 8
		from = skip
		if end {
			return nil
		}
	}
}

func noMarks(b []byte, from int) bool {
	at, _ := findMark(b, from)
	return at < 0
}
