// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	maxMembers = wire.MaxChains * wire.MaxChains
	// busyFor is how long a member is asked again that has no room.
	busyFor = 5 * time.Second
	// closeFor is how long members are told of an end when the caller has no time for it.
	closeFor = 5 * time.Second
)

// ErrNobody is returned where no member is left to send to.
var ErrNobody = errors.New("no member is left")

// mostTransmissions is after how many chunks under one token no message is begun: their numbers, on
// which pads rest, must not come round. One message has far fewer than are left.
const mostTransmissions = 1 << 31

// ErrFull is returned for a message that a group has no room for.
var ErrFull = errors.New("the group has no room for the message")

// member is a member of a group.
type member struct {
	Member
	index  int
	source netip.AddrPort // where its answers go
	have   bool           // it needs nothing
	kernel bool
	alive  bool
	err    error // why it is not

	chain *chain // nil: it gets what it lacks by direct chunks alone
	home  *chain // that its region was opened for
	bit   uint8
	later time.Time // when it may be taken into its chain again

	next    atomic.Pointer[netip.AddrPort] // who it is to send to
	linking sync.Mutex                     // is held while it is told
	broken  atomic.Pointer[error]          // why it could not be told

	lacks lacks
}

// chain is a chain of a group.
type chain struct {
	number  int
	members []*member // in order; none: it is out of use
	window  int       // chunks that may be in flight
	flow    flow

	// Guarded by Group.heading.
	head netip.AddrPort

	ready atomic.Bool // programs can send there
}

func (c *chain) mask() uint64 { return 1 << c.number }

// sent is a message of a group.
type sent struct {
	first, total, bytes uint32 // bytes: of data in its last chunk
}

func (s *sent) limit() uint32 { return s.first + s.total }

// Group is a source's end of a broadcast: a token, and members that have a region under it. Its methods
// may be called from several goroutines; one message is under way at a time.
type Group struct {
	node    *Node
	spec    GroupSpec
	token   uint64
	cast    *cast
	port    port
	kernel  bool // programs count answers
	clones  bool // and clone chunks
	pumps   bool // and send the next ones
	ctx     context.Context
	cancel  context.CancelCauseFunc
	roster  atomic.Pointer[[]*member]
	calls   sync.WaitGroup // goroutines that ask members
	heading sync.Mutex

	mu      sync.Mutex // is held by whoever sends
	members []*member
	chains  []*chain
	window  int
	sent    []sent
	used    uint32
	rtt     estimate
	failed  bool // not all was sent
	closed  bool
	again   map[*member]*Group // of members whose region held a wrong message
	repeat  bool               // this is such a group
	batch   frames
}

// Open opens regions at members and makes a group of those that open one. Members that don't are in the reports,
// with what they said; if there are only such ones, the error wraps ErrNobody. Errors wrap ErrBusy where
// this host has no room now, and ErrRefused where it never has.
func (n *Node) Open(ctx context.Context, spec GroupSpec) (*Group, error) {
	g, _, err := n.openGroup(ctx, spec)
	return g, err
}

// openGroup returns the members in any case.
func (n *Node) openGroup(ctx context.Context, spec GroupSpec) (_ *Group, members []*member, err error) {
	if err := n.begin(); err != nil {
		return nil, nil, err
	}
	defer n.work.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g := &Group{node: n, spec: spec, again: map[*member]*Group{}}
	for i, m := range spec.Members {
		g.members = append(g.members, &member{Member: m, index: i, alive: true})
	}
	n.mu.Lock()
	n.coming[g] = cancel
	closed := n.closed
	n.mu.Unlock()
	if closed {
		cancel(ErrClosed)
	}
	err = g.open(ctx)
	n.mu.Lock()
	delete(n.coming, g)
	n.mu.Unlock()
	if err != nil {
		return nil, g.members, err
	}
	return g, g.members, nil
}

