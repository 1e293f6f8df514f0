// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// lab is hosts in memory, with the model of a kernel's programs where they have a kernel, and a network that spoils packets.
type lab struct {
	t   testing.TB
	net *network

	mu    sync.Mutex
	at    map[netip.Addr]*virtual
	count int
}

// virtual is a host's network: an interface with programs, and sockets behind it.
type virtual struct {
	lab    *lab
	addr   netip.Addr
	six    bool
	kernel *model.Host
	strict *strict

	mu    sync.Mutex
	more  *sync.Cond
	queue [][]byte
	ports map[uint16]*virtualPort
	next  uint16
	node  *Node
	ended bool
	known map[netip.Addr]bool // neighbours
	up    func(frame []byte)  // sees what comes up, before the node
}

func newLab(t testing.TB, seed uint64, f faults) *lab {
	return &lab{t: t, net: newNetwork(t, seed, f), at: map[netip.Addr]*virtual{}}
}

type virtualSetting struct {
	kernel    bool
	strict    bool // it watches who uses it
	six       bool
	strangers bool // neighbours are to be found first
	answer    wire.AnswerMode
	limits    shuffle.Limits
	opts      Options
}

// host adds a host.
func (l *lab) host(s virtualSetting) *host {
	l.mu.Lock()
	l.count++
	v := &virtual{lab: l, addr: netip.AddrFrom4([4]byte{10, 0, byte(l.count >> 8), byte(l.count)}), six: s.six, ports: map[uint16]*virtualPort{}, next: 40000, known: map[netip.Addr]bool{}}
	if s.six {
		v.addr = netip.AddrFrom16([16]byte{0xfd, 14: byte(l.count >> 8), 15: byte(l.count)})
	}
	v.more = sync.NewCond(&v.mu)
	l.at[v.addr] = v
	l.mu.Unlock()
	h := &host{t: l.t, addr: netip.AddrPortFrom(v.addr, shuffle.Port), virtual: v}
	o := s.opts
	if s.kernel {
		if s.limits == (shuffle.Limits{}) {
			s.limits = shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Chunks: 40_000}
		}
		v.kernel = model.NewHost(model.Config{Limits: s.limits, Broadcasts: true, Answer: s.answer, Hop: func(to netip.AddrPort) (wire.Hop, error) { return v.hop(to, s.strangers) }})
		o.Kernel = v.kernel
		if s.strict {
			v.strict = newStrict(l.t, v.kernel)
			o.Kernel, o.Jobs = v.strict, shuffle.NewJobSlots(v.strict, s.limits.EnsureDefaults().Jobs)
		}
	}
	o.Port = shuffle.Port
	o.Send = func(frame []byte, to netip.AddrPort) error {
		if !h.isDead() {
			v.send(frame, shuffle.Port, to)
		}
		return nil
	}
	if o.Incoming == nil {
		o.Incoming = h.incoming
	}
	if o.Memory == 0 {
		o.Memory = 256 << 20
	}
	var err error
	if h.Node, err = New(o); err != nil {
		l.t.Fatal(err)
	}
	h.listen = func(six, both bool) (port, error) { return v.listen(), nil }
	v.node = h.Node
	h.reader.Add(1)
	go func() {
		defer h.reader.Done()
		v.run(h)
	}()
	l.t.Cleanup(func() {
		v.mu.Lock()
		v.ended = true
		v.more.Broadcast()
		v.mu.Unlock()
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

func (v *virtual) hop(to netip.AddrPort, strangers bool) (h wire.Hop, err error) {
	v.mu.Lock()
	known := v.known[to.Addr()]
	v.mu.Unlock()
	if strangers && !known {
		return h, fmt.Errorf("%w: no neighbour %s", shuffle.ErrNotNow, to)
	}
	if to.Addr().Is6() != v.six {
		return h, fmt.Errorf("no way to %s", to)
	}
	h.MACTo, h.MACFrom, h.Interface = macOf(to.Addr()), macOf(v.addr), 1
	binary.BigEndian.PutUint16(h.PortTo[:], to.Port())
	binary.BigEndian.PutUint16(h.PortFrom[:], shuffle.Port)
	copy(h.To[:], to.Addr().AsSlice())
	copy(h.From[:], v.addr.AsSlice())
	if v.six {
		h.V6 = 1
	}
	return h, nil
}

// send sends a datagram.
func (v *virtual) send(payload []byte, from uint16, to netip.AddrPort) {
	v.mu.Lock()
	v.known[to.Addr()] = true
	v.mu.Unlock()
	src := v.addr
	if to.Addr().Is6() != src.Is6() { // every host has an address of the other family that works without programs
		src = netip.AddrFrom16([16]byte{0xfc, 15: 1})
		if to.Addr().Is4() {
			src = netip.AddrFrom4([4]byte{10, 1, 0, 1})
		}
	}
	p := model.NewPacket(payload).Addresses(netip.AddrPortFrom(src, from), to).MACs(macOf(v.addr), macOf(to.Addr()))
	packets := [][]byte{p.Bytes}
	if v.kernel != nil {
		packets, _ = v.kernel.Egress(p.Bytes)
	}
	for _, b := range packets {
		v.lab.deliver(b)
	}
}

// address reads who a packet is from or to.
func addresses(b []byte) (from, to netip.AddrPort) {
	at, n, ports := 26, 4, 34
	if binary.BigEndian.Uint16(b[12:]) == 0x86dd {
		at, n, ports = 22, 16, 54
	}
	f, _ := netip.AddrFromSlice(b[at:][:n])
	t, _ := netip.AddrFromSlice(b[at+n:][:n])
	return netip.AddrPortFrom(f, binary.BigEndian.Uint16(b[ports:])), netip.AddrPortFrom(t, binary.BigEndian.Uint16(b[ports+2:]))
}

// deliver brings a packet to whom it is addressed to, if that is somebody. Damage is to the frame.
func (l *lab) deliver(b []byte) {
	_, to := addresses(b)
	l.mu.Lock()
	v := l.at[to.Addr()]
	l.mu.Unlock()
	if v == nil {
		return
	}
	head := len(b) - len(model.PayloadOf(b))
	l.net.pass(b[head:], func(frame []byte) {
		p := append(append([]byte(nil), b[:head]...), frame...)
		v.mu.Lock()
		defer v.mu.Unlock()
		// A queue holds so much and no more.
		if !v.ended && len(v.queue) < 256 {
			v.queue = append(v.queue, p)
			v.more.Signal()
		}
	})
}

func (v *virtual) run(h *host) {
	for {
		v.mu.Lock()
		for len(v.queue) == 0 && !v.ended {
			v.more.Wait()
		}
		if v.ended {
			v.mu.Unlock()
			return
		}
		b := v.queue[0]
		v.queue = v.queue[1:]
		v.mu.Unlock()
		if h.isDead() {
			continue
		}
		verdict := model.Pass
		if v.kernel != nil {
			verdict, b = v.kernel.Handle(0, b)
		}
		switch verdict {
		case model.TX, model.Redirect:
			v.lab.deliver(b)
		case model.Pass:
			from, to := addresses(b)
			frame := model.PayloadOf(b)
			if v.up != nil {
				v.up(frame)
			}
			if to.Port() == shuffle.Port {
				v.mu.Lock()
				node := v.node
				v.mu.Unlock()
				node.Handle(frame, from)
				continue
			}
			v.mu.Lock()
			p := v.ports[to.Port()]
			v.mu.Unlock()
			if p != nil {
				p.arrived(frame)
			}
		}
	}
}

// virtualPort is a source's port of a virtual host.
type virtualPort struct {
	v    *virtual
	n    uint16
	mu   sync.Mutex
	got  [][]byte
	wake chan struct{}
}

func (v *virtual) listen() *virtualPort {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next++
	p := &virtualPort{v: v, n: v.next, wake: make(chan struct{}, 1)}
	v.ports[p.n] = p
	return p
}

func (p *virtualPort) number() uint16 { return p.n }

func (p *virtualPort) local(netip.Addr) (netip.Addr, error) { return p.v.addr, nil }

func (p *virtualPort) send(b []byte, size int, to netip.AddrPort) error {
	for len(b) > 0 {
		n := min(size, len(b))
		p.v.send(b[:n], p.n, to)
		b = b[n:]
	}
	return nil
}

func (p *virtualPort) arrived(frame []byte) {
	p.mu.Lock()
	p.got = append(p.got, frame)
	p.mu.Unlock()
	p.poke()
}

func (p *virtualPort) wait(until time.Time, f func([]byte)) (bool, error) {
	for {
		p.mu.Lock()
		got := p.got
		p.got = nil
		p.mu.Unlock()
		for _, b := range got {
			f(b)
		}
		if len(got) > 0 {
			return true, nil
		}
		select {
		case <-p.wake:
			p.mu.Lock()
			none := len(p.got) == 0
			p.mu.Unlock()
			if none {
				return false, nil
			}
		case <-time.After(time.Until(until)):
			return false, nil
		}
	}
}

func (p *virtualPort) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *virtualPort) close() error {
	p.v.mu.Lock()
	defer p.v.mu.Unlock()
	delete(p.v.ports, p.n)
	return nil
}

// hosts adds hosts, whose kinds kernel tells.
func (l *lab) hosts(n int, s virtualSetting, kernel func(i int) bool) (list []*host, members []Member) {
	for i := range n {
		s.kernel = kernel(i)
		h := l.host(s)
		list = append(list, h)
		members = append(members, h.member(fmt.Sprintf("member %d", i)))
	}
	return list, members
}
