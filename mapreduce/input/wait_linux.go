// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollEvery is how soon a cancelled context is seen while standard input is silent.
const pollEvery = 50 * time.Millisecond

// waiter returns a function that waits until f can be read without waiting.
// Standard input may be shared with other processes, so its mode is not changed.
func waiter(f *os.File) func(context.Context) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	return func(ctx context.Context) error {
		for {
			n := 0
			var pollErr error
			err := raw.Control(func(fd uintptr) {
				p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, pollErr = unix.Poll(p, int(pollEvery/time.Millisecond))
			})
			if ctx.Err() != nil {
				return ctx.Err()
			}
			switch {
			case err != nil:
				return nil // closed: let the read say so
			case errors.Is(pollErr, unix.EINTR):
			case pollErr != nil || n > 0:
				return nil
			}
		}
	}
}

// openBlocking opens path for reading. Opening a named pipe waits for a writer;
// if ctx ends first, the pipe is opened for writing here to end that wait.
func openBlocking(ctx context.Context, path string) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	opened := make(chan result, 1)
	go func() {
		f, err := os.Open(path)
		opened <- result{f, err}
	}()
	select {
	case r := <-opened:
		return r.f, r.err
	case <-ctx.Done():
	}
	for {
		// Fails with ENXIO as long as the other goroutine does not wait yet.
		w, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		select {
		case r := <-opened:
			if err == nil {
				unix.Close(w)
			}
			if r.f != nil {
				r.f.Close()
			}
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
		if err == nil {
			unix.Close(w)
		} else if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			// Nothing here can end the wait; the goroutine goes when a writer comes.
			return nil, ctx.Err()
		}
	}
}
