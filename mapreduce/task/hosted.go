// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Hosted is the program's side: it was started to serve a request.
type Hosted struct {
	in, out *os.File
	fds     [2]int // of these
	reader  *reader
	writer  *writer
}

// Attach says whether this process was started as a task, and if so takes the
// two descriptors that [Env] names over: neither they nor the variable reach
// processes that this one starts. A second call finds nothing.
func Attach() (*Hosted, bool, error) {
	value, ok := os.LookupEnv(Env)
	if !ok {
		return nil, false, nil
	}
	if err := os.Unsetenv(Env); err != nil {
		return nil, true, err
	}
	first, second, ok := strings.Cut(value, ",")
	in, err1 := strconv.ParseUint(first, 10, 16)
	out, err2 := strconv.ParseUint(second, 10, 16)
	if !ok || err1 != nil || err2 != nil || in < 3 || out < 3 || in == out {
		return nil, true, fmt.Errorf("%s=%q: it is set by quern alone and names two descriptors, as in 3,4: unset it", Env, value)
	}
	h := &Hosted{fds: [2]int{int(in), int(out)}}
	var err error
	if h.in, err = inherited(uintptr(in), "task requests"); err == nil {
		h.out, err = inherited(uintptr(out), "task replies")
	}
	if err != nil {
		return nil, true, fmt.Errorf("%s=%q: %w: it is set by quern alone: unset it", Env, value, err)
	}
	h.reader = newReader(h.in, MaxMessage)
	h.writer = &writer{w: h.out}
	return h, true, nil
}

// Request reads the request, the parent's first message. Descriptors of side inputs do not
// reach processes that this one starts afterwards.
func (h *Hosted) Request() (*Request, error) {
	r := &Request{}
	if err := h.reader.read(r); err != nil {
		return nil, fmt.Errorf("reading the request of a task: %w", err)
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := h.takeSides(r); err != nil {
		return nil, err
	}
	if err := h.takeVector(r); err != nil {
		return nil, err
	}
	return r, nil
}

// Answer reads the parent's next message after the request. It returns io.EOF, at any time, when the
// parent closed its end or died.
func (h *Hosted) Answer() (*Answer, error) {
	r := &Answer{}
	if err := h.reader.read(r); err != nil {
		return nil, err
	}
	return r, nil
}

// Reply sends a message. Several goroutines may call it.
func (h *Hosted) Reply(r *Reply) error { return h.writer.write(r) }
