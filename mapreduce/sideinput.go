// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/quernmr/quern/mapreduce/task"
)

// MaxSideInputs is how many side inputs a job may have.
const MaxSideInputs = task.MaxSideInputs

// SideInput is something that the functions of a job can read whole beside the records: a
// list, a table, a model. [Job.SideInput] makes it.
//
// Its source is read once per job. In this process its content is in memory that the
// collector does not look at, and that comes out of Options.Memory. On a cluster the first
// task of the job reads it, every worker gets a copy, and the tasks of a worker share that.
type SideInput struct {
	name    string
	source  Source
	content atomic.Pointer[sideContent] // nil: its job does not run
}

// SideInput declares a side input. The name is for messages, 1 to 64 bytes of printable
// ASCII, and no other side input of the job has it; a job has 64 at most. What is wrong with
// it is said by Validate and Run. All are to be declared before the job runs.
//
// A job with side inputs runs once at a time.
func (j *Job[K, V, R]) SideInput(name string, source Source) *SideInput {
	s := &SideInput{name: name, source: source}
	j.sides = append(j.sides, s)
	return s
}

// Name returns the name that it was declared with.
func (s *SideInput) Name() string { return s.name }

// Bytes returns the whole content. It is the same memory for all, costs nothing to get, and
// must not be written: that fails the job. It is valid while the job runs, so what is kept
// longer, as in rows that Collect returns, is to be copied.
//
// It can be called in the job's functions: Map, NewMap and what it returns, Combine, Reduce,
// Keep and so on, but no Progress. Elsewhere there is no content: it panics with a
// *[SideInputError], which a run of the job returns as its error.
func (s *SideInput) Bytes() []byte {
	c, err := s.now()
	if err != nil {
		panic(err)
	}
	return c.bytes
}

