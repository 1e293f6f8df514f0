// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// fewPart of the chunks sent are answered where a window is too large.
	fewPart = 8
	// manyGaps is from where on a list of gaps may be cut short.
	manyGaps    = 1000
	firstDirect = 32  // direct chunks in flight at first, for all members together
	mostDirect  = 128 // and at most
	leastDirect = 4
	directBurst = 16 // direct chunks of a member at once
	// leastVain is how often a member has had no more than before until it is left out: it may be this process that
	// had no time.
	leastVain = 8
)

// flow is how far a chain is with the message under way.
type flow struct {
	low    uint32 // all before it is done
	top    uint32 // behind the last one that is done
	sent   uint32 // behind the last one that was sent
	done   uint32 // chunks that all of the chain's members have
	lost   uint32 // what is before it and not done is taken for lost
	flight int    // sent, and neither done nor taken for lost

	doneThen uint32 // at the last tick
	sentThen uint32 // when it was last found at a stop,
	gotThen  uint32 // and what had been answered by then
	late     bool   // answers to what was taken for lost would be new
	early    uint32 // of what is before lost, how much was done when that was set
	settled  uint32 // and how much has been since, by what members say
	told     uint32 // the same, since the message began
	asking   bool   // members are asked for what they lack before end
	end      uint32
}

// lacks is what a member lacks of the message under way, as it has said itself.
type lacks struct {
	fresh    bool // it has said it
	gaps     []shuffle.Gap
	known    uint32        // what is behind it was not told
	queue    []shuffle.Gap // to be sent
	count    uint32        // chunks in gaps
	asked    time.Time     // not zero: it is being asked
	sent     time.Time     // when the last one of queue was sent
	moved    time.Time     // when it last had more than before
	vain     int           // answers since
	failures int
	whole    bool // it needs all by direct chunks
	done     bool // it has all
}

// left is how many chunks are to be sent.
func (l *lacks) left() (n uint32) {
	for _, g := range l.queue {
		n += g.Count
	}
	return n
}

// answer is what a member said.
type answer struct {
	m      *member
	lo, hi uint32
	gaps   []shuffle.Gap
	err    error
}

// transfer is a message under way. It belongs to one goroutine, which sends, then sleeps at the socket, and
// at each wake-up looks at the marks: counts only say when to look.
type transfer struct {
	g       *Group
	ctx     context.Context
	cast    *wire.Cast
	marks   []uint64
	s       sent
	limit   uint32
	rep     *Report
	members []*member
	chains  []*chain // that are used
	answers chan answer
	stop    context.CancelFunc
	forget  func() bool // has nobody wake it when ctx ends

	tick   time.Time
	tries  int  // ticks without any progress
	came   bool // an answer to this message, since it last slept
	timed  bool // nothing else ended that
	begun  time.Time
	stamp  uint64 // of what is sent now: when, in ns since it began
	pumped uint32
	target uint32 // cast.Done when all chains have all
	of     int    // chains that it is about

	// Direct chunks. Time goes by in epochs: what was sent before the last one is answered or lost.
	window   int
	all      uint32 // sent, of which cast.Direct have been answered
	now      int    // sent in this epoch
	before   int    // and in the one before it
	epoch    time.Time
	answered uint32 // cast.Direct when it began
	turn     int
}

// transfer sends a message until all members have it that have not been left out. Chains are used if
// chained, else members get it by direct chunks. mu is held.
func (g *Group) transfer(ctx context.Context, s sent, rep *Report, members []*member, chained bool) error {
	t := &transfer{
		g: g, ctx: ctx, cast: g.cast.shared, marks: g.cast.marks, s: s, limit: s.limit(), rep: rep, members: members,
		window: firstDirect,
	}
	defer t.end()
	t.begin(chained)
	err := t.run()
	atomic.StoreUint32(&t.cast.Total, 0)
	atomic.StoreUint32(&t.cast.Wake, 0)
	if rep.Timers == 0 {
		g.rtt.calm()
	}
	rep.Pumped += int64(atomic.LoadUint32(&t.cast.Pumped) - t.pumped)
	rep.Sent += rep.Pumped * wire.FrameSize
	rep.Kernel = rep.Kernel || rep.Pumped > 0
	rep.Chains = len(t.chains)
	return err
}

