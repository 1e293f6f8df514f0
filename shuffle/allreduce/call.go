// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// run is how many blocks that stand behind each other are reduced by one member: one send takes small vectors there.
	run = 4
	// batch is how many frames go to the system at once at most.
	batch = 64
	// firstInFlight is how many parts may be under way to a member at first, and as many results may be beside them: a veth
	// holds 256 frames. Where none are lost it becomes more, up to mostInFlight. leastWindow is how few blocks of a reducer
	// may be under way after losses.
	firstInFlight = 100
	mostInFlight  = 250
	leastWindow   = 4
	// firstAgain is after what time parts are sent again whose results have not come, the first time. It doubles up to mostAgain.
	// gapAgain is the same where later results have come.
	firstAgain = 4 * time.Millisecond
	mostAgain  = 100 * time.Millisecond
	gapAgain   = time.Millisecond
	// overtaken is by how many later results of a reducer one is overtaken before it counts as lost.
	overtaken = 4
	// againFrames is how many parts are sent again at a time.
	againFrames = 32
	// lastBlock is where numbers of a reducer's blocks end. A group is used up before that.
	lastBlock = 1<<32 - 1
)

var (
	errSecond = errors.New("called while another call is under way")
	errUsedUp = errors.New("it has reduced all the blocks that a group can number; form a new one")
)

// lane is the blocks of a call that one member reduces, in their order.
type lane struct {
	first int // place of the first in the vector, in runs; each other run stands one per member further on
	count int // of blocks
	sent  int // whose parts were sent, or added here
	taken int // whose results are in the vector
	// hurried is behind the last one whose part was sent again because later ones had overtaken it.
	hurried int
	base    uint32 // the reducer's number of the first
}

// progress is what a call has done. It belongs to who calls.
type progress struct {
	e     *end
	start int      // which member reduces the first run of blocks
	next  []uint32 // by reducer: the number of its next block
	past  uint32   // results of all calls before this one, as wire.Group counts them

	v      Vector
	what   uint32
	each   int // values of a block
	blocks int
	sent   int
	taken  int
	lanes  []lane

	most   int           // blocks of a reducer that may be under way
	limit  int           // that may be now: fewer after losses
	lossy  bool          // there were some
	lostAt int           // what was sent when limit was last made smaller
	pause  time.Duration // after which parts are sent again
	usual  time.Duration // that results take to come
	spin   spin

	timer *time.Timer
	buf   []byte // for a batch of frames
	room  [wire.ChunkSize]byte
	since time.Time // nothing has come
	named bool      // the log has said so
	told  bool      // so have others been, over streams
}

func (c *progress) init(e *end) {
	c.e, c.next, c.lanes = e, make([]uint32, e.members), make([]lane, e.members)
	for i := range c.next {
		c.next[i] = 1 << e.bits
	}
	c.most = min(e.window(), max(leastWindow, mostInFlight/max(1, e.members-1)))
	c.limit = min(c.most, max(leastWindow, firstInFlight/max(1, e.members-1)))
}

// window is how many blocks of a reducer may be under way.
func (e *end) window() int { return 1 << e.bits / 2 }

// Reduce is one call; see Group.
func (e *end) Reduce(ctx context.Context, v Vector) error {
	if !e.calling.CompareAndSwap(false, true) {
		e.fail(errSecond)
		return e.err()
	}
	defer e.calling.Store(false)
	err := e.reduce(ctx, v)
	if err != nil {
		e.fail(err)
		return e.err()
	}
	return nil
}

