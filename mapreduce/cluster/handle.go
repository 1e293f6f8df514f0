// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// Handle is a job of a cluster. Its methods may be called from several goroutines.
type Handle struct {
	client *Client
	job    string
	ended  func(*mapreduce.Result, error) // is told how it ended; may be nil
	once   sync.Once

	here   bool // it was run in this process, with this result
	result *mapreduce.Result
	err    error
}

// Job returns the handle of a job by its id, or the beginning of one. Whether
// there is such a job is found when it is asked for something.
func (c *Client) Job(id string) *Handle { return &Handle{client: c, job: id} }

// ID returns the job's id.
func (h *Handle) ID() string { return h.job }

// watchIdle is how long a stream may be silent until it is asked for anew: the other
// machine may be gone without a word.
const watchIdle = 20 * time.Second

// Ended says whether a state is one that does not change any more.
func Ended(s api.JobState) bool {
	switch s {
	case api.JobState_JOB_DONE, api.JobState_JOB_FAILED, api.JobState_JOB_CANCELLED:
		return true
	}
	return false
}

// Wait returns when the job has ended, and tells progress (if it is not nil) of every status on the
// way. While the master can't be reached it waits and tries again, until ctx ends; the
// job goes on whatever happens here. The error of a job that failed or was cancelled is a *JobError.
func (h *Handle) Wait(ctx context.Context, progress func(*api.JobStatus)) (*mapreduce.Result, error) {
	if h.here {
		return h.result, h.err
	}
	result, known, err := h.wait(ctx, progress)
	if h.ended != nil && known {
		h.once.Do(func() { h.ended(result, err) })
	}
	return result, err
}

// wait does the work of Wait; known says that the job has ended.
func (h *Handle) wait(ctx context.Context, progress func(*api.JobStatus)) (_ *mapreduce.Result, known bool, err error) {
	c := h.client
	lost := false
	for wait := newBackoff(); ; {
		last, err := h.watch(ctx, func(s *api.JobStatus) {
			lost = false
			wait.reset()
			if progress != nil {
				progress(s)
			}
		})
		switch {
		case last != nil:
			result, err := resultOf(last)
			return result, true, err
		case ctx.Err() != nil:
			return nil, false, context.Cause(ctx)
		case errors.Is(err, errSilent):
			continue
		case err != nil && !transient(err) && !errors.Is(err, io.EOF):
			return nil, false, c.explain(ctx, err, ErrUnknownJob)
		}
		if !lost && c.options.Lost != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the connection was closed")
			}
			c.options.Lost(c.explain(ctx, err, nil))
		}
		lost = true
		if !wait.sleep(ctx) {
			return nil, false, context.Cause(ctx)
		}
	}
}

// errSilent ends a stream that says nothing.
var errSilent = errors.New("silence")

// watch follows a job by one stream. It returns the last status of a job that has ended.
func (h *Handle) watch(ctx context.Context, progress func(*api.JobStatus)) (*api.JobStatus, error) {
	ctx, cancel := context.WithCancelCause(h.client.with(ctx))
	defer cancel(nil)
	idle := time.AfterFunc(watchIdle, func() { cancel(errSilent) })
	defer idle.Stop()
	stream, err := h.client.rpc.Watch(ctx, &api.WatchRequest{Job: h.job})
	for err == nil {
		var s *api.JobStatus
		if s, err = stream.Recv(); err != nil {
			break
		}
		idle.Reset(watchIdle)
		progress(s)
		if Ended(s.GetState()) {
			return s, nil
		}
	}
	if errors.Is(context.Cause(ctx), errSilent) {
		return nil, errSilent
	}
	return nil, err
}

// resultOf is what Wait returns for a job that has ended.
func resultOf(s *api.JobStatus) (*mapreduce.Result, error) {
	if s.GetState() != api.JobState_JOB_DONE {
		return nil, &JobError{s}
	}
	result := &mapreduce.Result{Job: s.GetName()}
	if len(s.GetResult()) > 0 {
		if err := json.Unmarshal(s.GetResult(), result); err != nil {
			return nil, fmt.Errorf("%w: the result of job %s can't be read: %w", ErrVersion, s.GetJob(), err)
		}
	}
	return result, nil
}

