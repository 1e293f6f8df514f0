// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// waitBefore is how long a call waits until it tells all others which call it waits in: they may be in another one, by another way.
	waitBefore = 100 * time.Millisecond
	// dialAgain is how long after an attempt to connect the next one is made, at first and at most; refusedMost is how long a
	// host may say that nobody listens there.
	dialAgain     = 5 * time.Millisecond
	dialAgainMost = 500 * time.Millisecond
	refusedMost   = time.Second
	// pastCalls is how many calls are remembered, to hold what others say that they wait in against.
	pastCalls = 64
)

// streams are an end's connections to all other members, made at the first call that needs them. A goroutine reads from each member, and adds to,
// or writes to, the vector of the call that is under way; whoever calls writes. So nobody who reads ever waits for somebody who
// writes, and all that was sent is taken.
type streams struct {
	e      *end
	tags   *wire.StreamTags
	sizes  streamSizes
	ctx    context.Context // until the end is broken
	cancel context.CancelFunc
	work   sync.WaitGroup
	said   chan struct{} // all were told that it is broken
	wake   chan struct{} // of who calls
	came   atomic.Uint32 // pieces; wraps

	mu        sync.Mutex
	change    *sync.Cond // of the call, for readers that hold a piece of it
	wanted    *sync.Cond // for readers whose members' messages may be wanted
	to        []*stream  // by rank; nil: this one
	halted    bool       // broken: readers leave
	closed    bool       // no goroutine is started any more
	began     uint64     // the last call
	via       bool       // it goes over streams
	what      uint32     // it is
	active    bool       // and takes pieces
	inside    int        // readers at work in it
	waiting   int        // readers that wait for another call
	alarm     bool       // the call waits for long: all that comes is to be heard
	past      [pastCalls]pastCall
	pasts     int
	announced []pastCall // by rank: the last that a member said that it waits in, ahead of here
	call      streamCall
}

// pastCall is a call that was no empty one.
type pastCall struct {
	number uint64
	what   uint32
}

// newStreams is called once the end's group is known. What it costs was taken from the node's budget.
func newStreams(e *end) *streams {
	s := &streams{
		e: e, tags: wire.NewStreamTags(e.spec.Secret), sizes: e.node.opts.sizes.ensureDefaults(), said: make(chan struct{}), wake: make(chan struct{}, 1),
		to: make([]*stream, e.members), announced: make([]pastCall, e.members),
	}
	for rank := range s.to {
		if rank != e.rank {
			s.to[rank] = &stream{of: s, rank: rank}
		}
	}
	s.change, s.wanted = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.work.Go(s.attend)
	return s
}

// attend waits until the end is broken, has all that read or dial leave, and tells the other members why.
func (s *streams) attend() {
	defer close(s.said)
	<-s.e.broken
	s.cancel()
	s.mu.Lock()
	s.halted = true
	s.change.Broadcast()
	s.wanted.Broadcast()
	s.mu.Unlock()
	what, text := s.e.goodbye()
	var all sync.WaitGroup
	for _, c := range s.to { // whose connections nobody changes any more
		if c != nil && c.in.conn != nil {
			_ = c.in.conn.SetReadDeadline(time.Unix(1, 0))
		}
		if c != nil && c.out.conn != nil {
			all.Go(func() { _ = c.tell(context.Background(), wire.StreamBye, s.e.calls.Load(), what, text) }) // who does not read learns it from who formed the group
		}
	}
	all.Wait()
}

// goodbye is how others are told why the end is broken: the member that is the reason, or another word, and a text.
func (e *end) goodbye() (what uint32, text string) {
	f := e.cause.Load()
	var m *MemberError
	switch {
	case errors.As(f.err, &m):
		return uint32(m.Rank), m.Err.Error()
	case f.err == errEndLeft:
		return byeLeft, left
	case f.outside:
		return byeNobody, f.err.Error()
	}
	return uint32(e.rank), f.err.Error()
}

