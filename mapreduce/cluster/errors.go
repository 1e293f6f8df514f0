// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
)

// What may go wrong, beside what is wrong with a job itself. Errors of this package wrap
// one of these where one of them is the reason.
var (
	// ErrUnreachable means that no master answers at the address.
	ErrUnreachable = errors.New("no master answers")
	// ErrRefused means that the master does not take the token or the certificate.
	ErrRefused = errors.New("the master refuses access")
	// ErrVersion means that this program and the master do not understand each other.
	ErrVersion = errors.New("the versions do not fit")
	// ErrAmbiguous means that what was given does not say which job or worker is meant.
	ErrAmbiguous = errors.New("it is not clear which one is meant")
	// ErrUnknownJob means that the cluster has no such job.
	ErrUnknownJob = errors.New("unknown job")
	// ErrUnknownWorker means that the cluster has no such worker.
	ErrUnknownWorker = errors.New("unknown worker")
	// ErrProgram means that a program can't be sent to workers as it is.
	ErrProgram = errors.New("the program can't be run by workers")
	// ErrFailed is what the error of a job is that has failed.
	ErrFailed = errors.New("the job failed")
	// ErrCancelled is what the error of a job is that somebody has cancelled.
	ErrCancelled = errors.New("the job was cancelled")
)

// JobError is the error of a job that ended without a result. It is ErrFailed or ErrCancelled, and whatever else the error was
// where it arose: errors.As finds a *mapreduce.SideInputError, *mapreduce.InputError, *mapreduce.PanicError, *rows.Error or
// *fs.PathError, and errors.Is finds mapreduce.ErrOverflow, output.ErrExists and so on, as after a run in this process.
type JobError struct {
	Status *api.JobStatus
}

func (e *JobError) Error() string {
	why := e.Status.GetError()
	if e.state() == ErrCancelled { //nolint:errorlint // it is one of two
		// The master says by whom and why: "cancelled by ann: enough".
		why = strings.TrimPrefix(why, "cancelled")
	}
	if why != "" && !strings.HasPrefix(why, " by ") && !strings.HasPrefix(why, ": ") {
		why = ": " + why
	}
	return fmt.Sprintf("%v%s (job %s)", e.state(), why, e.Status.GetJob())
}

// Cause returns what is known of the error beside its text; nil: nothing.
func (e *JobError) Cause() *task.Cause {
	c := &task.Cause{}
	if json.Unmarshal(e.Status.GetFailure(), c) != nil { // none, or of another version
		return nil
	}
	return c
}

// Unwrap returns ErrFailed or ErrCancelled, and the error of the job itself.
func (e *JobError) Unwrap() []error {
	return []error{e.state(), mapreduce.ErrorOf(e.Status.GetError(), e.Cause())}
}

func (e *JobError) state() error {
	if e.Status.GetState() == api.JobState_JOB_CANCELLED {
		return ErrCancelled
	}
	return ErrFailed
}

// noCertificatesError is the error of whoever has no certificates and asks another machine. It is
// ErrRefused, though nobody was asked.
type noCertificatesError struct{ address string }

func (e *noCertificatesError) Error() string {
	return e.address + " is another machine, and without certificates nothing is said to it: name their folder by --certs, QUERN_CERTS or DialOptions.Certs"
}

func (e *noCertificatesError) Is(target error) bool { return target == ErrRefused }

// transient says whether a call may succeed when it is repeated, since the master is not there now.
func transient(err error) bool {
	if status.Code(err) != codes.Unavailable {
		return false
	}
	_, refused := handshake(status.Convert(err).Message())
	return !refused
}

// handshake says why two ends do not take each other's certificates, if that is what a message of
// the library is about.
func handshake(message string) (why string, refused bool) {
	for _, mark := range []string{"authentication handshake failed: ", "remote error: tls: "} {
		if _, rest, ok := strings.Cut(message, mark); ok {
			rest = unquoted(rest)
			switch {
			case strings.Contains(rest, "first record does not look like a TLS handshake"):
				return "it has no certificates, and we have: leave --certs out, or give it some", true
			case strings.HasSuffix(rest, "EOF"), strings.Contains(rest, "connection reset"), strings.Contains(rest, "deadline exceeded"):
				return "", false // it went away in between
			}
			return rest, true
		}
	}
	return "", false
}

// plain takes a message of the library apart: what it is about, without its own names for that.
func plain(message string) string {
	if _, rest, ok := strings.Cut(message, `desc = "transport: Error while dialing: `); ok {
		return unquoted(rest)
	}
	if _, rest, ok := strings.Cut(message, `desc = "`); ok {
		return unquoted(rest)
	}
	return message
}

// unquoted takes away what quotes a text, but for the mark at its beginning.
func unquoted(text string) string {
	return strings.ReplaceAll(strings.TrimSuffix(text, `"`), `\"`, `"`)
}

// explain makes an error of this package of one of a call. notFound is what the master
// does not know if it says so.
func (c *Client) explain(ctx context.Context, err, notFound error) error {
	if err == nil {
		return nil
	}
	if ended := context.Cause(ctx); ended != nil {
		return ended
	}
	s, ok := status.FromError(err)
	if !ok {
		return err // our own
	}
	switch s.Code() {
	case codes.Unavailable:
		if why, refused := handshake(s.Message()); refused {
			return fmt.Errorf("%w: %s at the other end: %s", ErrRefused, c.address, why)
		}
		if c.options.TLS == nil && c.options.Certs == "" && strings.Contains(s.Message(), "error reading server preface") {
			return fmt.Errorf("%w: %s wants certificates: name the folder of yours by --certs, QUERN_CERTS or DialOptions.Certs", ErrRefused, c.address)
		}
		return fmt.Errorf("%w at %s: %s", ErrUnreachable, c.address, plain(s.Message()))
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w at %s in time", ErrUnreachable, c.address)
	case codes.Unauthenticated, codes.PermissionDenied:
		return fmt.Errorf("%w: %s", ErrRefused, s.Message())
	case codes.Unimplemented:
		return fmt.Errorf("%w: what answers at %s does not know this call: %s", ErrVersion, c.address, s.Message())
	case codes.NotFound:
		if notFound != nil {
			return fmt.Errorf("%w: %s", notFound, s.Message())
		}
	case codes.InvalidArgument:
		if notFound != nil {
			return fmt.Errorf("%w: %s", ErrAmbiguous, s.Message())
		}
	case codes.FailedPrecondition:
		if c.about != nil && c.about.GetProtocol() != api.Protocol {
			return fmt.Errorf("%w: %s", ErrVersion, s.Message())
		}
	}
	return errors.New(s.Message())
}