// Status returns how far the job is.
func (h *Handle) Status(ctx context.Context) (*api.JobStatus, error) {
	if h.here {
		return nil, errors.New("a task of a job can't ask the cluster for anything")
	}
	var s *api.JobStatus
	err := h.client.try(ctx, ErrUnknownJob, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := h.client.rpc.Watch(ctx, &api.WatchRequest{Job: h.job})
		if err != nil {
			return err
		}
		s, err = stream.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: the master says nothing about job %s", ErrVersion, h.job)
		}
		return err
	})
	return s, err
}

// Cancel ends the job and returns its status. A job that has ended stays as it is.
func (h *Handle) Cancel(ctx context.Context, reason string) (*api.JobStatus, error) {
	if h.here {
		return nil, errors.New("a task of a job can't ask the cluster for anything")
	}
	var s *api.JobStatus
	err := h.client.try(ctx, ErrUnknownJob, func(ctx context.Context) error {
		reply, err := h.client.rpc.Cancel(ctx, &api.CancelRequest{Job: h.job, Reason: reason})
		s = reply.GetJob()
		return err
	})
	return s, err
}

// Logs gives to show what attempts of the job wrote to standard output and error, as far as their
// workers are still there. task is "map 3", "reduce 0" or such, or "" for all.
func (h *Handle) Logs(ctx context.Context, task string, failedOnly bool, show func(*api.LogChunk) error) error {
	return receive(ctx, h, func(ctx context.Context) (receiver[api.LogChunk], error) {
		return h.client.rpc.Logs(ctx, &api.LogsRequest{Job: h.job, Task: task, FailedOnly: failedOnly})
	}, show)
}

// Tasks gives to show the attempts of the job, a page at a time.
func (h *Handle) Tasks(ctx context.Context, failedOnly bool, show func(*api.TasksPage) error) error {
	return receive(ctx, h, func(ctx context.Context) (receiver[api.TasksPage], error) {
		return h.client.rpc.Tasks(ctx, &api.TasksRequest{Job: h.job, FailedOnly: failedOnly})
	}, show)
}

type receiver[T any] interface{ Recv() (*T, error) }

// receive shows all that a stream gives. What was shown is not taken back, so it is repeated only
// until there was something.
func receive[T any](ctx context.Context, h *Handle, open func(context.Context) (receiver[T], error), show func(*T) error) error {
	if h.here {
		return errors.New("a task of a job can't ask the cluster for anything")
	}
	ctx, cancel := context.WithCancel(h.client.with(ctx))
	defer cancel()
	shown := false
	for again := h.client.newRetry(); ; {
		stream, err := open(ctx)
		for err == nil {
			var message *T
			if message, err = stream.Recv(); err == nil {
				shown = true
				if err := show(message); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if shown || !again.after(ctx, err) {
			return h.client.explain(ctx, err, ErrUnknownJob)
		}
	}
}

// Jobs lists at most limit jobs (0: as many as the master gives), newest first: those that run and, unless
// runningOnly, those that have ended. before, if not "", is the id of the job behind which
// the list begins.
func (c *Client) Jobs(ctx context.Context, limit int, runningOnly bool, before string) ([]*api.JobStatus, error) {
	var jobs []*api.JobStatus
	err := c.try(ctx, ErrUnknownJob, func(ctx context.Context) error {
		reply, err := c.rpc.Jobs(ctx, &api.JobsRequest{Limit: uint32(max(0, limit)), RunningOnly: runningOnly, Before: before})
		jobs = reply.GetJobs()
		return err
	})
	return jobs, err
}

// Workers lists the workers.
func (c *Client) Workers(ctx context.Context) ([]*api.WorkerStatus, error) {
	var workers []*api.WorkerStatus
	err := c.try(ctx, nil, func(ctx context.Context) error {
		reply, err := c.rpc.Workers(ctx, &api.WorkersRequest{})
		workers = reply.GetWorkers()
		return err
	})
	return workers, err
}

// Drain has a worker, by id or name, finish what it does and leave.
func (c *Client) Drain(ctx context.Context, worker string) error {
	return c.try(ctx, ErrUnknownWorker, func(ctx context.Context) error {
		_, err := c.rpc.Drain(ctx, &api.DrainRequest{Worker: worker})
		return err
	})
}
