// SPDX-License-Identifier: Apache-2.0

package push

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/segment"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// burst is how many frames a system call sends as one packet to be cut, and how
	// many frames there are to an answer that is asked for.
	burst = 32
	// packets is how many of those one call sends. More gains nothing that could be
	// measured, and keeps the first ones waiting for the tags of the last.
	packets = 2
	// atOnce is how many frames go past the sockets at once: a call of that kind costs
	// as much as fifty frames, and a veth holds no more than 256.
	atOnce = 6 * burst
	// pastLeast is how few frames are left to sockets, which are quicker and cheaper then.
	pastLeast = burst
	// pastWait is how long frames that go past the sockets are not answered until sockets
	// are used again, for pastPause.
	pastWait  = 100 * time.Millisecond
	pastPause = 30 * time.Second
)

// path sends all frames to one destination, in a loop that runs while there
// are any, and holds what was learned of the way there.
type path struct {
	sender *Sender
	dest   netip.AddrPort
	addr   *net.UDPAddr
	ports  []*port
	signal chan struct{} // capacity 1

	mu      sync.Mutex
	running bool
	add     []*stream
	remove  []*push
	divert  []*push

	// What follows belongs to the loop.
	window  window
	pushes  []*push
	turn    int   // of ports
	past    bool  // frames may go past the sockets
	pastAt  int64 // but not before that time
	asked   int64 // when the first one did since an answer came; 0: none
	segment bool
	refused bool // the system can't cut packets on this way at all
	frame   int  // bytes of the largest frame that gets through
	hold    int64
	blocked int64 // until then packets are not tried
	batch   batch
	timer   *time.Timer
}

// batch is what one system call sends.
type batch struct {
	buf     []byte
	ms      []ipv4.Message
	entries []batched
	packets []packet
	singles []ipv4.Message
	frames  [][]byte // of what goes past the sockets
	most    int      // packets of a call
}

type batched struct {
	s *stream
	f int
}

// packet is a run of frames that are alike in size but for a smaller last one.
type packet struct {
	from, to int // in buf
	first, n int // entries
	size     int
	closed   bool
}

func newPath(s *Sender, dest netip.AddrPort, ports []*port) *path {
	p := &path{
		sender: s, dest: dest, addr: net.UDPAddrFromAddrPort(dest), ports: ports, signal: make(chan struct{}, 1),
		window: newWindow(s.opts), segment: segment.Possible && !s.opts.NoSegmentation, frame: wire.FrameSize,
	}
	p.batch.most = packets
	if p.past = s.opts.Transmitter != nil && dest.Addr().Is4(); p.past {
		p.batch.most = atOnce / burst
	}
	p.batch.ms = make([]ipv4.Message, p.batch.most)
	for i := range p.batch.ms {
		p.batch.ms[i] = ipv4.Message{Buffers: make([][]byte, 1), OOB: segment.Control()}
	}
	p.batch.singles = make([]ipv4.Message, p.batch.most*burst)
	for i := range p.batch.singles {
		p.batch.singles[i] = ipv4.Message{Buffers: make([][]byte, 1), Addr: p.addr}
	}
	return p
}

// wake has the loop look around.
func (p *path) wake() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// quiet says whether no push uses the path.
func (p *path) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.running
}

// send hands streams over to the loop.
func (p *path) send(streams ...*stream) {
	p.mu.Lock()
	p.add = append(p.add, streams...)
	start := !p.running
	p.running = true
	p.mu.Unlock()
	if start {
		p.sender.loops.Add(1)
		go p.loop()
	}
	p.wake()
}

// drop has the loop forget a push, and returns when it has.
func (p *path) drop(u *push) {
	p.mu.Lock()
	if !p.running {
		p.mu.Unlock()
		return
	}
	p.remove = append(p.remove, u)
	p.mu.Unlock()
	p.wake()
	<-u.dropped
}

// loop runs until no push is left.
func (p *path) loop() {
	defer p.sender.loops.Done()
	p.timer = time.NewTimer(time.Hour)
	defer p.timer.Stop()
	for p.accept() {
		at := now()
		p.look(at)
		p.fill(at)
		if p.arm() || !p.sleep(p.due()) {
			continue
		}
		for _, u := range p.pushes {
			u.stats.wakeups++
		}
	}
}

