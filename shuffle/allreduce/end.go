// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	minBits = 2
	maxBits = 12
)

// left is how GroupStatus says that a member's end was closed by its caller. What it has contributed to
// calls before stays good, and its host goes on serving others.
const left = "it has left the group"

// end is a member's end of a group.
//
// Its blocks are added up, and results are stored and sent on, by whoever calls Handle, by the one call, and by programs. All of them
// go by the marks in sums and results; see quern.h.
type end struct {
	node    *Node
	spec    shuffle.GroupSpec
	tags    *wire.Tags
	members int
	rank    int
	bits    int
	row     int
	next    netip.AddrPort // the member behind this one
	sums    elements       // of this member's blocks; none in a group of one
	results elements       // of all members' blocks
	counts  *wire.Group    // its Stored and Wake; mapped where programs serve it

	// Of ends that programs serve.
	kernel   bool
	slot     int
	contents []*shuffle.Content
	linking  sync.Mutex
	linked   bool // programs may still read the other one of counts.Hops

	cost    int64
	gate    gate       // who uses memory or counts is inside
	adding  sync.Mutex // who writes user space's elements and results of blocks, or reads these to send them
	wake    chan struct{}
	broken  chan struct{} // closed after cause was set
	cause   atomic.Pointer[failure]
	closing sync.Once
	gone    chan struct{} // all is given back

	streams *streams // nil: all calls go by frames
	calling atomic.Bool
	calls   atomic.Uint64 // begun
	waiting atomic.Bool
	call    progress // of the one who calls
}

// failure is why an end is broken.
type failure struct {
	err     error
	outside bool // it came from who formed the group: nothing of this member is the reason, unless err says so
}

// elements is memory for blocks, each with a mark.
type elements struct {
	data  []byte
	marks []uint64
}

func (s *elements) at(i int) []byte { return s.data[i*wire.ChunkSize:][:wire.ChunkSize:wire.ChunkSize] }

// checkSpec says what is wrong with a spec.
func checkSpec(spec *shuffle.GroupSpec) error {
	n := len(spec.Members)
	if spec.Token == 0 || n < 1 || n > wire.MaxMembers || spec.Rank < 0 || spec.Rank >= n || spec.Bits < minBits || spec.Bits > maxBits {
		return fmt.Errorf("all-reduce %q: token %#x, member %d of %d, room for 2^%d blocks make no group: %w", spec.Name, spec.Token, spec.Rank, n, spec.Bits, shuffle.ErrRefused)
	}
	if spec.Streams > shuffle.StreamsAlways {
		return fmt.Errorf("all-reduce %q: there is no use %d of streams: %w", spec.Name, spec.Streams, shuffle.ErrRefused)
	}
	for i, m := range spec.Members {
		if !m.Address.IsValid() || m.Address.Port() == 0 {
			return fmt.Errorf("all-reduce %q: member %d (%s) has the address %s: %w", spec.Name, i, m.Name, m.Address, shuffle.ErrRefused)
		}
		if m.Stream < 0 || m.Stream > math.MaxUint16 || m.Stream == 0 && spec.Streams == shuffle.StreamsAlways {
			return fmt.Errorf("all-reduce %q: streams are used %s, and member %d (%s) takes them at port %d: %w", spec.Name, spec.Streams, i, m.Name, m.Stream, shuffle.ErrRefused)
		}
	}
	return nil
}

// hasStreams says whether calls of an end may go over streams.
func (e *end) hasStreams() bool { return usesStreams(&e.spec) }

// usesStreams says whether a group has streams: all members take them, and its spec does not forbid it.
func usesStreams(spec *shuffle.GroupSpec) bool {
	none := func(m shuffle.GroupMember) bool { return m.Stream == 0 }
	return len(spec.Members) > 1 && spec.Streams != shuffle.StreamsNever && !slices.ContainsFunc(spec.Members, none)
}

func sameSpec(a, b *shuffle.GroupSpec) bool {
	return a.Job == b.Job && a.Secret == b.Secret && a.Mode == b.Mode && a.Token == b.Token && a.Name == b.Name && a.Rank == b.Rank && a.Bits == b.Bits && a.Streams == b.Streams &&
		slices.Equal(a.Members, b.Members)
}

