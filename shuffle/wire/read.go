// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"github.com/quernmr/quern/shuffle/pairs"
)

// Reader reads the pairs of data frames, without allocating per frame. The zero
// Reader is ready for [Reader.Reset].
type Reader struct {
	rest  []byte // pairs not read yet
	left  int
	shape Shape
	size  int // of a keyed pair
	meta  uint32
	index uint32
	key   []byte
	lanes []int64
}

// Reset begins to read a frame, which b holds exactly, of a job with so many lanes. It checks
// all of it but the tag and the hashes: head and lengths, that every key is in the least class
// that holds it, and that padding is zero. After an error there is nothing to read.
func (r *Reader) Reset(b []byte, lanes int) error {
	r.rest, r.left, r.key = nil, 0, nil
	h, err := ParseFrame(b)
	if err != nil {
		return err
	}
	if h.Kind != Data {
		return fmt.Errorf("%w: kind %d holds no pairs", ErrKind, h.Kind)
	}
	body := b[HeadSize:]
	r.shape, r.index = h.Shape, 0
	n := 0
	switch {
	case h.Shape.Keyed():
		if h.Shape.Lanes() != lanes {
			return fmt.Errorf("%w: pairs of %d lanes, not %d", ErrBody, h.Shape.Lanes(), lanes)
		}
		r.size, r.left = h.Shape.PairSize(), int(h.Count)
		if n, err = checkKeyed(body, h); err != nil {
			r.left = 0
			return err
		}
	case h.Shape == Long:
		if n, err = checkLong(body, int(h.Count), lanes); err != nil {
			return err
		}
		r.left = int(h.Count)
	default:
		if lanes != 1 {
			return fmt.Errorf("%w: a vector of %d lanes", ErrBody, lanes)
		}
		if n, err = checkDense(body, h); err != nil {
			return err
		}
		r.left, r.index = int(le.Uint32(body[4:])), le.Uint32(body)-1
		body = body[:n]
		n, body = n-denseHead, body[denseHead:]
	}
	if cap(r.lanes) < lanes {
		r.lanes = make([]int64, lanes)
	}
	r.lanes, r.rest = r.lanes[:lanes], body[:n]
	return nil
}

// Left returns the number of pairs, or values of a dense frame, not read yet.
func (r *Reader) Left() int { return r.left }

// Next reads the next pair and says whether there was one.
func (r *Reader) Next() bool {
	if r.left == 0 {
		return false
	}
	r.left--
	if r.shape < KeyedShapes {
		p := r.rest[:r.size]
		r.rest = r.rest[r.size:]
		r.meta = le.Uint32(p)
		p = p[4:]
		if r.shape&Wide != 0 {
			for i := range r.lanes {
				r.lanes[i] = int64(le.Uint64(p))
				p = p[8:]
			}
		} else {
			for i := range r.lanes {
				r.lanes[i] = int64(int32(le.Uint32(p)))
				p = p[4:]
			}
		}
		r.key = p[:r.meta&lenMask-1]
		return true
	}
	return r.nextOther()
}

func (r *Reader) nextOther() bool {
	if r.shape == Long {
		n := int(le.Uint32(r.rest))
		p := r.rest[4:]
		for i := range r.lanes {
			r.lanes[i] = int64(le.Uint64(p))
			p = p[8:]
		}
		r.key = p[:n:n]
		r.rest = r.rest[LongSize(n, len(r.lanes)):]
		return true
	}
	r.index++
	if r.shape&Wide != 0 {
		r.lanes[0] = int64(le.Uint64(r.rest))
		r.rest = r.rest[8:]
	} else {
		r.lanes[0] = int64(int32(le.Uint32(r.rest)))
		r.rest = r.rest[4:]
	}
	return true
}

// Key returns the key of the pair, which lies in the frame; nil in dense frames.
func (r *Reader) Key() []byte { return r.key }

// Lanes returns the values, valid until the next call of Next. Those of 4 bytes are
// extended by their sign.
func (r *Reader) Lanes() []int64 { return r.lanes }

// Meta returns the first word of a keyed pair as it is in the frame: its hash may
// have been replaced by a program, see [Restore].
func (r *Reader) Meta() uint32 { return r.meta }

// Index returns the number of the value in the vector, in dense frames.
func (r *Reader) Index() uint32 { return r.index }

const lenMask = 1<<7 - 1

