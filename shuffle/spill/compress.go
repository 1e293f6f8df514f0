// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// What a block header says about the stored bytes.
const (
	encodingRaw  = 0
	encodingS2   = 1
	encodingZstd = 2
)

// zstdWriters hands out encoders: each takes a few hundred kilobytes.
var zstdWriters = sync.Pool{New: func() any {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), // blocks have their own checksum
		zstd.WithSingleSegment(true),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		return err
	}
	return e
}}

// zstdReaders hands out decoders, which have no goroutines of their own when used
// block by block.
var zstdReaders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecodeAllCapLimit(true), // never more than the header promised
		zstd.WithDecoderMaxMemory(maxRaw),
		zstd.WithDecoderMaxWindow(maxRaw))
	if err != nil {
		return err
	}
	return d
}}

// compressedBound returns the most that compressing n bytes can yield.
func compressedBound(n int) int {
	if m := s2.MaxEncodedLen(n); m > 0 {
		return m
	}
	return n
}

// appendCompressed appends src to dst in the shape that is smaller, and says
// which one it is.
func appendCompressed(dst, src []byte, c Compression) ([]byte, uint32, error) {
	start := len(dst)
	encoding := uint32(encodingRaw)
	switch c {
	case S2:
		bound := s2.MaxEncodedLen(len(src))
		if bound < 0 {
			break // too large for s2 on this machine
		}
		if cap(dst)-start < bound {
			dst = append(make([]byte, 0, start+bound), dst...)
		}
		dst = dst[:start+len(s2.Encode(dst[start:start+bound], src))]
		encoding = encodingS2
	case Zstd:
		pooled := zstdWriters.Get()
		e, ok := pooled.(*zstd.Encoder)
		if !ok {
			return dst, 0, fmt.Errorf("spill: zstd encoder: %v", pooled)
		}
		dst = e.EncodeAll(src, dst)
		zstdWriters.Put(e)
		encoding = encodingZstd
	}
	if encoding == encodingRaw || len(dst)-start > len(src)-len(src)/16 {
		return append(dst[:start], src...), encodingRaw, nil
	}
	return dst, encoding, nil
}

// decompress fills dst, which must have exactly the length of the result.
func decompress(dst, src []byte, encoding uint32) error {
	switch encoding {
	case encodingRaw:
		if len(src) != len(dst) {
			return errors.New("length of an uncompressed block is wrong")
		}
		copy(dst, src)
		return nil
	case encodingS2:
		if n, err := s2.DecodedLen(src); err != nil || n != len(dst) {
			return errors.New("s2: wrong length")
		}
		if _, err := s2.Decode(dst, src); err != nil {
			return err
		}
		return nil
	case encodingZstd:
		pooled := zstdReaders.Get()
		d, ok := pooled.(*zstd.Decoder)
		if !ok {
			return fmt.Errorf("zstd decoder: %v", pooled)
		}
		out, err := d.DecodeAll(src, dst[:0:len(dst)])
		zstdReaders.Put(d)
		if err != nil {
			return err
		}
		if len(out) != len(dst) {
			return errors.New("zstd: wrong length")
		}
		return nil
	}
	return fmt.Errorf("unknown encoding %d", encoding)
}
