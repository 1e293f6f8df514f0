// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// readRoom is the memory that a connection is read into: a read takes what has come, up to this.
	readRoom = 2 * (wire.PieceSize + wire.StreamHeadSize)
	// writeTurn is how long a write waits before it looks whether it is still wanted.
	writeTurn = 100 * time.Millisecond
	// greetMost is how long two members may take to know each other.
	greetMost = 5 * time.Second
	// lastWord is how long telling a member of the end may take.
	lastWord = 50 * time.Millisecond
)

var (
	errStreamTag   = errors.New("a message of its stream has a wrong tag")
	errStreamOrder = errors.New("its stream has a message that is out of place")
	errStreamEnds  = errors.New("its stream has ended; its process is gone, or its host")
	errFull        = errors.New("it does not read")
)

// streamKept is the call that a second StreamWelcome names: the stream is kept.
const streamKept = 1

// Words of a StreamBye in place of a member's number: nobody is the reason, or the sender has left between two calls.
const (
	byeNobody = 1<<32 - 1
	byeLeft   = 1<<32 - 2
)

// stream is what connects to another member: one connection for each direction, which who writes has dialled. A socket that is
// written to and read at once has both wait for its lock.
type stream struct {
	of   *streams
	rank int // of the other one
	in   inlet
	out  outlet

	// Of the call that is under way. Set under streams.mu while no reader is inside, then the reader's.
	parts, sums       int // pieces that are to come
	nextPart, nextSum int
	left              bool // the other one takes part in no other call. Guarded by streams.mu
	// reading says that the reader reads, or waits for something to come; direct that who calls does instead of it. Guarded by streams.mu.
	reading, direct bool
}

// inlet is what comes from another member. It belongs to who reads it: a reader, or who calls.
type inlet struct {
	conn              net.Conn // nil: it has not connected. Guarded by streams.mu
	dialled, answered uint64
	room, have        []byte // have lies in room, at a multiple of 8
	limited           bool   // the time of a read is
	head              [wire.StreamHeadSize]byte
}

// outlet is what goes to another member.
type outlet struct {
	conn              net.Conn // nil: it is not connected yet. Guarded by streams.mu
	dialled, answered uint64
	dialling          bool // likewise

	writing sync.Mutex // held by who writes
	torn    bool       // a message went out in part
	said    uint64
	head    [wire.StreamHeadSize]byte
	kept    [3][]byte
	vector  net.Buffers
	written atomic.Int32 // own parts that were written in this call
}

// Read reads what has come. Its limits of time only have it look whether that is still wanted.
func (s *stream) Read(b []byte) (int, error) {
	for {
		n, err := s.in.conn.Read(b)
		switch {
		case n > 0:
			return n, nil // an error comes again
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		}
		if err := s.of.late(s); err != nil {
			return 0, err
		}
	}
}

// take returns the next n bytes, until it is called again: n is at most half of the room.
func (s *stream) take(n int) ([]byte, error) {
	in := &s.in
	if len(in.have) < n || (cap(in.room)-cap(in.have))%8 != 0 { // the network may cut anywhere
		in.have = in.room[:copy(in.room, in.have)]
		got, err := io.ReadAtLeast(s, in.room[len(in.have):], n-len(in.have))
		in.have = in.room[:len(in.have)+got]
		if err != nil {
			return nil, err
		}
	}
	b := in.have[:n]
	in.have = in.have[n:]
	return b, nil
}

// into fills b with what comes next.
func (s *stream) into(b []byte) error {
	in := &s.in
	n := copy(b, in.have)
	in.have = in.have[n:]
	if n == len(b) {
		return nil
	}
	if small := 4 << 10; len(b)-n < small { // rather with what follows
		rest, err := s.take(len(b) - n)
		copy(b[n:], rest)
		return err
	}
	_, err := io.ReadFull(s, b[n:])
	return err
}

var zeros [wire.PieceStep]byte

// put writes a message whose head is in out.head. It goes on until that is done, or the end is broken, or the context ends. Where patient is not set and the other
// one does not read, it does nothing. out.writing is held.
func (s *stream) put(ctx context.Context, values []byte, patient bool) error {
	o := &s.out
	if o.torn {
		return io.ErrClosedPipe
	}
	o.kept = [3][]byte{o.head[:], values, zeros[:wire.PaddedPiece(len(values))-len(values)]}
	o.vector = o.kept[:]
	began := false
	for {
		n, err := o.vector.WriteTo(o.conn)
		if err == nil {
			o.kept = [3][]byte{} // the vector is the caller's again
			return nil
		}
		began = began || n > 0
		switch late := errors.Is(err, os.ErrDeadlineExceeded); {
		case late && ctx.Err() == nil && s.of.e.cause.Load() == nil && (patient || began):
			err = o.conn.SetWriteDeadline(time.Now().Add(writeTurn))
			if err == nil {
				continue
			}
		case late && !began && !patient:
			return errFull
		}
		o.torn = o.torn || began
		if ctx.Err() != nil {
			return ended(ctx)
		}
		return err
	}
}

// tell writes a message without values of a call, if there is room for it at once.
func (s *stream) tell(ctx context.Context, kind wire.StreamKind, call uint64, what uint32, text string) error {
	o := &s.out
	o.writing.Lock()
	defer o.writing.Unlock()
	text = text[:min(len(text), wire.ByeText)]
	h := wire.StreamHead{
		Kind: kind, From: uint8(s.of.e.rank), To: uint8(s.rank), Token: s.of.e.spec.Token, Call: call, What: what, Bytes: uint32(len(text)), Place: o.said,
	}
	o.said++ // also where it was written in vain: no two messages may have the same
	s.of.tags.Seal(o.head[:], &h, []byte(text), o.dialled, o.answered)
	if err := o.conn.SetWriteDeadline(time.Now().Add(lastWord)); err != nil {
		return err
	}
	return s.put(ctx, []byte(text), false)
}

