// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"errors"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// busy, beside the reasons of programs: there was no room to fold the frame.
// Its sender sends it again.
const (
	busy    = wire.Reasons
	reasons = wire.Reasons + 1
)

func reasonName(r wire.Reason) string {
	if r == busy {
		return "busy"
	}
	return r.String()
}

// hand is what one goroutine needs to take frames. It keeps a target's lock from
// frame to frame while they are of one target, until letGo.
type hand struct {
	r      *Receiver
	socket *socket // nil: no answers
	held   *target
	reader wire.Reader
	counts [reasons]atomic.Uint64

	answers []ipv4.Message
	frames  [][wire.AckFrame]byte
	n       int
}

// maxAnswers is how many answers are sent at once.
const maxAnswers = 64

func newHand(r *Receiver, s *socket) *hand {
	h := &hand{r: r, socket: s}
	if s != nil {
		h.answers = make([]ipv4.Message, maxAnswers)
		h.frames = make([][wire.AckFrame]byte, maxAnswers)
		for i := range h.answers {
			h.answers[i].Buffers = [][]byte{nil}
			h.answers[i].OOB = make([]byte, 0, controlRoom)
		}
	}
	return h
}

// read takes frames from the socket until that is closed.
func (h *hand) read() {
	defer h.r.readers.Done()
	size, n := 2048, 64
	if h.socket.joined {
		size, n = room, messages
	}
	// Buffers of one size behind each other would all compete for the same
	// places in the cache.
	const skew = 1088
	mem := make([]byte, n*(size+skew))
	ms := make([]ipv4.Message, n)
	for i := range ms {
		ms[i].Buffers = [][]byte{mem[i*(size+skew):][:size:size]}
		ms[i].OOB = make([]byte, controlRoom)
	}
	for {
		got, err := h.socket.batch.ReadBatch(ms, 0)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// An ICMP error of some answer, or a shortage that may pass.
			select {
			case <-h.r.done:
				return
			case <-time.After(time.Millisecond):
				continue
			}
		}
		for i := range ms[:got] {
			m := &ms[i]
			h.packet(m.Buffers[0][:m.N], m.OOB[:m.NN], m.Addr)
		}
		h.letGo()
		h.send()
	}
}

// packet takes what one read brought: a frame, or several that were joined.
func (h *hand) packet(b, control []byte, from net.Addr) {
	step := len(b)
	if n := joinedSize(control); n > 0 {
		step = n
	}
	for len(b) > 0 {
		n := min(step, len(b))
		h.frame(b[:n:n], control, from)
		b = b[n:]
	}
}

func (h *hand) frame(b, control []byte, from net.Addr) {
	head, err := wire.ParseFrame(b)
	switch {
	case errors.Is(err, wire.ErrMagic), errors.Is(err, wire.ErrShort) && len(b) < wire.HeadSize:
		h.counts[wire.Foreign].Add(1)
		return
	case err != nil:
		h.counts[wire.Malformed].Add(1)
		return
	}
	switch head.Kind {
	case wire.Data:
		if head.Length == 0 { // larger than a frame: not by this way
			h.counts[wire.Malformed].Add(1)
			return
		}
		switch h.data(nil, &head, b) {
		case wire.Folded, wire.Duplicate, busy:
			if st := h.r.streamAt(&head); st != nil && head.Flags&wire.FlagWantAck != 0 {
				h.answer(st, &head, from, control)
			}
		}
	case wire.Answer:
		if h.r.kernel == nil { // no program of ours has sent it
			h.counts[wire.AckStray].Add(1)
			return
		}
		h.counts[wire.AnswerUp].Add(1)
		if slot := h.next(from, control); slot != nil && len(b) == wire.AckFrame {
			copy(slot, b)
			wire.AnswerToAck(slot)
		}
	case wire.Probe:
		h.counts[wire.Probed].Add(1)
		if h.next(from, control) != nil {
			wire.AnswerProbe(b)
			h.answers[h.n-1].Buffers[0] = b
			h.send() // before b is read into again
		}
	case wire.Broadcast, wire.BroadcastAck, wire.Reduce, wire.Reduced:
		other := h.r.opts.Other
		if other == nil {
			h.counts[wire.AckStray].Add(1)
			return
		}
		h.letGo() // nobody knows how long it takes
		other(b, addressOf(from))
	default:
		h.counts[wire.AckStray].Add(1)
	}
}

func (r *Receiver) streamAt(head *wire.Head) *stream {
	if int64(head.Stream) >= int64(len(r.bySlot)) {
		return nil
	}
	st := r.bySlot[head.Stream].Load()
	if st == nil || st.token != head.Token {
		return nil
	}
	return st
}

// data takes a data frame: checks it, claims it and folds it. The target stays
// locked until letGo.
func (h *hand) data(of *stream, head *wire.Head, b []byte) wire.Reason {
	reason := h.take(of, head, b)
	h.counts[reason].Add(1)
	return reason
}

