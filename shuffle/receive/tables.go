// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// lookEvery is how often tables are looked at while streams are open and some fill,
	// seldom how often while none does: every look wakes the process.
	lookEvery, seldom = 3 * time.Millisecond, 48 * time.Millisecond
	// settleAfter is how long a table that takes no more keys is left alone after a
	// flip for that reason: the next one should know what the first has changed.
	settleAfter = 30 * time.Millisecond
	// fullShare is the part of the frames that may find no place: one in so many.
	fullShare = 32
	// fullPairs is about how many pairs a frame has that goes up since one of them has no place.
	fullPairs = 48
	// highWater is the load in percent at which a table is flipped, wanted the load
	// that sizes aim at.
	highWater, wanted = 62, 55
	minBits           = 10
	unknownBits       = 14 // of tables for keys that nobody has estimated
	manyPairs         = 1 << 30
	// refusedFor is how long no table of a layout is asked for after one was refused.
	refusedFor = time.Second
)

// tables looks after the tables that programs fold into: makes them where frames
// come, flips them before they are full, and has the sealed ones drained.
type tables struct {
	r *Receiver
	// mu is held for a round of looking, waits for the kernel included, and guards
	// the tables of targets.
	mu    sync.Mutex
	free  map[shuffle.TableLayout][]*shuffle.Table // empty, named by no cell
	bytes int64                                    // of all tables there are
	bad   map[shuffle.TableLayout]time.Time        // when the kernel has refused them

	filling              atomic.Bool   // a table may be full soon
	missing              chan struct{} // frames go up
	flips, made, refused atomic.Uint64
}

// tablesOf are the tables of a target, by CPU.
type tablesOf []cellTables

type cellTables struct {
	table  [wire.Classes]*shuffle.Table
	shift  [wire.Classes]uint8
	bits   [wire.Classes]int    // what the next table should have; 0: by the estimate
	used   [wire.Classes]uint64 // slots taken when last looked at
	full   uint64               // frames passed up as full when last looked at
	frames uint64               // frames folded then
	since  time.Time            // of the last flip for that reason
	up     uint64               // frames passed up as full until the last flip
}

func newTables(r *Receiver) *tables {
	return &tables{r: r, free: map[shuffle.TableLayout][]*shuffle.Table{}, bad: map[shuffle.TableLayout]time.Time{}, missing: make(chan struct{}, 1)}
}

// watch looks at the tables until the receiver ends.
func (x *tables) watch() {
	defer x.r.readers.Done()
	every := lookEvery
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-x.r.done:
			return
		case <-tick.C:
			if every = min(2*every, seldom); x.filling.Load() {
				every = lookEvery
			}
			tick.Reset(every)
		case <-x.missing: // frames went up; those behind them need not
		}
		if err := x.look(); err != nil {
			x.r.opts.Log.Error("tables can't be flipped", "err", err)
		}
	}
}

// wanted has the tables looked at soon, since a frame came up.
func (x *tables) want() {
	select {
	case x.missing <- struct{}{}:
	default:
	}
}

// prepare gives a target's cells tables before the first frame comes, if it is known
// how many keys there are and the budget has room: what never goes up survives a
// restart.
func (x *tables) prepare(t *target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A target that is over has no cells: they may be another's by now.
	if t.tables != nil || t.untabled {
		return
	}
	t.tables = make(tablesOf, x.r.mem.CPUs)
	wants := map[shuffle.TableLayout][]int{} // classes
	cost := int64(0)
	for class := range wire.Classes {
		if t.keys[class] > 0 || t.dense > 0 && class == 0 {
			l, _ := x.layout(t, &t.tables[0], class)
			wants[l] = append(wants[l], class)
			cost += int64(l.Size()) * int64(x.missingOf(l))
		}
	}
	// A quarter is left for flips.
	if over := x.bytes + cost - x.r.opts.TableMemory/4*3; cost > 0 && over > 0 {
		for l := range x.free {
			if wants[l] == nil {
				x.shed(l, over)
			}
		}
		if x.bytes+cost > x.r.opts.TableMemory/4*3 {
			return
		}
	}
	for l, classes := range wants {
		if n := x.missingOf(l); n > 0 && !x.make(l, n) {
			continue
		}
		for _, class := range classes {
			for cpu := range t.tables {
				x.give(t, &x.r.cells(t.slot)[cpu], &t.tables[cpu], class)
			}
		}
	}
}

// hint takes a further estimate of a target's keys: each mapper knows its own, and
// there are at least as many as one has.
func (x *tables) hint(t *target, keys [wire.Classes + 1]uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for class, n := range keys {
		t.keys[class] = max(t.keys[class], n)
	}
}

