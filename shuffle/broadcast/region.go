// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// messageHead is what a message begins with: the size of its payload in eight bytes, little-endian,
// the payload's xxh3-128 in sixteen, zeros.
const messageHead = 32

func chunksOf(size int64) int { return int((size + messageHead + wire.ChunkSize - 1) / wire.ChunkSize) }

// putMessageHead writes the head of a message before its payload.
func putMessageHead(b []byte, payload []byte) {
	binary.LittleEndian.PutUint64(b, uint64(len(payload)))
	sum := xxh3.Hash128(payload).Bytes()
	copy(b[8:], sum[:])
}

// ErrEnded is how a region ends whose source does not go on with it.
var ErrEnded = errors.New("the source has ended the broadcast before all was sent")

// ErrSilent is how a region ends whose source is not heard of.
var ErrSilent = errors.New("the source of the broadcast says nothing any more")

// opening is a region that is open, or is being opened.
type opening struct {
	spec   shuffle.RegionSpec
	ready  chan struct{}
	region *region // after ready; nil: nothing was opened
	grant  shuffle.RegionGrant
	err    error
}

// way is where a region's chunks go to.
type way struct {
	to   netip.AddrPort
	tail bool // to the source, as an answer
}

// region is a member's end of a broadcast.
//
// Its goroutine checks messages, gives them to the sink, and takes it apart in the end. Frames are
// stored and sent on by whoever calls Handle, and by programs.
type region struct {
	node   *Node
	spec   shuffle.RegionSpec
	tags   *wire.Tags
	memory *memory
	data   []byte
	marks  []uint64
	sink   Sink
	gate   gate
	next   atomic.Pointer[way]
	said   atomic.Uint64 // counts what came from the source

	// Of regions that programs serve.
	slot    int
	shared  *wire.Region // nil: none
	linking sync.Mutex
	linked  bool // programs may still read the other one of shared.Hops

	kick     chan struct{}
	stopping chan struct{}
	ended    chan struct{} // the sink has had its last call
	gone     chan struct{} // all is given back

	mu      sync.Mutex
	at      uint32 // place behind what the sink has taken
	err     error  // why it ends; ErrEnded and others, or
	stopped bool
	whole   bool          // the source has said that this was all
	changed chan struct{} // closed and made anew when at or err change

	// Of keep.
	heard   uint64
	heardAt time.Time
}

// open makes a region, or says that it is not wanted: then it returns nil and no error.
func (n *Node) open(spec shuffle.RegionSpec) (_ *region, err error) {
	switch {
	case spec.Token == 0 || spec.Chunks < 1 || spec.Chain >= wire.MaxChains || spec.Bit >= wire.MaxChains || !spec.Source.IsValid():
		return nil, fmt.Errorf("broadcast %q: token %#x, %d chunks, chain %d, bit %d, source %s make no region: %w", spec.Name, spec.Token, spec.Chunks, spec.Chain, spec.Bit, spec.Source, shuffle.ErrRefused)
	case n.opts.Incoming == nil || n.opts.Send == nil:
		return nil, fmt.Errorf("broadcast %q: this host takes no broadcasts: %w", spec.Name, shuffle.ErrRefused)
	case spec.Mode == shuffle.KernelOnly && n.kernel == nil:
		return nil, fmt.Errorf("broadcast %q: mode %s, and no kernel's help here: %w", spec.Name, spec.Mode, shuffle.ErrRefused)
	}
	r := &region{
		node: n, spec: spec, tags: wire.NewTags(spec.Secret), gate: newGate(), slot: -1,
		kick: make(chan struct{}, 1), stopping: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{}), changed: make(chan struct{}),
		heardAt: time.Now(),
	}
	if n.kernel != nil && spec.Mode != shuffle.UserOnly {
		if err = r.reserve(true); err != nil && spec.Mode == shuffle.KernelOnly {
			return nil, err
		}
	}
	if r.memory == nil {
		if err = r.reserve(false); err != nil {
			return nil, err
		}
	}
	defer func() {
		if r.sink == nil {
			r.giveBack()
		}
	}()
	r.sink, err = n.opts.Incoming(Offer{Job: spec.Job, Name: spec.Name, Kind: spec.Kind, Offset: spec.Offset, Size: spec.Size, Kernel: r.shared != nil})
	if errors.Is(err, ErrHave) {
		r.sink = nil
		return nil, nil
	}
	if err != nil {
		r.sink = nil
		return nil, fmt.Errorf("broadcast %q: %w", spec.Name, err)
	}
	if r.sink == nil {
		return nil, fmt.Errorf("broadcast %q: nobody wants it here: %w", spec.Name, shuffle.ErrRefused)
	}
	if err = r.publish(); err != nil {
		r.sink.End(err)
		r.sink = nil
		return nil, err
	}
	n.work.Add(1)
	go r.run()
	return r, nil
}

