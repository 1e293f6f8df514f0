// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// mostStrangers is how many connections may be open of whom is not known yet who they are. Beyond it the oldest one is closed: so who
// opens many keeps members out for as long as a greeting takes at most, and they connect again.
const mostStrangers = 128

// door is where streams of others come in.
type door struct {
	mu        sync.Mutex
	closed    bool
	strangers []net.Conn
	guests    sync.WaitGroup
}

// streamPort is the port that streams come to, 0 if there is none.
func (n *Node) streamPort() int {
	if n.opts.Streams == nil {
		return 0
	}
	a, _ := n.opts.Streams.Addr().(*net.TCPAddr)
	if a == nil {
		return 0
	}
	return a.Port
}

// dial connects to a member's port for streams.
func (n *Node) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if n.opts.Dial != nil {
		return n.opts.Dial(ctx, to)
	}
	d := net.Dialer{Timeout: greetMost}
	return d.DialContext(ctx, "tcp", to.String())
}

// accept takes connections until the listener is closed.
func (n *Node) accept() {
	defer n.work.Done()
	wait := time.Millisecond
	for {
		conn, err := n.opts.Streams.Accept()
		if err != nil {
			select {
			case <-n.done:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Such as too many open files: it may pass.
			n.warn("a stream can't be taken", err)
			select {
			case <-n.done:
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, time.Second)
			continue
		}
		wait = time.Millisecond
		n.let(conn)
	}
}

// let lets a connection in until it is known whose it is.
func (n *Node) let(conn net.Conn) {
	d := &n.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = conn.Close()
		return
	}
	if len(d.strangers) == mostStrangers {
		_ = d.strangers[0].Close()
		d.strangers = slices.Delete(d.strangers, 0, 1)
	}
	d.strangers = append(d.strangers, conn)
	d.guests.Go(func() {
		if err := n.welcome(conn); err != nil {
			n.known(conn)
			_ = conn.Close()
			n.counts.strangers.Add(1)
			n.opts.Log.Debug("all-reduce: a connection is dropped", "from", conn.RemoteAddr(), "reason", err)
		}
	})
}

// known takes a connection off the list of those of whom it is not known whose they are.
func (n *Node) known(conn net.Conn) {
	d := &n.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.strangers, conn); i >= 0 {
		d.strangers = slices.Delete(d.strangers, i, i+1)
	}
}

// shutDoor has nobody come in any more.
func (n *Node) shutDoor() {
	if n.opts.Streams == nil {
		return
	}
	n.warn("the port for streams", n.opts.Streams.Close())
	d := &n.door
	d.mu.Lock()
	d.closed = true
	for _, c := range d.strangers {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.guests.Wait()
}
