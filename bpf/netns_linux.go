// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// netnsPath is the calling thread's network namespace.
const netnsPath = "/proc/thread-self/ns/net"

// networkNamespace returns the number of the calling thread's network namespace.
func networkNamespace() (uint64, error) {
	var s unix.Stat_t
	if err := unix.Stat(netnsPath, &s); err != nil {
		return 0, fmt.Errorf("find out the network namespace: %w", err)
	}
	return s.Ino, nil
}

func sameNetns(f *os.File, path string) (bool, error) {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("find out the network namespace: %w", err)
	}
	return os.SameFile(a, b), nil
}

// thread is one in another network namespace.
type thread struct {
	jobs chan func()
	done chan struct{}
}

func newThread(netns *os.File) (*thread, error) {
	t := &thread{make(chan func()), make(chan struct{})}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the function
		defer close(t.done)
		if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter the interface's network namespace: %w", err)
			return
		}
		result <- nil
		for job := range t.jobs {
			job()
		}
	}()
	return t, <-result
}

// do runs f there. Calls take turns.
func (t *thread) do(f func() error) (err error) {
	done := make(chan struct{})
	t.jobs <- func() { err = f(); close(done) }
	<-done
	return err
}

// stop ends the thread; no do is under way or comes after it.
func (t *thread) stop() {
	close(t.jobs)
	<-t.done
}

// awayThread is a thread that is made when it is first needed.
type awayThread struct {
	mu sync.Mutex
	t  *thread
}

func (a *awayThread) do(netns *os.File, f func() error) error {
	a.mu.Lock()
	t := a.t
	if t == nil {
		var err error
		if t, err = newThread(netns); err != nil {
			a.mu.Unlock()
			return err
		}
		a.t = t
	}
	a.mu.Unlock()
	return t.do(f)
}

func (a *awayThread) stop() {
	if a.t != nil {
		a.t.stop()
		a.t = nil
	}
}

// inNetns runs f in the network namespace of the devices, wherever the caller is: numbers of
// devices mean others elsewhere. f does not wait for the caller's locks.
func (h *Host) inNetns(f func() error) error {
	here, err := sameNetns(h.netns, netnsPath)
	if err != nil {
		return err
	}
	if here {
		return f()
	}
	return h.away.do(h.netns, f)
}