func (g *Group) open(ctx context.Context) (err error) {
	n, spec := g.node, g.spec
	switch {
	case spec.Chunks < 1 || spec.Chunks > 1<<30:
		return fmt.Errorf("broadcast %q: room for %d chunks makes no group; see ChunksOf", spec.Name, spec.Chunks)
	case len(spec.Members) > maxMembers:
		return fmt.Errorf("broadcast %q: %d members, %d are possible", spec.Name, len(spec.Members), maxMembers)
	case spec.Mode == shuffle.KernelOnly && n.kernel == nil:
		return fmt.Errorf("broadcast %q: mode %s, and no kernel's help here; `quern doctor` says what is missing, --shuffle auto does without", spec.Name, spec.Mode)
	}
	for g.token == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return fmt.Errorf("broadcast %q: %w", spec.Name, err)
		}
		g.token = binary.LittleEndian.Uint64(b[:])
	}
	if n.kernel != nil && spec.Mode != shuffle.UserOnly {
		if g.cast, err = n.newCast(&spec, true); err != nil && spec.Mode == shuffle.KernelOnly {
			return err
		}
	}
	if g.cast == nil {
		if g.cast, err = n.newCast(&spec, false); err != nil {
			return err
		}
	}
	g.kernel = g.cast.kernel
	if g.kernel {
		g.clones, g.pumps = n.kernel.Clones(), n.kernel.Pumps()
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			g.cancel(err)
			g.calls.Wait()
			if g.port != nil {
				err = errors.Join(err, g.port.close())
			}
			err = errors.Join(err, g.cast.close())
		}
	}()
	g.each(ctx, g.members, func(ctx context.Context, m *member) error {
		if m.Address.Port() != 0 {
			return nil
		}
		return g.askPort(ctx, m)
	})
	if err := g.bind(); err != nil {
		return err
	}
	g.cast.poke = g.port.poke
	g.plan()
	g.each(ctx, g.members, g.openRegion)
	if err := context.Cause(ctx); err != nil {
		g.giveUp()
		return fmt.Errorf("broadcast %q: %w", spec.Name, err)
	}
	for _, m := range g.members {
		if m.chain != nil && (!m.alive || m.have) {
			g.unlink(m)
		}
		if !m.alive && !errors.Is(m.err, shuffle.ErrRefused) && !errors.Is(m.err, shuffle.ErrBusy) {
			g.forget(m) // it may have opened it
		}
	}
	if !slices.ContainsFunc(g.members, func(m *member) bool { return m.alive }) && len(g.members) > 0 {
		return fmt.Errorf("broadcast %q: %w: %w", spec.Name, ErrNobody, g.members[0].err)
	}
	s := g.cast.shared
	for _, c := range g.chains {
		if len(c.members) > 0 {
			g.setHead(c)
		}
	}
	if g.kernel && g.pending() {
		n.lookAgain()
	}
	s.Chains = uint32(len(g.chains))
	g.cast.publish(g.token)
	n.mu.Lock()
	defer n.mu.Unlock()
	// From here on the group is stopped like others, until here by its context.
	if err := context.Cause(ctx); err != nil {
		g.giveUp()
		return fmt.Errorf("broadcast %q: %w", spec.Name, err)
	}
	n.groups[g] = struct{}{}
	g.enrol()
	n.work.Add(1)
	go g.remind()
	return nil
}

// askPort asks a member where frames for it go.
func (g *Group) askPort(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, g.node.opts.Patience)
	defer cancel()
	e, err := m.Control.BroadcastEndpoint(ctx)
	if err != nil {
		return fmt.Errorf("ask for its port: %w", err)
	}
	m.Address = netip.AddrPortFrom(m.Address.Addr(), uint16(e.Port))
	return nil
}

// bind opens the socket and finds what members see as its address.
func (g *Group) bind() (err error) {
	four, six := false, false
	for _, m := range g.members {
		m.Address = netip.AddrPortFrom(m.Address.Addr().Unmap(), m.Address.Port())
		four, six = four || m.Address.Addr().Is4(), six || m.Address.Addr().Is6()
	}
	if g.port, err = g.node.listen(six, four && six); err != nil {
		return err
	}
	known := map[netip.Addr]netip.Addr{}
	for _, m := range g.members {
		if !m.alive {
			continue
		}
		a, ok := known[m.Address.Addr()]
		if !ok {
			if a, err = g.port.local(m.Address.Addr()); err != nil {
				m.alive, m.err = false, err
				continue
			}
			known[m.Address.Addr()] = a
		}
		m.source = netip.AddrPortFrom(a, g.port.number())
	}
	return nil
}

