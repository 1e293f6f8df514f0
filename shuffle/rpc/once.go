// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"

	"github.com/quernmr/quern/shuffle"
)

// Once returns a Control that asks c for its endpoint, and opens each job and target,
// once and not for every output: for who pushes many outputs to one receiver. After
// an error, which may be a receiver that has begun anew, it does so again.
func Once(c shuffle.Control) shuffle.Control { return &onceControl{Control: c} }

type onceControl struct {
	shuffle.Control
	mu       sync.Mutex
	endpoint *shuffle.Endpoint
	opened   map[any]bool
}

func (c *onceControl) Endpoint(ctx context.Context) (shuffle.Endpoint, error) {
	c.mu.Lock()
	e := c.endpoint
	c.mu.Unlock()
	if e != nil {
		return *e, nil
	}
	got, err := c.Control.Endpoint(ctx)
	if err == nil {
		c.mu.Lock()
		c.endpoint = &got
		c.mu.Unlock()
	}
	return got, err
}

// forget has everything opened again after an error.
func (c *onceControl) forget(err error) error {
	if err != nil {
		c.mu.Lock()
		c.opened, c.endpoint = nil, nil
		c.mu.Unlock()
	}
	return err
}

func (c *onceControl) once(id any, open func() error) error {
	c.mu.Lock()
	have := c.opened[id]
	c.mu.Unlock()
	if have {
		return nil
	}
	if err := open(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened == nil {
		c.opened = map[any]bool{}
	}
	c.opened[id] = true
	return nil
}

func (c *onceControl) OpenJob(ctx context.Context, job shuffle.JobSpec) error {
	return c.once(job.ID, func() error { return c.Control.OpenJob(ctx, job) })
}

func (c *onceControl) OpenTarget(ctx context.Context, t shuffle.TargetSpec) error {
	return c.once(t.ID, func() error { return c.Control.OpenTarget(ctx, t) })
}

func (c *onceControl) Open(ctx context.Context, streams []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	g, err := c.Control.Open(ctx, streams)
	return g, c.forget(err)
}

func (c *onceControl) Status(ctx context.Context, streams []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	s, err := c.Control.Status(ctx, streams)
	return s, c.forget(err)
}

func (c *onceControl) Deliver(ctx context.Context, stream shuffle.StreamID, frames [][]byte) error {
	return c.forget(c.Control.Deliver(ctx, stream, frames))
}

func (c *onceControl) Confirm(ctx context.Context, streams []shuffle.StreamID) error {
	return c.forget(c.Control.Confirm(ctx, streams))
}