// reserve takes what a region needs: memory and, with programs, a slot and the job's keys.
func (r *region) reserve(kernel bool) (err error) {
	n := r.node
	if !kernel {
		if r.memory, err = n.newMemory(r.spec.Job, r.spec.Chunks, false); err != nil {
			return fmt.Errorf("broadcast %q: %w", r.spec.Name, err)
		}
		r.data, r.marks = r.memory.content.Data, r.memory.content.Marks
		return nil
	}
	n.mu.Lock()
	if len(n.freeRegions) == 0 {
		n.mu.Unlock()
		return fmt.Errorf("broadcast %q: all %d regions that programs serve are in use: %w", r.spec.Name, len(n.ends.Regions), shuffle.ErrBusy)
	}
	slot := n.freeRegions[len(n.freeRegions)-1]
	n.freeRegions = n.freeRegions[:len(n.freeRegions)-1]
	n.mu.Unlock()
	back := func() {
		n.mu.Lock()
		n.freeRegions = append(n.freeRegions, slot)
		n.mu.Unlock()
	}
	job, err := n.jobs.Acquire(r.spec.Job, r.tags.Job())
	if err != nil {
		back()
		return fmt.Errorf("broadcast %q: %w", r.spec.Name, err)
	}
	m, err := n.newMemory(r.spec.Job, r.spec.Chunks, true)
	if err != nil {
		n.jobs.Release(r.spec.Job)
		back()
		return fmt.Errorf("broadcast %q: %w", r.spec.Name, err)
	}
	r.memory, r.data, r.marks, r.slot, r.shared = m, m.content.Data, m.content.Marks, slot, &n.ends.Regions[slot]
	s := r.shared
	atomic.StoreUint32(&s.Job, uint32(job))
	atomic.StoreUint32(&s.Content, m.content.ID)
	atomic.StoreUint32(&s.Marks, m.content.Mark)
	s.Chunks, s.Chain, s.Bit, s.Flags = uint32(r.spec.Chunks), r.spec.Chain, r.spec.Bit, wire.FlagQuiet
	if r.spec.Eager {
		s.Flags = 0
	}
	atomic.StoreUint32(&s.Hop, 0)
	atomic.StoreUint64(&s.Stored, 0)
	atomic.StoreUint64(&s.Passed, 0)
	s.Hops = [2]wire.Hop{}
	return nil
}

// giveBack undoes reserve. Nobody finds the region any more, nor does a program run that found it.
func (r *region) giveBack() {
	n := r.node
	if r.shared != nil {
		n.jobs.Release(r.spec.Job)
		n.mu.Lock()
		n.freeRegions = append(n.freeRegions, r.slot)
		n.mu.Unlock()
	}
	n.warn("memory of a region", r.memory.release(), "name", r.spec.Name)
}

