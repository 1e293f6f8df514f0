// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bufio"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// maxWindow bounds the memory that a zstd frame may ask for.
const maxWindow = 1 << 30

// decoder hands out the decompressed bytes of a source.
type decoder struct {
	r     io.Reader
	keep  *errKeeper
	src   source
	path  string
	name  string
	n     int64
	close func()
	err   error
}

// errKeeper remembers what went wrong below a decompressor, which may wrap or
// rename it.
type errKeeper struct {
	r   io.Reader
	mu  sync.Mutex
	err error
}

func (k *errKeeper) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		k.mu.Lock()
		k.err = err
		k.mu.Unlock()
	}
	return n, err
}

func (k *errKeeper) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

var gzipReaders, zstdReaders sync.Pool

// newDecoder decompresses src. head are bytes taken from src to find out what it
// is. If wide, several goroutines may work at once. Close ends them; it is to be
// called before src is closed, and after ctx is done if src may wait for bytes.
func newDecoder(ctx context.Context, src source, head io.Reader, path, name string, size int64, wide bool) (*decoder, error) {
	keep := &errKeeper{r: head}
	d := &decoder{keep: keep, src: src, path: path, name: name, close: func() {}}
	bufSize := 256 << 10
	if size >= 0 && size < int64(bufSize) {
		bufSize = max(int(size), 512)
	}
	in := bufio.NewReaderSize(keep, bufSize)
	workers := 1
	if wide && src.stoppable() {
		workers = min(runtime.GOMAXPROCS(0), 16)
	}
	err := d.guard(func() (err error) { return d.open(ctx, in, workers) })
	if err != nil {
		return nil, d.explain(err)
	}
	return d, nil
}

func (d *decoder) open(ctx context.Context, in *bufio.Reader, workers int) (err error) {
	switch d.name {
	case "gzip":
		z, _ := gzipReaders.Get().(*gzip.Reader)
		if z == nil {
			z = new(gzip.Reader)
		}
		if err := z.Reset(in); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		d.r = z
		d.close = func() { gzipReaders.Put(z) }
	case "zstd":
		if workers > 1 {
			z := newZstdFrames(ctx, in, workers)
			d.r, d.close = z, z.Close
			return nil
		}
		z, _ := zstdReaders.Get().(*zstd.Decoder)
		if z == nil {
			if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true)); err != nil {
				return err
			}
		}
		if err := z.Reset(in); err != nil {
			return err
		}
		d.r = z
		d.close = func() {
			if z.Reset(nil) == nil {
				zstdReaders.Put(z)
			}
		}
	case "bzip2":
		if workers > 1 {
			z := newBzip2Blocks(ctx, in, workers)
			d.r, d.close = z, z.Close
			return nil
		}
		d.r = bzip2.NewReader(in)
	case "xz":
		if err := checkXZ(in); err != nil {
			return err
		}
		d.r, err = xz.NewReader(&xzEnd{r: in})
	case "snappy", "s2":
		d.r = s2.NewReader(in)
	case "lz4":
		d.r = lz4.NewReader(&lz4Frames{r: in})
	default:
		err = fmt.Errorf("unknown compression %q", d.name)
	}
	return err
}

// guard turns a panic of a decompressor, which only bytes from outside can
// cause, into an error.
func (d *decoder) guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the data is not valid: %v", p)
		}
	}()
	return do()
}

func (d *decoder) Read(p []byte) (n int, err error) {
	if d.err != nil {
		return 0, d.err
	}
	err = d.guard(func() (err error) {
		n, err = d.r.Read(p)
		return err
	})
	d.n += int64(n)
	if err != nil {
		if !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || d.keep.failed() != nil {
			err = d.explain(err)
		}
		d.err = err
	}
	return n, err
}

// explain says where in which file the data is bad.
func (d *decoder) explain(err error) error {
	if below := d.keep.failed(); below != nil {
		return below
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return fmt.Errorf("input: %s: a zstd frame, at or before byte %d of the file, asks for a window of more than %d MiB; compress it again with a smaller one (zstd --long=30 or less): %w", d.path, d.src.at(), maxWindow>>20, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("input: %s: the %s data is cut off: the file ends at byte %d in the middle of it, after %d decompressed bytes; get a whole copy: %w", d.path, d.name, d.src.at(), d.n, err)
	}
	return fmt.Errorf("input: %s: the %s data is corrupt or followed by something else, at or before byte %d of the file, after %d decompressed bytes; get an intact copy: %w", d.path, d.name, d.src.at(), d.n, err)
}

func (d *decoder) Close() { d.close() }
