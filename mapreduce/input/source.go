// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync/atomic"

	"github.com/quernmr/quern/mapreduce/objects"
)

// source is a run of bytes of one file, from the disk or a pipe.
type source interface {
	io.ReadCloser
	// taken returns the bytes read from disk since the call before.
	taken() int64
	// at returns the position in the file that was read up to.
	at() int64
	// stoppable says whether a Read ends soon after the context or Close says so,
	// so that a goroutine may be left in it.
	stoppable() bool
}

// diskSource reads a regular file from a position to where it ended when it
// was found. It has its own position, so that several may share a file.
type diskSource struct {
	f       diskFile
	path    string
	off     atomic.Int64
	told    int64 // part of off that taken has returned
	size    int64 // when the file was found
	limit   int64 // where reading ends, at most size
	planned os.FileInfo
}

// diskFile is what is needed of an *os.File.
type diskFile interface {
	io.ReaderAt
	io.Closer
}

func openFile(path string) (diskFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	return f, nil
}

// openPlaces opens a file that is read at several places.
func (s *settings) openPlaces(ctx context.Context, file *File) (diskFile, error) {
	if objects.IsURL(file.Path) {
		return s.openObject(ctx, file)
	}
	if local, ok := s.uploads[path.Clean(file.Path)]; ok {
		f, err := os.Open(local)
		if err != nil {
			return nil, fmt.Errorf("input: %w", renamed(err, file.Path))
		}
		return f, nil
	}
	return s.open(file.Path)
}

func (s *settings) openObject(ctx context.Context, file *File) (*objects.Object, error) {
	at, err := objects.Parse(file.Path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	client, err := objects.Open()
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	return client.Object(ctx, at, file.Size, file.etag), nil
}

// openFrom opens a file that one goroutine reads mostly from front to back, to
// about the position until.
func (s *settings) openFrom(ctx context.Context, file *File, until int64) (diskFile, error) {
	if objects.IsURL(file.Path) {
		o, err := s.openObject(ctx, file)
		if err != nil {
			return nil, err
		}
		return o.Cursor(until), nil
	}
	return s.openPlaces(ctx, file)
}

// openDisk opens a file of known size to be read from a position up to about until.
func (s *settings) openDisk(ctx context.Context, file *File, from, until int64) (*diskSource, error) {
	f, err := s.openFrom(ctx, file, until)
	if err != nil {
		return nil, err
	}
	d := &diskSource{f: f, path: file.Path, size: file.Size, limit: file.Size, told: from, planned: file.planned}
	d.off.Store(from)
	if err := d.unchanged(); err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

// unchanged says whether the file is still the one that the job was planned
// with. It may have grown: what was added is not read.
func (d *diskSource) unchanged() error {
	f, ok := d.f.(interface{ Stat() (os.FileInfo, error) })
	if !ok || d.planned == nil {
		return nil
	}
	now, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("input: %w", err)
	case !sameFile(now, d.planned):
		return fmt.Errorf("input: %s was replaced by another file while the job ran; run the job again once nobody writes to it", d.path)
	case now.Size() == d.size && !now.ModTime().Equal(d.planned.ModTime()):
		return fmt.Errorf("input: %s was changed while the job ran; run the job again once nobody writes to it", d.path)
	}
	return nil
}

// Read reads until p is full or the file ends.
func (d *diskSource) Read(p []byte) (int, error) {
	off := d.off.Load()
	left := d.limit - off
	if left <= 0 {
		if err := d.unchanged(); err != nil {
			return 0, err
		}
		return 0, io.EOF
	}
	if int64(len(p)) > left {
		p = p[:left]
	}
	n, err := d.f.ReadAt(p, off)
	d.off.Store(off + int64(n))
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		return n, fmt.Errorf("input: %s shrank while it was read: it had %d bytes when the job was planned and now ends at %d; run the job again once nobody writes to the file", d.path, d.size, off+int64(n))
	}
	if objects.IsURL(d.path) {
		return n, fmt.Errorf("input: %w", err) // it says which and where
	}
	return n, fmt.Errorf("input: reading %s at byte %d: %w", d.path, off+int64(n), err)
}

func (d *diskSource) Close() error { return d.f.Close() }

func (d *diskSource) taken() int64 {
	off := d.off.Load()
	n := off - d.told
	d.told = off
	return n
}

func (d *diskSource) at() int64 { return d.off.Load() }

func (d *diskSource) stoppable() bool { return true }

// pipeSource reads standard input, a named pipe or a device.
type pipeSource struct {
	ctx  context.Context
	r    io.Reader
	path string
	off  atomic.Int64
	told int64
	// wait, if set, returns once r has something to read or ctx is done, so
	// that no read that nobody can end is begun.
	wait  func(ctx context.Context) error
	stops bool
	close func() error
}

func (s *pipeSource) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	if s.wait != nil {
		if err := s.wait(s.ctx); err != nil {
			return 0, err
		}
	}
	n, err := s.r.Read(p)
	off := s.off.Add(int64(n))
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if ctxErr := s.ctx.Err(); ctxErr != nil {
		return n, ctxErr
	}
	return n, fmt.Errorf("input: reading %s at byte %d: %w", s.path, off, err)
}

func (s *pipeSource) Close() error { return s.close() }

func (s *pipeSource) taken() int64 {
	off := s.off.Load()
	n := off - s.told
	s.told = off
	return n
}

func (s *pipeSource) at() int64 { return s.off.Load() }

func (s *pipeSource) stoppable() bool { return s.stops }

// openPipe opens a file that has no size: a named pipe or a device.
func openPipe(ctx context.Context, path string) (*pipeSource, error) {
	f, err := openBlocking(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	// Closing ends a read that waits for a writer.
	stop := context.AfterFunc(ctx, func() { f.Close() })
	return &pipeSource{ctx: ctx, r: f, path: path, stops: true, close: func() error {
		if !stop() {
			return nil
		}
		return f.Close()
	}}, nil
}

// openStdin reads standard input, or what the caller gave in its place, which
// stays open.
func openStdin(ctx context.Context, r io.Reader) *pipeSource {
	if r == nil {
		r = os.Stdin
	}
	s := &pipeSource{ctx: ctx, r: r, path: "-", close: func() error { return nil }}
	if f, ok := r.(*os.File); ok {
		s.wait = waiter(f)
		s.stops = s.wait != nil
	}
	return s
}