// open makes an end, and has frames find it.
func (n *Node) open(spec shuffle.GroupSpec) (*end, error) {
	if spec.Mode == shuffle.KernelOnly && n.kernel == nil {
		return nil, fmt.Errorf("all-reduce %q: mode %s, and no kernel's help here: %w", spec.Name, spec.Mode, shuffle.ErrRefused)
	}
	if usesStreams(&spec) && n.opts.Streams == nil {
		return nil, fmt.Errorf("all-reduce %q: streams are used %s, and none are taken here: %w", spec.Name, spec.Streams, shuffle.ErrRefused)
	}
	spec.Members = slices.Clone(spec.Members)
	e := &end{
		node: n, spec: spec, tags: wire.NewTags(spec.Secret), members: len(spec.Members), rank: spec.Rank, bits: spec.Bits,
		next: spec.Members[(spec.Rank+1)%len(spec.Members)].Address, counts: &wire.Group{}, slot: -1,
		gate: gate{idle: make(chan struct{}, 1)}, wake: make(chan struct{}, 1), broken: make(chan struct{}), gone: make(chan struct{}),
	}
	e.call.init(e)
	if e.members == 1 {
		return e, nil
	}
	if n.kernel != nil && spec.Mode != shuffle.UserOnly {
		err := e.reserveKernel()
		if err != nil && spec.Mode == shuffle.KernelOnly {
			return nil, err
		}
		if err != nil {
			n.warn("programs can't serve a group", err, "name", spec.Name)
		}
	}
	if !e.kernel {
		if err := e.reserve(); err != nil {
			return nil, err
		}
	} else if err := e.publish(); err != nil {
		e.giveBack()
		return nil, err
	}
	if e.hasStreams() {
		e.streams = newStreams(e)
	}
	return e, nil
}

// size returns how many elements there are of sums and of results.
func (e *end) size() (sums, results int) { return e.row << e.bits, e.members << e.bits }

// take takes from the node's budget what the elements cost.
func (e *end) take() error {
	n := e.node
	sums, results := e.size()
	e.cost = int64(sums+results) * (wire.ChunkSize + 8)
	if e.hasStreams() {
		e.cost += int64(e.members-1) * readRoom
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case e.cost > n.opts.Memory:
		err := fmt.Errorf("all-reduce %q: it takes %d bytes, where all groups may have %d: %w; raise the limit, or make the window smaller", e.spec.Name, e.cost, n.opts.Memory, shuffle.ErrRefused)
		e.cost = 0
		return err
	case n.used+e.cost > n.opts.Memory:
		err := fmt.Errorf("all-reduce %q: it takes %d bytes, and %d of %d are in use: %w", e.spec.Name, e.cost, n.used, n.opts.Memory, shuffle.ErrBusy)
		e.cost = 0
		return err
	}
	n.used += e.cost
	return nil
}

// give undoes take.
func (e *end) give() {
	e.node.mu.Lock()
	defer e.node.mu.Unlock()
	e.node.used -= e.cost
	e.cost = 0
}

// reserve makes room in the process's own memory.
func (e *end) reserve() error {
	e.row = wire.RowCPU + 1
	if err := e.take(); err != nil {
		return err
	}
	sums, results := e.size()
	e.sums = elements{make([]byte, sums*wire.ChunkSize), make([]uint64, sums)}
	e.results = elements{make([]byte, results*wire.ChunkSize), make([]uint64, results)}
	return nil
}

// reserveKernel makes room that programs share, and takes a slot of theirs and the job's keys.
func (e *end) reserveKernel() (err error) {
	n := e.node
	e.row = wire.RowCPU + n.cpus + 1
	if err := e.take(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			for _, c := range e.contents {
				n.warn("memory of a group", n.kernel.FreeContent(c), "name", e.spec.Name)
			}
			e.contents = nil
			e.give()
			if e.slot >= 0 {
				n.mu.Lock()
				n.free = append(n.free, e.slot)
				n.mu.Unlock()
				e.slot = -1
			}
		}
	}()
	n.mu.Lock()
	if last := len(n.free) - 1; last >= 0 {
		e.slot, n.free = n.free[last], n.free[:last]
	}
	n.mu.Unlock()
	if e.slot < 0 {
		return fmt.Errorf("all-reduce %q: all %d groups that programs serve are in use: %w", e.spec.Name, len(n.shared), shuffle.ErrBusy)
	}
	sums, results := e.size()
	for _, size := range []int{sums, results} {
		c, err := n.kernel.NewContent(size)
		if err != nil {
			return fmt.Errorf("all-reduce %q: %w", e.spec.Name, err)
		}
		e.contents = append(e.contents, c)
	}
	job, err := n.jobs.Acquire(e.spec.Job, e.tags.Job())
	if err != nil {
		return fmt.Errorf("all-reduce %q: %w", e.spec.Name, err)
	}
	s, r := e.contents[0], e.contents[1]
	e.sums, e.results = elements{s.Data, s.Marks}, elements{r.Data, r.Marks}
	e.kernel, e.counts = true, &n.shared[e.slot]
	g := e.counts
	atomic.StoreUint32(&g.Job, uint32(job))
	atomic.StoreUint32(&g.Sums, s.ID)
	atomic.StoreUint32(&g.SumMarks, s.Mark)
	atomic.StoreUint32(&g.Results, r.ID)
	atomic.StoreUint32(&g.ResultMarks, r.Mark)
	atomic.StoreUint32(&g.Row, uint32(e.row))
	g.Bits, g.Members, g.Rank, g.Flags = uint8(e.bits), uint8(e.members), uint8(e.rank), 0
	for _, p := range []*uint32{&g.Hop, &g.Stored, &g.Wake, &g.Reduced, &g.Passed} {
		atomic.StoreUint32(p, 0)
	}
	g.Hops = [2]wire.Hop{}
	return nil
}

