// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var le = binary.LittleEndian

// part names a stream within its target.
type part struct{ task, segment uint32 }

// States of a slot, in its Spare[0], for a process that takes the memory up.
const (
	slotOpen     = 1 // it stands for the stream of its ID
	slotComplete = 2 // and that stream was complete
)

// stream is an open stream. What readers look at does not change once it is open.
type stream struct {
	id     shuffle.StreamID
	target *target
	slot   uint32
	token  uint64
	frames uint32
	job    *job
	shared *wire.Stream

	targetSlot uint32

	shut bool // guarded by the target's lock: nothing is claimed any more

	// Guarded by the receiver's lock.
	spec     shuffle.StreamSpec
	ready    chan struct{} // closed when the stream is open, or is not going to be
	isReady  bool
	asleep   bool // an earlier process left it; it has no token until it is opened again
	complete bool
}

// sum is what a complete stream brought.
type sum struct {
	id    [4]uint64 // identity
	pairs uint64
	check []uint64
	known bool // check is known
}

// identity is what a slot remembers of its stream.
func identity(spec *shuffle.StreamSpec) (id [4]uint64) {
	h := nameHash(spec.ID)
	return [4]uint64{h.Lo ^ spec.Digest, h.Hi, uint64(spec.ID.Map)<<32 | uint64(spec.ID.Segment), spec.Pairs}
}

func nameHash(s shuffle.StreamID) xxh3.Uint128 {
	var b [16 + 4*4]byte
	copy(b[:], s.Target.Job[:])
	le.PutUint32(b[16:], s.Target.Partition)
	le.PutUint32(b[20:], s.Target.Generation)
	le.PutUint32(b[24:], s.Map)
	le.PutUint32(b[28:], s.Segment)
	return xxh3.Hash128(b[:])
}

func newToken() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("receive: no random token: %w", err)
		}
		if t := le.Uint64(b[:]); t != 0 {
			return t, nil
		}
	}
}

func checkSpec(t *target, s *shuffle.StreamSpec) error {
	if s.Frames < 0 || s.Frames > wire.Segment {
		return fmt.Errorf("receive: %s has %d frames; at most %d are possible: %w", s.ID, s.Frames, wire.Segment, shuffle.ErrRefused)
	}
	if s.Check != nil && len(s.Check) != len(t.job.spec.Ops) {
		return fmt.Errorf("receive: %s has check sums for %d lanes, not %d: %w", s.ID, len(s.Check), len(t.job.spec.Ops), shuffle.ErrRefused)
	}
	return nil
}

func sameStream(a, b *shuffle.StreamSpec) bool {
	return a.Frames == b.Frames && a.Pairs == b.Pairs && a.Digest == b.Digest && slices.Equal(a.Check, b.Check)
}

// Open opens streams, in two waits for all. It waits until there are slots for
// them. A stream that is open gets its present grant.
func (r *Receiver) Open(ctx context.Context, specs []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	leave, err := r.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(specs) > len(r.mem.Streams) {
		return nil, fmt.Errorf("receive: %d streams at once, this host has room for %d; open fewer", len(specs), len(r.mem.Streams))
	}
	var held int64 // slots that are ours to take
	for {
		r.mu.Lock()
		grants, fresh, wait, err := r.plan(specs)
		if err != nil || wait != nil {
			r.mu.Unlock()
			r.slots.Release(held)
			held = 0
			if err != nil {
				return nil, err
			}
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, fmt.Errorf("receive: open streams: %w", context.Cause(ctx))
			case <-r.done:
				return nil, ErrClosed
			}
			continue
		}
		need := int64(0)
		for _, st := range fresh {
			if !st.asleep {
				need++
			}
		}
		if held < need && !r.slots.TryAcquire(need-held) {
			r.mu.Unlock()
			// All at once: whoever holds some while waiting for more could wait for ever.
			r.slots.Release(held)
			held = 0
			if err := r.acquire(ctx, need); err != nil {
				return nil, err
			}
			held = need
			continue
		}
		r.slots.Release(max(held-need, 0))
		if len(fresh) == 0 {
			r.mu.Unlock()
			return grants, nil
		}
		waits, err := r.place(fresh)
		r.mu.Unlock()
		if err == nil {
			err = r.publish(fresh, waits)
		}
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		for i := range specs {
			t := r.targets[place{specs[i].ID.Target.Job, specs[i].ID.Target.Partition}]
			for _, st := range fresh {
				if st.id == specs[i].ID {
					if t != st.target || t.gone {
						err = fmt.Errorf("receive: %s: %w", st.id, shuffle.ErrReset)
					}
					grants[i] = st.grant()
					grants[i].Share = r.share()
				}
			}
		}
		r.mu.Unlock()
		return grants, err
	}
}

