// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"encoding/binary"
	"io"

	"github.com/zeebo/xxh3"
)

// Content is bytes that follow from a seed. They are made where they are read, so any size costs nothing.
type Content struct {
	Seed uint64
	Size int64
}

// ReadAt implements io.ReaderAt.
func (c Content) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= c.Size {
		return 0, io.EOF
	}
	if left := c.Size - off; int64(len(p)) > left {
		p, err = p[:left], io.EOF
	}
	var word [8]byte
	for n < len(p) {
		at := off + int64(n)
		binary.LittleEndian.PutUint64(word[:], mix(c.Seed+uint64(at>>3)))
		n += copy(p[n:], word[at&7:])
	}
	return n, err
}

// mix is a permutation of 64-bit numbers that leaves no pattern (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Sum is the digest of a run of the content's bytes.
func (c Content) Sum(off, size int64) (Digest, error) {
	h := xxh3.New()
	if _, err := io.Copy(h, io.NewSectionReader(c, off, size)); err != nil {
		return Digest{}, err
	}
	s := h.Sum128()
	return Digest{size, [2]uint64{s.Hi, s.Lo}}, nil
}

// Digest is a message's size in bytes and its xxh3-128.
type Digest struct {
	Size int64
	Sum  [2]uint64
}

func digestOf(b []byte) Digest {
	s := xxh3.Hash128(b)
	return Digest{int64(len(b)), [2]uint64{s.Hi, s.Lo}}
}
