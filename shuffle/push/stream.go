// SPDX-License-Identifier: Apache-2.0

package push

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// bitmap has a bit per frame of a stream.
type bitmap [wire.AckedWords]uint64

func (m *bitmap) has(i int) bool { return m[i>>6]>>(i&63)&1 != 0 }
func (m *bitmap) set(i int)      { m[i>>6] |= 1 << (i & 63) }
func (m *bitmap) unset(i int)    { m[i>>6] &^= 1 << (i & 63) }

func (m *bitmap) count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// first returns the lowest bit that is set. There is one.
func (m *bitmap) first() int {
	for i, w := range m {
		if w != 0 {
			return i<<6 + bits.TrailingZeros64(w)
		}
	}
	return 0
}

// fill sets the first n bits.
func (m *bitmap) fill(n int) {
	for i := range m {
		m[i] = ^uint64(0) >> (64 - min(max(n-64*i, 0), 64))
	}
}

// claims reads bits as the control plane has them.
func claims(words []uint32, n int) (m bitmap) {
	for i, w := range words {
		if i < 2*len(m) {
			m[i/2] |= uint64(w) << (32 * (i & 1))
		}
	}
	var all bitmap
	all.fill(n)
	for i := range m {
		m[i] &= all[i]
	}
	return m
}

// stream is a segment on its way. What is below the line belongs to the path's
// loop while the stream is with it, and to the push otherwise.
type stream struct {
	push  *push
	index int // of the segment
	first int // its first frame
	n     int // its frames
	id    shuffle.StreamID
	grant shuffle.Grant
	tags  *wire.Tags
	slot  uint32
	out   *wire.Outgoing

	carried atomic.Uint32 // deliveries over the control connection

	// ---
	known   bitmap // arrived, as far as is known
	flight  bitmap // sent and waited for
	lost    bitmap // sent, and to be sent again
	tcp     bitmap // left to Control.Deliver
	nKnown  int
	nFlight int
	nLost   int
	next    int // no frame from here on was sent
	base    int // all frames before it are known
	sentAt  []int64
	sends   []uint8
	rack    int64 // when the newest frame was sent of those that arrived
	rackSeq int
	stamp   uint64 // newest stamp seen
	count   uint64 // Outgoing.Count when last looked
	answers uint32
	again   int64  // when frames in flight are to be judged again; 0: when something comes
	taken   uint32 // carried when last looked
	moved   int64  // when it last made progress, or began
	spoke   int64  // when a frame was last sent, or an answer came
	tries   int    // probes without an answer
	warned  int    // how much was done about its lack of progress
	rounds  int    // times the receiver said that frames are missing although all seemed to have arrived
	asked   int64  // when it first said that none is missing, and that it is not done
}

func newStream(p *push, index int, spec shuffle.StreamSpec, grant shuffle.Grant, slot uint32) *stream {
	s := &stream{
		push: p, index: index, n: spec.Frames, id: spec.ID, grant: grant, tags: p.tags, slot: slot,
		out: &p.sender.mem.Outgoing[slot], first: p.out.Manifest().Segments[index].First,
		sentAt: make([]int64, spec.Frames), sends: make([]uint8, spec.Frames),
	}
	s.known = claims(grant.Claimed, s.n)
	s.nKnown = s.known.count()
	p.report.Known += uint64(s.nKnown)
	return s
}

// publish opens the slot for answers. The token comes last.
func (s *stream) publish(jobSlot int) {
	o := s.out
	atomic.StoreUint64(&o.Count, uint64(s.nKnown))
	atomic.StoreUint64(&o.Wake, 0)
	atomic.StoreUint64(&o.Stamp, 0)
	atomic.StoreUint64(&o.Arrived, 0)
	atomic.StoreUint32(&o.Share, 0)
	atomic.StoreUint32(&o.Answers, 0)
	atomic.StoreUint32(&o.From, 0)
	atomic.StoreUint32(&o.Job, uint32(max(jobSlot, 0)))
	atomic.StoreUint32(&o.Frames, uint32(s.n))
	for i, w := range s.known {
		atomic.StoreUint64(&o.Acked[i], w)
	}
	s.count = uint64(s.nKnown)
	s.push.sender.owners[s.slot].Store(s)
	atomic.StoreUint64(&o.Token, s.grant.Token)
}

