// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/shuffle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faults are what happens to frames on their way, as parts of all.
type faults struct {
	Lose, Double, Damage, Delay float64
	Latency                     time.Duration // of delayed ones, at most
}

// network spoils what nodes send, by a seed.
type network struct {
	mu      sync.Mutex
	rng     *rand.Rand
	faults  faults
	pending sync.WaitGroup
}

func newNetwork(t testing.TB, seed uint64, f faults) *network {
	n := &network{rng: rand.New(rand.NewPCG(seed, 1)), faults: f}
	t.Cleanup(n.pending.Wait)
	return n
}

// pass hands a frame on to send as often as it arrives.
func (n *network) pass(frame []byte, send func([]byte)) {
	n.mu.Lock()
	f := n.faults
	times := 1
	var wait time.Duration
	switch x := n.rng.Float64(); {
	case x < f.Lose:
		times = 0
	case x < f.Lose+f.Double:
		times = 2
	}
	if n.rng.Float64() < f.Damage {
		frame = append([]byte(nil), frame...)
		frame[n.rng.IntN(len(frame))] ^= 1 << n.rng.IntN(8)
	}
	if f.Latency > 0 && n.rng.Float64() < f.Delay {
		wait = time.Duration(n.rng.Int64N(int64(f.Latency)))
	}
	n.mu.Unlock()
	if times == 0 {
		return
	}
	if wait > 0 {
		frame = append([]byte(nil), frame...)
		n.pending.Add(1)
		time.AfterFunc(wait, func() {
			defer n.pending.Done()
			for range times {
				send(frame)
			}
		})
		return
	}
	for range times {
		send(frame)
	}
}

// spoiled is a source's port whose frames go through a network.
type spoiled struct {
	port
	net *network
}

func (s *spoiled) send(b []byte, size int, to netip.AddrPort) error {
	for len(b) > 0 {
		n := min(size, len(b))
		s.net.pass(b[:n], func(f []byte) { _ = s.port.send(f, len(f), to) })
		b = b[n:]
	}
	return nil
}

// host is a node with a socket for frames at the loopback interface.
type host struct {
	*Node
	t      testing.TB
	conn   *net.UDPConn
	addr   netip.AddrPort
	reader sync.WaitGroup
	mute   bool

	virtual     *virtual // nil: the host is at the loopback interface
	remoteLives bool     // its control plane answers even if it is dead
	restarted   atomic.Pointer[Node]

	mu    sync.Mutex
	dead  bool
	sinks []*sink
	take  func(Offer) (Sink, error)
}

type setting struct {
	net  *network
	six  bool
	opts Options
}

func newHost(t testing.TB, s setting) *host {
	t.Helper()
	network, ip := "udp4", "127.0.0.1"
	if s.six {
		network, ip = "udp6", "::1"
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), 0)))
	if err != nil {
		t.Skipf("no socket at %s: %v", ip, err)
	}
	_ = conn.SetReadBuffer(8 << 20)
	h := &host{t: t, conn: conn, addr: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
	o := s.opts
	o.Port = int(h.addr.Port())
	o.Send = func(frame []byte, to netip.AddrPort) error {
		h.mu.Lock()
		dead := h.dead
		h.mu.Unlock()
		if dead {
			return nil
		}
		if s.net == nil {
			_, err := conn.WriteToUDPAddrPort(frame, to)
			return err
		}
		s.net.pass(frame, func(f []byte) { _, _ = conn.WriteToUDPAddrPort(f, to) })
		return nil
	}
	if o.Incoming == nil {
		o.Incoming = h.incoming
	}
	if o.Memory == 0 {
		o.Memory = 256 << 20
	}
	if h.Node, err = New(o); err != nil {
		t.Fatal(err)
	}
	if s.net != nil {
		h.listen = func(six, both bool) (port, error) {
			p, err := listen(six, both)
			if err != nil {
				return nil, err
			}
			return &spoiled{p, s.net}, nil
		}
	}
	h.reader.Add(1)
	go func() {
		defer h.reader.Done()
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			h.mu.Lock()
			dead := h.dead
			h.mu.Unlock()
			if !dead {
				h.Handle(buf[:n:n], from)
			}
		}
	}()
	t.Cleanup(h.stop)
	return h
}

func (h *host) stop() {
	h.conn.Close()
	h.reader.Wait()
	if err := h.Close(); err != nil {
		h.t.Errorf("close a node: %v", err)
	}
}

// die has nothing come from the host any more.
func (h *host) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = true
}

func (h *host) isDead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

func (h *host) incoming(o Offer) (Sink, error) {
	h.mu.Lock()
	take := h.take
	h.mu.Unlock()
	if take != nil {
		return take(o)
	}
	s := &sink{offer: o}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sinks = append(h.sinks, s)
	return s, nil
}