// plan puts the members in chains, in the order they have.
func (g *Group) plan() {
	var list []*member
	for _, m := range g.members {
		if m.alive {
			list = append(list, m)
		}
	}
	k := g.spec.Chains
	if k <= 0 {
		chunks := g.spec.Chunks
		if g.spec.Size < 0 {
			chunks = chunksOf(g.spec.Usual)
		}
		k = chainsFor(len(list), chunks)
	}
	k = clampChains(k, len(list))
	g.window = g.spec.Window
	if g.window <= 0 {
		g.window = windowFor(k)
	}
	for i := range k {
		c := &chain{number: i, window: g.window}
		c.members = slices.Clone(list[i*len(list)/k : (i+1)*len(list)/k])
		for j, m := range c.members {
			m.chain, m.home, m.bit = c, c, uint8(j)
		}
		g.chains = append(g.chains, c)
		g.want(c)
	}
	g.rtt = newEstimate(g.node.tick)
}

// want tells answers which bits make a chunk done in a chain.
func (g *Group) want(c *chain) {
	var w uint64
	for _, m := range c.members {
		w |= 1 << m.bit
	}
	atomic.StoreUint64(&g.cast.shared.Want[c.number], w)
}

// each calls f for members at once, and marks those as dead for which it fails.
func (g *Group) each(ctx context.Context, members []*member, f func(context.Context, *member) error) {
	var wg sync.WaitGroup
	for _, m := range members {
		if !m.alive {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(ctx, m); err != nil {
				m.alive, m.err = false, err
			}
		}()
	}
	wg.Wait()
}

func (g *Group) regionSpec(m *member) shuffle.RegionSpec {
	spec := shuffle.RegionSpec{
		Job: g.spec.Job, Secret: g.spec.Secret, Mode: g.spec.Mode, Token: g.token, Source: m.source, Chunks: g.spec.Chunks,
		Bit: m.bit, Eager: g.spec.Eager, Name: g.spec.Name, Kind: g.spec.Kind, Offset: g.spec.Offset, Size: g.spec.Size,
	}
	if m.chain != nil {
		spec.Chain = uint16(m.chain.number)
		if i := slices.Index(m.chain.members, m); i+1 < len(m.chain.members) {
			spec.Next = m.chain.members[i+1].Address
		}
	}
	next := spec.Next
	m.next.Store(&next)
	return spec
}

// openRegion opens a member's region. It is asked again for a while if it has no room.
func (g *Group) openRegion(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, g.node.opts.Patience)
	defer cancel()
	spec := g.regionSpec(m)
	until := time.Now()
	if !g.spec.hasty {
		until = until.Add(busyFor)
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		grant, err := m.Control.OpenRegion(ctx, spec)
		switch {
		case err == nil:
			m.have, m.kernel = grant.Have, grant.Kernel
			return nil
		case !errors.Is(err, shuffle.ErrBusy) || time.Now().After(until):
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		case <-g.ctx.Done():
			return context.Cause(g.ctx)
		}
	}
}

// giveUp closes regions that may be open, in the little time that there is.
func (g *Group) giveUp() {
	for _, m := range g.members {
		if !m.have {
			g.forget(m)
		}
	}
}

// forget tells a member, if it still hears, that its region is not wanted any more.
func (g *Group) forget(m *member) {
	g.calls.Add(1)
	go func() {
		defer g.calls.Done()
		ctx, cancel := context.WithTimeout(context.Background(), min(closeFor, g.node.opts.Patience))
		defer cancel()
		_ = m.Control.CloseRegion(ctx, g.token, false)
	}()
}

// drop leaves a member out from now on.
func (g *Group) drop(m *member, err error) {
	if !m.alive {
		return
	}
	m.alive, m.err = false, err
	g.enrol()
	g.node.opts.Log.Warn("broadcast: it goes on without a member", "name", g.spec.Name, "member", m.Name, "reason", err)
	if m.chain != nil {
		g.unlink(m)
	}
	g.forget(m)
}

// unlink closes a member's chain around it.
func (g *Group) unlink(m *member) {
	c := m.chain
	i := slices.Index(c.members, m)
	c.members = slices.Delete(c.members, i, i+1)
	m.chain = nil
	g.want(c)
	switch {
	case i == 0:
		g.setHead(c)
		return
	}
	var next netip.AddrPort
	if i < len(c.members) {
		next = c.members[i].Address
	}
	g.relink(c.members[i-1], next)
}

