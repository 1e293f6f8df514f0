// SPDX-License-Identifier: Apache-2.0

package shufflerpc

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"slices"
	"sync"
	"time"

	"github.com/quernmr/quern/shuffle"
)

// Options of both sides. The zero value is fine.
type Options struct {
	// MaxMessage is the largest message in bytes; 0: 64 MiB. Both sides should
	// have the same. A frame for Deliver must fit into one.
	MaxMessage int
	// Patience is how long a client's call whose context has no deadline tries to
	// reach its server; 0: 10 s. The wait for the answer of a server that was
	// reached is bounded by the context alone.
	Patience time.Duration
	// Dial replaces the client's dialler, to dial in another network namespace, say.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// ensureDefaults fills in what is 0.
func (o Options) ensureDefaults() Options {
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 20
	}
	if o.Patience <= 0 {
		o.Patience = 10 * time.Second
	}
	if o.Dial == nil {
		d := net.Dialer{KeepAliveConfig: keepAlive}
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	return o
}

// keepAlive finds peers that vanished without a word in about 12 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 6 * time.Second, Interval: 2 * time.Second, Count: 3}

// service is the name that methods are registered under.
const service = "Control"

// Server offers a shuffle.Control to clients.
type Server struct {
	control  shuffle.Control
	opt      Options
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// Serve answers calls at the listener, with control, until Close.
func Serve(l net.Listener, control shuffle.Control, opt Options) *Server {
	s := &Server{control: control, opt: opt.ensureDefaults(), listener: l}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s
}

// Addr returns the address that clients dial.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close stops listening, breaks all connections, ends the contexts of calls in
// progress and waits for them. It does not touch the Control.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // closed before
	}
	return err
}

func (s *Server) accept() {
	for wait := time.Millisecond; ; {
		conn, err := s.listener.Accept()
		switch {
		case err == nil:
			wait = time.Millisecond
			s.wg.Go(func() { s.serve(conn) })
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, say
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, time.Second)
		}
	}
}

// serve answers one connection until it breaks.
func (s *Server) serve(conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // without it, dead peers are found later
	}
	if greet(conn) != nil {
		return
	}
	r := rpc.NewServer()
	if err := r.RegisterName(service, &Session{ctx: ctx, control: s.control, calls: map[uint64]context.CancelFunc{}}); err != nil {
		return // only a Session without methods would fail
	}
	r.ServeCodec(serverCodec{newTransport(conn, s.opt.MaxMessage), ctx, cancel})
}

// Request is an argument as it travels. It is exported for net/rpc alone, as
// are Reply and Session.
type Request[T any] struct {
	Call    uint64        // number within the connection, for Cancel
	Timeout time.Duration // left when it was sent; 0: no deadline
	Arg     T
}

// Reply is an answer as it travels.
type Reply[T any] struct {
	Err   *Failure
	Value T
}

// Session answers the calls of one connection.
type Session struct {
	ctx     context.Context // ends with the connection
	control shuffle.Control

	mu    sync.Mutex
	calls map[uint64]context.CancelFunc
	// early are the latest calls that were cancelled before they were begun: the
	// calls of a connection run in no order.
	early [64]uint64
	next  int
}

// answer runs a call under a context with the deadline of the caller's.
func answer[A, R any](s *Session, in *Request[A], out *Reply[R], f func(context.Context, A) (R, error)) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if in.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, in.Timeout)
		defer cancel()
	}
	s.mu.Lock()
	s.calls[in.Call] = cancel
	if slices.Contains(s.early[:], in.Call) {
		cancel()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, in.Call)
		s.mu.Unlock()
	}()
	value, err := f(ctx, in.Arg)
	if err != nil {
		out.Err = newFailure(err)
		return nil
	}
	out.Value = value
	return nil
}

// done is answer for calls that return an error alone.
func done[A any](s *Session, in *Request[A], out *Reply[bool], f func(context.Context, A) error) error {
	return answer(s, in, out, func(ctx context.Context, a A) (bool, error) { return true, f(ctx, a) })
}

// Frames are the arguments of Deliver.
type Frames struct {
	Stream shuffle.StreamID
	Frames [][]byte
}

// Endpoint carries shuffle.Control.Endpoint.
func (s *Session) Endpoint(in *Request[bool], out *Reply[shuffle.Endpoint]) error {
	return answer(s, in, out, func(ctx context.Context, _ bool) (shuffle.Endpoint, error) { return s.control.Endpoint(ctx) })
}

// OpenJob carries shuffle.Control.OpenJob.
func (s *Session) OpenJob(in *Request[shuffle.JobSpec], out *Reply[bool]) error {
	return done(s, in, out, s.control.OpenJob)
}

// OpenTarget carries shuffle.Control.OpenTarget.
func (s *Session) OpenTarget(in *Request[shuffle.TargetSpec], out *Reply[bool]) error {
	return done(s, in, out, s.control.OpenTarget)
}

// Open carries shuffle.Control.Open.
func (s *Session) Open(in *Request[[]shuffle.StreamSpec], out *Reply[[]shuffle.Grant]) error {
	return answer(s, in, out, s.control.Open)
}

// Status carries shuffle.Control.Status.
func (s *Session) Status(in *Request[[]shuffle.StreamID], out *Reply[[]shuffle.StreamStatus]) error {
	return answer(s, in, out, s.control.Status)
}

// Deliver carries shuffle.Control.Deliver.
func (s *Session) Deliver(in *Request[Frames], out *Reply[bool]) error {
	return done(s, in, out, func(ctx context.Context, f Frames) error { return s.control.Deliver(ctx, f.Stream, f.Frames) })
}

// Confirm carries shuffle.Control.Confirm.
func (s *Session) Confirm(in *Request[[]shuffle.StreamID], out *Reply[bool]) error {
	return done(s, in, out, s.control.Confirm)
}

// Cancel ends the context of a call of this connection. It answers at once.
func (s *Session) Cancel(in *Request[uint64], out *Reply[bool]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.calls[in.Arg]; cancel != nil {
		cancel()
		return nil
	}
	s.early[s.next%len(s.early)] = in.Arg
	s.next++
	return nil
}