// missingOf returns how many tables of a layout are to be made for a target to
// have one on every CPU.
func (x *tables) missingOf(l shuffle.TableLayout) int { return max(0, x.r.mem.CPUs-len(x.free[l])) }

// flip is a table that is to be sealed.
type flip struct {
	t     *target
	old   *shuffle.Table
	class int
}

// look goes through all cells once.
func (x *tables) look() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.r
	r.mu.Lock()
	var list []*target
	if r.open > 0 && !r.closed {
		for _, t := range r.targets {
			if !t.gone && !t.finishing && t.job.opened && t.tabled() {
				list = append(list, t)
			}
		}
	}
	r.mu.Unlock()
	now := time.Now()
	var flips []flip
	x.filling.Store(false)
	for _, t := range list {
		for cpu := range t.tables {
			flips = x.lookAt(t, &r.cells(t.slot)[cpu], &t.tables[cpu], now, flips)
		}
	}
	if len(flips) == 0 {
		return nil
	}
	x.flips.Add(uint64(len(flips)))
	err := r.quiesce()
	for _, f := range flips {
		if err != nil { // it may still be written to
			f.t.mu.Lock()
			f.t.fail(err)
			f.t.busy--
			f.t.change.Broadcast()
			f.t.mu.Unlock()
			continue
		}
		r.tasks.Add(1)
		go func() {
			defer r.tasks.Done()
			// Not of the same tokens as spills: a drain may wait for one.
			r.drains <- struct{}{}
			f.t.drain(context.Background(), f.old)
			<-r.drains
			x.put(f.old)
			f.t.mu.Lock()
			defer f.t.mu.Unlock()
			f.t.busy--
			f.t.change.Broadcast()
		}()
	}
	return err
}

// lookAt looks at a cell, gives it the tables that it wants, and adds to flips
// what is to be sealed.
func (x *tables) lookAt(t *target, cell *wire.Cell, have *cellTables, now time.Time, flips []flip) []flip {
	want := atomic.LoadUint32(&cell.Want)
	full := atomic.LoadUint64(&cell.Full)
	frames := atomic.LoadUint64(&cell.Frames)
	// At the load that sizes aim at, some frames in a thousand find no place.
	overfull := (full-have.full)*fullShare > frames-have.frames && now.Sub(have.since) >= settleAfter
	if full-have.full+frames-have.frames >= fullShare || overfull {
		have.full, have.frames = full, frames
	}
	fullest, load, held := -1, -1.0, uint64(0)
	for class := range wire.Classes {
		tab := have.table[class]
		if tab == nil {
			if want>>class&1 != 0 {
				x.give(t, cell, have, class)
			}
			continue
		}
		used, pairs := x.r.opts.usage(tab)
		if tab.Layout.Dense {
			continue // it never fills
		}
		slots := uint64(1) << tab.Layout.Bits
		// Sixteen times as many keys as since the last look.
		if grown := used - min(used, have.used[class]); used+16*grown >= slots*highWater/100 {
			x.filling.Store(true)
		}
		have.used[class] = used
		if l := float64(used) / float64(slots); l > load {
			fullest, load, held = class, l, used
		}
		if used*100 >= slots*highWater || pairs >= manyPairs {
			have.bits[class] = min(tab.Layout.Bits+1, x.r.opts.TableBits)
			flips = x.seal(t, cell, have, class, flips)
			have.up = full
			overfull = false
		}
	}
	// What goes up is folded in user space, and so is what a table holds that is flipped: a
	// flip pays once the one was as much as the other. Else a few keys that never
	// find a place would have all others drained time and again.
	if !overfull || fullest < 0 || (full-have.up)*fullPairs < held {
		return flips
	}
	// Keys find no place in a table that is not full: a part of the hashes has
	// more keys than its part of the slots. A larger table has more; where there
	// is none, each part should sweep the whole table.
	have.since, have.up = now, full
	tab := have.table[fullest]
	if next := min(tab.Layout.Bits+2, x.r.opts.TableBits); next > tab.Layout.Bits && x.fits(t, fullest, next) {
		have.bits[fullest] = next
	} else {
		have.shift[fullest] = min(have.shift[fullest]+1, uint8(wire.HashBits-tab.Layout.Bits))
	}
	return x.seal(t, cell, have, fullest, flips)
}

func headOf(t *shuffle.Table) *wire.Table {
	return (*wire.Table)(unsafe.Pointer(unsafe.SliceData(t.Memory)))
}

