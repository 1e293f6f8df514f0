// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/quernmr/quern/mapreduce/objects"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/fold"
)

// permanent marks an error that another attempt would meet again.
type permanent struct{ error }

func (p *permanent) Unwrap() error { return p.error }

// Permanent marks an error of a job's function or of a [ReaderSource] as one that another
// attempt would meet again: a cluster then makes none. It says what err says.
func Permanent(err error) error { return &permanent{err} }

// readError marks an error about reading the input, rather than of the job's code.
type readError struct{ error }

func (r *readError) Unwrap() error { return r.error }

// failure says what a task's error is to its worker.
func failure(err error) *task.Error {
	f := &task.Error{Message: err.Error(), Permanent: isPermanent(err), Cause: CauseOf(err)}
	var p *PanicError
	if errors.As(err, &p) {
		f.Permanent, f.Panic, f.Stack = false, true, string(p.Stack)
		f.Message = strings.Replace(f.Message, "\n"+f.Stack, "", 1)
	}
	var d *damaged
	if errors.As(err, &d) {
		f.Permanent, f.Input = false, d.run
	}
	return f
}

// isPermanent says whether another attempt would fail in the same way. What the
// job's own code returns may have any cause, and is tried again.
func isPermanent(err error) bool {
	var marked *permanent
	if errors.As(err, &marked) {
		return !passing(err)
	}
	for _, known := range []error{
		ErrOverflow, ErrFloatOverflow, fold.ErrScale,
		output.ErrExists, output.ErrOverlap, output.ErrTarget, output.ErrUnsupported,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	var row *rows.Error
	if errors.As(err, &row) {
		return true
	}
	var read *readError
	return errors.As(err, &read) && !passing(err)
}

// passing says whether an error of the system or the network may be gone the next
// time, or on another machine.
func passing(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	for _, known := range []error{fs.ErrNotExist, fs.ErrPermission, objects.ErrChanged, objects.ErrUnsupported} {
		if errors.Is(err, known) {
			return false
		}
	}
	var onPath *fs.PathError
	if errors.As(err, &onPath) && objects.IsURL(onPath.Path) {
		return true // of the store or the way to it
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return !slices.Contains([]syscall.Errno{
			syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL,
		}, errno)
	}
	var network net.Error
	return errors.As(err, &network)
}
