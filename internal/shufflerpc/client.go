// SPDX-License-Identifier: Apache-2.0

package shufflerpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
)

// batchBytes is about how many bytes of frames one message of Deliver has, so
// that other calls get a turn on the connection in between.
const batchBytes = 1 << 20

// cancelTime is how long a server has to answer that a call was cancelled. It
// does so at once, so a connection that stays silent is taken for broken.
const cancelTime = 5 * time.Second

// Client is a shuffle.Control at a server elsewhere. It connects when it is
// first called and again when a connection breaks. It may be used by many
// goroutines at once.
type Client struct {
	address string
	opt     Options
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	ids     atomic.Uint64
	silence time.Duration // cancelTime but in tests

	mu     sync.Mutex
	conn   *rpc.Client
	dial   chan struct{} // closed when the dial that is in progress ends; nil: none is
	closed bool
}

var _ shuffle.Control = (*Client)(nil)

// NewClient returns a client of the server at an address (host:port).
func NewClient(address string, opt Options) *Client {
	c := &Client{address: address, opt: opt.ensureDefaults(), silence: cancelTime}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close breaks the connection. Calls in progress return an error.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.conn = nil
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // it is broken either way
	}
	c.wg.Wait()
	return nil
}

// errClosed is what calls of a closed client return.
var errClosed = fmt.Errorf("client is closed: %w", net.ErrClosed)

// start runs f in a goroutine that Close waits for.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// connection returns the connection, dialling if there is none. One dial serves
// all who wait for it.
func (c *Client) connection(ctx context.Context) (*rpc.Client, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed
		}
		if c.conn != nil {
			defer c.mu.Unlock()
			return c.conn, nil
		}
		wait := c.dial
		if wait == nil {
			c.dial = make(chan struct{})
			c.mu.Unlock()
			return c.connect(ctx)
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Client) connect(ctx context.Context) (*rpc.Client, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	conn, err := c.opt.Dial(ctx, c.address)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		if err = greet(conn); err != nil {
			conn.Close()
		}
		if !stop() && err == nil {
			err = ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.dial)
	c.dial = nil
	switch {
	case err != nil:
		return nil, err
	case c.closed:
		conn.Close()
		return nil, errClosed
	}
	c.conn = rpc.NewClientWithCodec(clientCodec{newTransport(conn, c.opt.MaxMessage)})
	return c.conn, nil
}

// drop forgets a connection that broke.
func (c *Client) drop(conn *rpc.Client) {
	_ = conn.Close() // it is broken either way
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.conn = nil
	}
}

// errBroken marks errors of the connection, after which a call is sent again.
var errBroken = errors.New("connection broke")

// call makes a call, again and again while connections break.
func call[A, R any](ctx context.Context, c *Client, method string, arg A) (R, error) {
	var zero R
	fail := func(err error) (R, error) {
		return zero, fmt.Errorf("shuffle control at %s: %s: %w", c.address, method, err)
	}
	// lost is when connections began to fail.
	var lost time.Time
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		conn, err := c.connection(ctx)
		if err == nil {
			var value R
			began := time.Now()
			if value, err = once[A, R](ctx, c, conn, method, arg); err == nil {
				return value, nil
			}
			if !errors.Is(err, errBroken) {
				return fail(err)
			}
			if c.drop(conn); time.Since(began) > c.opt.Patience {
				lost = time.Time{} // it had worked for a while
			}
		}
		if errors.Is(err, errClosed) || c.ctx.Err() != nil {
			return fail(errClosed)
		}
		now := time.Now()
		if lost.IsZero() {
			lost = now
		}
		if _, bounded := ctx.Deadline(); !bounded && now.Sub(lost) > c.opt.Patience {
			return fail(fmt.Errorf("not reached for %v; is the receiver running? %w", c.opt.Patience, err))
		}
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
			return fail(errClosed)
		case <-ctx.Done():
			// The last error says why nothing came.
			return fail(fmt.Errorf("%w: %v", ctx.Err(), err))
		}
	}
}

