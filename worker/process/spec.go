// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quernmr/quern/mapreduce/task"
)

// Spec says what runs, and what it may take.
type Spec struct {
	Binary string   // path of the executable
	Args   []string // without the program's name
	// Environment is what the submitter gave, as NAME=value. Inherit names variables
	// of this process that are handed on.
	Environment, Inherit []string
	// WorkDir is the working folder; where it does not exist, or is "", Dir is.
	WorkDir string
	// Dir is the attempt's own folder: TMPDIR and HOME of the child. No other
	// attempt has the same.
	Dir string
	// Log takes what the child writes to standard output and error.
	Log *Log
	// Memory is how many bytes the child, with what it starts, may take of memory
	// that is not a file's. 0: no limit.
	Memory int64
	// Workers is how many processors it is to use. 0: all.
	Workers int
	// Files is how many files it may have open. 0: as many as this process.
	Files uint64
	// Umask of the child; 0: that of this process.
	Umask int
	// HelloTimeout is how long the program may take to reach its call of Run; 0:
	// task.HelloTimeout. StallTimeout is how long its progress may stand still; 0: for ever.
	HelloTimeout, StallTimeout time.Duration
	// Request is what the program is asked to do. It is not changed: of its SideInputs the
	// child gets those of the field below.
	Request *task.Request
	// SideInputs are handed on to the child, which maps them.
	SideInputs []SideInput
	// Progress, if not nil, is told what the child reports, in order.
	Progress func(task.Progress)
	// Vector is memory that a member of a gang shares with this process, for Request.Gang; Member takes what the child says as
	// one: Ready, Sum and Keep, in order, and must not wait. answer, which may be called once, at any time and from any goroutine, answers it.
	// As long as Ready and Sum are not answered the child may stand still.
	Vector *os.File
	Member func(r *task.Reply, answer func(*task.Answer))
}

// SideInput is a side input that a child can read.
type SideInput struct {
	Name string
	// File is open for reading, stays the caller's and is kept open until Run returns: an
	// ordinary file or anything else that can be mapped. Several side inputs may be in one.
	// It may be nil if Size is 0.
	File         *os.File
	Offset, Size int64 // of its content, in bytes
}

// Kind says in which way an attempt failed that gave no reply.
type Kind uint8

// The kinds.
const (
	// System: the child could not be started, for a reason that lies in this machine.
	System Kind = iota + 1
	// Unfit: the program can't run here, now or later.
	Unfit
	// Crashed: it ended before it had replied.
	Crashed
	// Silent: it did not reach its call of Run in time.
	Silent
	// Stalled: its progress stood still.
	Stalled
	// Memory: it took more than it may.
	Memory
)

// Error is why there is no reply. Errors of the task itself are replies.
type Error struct {
	Kind    Kind
	Message string
	Tail    string // the last lines that the program wrote, "" if there are none
	Err     error  // may be nil
}

func (e *Error) Error() string {
	if e.Tail == "" {
		return e.Message
	}
	return e.Message + "; its last words:\n" + e.Tail
}

// Unwrap returns what caused it.
func (e *Error) Unwrap() error { return e.Err }

// check says what is wrong with a spec, and fills in what is 0.
func (s Spec) check() (Spec, error) {
	switch {
	case s.Binary == "":
		return s, errors.New("no program is named")
	case !filepath.IsAbs(s.Dir):
		return s, fmt.Errorf("folder %q: an attempt needs an absolute path", s.Dir)
	case s.Request == nil:
		return s, errors.New("no request is given")
	}
	for _, in := range s.SideInputs {
		switch {
		case in.Size < 0 || in.Offset < 0:
			return s, fmt.Errorf("side input %q: %d bytes from byte %d on", in.Name, in.Size, in.Offset)
		case in.Size > 0 && in.File == nil:
			return s, fmt.Errorf("side input %q has no file", in.Name)
		}
	}
	if s.Request.Gang != nil && (s.Vector == nil || s.Member == nil) {
		return s, errors.New("a member of a gang without memory, or without somebody to hear it")
	}
	s.Dir = filepath.Clean(s.Dir)
	for _, e := range s.Environment {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.ContainsRune(e, 0) {
			return s, fmt.Errorf("environment %.100q: give NAME=value", e)
		}
	}
	if s.HelloTimeout <= 0 {
		s.HelloTimeout = task.HelloTimeout
	}
	if s.Log == nil {
		s.Log = NewLog("", 0)
	}
	return s, nil
}

// environment is what the child gets to see: nothing of this process's that was not meant for it.
func (s Spec) environment() []string {
	env := []string{"LANG=C.UTF-8", "HOME=" + s.Dir}
	for _, name := range slices.Concat([]string{"PATH", "TZ"}, s.Inherit) {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	if s.Memory > 0 {
		// The collector works harder before the limit is reached. Most of the budget is for
		// arenas, which it does not know of.
		heap := max(s.Memory/20*19-s.Request.Memory/8*7, s.Memory/4)
		env = append(env, "GOMEMLIMIT="+strconv.FormatInt(heap, 10))
	}
	if s.Workers > 0 {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(s.Workers))
	}
	for _, e := range s.Environment {
		if !strings.HasPrefix(e, task.Env+"=") {
			env = append(env, e)
		}
	}
	// Last, so that it holds: what the child starts is known by it.
	return append(env, mark(s.Dir))
}

func mark(dir string) string { return "TMPDIR=" + dir }
