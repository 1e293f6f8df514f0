// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signalError is the cause of a context that a signal cancelled.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string {
	if e.signal == syscall.SIGINT {
		return "interrupted"
	}
	return fmt.Sprintf("stopped by signal: %v", e.signal)
}

// interruptible returns a context that the first interrupt, hang-up or request
// to terminate cancels; a second one ends the process at once. Signals that the
// caller ignores (nohup) stay ignored. Writing to a closed pipe becomes an
// ordinary error, so that temporary files are removed then, too.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	stops := make(chan os.Signal, 1)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(stops, s)
		}
	}
	// The channel is never read: that a signal was sent is all that matters.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	go func() {
		select {
		case s := <-stops:
			signal.Stop(stops) // the next one has its usual effect
			number, _ := s.(syscall.Signal)
			cancel(signalError{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// interruption returns the signal that cancelled ctx as an error, or nil.
func interruption(ctx context.Context) error {
	var s signalError
	if errors.As(context.Cause(ctx), &s) {
		return s
	}
	return nil
}

func interrupted(ctx context.Context) bool { return interruption(ctx) != nil }
