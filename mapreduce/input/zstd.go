// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

const (
	// zstdFrameMax is the size of a frame's content up to which frames are
	// decompressed side by side; larger ones are streamed.
	zstdFrameMax = 32 << 20
	// zstdFrameBatch is how much content small frames are put together to.
	zstdFrameBatch = 1 << 20
	zstdMagic      = "\x28\xb5\x2f\xfd"
)

// zstdFrames decompresses frames that say how much they hold in parallel. From
// the first frame on that is large or does not say, the rest is streamed.
type zstdFrames struct {
	ordered
	in      *bufio.Reader
	workers int
	all     *zstd.Decoder
	stream  *zstd.Decoder
}

func newZstdFrames(ctx context.Context, in *bufio.Reader, workers int) *zstdFrames {
	z := &zstdFrames{in: in, workers: workers}
	var err error
	z.all, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(workers),
		zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(2*zstdFrameMax))
	z.start(ctx, workers, func(hand func(*piece) error) error {
		if err != nil {
			return err
		}
		return z.cut(hand)
	}, func(p *piece) {
		frames := p.data.(zstdBatch)
		p.out, p.err = z.all.DecodeAll(frames.raw, make([]byte, 0, frames.size))
		p.data = nil
	})
	return z
}

// zstdBatch is a run of whole frames and the size of their content.
type zstdBatch struct {
	raw  []byte
	size int
}

func (z *zstdFrames) cut(hand func(*piece) error) error {
	var batch zstdBatch
	flush := func() error {
		if len(batch.raw) == 0 {
			return nil
		}
		p := &piece{data: batch}
		batch = zstdBatch{}
		return hand(p)
	}
	for {
		head, err := z.in.Peek(zstd.HeaderMaxSize)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(head) == 0 {
			return flush()
		}
		if n := skippable(head); n > 0 {
			if err := discard(z.in, n); err != nil {
				return err
			}
			continue
		}
		var h zstd.Header
		if err := h.Decode(head); err != nil {
			return err
		}
		if h.Skippable {
			return io.ErrUnexpectedEOF // its length is cut off
		}
		if h.WindowSize > maxWindow {
			return zstd.ErrWindowSizeExceeded
		}
		if !h.HasFCS || h.FrameContentSize > zstdFrameMax {
			z.rest = (*zstdRest)(z)
			return flush()
		}
		if batch.size+int(h.FrameContentSize) > zstdFrameBatch {
			if err := flush(); err != nil {
				return err
			}
		}
		batch.size += int(h.FrameContentSize)
		if batch.raw, err = appendFrame(batch.raw, z.in, &h); err != nil {
			return err
		}
	}
}

func discard(in *bufio.Reader, n int64) error {
	m, err := io.CopyN(io.Discard, in, n)
	if m < n && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendFrame appends the next frame of in, whose header is h.
func appendFrame(dst []byte, in *bufio.Reader, h *zstd.Header) ([]byte, error) {
	begin := len(dst)
	take := func(n int) ([]byte, error) {
		at := len(dst)
		for n > 0 {
			part := min(n, 1<<20) // so that a size that lies costs little
			was := len(dst)
			dst = append(dst, make([]byte, part)...)
			if _, err := io.ReadFull(in, dst[was:]); err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return nil, err
			}
			n -= part
		}
		return dst[at:], nil
	}
	if _, err := take(h.HeaderSize); err != nil {
		return nil, err
	}
	for last := false; !last; {
		b, err := take(3)
		if err != nil {
			return nil, err
		}
		v := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
		last = v&1 == 1
		size := v >> 3
		switch v >> 1 & 3 {
		case 1: // one byte repeated
			size = 1
		case 3:
			return nil, zstd.ErrReservedBlockType
		}
		if _, err := take(size); err != nil {
			return nil, err
		}
		if len(dst)-begin > 2*zstdFrameMax {
			return nil, zstd.ErrFrameSizeExceeded
		}
	}
	if h.HasCheckSum {
		if _, err := take(4); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// zstdRest is the same data from the first frame on that is not cut out.
type zstdRest zstdFrames

func (z *zstdRest) Read(p []byte) (int, error) {
	if z.stream == nil {
		s, err := zstd.NewReader(z.in, zstd.WithDecoderConcurrency(z.workers), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return 0, err
		}
		z.stream = s
	}
	return z.stream.Read(p)
}

func (z *zstdFrames) Close() {
	z.ordered.Close()
	if z.stream != nil {
		z.stream.Close()
	}
	if z.all != nil {
		z.all.Close()
	}
}
