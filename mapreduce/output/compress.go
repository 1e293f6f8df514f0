// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Names of compressions, for DirOptions and StreamOptions.
const (
	NoCompression = ""
	Gzip          = "gzip"
	Zstd          = "zstd"
)

// compressUnit is how much text goes into one gzip member or zstd frame.
const compressUnit = 1 << 20

// compressor cuts what is written to it in units of compressUnit bytes and
// compresses each by itself, so that the result depends on the text alone and
// not on how calls of Write cut it. Whatever reads gzip or zstd reads members
// and frames one after the other. An empty text becomes one empty member.
type compressor struct {
	w      io.Writer
	append func(dst, text []byte) ([]byte, error)
	unit   []byte // text not compressed yet, less than compressUnit
	out    []byte
	begun  bool // a member was written
}

func newCompressor(w io.Writer, compression string) (*compressor, error) {
	switch compression {
	case Gzip:
		return &compressor{w: w, append: appendGzip}, nil
	case Zstd:
		return &compressor{w: w, append: appendZstd}, nil
	}
	return nil, unknownCompression(compression)
}

func unknownCompression(name string) error {
	return fmt.Errorf("compression %q: %w: choose gzip, zstd or none", name, ErrUnsupported)
}

func (c *compressor) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		part := p[:min(len(p), compressUnit-len(c.unit))]
		p = p[len(part):]
		if len(part) == compressUnit { // no need to gather
			if err := c.flush(part); err != nil {
				return n, err
			}
		} else if c.unit = append(c.unit, part...); len(c.unit) == compressUnit {
			if err := c.flush(c.unit); err != nil {
				return n, err
			}
			c.unit = c.unit[:0]
		}
		n += len(part)
	}
	return n, nil
}

func (c *compressor) flush(text []byte) error {
	c.begun = true
	out, err := c.append(c.out[:0], text)
	if err != nil {
		return err
	}
	c.out = out
	_, err = c.w.Write(out)
	return err
}

// finish writes what is left.
func (c *compressor) finish() error {
	if len(c.unit) == 0 && c.begun {
		return nil
	}
	err := c.flush(c.unit)
	c.unit, c.out = nil, nil
	return err
}

// Encoders are large and parts may be many, so they are shared.
var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	zstdWriters = sync.Pool{New: func() any {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true),
			zstd.WithWindowSize(compressUnit), zstd.WithEncoderCRC(true))
		if err != nil {
			return err
		}
		return w
	}}
)

func appendGzip(dst, text []byte) ([]byte, error) {
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	buf := bytes.NewBuffer(dst)
	w.Reset(buf)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func appendZstd(dst, text []byte) ([]byte, error) {
	switch w := zstdWriters.Get().(type) {
	case *zstd.Encoder:
		defer zstdWriters.Put(w)
		return w.EncodeAll(text, dst), nil
	case error:
		return nil, w
	}
	return nil, fmt.Errorf("zstd: %w", ErrUnsupported)
}
