// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"container/heap"
	"slices"
	"time"
)

// manyRetries bounds how many tasks that look for another worker are tried in turn.
const manyRetries = 16

// assign gives tasks to free slots until one of both has run out. Between calls no
// free slot fits a waiting task, so it only costs something where something has changed.
func (s *State) assign() {
	for range assignTurns {
		for k := range s.queues {
			s.assignKind(k)
		}
		if len(s.gangs) == 0 || !s.seatGangs() {
			break
		}
	}
	s.speculate()
}

// assignTurns bounds how often assign begins anew because a gang has let go of something.
const assignTurns = 8

func (s *State) assignKind(k int) {
	q := &s.queues[k]
	var skipped []*job
	for len(q.jobs) > 0 && (s.all.pools[k].any() || k == mapSlot && s.keptSlots > 0) {
		j := q.jobs[0]
		if j.restored && s.settles || !s.place(j, k) {
			// It may have gone from the queue by itself.
			if at := j.place[k] - 1; at >= 0 {
				heap.Remove(q, at)
			}
			skipped = append(skipped, j)
		}
	}
	for _, j := range skipped {
		s.touch(j)
	}
}

// place launches one task of a job, if it can.
func (s *State) place(j *job, kind int) bool {
	st := j.candidate(kind)
	if st == nil {
		return false
	}
	again := st.kind == Map && j.stage == Reduce
	if j.full() && !(again && j.running[mapSlot] == 0 && s.giveWay(j, false)) {
		return false
	}
	if s.placeAnywhere(j, st, kind) || again && s.placeKept(j, st) {
		return true
	}
	return again && j.running[mapSlot] == 0 && s.fleetOf(j).pools[kind].best(j.TaskMemory, nil, nil) == nil &&
		s.giveWay(j, true) && (s.placeAnywhere(j, st, kind) || s.placeKept(j, st))
}

func (s *State) placeAnywhere(j *job, st *stage, kind int) bool {
	if st.kind == Map && j.gang != nil {
		return s.placeGang(j, st)
	}
	fleet := s.fleetOf(j)
	pool, need := fleet.pools[kind], j.TaskMemory
	tried := 0
	for r := st.retries.next(0); r >= 0 && tried < manyRetries; r = st.retries.next(r + 1) {
		tried++
		i := st.taskAt(r)
		not := st.tasks[i].avoid
		if !fleet.usableBut(not) {
			not = nil
		}
		if w := pool.best(need, not, nil); w != nil {
			s.launch(st, i, w, false)
			return true
		}
	}
	w := pool.best(need, nil, nil)
	if w == nil {
		return false
	}
	if st.kind == Map && j.paths != nil {
		if len(w.groups) > 0 {
			if i, ok := j.paths.longest(st, w.groups); ok && st.tasks[i].avoid != w {
				s.launch(st, i, w, false)
				return true
			}
		}
		if st.nears > 0 {
			if i, w, ok := j.paths.pair(fleet, st, need); ok {
				s.launch(st, i, w, false)
				return true
			}
		}
	}
	r := st.open.next(0)
	if r < 0 {
		return false
	}
	i := st.taskAt(r)
	if st.kind == Map && j.paths != nil {
		if l := j.paths.home(fleet, i, need); l != nil {
			w = l
		}
	}
	if avoid := st.tasks[i].avoid; avoid == w {
		if other := pool.best(need, avoid, nil); other != nil {
			w = other
		}
	}
	s.launch(st, i, w, false)
	return true
}

// giveWay stops a reduce attempt that waits for a map output, so that this can be made. Of several
// the one that has run least.
func (s *State) giveWay(j *job, atWorker bool) bool {
	r := j.stages[Reduce]
	for a := r.running.last; a != nil; a = a.links[byStage].prev {
		if !a.waits || a.claimed || a.w == nil || atWorker && (!a.w.usable() || a.w.used[mapSlot] >= a.w.Slots) {
			continue
		}
		i := a.task
		s.stop(a, "makes room for a map output that it waits for")
		s.want(r, i)
		return true
	}
	return false
}

// ---- copies of slow tasks ----

// look says when a stage may next want a copy of an attempt.
func (s *State) look(st *stage) {
	if s.cfg.Speculate < 0 || st.kind != Map && st.kind != Reduce || st.kind == Map && st.job.gang != nil {
		return
	}
	a := st.copyable.first
	if a == nil || !st.active() || st.took.total == 0 || st.done*4 < len(st.tasks)*3 || st.kind == Reduce && st.job.missing() > 0 {
		s.timers.stop(&st.spec)
		return
	}
	at := a.started + s.patience(st)
	if at > s.now {
		s.timers.set(&st.spec, at)
		return
	}
	s.timers.stop(&st.spec)
	if !st.wantsCopy {
		st.wantsCopy = true
		s.copies = append(s.copies, st)
	}
}

// patience is how long an attempt may run before it gets a copy.
func (s *State) patience(st *stage) (d time.Duration) {
	return max(time.Duration(float64(st.took.median())*s.cfg.Speculate), s.cfg.SpeculateAfter)
}

func (s *State) speculate() {
	if len(s.copies) == 0 {
		return
	}
	slices.SortStableFunc(s.copies, func(a, b *stage) int {
		if a.job.Priority != b.job.Priority {
			return b.job.Priority - a.job.Priority
		}
		return a.job.seq - b.job.seq
	})
	list := s.copies
	s.copies = nil
	for _, st := range list {
		st.wantsCopy = false
		s.copyOf(st)
	}
}

// copyOf launches copies of what is slow in a stage while there is room.
func (s *State) copyOf(st *stage) {
	pool := s.fleetOf(st.job).pools[kindOf(st.kind)]
	for a := st.copyable.first; a != nil; {
		if st.job.full() || !pool.any() || a.started+s.patience(st) > s.now {
			break
		}
		next := st.copyable.next(a)
		if !a.claimed && !a.waits {
			if w := pool.best(st.job.TaskMemory, a.w, nil); w != nil {
				s.launch(st, a.task, w, true)
			}
		}
		a = next
	}
	s.look(st)
}