func (h *host) member(name string) Member {
	return Member{Name: name, Address: h.addr, Control: remote{h}}
}

// sink keeps what comes.
type sink struct {
	offer Offer
	mu    sync.Mutex
	got   [][]byte
	ended int
	err   error
	fail  error
}

func (s *sink) Message(m *Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.got = append(s.got, append([]byte(nil), m.Bytes()...))
	return nil
}

func (s *sink) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	s.err = err
}

func (s *sink) state() (got [][]byte, ended int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got, s.ended, s.err
}

// whole joins what came in all regions of a name, by offset; only regions that ended well count.
func (h *host) whole(name string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	parts := map[int64][]byte{}
	for _, s := range h.sinks {
		got, ended, err := s.state()
		if s.offer.Name != name || ended != 1 || err != nil {
			continue
		}
		parts[s.offer.Offset] = bytes.Join(got, nil)
	}
	var all []byte
	for {
		p, ok := parts[int64(len(all))]
		if !ok || len(p) == 0 {
			return all
		}
		all = append(all, p...)
	}
}

var errDead = errors.New("the host is dead")

func (h *host) revive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = false
}

// both has a host send to both families.
func (h *host) both() {
	network, ip := "udp6", "::1"
	if h.addr.Addr().Is6() {
		network, ip = "udp4", "127.0.0.1"
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), 0)))
	if err != nil {
		h.t.Skipf("no socket at %s: %v", ip, err)
	}
	h.t.Cleanup(func() { conn.Close() })
	send := h.opts.Send
	h.opts.Send = func(frame []byte, to netip.AddrPort) error {
		if to.Addr().Is6() == h.addr.Addr().Is6() {
			return send(frame, to)
		}
		_, err := conn.WriteToUDPAddrPort(frame, to)
		return err
	}
}

// control is the node's, or that of the one that was started after it.
func (h *host) control() shuffle.BroadcastControl {
	if n := h.restarted.Load(); n != nil {
		return n.Control()
	}
	return h.Control()
}

// remote is a member's control plane, which a dead host does not answer at.
type remote struct{ h *host }

func (r remote) down(ctx context.Context) error {
	if !r.h.isDead() || r.h.remoteLives {
		return nil
	}
	if r.h.mute {
		<-ctx.Done()
		return ctx.Err()
	}
	return errDead
}

func (r remote) BroadcastEndpoint(ctx context.Context) (shuffle.Endpoint, error) {
	if err := r.down(ctx); err != nil {
		return shuffle.Endpoint{}, err
	}
	return r.h.control().BroadcastEndpoint(ctx)
}

func (r remote) OpenRegion(ctx context.Context, s shuffle.RegionSpec) (shuffle.RegionGrant, error) {
	if err := r.down(ctx); err != nil {
		return shuffle.RegionGrant{}, err
	}
	return r.h.control().OpenRegion(ctx, s)
}

func (r remote) Relink(ctx context.Context, token uint64, next netip.AddrPort) error {
	if err := r.down(ctx); err != nil {
		return err
	}
	return r.h.control().Relink(ctx, token, next)
}

func (r remote) Missing(ctx context.Context, token uint64, first, total uint32) ([]shuffle.Gap, error) {
	if err := r.down(ctx); err != nil {
		return nil, err
	}
	return r.h.control().Missing(ctx, token, first, total)
}

func (r remote) ConfirmMessage(ctx context.Context, token uint64, first uint32) error {
	if err := r.down(ctx); err != nil {
		return err
	}
	return r.h.control().ConfirmMessage(ctx, token, first)
}

func (r remote) CloseRegion(ctx context.Context, token uint64, whole bool) error {
	if err := r.down(ctx); err != nil {
		return err
	}
	return r.h.control().CloseRegion(ctx, token, whole)
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// noise returns bytes that look like nothing.
func noise(seed uint64, size int) []byte {
	b := make([]byte, (size+7)/8*8)
	r := rand.New(rand.NewPCG(seed, 2))
	for i := 0; i < len(b); i += 8 {
		x := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(x >> (8 * j))
		}
	}
	return b[:size]
}

func hosts(t testing.TB, n int, s setting) (list []*host, members []Member) {
	for i := range n {
		h := newHost(t, s)
		list = append(list, h)
		members = append(members, h.member(fmt.Sprintf("member %d", i)))
	}
	return list, members
}

// atOnce runs what mostly waits, many at a time.
func atOnce(n int, f func(i int)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, 16)
	for i := range n {
		free <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { <-free }()
			f(i)
		}()
	}
}

func job(b byte) (id shuffle.JobID) { id[0] = b; return id }