// relink has a member send to another one. What was asked last is what holds.
func (g *Group) relink(m *member, next netip.AddrPort) {
	m.next.Store(&next)
	g.calls.Add(1)
	go func() {
		defer g.calls.Done()
		var err error
		for try := range 3 {
			if try > 0 {
				select {
				case <-time.After(20 * time.Millisecond << try):
				case <-g.ctx.Done():
				}
			}
			ctx, cancel := context.WithTimeout(g.ctx, g.node.opts.Patience/2)
			err = g.tellNext(ctx, m)
			cancel()
			if err == nil || g.ctx.Err() != nil {
				return
			}
		}
		err = fmt.Errorf("tell it who is next in its chain: %w", err)
		m.broken.Store(&err)
		g.port.poke()
	}()
}

// relinkNow is relink, but waits until the member has heard it.
func (g *Group) relinkNow(ctx context.Context, m *member, next netip.AddrPort) error {
	m.next.Store(&next)
	return g.tellNext(ctx, m)
}

func (g *Group) tellNext(ctx context.Context, m *member) error {
	m.linking.Lock()
	defer m.linking.Unlock()
	return m.Control.Relink(ctx, g.token, *m.next.Load())
}

// rejoin takes members into their chains again that others had to do without for a while. mu is held.
func (g *Group) rejoin(ctx context.Context) {
	for _, m := range g.members {
		if m.chain != nil || m.home == nil || !g.gets(m) || time.Now().Before(m.later) {
			continue
		}
		patience := g.suspicion()
		asking, cancel := context.WithTimeout(ctx, patience)
		err := g.relinkNow(asking, m, netip.AddrPort{})
		cancel()
		if err == nil {
			err = g.append(ctx, m.home, m, patience)
		}
		if err != nil {
			m.later = time.Now().Add(g.node.opts.Patience)
		}
	}
}

// suspicion is how long a member may think about a question while others rely on it.
func (g *Group) suspicion() time.Duration { return min(time.Second, g.node.opts.Patience/4) }

// setHead tells programs the way to a chain's first member.
func (g *Group) setHead(c *chain) {
	g.heading.Lock()
	defer g.heading.Unlock()
	c.head = netip.AddrPort{}
	if len(c.members) > 0 {
		c.head = c.members[0].Address
	}
	g.aim(c)
	if g.kernel && c.head.IsValid() && !c.ready.Load() {
		g.node.lookAgain()
	}
}

// aim looks the way to a chain's head up. heading is held. It says whether the system has to find it first.
func (g *Group) aim(c *chain) (pending bool) {
	if !g.kernel {
		return false
	}
	var hop wire.Hop // of a chain without members: nothing is sent there
	var err error
	if c.head.IsValid() {
		hop, err = g.node.kernel.Hop(c.head)
	}
	if err != nil {
		pending = errors.Is(err, shuffle.ErrNotNow)
		hop = wire.Hop{}
		if pending {
			// The system looks for a way when a socket sends: a byte that means nothing does.
			_ = g.port.send([]byte{0}, 1, c.head)
		}
	}
	h := &g.cast.shared.Heads[c.number]
	if *h == hop {
		return pending
	}
	if h.Interface != 0 {
		// Programs may be reading it.
		atomic.StoreUint32(&h.Interface, 0)
		c.ready.Store(false)
		if err := g.node.kernel.Quiesce(); err != nil {
			return true
		}
	}
	iface := hop.Interface
	hop.Interface = 0
	*h = hop
	atomic.StoreUint32(&h.Interface, iface)
	c.ready.Store(iface != 0)
	return pending
}

// pending says whether ways to heads are still to be found.
func (g *Group) pending() bool {
	g.heading.Lock()
	defer g.heading.Unlock()
	return slices.ContainsFunc(g.chains, func(c *chain) bool { return c.head.IsValid() && !c.ready.Load() })
}

// refresh looks the ways to heads up again. Keep alone calls it.
func (g *Group) refresh() (pending bool) {
	if !g.kernel || !g.cast.gate.enter() {
		return false
	}
	defer g.cast.gate.leave()
	g.heading.Lock()
	defer g.heading.Unlock()
	for _, c := range g.chains {
		pending = g.aim(c) || pending
	}
	return pending
}

