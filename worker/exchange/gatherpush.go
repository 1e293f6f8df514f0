// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/shuffle/spill"
	"github.com/quernmr/quern/shuffle/wire"
)

// maxTries is how often a target is begun, at most.
const maxTries = 8

const (
	// maxCalls is how many calls to workers push to one target at once.
	maxCalls = 64
	// maxOutputs is how many outputs one call asks for: a message has bounds.
	maxOutputs = 1000
)

// errPull says that a map output can't travel in frames.
var errPull = errors.New("it has to be fetched")

// errAgain marks errors after which a target is begun anew.
var errAgain = errors.New("the target has to be begun anew")

// push has workers push what they have to a target of the own receiver, and writes what was
// folded there as a run.
func (s *gathering) push(ctx context.Context) (_ []task.RunFile, err error) {
	tasks, pairs := s.where.list(s.in)
	if s.in.GetPairs() != pairs {
		return nil, fmt.Errorf("exchange: the map outputs hold %d pairs, %d are expected", pairs, s.in.GetPairs())
	}
	if len(tasks) == 0 {
		return nil, nil
	}
	if s.in.GetGeneration() >= 1<<24 {
		return nil, fmt.Errorf("exchange: generation %d; at most %d are possible", s.in.GetGeneration(), 1<<24-1)
	}
	spec, err := jobSpec(s.g.Constants, s.in.GetBound())
	if err != nil {
		return nil, err
	}
	scale, err := scaleOf(s.in.GetScale(), len(spec.Ops))
	if err != nil {
		return nil, err
	}
	r := s.x.opts.Receiver
	if spec.Mode == shuffle.KernelOnly {
		e, err := r.Endpoint(ctx)
		if err != nil {
			return nil, err
		}
		if !e.Kernel {
			return nil, fmt.Errorf("exchange: the job wants its pairs folded in the kernel, which this worker can't; `quern doctor` says what is missing, --shuffle auto does without: %w", ErrPermanent)
		}
	}
	job, err := s.x.acquire(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.x.release(job)) }()
	target := shuffle.TargetSpec{}
	if len(s.in.GetKeys()) <= wire.Classes+1 {
		copy(target.Keys[:], s.in.GetKeys())
	}
	audits := 0
	for try := range maxTries {
		target.ID = shuffle.TargetID{Job: spec.ID, Partition: s.part, Generation: s.in.GetGeneration()<<8 | uint32(try)}
		path := filepath.Join(s.g.Dir, fmt.Sprintf("folded-%d.run", try))
		err = s.fold(ctx, job, target, tasks, path)
		if err == nil {
			return []task.RunFile{{Path: path, Scale: scale}}, nil
		}
		if e := os.Remove(path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		if ctx.Err() != nil || !errors.Is(err, errAgain) {
			return nil, err
		}
		if errors.Is(err, receive.ErrAudit) {
			// Sums that are wrong twice are so in what was to be expected.
			if audits++; audits == 2 {
				return nil, err
			}
		}
		s.x.log.Warn("a target is begun anew", "target", target.ID.String(), "try", try+1, "error", err)
		if !pause(ctx, backoff(try)) {
			break
		}
	}
	return nil, err
}

// fold tries once: it opens the target, has everything pushed to it, and writes the run.
func (s *gathering) fold(ctx context.Context, job *openJob, target shuffle.TargetSpec, tasks []uint32, path string) (err error) {
	s.kernel.Store(0)
	s.user.Store(0)
	if err := s.x.target(ctx, job, target); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.x.drop(job, target.ID)) }()
	expect, err := s.pushAll(ctx, target.ID, tasks)
	if err != nil {
		return err
	}
	res, err := s.x.opts.Receiver.Finish(ctx, target.ID, expect)
	if err != nil {
		return finishError(ctx, err)
	}
	s.gathered, err = writeResult(ctx, res, path)
	if err == nil {
		s.kernel.Store(int64(res.Kernel))
		s.user.Store(int64(res.User))
	}
	return errors.Join(finishError(ctx, err), res.Close())
}

// finishError says which errors of Finish and of reading its result are mended by
// sending everything again: all but those of the values.
func finishError(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, receive.ErrClosed) || errors.Is(err, errWrite):
		return err
	case errors.Is(err, receive.ErrOverflow):
		return fmt.Errorf("%w: %w", ErrPermanent, err)
	}
	return fmt.Errorf("%w: %w", errAgain, err)
}

