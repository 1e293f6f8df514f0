// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
	"github.com/quernmr/quern/mapreduce/task"
)

// told is an error as another process learns of it.
func told(t testing.TB, err error) error {
	t.Helper()
	c := CauseOf(err)
	if c == nil {
		return ErrorOf(err.Error(), nil)
	}
	b, failed := json.Marshal(c)
	if failed != nil {
		t.Fatal(failed)
	}
	var read task.Cause
	if failed := json.Unmarshal(b, &read); failed != nil {
		t.Fatal(failed)
	}
	return ErrorOf(err.Error(), &read)
}

// TestCauses: an error is the same to errors.Is and errors.As on both sides, however often it is handed on.
func TestCauses(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "/in/a", Err: syscall.ENOENT}
	for _, c := range []struct {
		err  error
		kind task.FaultKind
	}{
		{errors.New("of the job's own"), ""},
		{&readError{fmt.Errorf("input: %w", missing)}, task.KindInput},
		{&readError{errors.New("gzip: invalid header")}, task.KindInput},
		{&readError{fmt.Errorf("input: *.x: %w", fs.ErrNotExist)}, task.KindInput},
		{missing, ""},
		{&SideInputError{Name: "model", Err: &readError{missing}}, task.KindSideInput},
		{&SideInputError{Name: "model", Err: &permanent{errors.New("it is no model")}}, task.KindSideInput},
		{&InputError{File: "a.csv", Offset: 70, Line: 7, Err: errors.New("x is no number")}, task.KindRecord},
		{&rows.Error{File: "a.csv", Offset: 70, Line: 7, Column: "price", Err: errors.New("x is no number")}, task.KindRecord},
		{&PanicError{Value: errors.New("out of range"), Stack: []byte("goroutine 7")}, task.KindPanic},
		{fmt.Errorf("%s: %w", "a.csv:7", &PanicError{Value: 7, Stack: []byte("goroutine 7")}), task.KindPanic},
		{fmt.Errorf("key %q: %w", "k", ErrOverflow), task.KindOverflow},
		{ErrFloatOverflow, task.KindOverflow},
		{fmt.Errorf("part 1: %w", errAudit), task.KindAudit},
		{ErrDiverged, ""},
		{fmt.Errorf("/out: %w", output.ErrExists), task.KindOutput},
		{fmt.Errorf("/out: %w", output.ErrUnsupported), task.KindOutput},
		{&outputError{&os.LinkError{Op: "rename", Old: "a", New: "/out/b", Err: syscall.EXDEV}}, task.KindOutput},
	} {
		c := struct {
			err  error
			kind task.FaultKind
		}{fmt.Errorf("map task 3: %w", c.err), c.kind}
		again := c.err
		for i := range 3 {
			again = told(t, again)
			if again.Error() != c.err.Error() {
				t.Fatalf("%v: told %d times it is %v", c.err, i+1, again)
			}
			if got := task.KindOf(CauseOf(again)); got != c.kind {
				t.Errorf("%v: told %d times its kind is %q, want %q", c.err, i+1, got, c.kind)
			}
			for _, k := range known {
				if errors.Is(again, k.err) != errors.Is(c.err, k.err) {
					t.Errorf("%v: told %d times it is %v: %v", c.err, i+1, k.err, errors.Is(again, k.err))
				}
			}
			alike[*SideInputError](t, c.err, again)
			alike[*InputError](t, c.err, again)
			alike[*rows.Error](t, c.err, again)
			alike[*PanicError](t, c.err, again)
			alike[syscall.Errno](t, c.err, again)
			if path, ok := pathOf(c.err); ok {
				if got, ok := pathOf(again); !ok || got != path {
					t.Errorf("%v: it is about %q, told it is about %q", c.err, path, got)
				}
			}
		}
	}
	// User code may return what says nothing of why.
	for _, err := range []error{&InputError{File: "f"}, &SideInputError{Name: "s"}, &rows.Error{File: "f"}} {
		if again := told(t, err); again.Error() != err.Error() {
			t.Errorf("%v: told it is %v", err, again)
		}
	}
	if CauseOf(nil) != nil || CauseOf(errors.New("x")) != nil || ErrorOf("x", nil).Error() != "x" {
		t.Error("there is a cause of nothing")
	}
}

func alike[E error](t *testing.T, was, is error) {
	t.Helper()
	var a, b E
	switch there, here := errors.As(was, &a), errors.As(is, &b); {
	case there != here:
		t.Errorf("%v: there is a %T in it: %v, and told: %v", was, a, there, here)
	case there && a.Error() != b.Error():
		t.Errorf("%v: %q in it becomes %q", was, a.Error(), b.Error())
	}
}

func pathOf(err error) (string, bool) {
	f := pathFault(err)
	if f == nil {
		return "", false
	}
	return f.Path, true
}

// TestCausesOfScratch: what is about a task's own folder says nothing of the job's files.
func TestCausesOfScratch(t *testing.T) {
	at := func(path string) error {
		return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	for _, c := range []struct {
		err  error
		path string
		kind task.FaultKind
	}{
		{at("/scratch/7/run-1"), "", ""},
		{&outputError{at("/scratch/7/run-1")}, "", ""},
		{at("/scratch/70/run-1"), "/scratch/70/run-1", ""},
		{at("/in/a"), "/in/a", ""},
		{&readError{at("/scratch/7/in/a")}, "/scratch/7/in/a", task.KindInput},
		{fmt.Errorf("%w: %w", ErrOverflow, at("/scratch/7/run-1")), "", task.KindOverflow},
	} {
		got := withoutScratch(CauseOf(c.err), "/scratch/7")
		if path := ""; got.Path != nil && got.Path.Path != c.path || got.Path == nil && c.path != path || got.Kind != c.kind {
			t.Errorf("%v: %+v", c.err, got)
		}
		if err := ErrorOf("x", got); c.path == "" && errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: it is still said that something does not exist", c.err)
		}
	}
	if withoutScratch(nil, "/scratch") != nil {
		t.Error("there is a cause of nothing")
	}
}

// FuzzErrorOf: whatever another process says, an error is made of it.
func FuzzErrorOf(f *testing.F) {
	for _, err := range []error{ErrOverflow, &SideInputError{Name: "a", Err: fs.ErrNotExist}, &PanicError{Value: 1}} {
		b, _ := json.Marshal(CauseOf(err))
		f.Add("x", b)
	}
	f.Fuzz(func(t *testing.T, text string, b []byte) {
		c := &task.Cause{}
		if json.Unmarshal(b, c) != nil {
			return
		}
		err := ErrorOf(text, c)
		if err.Error() != text || errors.Is(err, errors.ErrUnsupported) && c.Path == nil && len(c.Is) == 0 {
			t.Errorf("%+v: %v", c, err)
		}
		if _ = fmt.Sprintf("%+v", err); CauseOf(err) == nil {
			t.Errorf("%+v is forgotten", c)
		}
	})
}

// TestCauseNames: they are in journals, and each means one thing.
func TestCauseNames(t *testing.T) {
	var names []string
	for _, k := range known {
		if slices.Contains(names, k.name) || strings.TrimSpace(k.name) == "" {
			t.Errorf("%q is there twice", k.name)
		}
		names = append(names, k.name)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := &task.Cause{Is: rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t, "names")}
		err := ErrorOf("x", c)
		for _, k := range known {
			if slices.Contains(c.Is, k.name) && !errors.Is(err, k.err) {
				t.Errorf("%q is not %v", c.Is, k.err)
			}
		}
	})
}
