// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

const (
	// confirmWait is how long a member may keep a question whether a message is confirmed. A
	// connection on which nothing goes for longer is cut by some networks, and nobody notices.
	confirmWait = 5 * time.Second
	// confirmGrace is how much later its answer may come.
	confirmGrace = 20 * time.Second
)

// broadcastClient is a shuffle.BroadcastControl at a server elsewhere.
type broadcastClient struct {
	c           shufflepb.BroadcastControlClient
	target      string
	wait, grace time.Duration
}

// NewBroadcastClient returns a BroadcastControl that asks the server at the other end of
// conn, which stays its owner's. It may be used by many goroutines at once.
func NewBroadcastClient(conn *grpc.ClientConn) shuffle.BroadcastControl {
	return &broadcastClient{shufflepb.NewBroadcastControlClient(timely{conn}), nameOf(conn.Target()), confirmWait, confirmGrace}
}

func (c *broadcastClient) err(method string, err error) error { return unpack(c.target, method, err) }

// BroadcastEndpoint implements shuffle.BroadcastControl.
func (c *broadcastClient) BroadcastEndpoint(ctx context.Context) (shuffle.Endpoint, error) {
	e, err := c.c.BroadcastEndpoint(ctx, &shufflepb.EndpointRequest{})
	if err != nil {
		return shuffle.Endpoint{}, c.err("BroadcastEndpoint", err)
	}
	return unpackEndpoint(e), nil
}

// OpenRegion implements shuffle.BroadcastControl.
func (c *broadcastClient) OpenRegion(ctx context.Context, spec shuffle.RegionSpec) (shuffle.RegionGrant, error) {
	g, err := c.c.OpenRegion(ctx, packRegion(&spec))
	return shuffle.RegionGrant{Have: g.GetHave(), Kernel: g.GetKernel()}, c.err("OpenRegion", err)
}

// Relink implements shuffle.BroadcastControl.
func (c *broadcastClient) Relink(ctx context.Context, token uint64, next netip.AddrPort) error {
	_, err := c.c.Relink(ctx, &shufflepb.RelinkRequest{Token: token, Next: packAddress(next)})
	return c.err("Relink", err)
}

// Missing implements shuffle.BroadcastControl.
func (c *broadcastClient) Missing(ctx context.Context, token uint64, first, total uint32) ([]shuffle.Gap, error) {
	l, err := c.c.Missing(ctx, &shufflepb.MissingRequest{Token: token, First: first, Total: total})
	if err != nil {
		return nil, c.err("Missing", err)
	}
	gaps, err := unpackGaps(l, first, total)
	return gaps, c.err("Missing", err)
}

// ConfirmMessage implements shuffle.BroadcastControl. It asks again and again.
func (c *broadcastClient) ConfirmMessage(ctx context.Context, token uint64, first uint32) error {
	ask := func() (bool, error) {
		asked, cancel := context.WithTimeout(ctx, c.wait+c.grace)
		defer cancel()
		r, err := c.c.ConfirmMessage(asked, &shufflepb.ConfirmRequest{Token: token, First: first, WaitMs: uint32(c.wait / time.Millisecond)})
		if err != nil && asked.Err() != nil && ctx.Err() == nil {
			err = status.Errorf(codes.Unavailable, "no answer within %v", c.wait+c.grace)
		}
		return r.GetConfirmed(), err
	}
	for {
		if confirmed, err := ask(); confirmed || err != nil {
			return c.err("ConfirmMessage", err)
		}
	}
}

// CloseRegion implements shuffle.BroadcastControl.
func (c *broadcastClient) CloseRegion(ctx context.Context, token uint64, whole bool) error {
	_, err := c.c.CloseRegion(ctx, &shufflepb.CloseRequest{Token: token, Whole: whole})
	return c.err("CloseRegion", err)
}