// once makes a call over one connection.
func once[A, R any](ctx context.Context, c *Client, conn *rpc.Client, method string, arg A) (R, error) {
	var zero R
	in := Request[A]{Call: c.ids.Add(1), Arg: arg}
	if deadline, ok := ctx.Deadline(); ok {
		in.Timeout = max(time.Until(deadline), 1)
	}
	// net/rpc writes within the call and may be held up there, so that happens
	// in a goroutine. It is given bytes of its own: what arg refers to is the
	// caller's again once this function returns.
	body, err := encode(&in)
	if err != nil {
		return zero, err
	}
	if n := len(body) + headRoom; n > c.opt.MaxMessage {
		return zero, fmt.Errorf("%w: %d bytes, the limit is %d", errTooLarge, n, c.opt.MaxMessage)
	}
	out := new(Reply[R])
	result := make(chan *rpc.Call, 1)
	if !c.start(func() { conn.Go(service+"."+method, body, out, result) }) {
		return zero, errClosed
	}
	select {
	case r := <-result:
		return outcome(r, out)
	case <-ctx.Done():
		c.cancelCall(conn, in.Call)
		// The answer may have come at the same time.
		select {
		case r := <-result:
			return outcome(r, out)
		default:
			return zero, ctx.Err()
		}
	}
}

// headRoom is more than the header of a message takes.
const headRoom = 1 << 10

func outcome[R any](r *rpc.Call, out *Reply[R]) (R, error) {
	var zero R
	var server rpc.ServerError
	switch {
	case r.Error == nil:
		if err := out.Err.err(); err != nil {
			return zero, err
		}
		return out.Value, nil
	case errors.As(r.Error, &server):
		return zero, server
	}
	return zero, fmt.Errorf("%w: %w", errBroken, r.Error)
}

// cancelCall tells the server that nobody waits for a call any more, and drops
// the connection if not even that is answered.
func (c *Client) cancelCall(conn *rpc.Client, id uint64) {
	body, err := encode(&Request[uint64]{Call: c.ids.Add(1), Arg: id})
	if err != nil {
		return // a fixed type; the server finds out when the connection closes
	}
	result := make(chan *rpc.Call, 1)
	c.start(func() { conn.Go(service+".Cancel", body, new(Reply[bool]), result) })
	c.start(func() {
		select {
		case <-result:
		case <-c.ctx.Done():
		case <-time.After(c.silence):
			c.drop(conn)
		}
	})
}

// ask is call for calls that return an error alone.
func ask[A any](ctx context.Context, c *Client, method string, arg A) error {
	_, err := call[A, bool](ctx, c, method, arg)
	return err
}

// Endpoint implements shuffle.Control.
func (c *Client) Endpoint(ctx context.Context) (shuffle.Endpoint, error) {
	return call[bool, shuffle.Endpoint](ctx, c, "Endpoint", true)
}

// OpenJob implements shuffle.Control.
func (c *Client) OpenJob(ctx context.Context, job shuffle.JobSpec) error {
	return ask(ctx, c, "OpenJob", job)
}

// OpenTarget implements shuffle.Control.
func (c *Client) OpenTarget(ctx context.Context, target shuffle.TargetSpec) error {
	return ask(ctx, c, "OpenTarget", target)
}

// Open implements shuffle.Control.
func (c *Client) Open(ctx context.Context, streams []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	grants, err := call[[]shuffle.StreamSpec, []shuffle.Grant](ctx, c, "Open", streams)
	if err == nil && len(grants) != len(streams) {
		return nil, fmt.Errorf("shuffle control at %s: %d grants for %d streams", c.address, len(grants), len(streams))
	}
	return grants, err
}

// Status implements shuffle.Control.
func (c *Client) Status(ctx context.Context, streams []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	status, err := call[[]shuffle.StreamID, []shuffle.StreamStatus](ctx, c, "Status", streams)
	if err == nil && len(status) != len(streams) {
		return nil, fmt.Errorf("shuffle control at %s: status of %d streams for %d", c.address, len(status), len(streams))
	}
	return status, err
}

// Deliver implements shuffle.Control. Frames go in several messages if they are
// many; after an error some of them may have arrived.
func (c *Client) Deliver(ctx context.Context, stream shuffle.StreamID, frames [][]byte) error {
	for first := true; first || len(frames) > 0; first = false {
		n, size := 0, 0
		for n < len(frames) && (n == 0 || size+len(frames[n]) <= batchBytes) {
			size += len(frames[n])
			n++
		}
		if err := ask(ctx, c, "Deliver", Frames{Stream: stream, Frames: frames[:n]}); err != nil {
			return err
		}
		frames = frames[n:]
	}
	return nil
}

// Confirm implements shuffle.Control.
func (c *Client) Confirm(ctx context.Context, streams []shuffle.StreamID) error {
	return ask(ctx, c, "Confirm", streams)
}