// Text is Bytes as a string, without a copy. The same holds for it.
func (s *SideInput) Text() string {
	b := s.Bytes()
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// now returns the content in the run that is going on.
func (s *SideInput) now() (*sideContent, error) {
	c := s.content.Load()
	if c == nil {
		return nil, &SideInputError{Name: s.name, Err: errNoRun}
	}
	return c, nil
}

var errNoRun = errors.New("it can be read while its job runs, in Map, Reduce and the job's other functions, and nowhere else")

// Parse returns a function that returns what parse makes of a side input's content. parse is
// called once per run and process, when it is needed first, whoever calls the function from
// however many goroutines; what it returns is shared by them all. An error of parse is
// returned to all of them too, as a *[SideInputError] that names the side input; since the
// content will be no other, no attempt of the task is made again.
//
// What parse returns may point into the content, and is valid as long.
func Parse[T any](s *SideInput, parse func(content []byte) (T, error)) func() (T, error) {
	type outcome struct {
		of    *sideContent
		once  sync.Once
		value T
		err   error
	}
	var latest atomic.Pointer[outcome]
	return func() (T, error) {
		c, err := s.now()
		if err != nil {
			var zero T
			return zero, err
		}
		o := latest.Load()
		for o == nil || o.of != c {
			fresh := &outcome{of: c}
			if latest.CompareAndSwap(o, fresh) {
				o = fresh
				// What may point into memory that is not there any more must not be kept.
				c.atEnd(func() { latest.CompareAndSwap(fresh, nil) })
			} else {
				o = latest.Load()
			}
		}
		o.once.Do(func() {
			o.err = errGoexit // if parse does not come back
			defer func() {
				if o.err != nil {
					o.err = &SideInputError{Name: s.name, Err: &permanent{o.err}}
				}
			}()
			o.err = guard(func() (err error) {
				o.value, err = parse(c.bytes)
				return err
			})
		})
		return o.value, o.err
	}
}

// SideInputError is an error about a side input: its source can't be read, parse fails, or
// it was used where there is none. An error of a source about a row is a *rows.Error instead.
type SideInputError struct {
	Name string
	Err  error
}

func (e *SideInputError) Error() string { return fmt.Sprintf("side input %q: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *SideInputError) Unwrap() error { return e.Err }

// Source is where the content of a side input comes from: [FileSource], [BytesSource] or
// [ReaderSource].
type Source struct {
	kind  sourceKind
	files []string
	bytes []byte
	open  func(ctx context.Context) (io.ReadCloser, error)
	words string // what it is; "": what its kind says
}

type sourceKind uint8

const (
	noSource sourceKind = iota
	fileSource
	bytesSource
	readerSource
)

// FileSource is the content of files, decompressed, one after another. Paths are those of
// Options.Inputs but for standard input: files, patterns, folders and objects (s3://...),
// and files that were uploaded with the job. A file that is not there is an error of the job.
func FileSource(paths ...string) Source { return Source{kind: fileSource, files: paths} }

// BytesSource is b, which must not be changed afterwards. On a cluster the first task's
// process has made it.
func BytesSource(b []byte) Source { return Source{kind: bytesSource, bytes: b} }

// ReaderSource is what open's reader has, up to its end. On a cluster open is called in the
// process of the first task. An error of Close counts as one of reading.
func ReaderSource(open func(ctx context.Context) (io.ReadCloser, error)) Source {
	return Source{kind: readerSource, open: open}
}

// Called returns the source with words for what it is, "a table of prices.csv" say, which
// Explain shows in place of "a reader of the program".
func (s Source) Called(words string) Source {
	s.words = words
	return s
}

// String says what it is.
func (s Source) String() string {
	if s.words != "" {
		return s.words
	}
	switch s.kind {
	case fileSource:
		return strings.Join(s.files, ", ")
	case bytesSource:
		return "bytes of the program"
	case readerSource:
		return "a reader of the program"
	}
	return "no source"
}

// checkSides says what is wrong with the side inputs of a job.
func checkSides(sides []*SideInput) error {
	if len(sides) > MaxSideInputs {
		return fmt.Errorf("%d side inputs: %d are the most", len(sides), MaxSideInputs)
	}
	seen := make(map[string]bool, len(sides))
	for _, s := range sides {
		err := task.CheckSideName(s.name)
		switch {
		case err != nil:
		case seen[s.name]:
			err = errors.New("the job has another one of that name")
		case s.source.kind == noSource, s.source.kind == readerSource && s.source.open == nil:
			err = errors.New("it has no source: use FileSource, BytesSource or ReaderSource")
		case s.source.kind == fileSource && len(s.source.files) == 0:
			err = errors.New("its source names no file")
		}
		if err != nil {
			return &SideInputError{Name: s.name, Err: err}
		}
		seen[s.name] = true
	}
	return nil
}

// sideContent is the content of a side input in one run of its job.
type sideContent struct {
	name    string
	bytes   []byte
	release func() error // of its memory; may be nil

	mu   sync.Mutex
	ends []func()
}

// atEnd has something done when the content goes.
func (c *sideContent) atEnd(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, do)
}

// attach gives a side input its content for a run.
func (s *SideInput) attach(c *sideContent) error {
	if !s.content.CompareAndSwap(nil, c) {
		return &SideInputError{Name: s.name, Err: errors.New("another run of the same job has not ended; make a Job of its own for each")}
	}
	contents.add(c)
	return nil
}

// detach ends a run of its job.
func (s *SideInput) detach(c *sideContent) error {
	s.content.CompareAndSwap(c, nil)
	contents.remove(c)
	c.mu.Lock()
	ends := c.ends
	c.mu.Unlock()
	for _, do := range ends {
		do()
	}
	return c.free()
}

func (c *sideContent) free() error {
	if c.release == nil {
		return nil
	}
	if err := c.release(); err != nil {
		return &SideInputError{Name: c.name, Err: err}
	}
	return nil
}

// contents are those of all jobs that run in this process.
var contents contentSet

type contentSet struct {
	mu  sync.Mutex
	all map[*sideContent]struct{}
}

func (s *contentSet) add(c *sideContent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*sideContent]struct{}{}
	}
	s.all[c] = struct{}{}
}

func (s *contentSet) remove(c *sideContent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// at returns the name of the side input that an address is in, and the place in it.
func (s *contentSet) at(address uintptr) (name string, at int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		if from := uintptr(unsafe.Pointer(unsafe.SliceData(c.bytes))); address-from < uintptr(len(c.bytes)) {
			return c.name, int(address - from), true
		}
	}
	return "", 0, false
}

// caught is the error that a panic in the job's code stands for. It is called where that is
// recovered.
func caught(r any) error {
	switch e := r.(type) {
	case *SideInputError: // of Bytes
		return e
	case interface {
		runtime.Error
		Addr() uintptr
	}:
		if name, at, ok := contents.at(e.Addr()); ok {
			r = fmt.Sprintf("a fault at byte %d of side input %q: it was written, and can only be read, or its memory is damaged", at, name)
		}
	}
	return &PanicError{Value: r, Stack: debug.Stack()}
}