// linger prepares for what a message that is over at once does without: to sleep, and to ask members.
func (t *transfer) linger() {
	if t.stop != nil {
		return
	}
	t.ctx, t.stop = context.WithCancel(t.ctx)
	t.forget = context.AfterFunc(t.ctx, t.g.port.poke)
	t.answers = make(chan answer, len(t.members))
}

// end ends what linger began.
func (t *transfer) end() {
	if t.stop != nil {
		t.forget()
		t.stop()
	}
}

// begin makes the message the one under way, and sends its first chunks.
func (t *transfer) begin(chained bool) {
	g, c := t.g, t.cast
	atomic.StoreUint32(&c.Total, 0)
	atomic.StoreUint32(&c.First, t.s.first)
	atomic.StoreUint32(&c.Bytes, t.s.bytes)
	atomic.StoreUint32(&c.Done, 0)
	atomic.StoreUint32(&c.Direct, 0)
	atomic.StoreUint32(&c.DirectWake, 0)
	t.pumped = atomic.LoadUint32(&c.Pumped)
	t.begun = time.Now()
	ready := true
	for _, ch := range g.chains {
		first := t.limit
		if chained && len(ch.members) > 0 {
			t.chains = append(t.chains, ch)
			ready = ready && ch.ready.Load()
			first = t.s.first + min(uint32(ch.window), t.s.total)
			ch.flow = flow{low: t.s.first, top: t.s.first, lost: t.s.first, sent: first, sentThen: t.s.first}
		}
		atomic.StoreUint32(&c.Next[ch.number], first)
	}
	flags := uint32(0)
	if g.pumps && ready {
		flags = wire.FlagPump
	}
	atomic.StoreUint32(&c.Flags, flags)
	t.of = len(t.chains)
	t.target = t.s.total * uint32(t.of)
	// Nothing is to go up while this goroutine looks at the marks anyway: see arm.
	atomic.StoreUint32(&c.Wake, 0)
	for _, m := range t.members {
		m.lacks = lacks{moved: t.begun}
		if !chained || m.chain == nil {
			t.whole(m)
		}
	}
	atomic.StoreUint32(&c.Total, t.s.total)
	t.tick = t.begun.Add(g.rtt.patience(0))
	t.first()
}

// whole has a member get all by direct chunks.
func (t *transfer) whole(m *member) {
	m.lacks = lacks{
		whole: true, fresh: true, known: t.limit, count: t.s.total, moved: m.lacks.moved,
		gaps: []shuffle.Gap{{Place: t.s.first, Count: t.s.total}}, queue: []shuffle.Gap{{Place: t.s.first, Count: t.s.total}},
	}
}

// first sends the first window of all chains: each chunk once for all whose heads programs clone it to.
func (t *transfer) first() {
	g := t.g
	number := uint16(wire.ChainAll)
	if len(t.chains) == 1 {
		number = uint16(t.chains[0].number)
	}
	var cloned [2][]*chain // by family: a packet becomes no packet of the other one
	var alike []*chain
	for _, c := range t.chains {
		switch {
		case !g.clones || number != wire.ChainAll:
			alike = append(alike, c)
		case !c.ready.Load():
			// What is for all would be cloned once more.
			t.send(uint16(c.number), t.s.first, c.flow.sent, []*chain{c}, 1)
		case c.head.Addr().Is4():
			cloned[0] = append(cloned[0], c)
		default:
			cloned[1] = append(cloned[1], c)
		}
	}
	// Windows may differ after losses: what is for all ends with the smallest.
	sendAll := func(list []*chain, to []*chain, copies int) {
		if len(list) == 0 {
			return
		}
		end := list[0].flow.sent
		for _, c := range list {
			end = min(end, c.flow.sent)
		}
		t.send(number, t.s.first, end, to, copies)
		for _, c := range list {
			t.send(uint16(c.number), end, c.flow.sent, []*chain{c}, 1)
		}
	}
	sendAll(alike, alike, 1)
	for _, list := range cloned {
		if len(list) > 0 {
			t.rep.Kernel = true
			sendAll(list, list[:1], len(list))
		}
	}
}

// send sends chunks from a place to another one to the heads of chains; each leaves this host in so many copies.
func (t *transfer) send(number uint16, from, to uint32, chains []*chain, copies int) {
	b := &t.g.batch
	for from < to {
		b.reset()
		t.stamp = uint64(time.Since(t.begun)) + 1
		for ; from < to && !b.full(); from++ {
			t.add(number, from)
		}
		for _, c := range chains {
			t.flush(c)
		}
		t.rep.Sent += int64(len(b.buf) * len(chains) * (copies - 1))
	}
}

