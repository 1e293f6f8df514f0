// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// ErrClosed is returned by a sender that was closed.
var ErrClosed = errors.New("the sender is closed")

// Sender is the sending end of a host's streams. Its methods may be called from
// several goroutines.
type Sender struct {
	opts    Options
	kernel  shuffle.Kernel
	mem     *shuffle.Memory
	owners  []atomic.Pointer[stream] // by slot of mem.Outgoing
	readers sync.WaitGroup
	loops   sync.WaitGroup

	mu     sync.Mutex
	ports  [2][]*port // IPv4, IPv6; opened when first needed
	paths  map[netip.AddrPort]*path
	free   []uint32
	stale  []uint32      // closed, and to be quiesced before they are written
	freed  chan struct{} // closed and made anew when slots become free
	closed bool
	pushes int
	idle   *sync.Cond // no push is under way
	stray  atomic.Uint64
	wrap   func(batchConn) batchConn // for tests: stands between ports and their sockets
}

// maxPaths is how many destinations are remembered.
const maxPaths = 4096

// New makes a sender.
func New(opts Options) (*Sender, error) {
	opts = opts.EnsureDefaults()
	s := &Sender{opts: opts, kernel: opts.Kernel, mem: opts.Memory, paths: map[netip.AddrPort]*path{}, freed: make(chan struct{})}
	s.idle = sync.NewCond(&s.mu)
	switch {
	case opts.Kernel != nil:
		s.mem = opts.Kernel.Memory()
		if opts.Jobs == nil {
			return nil, errors.New("push: a kernel's help and nobody who hands out its job slots; set Options.Jobs")
		}
	case s.mem == nil:
		s.mem = shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1})
	}
	n := len(s.mem.Outgoing)
	s.owners = make([]atomic.Pointer[stream], n)
	for i := range n {
		// What an earlier process has left open is quiesced before it is used.
		slot := uint32(n - 1 - i)
		if atomic.LoadUint64(&s.mem.Outgoing[slot].Token) != 0 {
			atomic.StoreUint64(&s.mem.Outgoing[slot].Token, 0)
			s.stale = append(s.stale, slot)
			continue
		}
		s.free = append(s.free, slot)
	}
	return s, nil
}

// Close waits for pushes to end and closes the sockets. To end them early, end
// their contexts.
func (s *Sender) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for s.pushes > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	s.loops.Wait()
	for _, p := range s.ports {
		closeAll(p)
	}
	s.readers.Wait()
	return nil
}

// Strays returns how many packets came to the sender's sockets that were no answer to an
// open stream with the right tag. They changed nothing.
func (s *Sender) Strays() uint64 { return s.stray.Load() }

// begin counts a push in.
func (s *Sender) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.pushes++
	return nil
}

func (s *Sender) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushes--
	s.idle.Broadcast()
}

// path returns the path to a destination.
func (s *Sender) path(dest netip.AddrPort) (*path, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.paths[dest]; p != nil {
		return p, nil
	}
	family := 0
	if !dest.Addr().Is4() {
		family = 1
	}
	if s.ports[family] == nil {
		ports, err := listen(family == 1, s.opts.Ports)
		if err != nil {
			return nil, err
		}
		s.ports[family] = ports
		for _, p := range ports {
			if s.wrap != nil {
				p.batch = s.wrap(p.batch)
			}
			s.readers.Add(1)
			go s.read(p)
		}
	}
	if len(s.paths) >= maxPaths {
		for a, p := range s.paths {
			if p.quiet() {
				delete(s.paths, a)
			}
		}
	}
	p := newPath(s, dest, s.ports[family])
	s.paths[dest] = p
	return p, nil
}

// acquire returns up to n slots of Outgoing, at least one: if none is free it
// waits, unless wait is false.
func (s *Sender) acquire(ctx context.Context, n int, wait bool) ([]uint32, error) {
	for {
		s.mu.Lock()
		if len(s.free) == 0 && len(s.stale) > 0 {
			if err := s.refill(); err != nil {
				s.mu.Unlock()
				return nil, err
			}
			continue
		}
		if k := min(n, len(s.free)); k > 0 {
			slots := append([]uint32(nil), s.free[len(s.free)-k:]...)
			s.free = s.free[:len(s.free)-k]
			s.mu.Unlock()
			return slots, nil
		}
		freed := s.freed
		s.mu.Unlock()
		if !wait {
			return nil, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// refill makes slots usable that were closed. mu is held, and is released.
//
// A program that began while a slot's token stood may still write to it, so
// that it is cleared after the wait. One that began later saw token 0, and writes nothing
// until it sees the next token, which is published after all else.
func (s *Sender) refill() error {
	stale := s.stale
	s.stale = nil
	s.mu.Unlock()
	var err error
	if s.kernel != nil {
		err = s.kernel.Quiesce()
	}
	s.mu.Lock()
	if err != nil {
		s.stale = append(s.stale, stale...)
		return fmt.Errorf("push: wait for running programs: %w", err)
	}
	s.free = append(s.free, stale...)
	s.announce()
	s.mu.Unlock()
	return nil
}

// announce wakes those who wait for slots. mu is held.
func (s *Sender) announce() {
	close(s.freed)
	s.freed = make(chan struct{})
}

// release closes slots.
func (s *Sender) release(slots ...uint32) {
	for _, slot := range slots {
		atomic.StoreUint64(&s.mem.Outgoing[slot].Token, 0)
		s.owners[slot].Store(nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel != nil {
		s.stale = append(s.stale, slots...)
	} else {
		s.free = append(s.free, slots...)
	}
	s.announce()
}

// absorb takes in an acknowledgement that came to a socket: what the program at the
// interface does where there is one. Whatever is wrong with it, nothing happens.
func (s *Sender) absorb(b []byte) {
	h, a, err := wire.ParseAck(b)
	if err != nil || h.Kind != wire.Ack || int(h.Back) >= len(s.owners) {
		s.stray.Add(1)
		return
	}
	st := s.owners[h.Back].Load()
	if st == nil || st.grant.Token != h.Token || !st.tags.Open(b, a.Nonce) {
		s.stray.Add(1)
		return
	}
	st.absorb(&a, now())
}