// close ends all of it. The end is broken, and nobody calls.
func (s *streams) close() {
	<-s.said
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, c := range s.to {
		if c == nil {
			continue
		}
		for _, conn := range []net.Conn{c.in.conn, c.out.conn} {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}
	s.work.Wait()
}

// enter makes a connection what comes from a member, unless there is one, and reads it.
func (s *streams) enter(rank int, conn net.Conn, dialled, answered uint64) error {
	room := make([]byte, readRoom)
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.to[rank]
	switch {
	case s.halted || s.closed:
		return ErrBroken
	case c.in.conn != nil:
		return fmt.Errorf("member %d has a stream already", rank)
	}
	c.in.conn, c.in.dialled, c.in.answered, c.in.room = conn, dialled, answered, room
	s.work.Go(c.read)
	s.poke()
	return nil
}

// leads makes a connection what goes to a member.
func (s *streams) leads(rank int, conn net.Conn, dialled, answered uint64) error {
	if err := errors.Join(conn.SetDeadline(time.Time{}), conn.SetWriteDeadline(time.Now().Add(writeTurn))); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.halted || s.closed {
		return ErrBroken
	}
	o := &s.to[rank].out
	o.conn, o.dialled, o.answered = conn, dialled, answered
	s.poke()
	return nil
}

// poke wakes who calls.
func (s *streams) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// begins notes a call, before anything is done for it; v is empty in those that nobody waits in. It says whether it goes over streams.
func (s *streams) begins(number uint64, v Vector, what uint32) (via bool) {
	e := s.e
	via = s.sizes.overStreams(e.spec.Streams, v.Len()*v.width())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.via, s.what, s.alarm = number, via, what, false
	if v.Len() > 0 {
		s.past[s.pasts%pastCalls] = pastCall{number, what}
		s.pasts++
	}
	for rank, a := range s.announced {
		if a.number != 0 && a.number <= number {
			s.announced[rank] = pastCall{}
			s.compare(rank, a)
		}
	}
	if s.waiting > 0 {
		s.change.Broadcast()
	}
	return via
}

// hear takes in which call a member waits in.
func (s *streams) hear(rank int, number uint64, what uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := pastCall{number, what}
	if number > s.began {
		s.announced[rank] = a
		return
	}
	s.compare(rank, a)
}

// compare breaks the end if a call that a member waits in was another one here. mu is held.
func (s *streams) compare(rank int, a pastCall) {
	for i := range min(s.pasts, pastCalls) {
		p := s.past[(s.pasts-1-i)%pastCalls]
		if p.number == a.number && p.what == a.what {
			return
		}
		if p.number <= a.number {
			s.differs(rank)
			return
		}
	}
	// Where more calls than are remembered came later, the member has taken part in those: the news is old. Else it was an empty one here.
	if s.pasts <= pastCalls {
		s.differs(rank)
	}
}

func (s *streams) differs(rank int) { s.e.fail(s.e.memberError(rank, errDiffers)) }

// connect makes the connections that are missing, and waits for those of the others.
func (s *streams) connect(ctx context.Context, number uint64, what uint32) error {
	e := s.e
	var long <-chan time.Time
	for {
		var missing []string
		s.mu.Lock()
		for rank, c := range s.to {
			if c != nil {
				s.dialOnce(rank, number, what)
				if c.in.conn == nil || c.out.conn == nil {
					missing = append(missing, fmt.Sprintf("%d (%s)", rank, e.spec.Members[rank].Name))
				}
			}
		}
		s.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		if long == nil {
			long = time.After(e.node.opts.Patience)
		}
		select {
		case <-s.wake:
		case <-long:
			e.node.opts.Log.Warn("all-reduce: a call waits for streams", "name", e.spec.Name, "call", number, "for", e.node.opts.Patience, "with", missing)
		case <-e.broken:
			return e.err()
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// dialOnce has a member be dialled, and told of a call, unless it was before. mu is held.
func (s *streams) dialOnce(rank int, number uint64, what uint32) {
	if o := &s.to[rank].out; !o.dialling && !s.halted {
		o.dialling = true
		s.work.Go(func() { s.dial(rank, number, what) })
	}
}

// address is where a member takes streams.
func (s *streams) address(rank int) netip.AddrPort {
	m := &s.e.spec.Members[rank]
	return netip.AddrPortFrom(m.Address.Addr(), uint16(m.Stream))
}

// dial connects to a member, until it succeeds, or nobody needs it any more. A member that can't be reached breaks the end.
func (s *streams) dial(rank int, number uint64, what uint32) {
	n := s.e.node
	since, pause := time.Now(), dialAgain
	for {
		conn, err := n.dial(s.ctx, s.address(rank))
		if err == nil {
			var d, a uint64
			stop := context.AfterFunc(s.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
			d, a, err = s.greet(conn, rank, number, what)
			if !stop() {
				err = ErrBroken
			}
			if err == nil {
				if err = s.leads(rank, conn, d, a); err == nil {
					return
				}
			}
			if a != 0 {
				s.farewell(conn, rank, d, a)
			}
			_ = conn.Close()
		}
		if s.ctx.Err() != nil {
			return
		}
		most := n.opts.Patience
		if errors.Is(err, syscall.ECONNREFUSED) {
			most = min(most, refusedMost)
		}
		if time.Since(since) > most {
			s.e.fail(s.e.memberError(rank, fmt.Errorf("no stream to it (TCP to %s): %w", s.address(rank), err)))
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, dialAgainMost)
	}
}

// farewell says on a connection that the other member may have kept, and this one has not, why this end is broken: attend does not know of it.
func (s *streams) farewell(conn net.Conn, rank int, dialled, answered uint64) {
	if s.e.cause.Load() == nil {
		return // closed: then it was told before
	}
	what, text := s.e.goodbye()
	text = text[:min(len(text), wire.ByeText)]
	h := wire.StreamHead{
		Kind: wire.StreamBye, From: uint8(s.e.rank), To: uint8(rank), Token: s.e.spec.Token, Call: s.e.calls.Load(), What: what, Bytes: uint32(len(text)),
	}
	b := make([]byte, wire.StreamHeadSize+wire.PaddedPiece(len(text)))
	copy(b[wire.StreamHeadSize:], text)
	s.tags.Seal(b, &h, []byte(text), dialled, answered)
	if conn.SetDeadline(time.Now().Add(lastWord)) == nil {
		_, _ = conn.Write(b) // who does not hear it learns it from who formed the group
		// A connection that is closed with a word that was not read is reset, and with it goes what was said.
		_, _ = io.ReadFull(conn, b[:wire.StreamHeadSize])
	}
}

// announce tells members which call is waited in here: all that have a stream, or have said something of the kind themselves.
func (s *streams) announce(ctx context.Context, number uint64, what uint32) {
	s.mu.Lock()
	s.alarm = true
	s.wanted.Broadcast()
	var told []*stream
	for rank, c := range s.to {
		switch {
		case c == nil || s.halted:
		case c.out.conn != nil:
			told = append(told, c)
		case s.announced[rank].number != 0 || c.in.conn != nil:
			s.dialOnce(rank, number, what)
		}
	}
	s.mu.Unlock()
	for _, c := range told {
		_ = c.tell(ctx, wire.StreamWait, number, what, "") // who does not read has pieces of the call to read
	}
}

// read reads what comes from a member, whenever it is wanted, until the end is broken. What is not wanted yet stays with the system.
func (c *stream) read() {
	s := c.of
	for s.wants(c) {
		if err := c.message(); err != nil {
			s.lost(c, err)
			return
		}
	}
}

// wants waits until a message is wanted from a member that its reader is to read: while a call lacks pieces of it, or waits for long. It is false
// if the end is broken.
func (s *streams) wants(c *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c.reading = false; !s.halted; {
		if !c.direct && !c.left && (s.alarm || s.active && c.parts+c.sums > 0) {
			c.reading = true
			return true
		}
		s.wanted.Wait()
	}
	return false
}

// lost breaks the end since a member's stream is of no use.
func (s *streams) lost(c *stream, err error) {
	var m *MemberError
	switch {
	case s.e.cause.Load() != nil || errors.Is(err, errHalted):
		return
	case errors.As(err, &m):
		s.e.fail(err)
		return
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		err = fmt.Errorf("%w (%w)", errStreamEnds, err)
		// It may have had a reason, and say so by another way.
		select {
		case <-s.e.broken:
			return
		case <-time.After(othersSay):
		}
	}
	s.e.fail(s.e.memberError(c.rank, err))
}

// errHalted ends a read of an end that is broken.
var errHalted = errors.New("the end is broken")

// late is called by who reads when nothing has come for a while.
func (s *streams) late(c *stream) error {
	if s.e.cause.Load() != nil {
		return errHalted
	}
	if !c.direct {
		if err := c.in.conn.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		c.in.limited = false
		if s.e.cause.Load() != nil { // then the limit that attend has set may be gone
			return errHalted
		}
		return nil
	}
	if err := s.call.ctx.Err(); err != nil {
		return ended(s.call.ctx)
	}
	s.call.complain()
	return c.in.conn.SetReadDeadline(time.Now().Add(waitBefore))
}

// message takes in what comes next.
func (c *stream) message() error {
	s := c.of
	h, err := c.next()
	if err != nil {
		return err
	}
	switch h.Kind {
	case wire.StreamWait:
		if !c.open(&h, nil) {
			return errStreamTag
		}
		s.hear(c.rank, h.Call, h.What)
	case wire.StreamBye:
		return c.bye(&h)
	default:
		if !s.join(c, &h) {
			return errHalted
		}
		err := s.call.piece(c, &h)
		s.leave(c, &h, err == nil)
		return err
	}
	return nil
}

// bye takes in why another member's end is broken.
func (c *stream) bye(h *wire.StreamHead) error {
	s := c.of
	e := s.e
	b, err := c.take(wire.PaddedPiece(int(h.Bytes)))
	if err != nil {
		return err
	}
	b = b[:h.Bytes]
	if !c.open(h, b) {
		return errStreamTag
	}
	text := strings.ToValidUTF8(string(b), "")
	switch {
	case h.What == byeLeft:
		// It has done its share of the calls that it began.
		s.mu.Lock()
		c.left = true
		miss := s.active && c.parts+c.sums > 0
		s.mu.Unlock()
		if miss {
			e.fail(e.memberError(c.rank, errEndLeft))
		}
	case h.What < uint32(e.members):
		e.fail(e.memberError(int(h.What), errors.New(text)))
	default:
		e.failFor(errors.New(text))
	}
	if e.cause.Load() != nil {
		return errHalted
	}
	return nil
}

// join has a reader take part in the call that a piece is of, when it has begun here. It is false if the end is broken.
func (s *streams) join(c *stream, h *wire.StreamHead) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.halted {
		switch here := s.via && h.Call == s.began && h.What == s.what; {
		case here && s.active:
			s.inside++
			return true
		case h.Call > s.began && s.active && c.parts+c.sums > 0, h.Call <= s.began && !here:
			s.differs(c.rank) // and pieces that are missing will never come
			return false
		}
		s.waiting++
		s.change.Wait()
		s.waiting--
	}
	return false
}

// leave has a reader leave the call; took says that it took the piece in.
func (s *streams) leave(c *stream, h *wire.StreamHead, took bool) {
	s.mu.Lock()
	if s.inside--; s.inside == 0 && !s.active {
		s.change.Broadcast()
	}
	switch {
	case !took:
	case h.Kind == wire.StreamPart:
		c.parts--
	default:
		c.sums--
	}
	s.mu.Unlock()
	if took {
		s.came.Add(1)
		s.e.node.counts.pieces.Add(1)
		if s.call.to.Add(-1) == 0 {
			s.poke()
		}
	}
}