// remind tells members from time to time that the source is there: it may have nothing to send, or
// nothing for them.
func (g *Group) remind() {
	defer g.node.work.Done()
	every := time.NewTicker(max(g.node.opts.Idle/4, time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-every.C:
		}
		var wg sync.WaitGroup
		for _, m := range *g.roster.Load() {
			wg.Add(1)
			go func() {
				defer wg.Done()
				ctx, cancel := context.WithTimeout(g.ctx, g.node.opts.Patience)
				defer cancel()
				_, _ = m.Control.Missing(ctx, g.token, 0, 0)
			}()
		}
		wg.Wait()
	}
}

// live returns who gets what is sent under the group's token. mu is held.
func (g *Group) live() []*member {
	list := make([]*member, 0, len(g.members))
	for _, m := range g.members {
		if g.gets(m) {
			list = append(list, m)
		}
	}
	return list
}

// gets says whether a member is one of those.
func (g *Group) gets(m *member) bool { return m.alive && !m.have && g.again[m] == nil }

// enrol has remind know who is there. mu is held, or nobody else has the group.
func (g *Group) enrol() {
	list := g.live()
	g.roster.Store(&list)
}

// stop ends what is under way.
func (g *Group) stop(err error) {
	g.cancel(err)
	g.port.poke()
}

// usable says whether the group can be used. mu is held.
func (g *Group) usable() error {
	if g.closed {
		return fmt.Errorf("broadcast %q: the group is closed", g.spec.Name)
	}
	if err := context.Cause(g.ctx); err != nil {
		return fmt.Errorf("broadcast %q: %w", g.spec.Name, err)
	}
	return nil
}

// Send gives a message: fill writes the payload, all of it, into the region. It returns once all live members' regions have
// it, as answers or the control plane tell. Members that are left out on the way are in the report; if
// none is left, the error wraps ErrNobody. An error of fill sends nothing.
func (g *Group) Send(ctx context.Context, size int64, fill func([]byte) error) (*Report, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return nil, err
	}
	if g.failed {
		return nil, fmt.Errorf("broadcast %q: members wait for the rest of a message whose sending has failed; close the group, and open another one", g.spec.Name)
	}
	rep := &Report{from: time.Now()}
	room := int64(g.spec.Chunks) - int64(g.used)
	if size < 0 || size > room*wire.ChunkSize-messageHead {
		return nil, fmt.Errorf("broadcast %q: a message of %d bytes, and %d chunks are left: %w", g.spec.Name, size, room, ErrFull)
	}
	if atomic.LoadUint32(&g.cast.shared.Transmissions) > mostTransmissions {
		return nil, fmt.Errorf("broadcast %q: its token has served for %d chunks; close the group, and open another one: %w", g.spec.Name, uint32(mostTransmissions), ErrFull)
	}
	total := chunksOf(size)
	s := sent{first: g.used, total: uint32(total), bytes: uint32(messageHead + size - int64(total-1)*wire.ChunkSize)}
	place := g.cast.data[int(s.first)*wire.ChunkSize:][:total*wire.ChunkSize]
	payload := place[messageHead:][:size:size]
	if fill != nil {
		if err := fill(payload); err != nil {
			clear(place)
			return nil, fmt.Errorf("broadcast %q: %w", g.spec.Name, err)
		}
	}
	putMessageHead(place, payload)
	g.rejoin(ctx)
	g.used += s.total
	g.sent = append(g.sent, s)
	rep.part, rep.Chunks = s, total
	err := g.transfer(ctx, s, rep, g.live(), true)
	if err == nil {
		err = g.repeats(ctx, s)
	}
	rep.Stored = time.Since(rep.from)
	rep.Elapsed = rep.Stored
	g.report(rep)
	if err != nil {
		g.failed = true
		return rep, fmt.Errorf("broadcast %q: %w", g.spec.Name, err)
	}
	return rep, g.nobody()
}

// nobody returns an error if there were members, and none is left. mu is held.
func (g *Group) nobody() error {
	for _, m := range g.members {
		if m.alive {
			return nil
		}
	}
	if len(g.members) == 0 {
		return nil
	}
	return fmt.Errorf("broadcast %q: %w: %w", g.spec.Name, ErrNobody, g.members[0].err)
}

// report says how members are. mu is held.
func (g *Group) report(rep *Report) {
	rep.Members = slices.Grow(rep.Members[:0], len(g.members))
	for _, m := range g.members {
		rep.Members = append(rep.Members, MemberReport{Name: m.Name, Have: m.have, Kernel: m.kernel, Err: m.err})
	}
}

