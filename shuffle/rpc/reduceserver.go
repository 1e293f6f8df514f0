// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// ReduceServer offers a shuffle.ReduceControl to clients.
type ReduceServer struct {
	shufflepb.UnimplementedReduceControlServer
	control shuffle.ReduceControl
}

// NewReduceServer makes a server that answers with control.
func NewReduceServer(control shuffle.ReduceControl) *ReduceServer {
	return &ReduceServer{control: control}
}

// Register has a gRPC server offer it.
func (s *ReduceServer) Register(r grpc.ServiceRegistrar) {
	shufflepb.RegisterReduceControlServer(r, s)
}

// ReduceEndpoint implements the service.
func (s *ReduceServer) ReduceEndpoint(ctx context.Context, _ *shufflepb.EndpointRequest) (*shufflepb.EndpointReply, error) {
	e, err := s.control.ReduceEndpoint(ctx)
	if err != nil {
		return nil, pack(err)
	}
	return packEndpoint(&e), nil
}

// OpenGroup implements the service.
func (s *ReduceServer) OpenGroup(ctx context.Context, in *shufflepb.GroupSpec) (*shufflepb.GroupGrant, error) {
	spec, err := unpackGroup(in)
	if err != nil {
		return nil, pack(err)
	}
	g, err := s.control.OpenGroup(ctx, spec)
	if err != nil {
		return nil, pack(err)
	}
	return &shufflepb.GroupGrant{Kernel: g.Kernel}, nil
}

// GroupStatus implements the service.
func (s *ReduceServer) GroupStatus(ctx context.Context, in *shufflepb.GroupRequest) (*shufflepb.GroupStatusReply, error) {
	g, err := s.control.GroupStatus(ctx, in.GetToken())
	if err != nil {
		return nil, pack(err)
	}
	return &shufflepb.GroupStatusReply{Calls: g.Calls, Waiting: g.Waiting, Broken: shorten(g.Broken), Results: g.Results}, nil
}

// BreakGroup implements the service.
func (s *ReduceServer) BreakGroup(ctx context.Context, in *shufflepb.BreakRequest) (*shufflepb.Done, error) {
	return done(s.control.BreakGroup(ctx, in.GetToken(), shorten(in.GetReason())))
}

// CloseGroup implements the service.
func (s *ReduceServer) CloseGroup(ctx context.Context, in *shufflepb.GroupRequest) (*shufflepb.Done, error) {
	return done(s.control.CloseGroup(ctx, in.GetToken()))
}