func (r *Receiver) acquire(ctx context.Context, n int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.done:
			cancel(ErrClosed)
		case <-stop:
		}
	}()
	if err := r.slots.Acquire(ctx, n); err != nil {
		return fmt.Errorf("receive: wait for %d of %d slots for streams: %w", n, len(r.mem.Streams), context.Cause(ctx))
	}
	return nil
}

// plan looks at what is to be opened: grants of streams that are open or done,
// streams that are to get a slot or a token (none is registered yet), and what
// to wait for first. mu is held.
func (r *Receiver) plan(specs []shuffle.StreamSpec) (grants []shuffle.Grant, fresh []*stream, wait chan struct{}, err error) {
	grants = make([]shuffle.Grant, len(specs))
	seen := make(map[shuffle.StreamID]bool, len(specs))
	for i := range specs {
		spec := &specs[i]
		if seen[spec.ID] {
			return nil, nil, nil, fmt.Errorf("receive: %s is to be opened twice", spec.ID)
		}
		seen[spec.ID] = true
		t, err := r.target(spec.ID.Target)
		if err != nil {
			return nil, nil, nil, err
		}
		if err := checkSpec(t, spec); err != nil {
			return nil, nil, nil, err
		}
		key := part{spec.ID.Map, spec.ID.Segment}
		if d, ok := t.done[key]; ok {
			if d.id != identity(spec) {
				return nil, nil, nil, fmt.Errorf("receive: %s was folded with other frames (%d pairs, it is now said to have %d); a map output that changed needs a new generation: %w", spec.ID, d.pairs, spec.Pairs, shuffle.ErrRefused)
			}
			if !d.known {
				d.check, d.known = slices.Clone(spec.Check), true
				t.done[key] = d
			}
			grants[i] = shuffle.Grant{Done: true}
			continue
		}
		if t.finishing {
			return nil, nil, nil, fmt.Errorf("receive: %s: the target is finished without it; begin another generation: %w", spec.ID, shuffle.ErrRefused)
		}
		st := t.streams[key]
		switch {
		case st == nil:
			fresh = append(fresh, &stream{id: spec.ID, target: t, job: t.job, frames: uint32(spec.Frames), spec: *spec, ready: make(chan struct{})})
		case !st.isReady:
			return nil, nil, st.ready, nil
		case st.asleep:
			if identity(spec) != st.shared.ID || spec.Frames != int(st.shared.Frames) {
				return nil, nil, nil, fmt.Errorf("receive: %s is not what it was before this receiver was restarted; a map output that changed needs a new generation: %w", spec.ID, shuffle.ErrRefused)
			}
			st.spec = *spec
			fresh = append(fresh, st)
		case !sameStream(&st.spec, spec):
			return nil, nil, nil, fmt.Errorf("receive: %s is open with other frames; a map output that changed needs a new generation: %w", spec.ID, shuffle.ErrRefused)
		default:
			grants[i] = st.grant()
			grants[i].Share = r.share()
		}
	}
	return grants, fresh, nil, nil
}

