// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/quernmr/quern/shuffle/pairs"
)

// Builder writes the pairs of a data frame, one after the other, and allocates
// nothing. The zero Builder is ready for [Builder.Reset].
type Builder struct {
	buf   []byte
	shape Shape
	size  int // bytes of the body so far
	count int
	dense int64 // number of the first value
	err   error

	// Of keyed frames; no lanes otherwise, so that Add looks further.
	lanes       int
	pair        int
	least, most int // bytes of keys
}

// Reset begins a frame of a shape in buf, which has room for FrameSize bytes. If it
// has not, Add takes nothing and Err tells.
func (b *Builder) Reset(buf []byte, shape Shape) {
	*b = Builder{shape: shape}
	switch {
	case cap(buf) < FrameSize:
		b.err = fmt.Errorf("%w: a buffer of %d bytes, not %d", ErrMisuse, cap(buf), FrameSize)
	case !shape.Valid():
		b.err = fmt.Errorf("%w: unknown shape %#x", ErrMisuse, uint8(shape))
	default:
		b.buf = buf[:FrameSize]
	}
	switch {
	case shape.Keyed():
		b.lanes, b.pair = shape.Lanes(), shape.PairSize()
		b.least, b.most = leastKey(shape.Class()), shape.KeyBytes()
	case shape&Dense != 0:
		b.size = denseHead
		fallthrough
	default:
		b.lanes = -1
	}
}

// Count returns the number of pairs, or of values if the shape is dense.
func (b *Builder) Count() int { return b.count }

// Err tells what was wrong with a pair that Add refused, other than that the
// frame was full. Such a pair belongs in a frame of another shape.
func (b *Builder) Err() error { return b.err }

// Add appends a pair to a keyed or long frame. It returns false if the frame is full,
// or if the pair does not belong in it, in which case Err tells why and Finish
// returns nil. A long pair that does not fit an empty frame goes to [LargeFrame].
// hash is that of the key; long frames do not carry it.
func (b *Builder) Add(hash uint64, key []byte, lanes []int64) bool {
	if len(lanes) != b.lanes || len(key) < b.least || len(key) > b.most || b.err != nil {
		return b.addOther(key, lanes)
	}
	if b.size+b.pair > BodySize {
		return false
	}
	p := b.buf[HeadSize+b.size:][:b.pair:b.pair]
	le.PutUint32(p, Meta(hash, len(key)))
	p = p[4:]
	if b.shape&Wide != 0 {
		for _, v := range lanes {
			le.PutUint64(p, uint64(v))
			p = p[8:]
		}
	} else {
		for _, v := range lanes {
			if v != int64(int32(v)) {
				b.err = fmt.Errorf("%w: %d does not fit 4 bytes", ErrMisuse, v)
				return false
			}
			le.PutUint32(p, uint32(v))
			p = p[4:]
		}
	}
	switch len(p) {
	case 8:
		k0, _ := pairs.LoadShort(unsafe.Pointer(unsafe.SliceData(key)), len(key))
		le.PutUint64(p, k0)
	case 16:
		k0, k1 := pairs.LoadShort(unsafe.Pointer(unsafe.SliceData(key)), len(key))
		le.PutUint64(p, k0)
		le.PutUint64(p[8:], k1)
	default:
		clear(p[copy(p, key):])
	}
	b.size += b.pair
	b.count++
	return true
}

// addOther adds a long pair, or says why a pair does not belong here.
func (b *Builder) addOther(key []byte, lanes []int64) bool {
	switch {
	case b.err != nil:
	case b.shape == Long:
		return b.addLong(key, lanes)
	case b.shape >= KeyedShapes || len(lanes) == b.lanes:
		b.err = fmt.Errorf("%w: a key of %d bytes in a frame of shape %#x", ErrMisuse, len(key), uint8(b.shape))
	default:
		b.err = fmt.Errorf("%w: %d lanes, not %d", ErrMisuse, len(lanes), b.lanes)
	}
	return false
}

func (b *Builder) addLong(key []byte, lanes []int64) bool {
	if b.err = longFits(len(key), len(lanes)); b.err != nil {
		return false
	}
	size := LongSize(len(key), len(lanes))
	if b.size+size > BodySize || b.count == math.MaxUint8 {
		return false
	}
	putLong(b.buf[HeadSize+b.size:][:size], key, lanes)
	b.size += size
	b.count++
	return true
}