// accept takes in what pushes want. It returns false when there is no work left.
func (p *path) accept() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.add {
		if !slices.Contains(p.pushes, s.push) {
			p.pushes = append(p.pushes, s.push)
		}
		at := now()
		s.push.streams = append(s.push.streams, s)
		s.moved, s.spoke = at, at
		if at < p.blocked {
			s.push.diverted = true
		}
		p.frame = min(p.frame, s.push.frame)
		p.segment = p.segment && !s.push.generic
		p.past = p.past && s.push.kernel && !s.push.generic
		if s.push.diverted {
			p.leaveAll(s)
		}
	}
	clear(p.add)
	p.add = p.add[:0]
	for _, u := range p.divert {
		u.diverted = true
		if !u.distrust {
			// Others need not find out in their turn.
			p.blocked = now() + int64(blockFor)
		}
		for _, s := range u.streams {
			p.leaveAll(s)
			s.moved = now() // this way has its own time
		}
	}
	clear(p.divert)
	p.divert = p.divert[:0]
	for _, u := range p.remove {
		for _, s := range u.streams {
			p.window.flight -= s.nFlight
		}
		u.streams = nil
		p.pushes = slices.DeleteFunc(p.pushes, func(v *push) bool { return v == u })
		close(u.dropped)
	}
	clear(p.remove)
	p.remove = p.remove[:0]
	if len(p.pushes) == 0 {
		p.running = false
	} else {
		ceiling := 0
		for _, u := range p.pushes {
			for _, s := range u.streams {
				if s.grant.Share > 0 {
					ceiling += s.grant.Share
				} else {
					ceiling += span
				}
			}
		}
		if ceiling > 0 {
			p.window.setCeiling(min(ceiling, p.pushes[0].window))
			p.window.begin(ceiling)
		}
	}
	return p.running
}

// leaveAll leaves all frames of a stream to the control connection.
func (p *path) leaveAll(s *stream) {
	for f := range s.n {
		if !s.known.has(f) && !s.tcp.has(f) {
			s.leave(f, &p.window)
			s.push.large(s, f)
		}
	}
}

// detour has all of a push go over the control connection.
func (p *path) detour(u *push) {
	p.mu.Lock()
	p.divert = append(p.divert, u)
	p.mu.Unlock()
	p.wake()
}

// look takes in answers, finds what is lost, and notices who makes no progress.
func (p *path) look(at int64) {
	w := &p.window
	for _, u := range p.pushes {
		kept := u.streams[:0]
		for _, s := range u.streams {
			if s.harvest(at, w, at-s.spoke > int64(time.Millisecond)) {
				p.blocked, p.asked = 0, 0
			}
			if s.nKnown == s.n {
				u.tell(s, finished)
				continue
			}
			kept = append(kept, s)
			s.judge(at, w)
			if s.nFlight > 0 && s.spoke+w.probe(s.tries) <= at {
				p.silent(at, s)
			}
			if s.nFlight == 0 && s.nLost == 0 && s.next == 0 {
				s.moved = at // its turn has not come
			}
			if s.warned < patienceSteps && p.stallAt(s) <= at {
				if s.warned++; s.warned < patienceSteps {
					u.tell(s, stuck)
				} else {
					u.tell(s, dead)
				}
			}
		}
		clear(u.streams[len(kept):])
		u.streams = kept
	}
}

// blockFor is how long packets are not tried to where they did not get through.
const blockFor = 30 * time.Second

// patienceSteps is how many parts the time has that a stream may go without progress.
const patienceSteps = 4

// stallAt is when the next of those parts is over.
func (p *path) stallAt(s *stream) int64 {
	return s.moved + int64(p.sender.opts.Stall)*int64(s.warned+1)/patienceSteps
}

// due says when to look again even if nothing comes; 0: never.
func (p *path) due() (t int64) {
	soon := func(d int64) {
		if d != 0 && (t == 0 || d < t) {
			t = d
		}
	}
	for _, u := range p.pushes {
		for _, s := range u.streams {
			if s.nFlight > 0 {
				soon(s.again)
				soon(s.spoke + p.window.probe(s.tries))
			}
			if s.warned < patienceSteps {
				soon(p.stallAt(s))
			}
		}
	}
	soon(p.hold)
	return t
}

// silent handles a stream that was sent and not answered: first the oldest
// frame is sent once more, in the hope for an answer; then all count as lost.
func (p *path) silent(at int64, s *stream) {
	s.tries++
	if p.asked != 0 && at-p.asked > int64(pastWait) {
		p.pastAt, p.asked = at+int64(pastPause), 0
		p.sender.opts.Log.Info("no answers to frames that go past the sockets; they go by sockets for a while", "dest", p.dest)
	}
	s.push.stats.probes++
	s.spoke = at
	if s.tries == 1 {
		s.lose(s.flight.first(), &p.window)
		return
	}
	s.loseAll(&p.window)
	p.window.silent(at)
}

