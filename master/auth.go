// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// callTimeout bounds calls that come without a deadline of their own. Streams have none:
// they end with their job or worker, or with the connection.
const callTimeout = time.Minute

type userKey struct{}

// userOf is the name of the token that a call came with; "" without tokens.
func userOf(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

// admit says whether a call may be made, and returns a context that knows by whom.
func (m *Master) admit(ctx context.Context, method string) (context.Context, error) {
	role := RoleClient
	if strings.HasPrefix(method, "/"+api.Attendance_ServiceDesc.ServiceName+"/") {
		role = RoleWorker
	}
	if m.opts.Authorize != nil {
		if err := m.opts.Authorize(ctx, role); err != nil {
			m.log.Warn("a call is refused", "method", method, "from", caller(ctx), "error", err)
			return nil, status.Errorf(codes.PermissionDenied, "%v", err)
		}
	}
	if role == RoleWorker {
		return ctx, nil
	}
	name, err := m.user(ctx)
	if err != nil {
		m.log.Warn("a call is refused", "method", method, "from", caller(ctx), "error", err)
		return nil, err
	}
	return context.WithValue(ctx, userKey{}, name), nil
}

// user finds whose token a call has.
func (m *Master) user(ctx context.Context) (string, error) {
	if len(m.opts.Tokens) == 0 {
		if !local(ctx) {
			return "", status.Error(codes.Unauthenticated, "the master has no tokens, and takes calls from its own machine only: give it tokens to be reached from others")
		}
		return "", nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "bearer") {
			continue
		}
		// Every token is compared, and digests of one length, so that the time tells nothing.
		given, found := sha256.Sum256([]byte(strings.TrimSpace(token))), ""
		for name, t := range m.opts.Tokens {
			if want := sha256.Sum256([]byte(t)); subtle.ConstantTimeCompare(given[:], want[:]) == 1 {
				found = name
			}
		}
		if found != "" {
			return found, nil
		}
		return "", status.Error(codes.Unauthenticated, "the token is none of the master's: ask its operator for one")
	}
	return "", status.Error(codes.Unauthenticated, "the master wants a token: give yours by --token or QUERN_TOKEN")
}

func caller(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// local says whether a call comes from this machine.
func local(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return false
	}
	switch a := p.Addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return p.Addr.Network() == "bufconn"
}

func (m *Master) guardUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := m.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return next(ctx, req)
}

type knownStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s knownStream) Context() context.Context { return s.ctx }

func (m *Master) guardStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := m.admit(s.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, knownStream{s, ctx})
}
