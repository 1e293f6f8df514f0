// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/pairs"
)

// maxStreams bounds splits x partitions: for each pair of them there is a manifest in
// the master's memory, and something to be sent.
const maxStreams = 1 << 22

// serve does what the request wants of the job and returns the last message.
func (h *host) serve(ctx context.Context, c code, opts Options) *task.Reply {
	reply, err := h.dispatch(ctx, c, h.options(opts))
	if err != nil {
		f := failure(err)
		f.Cause = withoutScratch(f.Cause, h.req.Dir)
		if f.Stack != "" {
			fmt.Fprintf(os.Stderr, "%s\n%s\n", f.Message, f.Stack) // for the attempt's log
		}
		return &task.Reply{Error: f}
	}
	return reply
}

func (h *host) dispatch(ctx context.Context, c code, opts Options) (*task.Reply, error) {
	target, err := clusterOutput(opts)
	if err != nil {
		return nil, &permanent{err}
	}
	e, err := newEngine(c, opts)
	if err != nil {
		return nil, &permanent{err}
	}
	missing := func(what string) error {
		return &permanent{fmt.Errorf("a request for a %s task without %s", h.req.Kind, what)}
	}
	if h.req.Dir == "" && (h.req.Kind == task.Map || h.req.Kind == task.Reduce || h.req.Kind == task.Plan && len(e.t.sides) > 0) {
		return nil, missing("a folder")
	}
	switch h.req.Kind {
	case task.Plan:
		e.setPhase("plan")
		defer h.report(e, 0)()
		r, err := e.planTask(ctx, target, h.req)
		if err == nil {
			h.undo = func() error { return target.Discard(r.Ticket) }
		}
		return &task.Reply{Plan: r}, err
	case task.Map:
		if h.req.Map == nil {
			return nil, missing("a split")
		}
		if err := e.attachSides(h.req); err != nil {
			return nil, err
		}
		e.live = &e.moved
		defer h.report(e, 0)()
		if (e.t.iter != nil) != (h.req.Gang != nil) {
			return nil, &permanent{errors.New("this run of the program comes to another kind of job than the one that was planned: what a program asks for must follow from its arguments alone")}
		}
		if e.t.iter != nil {
			r, err := h.gangTask(ctx, e, h.req)
			return &task.Reply{Map: r}, err
		}
		r, err := e.mapTask(ctx, h.req)
		return &task.Reply{Map: r}, err
	case task.Reduce:
		if h.req.Reduce == nil {
			return nil, missing("a part")
		}
		if err := e.attachSides(h.req); err != nil {
			return nil, err
		}
		defer h.report(e, h.req.Reduce.Pairs)()
		r, err := e.reduceTask(ctx, h.req, target)
		return &task.Reply{Reduce: r}, err
	case task.Commit:
		if h.req.Commit == nil {
			return nil, missing("parts")
		}
		e.setPhase("commit")
		defer h.report(e, 0)()
		r, err := e.commitTask(h.req, target)
		return &task.Reply{Commit: r}, err
	case task.Abort:
		return &task.Reply{Commit: &task.CommitResult{}}, e.abortTask(h.req, target)
	}
	return nil, &permanent{fmt.Errorf("a request for a task of kind %q, which this version of the library does not know", h.req.Kind)}
}