// absorb takes in an answer that came to a socket. It may be called from several
// goroutines, and beside a program that does the same.
func (s *stream) absorb(a *wire.AckBody, arrived int64) {
	o := s.out
	// A window may reach beyond the stream's end, where no bit is ever set.
	fresh := a.Absorb(&o.Acked)
	newer := false
	for {
		old := atomic.LoadUint64(&o.Stamp)
		if a.Stamp <= old || a.Stamp > uint64(arrived) {
			break
		}
		if atomic.CompareAndSwapUint64(&o.Stamp, old, a.Stamp) {
			newer = true
			break
		}
	}
	if newer {
		atomic.StoreUint64(&o.Arrived, uint64(arrived))
		atomic.StoreUint32(&o.From, uint32(a.From))
		if a.Share != 0 {
			atomic.StoreUint32(&o.Share, a.Share)
		}
	}
	if newer || fresh > 0 {
		// With a program at work this answer was counted before.
		atomic.AddUint32(&o.Answers, 1)
	}
	if fresh > 0 {
		atomic.AddUint64(&o.Count, uint64(fresh))
	}
	s.push.path.wake()
}

// deliver notes frames that arrived over the control connection.
func (s *stream) deliver(frames []int) {
	s.carried.Add(1)
	s.learn(frames)
}

// learn notes frames that the receiver says to have. That alone is no progress: if
// answers do not get through, the control connection has to do.
func (s *stream) learn(frames []int) {
	fresh := uint64(0)
	for _, f := range frames {
		bit := uint64(1) << (f & 63)
		if atomic.OrUint64(&s.out.Acked[f>>6], bit)&bit == 0 {
			fresh++
		}
	}
	atomic.AddUint64(&s.out.Count, fresh)
	s.push.path.wake()
}

// harvest looks at what has arrived: if there is no sign of news, only if full is
// set. It returns whether there was an answer.
func (s *stream) harvest(at int64, w *window, full bool) (answered bool) {
	count := atomic.LoadUint64(&s.out.Count)
	answers := atomic.LoadUint32(&s.out.Answers)
	if answers != s.answers {
		s.push.stats.acks += uint64(answers - s.answers)
		s.answers = answers
		s.spoke, s.tries = at, 0
		s.roundTrip(at, w)
		answered = true
	} else if count == s.count && !full {
		return false
	}
	s.count = count
	landed, fresh := 0, 0
	for i := s.base >> 6; i < (s.n+63)>>6; i++ {
		word := atomic.LoadUint64(&s.out.Acked[i]) &^ s.known[i]
		if i == s.n>>6 {
			word &= 1<<(s.n&63) - 1
		}
		if word == 0 {
			continue
		}
		s.known[i] |= word
		fresh += bits.OnesCount64(word)
		for b := word; b != 0; b &= b - 1 {
			f := i<<6 + bits.TrailingZeros64(b)
			if s.flight.has(f) || s.lost.has(f) {
				s.arrived(at, f, w)
			}
		}
		landed += bits.OnesCount64(word & s.flight[i])
		s.nLost -= bits.OnesCount64(word & s.lost[i])
		s.flight[i] &^= word
		s.lost[i] &^= word
		s.tcp[i] &^= word
	}
	if fresh == 0 {
		return answered
	}
	s.nKnown += fresh
	s.nFlight -= landed
	w.flight -= landed
	w.acked(landed)
	if carried := s.carried.Load(); answered || carried != s.taken {
		s.moved, s.warned, s.taken = at, 0, carried
	}
	for s.base < s.n && s.known.has(s.base) {
		s.base++
	}
	return answered
}

func (s *stream) arrived(at int64, f int, w *window) {
	sent := s.sentAt[f]
	if s.sends[f] > 1 && s.stamp != 0 && s.stamp < uint64(sent) {
		// The newest answer is to a frame from before this one was sent again.
		s.push.stats.spurious++
		w.spurious(at)
		return
	}
	if sent > s.rack || sent == s.rack && f > s.rackSeq {
		s.rack, s.rackSeq = sent, f
	}
}