// goesPast says whether frames go past the sockets now.
func (p *path) goesPast(at int64) bool { return p.past && at >= p.pastAt }

// fill sends what the window has room for.
func (p *path) fill(at int64) {
	if p.hold > at {
		return
	}
	p.hold = 0
	for {
		room := p.window.room()
		// Do not send in dribs and drabs: wait until a burst fits, unless all is to come yet.
		if room == 0 || p.window.flight > 0 && room < min(burst, p.window.limit()/2) {
			return
		}
		most := packets * burst
		if p.goesPast(at) {
			most = atOnce
		}
		if p.assemble(at, min(room, most)) == 0 {
			return
		}
		p.flush(at)
	}
}

// assemble puts frames of all streams, those of pushes in turn, into the batch.
func (p *path) assemble(at int64, room int) (n int) {
	b := &p.batch
	if b.buf == nil {
		b.buf = make([]byte, 0, b.most*burst*wire.FrameSize)
	}
	b.buf, b.entries, b.packets = b.buf[:0], b.entries[:0], b.packets[:0]
	if len(p.pushes) > 1 {
		first := p.pushes[0]
		copy(p.pushes, p.pushes[1:])
		p.pushes[len(p.pushes)-1] = first
	}
	for _, u := range p.pushes {
		for _, s := range u.streams {
			if n >= room || len(b.packets) == b.most && b.packets[b.most-1].closed {
				return n
			}
			took := 0
			for n < room && s.waiting() {
				f, again := s.pick()
				size := u.out.Size(s.first + f)
				if size > p.frame {
					s.leave(f, &p.window)
					u.large(s, f)
					continue
				}
				if !p.place(s, f, size) {
					break
				}
				s.took(f, at, &p.window)
				took++
				n++
				if again {
					u.stats.again++
				}
			}
			if took > 0 {
				u.stats.sent += uint64(took)
				b.packets[len(b.packets)-1].closed = true
			}
		}
	}
	return n
}

// place puts a frame into the batch. It returns false if there is no room.
func (p *path) place(s *stream, f, size int) bool {
	b := &p.batch
	var k *packet
	if n := len(b.packets); n > 0 && !b.packets[n-1].closed {
		k = &b.packets[n-1]
		if size > k.size || k.n == burst {
			k.closed = true
			k = nil
		}
	}
	if k == nil {
		if len(b.packets) == b.most {
			return false
		}
		b.packets = append(b.packets, packet{from: len(b.buf), first: len(b.entries), size: size})
		k = &b.packets[len(b.packets)-1]
	}
	b.buf = s.frame(f, b.buf)
	k.to = len(b.buf)
	k.n++
	k.closed = size < k.size
	b.entries = append(b.entries, batched{s, f})
	return true
}

// flush sends the batch. What can't be sent counts as sent: it will be found lost.
func (p *path) flush(at int64) {
	b := &p.batch
	stamp := uint64(now())
	for i := range b.packets {
		k := &b.packets[i]
		// One stamp for all; the last frame asks for an answer about all.
		for at0, n := k.from, 0; n < k.n; n++ {
			size := min(k.size, k.to-at0)
			wire.SetStamp(b.buf[at0:at0+size], stamp, n == k.n-1)
			at0 += size
		}
	}
	if p.goesPast(at) && len(b.entries) >= pastLeast && p.sendPast(at) {
		return
	}
	for i := 0; i < len(b.packets); {
		if !p.segment {
			p.singles(b.packets[i:])
			return
		}
		ms := b.ms[:len(b.packets)-i]
		for j := range ms {
			k := &b.packets[i+j]
			m := &ms[j]
			m.Buffers[0] = b.buf[k.from:k.to]
			m.Addr = p.addr
			m.OOB = m.OOB[:cap(m.OOB)]
			if k.n == 1 {
				m.OOB = m.OOB[:0]
			} else {
				segment.SetSize(m.OOB, k.size)
			}
		}
		n, err := p.write(ms)
		i += max(n, 0)
		if err == nil {
			continue
		}
		switch {
		case segment.Refused(err) && b.packets[i].n > 1:
			p.segment = false
			p.refused = !tooLargeSegments(err)
			p.sender.opts.Log.Info("the way to a receiver does not take UDP_SEGMENT; frames go one by one", "dest", p.dest, "error", err)
		default:
			p.failed(at, &b.packets[i], err)
			i++
		}
	}
}