// report sends progress until the function it returns is called. pairs is how many a
// reduce task will take in.
func (h *host) report(e *engine, pairs int64) func() {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(task.ProgressEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if h.conn.Reply(&task.Reply{Progress: e.progress(pairs)}) != nil {
					return // listen ends the process
				}
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// progress says how far a task is. Mapping is taken for four fifths of a map task, and
// writing its run for the rest.
func (e *engine) progress(pairs int64) *task.Progress {
	p := &task.Progress{
		Phase: *e.phase.Load(), Bytes: e.bytes.Load() + e.sideBytes.Load(), Records: max(e.records.Load(), e.moved.Load()),
		Pairs: e.pairs.Load(), Rows: e.rows.Load(),
	}
	share := func(n, of int64) float64 {
		if of <= 0 {
			return 0
		}
		return min(1, float64(n)/float64(of))
	}
	if i := e.iteration.Load(); i != nil {
		p.Round, p.Rounds = i.Round, i.Rounds
	}
	switch {
	case e.live == nil: // no map task
		p.Records, p.Pairs = 0, e.moved.Load()
		p.Done = share(p.Pairs, pairs)
	case p.Phase == phaseRounds:
		p.Done = 0.2 + 0.7*share(int64(p.Round), int64(p.Rounds))
	case p.Phase == phaseLoad:
		p.Done = 0.2 * share(p.Bytes, e.total.Load())
	case p.Phase == "map":
		p.Done = 0.8 * share(p.Bytes, e.total.Load())
	case p.Phase == "write":
		p.Done = 0.8 + 0.2*share(p.Rows, e.total.Load())
	}
	return p
}

// planTask finds the input, reads the side inputs and prepares the output.
func (e *engine) planTask(ctx context.Context, target output.Shared, req *task.Request) (*task.PlanResult, error) {
	plan, err := input.Discover(ctx, e.opts.Inputs, e.opts.Input)
	if err != nil {
		return nil, &readError{err}
	}
	e.plan = plan
	for i := range plan.Files {
		// Files without a size may be of /proc, which can be read again at least.
		if f := &plan.Files[i]; f.Size < 0 {
			if info, err := os.Stat(f.Path); err == nil && !info.Mode().IsRegular() {
				return nil, &permanent{fmt.Errorf("input: %s is no regular file: a pipe or device can be read only once and on one machine, so save it as a file first", f.Path)}
			}
		}
	}
	if int64(len(plan.Splits))*int64(e.opts.Partitions) > maxStreams {
		return nil, &permanent{fmt.Errorf("%d splits and %d partitions: their product is over %d; use fewer partitions or larger splits", len(plan.Splits), e.opts.Partitions, maxStreams)}
	}
	packed, err := plan.Pack()
	if err != nil {
		return nil, err
	}
	sides, err := e.leaveSides(ctx, req.Dir, req.SideInputsLimit)
	if err != nil {
		return nil, err
	}
	ticket, err := target.Prepare(e.info(), req.Job)
	if err != nil {
		return nil, &permanent{&outputError{err}}
	}
	r := &task.PlanResult{
		Name: e.t.name, Grouped: e.t.grouped, Suffix: e.t.suffix, Partitions: e.opts.Partitions,
		TotalOrder: e.ordered(), Files: len(plan.Files), Bytes: plan.TotalBytes, Exact: plan.Exact,
		Plan: packed, Ticket: ticket, Notes: append(plan.Notes, e.notes...), Why: e.explain(plan), SideInputs: sides,
		Splits: make([]task.SplitInfo, len(plan.Splits)),
	}
	for _, op := range e.t.ops {
		r.Ops = append(r.Ops, uint8(op))
	}
	for i, s := range plan.Splits {
		r.Splits[i].Bytes = s.Bytes
		if len(s.Files) > 0 {
			r.Splits[i].Path = plan.Files[s.Files[0]].Path
		}
	}
	if e.t.iter != nil {
		r.Gang = shareOut(plan.Splits, req.Members)
		r.Gang.Rounds = e.t.iter.limit()
		r.Splits = gangSplits(r.Gang, r.Splits)
	}
	return r, nil
}

// ordered says whether parts are cut from one sequence by a sample.
func (e *engine) ordered() bool { return e.opts.TotalOrder && e.opts.Partitions > 1 }

// constants takes over what is the same for all tasks of a job, and refuses a
// program that was planned with other options.
func (e *engine) constants(c task.Constants) error {
	if c.Parts != e.opts.Partitions || c.Partitions != e.partitions() {
		return &permanent{fmt.Errorf("this run of the program asks for %d parts of %d partitions, the job was planned with %d of %d: what a program asks for must follow from its arguments alone",
			e.opts.Partitions, e.partitions(), c.Parts, c.Partitions)}
	}
	e.seed = pairs.Seed{A: c.Seed[0], B: c.Seed[1]}
	return nil
}

// abortTask removes what the job has left of its output. Without a ticket no plan was accepted, and
// an attempt at one may have prepared the output all the same.
func (e *engine) abortTask(req *task.Request, target output.Shared) error {
	ticket := req.Ticket
	if len(ticket) == 0 {
		// For the same job it is the same place, and made if it is not there.
		var err error
		ticket, err = target.Prepare(e.info(), req.Job)
		switch {
		case errors.Is(err, output.ErrExists), errors.Is(err, output.ErrOverlap), errors.Is(err, output.ErrTarget):
			return nil // it is refused before there is a place
		case err != nil:
			return err
		}
	}
	return target.Discard(ticket)
}

// commitTask publishes the output.
func (e *engine) commitTask(req *task.Request, target output.Shared) (*task.CommitResult, error) {
	a := &Audit{PairsEmitted: req.Commit.Audit.PairsEmitted, Keys: req.Commit.Audit.Keys, Rows: req.Commit.Audit.Rows}
	if len(req.Commit.Parts) != e.opts.Partitions {
		return nil, &permanent{fmt.Errorf("a commit of %d parts of a job of %d", len(req.Commit.Parts), e.opts.Partitions)}
	}
	done, err := success(e.t.name, e.opts.Partitions, a)
	if err != nil {
		return nil, err
	}
	notes, err := target.Publish(e.info(), req.Ticket, req.Commit.Parts, done)
	if err != nil {
		return nil, &outputError{err}
	}
	return &task.CommitResult{Notes: notes}, nil
}
