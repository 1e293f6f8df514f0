// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// lz4Frames passes LZ4 frames on and sees to it that the data ends where a
// frame does, which the decompressor does not mind.
type lz4Frames struct {
	r      *bufio.Reader
	state  lz4State
	want   int64    // bytes left of what state is about
	field  [15]byte // collects fields
	fill   int
	blocks bool // every block has a checksum
	whole  bool // the frame has a checksum
}

type lz4State uint8

const (
	lz4Magic lz4State = iota
	lz4SkipSize
	lz4Skip // then a frame begins
	lz4Flags
	lz4Header
	lz4BlockSize
	lz4Block
	lz4Legacy
)

func (f *lz4Frames) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if bad := f.see(p[:n]); bad != nil {
		return n, bad
	}
	if errors.Is(err, io.EOF) && !(f.state == lz4Magic && f.fill == 0) && f.state != lz4Legacy {
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// collect moves bytes to field until it has n.
func (f *lz4Frames) collect(b *[]byte, n int) ([]byte, bool) {
	m := copy(f.field[f.fill:n], *b)
	f.fill += m
	*b = (*b)[m:]
	if f.fill < n {
		return nil, false
	}
	f.fill = 0
	return f.field[:n], true
}

func (f *lz4Frames) see(b []byte) error {
	for len(b) > 0 {
		switch f.state {
		case lz4Magic:
			m, ok := f.collect(&b, 4)
			if !ok {
				break
			}
			switch v := binary.LittleEndian.Uint32(m); {
			case v == 0x184d2204:
				f.state = lz4Flags
			case v == 0x184c2102:
				f.state = lz4Legacy
			case v>>4 == 0x184d2a5:
				f.state = lz4SkipSize
			default:
				return fmt.Errorf("no frame begins where one should, but the bytes %x", m)
			}
		case lz4SkipSize:
			if m, ok := f.collect(&b, 4); ok {
				f.skip(int64(binary.LittleEndian.Uint32(m)), lz4Skip, lz4Magic)
			}
		case lz4Flags:
			if m, ok := f.collect(&b, 1); ok {
				f.blocks, f.whole = m[0]&0x10 != 0, m[0]&0x04 != 0
				size := int64(2) // block descriptor and checksum
				if m[0]&0x08 != 0 {
					size += 8
				}
				if m[0]&0x01 != 0 {
					size += 4
				}
				f.skip(size, lz4Header, lz4BlockSize)
			}
		case lz4BlockSize:
			m, ok := f.collect(&b, 4)
			if !ok {
				break
			}
			size := int64(binary.LittleEndian.Uint32(m) & 0x7fffffff)
			switch {
			case binary.LittleEndian.Uint32(m) == 0 && f.whole:
				f.skip(4, lz4Skip, lz4Magic)
			case binary.LittleEndian.Uint32(m) == 0:
				f.state = lz4Magic
			default:
				if f.blocks {
					size += 4
				}
				f.skip(size, lz4Block, lz4BlockSize)
			}
		case lz4Legacy:
			return nil
		default:
			n := min(f.want, int64(len(b)))
			b = b[n:]
			f.skip(f.want-n, f.state, after[f.state])
		}
	}
	return nil
}

var after = map[lz4State]lz4State{lz4Skip: lz4Magic, lz4Header: lz4BlockSize, lz4Block: lz4BlockSize}

// skip passes over n bytes in a state, and then goes to the next.
func (f *lz4Frames) skip(n int64, in, next lz4State) {
	f.want, f.state = n, in
	if n == 0 {
		f.state = next
	}
}

// checkXZ refuses data whose first block asks for a dictionary that is too
// large, since the decompressor would go and get the memory.
func checkXZ(in *bufio.Reader) error {
	head, _ := in.Peek(64)
	const streamHeader = 12
	if len(head) < streamHeader+2 || head[streamHeader] == 0 {
		return nil
	}
	b := head[streamHeader+2:]
	varint := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			b = nil
			return 0
		}
		b = b[n:]
		return v
	}
	for _, present := range []byte{0x40, 0x80} {
		if head[streamHeader+1]&present != 0 {
			varint()
		}
	}
	for range int(head[streamHeader+1]&3) + 1 {
		id, size := varint(), varint()
		if size > uint64(len(b)) {
			return nil
		}
		if id == 0x21 && size == 1 {
			if d := b[0]; d <= 40 && uint64(2|d&1)<<(d/2+11) > maxWindow {
				return fmt.Errorf("it asks for a dictionary of more than %d MiB", maxWindow>>20)
			}
		}
		b = b[size:]
	}
	return nil
}

// xzEnd passes XZ data on and sees to it that it ends with a stream's footer
// and perhaps padding, since the decompressor takes a header alone for a stream.
type xzEnd struct {
	r    io.Reader
	last [2]byte // but for zeros
}

func (x *xzEnd) Read(p []byte) (int, error) {
	n, err := x.r.Read(p)
	b := bytes.TrimRight(p[:n], "\x00")
	switch len(b) {
	case 0:
	case 1:
		x.last[0], x.last[1] = x.last[1], b[0]
	default:
		x.last = [2]byte(b[len(b)-2:])
	}
	if errors.Is(err, io.EOF) && string(x.last[:]) != "YZ" {
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}