func (h *hand) take(of *stream, head *wire.Head, b []byte) wire.Reason {
	st := h.r.streamAt(head)
	if st == nil || of != nil && st != of {
		return wire.BadToken
	}
	if head.Seq >= st.frames {
		return wire.BadSeq
	}
	if !h.genuine(st, b) {
		return wire.BadTag
	}
	if st.shared.Claimed(head.Seq) {
		return wire.Duplicate
	}
	t := st.target
	if !t.suits(head) {
		return wire.Malformed
	}
	if h.reader.Reset(b, t.lanes) != nil {
		return wire.Malformed
	}
	if t.dense > 0 && uint64(h.reader.Index()+1)+uint64(h.reader.Left()) > t.dense {
		return wire.Malformed
	}
	h.hold(t)
	if st.shut || t.shut {
		return wire.BadToken
	}
	if h.r.folds && t.userFrames%64 == 0 {
		h.r.tables.want()
	}
	if !t.hasRoom(len(b)) {
		return busy
	}
	if !t.dirty {
		t.soil()
	}
	if !st.shared.ClaimUser(head.Seq) {
		return wire.Duplicate
	}
	n := h.reader.Left()
	if t.dense > 0 {
		t.foldDense(&h.reader)
	} else {
		t.foldPairs(head, b, &h.reader)
	}
	t.userPairs += uint64(n)
	t.userFrames++
	return wire.Folded
}

// genuine checks the tag. A program that gave the frame up may have replaced
// hashes by numbers of slots.
func (h *hand) genuine(st *stream, b []byte) bool {
	if st.job.tags.OpenData(b) {
		return true
	}
	if h.r.kernel == nil || wire.Restore(b, st.job.spec.Seed) != nil {
		return false
	}
	return st.job.tags.OpenData(b)
}

func (h *hand) hold(t *target) {
	if h.held == t {
		return
	}
	h.letGo()
	t.mu.Lock()
	h.held = t
}

func (h *hand) letGo() {
	if h.held != nil {
		h.held.mu.Unlock()
		h.held = nil
	}
}

// next returns room for an answer to what came from an address with some control
// messages, nil if there is nobody to send it.
func (h *hand) next(to net.Addr, control []byte) []byte {
	if h.socket == nil {
		return nil
	}
	if h.n == len(h.answers) {
		h.send()
	}
	b := h.frames[h.n][:]
	a := &h.answers[h.n]
	a.Buffers[0], a.Addr = b, to
	a.OOB = appendSource(a.OOB[:0], control)
	h.n++
	return b
}

// answer tells the sender what is claimed around a frame.
func (h *hand) answer(st *stream, head *wire.Head, to net.Addr, control []byte) {
	b := h.next(to, control)
	if b == nil {
		return
	}
	a := wire.AckBody{
		Nonce: wire.AckNonce(wire.UserCPU, h.r.nonce.Add(1)),
		Stamp: head.Stamp, Share: atomic.LoadUint32(&st.shared.Share), From: wire.FromUser,
	}
	a.Window(&st.shared.Seen, head.Seq)
	wire.PutAck(b, *head, a, st.job.tags)
	h.counts[wire.Answered].Add(1)
}

// send sends the answers that wait.
func (h *hand) send() {
	for at := 0; at < h.n; {
		n, err := h.socket.batch.WriteBatch(h.answers[at:h.n], 0)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				break
			}
			h.counts[wire.AnswerFailed].Add(1)
			n = 1 // this one can't be sent; senders ask again
		}
		at += max(n, 1)
	}
	h.n = 0
}

// foldPairs folds the pairs of a keyed or long frame that was checked. The
// target is locked.
func (t *target) foldPairs(head *wire.Head, b []byte, r *wire.Reader) {
	c := t.active
	if t.single && head.Shape.Keyed() {
		// One sum lane: no reader, no slice of lanes.
		size := head.Shape.PairSize()
		if n := head.Shape.KeyBytes(); n <= 16 {
			c.AddPacked(unsafe.Pointer(&b[wire.HeadSize]), int(head.Count), fold.Packed{Size: size, Key: n, Wide: head.Shape&wire.Wide != 0})
			return
		}
		keyAt := size - head.Shape.KeyBytes()
		body := b[wire.HeadSize:]
		wide := head.Shape&wire.Wide != 0
		for range head.Count {
			p := body[:size:size]
			body = body[size:]
			n := int(le.Uint32(p)&0x7f) - 1
			var v int64
			if wide {
				v = int64(le.Uint64(p[4:]))
			} else {
				v = int64(int32(le.Uint32(p[4:])))
			}
			c.Add1(unsafe.Pointer(&p[keyAt]), n, v)
		}
		c.Flush()
		return
	}
	for r.Next() {
		k := r.Key()
		c.Add(unsafe.Pointer(unsafe.SliceData(k)), len(k), r.Lanes())
	}
}