// AddValue appends a value to a dense frame; index is its number in the vector, one
// more than that of the value before it. It returns as Add does.
func (b *Builder) AddValue(index uint32, v int64) bool {
	switch {
	case b.err != nil:
		return false
	case b.shape&^Wide != Dense:
		b.err = fmt.Errorf("%w: a value of a vector in a frame of shape %#x", ErrMisuse, uint8(b.shape))
		return false
	case b.count > 0 && int64(index) != b.dense+int64(b.count):
		b.err = fmt.Errorf("%w: value %d behind value %d", ErrMisuse, index, b.dense+int64(b.count)-1)
		return false
	case b.shape == Dense && v != int64(int32(v)):
		b.err = fmt.Errorf("%w: %d does not fit 4 bytes", ErrMisuse, v)
		return false
	}
	if b.size+b.shape.ValueBytes() > BodySize {
		return false
	}
	if b.count == 0 {
		b.dense = int64(index)
	}
	if p := b.buf[HeadSize+b.size:]; b.shape&Wide != 0 {
		le.PutUint64(p, uint64(v))
	} else {
		le.PutUint32(p, uint32(v))
	}
	b.size += b.shape.ValueBytes()
	b.count++
	return true
}

// Finish pads the body, writes the head and the tag, and returns the frame, which lies in
// the buffer. Kind, shape, count, length, magic and version of the head are the builder's; the
// rest is the caller's. Without tags the tag is 0, for frames that are sealed
// later by [Tags.SealData]. It returns nil if the frame is empty or a pair was refused.
func (b *Builder) Finish(head Head, tags *Tags) []byte {
	if b.err != nil || b.count == 0 {
		return nil
	}
	length := PaddedSize(b.size)
	frame := b.buf[:HeadSize+length]
	clear(frame[HeadSize+b.size:])
	head.Count = uint8(b.count)
	if b.shape&Dense != 0 {
		head.Count = 0
		le.PutUint32(frame[HeadSize:], uint32(b.dense))
		le.PutUint32(frame[HeadSize+4:], uint32(b.count))
	}
	head.Magic, head.Version, head.Kind, head.Shape = Magic, Version, Data, b.shape
	head.Length, head.Zero, head.Zero2, head.Hop, head.Tag = uint16(length), 0, 0, 0, 0
	head.Put(frame)
	if tags != nil {
		tags.SealData(frame)
	}
	return frame
}

const denseHead = 8

// LongSize returns the bytes of a long pair.
func LongSize(keyLen, lanes int) int { return 4 + 8*lanes + (keyLen+3)/4*4 }

func longFits(keyLen, lanes int) error {
	switch {
	case lanes < 1:
		return fmt.Errorf("%w: no lanes", ErrMisuse)
	case keyLen <= MaxKey && lanes <= MaxLanes:
		return fmt.Errorf("%w: a key of %d bytes and %d lanes in a long frame", ErrMisuse, keyLen, lanes)
	case keyLen > math.MaxInt32:
		return fmt.Errorf("%w: a key of %d bytes", ErrMisuse, keyLen)
	}
	return nil
}

func putLong(p, key []byte, lanes []int64) {
	le.PutUint32(p, uint32(len(key)))
	p = p[4:]
	for _, v := range lanes {
		le.PutUint64(p, uint64(v))
		p = p[8:]
	}
	clear(p[copy(p, key):])
}

// LargeFrame returns a frame of one long pair that exceeds BodySize. Its length
// field is 0, and it travels over the control plane alone. Head and tags are as
// for [Builder.Finish].
func LargeFrame(head Head, key []byte, lanes []int64, tags *Tags) ([]byte, error) {
	if err := longFits(len(key), len(lanes)); err != nil {
		return nil, err
	}
	size := LongSize(len(key), len(lanes))
	if size <= BodySize {
		return nil, fmt.Errorf("%w: a pair of %d bytes fits a frame of pairs", ErrMisuse, size)
	}
	frame := make([]byte, HeadSize+PaddedSize(size))
	putLong(frame[HeadSize:], key, lanes)
	head.Magic, head.Version, head.Kind, head.Shape, head.Count = Magic, Version, Data, Long, 1
	head.Length, head.Zero, head.Zero2, head.Hop, head.Tag = 0, 0, 0, 0, 0
	head.Put(frame)
	if tags != nil {
		tags.SealData(frame)
	}
	return frame, nil
}
