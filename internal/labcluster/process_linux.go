// SPDX-License-Identifier: Apache-2.0

package labcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

// Process is a master or a worker.
type Process struct {
	Name string
	Log  string // path of what it writes
	cmd  *netlab.Command
	done chan struct{} // closed when it has ended
}

// run starts a process. What it writes is added to the file of its name in logs.
func run(host *netlab.Host, name, logs string, environ []string, path string, args ...string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(logs, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("write the log of %s: %w", name, err)
	}
	defer log.Close()
	fmt.Fprintf(log, "-- %s: %s %q\n", time.Now().Format("15:04:05.000"), path, args)
	p.cmd = host.Command(context.Background(), path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = environ
	// A group of its own: what is typed at a terminal is not for it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // the state says more
		close(p.done)
	}()
	return p, nil
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Kill ends the process by SIGKILL and waits until it has ended.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended says whether it has, and how.
func (p *Process) Ended() (state string, ended bool) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.String(), true
	default:
		return "", false
	}
}

// stop ends the process by SIGTERM, or if it has not ended within grace, by SIGKILL.
func (p *Process) stop(grace time.Duration) error {
	if err := errors.Join(p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	select {
	case <-p.done:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 && code != 128+int(syscall.SIGTERM) {
			return fmt.Errorf("%s did not stop well: %v: %s", p.Name, p.cmd.ProcessState, p.Tail())
		}
		return nil
	case <-time.After(grace):
		return errors.Join(fmt.Errorf("%s did not stop within %v and was killed: %s", p.Name, grace, p.Tail()), p.Kill())
	}
}

// Tail returns the last lines of the process's log.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return string(text)
}