func (e *end) reduce(ctx context.Context, v Vector) error {
	if e.cause.Load() != nil {
		return e.err()
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if err := v.check(); err != nil {
		return err
	}
	if !e.gate.enter() {
		return e.err() // whoever shuts it has broken it
	}
	defer e.gate.leave()
	number := e.calls.Add(1) // empty ones too: else the next call of one member would be this one of another
	over := e.streams != nil && e.streams.begins(number, v, whatOf(number, v))
	if e.cause.Load() != nil {
		return e.err()
	}
	if e.members == 1 || v.Len() == 0 {
		return nil
	}
	e.waiting.Store(true)
	defer e.waiting.Store(false)
	if over {
		return e.streams.reduce(ctx, number, v, whatOf(number, v))
	}
	c := &e.call
	if err := c.begin(v); err != nil {
		return err
	}
	defer c.end()
	return c.run(ctx)
}

// begin works out which member reduces what.
func (c *progress) begin(v Vector) error {
	e := c.e
	c.v, c.each = v, wire.ChunkSize/v.width()
	c.blocks = (v.Len() + c.each - 1) / c.each
	c.what = whatOf(e.calls.Load(), v)
	c.sent, c.taken, c.lostAt = 0, 0, 0
	runs := (c.blocks + run - 1) / run
	for r := range c.lanes {
		l := lane{first: (r - c.start + e.members) % e.members, base: c.next[r]}
		if l.first < runs {
			last := (runs - 1 - l.first) / e.members // of its runs
			l.count = last*run + min(run, c.blocks-(l.first+last*e.members)*run)
		}
		if uint64(l.base)+uint64(l.count) > lastBlock {
			return errUsedUp
		}
		c.lanes[r] = l
	}
	for r, l := range c.lanes {
		c.next[r] += uint32(l.count)
	}
	c.start = (c.start + runs) % e.members
	if c.buf == nil {
		c.buf = make([]byte, 0, batch*wire.FrameSize)
		c.timer = time.NewTimer(time.Hour)
		c.timer.Stop()
	}
	return nil
}

func (c *progress) end() {
	c.v = Vector{}
	c.past += uint32(c.blocks)
}

// whatOf returns what all parts of a call have in common that are of one call of one kind; see wire.Part.
func whatOf(call uint64, v Vector) uint32 {
	mix := func(z uint64) uint64 {
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	return uint32(mix(mix(call*0x9e3779b97f4a7c15+uint64(v.Len())) + uint64(v.Op)<<8 + uint64(v.width())))
}

// run goes on until all results are in the vector.
func (c *progress) run(ctx context.Context) error {
	e := c.e
	g := e.counts
	c.pause, c.since, c.named, c.told = c.firstPause(), time.Time{}, false, false
	for {
		c.take()
		if c.taken == c.blocks {
			return nil
		}
		c.hurry()
		if c.push() {
			continue // what was sent may have come back by now: then nobody needs to be woken
		}
		stored := c.stored()
		// All that is still to come, or half of what is under way: so that the window opens before it is used up.
		want := c.blocks
		if c.sent < c.blocks {
			want = min(want, stored+max(1, (c.sent-stored)/2))
		}
		if e.kernel && c.spin.wait(func() bool { return c.stored() >= want }) {
			e.node.counts.spun.Add(1)
			c.came()
			continue
		}
		atomic.StoreUint32(&g.Wake, c.past+uint32(want))
		now := c.stored()
		if now >= want {
			continue
		}
		pause := c.pause
		if c.overtakes() {
			pause = min(pause, gapAgain)
		}
		woken, err := c.sleep(ctx, pause)
		if err != nil {
			return err
		}
		if woken {
			e.node.counts.woken.Add(1)
			c.came()
			continue
		}
		e.node.counts.timers.Add(1)
		if c.stored() != now {
			c.came()
		} else {
			c.pause = min(2*c.pause, mostAgain)
			c.complain(ctx)
		}
		c.repair()
		if c.again() {
			c.lost()
		}
	}
}

// stored is how many results of this call are here, in the vector or not.
func (c *progress) stored() int { return int(int32(atomic.LoadUint32(&c.e.counts.Stored) - c.past)) }

// came notes that results have come.
func (c *progress) came() {
	c.pause, c.since = c.firstPause(), time.Time{}
	if c.sent < c.blocks {
		more := 1
		if !c.lossy {
			more = max(1, c.limit/8)
		}
		c.limit = min(c.most, c.limit+more)
	}
}

// lost notes that frames seem to be lost: fewer are to be under way.
func (c *progress) lost() {
	if c.taken >= c.lostAt {
		c.lossy = true
		c.limit = min(c.most, max(leastWindow, c.limit/2))
		c.lostAt = c.sent // once for what was under way
	}
}

// firstPause is after what time nothing has come when something should have.
func (c *progress) firstPause() time.Duration { return min(4*firstAgain, max(firstAgain, 4*c.usual)) }

// overtakes says whether there is a reducer whose next result is not here, and a later one is.
func (c *progress) overtakes() bool {
	for r := range c.lanes {
		l := &c.lanes[r]
		if l.taken >= l.sent || c.here(r, l, l.taken) {
			continue
		}
		for j := l.taken + 1; j < min(l.sent, l.taken+1+overtaken); j++ {
			if c.here(r, l, j) {
				return true
			}
		}
	}
	return false
}

// sleep waits until it is woken, or until it was long enough.
func (c *progress) sleep(ctx context.Context, most time.Duration) (woken bool, err error) {
	began := time.Now()
	c.timer.Reset(most)
	defer c.timer.Stop()
	select {
	case <-c.e.wake:
		if c.taken > 0 { // else it was members that were waited for
			c.usual += (time.Since(began) - c.usual) / 8
		}
		return true, nil
	case <-c.timer.C:
		return false, nil
	case <-c.e.broken:
		return false, c.e.err()
	case <-ctx.Done():
		return false, ended(ctx)
	}
}

// ended says why a context has ended.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// values returns where a lane's block lies in the vector.
func (c *progress) values(l *lane, j int) (from, n int) {
	from = ((l.first+j/run*c.e.members)*run + j%run) * c.each
	return from, min(c.each, c.v.Len()-from)
}

// block returns a lane's block.
func (c *progress) block(r int, l *lane, j int) block {
	_, n := c.values(l, j)
	number := l.base + uint32(j)
	b := block{
		p:      wire.Part{What: c.what, Bytes: uint16(n * c.v.width()), Op: uint8(c.v.Op), Reducer: uint8(r), Member: uint8(c.e.rank)},
		number: number, slot: int(number & (1<<c.e.bits - 1)), generation: number >> c.e.bits,
	}
	if c.v.width() == 8 {
		b.p.Wide = 1
	}
	return b
}

// here says whether the result of a lane's block is stored here.
func (c *progress) here(r int, l *lane, j int) bool {
	bits := c.e.bits
	number := l.base + uint32(j)
	return atomic.LoadUint64(&c.e.results.marks[r<<bits|int(number&(1<<bits-1))]) == uint64(number>>bits)<<32|wire.MarkStored
}

// take copies the results that are here into the vector.
func (c *progress) take() {
	e := c.e
	for r := range c.lanes {
		l := &c.lanes[r]
		for ; l.taken < l.sent && c.here(r, l, l.taken); l.taken++ {
			from, n := c.values(l, l.taken)
			slot := int((l.base + uint32(l.taken)) & (1<<e.bits - 1))
			c.v.set(from, e.results.at(r<<e.bits | slot)[:n*c.v.width()])
			c.taken++
		}
	}
}

// push adds and sends parts that the window allows, a batch of each reducer's at most. It says whether there were any.
func (c *progress) push() bool {
	e := c.e
	window := c.limit
	before := c.sent
	own := &c.lanes[e.rank]
	for range min(batch, min(own.count, own.taken+window)-own.sent) {
		b := c.block(e.rank, own, own.sent)
		from, n := c.values(own, own.sent)
		own.sent++
		c.sent++
		if e.part(&b, e.rank, c.v.values(from, n, &c.room)) == wire.BlockReduced {
			at := len(c.buf)
			c.buf = c.buf[:at+len(e.putResult(c.buf[at:at+wire.FrameSize], &b))]
		}
	}
	c.flush((e.rank + 1) % e.members)
	for i := 1; i < e.members; i++ {
		r := (e.rank + i) % e.members
		l := &c.lanes[r]
		for range min(batch, min(l.count, l.taken+window)-l.sent) {
			c.put(r, l, l.sent)
			l.sent++
			c.sent++
		}
		c.flush(r)
	}
	return c.sent != before
}

// put appends the frame of a part to the batch.
func (c *progress) put(r int, l *lane, j int) {
	b := c.block(r, l, j)
	from, n := c.values(l, j)
	at := len(c.buf)
	frame, err := wire.PutPart(c.buf[at:at+wire.FrameSize], wire.Reduce, c.e.spec.Token, b.number, b.p, c.v.values(from, n, &c.room), c.e.tags)
	if err != nil {
		c.e.fail(err) // the numbers are such that it can't be
		return
	}
	c.buf = c.buf[:at+len(frame)]
}

// flush sends the batch to a member. All but the last frame are as large as frames get, unless it is alone.
func (c *progress) flush(rank int) {
	if len(c.buf) > 0 {
		c.e.node.send(c.buf, min(len(c.buf), wire.FrameSize), c.e.spec.Members[rank].Address)
		c.buf = c.buf[:0]
	}
}

// hurry sends parts again that seem to be lost: results of later blocks of the same reducer are here. Each goes once.
func (c *progress) hurry() {
	for r := range c.lanes {
		l := &c.lanes[r]
		j := l.taken
		if r == c.e.rank || j+overtaken >= l.sent || j < l.hurried || c.here(r, l, j) || !c.here(r, l, j+overtaken) {
			continue
		}
		l.hurried = j + 1
		c.put(r, l, j)
		c.e.node.counts.again.Add(1)
		c.flush(r)
		c.lost()
	}
}

// again sends parts again whose results have not come. It says whether later ones of the same reducer have.
func (c *progress) again() (gaps bool) {
	e := c.e
	each := max(1, againFrames/(e.members-1))
	for i := 1; i < e.members; i++ {
		r := (e.rank + i) % e.members
		l := &c.lanes[r]
		n := 0
		for j := l.taken; j < l.sent; j++ {
			if c.here(r, l, j) {
				gaps = gaps || n > 0
			} else if n < each {
				c.put(r, l, j)
				n++
			}
		}
		e.node.counts.again.Add(uint64(n))
		c.flush(r)
	}
	return gaps
}

// repair completes blocks of this member that programs have left, and stores results that they have not.
func (c *progress) repair() {
	e := c.e
	l := &c.lanes[e.rank]
	for j := l.taken; j < l.sent; j++ {
		b := c.block(e.rank, l, j)
		row := e.sums.marks[b.slot*e.row:][:e.row]
		if atomic.LoadUint64(&row[wire.RowApplied]) != b.mark(e.all()) {
			continue
		}
		if e.complete(&b) ||
			atomic.LoadUint64(&row[wire.RowResult]) == b.mark(wire.MarkStored) && e.store(&b, e.sums.at(b.slot*e.row + wire.RowResult)[:b.p.Bytes]) {
			e.sendResult(&b, e.next)
		}
	}
}

// complain logs whom the call waits for, once it has for long.
func (c *progress) complain(ctx context.Context) {
	e := c.e
	now := time.Now()
	switch {
	case c.since.IsZero():
		c.since = now
		return
	case e.streams != nil && !c.told && now.Sub(c.since) >= waitBefore:
		c.told = true
		e.streams.announce(ctx, e.calls.Load(), c.what)
		return
	case c.named || now.Sub(c.since) < e.node.opts.Patience:
		return
	}
	c.named = true
	var missing []string
	l := &c.lanes[e.rank]
	if l.taken < l.sent {
		b := c.block(e.rank, l, l.taken)
		claimed := atomic.LoadUint64(&e.sums.marks[b.slot*e.row+wire.RowClaimed])
		for i, m := range e.spec.Members {
			if claimed>>32 == uint64(b.generation) && claimed>>i&1 == 0 {
				missing = append(missing, fmt.Sprintf("%d (%s)", i, m.Name))
			}
		}
	}
	e.node.opts.Log.Warn("all-reduce: a call waits", "name", e.spec.Name, "call", e.calls.Load(), "for", e.node.opts.Patience, "results", c.taken, "of", c.blocks, "no part from", missing)
}