// errWrite marks errors of this worker's disk.
var errWrite = errors.New("the input of a reduce task can't be written here")

// writeResult writes a result as a run of folded pairs, and returns how many those are.
func writeResult(ctx context.Context, res *receive.Result, path string) (pairs int64, err error) {
	w, err := spill.Create(path, fold.RunOptions)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errWrite, err)
	}
	defer w.Abort()
	var payload []byte
	for rng := range res.Ranges() {
		err := res.EachCarried(ctx, rng, func(key []byte, lanes, carry []int64) error {
			payload = fold.AppendValue(payload[:0], lanes, carry)
			if err := w.Append(0, key, payload); err != nil {
				return fmt.Errorf("%w: %w", errWrite, err)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	run, err := w.Close()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errWrite, err)
	}
	return run.Pairs(), run.Close()
}

// pushing is the state of an output on its way to a target.
type pushing struct {
	done     bool
	call     int // that it is part of; 0: none
	at       *api.MapOutput
	failures int
	after    time.Time // not to be tried before
}

// event is what a call to a worker tells.
type event struct {
	call  int
	reply *api.PushReply // nil: the call has ended
	err   error
}

// pushAll has all outputs pushed to a target, and returns what is to be there then.
func (s *gathering) pushAll(parent context.Context, id shuffle.TargetID, tasks []uint32) (expect receive.Expect, err error) {
	ctx, cancel := context.WithCancel(parent)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	lanes := len(s.g.Constants.GetOps())
	expect.SumAbs = make([]commit.Total, lanes)
	if c := s.in.GetCheck(); len(c) > 0 {
		expect.Check = c
	}
	state := make(map[uint32]*pushing, len(tasks))
	for _, t := range tasks {
		state[t] = &pushing{}
	}
	left := len(tasks)
	events := make(chan event)
	members := map[int][]uint32{} // of calls that run
	next := 0
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	var changed <-chan struct{}
	var timer <-chan time.Time
	look := true // whether there may be outputs to ask for
	for left > 0 {
		if look {
			_, changed = s.where.of(0)
			ready, wake := s.ready(state, tasks, maxCalls-len(members))
			for _, outs := range ready {
				next++
				call := next
				for _, o := range outs {
					state[o.GetTask()].call = call
					members[call] = append(members[call], o.GetTask())
				}
				calls.Go(func() {
					err := s.callPush(ctx, id, outs, func(r *api.PushReply) {
						select {
						case events <- event{call: call, reply: r}:
						case <-ctx.Done():
						}
					})
					select {
					case events <- event{call: call, err: err}:
					case <-ctx.Done():
					}
				})
			}
			timer = nil
			if wake >= 0 {
				timer = time.After(wake)
			}
		}
		look = true
		var e event
		select {
		case e = <-events:
		case <-changed:
			continue
		case <-timer:
			continue
		case <-ticker.C:
			if t, err := s.x.opts.Receiver.Totals(id); err == nil {
				s.kernel.Store(int64(t.Kernel))
				s.user.Store(int64(t.User))
			}
			look = false
			continue
		case <-ctx.Done():
			return expect, context.Cause(ctx)
		}
		fail := func(t uint32, err error) {
			p := state[t]
			if p.done || p.call != e.call {
				return
			}
			p.call = 0
			p.failures++
			p.after = time.Now().Add(backoff(p.failures))
			s.lost(p.at, err)
		}
		if e.reply == nil {
			if e.err == nil {
				e.err = errors.New("the worker did not answer for it")
			}
			for _, t := range members[e.call] {
				fail(t, e.err)
			}
			delete(members, e.call)
			continue
		}
		p := state[e.reply.GetMapTask()]
		switch r := e.reply; {
		case p == nil || p.done:
		case r.GetError() == "":
			if expect, err = addReply(expect, r, lanes); err != nil {
				return expect, err
			}
			p.done = true
			left--
			look = false
		case r.GetPull():
			return expect, fmt.Errorf("exchange: map task %d at %s: %w: %s", r.GetMapTask(), p.at.GetWorker(), errPull, r.GetError())
		case r.GetFatal():
			return expect, fmt.Errorf("exchange: map task %d at %s: %w: %s", r.GetMapTask(), p.at.GetWorker(), ErrPermanent, r.GetError())
		case r.GetReset_():
			if p.call == e.call { // else it is a call whose worker was given up
				return expect, fmt.Errorf("exchange: map task %d at %s: %w: %s", r.GetMapTask(), p.at.GetWorker(), errAgain, r.GetError())
			}
		default:
			err := errors.New(r.GetError())
			if r.GetGone() {
				err = fmt.Errorf("%w: %w", errGone, err)
			}
			if r.GetDamaged() {
				err = fmt.Errorf("%w: %w", errDamaged, err)
			}
			fail(r.GetMapTask(), err)
		}
	}
	return expect, nil
}

// ready returns outputs to ask for now, in at most so many calls, each to one worker, and
// how long to wait until there may be more, -1 for ever.
func (s *gathering) ready(state map[uint32]*pushing, tasks []uint32, most int) (calls [][]*api.MapOutput, wake time.Duration) {
	wake = -1
	index := map[string]int{} // of a worker's last call
	now := time.Now()
	for _, t := range tasks {
		p := state[t]
		if p.done {
			continue
		}
		at, _ := s.where.of(t)
		if at != p.at { // also if a call is under way, which may hang
			p.at, p.call, p.failures, p.after = at, 0, 0, time.Time{}
		}
		if p.call != 0 || at.GetAddress() == "" && !s.x.isSelf(at) {
			continue
		}
		if d := p.after.Sub(now); d > 0 {
			if wake < 0 || d < wake {
				wake = d
			}
			continue
		}
		key := at.GetWorker() + "\x00" + at.GetAddress()
		i, ok := index[key]
		if !ok || len(calls[i]) == maxOutputs {
			if len(calls) >= most {
				continue // until a call has ended
			}
			i = len(calls)
			index[key] = i
			calls = append(calls, nil)
		}
		calls[i] = append(calls[i], at)
	}
	return calls, wake
}

// addReply adds what a complete output brought to what is expected.
func addReply(e receive.Expect, r *api.PushReply, lanes int) (receive.Expect, error) {
	e.Streams += int(r.GetStreams())
	e.Pairs += uint64(r.GetPairs())
	s := r.GetSumAbs()
	if len(s) != 2*lanes {
		return e, fmt.Errorf("exchange: map task %d: sums of %d words for %d lanes", r.GetMapTask(), len(s), lanes)
	}
	for i := range e.SumAbs {
		e.SumAbs[i] = e.SumAbs[i].Add(commit.Total{Hi: s[2*i], Lo: s[2*i+1]})
	}
	return e, nil
}

// callPush asks a worker to push outputs, and tells its answers.
func (s *gathering) callPush(ctx context.Context, id shuffle.TargetID, outs []*api.MapOutput, tell func(*api.PushReply)) error {
	req := &api.PushRequest{
		Constants: s.g.Constants, Partition: id.Partition, Generation: id.Generation, Scale: s.in.GetScale(), Bound: s.in.GetBound(),
		Outputs: outs, Receiver: s.x.opts.Address,
	}
	if s.x.isSelf(outs[0]) {
		return s.x.push(ctx, req, rpc.Once(s.x.guard), netip.Addr{}, func(r *api.PushReply) error {
			if !r.GetAlive() {
				tell(r)
			}
			return nil
		})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := s.x.opts.Dial(ctx, outs[0].GetAddress())
	if err != nil {
		return fmt.Errorf("exchange: reach worker %s at %s: %w", outs[0].GetWorker(), outs[0].GetAddress(), err)
	}
	silent := fmt.Errorf("exchange: worker %s at %s has said nothing for %v", outs[0].GetWorker(), outs[0].GetAddress(), s.x.opts.Stall)
	watch := time.AfterFunc(s.x.opts.Stall, func() { cancel(silent) })
	defer watch.Stop()
	stream, err := api.NewPeerClient(conn).Push(ctx, req, grpc.MaxCallRecvMsgSize(maxMessage))
	for err == nil {
		var r *api.PushReply
		if r, err = stream.Recv(); err == nil {
			watch.Reset(s.x.opts.Stall)
			if !r.GetAlive() {
				tell(r)
			}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("exchange: push by worker %s at %s: %w", outs[0].GetWorker(), outs[0].GetAddress(), err)
}

// maxMessage bounds what a peer sends at once: a block with the largest pair.
const maxMessage = maxBlock + 1<<20
