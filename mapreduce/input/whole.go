// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Whole are files that are read whole, one after another, rather than in records.
type Whole struct{ plan *Plan }

// FindWhole finds files as [Discover] does, and looks what they are compressed with. What is
// in them does not matter. Standard input can't be among them. Of the options only Uploads
// are looked at.
//
// The error names the pattern that matches nothing, or the file that can't be read.
func FindWhole(ctx context.Context, patterns []string, opt Options) (*Whole, error) {
	s, err := newSettings(Options{Uploads: opt.Uploads})
	if err != nil {
		return nil, err
	}
	s.whole = true
	uploads, err := s.uploadTree()
	if err != nil {
		return nil, err
	}
	w := &Whole{plan: &Plan{set: s, Exact: true}}
	f := &finder{ctx: ctx, whole: true}
	for _, pattern := range patterns {
		files, _, err := f.find(pattern, uploads)
		if err != nil {
			return nil, err
		}
		w.plan.include(files)
	}
	for i := range w.plan.Files {
		if w.plan.Files[i].Path == stdinPath {
			return nil, errors.New("input: standard input can't be read here: name a file")
		}
	}
	w.plan.Notes = f.notes()
	err = parallel(ctx, w.plan.lookers(), len(w.plan.Files), func(i int) error { return w.look(ctx, &w.plan.Files[i]) })
	if err != nil {
		return nil, err
	}
	return w, nil
}

// look finds out what a file is compressed with.
func (w *Whole) look(ctx context.Context, file *File) error {
	if file.Size < 0 {
		return nil
	}
	f, err := w.plan.set.openFrom(ctx, file, sniffSize)
	if err != nil {
		return err
	}
	defer f.Close()
	name, head, err := sniffAt(f, file.Size)
	if err != nil {
		return fmt.Errorf("input: reading %s: %w", file.Path, err)
	}
	if file.Size == 0 && len(head) > 0 { // as of /proc
		file.Size = -1
		return nil
	}
	file.Compression = name
	return nil
}

// Paths returns what the files are called, in the order in which they are read.
func (w *Whole) Paths() []string {
	paths := make([]string, len(w.plan.Files))
	for i := range w.plan.Files {
		paths[i] = w.plan.Files[i].Path
	}
	return paths
}

// Notes returns what was passed over, to be said once to the user.
func (w *Whole) Notes() []string { return w.plan.Notes }

// Size returns how many bytes Open's reader has, -1 if that is not known before they are read:
// of compressed files and of pipes.
func (w *Whole) Size() int64 {
	var sum int64
	for i := range w.plan.Files {
		if f := &w.plan.Files[i]; f.Size < 0 || f.Compression != "" {
			return -1
		}
		sum += w.plan.Files[i].Size
	}
	return sum
}

// Once names a file that can be read only once or on one machine, a pipe or device; "" if there is none.
func (w *Whole) Once() string {
	for i := range w.plan.Files {
		if f := &w.plan.Files[i]; f.once() {
			return f.Path
		}
	}
	return ""
}

// once says whether a file can be read only once.
func (f *File) once() bool {
	if f.Size >= 0 {
		return false
	}
	info, err := os.Stat(f.Path) // files without a size may be of /proc, which can be read again
	return err == nil && !info.Mode().IsRegular()
}

// Open returns a reader of the decompressed bytes of all files. ctx also ends reads that wait.
// It is used by one goroutine.
func (w *Whole) Open(ctx context.Context) io.ReadCloser { return &wholeReader{ctx: ctx, plan: w.plan} }

type wholeReader struct {
	ctx  context.Context
	plan *Plan
	next int
	cur  *wholeFile
	err  error
}

func (r *wholeReader) Read(p []byte) (int, error) {
	for r.err == nil {
		if r.cur == nil {
			if r.next == len(r.plan.Files) {
				r.err = io.EOF
				break
			}
			f := &r.plan.Files[r.next]
			r.cur, r.err = r.plan.openWhole(r.ctx, r.next, f.Size >= streamSize, nil)
			r.next++
			continue
		}
		if r.err = r.ctx.Err(); r.err != nil {
			break
		}
		n, err := r.cur.bytes.Read(p)
		if errors.Is(err, io.EOF) {
			if err = r.closeFile(); err != nil {
				err = fmt.Errorf("input: %w", err)
			}
		}
		r.err = err
		if n > 0 || len(p) == 0 {
			return n, nil // and the error with the next call
		}
	}
	return 0, r.err
}

func (r *wholeReader) closeFile() error {
	f := r.cur
	r.cur = nil
	return f.Close()
}

// Close ends what works for the reader.
func (r *wholeReader) Close() error {
	if r.err == nil {
		r.err = errors.New("input: the reader is closed")
	}
	if r.cur == nil {
		return nil
	}
	return r.closeFile()
}