func (t *transfer) flush(c *chain) {
	b := &t.g.batch
	t.rep.Sent += int64(len(b.buf))
	// What can't be sent counts as lost: it is found to be missing.
	_ = t.g.port.send(b.buf, b.size, c.head)
}

// add puts a chunk into the batch.
func (t *transfer) add(number uint16, place uint32) {
	n := uint32(wire.ChunkSize)
	if place == t.limit-1 {
		n = t.s.bytes
	}
	h := wire.Head{
		Token: t.g.token, Seq: atomic.AddUint32(&t.cast.Transmissions, 1), Back: uint32(t.g.cast.slot), Stamp: t.stamp,
	}
	c := wire.Chunk{Place: place, First: t.s.first, Total: t.s.total, Chain: number}
	data := t.g.cast.data[int(place)*wire.ChunkSize:][:n]
	if err := t.g.batch.add(h, c, data, t.g.cast.tags); err != nil {
		t.g.node.opts.Log.Error("broadcast: a chunk that can't be made", "name", t.g.spec.Name, "reason", err)
	}
}

// run goes on until all have all.
func (t *transfer) run() error {
	for {
		done := atomic.LoadUint32(&t.cast.Done)
		for _, c := range t.chains {
			t.scan(c)
		}
		t.take()
		t.tend(time.Now())
		if t.complete() {
			return nil
		}
		if err := context.Cause(t.ctx); err != nil {
			return err
		}
		if err := context.Cause(t.g.ctx); err != nil {
			return err
		}
		now := time.Now()
		if !now.Before(t.tick) {
			t.ticked(now)
		}
		for _, c := range t.chains {
			t.refill(c)
		}
		t.direct(now)
		if t.arm(done) {
			continue
		}
		t.came, t.timed = false, false
		t.linger()
		until := t.due(now)
		came, err := t.g.port.wait(until, t.frame)
		switch {
		case err != nil:
			return fmt.Errorf("wait for answers: %w", err)
		case came:
			// The last answer to an earlier message may have come after that was found to be done.
			if t.came {
				t.rep.Woken++
			}
		case !time.Now().Before(until):
			t.timed = true
			t.rep.Timers++
		}
	}
}

// frame takes an answer that came to the socket. Programs have counted theirs before they passed it up.
func (t *transfer) frame(b []byte) {
	h, c, _, err := wire.ParseChunk(b)
	if err != nil || h.Kind != wire.BroadcastAck || h.Token != t.g.token {
		t.g.node.counts[wire.AckStray].Add(1)
		return
	}
	t.came = t.came || c.First == t.s.first
	if t.g.kernel {
		t.g.node.counts[wire.CollectedUp].Add(1)
	} else {
		t.g.node.counts[t.g.node.collect(b, &h, &c)].Add(1)
	}
	if d := time.Since(t.begun) - time.Duration(h.Stamp); h.Stamp != 0 && c.First == t.s.first {
		t.g.rtt.add(d)
	}
}

// scan looks at the marks of a chain.
func (t *transfer) scan(c *chain) {
	f, bit := &c.flow, c.mask()
	f.sent = min(atomic.LoadUint32(&t.cast.Next[c.number]), t.limit)
	for f.low < f.sent && atomic.LoadUint64(&t.marks[f.low])&bit != 0 {
		f.low++
	}
	f.top, f.flight = f.low, 0
	done, holes := f.low-t.s.first, uint32(0)
	for p := f.low; p < f.sent; p++ {
		if atomic.LoadUint64(&t.marks[p])&bit != 0 {
			f.top = p + 1
			done++
		} else if p >= f.lost {
			f.flight++
		} else {
			holes++
		}
	}
	f.done = done
	if f.late && f.end-t.s.first-holes > f.early+f.settled && f.end == f.lost {
		f.late = false
		t.g.rtt.spurious()
	}
	// Chunks overtake each other by less than that.
	if far := uint32(2 * c.window); f.top > f.low+far && f.top-far > f.lost {
		f.lost = f.top - far
	}
}

