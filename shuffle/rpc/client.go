// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// pieceBytes is about how many bytes of frames one message of Deliver has.
const pieceBytes = 1 << 20

// Reconnect has a connection whose receiver is away tried again within a second, not
// within two minutes: senders wait for it.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: 5 * time.Second,
	})
}

// client is a shuffle.Control at a server elsewhere.
type client struct {
	c      shufflepb.ControlClient
	target string
}

// NewClient returns a Control that asks the server at the other end of conn,
// which stays its owner's. It may be used by many goroutines at once.
func NewClient(conn *grpc.ClientConn) shuffle.Control {
	return &client{shufflepb.NewControlClient(timely{conn}), nameOf(conn.Target())}
}

func (c *client) err(method string, err error) error { return unpack(c.target, method, err) }

// Endpoint implements shuffle.Control.
func (c *client) Endpoint(ctx context.Context) (shuffle.Endpoint, error) {
	e, err := c.c.Endpoint(ctx, &shufflepb.EndpointRequest{})
	if err != nil {
		return shuffle.Endpoint{}, c.err("Endpoint", err)
	}
	return unpackEndpoint(e), nil
}

// OpenJob implements shuffle.Control.
func (c *client) OpenJob(ctx context.Context, job shuffle.JobSpec) error {
	_, err := c.c.OpenJob(ctx, packJob(&job))
	return c.err("OpenJob", err)
}

// OpenTarget implements shuffle.Control.
func (c *client) OpenTarget(ctx context.Context, target shuffle.TargetSpec) error {
	_, err := c.c.OpenTarget(ctx, packTargetSpec(&target))
	return c.err("OpenTarget", err)
}

// Open implements shuffle.Control.
func (c *client) Open(ctx context.Context, streams []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	out, err := c.c.Open(ctx, packSpecs(streams))
	if err != nil {
		return nil, c.err("Open", err)
	}
	if len(out.GetGrants()) != len(streams) {
		return nil, fmt.Errorf("shuffle control at %s: %d grants for %d streams", c.target, len(out.GetGrants()), len(streams))
	}
	grants := make([]shuffle.Grant, len(streams))
	for i, g := range out.GetGrants() {
		grants[i] = shuffle.Grant{Slot: g.GetSlot(), Token: g.GetToken(), Share: int(min(g.GetShare(), 1<<30)), Claimed: g.GetClaimed(), Done: g.GetDone()}
	}
	return grants, nil
}

// Status implements shuffle.Control.
func (c *client) Status(ctx context.Context, streams []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	out, err := c.c.Status(ctx, packStreams(streams))
	if err != nil {
		return nil, c.err("Status", err)
	}
	if len(out.GetStreams()) != len(streams) {
		return nil, fmt.Errorf("shuffle control at %s: status of %d streams for %d", c.target, len(out.GetStreams()), len(streams))
	}
	list := make([]shuffle.StreamStatus, len(streams))
	for i, s := range out.GetStreams() {
		list[i] = shuffle.StreamStatus{Complete: s.GetComplete(), Claimed: s.GetClaimed()}
	}
	return list, nil
}

// Deliver implements shuffle.Control. After an error some of the frames may have arrived.
func (c *client) Deliver(ctx context.Context, stream shuffle.StreamID, frames [][]byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := c.c.Deliver(ctx)
	if err != nil {
		return c.err("Deliver", err)
	}
	err = deliver(out.Send, &shufflepb.Delivery{Stream: packStream(&stream)}, frames)
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the server has answered, CloseAndRecv says what
		return c.err("Deliver", err)
	}
	_, err = out.CloseAndRecv()
	return c.err("Deliver", err)
}

// Confirm implements shuffle.Control.
func (c *client) Confirm(ctx context.Context, streams []shuffle.StreamID) error {
	_, err := c.c.Confirm(ctx, packStreams(streams))
	return c.err("Confirm", err)
}

// deliver sends frames as messages of about pieceBytes, beginning with m.
func deliver(send func(*shufflepb.Delivery) error, m *shufflepb.Delivery, frames [][]byte) error {
	size := 0
	flush := func() error {
		err := send(m)
		m, size = &shufflepb.Delivery{}, 0
		return err
	}
	for _, f := range frames {
		if len(m.Frames) > 0 && size+len(f) > pieceBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if len(f) <= pieceBytes {
			m.Frames = append(m.Frames, f)
			size += len(f)
			continue
		}
		for len(f) > 0 {
			n := min(len(f), pieceBytes)
			m.Piece, f = f[:n], f[n:]
			m.Last = len(f) == 0
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if m.Stream == nil && len(m.Frames) == 0 {
		return nil
	}
	return flush()
}
