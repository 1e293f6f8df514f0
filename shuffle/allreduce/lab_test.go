// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// faults are what happens to frames on their way, as parts of all.
type faults struct {
	Lose, Double, Damage, Delay float64
	Latency                     time.Duration // of delayed ones, at most
}

// lab is hosts in memory, with the model of a kernel's programs where they have a kernel, and a network that spoils
// packets by a seed.
type lab struct {
	t testing.TB

	mu      sync.Mutex
	rng     *rand.Rand
	faults  faults
	at      map[netip.Addr]*host
	count   int
	pending sync.WaitGroup                     // packets that are late
	see     func(packet []byte, to *host)      // what is on its way
	drop    func(packet []byte, to *host) bool // says what is lost beside faults
	pass    func(packet []byte) bool           // says what programs do not see, as where packets were joined before
}

// host is a node, and its network: an interface with programs, and a socket behind it.
type host struct {
	*Node
	lab    *lab
	addr   netip.Addr
	kernel *model.Host
	strict *strict
	cpus   int
	reader sync.WaitGroup

	mu    sync.Mutex
	more  *sync.Cond
	queue [][]byte
	known map[netip.Addr]bool // neighbours
	ended bool
	dead  bool // nothing comes from it, and nothing gets there
	deaf  bool // its control plane does not answer
}

type setting struct {
	kernel    bool
	strangers bool // neighbours are to be found first
	answer    wire.AnswerMode
	limits    shuffle.Limits
	opts      Options
}

func newLab(t testing.TB, seed uint64, f faults) *lab {
	l := &lab{t: t, rng: rand.New(rand.NewPCG(seed, 1)), faults: f, at: map[netip.Addr]*host{}}
	t.Cleanup(l.pending.Wait)
	return l
}

// host adds a host.
func (l *lab) host(s setting) *host {
	l.mu.Lock()
	l.count++
	h := &host{lab: l, addr: netip.AddrFrom4([4]byte{10, 0, byte(l.count >> 8), byte(l.count)}), known: map[netip.Addr]bool{}}
	h.more = sync.NewCond(&h.mu)
	l.at[h.addr] = h
	l.mu.Unlock()
	o := s.opts
	if s.kernel {
		if s.limits == (shuffle.Limits{}) {
			s.limits = shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Regions: 1, Casts: 1, Groups: 5, Chunks: 10_000}
		}
		h.cpus = 2
		h.kernel = model.NewHost(model.Config{
			Limits: s.limits, Reduces: true, CPUs: h.cpus, Answer: s.answer,
			Hop: func(to netip.AddrPort) (wire.Hop, error) { return h.hop(to, s.strangers) },
		})
		h.strict = newStrict(l.t, h.kernel)
		o.Kernel, o.Jobs = h.strict, shuffle.NewJobSlots(h.strict, s.limits.EnsureDefaults().Jobs)
	}
	o.Port = shuffle.Port
	o.Send = func(b []byte, size int, to netip.AddrPort) error {
		for len(b) > 0 {
			n := min(size, len(b))
			h.send(b[:n], to)
			b = b[n:]
		}
		return nil
	}
	var err error
	if h.Node, err = New(o); err != nil {
		l.t.Fatal(err)
	}
	for cpu := range 2 {
		h.reader.Go(func() { h.run(cpu) })
	}
	l.t.Cleanup(func() {
		h.mu.Lock()
		h.ended = true
		h.more.Broadcast()
		h.mu.Unlock()
		h.reader.Wait()
		if err := h.Close(); err != nil {
			l.t.Errorf("close a node: %v", err)
		}
	})
	return h
}

func macOf(a netip.Addr) (m [6]byte) {
	b := a.As16()
	m[0] = 2
	copy(m[1:], b[11:])
	return m
}

func (h *host) hop(to netip.AddrPort, strangers bool) (hop wire.Hop, err error) {
	h.mu.Lock()
	known := h.known[to.Addr()]
	h.mu.Unlock()
	if strangers && !known {
		return hop, fmt.Errorf("%w: no neighbour %s", shuffle.ErrNotNow, to)
	}
	hop.MACTo, hop.MACFrom, hop.Interface = macOf(to.Addr()), macOf(h.addr), 1
	binary.BigEndian.PutUint16(hop.PortTo[:], to.Port())
	binary.BigEndian.PutUint16(hop.PortFrom[:], shuffle.Port)
	copy(hop.To[:], to.Addr().AsSlice())
	copy(hop.From[:], h.addr.AsSlice())
	return hop, nil
}

// send sends a datagram.
func (h *host) send(payload []byte, to netip.AddrPort) {
	h.mu.Lock()
	h.known[to.Addr()] = true
	dead := h.dead
	h.mu.Unlock()
	if !dead {
		h.lab.deliver(model.NewPacket(payload).Addresses(netip.AddrPortFrom(h.addr, shuffle.Port), to).MACs(macOf(h.addr), macOf(to.Addr())).Bytes)
	}
}

// addresses reads who a packet is from and to.
func addresses(b []byte) (from, to netip.AddrPort) {
	f, _ := netip.AddrFromSlice(b[26:30])
	t, _ := netip.AddrFromSlice(b[30:34])
	return netip.AddrPortFrom(f, binary.BigEndian.Uint16(b[34:])), netip.AddrPortFrom(t, binary.BigEndian.Uint16(b[36:]))
}

func payload(b []byte) []byte { return model.PayloadOf(b) }

