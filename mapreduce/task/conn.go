// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// Conn is the parent's side of a program that was started to serve one request.
//
// The program ends by itself when its parent closes the connection or dies, so
// it is kept open until the program has ended.
type Conn struct {
	in     *os.File // replies
	out    *os.File // requests
	once   sync.Once
	child  []*os.File
	reader *reader
	writer *writer
}

// Pipe prepares a command to run a program as a task: it adds two descriptors to
// its ExtraFiles and [Env] to its Env (if that is nil, to this process's
// environment). It is called before Start, and Started after it. It fails where
// child processes can't inherit descriptors, as on Windows.
func Pipe(cmd *exec.Cmd) (*Conn, error) {
	if !inherits {
		return nil, fmt.Errorf("job programs as child processes: %w on this system", errors.ErrUnsupported)
	}
	childIn, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("a pipe to a job program: %w", err)
	}
	in, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a pipe from a job program: %w", err), childIn.Close(), out.Close())
	}
	first := 3 + len(cmd.ExtraFiles)
	cmd.ExtraFiles = append(cmd.ExtraFiles, childIn, childOut)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	env := make([]string, 0, len(cmd.Env)+1)
	for _, e := range cmd.Env {
		if !strings.HasPrefix(e, Env+"=") {
			env = append(env, e)
		}
	}
	cmd.Env = append(env, fmt.Sprintf("%s=%d,%d", Env, first, first+1))
	return &Conn{
		in: in, out: out, child: []*os.File{childIn, childOut},
		reader: newReader(in, MaxMessage), writer: &writer{w: out},
	}, nil
}

// Started closes this process's copies of the program's ends. It is called after
// cmd.Start, whether that succeeded or not; without it Recv never sees the
// program's end.
func (c *Conn) Started() {
	c.once.Do(func() {
		for _, f := range c.child {
			_ = f.Close() // nothing was written to it here
		}
	})
}

// Send sends a *Request, a *CallResult or an *Answer. It waits until the program reads, which
// Close ends. Several goroutines may call it.
func (c *Conn) Send(message any) error {
	if err := c.writer.write(message); err != nil {
		return fmt.Errorf("sending to a job program: %w", err)
	}
	return nil
}

// Recv returns the program's next message, in which one field is set. It returns
// io.EOF if the program closed its end (it ended, or was killed) and errors that
// are ErrMessage if it sent something else. One goroutine calls it at a time.
func (c *Conn) Recv() (*Reply, error) { return c.reader.reply() }

// Close closes the connection, which ends a Recv or Send that waits, and the
// program, if it still runs.
func (c *Conn) Close() error {
	c.Started()
	return errors.Join(c.in.Close(), c.out.Close())
}
