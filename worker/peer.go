// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// peer is what other workers, and the master, ask of this one.
type peer struct {
	api.UnimplementedPeerServer
	w *Worker
}

// checkCaller lets masters and workers in, and nobody else. Without TLS there is no telling.
func checkCaller(ctx context.Context) error {
	role, err := identity.Role(ctx)
	switch {
	case errors.Is(err, identity.ErrAnonymous):
		return nil
	case err != nil:
		return status.Errorf(codes.Unauthenticated, "the caller's certificate: %v", err)
	case role != identity.Worker && role != identity.Master:
		return status.Errorf(codes.PermissionDenied, "a %s asks nothing of a worker: ask the master", role)
	}
	return nil
}

func unaryCaller(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := checkCaller(ctx); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func streamCaller(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := checkCaller(s.Context()); err != nil {
		return err
	}
	return next(srv, s)
}

// settle is how long is waited for an output whose result is being offered: the master
// may tell others of it before it has told this worker. Peers wait longer for a sign of life.
const settle = 10 * time.Second

// settle waits until the outputs of attempts that are being offered are kept, or are not.
func (w *Worker) settle(ctx context.Context, at ...*api.Attempt) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for _, k := range at {
		w.mu.Lock()
		a := w.attempts[keyOf(k)]
		w.mu.Unlock()
		if a == nil {
			continue
		}
		select {
		case <-a.over:
		case <-ctx.Done():
			return
		}
	}
}

func attemptsOf(outputs []*api.MapOutput) []*api.Attempt {
	all := make([]*api.Attempt, len(outputs))
	for i, o := range outputs {
		all[i] = o.GetAttempt()
	}
	return all
}

func (p *peer) Push(r *api.PushRequest, s grpc.ServerStreamingServer[api.PushReply]) error {
	p.w.settle(s.Context(), attemptsOf(r.GetOutputs())...)
	return p.w.ex.Push(r, s)
}

func (p *peer) Fetch(r *api.FetchRequest, s grpc.ServerStreamingServer[api.FetchBlock]) error {
	p.w.settle(s.Context(), r.GetAttempt())
	return p.w.ex.Fetch(r, s)
}

// logChunk is the most bytes of a log in a message.
const logChunk = 256 << 10

func (p *peer) Log(r *api.LogsRequest, s grpc.ServerStreamingServer[api.LogChunk]) error {
	for _, l := range p.w.logs.find(r) {
		text := l.log.Bytes()
		for first := true; first || len(text) > 0; first = false {
			n := min(len(text), logChunk)
			if err := s.Send(&api.LogChunk{Attempt: l.attempt, Worker: p.w.id, Text: text[:n]}); err != nil {
				return err
			}
			text = text[n:]
		}
	}
	return nil
}