// checkKeyed checks the pairs of a keyed frame, whose length suits its count, and
// returns the bytes they take.
func checkKeyed(body []byte, h Head) (int, error) {
	size, class := h.Shape.PairSize(), h.Shape.Class()
	keyAt, keyBytes := size-h.Shape.KeyBytes(), h.Shape.KeyBytes()
	least := leastKey(class)
	n := int(h.Count) * size
	for i := range int(h.Count) {
		p := body[i*size:][:size]
		length := int(le.Uint32(p)&lenMask) - 1
		if length < least || length > keyBytes {
			return 0, pairError(i, fmt.Sprintf("a key of %d bytes in a class of %d to %d", length, least, keyBytes))
		}
		if !paddingZero(p[keyAt:], length) {
			return 0, pairError(i, "the key's padding is not zero")
		}
	}
	if !zero(body[n:]) {
		return 0, fmt.Errorf("%w: padding is not zero", ErrBody)
	}
	return n, nil
}

// leastKey returns the length of the shortest key of a class.
func leastKey(class int) int {
	if class == 0 {
		return 0
	}
	return 4<<class + 1
}

// checkLong checks the pairs of a long frame and returns the bytes they take.
func checkLong(body []byte, count, lanes int) (int, error) {
	if lanes < 1 {
		return 0, fmt.Errorf("%w: %d lanes", ErrBody, lanes)
	}
	at := 0
	for i := range count {
		rest := body[at:]
		if len(rest) < 4+8*lanes {
			return 0, pairError(i, "it ends beyond the frame")
		}
		n := uint64(le.Uint32(rest))
		if n > uint64(len(rest)) || LongSize(int(n), lanes) > len(rest) {
			return 0, pairError(i, fmt.Sprintf("a key of %d bytes ends beyond the frame", n))
		}
		if n <= MaxKey && lanes <= MaxLanes {
			return 0, pairError(i, fmt.Sprintf("a key of %d bytes in a long frame", n))
		}
		size := LongSize(int(n), lanes)
		if !zero(rest[4+8*lanes+int(n) : size]) {
			return 0, pairError(i, "the key's padding is not zero")
		}
		at += size
	}
	switch {
	case PaddedSize(at) != len(body):
		return 0, fmt.Errorf("%w: %d bytes of pairs in a body of %d", ErrLength, at, len(body))
	case !zero(body[at:]):
		return 0, fmt.Errorf("%w: padding is not zero", ErrBody)
	}
	return at, nil
}

// checkDense checks a dense frame and returns the bytes of its head and values.
func checkDense(body []byte, h Head) (int, error) {
	offset, count := uint64(le.Uint32(body)), uint64(le.Uint32(body[4:]))
	n := denseHead + count*uint64(h.Shape.ValueBytes())
	switch {
	case count == 0 || n > BodySize || PaddedSize(int(n)) != len(body):
		return 0, fmt.Errorf("%w: %d values of %d bytes in a body of %d", ErrLength, count, h.Shape.ValueBytes(), len(body))
	case offset+count > 1<<32:
		return 0, fmt.Errorf("%w: a vector of more than 2^32 values", ErrBody)
	case !zero(body[n:]):
		return 0, fmt.Errorf("%w: padding is not zero", ErrBody)
	}
	return int(n), nil
}

// paddingZero says whether a key, padded to a multiple of 8 bytes, has zeros behind its n bytes.
func paddingZero(key []byte, n int) bool {
	if n == len(key) {
		return true
	}
	at := n &^ 7
	or := le.Uint64(key[at:]) >> (8 * (n & 7))
	for at += 8; at+8 <= len(key); at += 8 {
		or |= le.Uint64(key[at:])
	}
	return or == 0
}

func zero(b []byte) bool {
	var or uint64
	for len(b) >= 8 {
		or |= le.Uint64(b)
		b = b[8:]
	}
	for _, c := range b {
		or |= uint64(c)
	}
	return or == 0
}

// Restore makes the hashes of a keyed frame anew, from the keys and their lengths: a
// program that gave a frame up may have replaced some by numbers of slots. After it the
// tag can be checked, and only that tells whether the frame is genuine. It checks a frame
// as [Reader.Reset] does, and changes nothing in one that is wrong. Frames of
// other shapes are checked by their heads alone; programs do not change them.
func Restore(frame []byte, seed pairs.Seed) error {
	h, err := ParseFrame(frame)
	if err != nil {
		return err
	}
	if h.Kind != Data {
		return fmt.Errorf("%w: kind %d holds no pairs", ErrKind, h.Kind)
	}
	if !h.Shape.Keyed() {
		return nil
	}
	body := frame[HeadSize:]
	if _, err := checkKeyed(body, h); err != nil {
		return err
	}
	size := h.Shape.PairSize()
	keyAt := size - h.Shape.KeyBytes()
	for i := range int(h.Count) {
		p := body[i*size:][:size]
		n := int(le.Uint32(p)&lenMask) - 1
		le.PutUint32(p, Meta(seed.HashBytes(p[keyAt:][:n]), n))
	}
	return nil
}
