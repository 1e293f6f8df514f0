// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// takeUp lists what is free in the memory, and takes up what an earlier process
// has left in it.
func (r *Receiver) takeUp() error {
	resumed := r.kernel != nil && r.kernel.Resumed()
	for i := range r.mem.Streams {
		atomic.StoreUint64(&r.mem.Streams[i].Token, 0)
	}
	if resumed {
		if err := r.quiesce(); err != nil {
			return err
		}
	}
	byID := map[shuffle.TableID]*shuffle.Table{}
	if r.kernel != nil {
		for _, tab := range r.kernel.Tables() {
			byID[tab.ID] = tab
			r.tables.bytes += int64(tab.Layout.Size())
		}
	}
	for slot := range r.mem.Targets {
		e := &r.mem.Targets[slot]
		if !resumed || atomic.LoadUint32(&e.State) == 0 || !r.takeTarget(slot, byID) {
			*e = wire.Target{}
			for i := range r.cells(slot) {
				r.cells(slot)[i] = wire.Cell{}
			}
			r.freeTargets = append(r.freeTargets, slot)
			continue
		}
	}
	// What no cell of a clean target names holds nothing that is wanted.
	for _, tab := range byID {
		clear(tab.Memory)
		r.tables.free[tab.Layout] = append(r.tables.free[tab.Layout], tab)
	}
	bySlot := map[int]*target{}
	for _, t := range r.targets {
		bySlot[t.slot] = t
	}
	for i := range r.mem.Streams {
		if !resumed || !r.takeStream(uint32(i), bySlot) {
			r.mem.Streams[i].Spare[0] = 0
			r.freeSlots = append(r.freeSlots, uint32(i))
		}
	}
	return nil
}

// takeTarget takes up a target and says whether it is to be kept. Its table is
// taken from byID. If anything of it was only in the earlier process's memory, or is
// torn, it begins anew.
func (r *Receiver) takeTarget(slot int, byID map[shuffle.TableID]*shuffle.Table) bool {
	e := &r.mem.Targets[slot]
	var id shuffle.TargetID
	le.PutUint64(id.Job[:8], e.Job[0])
	le.PutUint64(id.Job[8:], e.Job[1])
	id.Partition, id.Generation = e.Partition, e.Generation
	cells := r.cells(slot)
	why := ""
	if atomic.LoadUint32(&e.Dirty) != 0 {
		why = "user space had folded a part of it"
	}
	for i := range cells {
		if atomic.LoadUint32(&cells[i].Torn) != 0 {
			why = "a program folded a part of a frame alone"
		}
		for class, named := range cells[i].Table {
			if named != 0 && byID[shuffle.TableID(named-1)] == nil {
				why = fmt.Sprintf("table %#x of key class %d is missing", named-1, class)
			}
		}
	}
	j := r.jobs[id.Job]
	if why == "" && j == nil {
		if !r.jobSlots.Reserve(id.Job, int(e.JobSlot)) {
			why = "its job's slot is in use"
		}
	}
	if why != "" {
		r.opts.Log.Info("target is not taken up", "target", id.String(), "why", why)
		return false
	}
	if j == nil {
		j = &job{slot: int(e.JobSlot)}
		j.spec.ID = id.Job
		r.jobs[id.Job] = j
	}
	t := newTarget(r, j, shuffle.TargetSpec{ID: id, Dense: e.Spare[0]}, slot)
	t.tables = make(tablesOf, r.mem.CPUs)
	for i := range cells {
		have := &t.tables[i]
		have.shift, have.full, have.frames = cells[i].Shift, atomic.LoadUint64(&cells[i].Full), atomic.LoadUint64(&cells[i].Frames)
		for class, named := range cells[i].Table {
			if named != 0 {
				have.table[class] = byID[shuffle.TableID(named-1)]
				delete(byID, shuffle.TableID(named-1))
			}
		}
	}
	r.targets[place{id.Job, id.Partition}] = t
	r.opts.Log.Info("target is taken up", "target", id.String())
	return true
}

// takeStream takes up the stream in a slot and says whether the slot is in use.
func (r *Receiver) takeStream(slot uint32, bySlot map[int]*target) bool {
	s := &r.mem.Streams[slot]
	t := bySlot[int(s.Target)]
	if s.Spare[0] == 0 || t == nil || s.Generation != t.id.Generation || s.Frames > wire.Segment {
		return false
	}
	key := part{uint32(s.ID[2] >> 32), uint32(s.ID[2])}
	id := shuffle.StreamID{Target: t.id, Map: key.task, Segment: key.segment}
	if nameHash(id).Hi != s.ID[1] {
		return false // of a target that had the place before
	}
	if s.Spare[0] == slotComplete {
		t.done[key] = sum{id: s.ID, pairs: s.ID[3]}
		t.kept = append(t.kept, slot)
		return true
	}
	if !r.slots.TryAcquire(1) {
		return false
	}
	st := &stream{
		id: id, target: t, job: t.job, slot: slot,
		frames: s.Frames, shared: s, ready: make(chan struct{}), isReady: true, asleep: true,
	}
	st.spec = shuffle.StreamSpec{ID: st.id, Frames: int(s.Frames), Pairs: s.ID[3]}
	close(st.ready)
	t.streams[key] = st
	return true
}