// tabled says whether programs can fold the target's frames: there are few lanes, and
// where a table has no room for carries, none can come.
func (t *target) tabled() bool {
	return t.lanes <= wire.MaxLanes && t.job.spec.Mode != shuffle.UserOnly && (t.dense == 0 || t.ops[0] != wire.OpSum)
}

// usage reads a table's head while programs write it.
func usage(tab *shuffle.Table) (used, pairs uint64) {
	head := headOf(tab)
	return atomic.LoadUint64(&head.Used), atomic.LoadUint64(&head.Pairs)
}

// give gives a cell a table for a class of keys.
func (x *tables) give(t *target, cell *wire.Cell, have *cellTables, class int) {
	tab := x.take(t, have, class)
	if tab == nil {
		return
	}
	have.table[class] = tab
	point(cell, class, tab, have.shift[class])
}

// point makes a cell name a table, or none.
func point(cell *wire.Cell, class int, tab *shuffle.Table, shift uint8) {
	id := uint32(0)
	if tab != nil {
		id = uint32(tab.ID) + 1
	}
	cell.SetPlace(class, id, shift)
}

// seal makes a cell name another table, or none if there is no spare one, and
// adds the old one to flips. It is drained after the next quiesce.
func (x *tables) seal(t *target, cell *wire.Cell, have *cellTables, class int, flips []flip) []flip {
	old := have.table[class]
	t.mu.Lock()
	if t.shut {
		t.mu.Unlock()
		return flips
	}
	// From here on a process that takes the memory up finds a part of the target
	// only in this one's memory.
	t.soil()
	t.busy++
	t.mu.Unlock()
	have.table[class] = x.take(t, have, class)
	point(cell, class, have.table[class], have.shift[class])
	return append(flips, flip{t, old, class})
}

// layout returns what a table of a target should be like.
func (x *tables) layout(t *target, have *cellTables, class int) (l shuffle.TableLayout, shift uint8) {
	if t.dense > 0 {
		return shuffle.TableLayout{Bits: max(minBits, bits.Len64(t.dense-1)), Dense: true}, 0
	}
	l = shuffle.TableLayout{Class: class, Lanes: t.lanes}
	keys := t.keys[class]
	shift = have.shift[class]
	if l.Bits = have.bits[class]; l.Bits == 0 {
		l.Bits = unknownBits
		if keys > 0 {
			l.Bits = bitsFor(keys)
		}
	}
	l.Bits = min(max(l.Bits, minBits), x.r.opts.TableBits)
	for l.Bits > minBits && !x.fits(t, class, l.Bits) {
		l.Bits--
	}
	// In hash order, that part of the hashes whose keys fill the table sweeps it.
	for keys>>shift > uint64(1)<<l.Bits*wanted/100 && int(shift) < wire.HashBits-l.Bits {
		shift++
	}
	return l, shift
}

// bitsFor returns log2 of the slots that so many keys load to no more than what is wanted.
func bitsFor(keys uint64) int {
	b := bits.Len64(keys) // 2^b > keys
	if keys > uint64(1)<<b*wanted/100 {
		b++
	}
	return b
}

// fits says whether the budget allows such tables at all: one and a spare.
func (x *tables) fits(t *target, class, bits int) bool {
	l := shuffle.TableLayout{Class: class, Lanes: t.lanes, Bits: bits}
	return 2*int64(l.Size()) <= x.r.opts.TableMemory
}

// take returns an empty table, nil if the budget has none.
func (x *tables) take(t *target, have *cellTables, class int) *shuffle.Table {
	l, shift := x.layout(t, have, class)
	for ; l.Bits >= minBits; l.Bits-- {
		if tab := x.one(l); tab != nil {
			if !l.Dense {
				for t.keys[class]>>shift > uint64(1)<<l.Bits*wanted/100 && int(shift) < wire.HashBits-l.Bits {
					shift++
				}
			}
			have.shift[class] = min(shift, uint8(wire.HashBits-min(l.Bits, wire.HashBits)))
			return tab
		}
		if l.Dense {
			break // it must hold all of the vector
		}
	}
	x.refused.Add(1)
	return nil
}

// one returns an empty table of a layout, nil if there is none.
func (x *tables) one(l shuffle.TableLayout) *shuffle.Table {
	if list := x.free[l]; len(list) > 0 {
		tab := list[len(list)-1]
		x.free[l] = list[:len(list)-1]
		return tab
	}
	if at, ok := x.bad[l]; ok && time.Since(at) < refusedFor {
		return nil
	}
	size := int64(l.Size())
	for other := range x.free {
		x.shed(other, x.bytes+size-x.r.opts.TableMemory)
	}
	if x.bytes+size > x.r.opts.TableMemory {
		return nil
	}
	if !x.make(l, 1) {
		return nil
	}
	list := x.free[l]
	tab := list[len(list)-1]
	x.free[l] = list[:len(list)-1]
	return tab
}

