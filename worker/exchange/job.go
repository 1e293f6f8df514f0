// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// opsOf returns the operations of a fold.
func opsOf(c *api.JobConstants) ([]fold.Op, error) {
	n := len(c.GetOps())
	if n < 1 || n > fold.MaxLanes {
		return nil, fmt.Errorf("exchange: a fold of %d lanes; 1 to %d are possible", n, fold.MaxLanes)
	}
	ops := make([]fold.Op, n)
	for i, op := range c.GetOps() {
		if ops[i] = fold.Op(op); ops[i] > fold.Xor {
			return nil, fmt.Errorf("exchange: lane %d has operation %d, which does not exist", i, op)
		}
	}
	return ops, nil
}

// jobSpec makes the specification that sender and receiver of a job's streams
// agree on. What is bounded is part of the job's name among streams: it may differ between
// partitions, and change when a map output does.
func jobSpec(c *api.JobConstants, bound []bool) (s shuffle.JobSpec, err error) {
	if s.Ops, err = opsOf(c); err != nil {
		return s, err
	}
	if len(c.GetId()) != len(s.ID) || len(c.GetSecret()) != len(s.Secret) {
		return s, fmt.Errorf("exchange: an id of %d bytes and a secret of %d; %d and %d are due", len(c.GetId()), len(c.GetSecret()), len(s.ID), len(s.Secret))
	}
	if len(bound) > len(s.Ops) {
		return s, fmt.Errorf("exchange: bounds of %d lanes, the job has %d", len(bound), len(s.Ops))
	}
	s.ID, s.Secret = shuffle.JobID(c.GetId()), [16]byte(c.GetSecret())
	s.Seed = pairs.Seed{A: c.GetSeedA(), B: c.GetSeedB()}
	if c.GetShuffle() != "" {
		if s.Mode, err = shuffle.ParseMode(c.GetShuffle()); err != nil {
			return s, fmt.Errorf("exchange: %w", err)
		}
	}
	if slices.Contains(bound, true) {
		s.Bound = make([]bool, len(s.Ops))
		copy(s.Bound, bound)
		b := make([]byte, len(s.Bound))
		for i, is := range s.Bound {
			if is {
				b[i] = 1
			}
		}
		h := xxh3.Hash128(b).Bytes()
		for i := range s.ID {
			s.ID[i] ^= h[i]
		}
	}
	return s, nil
}

// scaleOf returns a scale as it travels, nil for none.
func scaleOf(b []byte, lanes int) ([]uint8, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) != lanes {
		return nil, fmt.Errorf("exchange: scales of %d lanes, the job has %d", len(b), lanes)
	}
	return b, nil
}

// partitionOf returns the partition of the shuffle that a part of the output is made
// from: a total order cuts all parts from one.
func partitionOf(c *api.JobConstants, part uint32) uint32 {
	if c.GetPartitions() <= 1 {
		return 0
	}
	return part
}

// openJob is a job that something is gathered for.
type openJob struct {
	spec shuffle.JobSpec
	refs int // guarded by the exchange's lock

	mu      sync.Mutex // held while the receiver is told to open or drop anything of it
	targets map[uint32]openTarget
}

type openTarget struct {
	generation uint32
	keys       [wire.Classes + 1]uint64
}

// acquire opens a job at the receiver. It waits while there is no room.
func (x *Exchange) acquire(ctx context.Context, spec shuffle.JobSpec) (*openJob, error) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		x.mu.Lock()
		j, free := x.jobs[spec.ID], x.free
		if j == nil && len(x.jobs) >= x.opts.Jobs {
			x.mu.Unlock()
			select {
			case <-free:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			continue
		}
		if j == nil {
			j = &openJob{spec: spec, targets: map[uint32]openTarget{}}
			x.jobs[spec.ID] = j
		}
		j.refs++
		x.mu.Unlock()
		j.mu.Lock()
		err := x.opts.Receiver.OpenJob(ctx, spec)
		j.mu.Unlock()
		if err == nil {
			return j, nil
		}
		if e := x.release(j); e != nil || !errors.Is(err, shuffle.ErrBusy) {
			return nil, errors.Join(err, e)
		}
		if !pause(ctx, wait) {
			return nil, context.Cause(ctx)
		}
	}
}