// place gives slots to streams and registers them. mu is held, and the
// semaphore says that there are enough. waits says that a slot had a token
// lately.
func (r *Receiver) place(fresh []*stream) (waits bool, err error) {
	short := 0
	for _, st := range fresh {
		if !st.asleep {
			short++
		}
	}
	if len(r.freeSlots)+len(r.staleSlots) < short {
		r.reclaim()
	}
	if n := len(r.freeSlots) + len(r.staleSlots); n < short {
		r.slots.Release(int64(short))
		return false, fmt.Errorf("receive: %d slots for streams were lost", short-n)
	}
	for _, st := range fresh {
		st.isReady = false
		st.targetSlot = uint32(st.target.slot)
		if st.asleep {
			st.ready = make(chan struct{})
			continue
		}
		from := &r.freeSlots
		if len(*from) == 0 {
			from, waits = &r.staleSlots, true
		}
		last := len(*from) - 1
		st.slot = (*from)[last]
		*from = (*from)[:last]
		st.shared = &r.mem.Streams[st.slot]
		st.target.streams[part{st.id.Map, st.id.Segment}] = st
	}
	return waits, nil
}

// reclaim frees the slots of streams that are confirmed and were kept for a
// process that takes the memory up. Their targets are dirty from now on, so that it
// asks for them again. mu is held.
func (r *Receiver) reclaim() {
	for _, t := range r.targets {
		if len(t.kept) == 0 {
			continue
		}
		atomic.StoreUint32(&r.mem.Targets[t.slot].Dirty, 1)
		r.staleSlots = append(r.staleSlots, t.kept...)
		t.kept = nil
	}
}