// roundTrip takes the newest echoed stamp as a sample.
func (s *stream) roundTrip(at int64, w *window) {
	o := s.out
	stamp := atomic.LoadUint64(&o.Stamp)
	arrived := atomic.LoadUint64(&o.Arrived)
	from := atomic.LoadUint32(&o.From)
	if stamp == s.stamp || atomic.LoadUint64(&o.Stamp) != stamp {
		return
	}
	// A stamp is not under a frame's tag: whatever is no possible round trip is no sample.
	rtt := int64(arrived) - int64(stamp)
	if rtt <= 0 || int64(stamp) < s.push.began || int64(arrived) > at+int64(time.Millisecond) {
		if stamp > uint64(at) {
			atomic.CompareAndSwapUint64(&o.Stamp, stamp, s.stamp) // nothing would be newer
		}
		return
	}
	s.stamp = stamp
	w.sample(at, rtt, from)
	if from == wire.FromUser {
		s.push.stats.user.add(rtt)
	} else {
		s.push.stats.kernel.add(rtt)
	}
	if share := atomic.LoadUint32(&o.Share); share != 0 {
		s.grant.Share = int(min(share, 1<<20))
	}
}

// judge looks for frames that are lost: later ones have arrived, and they had
// their time. It sets when to look again.
func (s *stream) judge(at int64, w *window) {
	s.again = 0
	if s.nFlight == 0 || s.rack == 0 {
		return
	}
	patience := w.patience(at)
	for i := s.base >> 6; i <= (s.next-1)>>6; i++ {
		for b := s.flight[i]; b != 0; b &= b - 1 {
			f := i<<6 + bits.TrailingZeros64(b)
			sent := s.sentAt[f]
			if sent > s.rack || sent == s.rack && f > s.rackSeq {
				continue
			}
			if due := sent + patience; due > at {
				if s.again == 0 || due < s.again {
					s.again = due
				}
				continue
			}
			s.lose(f, w)
			w.lost(at, sent)
		}
	}
}

// lose takes a frame in flight for lost.
func (s *stream) lose(f int, w *window) {
	s.flight.unset(f)
	s.lost.set(f)
	s.nFlight--
	s.nLost++
	w.flight--
}

// loseAll takes all frames in flight for lost.
func (s *stream) loseAll(w *window) {
	for i, b := range s.flight {
		s.lost[i] |= b
		s.flight[i] = 0
	}
	s.nLost += s.nFlight
	w.flight -= s.nFlight
	s.nFlight = 0
}

// span is how far apart a stream's frames in flight may be: an answer to the
// last must still tell of the first.
const span = 32 * wire.AckBefore

// waiting says whether there is a frame to be sent now.
func (s *stream) waiting() bool {
	if s.nLost > 0 {
		return true
	}
	for s.next < s.n && (s.known.has(s.next) || s.tcp.has(s.next)) {
		s.next++
	}
	return s.next < s.n && s.next < s.oldest()+span
}

// oldest is the first frame that a packet may still bring.
func (s *stream) oldest() int {
	for i := s.base >> 6; i < len(s.flight); i++ {
		if b := s.flight[i] | s.lost[i]; b != 0 {
			return i<<6 + bits.TrailingZeros64(b)
		}
	}
	return s.next
}

// pick returns the next frame to be sent. waiting has said that there is one.
func (s *stream) pick() (f int, again bool) {
	if s.nLost > 0 {
		return s.lost.first(), true
	}
	return s.next, false
}

// took notes that a frame was sent.
func (s *stream) took(f int, at int64, w *window) {
	if s.lost.has(f) {
		s.lost.unset(f)
		s.nLost--
	}
	if f == s.next {
		s.next++
	}
	if !s.flight.has(f) {
		s.flight.set(f)
		s.nFlight++
		w.flight++
	}
	s.sentAt[f] = at
	if s.sends[f] < 255 {
		s.sends[f]++
	}
	s.spoke = at
}

// leave leaves a frame to the control connection.
func (s *stream) leave(f int, w *window) {
	if s.flight.has(f) {
		s.flight.unset(f)
		s.nFlight--
		w.flight--
	}
	if s.lost.has(f) {
		s.lost.unset(f)
		s.nLost--
	}
	s.tcp.set(f)
}

// frame appends a frame to buf, ready to be sent.
func (s *stream) frame(f int, buf []byte) []byte {
	at := len(buf)
	buf = s.push.out.Frame(s.first+f, buf, wire.Head{
		Token: s.grant.Token, Stream: s.grant.Slot, Seq: uint32(f), Back: s.slot,
	})
	s.tags.SealData(buf[at:])
	return buf
}
