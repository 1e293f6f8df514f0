// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/quernmr/quern/mapreduce/cluster"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/spf13/cobra"
)

// Exit codes; exitCodesHelp explains them to users.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInput       = 3
	exitOutput      = 4
	exitCluster     = 5
	exitRefused     = 6
	exitCancelled   = 7
	exitSignal      = 128 // plus the signal's number
	exitInterrupted = exitSignal + int(syscall.SIGINT)
	exitPipe        = exitSignal + 13 // SIGPIPE, whose number Windows lacks
)

const exitCodesHelp = `quern ends with one of these codes:

    0  success, also if the result has no rows (grep without a match)
    1  the job failed: bad data, an overflow, an audit that does not balance,
       no room to spill
    2  wrong usage: flags, arguments, configuration keys, job files
    3  an input cannot be found or read
    4  the output is refused (it exists, or holds input) or cannot be written
    5  no master of a cluster answers, or one of another version (ready-made jobs
       must be submitted with exactly its version)
    6  the master refuses the token or the certificate
    7  somebody has cancelled the job
  130  interrupted (Ctrl-C); 129 hang-up, 143 termination
  141  whoever read standard output closed it (as "| head" does); says nothing

After any code but 0 the output folder is as it was before, and temporary files
are gone. A second Ctrl-C ends quern at once, without cleaning up.

A job of a cluster goes on when quern, which follows it, is interrupted (130) or
finds no master any more. A Go program that was submitted ends with its own code.`

// usageError is a mistake in what the user asked for.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usageErrorf makes a usage error that points to the command's help.
func usageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), "see '" + cmd.CommandPath() + " --help'"}
}

// hintFor returns what to try next after err, or "".
func hintFor(err error) string {
	var usage *usageError
	var left *leftError
	var daemon *daemonError
	var job *jobError
	switch {
	case errors.As(err, &usage):
		return usage.hint
	case errors.As(err, &left):
		return left.next
	case errors.As(err, &daemon):
		return daemon.hint
	case errors.As(err, &job):
		return job.hint()
	case errors.Is(err, cluster.ErrUnknownJob):
		return "'quern history' lists those that ended, too"
	case errors.Is(err, cluster.ErrUnreachable):
		return "is 'quern master' running there? --master, QUERN_MASTER or the key master says where"
	}
	return hintForResult(err)
}

// hintForResult returns what to try next after an error of a job, wherever it ran, or "".
func hintForResult(err error) string {
	if errors.Is(err, output.ErrExists) && !strings.Contains(err.Error(), "--overwrite") {
		return "--overwrite replaces it once the job has succeeded"
	}
	return ""
}

// exitCode maps an error to the code that quern ends with.
func (a *app) exitCode(ctx context.Context, err error) int {
	var usage *usageError
	var stopped signalError
	var job *jobError
	var program *programError
	var daemon *daemonError
	switch {
	case errors.As(interruption(ctx), &stopped):
		return exitSignal + int(stopped.signal)
	case errors.As(err, &job):
		return job.code()
	case errors.As(err, &program):
		return program.code
	case errors.Is(err, cluster.ErrUnreachable), errors.Is(err, cluster.ErrVersion):
		return exitCluster
	case errors.Is(err, cluster.ErrRefused):
		return exitRefused
	case errors.Is(err, cluster.ErrUnknownJob), errors.Is(err, cluster.ErrUnknownWorker), errors.Is(err, cluster.ErrAmbiguous), errors.Is(err, cluster.ErrProgram):
		return exitUsage
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &daemon):
		return exitFailed
	case a.place.output == "" && errors.Is(err, syscall.EPIPE):
		return exitPipe
	}
	return a.place.exitCode(err)
}
