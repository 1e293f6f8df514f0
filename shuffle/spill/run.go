// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"unsafe"
)

// Run is a finished file of sorted pairs. Its methods may be called by several
// goroutines at once.
type Run struct {
	path  string
	file  runFile
	size  int64
	index *index
	raw   int64 // size of the largest block before compression

	mu      sync.Mutex
	closed  bool
	removed bool
}

// runFile is what a run needs of an *os.File.
type runFile interface {
	io.ReaderAt
	io.Closer
}

func newRun(path string, file runFile, size int64, x *index) *Run {
	r := &Run{path: path, file: file, size: size, index: x}
	for i := range x.blocks {
		r.raw = max(r.raw, int64(x.blocks[i].raw))
	}
	return r
}

// Open opens a run that was written to path before. It reads the index, not the
// blocks, which are checked when a cursor comes to them. Errors about
// damaged files wrap ErrCorrupt.
func Open(path string) (*Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("spill: open run: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("spill: open run: %w", err)
	}
	r, err := openFile(path, f, info.Size())
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func openFile(path string, f runFile, size int64) (*Run, error) {
	if size < int64(magicSize+trailerSize) {
		return nil, &CorruptError{path, 0, "file is too short"}
	}
	var first [magicSize]byte
	if _, err := f.ReadAt(first[:], 0); err != nil {
		return nil, fmt.Errorf("spill: open run: %w", err)
	}
	if string(first[:]) != magic {
		return nil, &CorruptError{path, 0, "not a run, or of another format version"}
	}
	var trailer [trailerSize]byte
	if _, err := f.ReadAt(trailer[:], size-int64(trailerSize)); err != nil {
		return nil, fmt.Errorf("spill: open run: %w", err)
	}
	off, n, err := parseTrailer(trailer[:], size)
	if err != nil {
		return nil, &CorruptError{path, size - int64(trailerSize), err.Error()}
	}
	footer := make([]byte, n+int64(trailerSize))
	if _, err := f.ReadAt(footer, off); err != nil {
		return nil, fmt.Errorf("spill: open run: %w", err)
	}
	x, err := parseFooter(footer, off)
	if err != nil {
		return nil, &CorruptError{path, off, err.Error()}
	}
	return newRun(path, f, size, x), nil
}

// Path returns the name of the file.
func (r *Run) Path() string { return r.path }

// Bytes returns the size of the file on disk.
func (r *Run) Bytes() int64 { return r.size }

// Pairs returns the number of pairs.
func (r *Run) Pairs() int64 { return r.index.pairs }

// Parts returns the parts that have pairs, ascending.
func (r *Run) Parts() []int {
	parts := make([]int, len(r.index.parts))
	for i, p := range r.index.parts {
		parts[i] = int(p.part)
	}
	return parts
}

// PartPairs returns the number of pairs of a part.
func (r *Run) PartPairs(part int) int64 { return r.index.part(part).pairs }

// PartBytes returns the size of a part before compression, in bytes.
func (r *Run) PartBytes(part int) int64 { return r.index.part(part).raw }

// FirstKeys returns the first key of each block of a part, ascending: good
// borders for cutting the part into ranges of about equal size. Keys longer
// than 256 bytes are cut there. The bytes must not be changed.
func (r *Run) FirstKeys(part int) [][]byte {
	p := r.index.part(part)
	keys := make([][]byte, 0, p.end-p.first)
	for i := p.first; i < p.end; i++ {
		keys = append(keys, r.index.key(i))
	}
	return keys
}

// CursorMemory returns how many bytes an open cursor of this run takes at most:
// that of the function of the same name, for the run's largest block.
func (r *Run) CursorMemory() int64 { return 2*int64(bufferSize(int(r.raw)+slack)) + cursorOverhead }

// IndexMemory returns how many bytes the run takes while it is not being read.
// It is some 50 bytes and a key of at most 256 per block.
func (r *Run) IndexMemory() int64 {
	return int64(cap(r.index.blocks))*int64(unsafe.Sizeof(blockInfo{})) + int64(cap(r.index.keys)) + int64(cap(r.index.parts))*int64(unsafe.Sizeof(partInfo{}))
}

// Cursor returns a cursor over the pairs of part with lo <= key < hi; nil means
// no bound. It must be closed. lo and hi must not change while it is open.
// Several cursors of a run may be used at once, each by one goroutine.
func (r *Run) Cursor(part int, lo, hi []byte) Cursor {
	c := &runCursor{run: r, lo: lo, hi: hi}
	c.block, c.end, c.checkFrom = r.index.span(part, lo, hi)
	return c
}

// Close closes the file and keeps it. Cursors that are open then fail. Calling
// it again does nothing.
func (r *Run) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.close()
}

func (r *Run) close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("spill: close run: %w", err)
	}
	return nil
}

// Remove closes the file and deletes it. Cursors that are open then fail.
// Calling it again does nothing, and a file that is gone is no error.
func (r *Run) Remove() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.close()
	if r.removed {
		return err
	}
	if e := os.Remove(r.path); e != nil && !errors.Is(e, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("spill: remove run: %w", e))
	}
	r.removed = true
	return err
}
