// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// BroadcastServer offers a shuffle.BroadcastControl to clients.
type BroadcastServer struct {
	shufflepb.UnimplementedBroadcastControlServer
	control shuffle.BroadcastControl
}

// NewBroadcastServer makes a server that answers with control.
func NewBroadcastServer(control shuffle.BroadcastControl) *BroadcastServer {
	return &BroadcastServer{control: control}
}

// Register has a gRPC server offer it.
func (s *BroadcastServer) Register(r grpc.ServiceRegistrar) {
	shufflepb.RegisterBroadcastControlServer(r, s)
}

// BroadcastEndpoint implements the service.
func (s *BroadcastServer) BroadcastEndpoint(ctx context.Context, _ *shufflepb.EndpointRequest) (*shufflepb.EndpointReply, error) {
	e, err := s.control.BroadcastEndpoint(ctx)
	if err != nil {
		return nil, pack(err)
	}
	return packEndpoint(&e), nil
}

// OpenRegion implements the service.
func (s *BroadcastServer) OpenRegion(ctx context.Context, in *shufflepb.RegionSpec) (*shufflepb.RegionGrant, error) {
	spec, err := unpackRegion(in)
	if err != nil {
		return nil, pack(err)
	}
	g, err := s.control.OpenRegion(ctx, spec)
	if err != nil {
		return nil, pack(err)
	}
	return &shufflepb.RegionGrant{Have: g.Have, Kernel: g.Kernel}, nil
}

// Relink implements the service.
func (s *BroadcastServer) Relink(ctx context.Context, in *shufflepb.RelinkRequest) (*shufflepb.Done, error) {
	next, err := unpackAddress(in.GetNext())
	if err == nil {
		err = s.control.Relink(ctx, in.GetToken(), next)
	}
	return done(err)
}

// Missing implements the service.
func (s *BroadcastServer) Missing(ctx context.Context, in *shufflepb.MissingRequest) (*shufflepb.GapList, error) {
	gaps, err := s.control.Missing(ctx, in.GetToken(), in.GetFirst(), in.GetTotal())
	if err != nil {
		return nil, pack(err)
	}
	return packGaps(gaps), nil
}

// ConfirmMessage implements the service.
func (s *BroadcastServer) ConfirmMessage(ctx context.Context, in *shufflepb.ConfirmRequest) (*shufflepb.ConfirmReply, error) {
	// A caller of this version waits for long enough after that.
	waited, cancel := context.WithTimeout(ctx, min(time.Duration(in.GetWaitMs())*time.Millisecond, time.Minute))
	defer cancel()
	err := s.control.ConfirmMessage(waited, in.GetToken(), in.GetFirst())
	switch {
	case err == nil:
		return &shufflepb.ConfirmReply{Confirmed: true}, nil
	case waited.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return &shufflepb.ConfirmReply{}, nil
	}
	return nil, pack(err)
}

// CloseRegion implements the service.
func (s *BroadcastServer) CloseRegion(ctx context.Context, in *shufflepb.CloseRequest) (*shufflepb.Done, error) {
	return done(s.control.CloseRegion(ctx, in.GetToken(), in.GetWhole()))
}