// Confirm waits until all live members have checked, and taken, what the report is of. Those that can't are
// left out: see the report.
func (g *Group) Confirm(ctx context.Context, rep *Report) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return err
	}
	members := g.live()
	errs := make([]error, len(members))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(g.ctx, cancel)
	defer stop()
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = g.confirm(ctx, m, rep.part)
		}()
	}
	wg.Wait()
	if err := errors.Join(context.Cause(g.ctx), context.Cause(ctx)); err != nil {
		return fmt.Errorf("broadcast %q: %w", g.spec.Name, err)
	}
	for i, m := range members {
		if errors.Is(errs[i], shuffle.ErrDigest) && !g.repeat {
			g.node.opts.Log.Warn("broadcast: a member's message is not what was sent; it gets all again", "name", g.spec.Name, "member", m.Name, "reason", errs[i])
			errs[i] = g.giveAgain(ctx, m, errs[i])
		}
		if errs[i] != nil {
			g.drop(m, errs[i])
		}
	}
	rep.Elapsed = time.Since(rep.from)
	g.report(rep)
	return g.nobody()
}

// confirm waits until a member has taken a message, however long that takes as long as the member
// answers other questions.
func (g *Group) confirm(ctx context.Context, m *member, s sent) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	patience := g.node.opts.Patience
	g.calls.Add(1)
	go func() {
		defer g.calls.Done()
		for failures := 0; ; {
			select {
			case <-done:
				return
			case <-time.After(patience / 4):
			}
			asking, stop := context.WithTimeout(ctx, patience/2)
			_, err := m.Control.Missing(asking, g.token, 0, 0)
			stop()
			if err == nil || errors.Is(err, shuffle.ErrUnknown) {
				failures = 0
				continue
			}
			if failures++; failures > 1 {
				cancel(fmt.Errorf("it does not answer: %w", err))
				return
			}
		}
	}()
	err := m.Control.ConfirmMessage(ctx, g.token, s.first)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// giveAgain gives a member all that was sent, in a group of its own.
func (g *Group) giveAgain(ctx context.Context, m *member, why error) error {
	if m.chain != nil {
		g.unlink(m)
	}
	g.forget(m)
	spec := g.spec
	spec.Members, spec.Chains = []Member{m.Member}, 1
	sub, err := g.node.Open(ctx, spec)
	if err != nil {
		return errors.Join(why, err)
	}
	sub.repeat = true
	g.again[m] = sub
	g.enrol()
	for _, s := range g.sent {
		if err := g.repeatTo(ctx, sub, s); err != nil {
			return errors.Join(why, err)
		}
	}
	return nil
}

// repeatTo gives a message of this group to another one, and waits until that has confirmed it.
func (g *Group) repeatTo(ctx context.Context, sub *Group, s sent) error {
	from := int64(s.first)*wire.ChunkSize + messageHead
	size := int64(s.total-1)*wire.ChunkSize + int64(s.bytes) - messageHead
	rep, err := sub.Send(ctx, size, func(b []byte) error {
		copy(b, g.cast.data[from:])
		return nil
	})
	if err != nil {
		return err
	}
	return sub.Confirm(ctx, rep)
}

// repeats gives a message to members that have groups of their own. mu is held.
func (g *Group) repeats(ctx context.Context, s sent) error {
	for m, sub := range g.again {
		if !m.alive {
			continue
		}
		if err := g.repeatTo(ctx, sub, s); err != nil {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			g.drop(m, err)
		}
	}
	return nil
}

// Join gives a member all that was sent until now, and then all that comes. If it can't, the error says why, and the group
// goes on without it.
func (g *Group) Join(ctx context.Context, late Member) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return err
	}
	if len(g.members) >= maxMembers {
		return fmt.Errorf("broadcast %q: %s is late, and there are %d members, which is as many as there can be", g.spec.Name, late.Name, len(g.members))
	}
	m := &member{Member: late, index: len(g.members), alive: true}
	err := g.join(ctx, m)
	if err != nil {
		m.alive = false
		return fmt.Errorf("broadcast %q: %s joins: %w", g.spec.Name, late.Name, err)
	}
	g.members = append(g.members, m)
	g.enrol()
	return nil
}

