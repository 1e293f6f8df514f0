// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
)

// SideInputInfo says what a side input is.
type SideInputInfo struct {
	Name   string `json:"name"`
	Source string `json:"source,omitempty"` // in words; "" of a job that ran on a cluster
	Size   int64  `json:"size"`             // in bytes; -1: not known before it is read
}

// foundSide is a side input whose source was found.
type foundSide struct {
	*SideInput
	whole *input.Whole // of a FileSource
}

func (f *foundSide) info() SideInputInfo {
	i := SideInputInfo{Name: f.name, Source: f.source.String(), Size: -1}
	switch {
	case f.whole != nil:
		i.Size = f.whole.Size()
	case f.source.kind == bytesSource:
		i.Size = int64(len(f.source.bytes))
	}
	return i
}

// fail names the side input in an error. One about a row names its file and place, which is
// all that helps, and stays as it is.
func (f *foundSide) fail(err error) error {
	var row *rows.Error
	if errors.As(err, &row) {
		return err
	}
	return &SideInputError{Name: f.name, Err: err}
}

// findSides finds the sources of the job's side inputs.
func (e *engine) findSides(ctx context.Context) error {
	for _, s := range e.t.sides {
		f := foundSide{SideInput: s}
		if s.source.kind == fileSource {
			var err error
			if f.whole, err = input.FindWhole(ctx, s.source.files, e.opts.Input); err != nil {
				return f.fail(&readError{err})
			}
			for _, n := range f.whole.Notes() {
				e.notes = append(e.notes, fmt.Sprintf("side input %q: %s", s.name, n))
			}
		}
		e.found = append(e.found, f)
	}
	return nil
}

// open opens the source.
func (f *foundSide) open(ctx context.Context) (r io.ReadCloser, err error) {
	switch f.source.kind {
	case fileSource:
		return f.whole.Open(ctx), nil
	case bytesSource:
		return io.NopCloser(bytes.NewReader(f.source.bytes)), nil
	}
	if r, err = f.source.open(ctx); err == nil && r == nil {
		err = errors.New("its source has opened nothing")
	}
	return r, err
}

// errTooLarge is told of a side input that is larger than may be.
var errTooLarge = errors.New("too large")

// copyTo writes the content to w, at most limit bytes, and counts them in e.sideBytes.
func (f *foundSide) copyTo(ctx context.Context, e *engine, w io.Writer, limit int64) (n int64, err error) {
	defer func() {
		if err == nil || errors.Is(err, errTooLarge) {
			return
		}
		if f.source.kind == fileSource {
			err = &readError{err}
		}
		err = f.fail(err)
	}()
	err = guard(func() (err error) {
		r, err := f.open(e.withRoom(ctx, limit))
		if err != nil {
			return err
		}
		defer func() {
			if closed := r.Close(); err == nil && closed != nil {
				err = closed
			}
		}()
		buf := make([]byte, 256<<10)
		for idle := 0; ; {
			if err := ctx.Err(); err != nil {
				return err
			}
			// One byte more than may be is enough to see.
			m, err := r.Read(buf[:min(int64(len(buf))-1, limit-n)+1])
			if n+int64(m) > limit {
				return errTooLarge
			}
			if _, err := w.Write(buf[:m]); err != nil {
				return fmt.Errorf("keeping its content: %w", err)
			}
			n += int64(m)
			e.sideBytes.Add(int64(m))
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case m > 0:
				idle = 0
			default:
				if idle++; idle > 100 {
					return io.ErrNoProgress
				}
			}
		}
	})
	return n, err
}

// readSides reads the job's side inputs into memory. The functions of the job can read them
// until release is called, which is to be done also if there is an error.
func (e *engine) readSides(ctx context.Context) (release func() error, err error) {
	var held []func() error
	release = func() error {
		var errs []error
		for _, do := range held {
			errs = append(errs, do())
		}
		return errors.Join(errs...)
	}
	if len(e.found) == 0 {
		return release, nil
	}
	e.setPhase(phaseSides)
	room, total := e.mem.budget-MinMemory, int64(0)
	for i := range e.found {
		f := &e.found[i]
		c, err := e.readSide(ctx, f, room-total)
		if errors.Is(err, errTooLarge) {
			return release, f.fail(fmt.Errorf("there is no room for it in the memory budget of %s, of which the job needs %s for its records: give it more, --memory in the commands (other side inputs: %s)",
				humanize.IBytes(uint64(e.mem.budget)), humanize.IBytes(MinMemory), humanize.IBytes(uint64(total))))
		}
		if err != nil {
			return release, err
		}
		if err := f.attach(c); err != nil {
			return release, errors.Join(err, c.free())
		}
		held = append(held, func() error { return f.detach(c) })
		total += int64(len(c.bytes))
		e.sides = append(e.sides, SideInputInfo{Name: f.name, Source: f.source.String(), Size: int64(len(c.bytes))})
	}
	if total > e.mem.budget/4 {
		e.notes = append(e.notes, fmt.Sprintf("side inputs take %s of the memory budget of %s", humanize.IBytes(uint64(total)), humanize.IBytes(uint64(e.mem.budget))))
	}
	// The records have what is left.
	left, err := planMemory(e.mem.budget-total, e.opts.Workers)
	if err != nil {
		return release, err
	}
	e.mem, e.opts.Workers = left, left.workers
	return release, nil
}

// readSide reads a side input into memory of its own.
func (e *engine) readSide(ctx context.Context, f *foundSide, limit int64) (*sideContent, error) {
	size := f.info().Size
	if size > limit {
		return nil, errTooLarge
	}
	store := newSideStore(max(size, 0))
	if _, err := f.copyTo(ctx, e, store, limit); err != nil {
		store.drop()
		return nil, err
	}
	content, release, err := store.keep()
	if err != nil {
		return nil, f.fail(err)
	}
	return &sideContent{name: f.name, bytes: content[:len(content):len(content)], release: release}, nil
}

// sideStore takes the content of a side input, and has it in memory afterwards.
type sideStore interface {
	io.Writer
	// keep ends it. The content is there until release is called, which may be nil.
	keep() (content []byte, release func() error, err error)
	// drop ends it, and what was written is gone.
	drop()
}

// heapStore keeps a side input in memory of the collector's: where there is no other.
type heapStore struct{ content []byte }

func (h *heapStore) Write(p []byte) (int, error) {
	h.content = append(h.content, p...)
	return len(p), nil
}

func (h *heapStore) keep() ([]byte, func() error, error) { return h.content, nil, nil }
func (h *heapStore) drop()                               { h.content = nil }
