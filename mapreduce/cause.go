// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/quernmr/quern/mapreduce/objects"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/fold"
)

// known are the errors that a cause names. Names are part of journals and of what clusters say, and stay as they are.
var known = []struct {
	name string
	kind task.FaultKind
	err  error
}{
	{"overflow", task.KindOverflow, ErrOverflow},
	{"float overflow", task.KindOverflow, ErrFloatOverflow},
	{"scale", task.KindOverflow, fold.ErrScale},
	{"audit", task.KindAudit, errAudit},
	{"diverged", "", ErrDiverged},
	{"output exists", task.KindOutput, output.ErrExists},
	{"output holds input", task.KindOutput, output.ErrOverlap},
	{"output is no folder", task.KindOutput, output.ErrTarget},
	{"output is not supported", task.KindOutput, output.ErrUnsupported},
	{"object changed", "", objects.ErrChanged},
	{"object store lacks it", "", objects.ErrUnsupported},
	{"does not exist", "", fs.ErrNotExist},
	{"not permitted", "", fs.ErrPermission},
	{"exists", "", fs.ErrExist},
}

// outputError marks an error about writing the output that says so by nothing else.
type outputError struct{ error }

func (o *outputError) Unwrap() error { return o.error }

// CauseOf returns what an error of a job is, so that [ErrorOf] can make an error of it in another process that is the same
// to errors.Is and errors.As. Nil: nothing but its text is known.
func CauseOf(err error) *task.Cause {
	if err == nil {
		return nil
	}
	var told *toldError
	if errors.As(err, &told) {
		return &told.cause
	}
	c := &task.Cause{}
	kinds := map[task.FaultKind]bool{}
	is := func(err error) {
		for _, k := range known {
			if errors.Is(err, k.err) {
				c.Is = append(c.Is, k.name)
				kinds[k.kind] = true
			}
		}
	}
	is(err)
	var (
		panicked *PanicError
		side     *SideInputError
		record   *InputError
		row      *rows.Error
		read     *readError
		out      *outputError
	)
	if errors.As(err, &panicked) {
		value := fmt.Sprint(panicked.Value)
		c.Panic, c.Stack = &value, string(panicked.Stack)
		kinds[task.KindPanic] = true
	}
	if errors.As(err, &side) {
		c.SideInput = &task.SideFault{Name: side.Name, Text: fmt.Sprint(side.Err)}
		kinds[task.KindSideInput] = true
	}
	if errors.As(err, &record) {
		c.Record = &task.RecordFault{File: record.File, Offset: record.Offset, Line: record.Line, Text: fmt.Sprint(record.Err)}
		kinds[task.KindRecord] = true
	}
	if errors.As(err, &row) {
		c.Row = &task.RecordFault{File: row.File, Offset: row.Offset, Line: row.Line, Column: row.Column, Text: fmt.Sprint(row.Err)}
		kinds[task.KindRecord] = true
	}
	kinds[task.KindInput] = errors.As(err, &read)
	kinds[task.KindOutput] = kinds[task.KindOutput] || errors.As(err, &out)
	c.Path = pathFault(err)
	// What says most comes first: what panicked may have met a bad record, and a bad record may be a side input's.
	for _, kind := range []task.FaultKind{
		task.KindAudit, task.KindPanic, task.KindSideInput, task.KindOverflow, task.KindRecord, task.KindInput, task.KindOutput,
	} {
		if kinds[kind] {
			c.Kind = kind
			break
		}
	}
	if c.Kind == "" && len(c.Is) == 0 && c.Path == nil {
		return nil
	}
	return c
}

// pathFault returns the failed call of the system in an error, if there is one.
func pathFault(err error) *task.PathFault {
	var onPath *fs.PathError
	var onLink *os.LinkError
	f := &task.PathFault{}
	var why error
	switch {
	case errors.As(err, &onLink):
		f.Op, f.Path, why = onLink.Op, onLink.New, onLink.Err
	case errors.As(err, &onPath):
		f.Op, f.Path, why = onPath.Op, onPath.Path, onPath.Err
	default:
		return nil
	}
	f.Text = why.Error()
	var errno syscall.Errno
	if errors.As(why, &errno) {
		f.Errno, f.OS = uint(errno), runtime.GOOS
	}
	return f
}

// withoutScratch drops from a cause what is about a folder of this process's own, which is nobody else's business: that a
// file in it is not there says nothing of the input.
func withoutScratch(c *task.Cause, scratch string) *task.Cause {
	if c == nil || c.Path == nil || scratch == "" || c.Kind == task.KindInput || c.Kind == task.KindSideInput {
		return c
	}
	if rel, err := filepath.Rel(scratch, c.Path.Path); err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return c
	}
	out := *c
	out.Path, out.Is = nil, nil
	for _, name := range c.Is {
		if !isOfSystem(name) {
			out.Is = append(out.Is, name)
		}
	}
	if out.Kind == task.KindOutput && len(out.Is) == 0 {
		out.Kind = ""
	}
	return &out
}

func isOfSystem(name string) bool {
	return name == "does not exist" || name == "not permitted" || name == "exists"
}

// toldError is an error of another process.
type toldError struct {
	text  string
	cause task.Cause
	is    []error
}

func (e *toldError) Error() string   { return e.text }
func (e *toldError) Unwrap() []error { return e.is }

// ErrorOf returns an error that says text, and that is to errors.Is and errors.As what cause says. Where a
// cause has a text of its own, as that of a record has, the error found by errors.As says that. Of a nil cause it has the text alone.
func ErrorOf(text string, cause *task.Cause) error {
	if cause == nil {
		return errors.New(text)
	}
	c := *cause
	e := &toldError{text: text, cause: c}
	for _, k := range known {
		for _, name := range c.Is {
			if name == k.name {
				e.is = append(e.is, k.err)
			}
		}
	}
	if c.Panic != nil {
		e.is = append(e.is, &PanicError{Value: *c.Panic, Stack: []byte(c.Stack)})
	}
	if s := c.SideInput; s != nil {
		e.is = append(e.is, &SideInputError{Name: s.Name, Err: errors.New(s.Text)})
	}
	if r := c.Record; r != nil {
		e.is = append(e.is, &InputError{File: r.File, Offset: r.Offset, Line: r.Line, Err: errors.New(r.Text)})
	}
	if r := c.Row; r != nil {
		e.is = append(e.is, &rows.Error{File: r.File, Offset: r.Offset, Line: r.Line, Column: r.Column, Err: errors.New(r.Text)})
	}
	if p := c.Path; p != nil {
		err := errors.New(p.Text)
		if p.Errno != 0 && p.OS == runtime.GOOS {
			err = syscall.Errno(p.Errno)
		}
		e.is = append(e.is, &fs.PathError{Op: p.Op, Path: p.Path, Err: err})
	}
	return e
}