func (g *Group) join(ctx context.Context, m *member) (err error) {
	if m.Address.Port() == 0 {
		if err := g.askPort(ctx, m); err != nil {
			return err
		}
	}
	m.Address = netip.AddrPortFrom(m.Address.Addr().Unmap(), m.Address.Port())
	a, err := g.port.local(m.Address.Addr())
	if err != nil {
		return err
	}
	m.source = netip.AddrPortFrom(a, g.port.number())

	// A chain of its own, or the end of the shortest one.
	var c *chain
	if i := slices.IndexFunc(g.chains, func(c *chain) bool { return len(c.members) == 0 }); i >= 0 {
		c = g.chains[i]
	} else if len(g.chains) < wire.MaxChains {
		c = &chain{number: len(g.chains), window: g.window}
	} else {
		c = slices.MinFunc(g.chains, func(a, b *chain) int { return len(a.members) - len(b.members) })
	}
	var taken uint64
	for _, o := range g.members {
		if o.alive && o.home == c { // those too that are not in it for a while: see rejoin
			taken |= 1 << o.bit
		}
	}
	if taken == ^uint64(0) {
		return fmt.Errorf("all chains have %d members", wire.MaxChains)
	}
	m.bit = uint8(bits.TrailingZeros64(^taken))
	spec := g.regionSpec(m)
	spec.Chain = uint16(c.number)
	open := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, g.node.opts.Patience)
		defer cancel()
		grant, err := m.Control.OpenRegion(ctx, spec)
		m.have, m.kernel = grant.Have, grant.Kernel
		return err
	}
	if err := open(ctx); err != nil || m.have {
		return err
	}
	for _, s := range g.sent {
		if err = g.transfer(ctx, s, &Report{from: time.Now()}, []*member{m}, false); err != nil || !m.alive {
			g.forget(m)
			return errors.Join(err, m.err)
		}
	}

	// Now it is one of the chain.
	if err := g.append(ctx, c, m, g.node.opts.Patience); err != nil {
		g.forget(m)
		return err
	}
	return nil
}

// append makes a member the last one of a chain, which may be a new one.
func (g *Group) append(ctx context.Context, c *chain, m *member, patience time.Duration) error {
	if n := len(c.members); n > 0 {
		last := c.members[n-1]
		ctx, cancel := context.WithTimeout(ctx, patience)
		err := g.relinkNow(ctx, last, m.Address)
		cancel()
		if err != nil {
			// It may have heard it even so.
			g.relink(last, netip.AddrPort{})
			return fmt.Errorf("have %s send to it: %w", last.Name, err)
		}
	}
	g.heading.Lock()
	if c.number == len(g.chains) {
		g.chains = append(g.chains, c)
		atomic.StoreUint32(&g.cast.shared.Chains, uint32(len(g.chains)))
	}
	g.heading.Unlock()
	m.chain, m.home = c, c
	c.members = append(c.members, m)
	g.want(c)
	if len(c.members) == 1 {
		g.setHead(c)
	}
	if g.spec.Window <= 0 {
		g.window = windowFor(len(g.chains))
		for _, c := range g.chains {
			c.window = min(c.window, g.window)
		}
	}
	return nil
}

// Close tells the members that this was all, or that the rest does not come if a Send failed, and gives
// the memory back.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	whole := !g.failed && context.Cause(g.ctx) == nil
	var errs []error
	for m, sub := range g.again {
		if !whole {
			sub.mu.Lock()
			sub.failed = true
			sub.mu.Unlock()
		}
		if err := sub.Close(ctx); err != nil && m.alive {
			errs = append(errs, err)
		}
	}
	members := g.live()
	g.mu.Unlock()
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), closeFor)
		defer cancel()
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range members {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithTimeout(ctx, g.node.opts.Patience)
			defer cancel()
			if err := m.Control.CloseRegion(ctx, g.token, whole); err != nil && whole {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("broadcast %q: end it at %s: %w", g.spec.Name, m.Name, err))
			}
		}()
	}
	wg.Wait()
	return errors.Join(append(errs, g.release())...)
}

// release gives all back that the group has at this host.
func (g *Group) release() error {
	g.cancel(errors.New("the group is closed"))
	g.port.poke()
	g.calls.Wait()
	err := errors.Join(g.cast.close(), g.port.close())
	n := g.node
	n.mu.Lock()
	delete(n.groups, g)
	n.mu.Unlock()
	return err
}

// shut closes a group that its owner has not closed when the node ends.
func (g *Group) shut() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	g.mu.Lock()
	g.failed = true
	g.mu.Unlock()
	return g.Close(ctx)
}
