// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
)

// here is this process's parent, if it was started to serve a task of a cluster.
var here = attach()

// host is the parent of a process that was started to serve a request: a worker, or
// whoever drives a program on behalf of a cluster.
type host struct {
	conn  *task.Hosted
	req   *task.Request
	err   error // the request can't be served: why
	calls atomic.Int64

	driving sync.Mutex // held for a call; guards hello and lost
	hello   bool
	lost    error // a call's answer was not waited for
	answers chan *task.Answer
	gang    atomic.Pointer[hostedGang] // takes the answers, if it is set

	undo func() error // takes back what a task did of which nobody is told; may be nil
}

// attach takes the request of a process that was started to serve one. It is done
// before main begins, so that what the request says holds for all of it, and so
// that main never outlives the parent.
func attach() *host {
	conn, ok, err := task.Attach()
	if !ok {
		return nil
	}
	h := &host{conn: conn, err: err, answers: make(chan *task.Answer)}
	if err != nil {
		return h
	}
	if h.req, h.err = conn.Request(); h.err != nil {
		return h
	}
	if h.req.Uploads != nil {
		input.SetUploads(h.req.Uploads) // main looks at its input before it calls Run, perhaps
	}
	go h.listen()
	return h
}

// exitOrphan is the exit code of a process whose parent is gone.
const exitOrphan = 3

// listen takes the parent's answers, and ends the process when the parent is gone.
func (h *host) listen() {
	for {
		answer, err := h.conn.Answer()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintf(os.Stderr, "quern: task of job %s: %v\n", h.req.Job, err)
			}
			os.Exit(exitOrphan)
		}
		if g := h.gang.Load(); g != nil {
			g.answer(answer) // by this goroutine: a round waits for it
			continue
		}
		h.answers <- answer
	}
}

