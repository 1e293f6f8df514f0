// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// Server offers a shuffle.Control to clients.
type Server struct {
	shufflepb.UnimplementedControlServer
	control shuffle.Control
}

// NewServer makes a server that answers with control.
func NewServer(control shuffle.Control) *Server { return &Server{control: control} }

// Register has a gRPC server offer it.
func (s *Server) Register(r grpc.ServiceRegistrar) { shufflepb.RegisterControlServer(r, s) }

// Endpoint implements the service.
func (s *Server) Endpoint(ctx context.Context, _ *shufflepb.EndpointRequest) (*shufflepb.EndpointReply, error) {
	e, err := s.control.Endpoint(ctx)
	if err != nil {
		return nil, pack(err)
	}
	return packEndpoint(&e), nil
}

// done makes the answer of calls that return an error alone.
func done(err error) (*shufflepb.Done, error) {
	if err != nil {
		return nil, pack(err)
	}
	return &shufflepb.Done{}, nil
}

// OpenJob implements the service.
func (s *Server) OpenJob(ctx context.Context, in *shufflepb.JobSpec) (*shufflepb.Done, error) {
	job, err := unpackJob(in)
	if err == nil {
		err = s.control.OpenJob(ctx, job)
	}
	return done(err)
}

// OpenTarget implements the service.
func (s *Server) OpenTarget(ctx context.Context, in *shufflepb.TargetSpec) (*shufflepb.Done, error) {
	target, err := unpackTargetSpec(in)
	if err == nil {
		err = s.control.OpenTarget(ctx, target)
	}
	return done(err)
}

// Open implements the service.
func (s *Server) Open(ctx context.Context, in *shufflepb.OpenRequest) (*shufflepb.OpenReply, error) {
	specs, err := unpackSpecs(in)
	if err != nil {
		return nil, pack(err)
	}
	grants, err := s.control.Open(ctx, specs)
	if err != nil {
		return nil, pack(err)
	}
	out := &shufflepb.OpenReply{}
	for _, g := range grants {
		out.Grants = append(out.Grants, &shufflepb.Grant{Slot: g.Slot, Token: g.Token, Share: uint32(g.Share), Claimed: g.Claimed, Done: g.Done})
	}
	return out, nil
}

// Status implements the service.
func (s *Server) Status(ctx context.Context, in *shufflepb.StreamList) (*shufflepb.StatusReply, error) {
	ids, err := unpackStreams(in)
	if err != nil {
		return nil, pack(err)
	}
	list, err := s.control.Status(ctx, ids)
	if err != nil {
		return nil, pack(err)
	}
	out := &shufflepb.StatusReply{}
	for _, st := range list {
		out.Streams = append(out.Streams, &shufflepb.StreamStatus{Complete: st.Complete, Claimed: st.Claimed})
	}
	return out, nil
}

// Confirm implements the service.
func (s *Server) Confirm(ctx context.Context, in *shufflepb.StreamList) (*shufflepb.Done, error) {
	ids, err := unpackStreams(in)
	if err == nil {
		err = s.control.Confirm(ctx, ids)
	}
	return done(err)
}

// maxFrame bounds what a frame in pieces may add up to: a pair with the longest key.
const maxFrame = pairs.MaxKey + 8<<10

// Deliver implements the service.
func (s *Server) Deliver(in grpc.ClientStreamingServer[shufflepb.Delivery, shufflepb.Done]) error {
	var id shuffle.StreamID
	var large []byte
	for first := true; ; first = false {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			switch {
			case first:
				return pack(malformed("no stream is named"))
			case large != nil:
				return pack(malformed("a frame ends after %d bytes", len(large)))
			}
			return in.SendAndClose(&shufflepb.Done{})
		}
		if err != nil {
			return err
		}
		if first {
			if id, err = unpackStream(m.GetStream()); err != nil {
				return pack(err)
			}
		}
		frames := m.GetFrames()
		if len(m.GetPiece()) > 0 || m.GetLast() {
			if len(large)+len(m.GetPiece()) > maxFrame {
				return pack(malformed("a frame of more than %d bytes", maxFrame))
			}
			if large = append(large, m.GetPiece()...); m.GetLast() {
				frames, large = append(frames, large), nil
			}
		}
		if first || len(frames) > 0 {
			if err := s.control.Deliver(in.Context(), id, frames); err != nil {
				return pack(err)
			}
		}
	}
}
