// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
)

// progressEvery is how often Gather.Progress is told something, if there is news.
const progressEvery = 250 * time.Millisecond

// Waits after a map output could not be had, doubling.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

// gathering is one call of Gather.
type gathering struct {
	x     *Exchange
	g     *Gather
	in    *api.ReduceInput
	part  uint32 // of the shuffle
	where *locations

	kernel, user, pulled atomic.Int64
	gathered             int64 // pairs in the runs

	reports sync.Mutex // of Lost
}

// Gather brings the input of a reduce attempt here, as runs in g.Dir, which belong to the
// caller. It waits for map outputs that are lost until g.Moved says where they are now; only
// errors of this worker, of the values (ErrPermanent) or of a map output that has changed
// (ErrChanged) end it. Nothing of it is left when it returns, but those runs.
func (x *Exchange) Gather(ctx context.Context, g Gather) (_ *Gathered, err error) {
	if g.Input == nil || g.Constants == nil || g.Attempt == nil {
		return nil, errors.New("exchange: a gathering without attempt, input or constants")
	}
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(ctx)
	s := &gathering{x: x, g: &g, in: g.Input, part: partitionOf(g.Constants, g.Input.GetPart()), where: newLocations(g.Input.GetOutputs())}
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel(nil)
	if g.Moved != nil {
		beside.Go(func() {
			if err := s.where.follow(ctx, g.Moved); err != nil {
				cancel(err)
			}
		})
	}
	beside.Go(func() { s.progress(ctx) })
	var runs []task.RunFile
	folded := !g.Input.GetPull() && !g.Constants.GetGrouped()
	if folded {
		if runs, err = s.push(ctx); errors.Is(err, errPull) {
			x.log.Info("a part is fetched, since some of it can't be sent in frames", "job", g.Attempt.GetJob(), "part", g.Input.GetPart(), "error", err)
			folded = false
			s.kernel.Store(0)
			s.user.Store(0)
		}
	}
	if !folded {
		runs, err = s.pull(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("gather part %d: %w", g.Input.GetPart(), err)
	}
	return &Gathered{Runs: runs, Folded: folded, Pairs: s.gathered, Counts: s.counts()}, nil
}

func (s *gathering) counts() Counts {
	return Counts{Kernel: s.kernel.Load(), User: s.user.Load(), Pulled: s.pulled.Load()}
}

func (s *gathering) progress(ctx context.Context) {
	if s.g.Progress == nil {
		return
	}
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	var last Counts
	for {
		select {
		case <-t.C:
			if c := s.counts(); c != last {
				s.g.Progress(c)
				last = c
			}
		case <-ctx.Done():
			return
		}
	}
}

// lost tells that an output could not be had, and what that means for the next try.
func (s *gathering) lost(out *api.MapOutput, err error) {
	if s.g.Lost == nil {
		return
	}
	l := &api.OutputLost{
		Reader: s.g.Attempt, MapTask: out.GetTask(), Output: out.GetAttempt(), Worker: out.GetWorker(), Error: err.Error(),
		Damaged: errors.Is(err, errDamaged), Gone: errors.Is(err, errGone),
	}
	s.x.log.Warn("a map output is not to be had", "job", s.g.Attempt.GetJob(), "map", out.GetTask(), "worker", out.GetWorker(), "error", err)
	s.reports.Lock()
	defer s.reports.Unlock()
	s.g.Lost(l)
}

// isSelf says whether an output is this worker's own.
func (x *Exchange) isSelf(out *api.MapOutput) bool {
	return x.opts.Worker != "" && out.GetWorker() == x.opts.Worker
}

// locations say where map outputs are to be had now.
type locations struct {
	mu      sync.Mutex
	outputs map[uint32]*api.MapOutput
	changed chan struct{} // closed, and made anew, when one has moved
}

func newLocations(list []*api.MapOutput) *locations {
	l := &locations{outputs: map[uint32]*api.MapOutput{}, changed: make(chan struct{})}
	for _, o := range list {
		l.outputs[o.GetTask()] = o
	}
	return l
}

// of returns where an output is, and what is closed when anything has moved.
func (l *locations) of(task uint32) (*api.MapOutput, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outputs[task], l.changed
}

// follow takes in what has moved until ctx ends, or an output has changed.
func (l *locations) follow(ctx context.Context, moved <-chan *api.MapOutput) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case o, ok := <-moved:
			if !ok {
				return nil
			}
			if err := l.move(o); err != nil {
				return err
			}
		}
	}
}

func (l *locations) move(o *api.MapOutput) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.outputs[o.GetTask()]
	if old == nil {
		return nil // nothing of this part's
	}
	if o.GetDigest() != old.GetDigest() || o.GetPairs() != old.GetPairs() {
		return fmt.Errorf("%w: map task %d had %d pairs for it, and has %d now (digests %#x and %#x)", ErrChanged, o.GetTask(), old.GetPairs(), o.GetPairs(), old.GetDigest(), o.GetDigest())
	}
	l.outputs[o.GetTask()] = o
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// list returns the outputs that hold pairs.
func (l *locations) list(in *api.ReduceInput) (tasks []uint32, pairs int64) {
	for _, o := range in.GetOutputs() {
		if o.GetPairs() > 0 {
			tasks = append(tasks, o.GetTask())
			pairs += o.GetPairs()
		}
	}
	return tasks, pairs
}

// backoff is the wait after so many failures in a row.
func backoff(failures int) time.Duration {
	return min(firstWait<<min(max(failures-1, 0), 10), lastWait)
}