// publish describes streams in their slots and opens them. It follows the rule of reuse: wait, rewrite, wait, token last.
func (r *Receiver) publish(fresh []*stream, waits bool) error {
	err := error(nil)
	if waits {
		err = r.quiesce()
	}
	for _, st := range fresh {
		if err != nil {
			break
		}
		if st.token, err = newToken(); err == nil {
			st.write(r.folds)
		}
	}
	if err == nil && r.folds {
		for _, st := range fresh {
			if st.target.tabled() {
				r.tables.prepare(st.target)
			}
		}
	}
	if err == nil {
		err = r.quiesce()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range fresh {
		st.isReady = true
		close(st.ready)
		if err != nil || st.target.gone || st.target.finishing {
			if st.target.gone || !st.asleep {
				st.shared.Spare[0] = 0
				delete(st.target.streams, part{st.id.Map, st.id.Segment})
				r.freeSlots = append(r.freeSlots, st.slot)
				r.slots.Release(1)
			}
			if err == nil {
				err = fmt.Errorf("receive: %s: %w", st.id, shuffle.ErrReset)
			}
			continue
		}
		st.asleep = false
		r.open++
		r.bySlot[st.slot].Store(st)
		atomic.StoreUint64(&st.shared.Token, st.token)
	}
	r.shareOut()
	return err
}

// write describes the stream in its slot, whose token is 0.
func (st *stream) write(folds bool) {
	s := st.shared
	if !st.asleep { // else what was folded of it stays so, should this process end here
		s.Spare[0] = 0
	}
	s.Job = uint32(max(st.job.slot, 0))
	s.Target = st.targetSlot
	s.Frames = st.frames
	s.Flags = 0
	s.Ops, s.Lanes = 0, 0
	if len(st.job.spec.Ops) <= wire.MaxLanes {
		s.Ops = st.job.spec.WireOps()
		if st.target.dense == 0 {
			s.Lanes = uint8(len(st.job.spec.Ops))
		}
		if folds && st.job.slot >= 0 && st.job.spec.Mode != shuffle.UserOnly {
			s.Flags = wire.FlagFold
		}
	}
	s.Generation = st.id.Target.Generation
	s.ID = identity(&st.spec)
	if !st.asleep {
		for i := range s.Seen {
			atomic.StoreUint64(&s.Seen[i], 0)
		}
	}
	s.Spare[0] = slotOpen
}

func (st *stream) grant() shuffle.Grant {
	g := shuffle.Grant{Slot: st.slot, Token: st.token}
	if c, n := st.claimed(); n > 0 {
		g.Claimed = c
	}
	return g
}

// claimed returns a bit per frame that was claimed, and how many there are.
func (st *stream) claimed() (list []uint32, n int) {
	list = make([]uint32, (st.frames+31)/32)
	for i := range list {
		list[i] = uint32(atomic.LoadUint64(&st.shared.Seen[i]))
		n += bits.OnesCount32(list[i])
	}
	return list, n
}

// share suggests how many frames a stream may have in flight.
func (r *Receiver) share() int {
	return min(max(r.opts.InFlight/max(r.open, 1), minShare), maxShare)
}

const (
	minShare = 4
	maxShare = 32 * wire.AckWords // what one answer tells of
)

// shareOut tells all open streams their share. mu is held.
func (r *Receiver) shareOut() {
	share := uint32(r.share())
	for i := range r.mem.Streams {
		if r.bySlot[i].Load() != nil {
			atomic.StoreUint32(&r.mem.Streams[i].Share, share)
		}
	}
}

// closeStream takes a stream's token. mu is held. What user space has in hand
// of it is folded when it returns; what programs have, after the next quiesce.
func (r *Receiver) closeStream(st *stream) {
	if st.token != 0 && st.isReady && !st.asleep {
		r.open--
	}
	r.bySlot[st.slot].Store(nil)
	atomic.StoreUint64(&st.shared.Token, 0)
	st.target.mu.Lock()
	st.shut = true
	st.target.mu.Unlock()
	delete(st.target.streams, part{st.id.Map, st.id.Segment})
}

// closeStreams closes all streams of a target and returns their slots, and how
// many of them the semaphore counts. mu is held.
func (r *Receiver) closeStreams(t *target) (slots []uint32, held int64) {
	for _, st := range t.streams {
		if !st.isReady {
			continue // whoever opens it takes its slot back
		}
		r.closeStream(st)
		st.shared.Spare[0] = 0
		slots = append(slots, st.slot)
		held++
	}
	for _, s := range t.kept {
		r.mem.Streams[s].Spare[0] = 0
	}
	slots = append(slots, t.kept...)
	t.kept = nil
	r.shareOut()
	return slots, held
}

// Status tells how far streams are. A stream is complete when all of its frames
// are claimed and nobody works on one any more.
func (r *Receiver) Status(_ context.Context, ids []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	leave, err := r.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	list := make([]shuffle.StreamStatus, len(ids))
	streams := make([]*stream, len(ids))
	r.mu.Lock()
	for i, id := range ids {
		t, err := r.target(id.Target)
		if err != nil {
			r.mu.Unlock()
			return nil, err
		}
		key := part{id.Map, id.Segment}
		if _, ok := t.done[key]; ok {
			list[i].Complete = true
			if st := t.streams[key]; st != nil {
				list[i].Claimed, _ = st.claimed()
			}
			continue
		}
		st := t.streams[key]
		if st == nil || st.asleep || !st.isReady {
			r.mu.Unlock()
			return nil, fmt.Errorf("receive: %s is not open: %w", id, shuffle.ErrReset)
		}
		streams[i] = st
	}
	r.mu.Unlock()
	var full []*stream
	for i, st := range streams {
		if st == nil {
			continue
		}
		n := 0
		list[i].Claimed, n = st.claimed()
		if n == int(st.frames) {
			full = append(full, st)
		}
	}
	if err := r.settle(full); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, st := range streams {
		if st == nil {
			continue
		}
		if st.target.gone {
			return nil, fmt.Errorf("receive: %s: %w", ids[i], shuffle.ErrReset)
		}
		_, list[i].Complete = st.target.done[part{st.id.Map, st.id.Segment}]
	}
	return list, nil
}

// settle makes sure that streams whose frames are all claimed are folded, and
// notes that they are complete.
func (r *Receiver) settle(full []*stream) error {
	if len(full) == 0 {
		return nil
	}
	if err := r.quiesce(); err != nil {
		return err
	}
	torn := map[*target]bool{}
	for _, st := range full {
		st.target.join()
		if r.torn(st.target) {
			torn[st.target] = true
		}
	}
	for t := range torn {
		if err := r.reset(t, "a program folded a part of a frame alone"); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range full {
		t := st.target
		if t.gone || torn[t] {
			continue
		}
		if err := t.failed(); err != nil {
			return err
		}
		r.complete(st)
	}
	return nil
}

// complete notes that a stream is complete. mu is held.
func (r *Receiver) complete(st *stream) {
	key := part{st.id.Map, st.id.Segment}
	if _, ok := st.target.done[key]; ok || st.target.streams[key] != st {
		return
	}
	st.complete = true
	st.shared.Spare[0] = slotComplete
	st.target.done[key] = sum{identity(&st.spec), st.spec.Pairs, slices.Clone(st.spec.Check), st.spec.Check != nil}
}

// torn says whether a program has folded a part of a frame alone.
func (r *Receiver) torn(t *target) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.vacated {
		return false
	}
	for i := range r.cells(t.slot) {
		if atomic.LoadUint32(&r.cells(t.slot)[i].Torn) != 0 {
			return true
		}
	}
	return false
}

// Confirm frees the slots of streams that the sender knows to be complete. ErrReset
// says that they are not any more, since their target has begun anew.
func (r *Receiver) Confirm(_ context.Context, ids []shuffle.StreamID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	for _, id := range ids {
		t := r.targets[place{id.Target.Job, id.Target.Partition}]
		if t == nil || t.id != id.Target {
			continue // it is over, and so is the stream
		}
		key := part{id.Map, id.Segment}
		if _, ok := t.done[key]; !ok {
			return fmt.Errorf("receive: %s is confirmed and not complete: %w", id, shuffle.ErrReset)
		}
		st := t.streams[key]
		if st == nil {
			continue // confirmed before
		}
		r.closeStream(st)
		r.slots.Release(1)
		if r.kernel != nil && atomic.LoadUint32(&r.mem.Targets[t.slot].Dirty) == 0 {
			// A process that takes the memory up must know that it was folded.
			t.kept = append(t.kept, st.slot)
			continue
		}
		st.shared.Spare[0] = 0
		r.staleSlots = append(r.staleSlots, st.slot)
	}
	r.shareOut()
	return nil
}

// Deliver takes frames of a stream over the control plane.
func (r *Receiver) Deliver(ctx context.Context, id shuffle.StreamID, frames [][]byte) error {
	leave, err := r.enter()
	if err != nil {
		return err
	}
	defer leave()
	r.mu.Lock()
	t, err := r.target(id.Target)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	key := part{id.Map, id.Segment}
	st := t.streams[key]
	if _, done := t.done[key]; done {
		r.mu.Unlock()
		return nil
	}
	if st == nil || st.asleep || !st.isReady {
		r.mu.Unlock()
		return fmt.Errorf("receive: %s is not open: %w", id, shuffle.ErrReset)
	}
	r.mu.Unlock()
	for _, frame := range frames {
		for again := true; again; {
			if err := t.waitRoom(ctx, len(frame)); err != nil {
				return err
			}
			if again, err = r.deliverOne(st, frame); err != nil {
				return err
			}
		}
	}
	return nil
}

// deliverOne says whether there was no room for the frame, once more.
func (r *Receiver) deliverOne(st *stream, frame []byte) (again bool, err error) {
	r.deliver.Lock()
	defer r.deliver.Unlock()
	h := r.control
	defer h.letGo()
	head, err := wire.ParseFrame(frame)
	if err != nil {
		return false, fmt.Errorf("receive: %s: a frame over the control plane: %w: %w", st.id, shuffle.ErrRefused, err)
	}
	if head.Kind != wire.Data || head.Token != st.token || head.Stream != st.slot {
		return false, fmt.Errorf("receive: a frame over the control plane is not of %s as it is open now: %w", st.id, shuffle.ErrReset)
	}
	switch reason := h.data(st, &head, frame); reason {
	case wire.Folded, wire.Duplicate:
		return false, nil
	case wire.BadToken:
		return false, fmt.Errorf("receive: %s: %w", st.id, shuffle.ErrReset)
	case busy:
		return true, nil
	default:
		if err := st.target.failed(); err != nil {
			return false, err
		}
		return false, fmt.Errorf("receive: %s: frame %d over the control plane is damaged (%s): %w", st.id, head.Seq, reasonName(reason), shuffle.ErrRefused)
	}
}