// make adds n tables to the free ones.
func (x *tables) make(l shuffle.TableLayout, n int) bool {
	list, err := x.r.kernel.NewTables(l, n)
	if err != nil {
		if x.bad[l].IsZero() {
			x.r.opts.Log.Warn("no table in the kernel; its frames are folded in user space", "table", l.String(), "err", err)
		}
		x.bad[l] = time.Now()
		return false
	}
	delete(x.bad, l)
	x.bytes += int64(l.Size()) * int64(len(list))
	x.made.Add(uint64(len(list)))
	x.free[l] = append(x.free[l], list...)
	return len(list) > 0
}

// shed frees tables of a layout that nobody uses, until n bytes are free.
func (x *tables) shed(l shuffle.TableLayout, n int64) {
	list := x.free[l]
	for len(list) > 0 && n > 0 {
		tab := list[len(list)-1]
		list = list[:len(list)-1]
		if err := x.r.kernel.FreeTable(tab); err != nil {
			x.r.opts.Log.Warn("a table can't be freed", "table", l.String(), "err", err)
			continue
		}
		x.bytes -= int64(l.Size())
		n -= int64(l.Size())
	}
	if x.free[l] = list; len(list) == 0 {
		delete(x.free, l)
	}
}

// put takes back a table that no cell has named since the last quiesce.
func (x *tables) put(tab *shuffle.Table) {
	clear(tab.Memory)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.free[tab.Layout] = append(x.free[tab.Layout], tab)
}

// detach takes all tables from a target that no program comes to any more.
func (x *tables) detach(t *target) (list []*shuffle.Table) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for cpu := range t.tables {
		have := &t.tables[cpu]
		cell := &x.r.cells(t.slot)[cpu]
		for class, tab := range have.table {
			if tab != nil {
				list = append(list, tab)
				have.table[class] = nil
				point(cell, class, nil, have.shift[class])
			}
		}
	}
	t.tables, t.untabled = nil, true
	return list
}

// forget takes all tables from a target and drops what they hold.
func (x *tables) forget(t *target) {
	for _, tab := range x.detach(t) {
		x.put(tab)
	}
}

// drainStep is how many slots are drained before others may have the target.
const drainStep = 512

// drain folds what a sealed table holds into the target's own fold. What goes
// wrong is the target's error.
func (t *target) drain(ctx context.Context, tab *shuffle.Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped || headOf(tab).Pairs == 0 {
		return
	}
	t.drained += headOf(tab).Pairs
	var err error
	if tab.Layout.Dense {
		err = t.drainVector(tab)
	} else {
		err = t.drainSlots(ctx, tab)
	}
	if err != nil && !t.dropped {
		t.fail(err)
	}
}

func (t *target) drainVector(tab *shuffle.Table) error {
	v, err := wire.NewVector(tab.Memory, t.ops[0])
	if err != nil {
		return err
	}
	t.hasRoom(0) // makes the vector
	for i := range t.vector {
		t.addAt(uint64(i), t.ops[0], v.At(i))
	}
	for i := len(t.vector); i < v.Len(); i++ {
		if v.At(i) != wire.Identity(t.ops[0]) {
			return fmt.Errorf("%w: value %d of a vector of %d", wire.ErrTable, i, len(t.vector))
		}
	}
	return nil
}

func (t *target) drainSlots(ctx context.Context, tab *shuffle.Table) error {
	slots, err := wire.NewSlots(tab.Memory, tab.Layout.Class, tab.Layout.Lanes, wire.PackOps(t.ops...))
	if err != nil {
		return err
	}
	n := 0
	return slots.Each(func(v *wire.Value) error {
		if n%drainStep == 0 {
			if t.active != nil {
				t.active.Flush()
			}
			t.mu.Unlock()
			t.mu.Lock()
			if t.dropped {
				return errDropped
			}
			if err := t.waitRoomLocked(ctx, drainStep*tab.Layout.Size()>>tab.Layout.Bits, true); err != nil {
				return err
			}
		}
		n++
		t.active.AddCarried(unsafe.Pointer(unsafe.SliceData(v.Key)), len(v.Key), v.Lanes, v.Carries)
		return nil
	})
}
