// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// maxText keeps an error's text, which may quote what was sent, from growing
// beyond what headers may hold.
const maxText = 2 << 10

// kinds are the errors that keep their identity across the wire.
var kinds = []struct {
	err  error
	code codes.Code
	flag func(*shufflepb.Failure) *bool
}{
	{shuffle.ErrReset, codes.Aborted, func(f *shufflepb.Failure) *bool { return &f.Reset_ }},
	{shuffle.ErrUnknown, codes.NotFound, func(f *shufflepb.Failure) *bool { return &f.Unknown }},
	{shuffle.ErrRefused, codes.FailedPrecondition, func(f *shufflepb.Failure) *bool { return &f.Refused }},
	{shuffle.ErrBusy, codes.ResourceExhausted, func(f *shufflepb.Failure) *bool { return &f.Busy }},
	{shuffle.ErrDigest, codes.DataLoss, func(f *shufflepb.Failure) *bool { return &f.Digest }},
	{context.Canceled, codes.Canceled, func(f *shufflepb.Failure) *bool { return &f.Canceled }},
	{context.DeadlineExceeded, codes.DeadlineExceeded, func(f *shufflepb.Failure) *bool { return &f.Deadline }},
}

// shorten returns a text as it may travel.
func shorten(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// pack makes a status of an error.
func pack(err error) error {
	if err == nil {
		return nil
	}
	f := &shufflepb.Failure{}
	code := codes.Unknown
	for i := len(kinds) - 1; i >= 0; i-- {
		if errors.Is(err, kinds[i].err) {
			*kinds[i].flag(f), code = true, kinds[i].code
		}
	}
	s := status.New(code, shorten(err.Error()))
	if code != codes.Unknown {
		if with, err := s.WithDetails(f); err == nil {
			s = with
		}
	}
	return s.Err()
}

// remoteError is an error of the other side: its text, and the kinds that
// errors.Is shall find.
type remoteError struct {
	text  string
	kinds []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.kinds }

// nameOf returns what people know the server of a connection's target by: of "passthrough:///host:port" the
// host and port alone.
func nameOf(target string) string {
	if _, endpoint, ok := strings.Cut(target, ":///"); ok {
		return endpoint
	}
	return target
}

// unpack returns the error that a call's status stands for.
func unpack(target, method string, err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("shuffle control at %s: %s: %w", target, method, err)
	}
	e := &remoteError{text: fmt.Sprintf("shuffle control at %s: %s: %s", target, method, s.Message()), kinds: []error{err}}
	for _, d := range s.Details() {
		if f, ok := d.(*shufflepb.Failure); ok {
			for _, k := range kinds {
				if *k.flag(f) {
					e.kinds = append(e.kinds, k.err)
				}
			}
			return e
		}
	}
	switch s.Code() { // from the transport, of this side's context
	case codes.Canceled:
		e.kinds = append(e.kinds, context.Canceled)
	case codes.DeadlineExceeded:
		e.kinds = append(e.kinds, context.DeadlineExceeded)
	}
	return e
}
