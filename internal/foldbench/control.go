// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"sync"

	"github.com/quernmr/quern/shuffle"
)

// The control plane between the two ends of streams: net/rpc over a socket of
// the file system, which reaches from one network namespace to another.

// controlService is the name that its methods are registered under.
const controlService = "Control"

// controlServer answers for a receiver.
type controlServer struct{ c shuffle.Control }

// ControlDelivery is what Deliver takes.
type ControlDelivery struct {
	Stream shuffle.StreamID
	Frames [][]byte
}

func (s *controlServer) Endpoint(_ *None, out *shuffle.Endpoint) (err error) {
	*out, err = s.c.Endpoint(context.Background())
	return err
}

func (s *controlServer) OpenJob(in *shuffle.JobSpec, _ *None) error {
	return s.c.OpenJob(context.Background(), *in)
}

func (s *controlServer) OpenTarget(in *shuffle.TargetSpec, _ *None) error {
	return s.c.OpenTarget(context.Background(), *in)
}

func (s *controlServer) Open(in *[]shuffle.StreamSpec, out *[]shuffle.Grant) (err error) {
	*out, err = s.c.Open(context.Background(), *in)
	return err
}

func (s *controlServer) Status(in *[]shuffle.StreamID, out *[]shuffle.StreamStatus) (err error) {
	*out, err = s.c.Status(context.Background(), *in)
	return err
}

func (s *controlServer) Deliver(in *ControlDelivery, _ *None) error {
	return s.c.Deliver(context.Background(), in.Stream, in.Frames)
}

func (s *controlServer) Confirm(in *[]shuffle.StreamID, _ *None) error {
	return s.c.Confirm(context.Background(), *in)
}

// serveControl answers until the listener is closed.
func serveControl(l net.Listener, c shuffle.Control) error {
	server := rpc.NewServer()
	if err := server.RegisterName(controlService, &controlServer{c}); err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(conn)
		}
	}()
	return nil
}

// controlClient asks a receiver in another process. As a cluster's would, it opens
// a job and a target once, not for every push.
type controlClient struct {
	*rpc.Client
	endpoint func() (shuffle.Endpoint, error)
	mu       sync.Mutex
	opened   map[any]bool // jobs and targets
}

var _ shuffle.Control = (*controlClient)(nil)

func dialControl(path string) (*controlClient, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	c := &controlClient{Client: rpc.NewClient(conn), opened: map[any]bool{}}
	c.endpoint = sync.OnceValues(func() (e shuffle.Endpoint, err error) {
		err = c.call(context.Background(), "Endpoint", &None{}, &e)
		return e, err
	})
	return c, nil
}

// once calls open unless that was done for id before.
func (c *controlClient) once(id any, open func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened[id] {
		return nil
	}
	err := open()
	c.opened[id] = err == nil
	return err
}

func (c *controlClient) call(ctx context.Context, method string, in, out any) error {
	select {
	case call := <-c.Go(controlService+"."+method, in, out, make(chan *rpc.Call, 1)).Done:
		if call.Error != nil {
			return fmt.Errorf("%s: %w", method, call.Error)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *controlClient) Endpoint(context.Context) (e shuffle.Endpoint, err error) {
	return c.endpoint()
}

func (c *controlClient) OpenJob(ctx context.Context, job shuffle.JobSpec) error {
	return c.once(job.ID, func() error { return c.call(ctx, "OpenJob", &job, &None{}) })
}

func (c *controlClient) OpenTarget(ctx context.Context, target shuffle.TargetSpec) error {
	return c.once(target.ID, func() error { return c.call(ctx, "OpenTarget", &target, &None{}) })
}

func (c *controlClient) Open(ctx context.Context, streams []shuffle.StreamSpec) (grants []shuffle.Grant, err error) {
	err = c.call(ctx, "Open", &streams, &grants)
	return grants, err
}

func (c *controlClient) Status(ctx context.Context, streams []shuffle.StreamID) (list []shuffle.StreamStatus, err error) {
	err = c.call(ctx, "Status", &streams, &list)
	return list, err
}

func (c *controlClient) Deliver(ctx context.Context, stream shuffle.StreamID, frames [][]byte) error {
	return c.call(ctx, "Deliver", &ControlDelivery{stream, frames}, &None{})
}

func (c *controlClient) Confirm(ctx context.Context, streams []shuffle.StreamID) error {
	return c.call(ctx, "Confirm", &streams, &None{})
}