// sendPast sends the batch past the sockets. It returns false if it was not sent.
func (p *path) sendPast(at int64) bool {
	b := &p.batch
	b.frames = b.frames[:0]
	for i := range b.packets {
		k := &b.packets[i]
		for from := k.from; from < k.to; from += k.size {
			b.frames = append(b.frames, b.buf[from:min(from+k.size, k.to)])
		}
	}
	p.turn++
	port := p.ports[p.turn%len(p.ports)].number
	switch err := p.sender.opts.Transmitter.Transmit(port, p.dest, b.frames); {
	case err == nil:
		if p.asked == 0 {
			p.asked = at
		}
		if len(p.pushes) > 0 {
			p.pushes[0].stats.bursts++
			p.pushes[0].stats.past += uint64(len(b.frames))
		}
		return true
	case errors.Is(err, shuffle.ErrNotNow):
		// A socket makes the system find the way.
	default:
		p.pastAt = at + int64(pastPause)
		p.sender.opts.Log.Info("frames can't go past the sockets; they go by sockets for a while", "dest", p.dest, "error", err)
	}
	return false
}

// singles sends the frames of packets one by one.
func (p *path) singles(ks []packet) {
	b := &p.batch
	for i := range ks {
		k := &ks[i]
		ms := b.singles[:0]
		for from := k.from; from < k.to; {
			to := min(from+k.size, k.to)
			ms = b.singles[:len(ms)+1]
			ms[len(ms)-1].Buffers[0] = b.buf[from:to]
			from = to
		}
		for len(ms) > 0 {
			n, err := p.write(ms)
			ms = ms[max(n, 0):]
			if err != nil {
				p.failed(now(), k, err)
				break
			}
		}
	}
}

func (p *path) write(ms []ipv4.Message) (int, error) {
	if len(p.pushes) > 0 {
		p.pushes[0].stats.bursts++
	}
	p.turn++
	return p.ports[p.turn%len(p.ports)].batch.WriteBatch(ms, 0)
}

// failed handles an error of the system about a packet.
func (p *path) failed(at int64, k *packet, err error) {
	switch {
	case tooLarge(err):
		// Larger frames go the other way from now on.
		p.frame = k.size - 1
		p.segment = segment.Possible && !p.refused && !p.sender.opts.NoSegmentation && !slices.ContainsFunc(p.pushes, func(u *push) bool { return u.generic })
		p.sender.opts.Log.Info("frames are too large for the way to a receiver; they go over its control connection", "dest", p.dest, "size", k.size)
		for _, e := range p.batch.entries[k.first : k.first+k.n] {
			if !e.s.known.has(e.f) && !e.s.tcp.has(e.f) {
				e.s.leave(e.f, &p.window)
				e.s.push.large(e.s, e.f)
			}
		}
	case passing(err):
		p.hold = at + int64(time.Millisecond)
	default:
		// No route, no permission: it may pass, and if not, no progress is made, which
		// is handled there; but do not spin.
		p.hold = at + int64(20*time.Millisecond)
		for _, u := range p.pushes {
			u.sendFailed(err)
		}
	}
}

// arm says from which answer on the loop is to be woken, and returns whether that
// has come meanwhile.
func (p *path) arm() (come bool) {
	if p.sender.kernel == nil {
		return false
	}
	for _, u := range p.pushes {
		for _, s := range u.streams {
			if s.nFlight == 0 {
				continue
			}
			// When half of what is in flight has landed there is room for more; when
			// there is no more, the last one counts.
			more := s.nFlight
			if s.waiting() || len(u.streams) > 1 {
				more = max(1, s.nFlight/2)
			}
			wake := s.count + uint64(more)
			atomic.StoreUint64(&s.out.Wake, wake)
			come = come || atomic.LoadUint64(&s.out.Count) >= wake
		}
	}
	return come
}

// sleep waits for a signal or a time, 0 for none. It returns whether it was a signal.
func (p *path) sleep(until int64) bool {
	if until == 0 {
		<-p.signal
		return true
	}
	p.timer.Reset(time.Duration(max(until-now(), 1)))
	select {
	case <-p.signal:
		return true
	case <-p.timer.C:
		return false
	}
}