// release gives a job back; the last one to do so drops it.
func (x *Exchange) release(j *openJob) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	x.mu.Lock()
	j.refs--
	last := j.refs == 0
	x.mu.Unlock()
	if !last {
		return nil
	}
	// Whoever wants the job meanwhile finds it and waits for its lock.
	err := x.opts.Receiver.Drop(context.Background(), j.spec.ID)
	x.mu.Lock()
	defer x.mu.Unlock()
	if j.refs == 0 {
		delete(x.jobs, j.spec.ID)
		close(x.free)
		x.free = make(chan struct{})
	}
	if err != nil {
		return fmt.Errorf("exchange: drop job %s: %w", j.spec.ID, err)
	}
	return nil
}

// target opens a target. It waits while there is no room.
func (x *Exchange) target(ctx context.Context, j *openJob, spec shuffle.TargetSpec) error {
	id := spec.ID
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		j.mu.Lock()
		if have, ok := j.targets[id.Partition]; ok && have.generation > id.Generation {
			j.mu.Unlock()
			return fmt.Errorf("exchange: %s: a later attempt of this part has begun here", id)
		}
		err := x.opts.Receiver.OpenJob(ctx, j.spec) // it may have been dropped
		if err == nil {
			err = x.opts.Receiver.OpenTarget(ctx, spec)
		}
		if err == nil {
			j.targets[id.Partition] = openTarget{id.Generation, spec.Keys}
		}
		j.mu.Unlock()
		if err == nil || !errors.Is(err, shuffle.ErrBusy) {
			return err
		}
		if !pause(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// drop ends a target.
func (x *Exchange) drop(j *openJob, id shuffle.TargetID) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if have, ok := j.targets[id.Partition]; ok && have.generation <= id.Generation {
		delete(j.targets, id.Partition)
	}
	if err := x.opts.Receiver.DropTarget(context.Background(), id); err != nil {
		return fmt.Errorf("exchange: drop %s: %w", id, err)
	}
	return nil
}

// guard stands between senders and the receiver.
type guard struct{ x *Exchange }

// job returns a job that is gathered for, locked.
func (g *guard) job(id shuffle.JobID) (*openJob, error) {
	g.x.mu.Lock()
	j := g.x.jobs[id]
	g.x.mu.Unlock()
	if j != nil {
		j.mu.Lock()
		g.x.mu.Lock()
		open := j.refs > 0
		g.x.mu.Unlock()
		if open {
			return j, nil
		}
		j.mu.Unlock()
	}
	return nil, fmt.Errorf("exchange: nothing is gathered here for job %s (any more): %w", id, shuffle.ErrRefused)
}

func (g *guard) Endpoint(ctx context.Context) (shuffle.Endpoint, error) {
	return g.x.opts.Receiver.Endpoint(ctx)
}

func (g *guard) OpenJob(ctx context.Context, spec shuffle.JobSpec) error {
	j, err := g.job(spec.ID)
	if err != nil {
		return err
	}
	defer j.mu.Unlock()
	return g.x.opts.Receiver.OpenJob(ctx, spec)
}

func (g *guard) OpenTarget(ctx context.Context, spec shuffle.TargetSpec) error {
	j, err := g.job(spec.ID.Job)
	if err != nil {
		return err
	}
	defer j.mu.Unlock()
	t, ok := j.targets[spec.ID.Partition]
	if !ok || t.generation != spec.ID.Generation || spec.Dense != 0 {
		return fmt.Errorf("exchange: %s is not gathered here (any more): %w", spec.ID, shuffle.ErrRefused)
	}
	spec.Keys = t.keys
	return g.x.opts.Receiver.OpenTarget(ctx, spec)
}

func (g *guard) Open(ctx context.Context, streams []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	return g.x.opts.Receiver.Open(ctx, streams)
}

func (g *guard) Status(ctx context.Context, streams []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	return g.x.opts.Receiver.Status(ctx, streams)
}

func (g *guard) Deliver(ctx context.Context, stream shuffle.StreamID, frames [][]byte) error {
	return g.x.opts.Receiver.Deliver(ctx, stream, frames)
}

func (g *guard) Confirm(ctx context.Context, streams []shuffle.StreamID) error {
	return g.x.opts.Receiver.Confirm(ctx, streams)
}