// run stands in for a call of Run: it serves the request, tells the parent of the call, or
// returns what an earlier attempt's call has returned. c is nil if the job is not valid.
func (h *host) run(ctx context.Context, c code, name string, invalid error, opts Options) (*Result, error) {
	call := int(h.calls.Add(1) - 1)
	switch {
	case h.err != nil:
		if h.req == nil && h.conn != nil {
			// The parent waits for a word, and speaks another version perhaps.
			h.finish(&task.Reply{Error: &task.Error{Message: h.err.Error(), Permanent: !errors.Is(h.err, task.ErrSideInput) && !errors.Is(h.err, task.ErrVector)}})
		}
		return nil, h.err
	case call < len(h.req.Earlier):
		return returned(&h.req.Earlier[call])
	case h.req.Kind == task.Drive:
		return h.drive(ctx, call, c, name, invalid, opts)
	case call < h.req.Call:
		h.finish(&task.Reply{Error: &task.Error{
			Message: fmt.Sprintf("call %d of Run is to be served, but the result of call %d was not handed over", h.req.Call, call), Permanent: true,
		}})
	case call > h.req.Call: // another goroutine serves the request, and then the process ends
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if err := h.conn.Reply(&task.Reply{Hello: hello()}); err != nil {
		return nil, h.gone(err)
	}
	if invalid != nil {
		h.finish(&task.Reply{Error: failure(&permanent{invalid})})
	}
	h.finish(h.serve(ctx, c, opts))
	return nil, errors.ErrUnsupported // not reached
}

// finish sends the last message and ends the process.
func (h *host) finish(r *task.Reply) {
	err := h.conn.Reply(r)
	if err != nil && h.undo != nil {
		if failed := h.undo(); failed != nil {
			fmt.Fprintln(os.Stderr, "quern:", failed)
		}
	}
	if errors.Is(err, task.ErrMessage) { // a plan of millions of files, say
		err = h.conn.Reply(&task.Reply{Error: &task.Error{
			Message: fmt.Sprintf("what the %s task has to say is too much: %v; use fewer files or partitions", h.req.Kind, err), Permanent: true,
		}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quern:", h.gone(err))
		os.Exit(exitOrphan)
	}
	os.Exit(0)
}

func (h *host) gone(err error) error {
	return fmt.Errorf("the process that started this task is gone: %w", err)
}

// drive tells the parent of a call and returns what it answers.
func (h *host) drive(ctx context.Context, call int, c code, name string, invalid error, opts Options) (*Result, error) {
	h.driving.Lock()
	defer h.driving.Unlock()
	if h.lost != nil {
		return nil, h.lost
	}
	if !h.hello {
		if err := h.conn.Reply(&task.Reply{Hello: hello()}); err != nil {
			return nil, h.gone(err)
		}
		h.hello = true
	}
	said := &task.Call{Call: call, Job: name}
	if invalid == nil {
		if _, err := newEngine(c, h.options(opts)); err != nil {
			invalid = err
		} else {
			_, invalid = clusterOutput(opts)
		}
	}
	if invalid == nil && h.req.Explain {
		said.Explanation, invalid = explained(ctx, c, h.options(opts))
	}
	if invalid != nil {
		said.Err, said.Cause = invalid.Error(), CauseOf(invalid)
	}
	if err := h.conn.Reply(&task.Reply{Call: said}); err != nil {
		return nil, h.gone(err)
	}
	select {
	case answer := <-h.answers:
		return returned(&answer.CallResult)
	case <-ctx.Done():
		// The answer may still come and would be taken for another call's.
		h.lost = fmt.Errorf("call %d of Run was given up: %w", call, context.Cause(ctx))
		return nil, h.lost
	}
}

// explained is what Explain says of a job, for another process.
func explained(ctx context.Context, c code, opts Options) (json.RawMessage, error) {
	x, err := explain(ctx, c, opts)
	if err != nil {
		return nil, err
	}
	return json.Marshal(x)
}

// returned is what a call returns.
func returned(r *task.CallResult) (*Result, error) {
	if r.Error != "" {
		return nil, ErrorOf(r.Error, r.Cause)
	}
	res := &Result{}
	if err := json.Unmarshal(r.Result, res); err != nil {
		return nil, fmt.Errorf("the result of a job on the cluster: %w", err)
	}
	return res, nil
}

func hello() *task.Hello {
	h := &task.Hello{Protocol: task.Protocol, Version: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return h
	}
	const module = "github.com/quernmr/quern"
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module && m.Version != "" {
			h.Version = m.Version
		}
	}
	return h
}

// options are the program's, with what the worker grants in place of what the
// program would take of a machine for itself. A program that asks for less gets what it asks for.
func (h *host) options(opts Options) Options {
	if h.req.Memory > 0 {
		opts.Memory = granted(opts.Memory, h.req.Memory)
	}
	if h.req.Workers > 0 {
		opts.Workers = granted(opts.Workers, h.req.Workers)
	}
	if h.req.Dir != "" {
		opts.SpillDir = h.req.Dir
	}
	opts.Progress = nil
	return opts
}

// granted is what a task may take of which there is most, and the program asks for asked. 0: it does not say.
func granted[N int | int64](asked, most N) N {
	if asked <= 0 {
		return most
	}
	return min(asked, most)
}

// clusterOutput is the output of a job on a cluster, or why there can be none such job.
func clusterOutput(opts Options) (output.Shared, error) {
	if slices.ContainsFunc(opts.Inputs, func(p string) bool { return p == "-" || p == "/dev/stdin" }) {
		return nil, errors.New("standard input can't be read on a cluster: name files that all workers reach, or upload a local file")
	}
	if opts.Output == nil {
		return nil, errors.New("a job on a cluster needs an output: set Options.Output to a folder that all workers reach (-o)")
	}
	s, ok := opts.Output.(output.Shared)
	if !ok {
		return nil, errors.New("a job on a cluster can't write to standard output, a stream or a function: set Options.Output to a folder that all workers reach (-o)")
	}
	return s, nil
}