// take takes in what members said.
func (t *transfer) take() {
	for {
		select {
		case a := <-t.answers:
			t.hear(a)
		default:
			return
		}
	}
}

func (t *transfer) hear(a answer) {
	m, l := a.m, &a.m.lacks
	l.asked = time.Time{}
	now := time.Now()
	switch {
	case !m.alive || t.ctx.Err() != nil || t.g.ctx.Err() != nil:
		return
	case a.err != nil:
		l.failures++
		if l.failures > 1 || errors.Is(a.err, shuffle.ErrUnknown) || errors.Is(a.err, shuffle.ErrRefused) || errors.Is(a.err, context.DeadlineExceeded) {
			t.g.drop(m, fmt.Errorf("ask what it lacks: %w", a.err))
		} else {
			l.sent = now // it is asked again after a while
			l.fresh, l.gaps, l.known = true, []shuffle.Gap{{Place: a.lo, Count: a.hi - a.lo}}, a.lo
		}
		return
	}
	l.failures = 0
	known, count := a.hi, uint32(0)
	gaps := a.gaps[:0:0]
	for _, p := range a.gaps {
		end := min(uint64(p.Place)+uint64(p.Count), uint64(a.hi))
		if p.Place < a.lo || uint64(p.Place) >= end {
			continue
		}
		gaps = append(gaps, shuffle.Gap{Place: p.Place, Count: uint32(end) - p.Place})
		count += uint32(end) - p.Place
	}
	if len(a.gaps) >= manyGaps && len(gaps) > 0 {
		last := gaps[len(gaps)-1]
		known = last.Place + last.Count
	}
	// Asked for less than before, it says less: what it told of the rest holds.
	l.vain++
	if !l.fresh || count == 0 || count < l.count || known > l.known {
		l.moved, l.vain = now, 0
	}
	l.fresh, l.gaps, l.known, l.count = true, gaps, known, count
	l.queue = slices.Clone(gaps)
	if l.whole && count == 0 && known == t.limit {
		l.done = true
	}
	if count > 0 && now.Sub(l.moved) > t.g.node.opts.Patience && l.vain >= leastVain {
		t.g.drop(m, fmt.Errorf("it lacks %d chunks, and has had no more for %v", count, t.g.node.opts.Patience))
	}
}

// ask asks a member what it lacks.
func (t *transfer) ask(m *member, lo, hi uint32) {
	t.linger()
	m.lacks.asked = time.Now()
	t.g.calls.Add(1)
	go func() {
		defer t.g.calls.Done()
		ctx, cancel := context.WithTimeout(t.ctx, t.g.node.opts.Patience)
		defer cancel()
		gaps, err := m.Control.Missing(ctx, t.g.token, lo, hi-lo)
		select {
		case t.answers <- answer{m, lo, hi, gaps, err}:
			t.g.port.poke()
		case <-t.ctx.Done(): // nobody listens any more
		}
	}()
}

// tend sees to members: what was learned of a chain's, who is to be asked again, who is to be left out.
func (t *transfer) tend(now time.Time) {
	t.chains = slices.DeleteFunc(t.chains, func(c *chain) bool { return len(c.members) == 0 })
	for _, c := range t.chains {
		t.settle(c)
	}
	wait := t.g.rtt.pause(min(t.tries, 3))
	for _, m := range t.members {
		l := &m.lacks
		if err := m.broken.Load(); err != nil && m.alive {
			t.g.drop(m, *err)
		}
		if !m.alive || l.done {
			continue
		}
		if !l.asked.IsZero() {
			// It may be dead: the others need not wait for its part of the chain.
			if m.chain != nil && now.Sub(l.asked) > t.g.suspicion() {
				t.g.unlink(m)
				asked := l.asked
				t.whole(m)
				l.queue, l.asked = nil, asked
			}
			continue
		}
		hi := t.limit
		if !l.whole {
			if m.chain == nil || !m.chain.flow.asking {
				continue
			}
			hi = m.chain.flow.end
		}
		if !l.fresh || len(l.queue) > 0 || l.count == 0 && l.known >= hi && len(l.gaps) == 0 {
			continue
		}
		if now.Sub(l.sent) < wait && t.unanswered() > 0 {
			continue
		}
		lo := l.known
		if len(l.gaps) > 0 {
			lo = l.gaps[0].Place
		}
		t.ask(m, lo, hi)
	}
}

