// SPDX-License-Identifier: Apache-2.0

package benchlab

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// aside keeps standard input and output for who is given them here: whatever else the
// process writes to standard output comes to standard error, and standard input is empty.
// Other files stay as they are.
func aside(in io.Reader, out io.Writer) (io.Reader, io.Writer, error) {
	if in == io.Reader(os.Stdin) {
		none, err := os.Open(os.DevNull)
		if err != nil {
			return nil, nil, err
		}
		defer none.Close()
		kept, err := instead(os.Stdin, none)
		if err != nil {
			return nil, nil, err
		}
		in = kept
	}
	if out == io.Writer(os.Stdout) {
		kept, err := instead(os.Stdout, os.Stderr)
		if err != nil {
			return nil, nil, err
		}
		out = kept
	}
	return in, out, nil
}

// instead has a file's descriptor lead to another file, and returns the one it led to.
func instead(f, to *os.File) (*os.File, error) {
	kept, err := duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("keep %s: %w", f.Name(), err)
	}
	err = control(f, func(fd int) error {
		return control(to, func(other int) error { return unix.Dup3(other, fd, 0) })
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("have %s lead to %s: %w", f.Name(), to.Name(), err), kept.Close())
	}
	return kept, nil
}

func duplicate(f *os.File) (*os.File, error) {
	n := -1
	err := control(f, func(fd int) (err error) {
		n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

// control calls fn with a file's descriptor.
func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); failed != nil {
		return failed
	}
	return err
}