// publish has programs find the end.
func (e *end) publish() error {
	n := e.node
	// The system looks for a way when a socket sends: a byte that means nothing does.
	for i := 0; i < 4 && e.aim(); i++ {
		_ = n.opts.Send([]byte{0}, 1, e.next)
		time.Sleep(time.Millisecond << i)
	}
	if e.aim() {
		n.lookAgain()
	}
	atomic.StoreUint64(&e.counts.Token, e.spec.Token)
	if err := n.kernel.SetToken(e.spec.Token, e.slot); err != nil {
		atomic.StoreUint64(&e.counts.Token, 0)
		return fmt.Errorf("all-reduce %q: %w", e.spec.Name, errors.Join(err, n.kernel.ClearToken(e.spec.Token), n.kernel.Quiesce()))
	}
	return nil
}

// aim tells programs the way to the next member. It says whether the system has to find it first; until then
// user space sends.
func (e *end) aim() (pending bool) {
	if !e.kernel {
		return false
	}
	e.linking.Lock()
	defer e.linking.Unlock()
	hop, err := e.node.kernel.Hop(e.next)
	if err != nil {
		pending = errors.Is(err, shuffle.ErrNotNow)
		hop = wire.Hop{}
	}
	g := e.counts
	use := atomic.LoadUint32(&g.Hop) & 1
	if g.Hops[use] == hop {
		return pending
	}
	if e.linked {
		if err := e.node.kernel.Quiesce(); err != nil {
			return true
		}
	}
	g.Hops[1-use] = hop
	atomic.StoreUint32(&g.Hop, 1-use)
	e.linked = true
	return pending
}

// giveBack undoes what open reserved. Nobody finds the end any more, nor does a program run that found it.
func (e *end) giveBack() {
	n := e.node
	for _, c := range e.contents {
		n.warn("memory of a group", n.kernel.FreeContent(c), "name", e.spec.Name)
	}
	if e.kernel {
		n.jobs.Release(e.spec.Job)
		n.mu.Lock()
		n.free = append(n.free, e.slot)
		n.mu.Unlock()
	}
	e.give()
}

// shut takes the end apart. It is broken. Whoever calls it returns when it is gone.
func (e *end) shut() {
	e.closing.Do(func() {
		defer close(e.gone)
		n := e.node
		n.mu.Lock()
		n.editTokens(func(m map[uint64]*end) { delete(m, e.spec.Token) })
		n.mu.Unlock()
		var clear, quiet error
		if e.kernel {
			clear = n.kernel.ClearToken(e.spec.Token)
			atomic.StoreUint64(&e.counts.Token, 0)
		}
		e.gate.shut()
		if e.streams != nil {
			e.streams.close()
		}
		if e.kernel {
			quiet = n.kernel.Quiesce()
		}
		if err := errors.Join(clear, quiet); err != nil {
			// Programs may still know it: never use it again.
			n.warn("a group can't be given back", err, "name", e.spec.Name)
		} else {
			e.giveBack()
		}
		n.mu.Lock()
		delete(n.ends, e.spec.Token)
		n.mu.Unlock()
	})
	<-e.gone
}

// editTokens replaces the map of open ends. mu is held.
func (n *Node) editTokens(f func(map[uint64]*end)) {
	old := *n.tokens.Load()
	m := make(map[uint64]*end, len(old)+1)
	for k, v := range old {
		m[k] = v
	}
	f(m)
	n.tokens.Store(&m)
}

// fail breaks the end, unless it is broken already.
func (e *end) fail(err error) { e.breaks(&failure{err: err}) }

// failFor is fail for a reason that somebody else gives.
func (e *end) failFor(err error) { e.breaks(&failure{err, true}) }

func (e *end) breaks(f *failure) {
	if e.cause.CompareAndSwap(nil, f) {
		close(e.broken)
	}
}

// err returns why it is broken, nil if it is not.
func (e *end) err() error {
	f := e.cause.Load()
	if f == nil {
		return nil
	}
	if errors.Is(f.err, ErrBroken) {
		return fmt.Errorf("all-reduce %q: %w", e.spec.Name, f.err)
	}
	return fmt.Errorf("all-reduce %q: %w: %w", e.spec.Name, ErrBroken, f.err)
}