// publish has frames find the region.
func (r *region) publish() error {
	n := r.node
	r.aimAt(r.spec.Next)
	if r.shared != nil {
		if r.aim() {
			// The system looks for a way when a socket sends: a byte that means nothing does.
			for i := 0; i < 4 && r.aim(); i++ {
				_ = n.opts.Send([]byte{0}, r.next.Load().to)
				time.Sleep(time.Millisecond << i)
			}
			if r.aim() {
				n.lookAgain()
			}
		}
		atomic.StoreUint64(&r.shared.Token, r.spec.Token)
		if err := n.kernel.SetToken(r.spec.Token, r.slot); err != nil {
			atomic.StoreUint64(&r.shared.Token, 0)
			return fmt.Errorf("broadcast %q: %w", r.spec.Name, errors.Join(err, n.kernel.ClearToken(r.spec.Token), n.kernel.Quiesce()))
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.editTokens(func(m map[uint64]*region) { m[r.spec.Token] = r })
	return nil
}

// editTokens replaces the map of open regions. mu is held.
func (n *Node) editTokens(f func(map[uint64]*region)) {
	old := *n.tokens.Load()
	m := make(map[uint64]*region, len(old)+1)
	for k, v := range old {
		m[k] = v
	}
	f(m)
	n.tokens.Store(&m)
}

// aimAt says who gets what this member has.
func (r *region) aimAt(next netip.AddrPort) {
	if next.IsValid() {
		r.next.Store(&way{to: next})
	} else {
		r.next.Store(&way{to: r.spec.Source, tail: true})
	}
}

// relink changes it.
func (r *region) relink(next netip.AddrPort) {
	r.linking.Lock()
	r.aimAt(next)
	r.linking.Unlock()
	if r.aim() {
		r.node.lookAgain()
	}
}

// aim tells programs the way. It says whether the system has to find it first; until then user
// space sends.
func (r *region) aim() (pending bool) {
	s := r.shared
	if s == nil {
		return false
	}
	r.linking.Lock()
	defer r.linking.Unlock()
	w := r.next.Load()
	hop, err := r.node.kernel.Hop(w.to)
	if err != nil {
		pending = errors.Is(err, shuffle.ErrNotNow)
		hop = wire.Hop{}
	}
	if w.tail {
		hop.Tail = 1
	}
	use := atomic.LoadUint32(&s.Hop) & 1
	if s.Hops[use] == hop {
		return pending
	}
	if r.linked {
		if err := r.node.kernel.Quiesce(); err != nil {
			return true
		}
	}
	s.Hops[1-use] = hop
	atomic.StoreUint32(&s.Hop, 1-use)
	r.linked = true
	return pending
}

// attend looks the way up again, and ends a region whose source is silent. Keep alone calls it.
func (r *region) attend(now time.Time) (pending bool) {
	if !r.gate.enter() {
		return false
	}
	defer r.gate.leave()
	r.expire(now)
	return r.aim()
}

// chunk takes a chunk with the region's token: stores it, and sends it on or answers it. It is what
// programs do, in the order they do it.
func (r *region) chunk(frame []byte, c *wire.Chunk, data []byte, from netip.AddrPort) wire.Reason {
	n := r.node
	if uint64(c.First)+uint64(c.Total) > uint64(len(r.marks)) || c.Chain != r.spec.Chain && c.Chain < wire.ChainDirect {
		return wire.ChunkPlace
	}
	if !r.tags.OpenChunk(frame) {
		return wire.ChunkTag
	}
	r.said.Add(1)
	mark := &r.marks[c.Place]
	state := wire.MarkState(mark)
	if state == wire.MarkNone && wire.ClaimMark(mark) {
		place := r.data[int(c.Place)*wire.ChunkSize:][:wire.ChunkSize]
		clear(place[copy(place, data):])
		wire.SetMark(mark, wire.MarkStored)
		n.counts[wire.Stored].Add(1)
		if wire.CountMark(&r.marks[c.First]) == c.Total {
			r.wake()
		}
	} else if wire.MarkState(mark) == wire.MarkStored {
		n.counts[wire.StoredBefore].Add(1)
	} else {
		return wire.ChunkBusy
	}
	if c.Chain == wire.ChainDirect {
		wire.PassChunk(frame, wire.ChainDirect, r.spec.Bit, r.tags)
		_ = n.opts.Send(wire.AnswerChunk(frame, r.tags), from)
		return wire.ChainAnswered
	}
	// What can't be sent counts as lost.
	wire.PassChunk(frame, r.spec.Chain, r.spec.Bit, r.tags)
	w := r.next.Load()
	if w.tail {
		_ = n.opts.Send(wire.AnswerChunk(frame, r.tags), w.to)
		return wire.ChainAnswered
	}
	_ = n.opts.Send(frame, w.to)
	return wire.PassedOn
}

// wake has the region's goroutine look for messages that are whole.
func (r *region) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// stop has the region end: with nil, once all that is there was delivered.
func (r *region) stop(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.stopped, r.err, r.whole = true, err, err == nil
	close(r.stopping)
	r.tell()
}

// tell wakes who waits for changes. mu is held.
func (r *region) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// looks are when a region is looked at of whose messages nobody tells: programs are quiet, or
// there was no room for what they had to tell. There are more of them while chunks come.
type looks struct {
	r      *region
	timer  *time.Timer // nil: nothing comes but by Handle, which tells
	least  time.Duration
	pause  time.Duration
	stored uint64
}

const (
	quickLook = 5 * time.Millisecond
	slowLook  = 100 * time.Millisecond // where nothing comes, or programs tell of what comes
)

func (r *region) looks() *looks {
	l := &looks{r: r, least: quickLook}
	if r.shared == nil {
		return l
	}
	if r.spec.Eager {
		l.least = slowLook
	}
	l.pause = l.least
	l.timer = time.NewTimer(l.pause)
	return l
}

func (l *looks) due() <-chan time.Time {
	if l.timer == nil {
		return nil
	}
	return l.timer.C
}

// came says whether programs have stored chunks since it was last called.
func (l *looks) came() bool {
	stored := atomic.LoadUint64(&l.r.shared.Stored)
	came := stored != l.stored
	l.stored = stored
	return came
}

// past chooses the next time after one is past.
func (l *looks) past() {
	switch {
	case l.r.at == uint32(len(l.r.marks)):
		return // all is there
	case l.came():
		l.pause = l.least
	default:
		l.pause = min(2*l.pause, slowLook)
	}
	l.timer.Reset(l.pause)
}

// asked is called when somebody else had the region looked at.
func (l *looks) asked() {
	if l.timer != nil && l.pause > l.least && l.came() {
		l.pause = l.least
		l.timer.Reset(l.pause)
	}
}

func (l *looks) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

func (r *region) run() {
	n := r.node
	defer n.work.Done()
	look := r.looks()
	defer look.stop()
	for open := true; open; {
		for r.deliver(false) {
		}
		select {
		case <-r.kick:
			look.asked()
		case <-look.due():
			look.past()
		case <-r.stopping:
			open = false
		}
	}
	r.mu.Lock()
	err := r.err
	r.mu.Unlock()
	if err == nil {
		for r.deliver(true) {
		}
		if r.at < uint32(len(r.marks)) && wire.MarkState(&r.marks[r.at])|wire.MarkCount(&r.marks[r.at]) != 0 {
			err = fmt.Errorf("broadcast %q: the message at chunk %d: %w", r.spec.Name, r.at, ErrEnded)
		}
		r.mu.Lock()
		if r.err != nil {
			err = r.err
		} else {
			r.err = err
		}
		r.mu.Unlock()
	}
	n.mu.Lock()
	n.editTokens(func(m map[uint64]*region) { delete(m, r.spec.Token) })
	n.fates.put(r.spec.Token, fate{r.at, err})
	n.mu.Unlock()
	var clear, quiet error
	if r.shared != nil {
		clear = n.kernel.ClearToken(r.spec.Token)
		atomic.StoreUint64(&r.shared.Token, 0)
	}
	r.gate.shut()
	r.sink.End(err)
	close(r.ended)
	if r.shared != nil {
		quiet = n.kernel.Quiesce()
	}
	if err := errors.Join(clear, quiet); err != nil {
		// Programs may still know it: never use it again.
		n.warn("a region can't be given back", err, "name", r.spec.Name)
	} else {
		r.giveBack()
	}
	n.mu.Lock()
	delete(n.opening, r.spec.Token)
	n.mu.Unlock()
	close(r.gone)
}

// deliver gives the next message to the sink if it is there. It says whether there may be more. Last has it look at all
// chunks: who has stored one may not have counted it yet, while its answer was another one's.
func (r *region) deliver(last bool) bool {
	r.mu.Lock()
	at, failed := r.at, r.err != nil
	r.mu.Unlock()
	if failed || at >= uint32(len(r.marks)) || wire.MarkState(&r.marks[at]) != wire.MarkStored {
		return false
	}
	from := int64(at) * wire.ChunkSize
	head := r.data[from:][:messageHead]
	size := binary.LittleEndian.Uint64(head)
	room := int64(len(r.data)) - from - messageHead
	if size > uint64(room) {
		r.fail(fmt.Errorf("broadcast %q: a message of %d bytes, where there is room for %d: %w", r.spec.Name, size, room, shuffle.ErrDigest))
		return false
	}
	total := uint32(chunksOf(int64(size)))
	if !last && wire.MarkCount(&r.marks[at]) < total || !r.stored(at, total) {
		return false
	}
	payload := r.data[from+messageHead:][:size:size]
	if sum := xxh3.Hash128(payload).Bytes(); [16]byte(head[8:24]) != sum {
		r.fail(fmt.Errorf("broadcast %q: the message at chunk %d: %w", r.spec.Name, at, shuffle.ErrDigest))
		return false
	}
	m := &Message{message{memory: r.memory, payload: payload, offset: from + messageHead}}
	if err := r.sink.Message(m); err != nil {
		r.fail(fmt.Errorf("broadcast %q: %w", r.spec.Name, err))
		return false
	}
	r.mu.Lock()
	r.at = at + total
	r.tell()
	r.mu.Unlock()
	return true
}

// stored says whether all chunks of a message are there.
func (r *region) stored(first, total uint32) bool {
	for p := range total {
		if wire.MarkState(&r.marks[first+p]) != wire.MarkStored {
			return false
		}
	}
	return true
}

// fail ends the region.
func (r *region) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	if !r.stopped {
		r.stopped = true
		close(r.stopping)
	}
	r.tell()
}

// confirm waits until the sink has taken the message that begins at a place.
func (r *region) confirm(done <-chan struct{}, first uint32) (ok bool, err error) {
	for {
		r.mu.Lock()
		at, err, changed := r.at, r.err, r.changed
		r.mu.Unlock()
		switch {
		case first < at:
			return true, nil
		case err != nil:
			return false, err
		}
		r.wake() // in case programs told of it and nobody heard
		select {
		case <-changed:
		case <-done:
			return false, nil
		case <-r.ended:
			r.mu.Lock()
			at := r.at
			r.mu.Unlock()
			if first < at {
				return true, nil
			}
			return false, r.node.unknown(r.spec.Token)
		}
	}
}

// expire ends the region if nothing was heard of its source for too long.
func (r *region) expire(now time.Time) {
	heard := r.said.Load()
	if r.shared != nil {
		heard += atomic.LoadUint64(&r.shared.Stored)
	}
	if heard != r.heard {
		r.heard, r.heardAt = heard, now
		return
	}
	if now.Sub(r.heardAt) < r.node.opts.Idle {
		return
	}
	r.mu.Lock()
	whole := r.at == uint32(len(r.marks))
	r.mu.Unlock()
	if whole {
		r.stop(nil)
		return
	}
	r.stop(fmt.Errorf("broadcast %q: nothing from %s for %v: %w", r.spec.Name, r.spec.Source, r.node.opts.Idle, ErrSilent))
}