// round asks all of a chain's members what they lack of what was sent.
func (t *transfer) round(c *chain) {
	f := &c.flow
	if f.asking || f.low >= f.sent {
		return
	}
	f.asking, f.end = true, f.sent
	for _, m := range c.members {
		l := &m.lacks
		if !l.asked.IsZero() {
			continue // of an earlier round: then it is asked again
		}
		*l = lacks{moved: time.Now()}
		t.ask(m, f.low, f.end)
	}
}

// settle marks as done what all members of a chain say they have.
func (t *transfer) settle(c *chain) {
	f := &c.flow
	if !f.asking {
		return
	}
	known := f.end
	for _, m := range c.members {
		if !m.lacks.fresh {
			return
		}
		known = min(known, m.lacks.known)
	}
	at := make([]int, len(c.members))
	for p := f.low; p < known; p++ {
		lacking := false
		for i, m := range c.members {
			gaps := m.lacks.gaps
			for at[i] < len(gaps) && gaps[at[i]].Place+gaps[at[i]].Count <= p {
				at[i]++
			}
			if at[i] < len(gaps) && gaps[at[i]].Place <= p {
				lacking = true
				break
			}
		}
		if !lacking && atomic.OrUint64(&t.marks[p], c.mask())&c.mask() == 0 {
			atomic.AddUint32(&t.cast.Done, 1)
			f.settled++
			f.told++
		}
	}
	t.scan(c)
	if f.low >= f.end {
		f.asking, f.late = false, false
		for _, m := range c.members {
			m.lacks = lacks{moved: m.lacks.moved, asked: m.lacks.asked} // what was asked is still to be answered
		}
	}
}

// complete says whether all have all.
func (t *transfer) complete() bool {
	for _, c := range t.chains {
		if c.flow.low < t.limit {
			return false
		}
	}
	for _, m := range t.members {
		if m.alive && m.lacks.whole && !m.lacks.done {
			return false
		}
	}
	return true
}

// ticked looks who made no progress for a while.
func (t *transfer) ticked(now time.Time) {
	moved, stuck := false, false
	for _, c := range t.chains {
		f := &c.flow
		if f.low >= t.limit {
			continue
		}
		if f.done != f.doneThen {
			f.doneThen = f.done
			c.window = min(t.g.window, c.window+c.window/4+1)
			moved = true
			continue
		}
		// Nothing of it comes any more: what was in flight is lost.
		stuck = true
		if f.flight > 0 || f.lost < f.sent {
			f.lost, f.flight = f.sent, 0
			f.late, f.early, f.settled = !f.asking, f.done, 0
			// Where some get through, others are lost by chance. Where hardly any do, there were too many.
			got := f.done - f.told
			if fewPart*(got-f.gotThen) < f.sent-f.sentThen {
				c.window = max(min(leastWindow, t.g.window), c.window/2)
			}
			f.sentThen, f.gotThen = f.sent, got
		}
		t.round(c)
	}
	if stuck && !t.timed {
		t.rep.Timers++ // something came, and nothing of that chain
	}
	t.tries++
	if moved {
		t.tries = 0
	}
	t.tick = now.Add(t.g.rtt.patience(t.tries))
}

// refill sends what a chain's window has room for, unless programs do.
func (t *transfer) refill(c *chain) {
	f := &c.flow
	if f.sent >= t.limit {
		return
	}
	room := c.window - f.flight
	least := min(8, c.window/4)
	if t.g.pumps && atomic.LoadUint32(&t.cast.Flags)&wire.FlagPump != 0 && c.ready.Load() {
		least = c.window / 2 // what was lost does not clock the next one
	}
	if room <= 0 || f.flight > 0 && room < least {
		return
	}
	from := atomic.AddUint32(&t.cast.Next[c.number], uint32(room)) - uint32(room)
	to := min(from+uint32(room), t.limit)
	if from >= to {
		return
	}
	t.send(uint16(c.number), from, to, []*chain{c}, 1)
	f.sent = to
	f.flight += int(to - from)
}

// unanswered is how many direct chunks are in flight.
func (t *transfer) unanswered() int {
	return max(0, min(int(int32(t.all-atomic.LoadUint32(&t.cast.Direct))), t.now+t.before))
}