// next reads the head of the next message. What is no message of this stream is an error.
func (s *stream) next() (h wire.StreamHead, err error) {
	b, err := s.take(wire.StreamHeadSize)
	if err != nil {
		return h, err
	}
	copy(s.in.head[:], b)
	if h, err = wire.ParseStreamHead(s.in.head[:]); err != nil {
		return h, err
	}
	e := s.of.e
	if int(h.From) != s.rank || int(h.To) != e.rank || h.Token != e.spec.Token || h.Kind < wire.StreamPart {
		return h, errStreamOrder
	}
	return h, nil
}

// open says whether a message that came has the right tag.
func (s *stream) open(h *wire.StreamHead, values []byte) bool {
	return s.of.tags.Open(s.in.head[:], h, values, s.in.dialled, s.in.answered)
}

// greeting is what is said before there is a stream.
type greeting struct {
	conn  net.Conn
	bytes [wire.StreamHeadSize]byte
}

// limit has all of it end by then, and a stream begin without limits.
func (g *greeting) limit(by time.Time) error { return g.conn.SetDeadline(by) }

func (g *greeting) say(t *wire.StreamTags, h wire.StreamHead) error {
	t.Seal(g.bytes[:], &h, nil, h.Dialled, h.Answered)
	_, err := g.conn.Write(g.bytes[:])
	return err
}

func (g *greeting) hear() (h wire.StreamHead, err error) {
	if _, err := io.ReadFull(g.conn, g.bytes[:]); err != nil {
		return h, err
	}
	return wire.ParseStreamHead(g.bytes[:])
}

func (g *greeting) right(t *wire.StreamTags, h *wire.StreamHead) bool {
	return t.Open(g.bytes[:], h, nil, h.Dialled, h.Answered)
}

// drawNonce draws a number that is not 0, and that nobody draws again.
func drawNonce() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // which never fails
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// greet makes a connection that was dialled one that the other member knows, and tells it of a call. Where answered is not 0 beside an error, the
// other one may have kept it.
func (s *streams) greet(conn net.Conn, rank int, call uint64, what uint32) (dialled, answered uint64, err error) {
	g := greeting{conn: conn}
	if err := g.limit(time.Now().Add(greetMost)); err != nil {
		return 0, 0, err
	}
	dialled = drawNonce()
	mine := wire.StreamHead{Kind: wire.StreamHello, From: uint8(s.e.rank), To: uint8(rank), Token: s.e.spec.Token, Dialled: dialled}
	if err := g.say(s.tags, mine); err != nil {
		return 0, 0, err
	}
	h, err := g.hear()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it does not take the stream")
		}
		return 0, 0, err
	}
	if h.Kind != wire.StreamWelcome || h.Token != mine.Token || h.From != mine.To || h.To != mine.From || h.Dialled != dialled || !g.right(s.tags, &h) {
		return 0, 0, errors.New("whoever answers there is not the member")
	}
	answered = h.Answered
	mine.Kind, mine.Answered, mine.Call, mine.What = wire.StreamConfirm, answered, call, what
	if err := g.say(s.tags, mine); err != nil {
		return 0, 0, err
	}
	// Else who is dropped by the other one, for want of room or time, would take it for kept.
	if h, err = g.hear(); err != nil {
		return dialled, answered, fmt.Errorf("it does not keep the stream: %w", err)
	}
	if h.Kind != wire.StreamWelcome || h.Call != streamKept || h.Token != mine.Token || h.From != mine.To || h.To != mine.From ||
		h.Dialled != dialled || h.Answered != answered || !g.right(s.tags, &h) {
		return dialled, answered, errors.New("whoever answers there is not the member")
	}
	return dialled, answered, nil
}

// welcome finds out who has connected: it is a member of an open group, or an error.
func (n *Node) welcome(conn net.Conn) error {
	g := greeting{conn: conn}
	if err := g.limit(time.Now().Add(greetMost)); err != nil {
		return err
	}
	h, err := g.hear()
	if err != nil {
		return err
	}
	e := (*n.tokens.Load())[h.Token]
	switch {
	case e == nil || e.streams == nil:
		return fmt.Errorf("no group with token %#x has streams here", h.Token)
	case h.Kind != wire.StreamHello, int(h.To) != e.rank, int(h.From) >= e.members:
		return errors.New("no greeting of a member")
	case !g.right(e.streams.tags, &h):
		return errors.New("a greeting with a wrong tag")
	}
	mine := wire.StreamHead{Kind: wire.StreamWelcome, From: h.To, To: h.From, Token: h.Token, Dialled: h.Dialled, Answered: drawNonce()}
	if err := g.say(e.streams.tags, mine); err != nil {
		return err
	}
	c, err := g.hear()
	if err != nil {
		return err
	}
	if c.Kind != wire.StreamConfirm || c.From != h.From || c.To != h.To || c.Token != h.Token || c.Dialled != h.Dialled || c.Answered != mine.Answered || !g.right(e.streams.tags, &c) {
		return errors.New("a greeting that was repeated")
	}
	e.streams.hear(int(c.From), c.Call, c.What)
	n.known(conn)
	if err := e.streams.enter(int(c.From), conn, c.Dialled, c.Answered); err != nil {
		return err
	}
	mine.Call = streamKept
	_ = g.say(e.streams.tags, mine) // else the other one ends the connection, which its reader sees
	return nil
}
