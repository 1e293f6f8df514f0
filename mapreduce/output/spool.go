// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
)

// budget is the memory that all spools of a stream share.
type budget struct {
	left atomic.Int64
	dir  string // for files, when it is used up
}

func (b *budget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

// spool keeps the bytes of a part: in memory while the budget lasts, then all
// in a file.
type spool struct {
	budget *budget
	chunks [][]byte // full but for the last one

	through io.Writer // not nil: nothing is kept

	mu      sync.Mutex // guards what abandon and drop may touch from outside
	file    *os.File
	name    string // of the file, if it could not be removed while it is open
	dropped bool
}

const (
	firstChunk = 1 << 10
	largeChunk = 1 << 20
)

func (s *spool) Write(p []byte) (int, error) {
	if s.through != nil {
		return s.through.Write(p)
	}
	if s.file != nil {
		return s.file.Write(p)
	}
	n := len(p)
	for len(p) > 0 {
		if !s.room() {
			if err := s.spill(); err != nil {
				return n - len(p), err
			}
			wrote, err := s.file.Write(p)
			return n - len(p) + wrote, err
		}
		last := &s.chunks[len(s.chunks)-1]
		part := p[:min(len(p), cap(*last)-len(*last))]
		*last = append(*last, part...)
		p = p[len(part):]
	}
	return n, nil
}

// room makes sure that there is room in the last chunk. It is false if the
// budget does not allow that.
func (s *spool) room() bool {
	size := firstChunk
	if k := len(s.chunks); k > 0 {
		last := s.chunks[k-1]
		if len(last) < cap(last) {
			return true
		}
		size = min(2*cap(last), largeChunk)
	}
	if !s.budget.take(int64(size)) {
		return false
	}
	s.chunks = append(s.chunks, make([]byte, 0, size))
	return true
}

// spill moves the spool to a file.
func (s *spool) spill() error {
	f, err := os.CreateTemp(s.budget.dir, "quern-stream-*")
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.dropped {
		s.mu.Unlock()
		return errors.Join(fs.ErrClosed, f.Close(), os.Remove(f.Name()))
	}
	s.file = f
	if err := os.Remove(f.Name()); err != nil {
		s.name = f.Name() // not on this system: when it is closed
	}
	s.mu.Unlock()
	for _, c := range s.chunks {
		if _, err := f.Write(c); err != nil {
			return err
		}
	}
	s.release()
	return nil
}

// release gives memory back.
func (s *spool) release() {
	for _, c := range s.chunks {
		s.budget.left.Add(int64(cap(c)))
	}
	s.chunks = nil
}

// finish has nothing to do: what is spooled need not last.
func (s *spool) finish() error { return nil }

func (s *spool) abandon() { _ = s.drop() }

// copyTo writes all of it to w.
func (s *spool) copyTo(w io.Writer) error {
	for _, c := range s.chunks {
		if _, err := w.Write(c); err != nil {
			return err
		}
	}
	if s.file == nil {
		return nil
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	// Plain reads and writes: w may be anything, such as a file opened to append.
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{s.file}, make([]byte, largeChunk))
	return err
}

// drop removes the file. Memory goes with the spool.
func (s *spool) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return nil
	}
	s.dropped = true
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if s.name != "" {
		err = errors.Join(err, os.Remove(s.name))
	}
	return err
}
