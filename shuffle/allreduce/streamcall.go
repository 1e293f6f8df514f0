// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/quernmr/quern/shuffle/wire"
)

// othersSay is for how long a better reason is waited for than that a stream can't be written.
const othersSay = time.Second

// streamLocks is how many locks the pieces of a segment share.
const streamLocks = 16

// streamCall is a call over streams. Others' values are added to the own segment where it is in the vector, and results replace the rest of it,
// so a call needs no memory beside it.
type streamCall struct {
	s      *streams
	number uint64
	what   uint32
	ctx    context.Context
	v      Vector
	plan   streamPlan
	begun  time.Time // since when it has waited for long; zero: it has not
	told   bool      // so have others been
	named  time.Time // the log has said so
	timer  *time.Timer

	own    int // pieces of the own segment
	giving sync.Mutex
	given  atomic.Int32 // that were sent to all, by who holds giving
	whole  atomic.Int32 // that all have added to; they become so in their order, since every stream brings them in order
	to     atomic.Int32 // pieces of all kinds that are to come
	locks  [streamLocks]sync.Mutex
	adds   []int // by piece of the own segment: others that were added
}

// reduce is a call that goes over streams.
func (s *streams) reduce(ctx context.Context, number uint64, v Vector, what uint32) error {
	err := s.connect(ctx, number, what)
	if err == nil {
		c := &s.call
		if err = c.begin(ctx, s, number, v, what); err == nil {
			err = c.run()
		}
	}
	if err != nil {
		s.e.fail(err) // else readers would not leave
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.via, s.active = false, false
	for s.inside > 0 {
		s.change.Wait()
	}
	for _, o := range s.to {
		if o != nil && o.direct { // a reader may look at it, of whom it is not set
			o.direct = false
		}
	}
	s.call.v, s.call.ctx = Vector{}, nil
	return err
}

// begin has pieces be taken in.
func (c *streamCall) begin(ctx context.Context, s *streams, number uint64, v Vector, what uint32) error {
	e := s.e
	s.mu.Lock()
	defer s.mu.Unlock()
	c.s, c.ctx, c.number, c.v, c.what, c.begun, c.told = s, ctx, number, v, what, time.Time{}, false
	c.plan = s.sizes.plan(number, e.members, v)
	c.own = c.plan.pieces(e.rank)
	c.given.Store(0)
	c.whole.Store(0)
	if cap(c.adds) < c.own {
		c.adds = make([]int, c.own)
	}
	c.adds = c.adds[:c.own]
	clear(c.adds)
	all, wanted := 0, false
	for rank, o := range s.to {
		if o == nil {
			continue
		}
		o.parts, o.sums, o.nextPart, o.nextSum = c.own, c.plan.pieces(rank), 0, 0
		o.out.written.Store(0)
		all += o.parts + o.sums
		// Who has one piece to give and one to get does not need a reader to wake it. Before it reads it has written all: so nobody waits for it.
		if c.plan.owners == 1 && o.sums == 1 && !o.reading {
			o.direct = true
		}
		if o.direct && !o.in.limited {
			o.in.limited = true
			if err := o.in.conn.SetReadDeadline(time.Now().Add(waitBefore)); err != nil {
				return e.memberError(rank, err)
			}
		}
		wanted = wanted || !o.direct && o.parts+o.sums > 0
		if o.left && o.parts+o.sums > 0 {
			return e.memberError(rank, errEndLeft)
		}
	}
	c.to.Store(int32(all))
	if c.timer == nil {
		c.timer = time.NewTimer(time.Hour)
		c.timer.Stop()
	}
	s.active = true
	if wanted {
		s.wanted.Broadcast()
	}
	if s.waiting > 0 {
		s.change.Broadcast()
	}
	return nil
}

// run sends what the others are to have, until all that they send has come.
func (c *streamCall) run() error {
	s := c.s
	e := s.e
	for k, more := 0, true; more; k++ {
		more = false
		for i := 1; i < e.members; i++ {
			rank := (e.rank + i) % e.members
			if k >= c.plan.pieces(rank) {
				continue
			}
			more = true
			if err := c.part(rank, k); err != nil {
				return err
			}
			if err := c.give(); err != nil {
				return err
			}
		}
	}
	if o := s.to[c.plan.first]; o != nil && o.direct {
		for c.to.Load() > 0 {
			if err := o.message(); err != nil {
				if c.ctx.Err() == nil {
					s.lost(o, err)
				}
				return c.fault(o.rank, err)
			}
		}
		return nil
	}
	for {
		if err := c.give(); err != nil {
			return err
		}
		if int(c.given.Load()) == c.own && c.to.Load() == 0 {
			return nil
		}
		if err := c.wait(); err != nil {
			return err
		}
	}
}

// wait waits until there is something to do.
func (c *streamCall) wait() error {
	c.timer.Reset(waitBefore)
	defer c.timer.Stop()
	select {
	case <-c.s.wake:
	case <-c.timer.C:
		c.complain()
	case <-c.s.e.broken:
		return c.s.e.err()
	case <-c.ctx.Done():
		return ended(c.ctx)
	}
	return nil
}

// complain tells the other members which call is waited in here, once that is for long, and the log if it is for very long.
func (c *streamCall) complain() {
	s := c.s
	e := s.e
	now := time.Now()
	switch {
	case c.begun.IsZero():
		c.begun, c.named = now, now
		return
	case !c.told && now.Sub(c.begun) >= waitBefore/2:
		c.told = true
		s.announce(c.ctx, c.number, c.what)
		return
	case now.Sub(c.named) < e.node.opts.Patience:
		return
	}
	c.named = now
	var missing []string
	s.mu.Lock()
	for rank, o := range s.to {
		if o != nil && o.parts > 0 {
			missing = append(missing, fmt.Sprintf("%d (%s)", rank, e.spec.Members[rank].Name))
		}
	}
	s.mu.Unlock()
	e.node.opts.Log.Warn("all-reduce: a call waits", "name", e.spec.Name, "call", c.number, "for", now.Sub(c.begun).Round(time.Millisecond), "pieces", c.to.Load(), "no part from", missing)
}

// fault makes an error of what befell the stream of a member.
func (c *streamCall) fault(rank int, err error) error {
	e := c.s.e
	switch {
	case e.cause.Load() != nil:
		return e.err()
	case c.ctx.Err() != nil:
		return ended(c.ctx)
	}
	// An end that was broken before the connection was made has closed it, and says why by another way.
	select {
	case <-e.broken:
		return e.err()
	case <-time.After(othersSay):
	}
	return e.memberError(rank, fmt.Errorf("%w (%w)", errStreamEnds, err))
}

func (c *streamCall) head(kind wire.StreamKind, rank, from, n int) wire.StreamHead {
	e := c.s.e
	return wire.StreamHead{
		Kind: kind, From: uint8(e.rank), To: uint8(rank), Token: e.spec.Token, Call: c.number, What: c.what, Bytes: uint32(n * c.v.width()), Place: uint64(from),
	}
}

// part sends a piece of another member's segment to it.
func (c *streamCall) part(rank, k int) error {
	to := c.s.to[rank]
	o := &to.out
	from, n := c.plan.at(rank, k)
	h := c.head(wire.StreamPart, rank, from, n)
	o.writing.Lock()
	defer o.writing.Unlock()
	b := c.v.bytes(from, n)
	c.s.tags.Seal(o.head[:], &h, b, o.dialled, o.answered)
	if err := to.put(c.ctx, b, true); err != nil {
		return c.fault(rank, err)
	}
	o.written.Store(int32(k + 1))
	return nil
}

// give sends pieces of the own segment to all that are whole. Who calls does, or a reader if there is but one owner: nobody waits for its reader to read.
func (c *streamCall) give() error {
	if c.given.Load() == c.whole.Load() {
		return nil
	}
	e := c.s.e
	c.giving.Lock()
	defer c.giving.Unlock()
	for ; c.given.Load() < c.whole.Load(); c.given.Add(1) {
		from, n := c.plan.at(e.rank, int(c.given.Load()))
		b := c.v.bytes(from, n)
		h := c.head(wire.StreamSum, 0, from, n)
		hash := uint64(0)
		for i := 1; i < e.members; i++ {
			rank := (e.rank + i) % e.members
			if err := c.giveTo(c.s.to[rank], &h, b, &hash, i == 1); err != nil {
				return c.fault(rank, err)
			}
		}
	}
	return nil
}

func (c *streamCall) giveTo(to *stream, h *wire.StreamHead, b []byte, hash *uint64, first bool) error {
	o := &to.out
	o.writing.Lock()
	defer o.writing.Unlock()
	h.Put(o.head[:])
	if first {
		*hash = c.s.tags.Hash(o.head[:], b)
	}
	c.s.tags.Address(o.head[:], h, *hash, uint8(to.rank), o.dialled, o.answered)
	return to.put(c.ctx, b, true)
}

// piece takes in a piece of the call, of which the reader has read the head.
func (c *streamCall) piece(o *stream, h *wire.StreamHead) error {
	e := c.s.e
	part := h.Kind == wire.StreamPart
	owner, k := o.rank, o.nextSum
	if part {
		owner, k = e.rank, o.nextPart
	}
	if k >= c.plan.pieces(owner) {
		return errStreamOrder
	}
	from, n := c.plan.at(owner, k)
	bytes := n * c.v.width()
	if h.Place != uint64(from) || int(h.Bytes) != bytes {
		return errStreamOrder
	}
	if part {
		o.nextPart++
		return c.add(o, h, k, from, n)
	}
	o.nextSum++
	return c.set(o, h, k, from, n)
}

// add adds a piece to the own segment.
func (c *streamCall) add(o *stream, h *wire.StreamHead, k, from, n int) error {
	bytes := int(h.Bytes)
	b, err := o.take(wire.PaddedPiece(bytes))
	if err != nil {
		return err
	}
	b = b[:bytes]
	if !o.open(h, b) {
		return errStreamTag
	}
	l := &c.locks[k%streamLocks]
	l.Lock()
	c.v.fold(from, n, b)
	c.adds[k]++
	whole := c.adds[k] == c.plan.members-1
	l.Unlock()
	if !whole {
		return nil
	}
	c.whole.Store(int32(k + 1))
	if c.plan.owners == 1 {
		if err := c.give(); c.ctx.Err() == nil {
			return err
		}
		return errHalted // who calls says so
	}
	c.s.poke()
	return nil
}

// set replaces a piece by its result.
func (c *streamCall) set(o *stream, h *wire.StreamHead, k, from, n int) error {
	// What is there was written, else there would be no result; but the call that did it may have to return yet.
	for tries := 0; int(o.out.written.Load()) <= k; tries++ {
		if c.s.e.cause.Load() != nil {
			return errStreamOrder
		}
		if runtime.Gosched(); tries > 1000 {
			time.Sleep(time.Millisecond) // somebody else's words may say so: the tag is checked later
		}
	}
	bytes := int(h.Bytes)
	if littleEndian && wire.PaddedPiece(bytes) == bytes {
		b := c.v.raw(from, n)
		if err := o.into(b); err != nil {
			return err
		}
		if !o.open(h, b) {
			return errStreamTag
		}
		return nil
	}
	b, err := o.take(wire.PaddedPiece(bytes)) // so that what is next is at a multiple of 8 again
	if err != nil {
		return err
	}
	b = b[:bytes]
	if !o.open(h, b) {
		return errStreamTag
	}
	c.v.set(from, b)
	return nil
}

// bytes returns values as they stand in frames.
func (v Vector) bytes(from, n int) []byte {
	if littleEndian {
		return v.raw(from, n)
	}
	b := make([]byte, 0, n*v.width())
	for i := from; i < from+n; i++ {
		if len(v.Int64) != 0 {
			b = binary.LittleEndian.AppendUint64(b, uint64(v.Int64[i]))
		} else {
			b = binary.LittleEndian.AppendUint32(b, uint32(v.Int32[i]))
		}
	}
	return b
}

// fold has values take in those in b, which begins at a multiple of 8.
func (v Vector) fold(from, n int, b []byte) {
	at := unsafe.Pointer(unsafe.SliceData(b))
	switch wide := len(v.Int64) != 0; {
	case littleEndian && wide:
		combine(v.Op, v.Int64[from:][:n], unsafe.Slice((*int64)(at), n))
	case littleEndian:
		combine(v.Op, v.Int32[from:][:n], unsafe.Slice((*int32)(at), n))
	case wide:
		for i := range n {
			x := [1]int64{int64(binary.LittleEndian.Uint64(b[8*i:]))}
			combine(v.Op, v.Int64[from+i:][:1], x[:])
		}
	default:
		for i := range n {
			x := [1]int32{int32(binary.LittleEndian.Uint32(b[4*i:]))}
			combine(v.Op, v.Int32[from+i:][:1], x[:])
		}
	}
}
