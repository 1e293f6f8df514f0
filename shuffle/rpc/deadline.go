// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// deadlineSlack is how long before a call's deadline an end of it is taken for the deadline's.
const deadlineSlack = time.Second

// timely is a connection on which a call whose time is up ends with DeadlineExceeded, whichever
// end's clock noticed first. A gRPC server counts the time as well, and when it is first it resets
// the stream, which its client can't tell from a call that was canceled. The call's context has
// ended when Invoke returns so.
type timely struct{ grpc.ClientConnInterface }

// Invoke makes a call with one answer.
func (c timely) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	s, _ := status.FromError(err)
	if s.Code() != codes.Canceled && s.Code() != codes.DeadlineExceeded || len(s.Details()) > 0 {
		return err // details: what ended it was the receiver's, see failure.go
	}
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > deadlineSlack {
		return err
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}
