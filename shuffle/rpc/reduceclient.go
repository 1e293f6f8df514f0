// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// reduceClient is a shuffle.ReduceControl at a server elsewhere.
type reduceClient struct {
	c      shufflepb.ReduceControlClient
	target string
}

// NewReduceClient returns a ReduceControl that asks the server at the other end of
// conn, which stays its owner's. It may be used by many goroutines at once.
func NewReduceClient(conn *grpc.ClientConn) shuffle.ReduceControl {
	return &reduceClient{shufflepb.NewReduceControlClient(timely{conn}), nameOf(conn.Target())}
}

func (c *reduceClient) err(method string, err error) error { return unpack(c.target, method, err) }

// ReduceEndpoint implements shuffle.ReduceControl.
func (c *reduceClient) ReduceEndpoint(ctx context.Context) (shuffle.Endpoint, error) {
	e, err := c.c.ReduceEndpoint(ctx, &shufflepb.EndpointRequest{})
	if err != nil {
		return shuffle.Endpoint{}, c.err("ReduceEndpoint", err)
	}
	return unpackEndpoint(e), nil
}

// OpenGroup implements shuffle.ReduceControl.
func (c *reduceClient) OpenGroup(ctx context.Context, spec shuffle.GroupSpec) (shuffle.GroupGrant, error) {
	g, err := c.c.OpenGroup(ctx, packGroup(&spec))
	return shuffle.GroupGrant{Kernel: g.GetKernel()}, c.err("OpenGroup", err)
}

// GroupStatus implements shuffle.ReduceControl.
func (c *reduceClient) GroupStatus(ctx context.Context, token uint64) (shuffle.GroupStatus, error) {
	s, err := c.c.GroupStatus(ctx, &shufflepb.GroupRequest{Token: token})
	return shuffle.GroupStatus{Calls: s.GetCalls(), Waiting: s.GetWaiting(), Broken: s.GetBroken(), Results: s.GetResults()}, c.err("GroupStatus", err)
}

// BreakGroup implements shuffle.ReduceControl.
func (c *reduceClient) BreakGroup(ctx context.Context, token uint64, reason string) error {
	_, err := c.c.BreakGroup(ctx, &shufflepb.BreakRequest{Token: token, Reason: shorten(reason)})
	return c.err("BreakGroup", err)
}

// CloseGroup implements shuffle.ReduceControl.
func (c *reduceClient) CloseGroup(ctx context.Context, token uint64) error {
	_, err := c.c.CloseGroup(ctx, &shufflepb.GroupRequest{Token: token})
	return c.err("CloseGroup", err)
}