// turnEpoch begins a new epoch if it is time, and chooses how many direct chunks may be in flight.
func (t *transfer) turnEpoch(now time.Time) {
	pause := t.g.rtt.pause(0)
	past := now.Sub(t.epoch)
	if past < pause {
		return
	}
	direct := atomic.LoadUint32(&t.cast.Direct)
	got := int(direct - t.answered)
	switch {
	case got > 0 && fewPart*got >= t.before:
		t.window = min(mostDirect, t.window+max(1, got/4))
		t.tries = 0
	case t.before > 0:
		t.window = max(leastDirect, t.window/2)
	}
	t.epoch, t.answered = now, direct
	t.before, t.now = t.now, 0
	if past > 2*pause {
		t.before = 0
	}
	// What was sent before that is lost.
	if int(int32(t.all-direct)) > t.before {
		t.all = direct + uint32(t.before)
	}
}

// direct sends members what they lack, one after the other.
func (t *transfer) direct(now time.Time) {
	t.turnEpoch(now)
	for idle := 0; idle < len(t.members); {
		room := t.window - t.unanswered()
		if room <= 0 {
			break
		}
		m := t.members[t.turn%len(t.members)]
		t.turn++
		idle++
		if n := t.directTo(m, min(room, directBurst)); n > 0 {
			idle = 0
		}
	}
}

// directTo sends a member up to n chunks that it lacks, and returns how many.
func (t *transfer) directTo(m *member, n int) (sent int) {
	l := &m.lacks
	if !m.alive || len(l.queue) == 0 {
		return 0
	}
	b := &t.g.batch
	b.reset()
	t.stamp = uint64(time.Since(t.begun)) + 1
	t.all += uint32(min(n, int(l.left())))
	for sent < n && len(l.queue) > 0 {
		gap := &l.queue[0]
		t.add(wire.ChainDirect, gap.Place)
		sent++
		gap.Place++
		if gap.Count--; gap.Count == 0 {
			l.queue = l.queue[1:]
		}
	}
	t.now += sent
	l.sent = time.Now()
	t.rep.Sent += int64(len(b.buf))
	t.rep.Again += int64(sent)
	_ = t.g.port.send(b.buf, b.size, m.Address)
	return sent
}

// arm says which answer is to wake this goroutine. It returns whether that has come meanwhile. done is
// what was counted before the marks were looked at.
func (t *transfer) arm(done uint32) (come bool) {
	need, flight := uint32(0), 0
	pumped := atomic.LoadUint32(&t.cast.Flags)&wire.FlagPump != 0
	for _, c := range t.chains {
		need += t.s.total - c.flow.done
		flight += c.flow.flight
	}
	if t.of != len(t.chains) || need > 0 && int32(done-t.target) >= 0 {
		// A chain is out of use, or an answer to an earlier message was counted.
		t.of, t.target = len(t.chains), done+need
	}
	wake := t.target
	switch {
	case need == 0:
		wake = 0 // never
	case !pumped && flight > 0:
		// Half of it, so that there is room for more.
		wake = done + min(need, uint32(max(1, flight/2)))
	}
	atomic.StoreUint32(&t.cast.Wake, wake)
	come = need > 0 && int32(atomic.LoadUint32(&t.cast.Done)-wake) >= 0
	if n := t.unanswered(); n > 0 {
		wake = atomic.LoadUint32(&t.cast.Direct) + uint32(max(1, n/2))
		atomic.StoreUint32(&t.cast.DirectWake, wake)
		come = come || int32(atomic.LoadUint32(&t.cast.Direct)-wake) >= 0
	}
	return come
}

// due says when to look even if nothing comes.
func (t *transfer) due(now time.Time) time.Time {
	until := t.tick
	soon := func(at time.Time) {
		if at.Before(until) {
			until = at
		}
	}
	wait := t.g.rtt.pause(min(t.tries, 3))
	if t.unanswered() > 0 {
		soon(t.epoch.Add(t.g.rtt.pause(0)))
	}
	for _, m := range t.members {
		l := &m.lacks
		switch {
		case !m.alive || l.done:
		case !l.asked.IsZero():
			if m.chain != nil {
				soon(l.asked.Add(t.g.suspicion() + time.Millisecond))
			}
		case l.fresh && len(l.queue) == 0 && len(l.gaps) > 0:
			soon(l.sent.Add(wait))
		}
	}
	if until.Before(now) {
		until = now.Add(time.Millisecond)
	}
	return until
}