func (e *end) memberError(rank int, why error) error {
	return &MemberError{Rank: rank, Name: e.spec.Members[rank].Name, Err: why}
}

// reasonOf makes an error of a reason as it travels, which may be the text of a MemberError.
func reasonOf(members []shuffle.GroupMember, text string) error {
	for i, m := range members {
		if rest, ok := strings.CutPrefix(text, fmt.Sprintf("member %d (%s): ", i, m.Name)); ok {
			return &MemberError{Rank: i, Name: m.Name, Err: errors.New(rest)}
		}
	}
	return errors.New(text)
}

func (e *end) Rank() int { return e.rank }

func (e *end) Size() int { return e.members }

// errEndLeft is why an end is broken that its caller has closed between two calls.
var errEndLeft = errors.New(left)

// Close leaves the group. The host goes on serving the others until the group is closed.
func (e *end) Close() error {
	if e.calling.Load() {
		e.fail(errors.New("it was closed in the middle of a call"))
	} else {
		e.fail(errEndLeft)
	}
	return nil
}

// poke wakes the call.
func (e *end) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// control is a node as those see it who form groups.
type control struct{ n *Node }

// Control returns what is asked of this host as a member.
func (n *Node) Control() shuffle.ReduceControl { return control{n} }

func (c control) ReduceEndpoint(context.Context) (shuffle.Endpoint, error) {
	return shuffle.Endpoint{Port: c.n.opts.Port, Kernel: c.n.kernel != nil, Frame: wire.FrameSize, Stream: c.n.streamPort()}, nil
}

func (c control) OpenGroup(ctx context.Context, spec shuffle.GroupSpec) (shuffle.GroupGrant, error) {
	if err := checkSpec(&spec); err != nil {
		return shuffle.GroupGrant{}, err
	}
	n := c.n
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return shuffle.GroupGrant{}, fmt.Errorf("all-reduce %q: %w", spec.Name, ErrClosed)
	}
	o := n.ends[spec.Token]
	if o != nil {
		n.mu.Unlock()
		if !sameSpec(&o.spec, &spec) {
			return shuffle.GroupGrant{}, fmt.Errorf("all-reduce %q: token %#x is open for something else: %w", spec.Name, spec.Token, shuffle.ErrRefused)
		}
		select {
		case <-o.ready:
		case <-ctx.Done():
			return shuffle.GroupGrant{}, ctx.Err()
		}
		if o.err != nil {
			return shuffle.GroupGrant{}, o.err
		}
		return shuffle.GroupGrant{Kernel: o.end.kernel}, nil
	}
	o = &opening{spec: spec, ready: make(chan struct{})}
	n.ends[spec.Token] = o
	n.mu.Unlock()
	defer close(o.ready)
	o.end, o.err = n.open(spec)
	n.mu.Lock()
	defer n.mu.Unlock()
	if o.err != nil {
		delete(n.ends, spec.Token)
		return shuffle.GroupGrant{}, o.err
	}
	n.editTokens(func(m map[uint64]*end) { m[spec.Token] = o.end })
	return shuffle.GroupGrant{Kernel: o.end.kernel}, nil
}

// find returns an end that is open.
func (c control) find(token uint64) (*end, error) {
	if e := (*c.n.tokens.Load())[token]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("all-reduce: a group with token %#x: %w", token, shuffle.ErrUnknown)
}

func (c control) GroupStatus(_ context.Context, token uint64) (shuffle.GroupStatus, error) {
	e, err := c.find(token)
	if err != nil {
		return shuffle.GroupStatus{}, err
	}
	s := shuffle.GroupStatus{Calls: e.calls.Load(), Waiting: e.waiting.Load()}
	if f := e.cause.Load(); f != nil {
		s.Broken = f.err.Error()
	}
	if e.gate.enter() {
		s.Results = atomic.LoadUint32(&e.counts.Stored)
		e.gate.leave()
	}
	if e.streams != nil {
		s.Results += e.streams.came.Load()
	}
	return s, nil
}

func (c control) BreakGroup(_ context.Context, token uint64, reason string) error {
	e, err := c.find(token)
	if err != nil {
		return err
	}
	e.failFor(reasonOf(e.spec.Members, reason))
	return nil
}

func (c control) CloseGroup(ctx context.Context, token uint64) error {
	c.n.mu.Lock()
	o := c.n.ends[token]
	c.n.mu.Unlock()
	if o != nil { // whoever opens it may have given up, and nobody would close it later
		select {
		case <-o.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e, err := c.find(token)
	if err != nil {
		return err
	}
	e.failFor(errors.New("the group was closed"))
	e.shut()
	return nil
}