// deliver brings a packet to whom it is addressed to, as often as faults will have it. Damage is to the frame.
func (l *lab) deliver(b []byte) {
	_, to := addresses(b)
	l.mu.Lock()
	h := l.at[to.Addr()]
	f, times, wait := l.faults, 1, time.Duration(0)
	switch x := l.rng.Float64(); {
	case x < f.Lose:
		times = 0
	case x < f.Lose+f.Double:
		times = 2
	}
	b = slices.Clone(b)
	frame := model.PayloadOf(b)
	if l.rng.Float64() < f.Damage {
		frame[l.rng.IntN(len(frame))] ^= 1 << l.rng.IntN(8)
	}
	if f.Latency > 0 && l.rng.Float64() < f.Delay {
		wait = time.Duration(l.rng.Int64N(int64(f.Latency)))
	}
	see, drop := l.see, l.drop
	l.mu.Unlock()
	if h == nil || times == 0 || drop != nil && drop(b, h) {
		return
	}
	if see != nil {
		see(b, h)
	}
	if wait == 0 {
		h.arrive(b, times)
		return
	}
	l.pending.Add(1)
	time.AfterFunc(wait, func() {
		defer l.pending.Done()
		h.arrive(b, times)
	})
}

func (h *host) arrive(b []byte, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range times {
		// A queue holds so much and no more.
		if !h.ended && !h.dead && len(h.queue) < 256 {
			h.queue = append(h.queue, slices.Clone(b))
			h.more.Signal()
		}
	}
}

func (h *host) run(cpu int) {
	for {
		h.mu.Lock()
		for len(h.queue) == 0 && !h.ended {
			h.more.Wait()
		}
		if h.ended {
			h.mu.Unlock()
			return
		}
		b := h.queue[0]
		h.queue = h.queue[1:]
		h.mu.Unlock()
		verdict := model.Pass
		h.lab.mu.Lock()
		pass := h.lab.pass
		h.lab.mu.Unlock()
		if h.kernel != nil && (pass == nil || !pass(b)) {
			verdict, b = h.kernel.Handle(cpu, b)
		}
		switch verdict {
		case model.TX, model.Redirect:
			h.lab.deliver(b)
		case model.Pass:
			from, _ := addresses(b)
			h.Handle(model.PayloadOf(b), from)
		}
	}
}

// die has nothing come from the host any more, frames or answers.
func (h *host) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead, h.deaf = true, true
}

// remote is a member's control plane.
type remote struct{ h *host }

var errDeaf = errors.New("the host does not answer")

func (r remote) down() error {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if r.h.deaf {
		return errDeaf
	}
	return nil
}

func (r remote) ReduceEndpoint(ctx context.Context) (shuffle.Endpoint, error) {
	if err := r.down(); err != nil {
		return shuffle.Endpoint{}, err
	}
	return r.h.Control().ReduceEndpoint(ctx)
}

func (r remote) OpenGroup(ctx context.Context, spec shuffle.GroupSpec) (shuffle.GroupGrant, error) {
	if err := r.down(); err != nil {
		return shuffle.GroupGrant{}, err
	}
	return r.h.Control().OpenGroup(ctx, spec)
}

func (r remote) GroupStatus(ctx context.Context, token uint64) (shuffle.GroupStatus, error) {
	if err := r.down(); err != nil {
		return shuffle.GroupStatus{}, err
	}
	return r.h.Control().GroupStatus(ctx, token)
}

func (r remote) BreakGroup(ctx context.Context, token uint64, reason string) error {
	if err := r.down(); err != nil {
		return err
	}
	return r.h.Control().BreakGroup(ctx, token, reason)
}

func (r remote) CloseGroup(ctx context.Context, token uint64) error {
	if err := r.down(); err != nil {
		return err
	}
	return r.h.Control().CloseGroup(ctx, token)
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// hosts adds hosts, whose kinds kernel tells.
func (l *lab) hosts(n int, s setting, kernel func(i int) bool) (list []*host) {
	for i := range n {
		s.kernel = kernel(i)
		list = append(list, l.host(s))
	}
	return list
}

// form forms a group of hosts, which is closed in the end, and returns their ends.
func (l *lab) form(hosts []*host, spec FormSpec) (*Formed, []Group) {
	l.t.Helper()
	for i, h := range hosts {
		spec.Members = append(spec.Members, Member{Name: fmt.Sprintf("host %d", i), Address: netip.AddrPortFrom(h.addr, 0), Control: remote{h}})
	}
	if spec.Name == "" {
		spec.Name = "test"
	}
	f, err := Form(testContext(l.t), spec)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = f.Close(testContext(l.t)) })
	ends := make([]Group, len(hosts))
	for i, h := range hosts {
		if ends[i], err = h.Group(f.Token); err != nil {
			l.t.Fatal(err)
		}
		if ends[i].Rank() != i || ends[i].Size() != len(hosts) {
			l.t.Errorf("member %d is %d of %d", i, ends[i].Rank(), ends[i].Size())
		}
	}
	return f, ends
}

var kinds = map[string]func(i int) bool{
	"user":   func(int) bool { return false },
	"kernel": func(int) bool { return true },
	"mixed":  func(i int) bool { return i%2 == 1 },
}

func hostAddress(h *host) netip.AddrPort { return netip.AddrPortFrom(h.addr, shuffle.Port) }

func sendNowhere([]byte, int, netip.AddrPort) error { return nil }
