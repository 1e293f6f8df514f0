// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Where the members of a gang run. They are of use only together, so that they are placed all or nothing: two gangs that each
// held a part of what both need would wait for ever.
//
// A gang that waits may be in the way of others, and they in its way:
//
//   - Ordinary attempts come and go, and would never leave room for all members at once. When a gang has waited for
//     Config.GangWait (one that lost a member: at once, since the others are idle), and room would be there if no ordinary attempt ran,
//     that room is kept for it as it becomes free. What is free before that goes to whom the queue says, so
//     between two gangs ordinary jobs get a wave of tasks. Map outputs that are made again may take kept room: attempts that
//     hold room wait for them.
//   - Gangs run for long. One waits its turn (by priority, then by the time that it has waited), and a later one may pass it only if
//     room for the earlier one remains, once those gangs have ended that it found. No room is kept empty for
//     a gang that waits for another one to end.
//   - A gang that lost a member, and can get no other before another gang ends, lets go of what it holds after Config.GangWait, if
//     somebody wants that. It goes on later from the last state that was kept.
//
// A slot is taken by one member, if that can be. If it can't be, since workers died or other gangs hold them, several members
// share the slots that there are (each with its own memory): slow is better than never.

// crowdAfter is how long members wait for slots of their own, when a gang has lost some and there are none. A worker that was only started anew may be
// back by then.
const crowdAfter = time.Second

// hold is room at a worker: slots for map attempts, and memory.
type hold struct {
	slots int
	mem   int64
}

// seating is a member's place.
type seating struct {
	w   *worker
	mem int64
}

// need is the memory that an attempt of the job takes at a worker.
func (j *job) need(w *worker) int64 {
	if j.TaskMemory > 0 {
		return j.TaskMemory
	}
	return w.share()
}

// begun says whether members of a gang run.
func (st *stage) begun() bool { return st.running.n > 0 }

// gangWaits notes that members of a gang wait to be placed.
func (s *State) gangWaits(j *job) {
	g := j.gang
	if g.waits || g.done || j.stage != Map {
		return
	}
	g.waits, g.since = true, s.now
	s.gangTimer(j)
	s.checkCapable(j)
}

// gangTimer has a gang that waits be looked at when more may be done for it.
func (s *State) gangTimer(j *job) {
	g := j.gang
	if !g.waits || j.ended {
		return
	}
	for _, at := range []time.Duration{g.since + crowdAfter, g.since + s.cfg.GangWait} {
		if at > s.now {
			s.timers.set(&g.wait, at)
			return
		}
	}
}

// unplaced are the members of a gang that do not run; ready: all of them may be launched now. Those that look for another worker come first.
func (st *stage) unplaced() (tasks []uint32, ready bool) {
	ready = true
	for i := range st.tasks {
		t := &st.tasks[i]
		if t.run == nil && !t.have {
			tasks = append(tasks, uint32(i))
			ready = ready && (t.queue == queued || t.queue == shy)
		}
	}
	slices.SortStableFunc(tasks, func(a, b uint32) int {
		shyA, shyB := st.tasks[a].queue == shy, st.tasks[b].queue == shy
		switch {
		case shyA != shyB && shyA:
			return -1
		case shyA != shyB:
			return 1
		}
		return cmp.Compare(st.rankOf(a), st.rankOf(b))
	})
	return tasks, ready
}

// ---- what there is ----

// view says what a worker has for members of a gang, in some case.
type view func(w *worker) hold

// usableNow are workers that may be given something.
func usableNow(w *worker) bool { return w.usable() }

// usableEver are those that may, or will.
func usableEver(w *worker) bool { return w.capacity().score > 0 }

// own is the room that is kept for a gang.
func (g *gang) own() map[*worker]hold {
	m := make(map[*worker]hold, len(g.kept))
	for _, k := range g.kept {
		h := m[k.w]
		m[k.w] = hold{h.slots + 1, h.mem + k.mem}
	}
	return m
}

// free is what is free now, with what is kept for this gang.
func (g *gang) free() view {
	own := g.own()
	return func(w *worker) hold {
		o := own[w]
		return hold{w.Slots - w.used[mapSlot] - w.kept.slots + o.slots, w.freeMem() - w.kept.mem + o.mem}
	}
}

// quiet is what would be free if no ordinary attempt ran.
func (g *gang) quiet() view {
	own := g.own()
	return func(w *worker) hold {
		o := own[w]
		return hold{w.Slots - w.members.slots - w.kept.slots + o.slots, w.whole() - w.members.mem - w.kept.mem + o.mem}
	}
}

// but is what would be free if only these ran.
func but(taken map[*worker]hold) view {
	return func(w *worker) hold {
		t := taken[w]
		return hold{w.Slots - t.slots, w.whole() - t.mem}
	}
}

// whole is a worker's memory.
func (w *worker) whole() int64 {
	if w.Memory <= 0 {
		return unlimited
	}
	return w.Memory
}

// heldSince adds what attempts of a gang hold that have started at that time or later.
func (j *job) heldSince(at time.Duration, taken map[*worker]hold) {
	st := j.stages[Map]
	for a := st.running.first; a != nil; a = st.running.next(a) {
		if a.w != nil && a.started >= at {
			h := taken[a.w]
			taken[a.w] = hold{h.slots + 1, h.mem + a.mem}
		}
	}
}

// ---- who goes where ----

// candidate is a worker that may take members.
type candidate struct {
	hold
	w    *worker
	here int  // members that it has
	now  bool // it has room now
}

// fit finds places for members of a gang, by their order, or nil. Members go to workers that have fewest of them.
func (s *State) fit(j *job, tasks []uint32, usable func(*worker) bool, v view, crowded, strict bool) []seating {
	st, fleet := j.stages[Map], s.fleetOf(j)
	here := map[*worker]int{}
	for a := st.running.first; a != nil; a = st.running.next(a) {
		if a.w != nil {
			here[a.w]++
		}
	}
	free := j.gang.free()
	var list []candidate
	for _, w := range s.workerList {
		if s.workers[w.ID] != w || w.Slots == 0 || !usable(w) || fleet != s.all && w.fleet != fleet {
			continue
		}
		c := candidate{hold: v(w), w: w, here: here[w]}
		if c.mem < j.need(w) || c.slots <= 0 && !(crowded && c.here > 0) {
			continue
		}
		f := free(w)
		c.now = f.slots > 0 && f.mem >= j.need(w)
		list = append(list, c)
	}
	slices.SortStableFunc(list, closer)
	// Of more than that none is chosen: one each comes first, and a member avoids one worker at most.
	if n := 2 * len(tasks); len(list) > n {
		list = list[:n]
	}
	plan := make([]seating, 0, len(tasks))
	for _, i := range tasks {
		t := &st.tasks[i]
		avoids := strict && t.queue == shy && fleet.usableBut(t.avoid)
		var best *candidate
		for k := range list {
			c := &list[k]
			if c.mem < j.need(c.w) || c.slots <= 0 && !crowded || avoids && c.w == t.avoid {
				continue
			}
			if best == nil || best.w == t.avoid || c.w != t.avoid && closer(*c, *best) < 0 {
				best = c
			}
		}
		if best == nil {
			return nil
		}
		need := j.need(best.w)
		best.here++
		best.slots--
		if best.mem != unlimited {
			best.mem -= need
		}
		plan = append(plan, seating{best.w, need})
	}
	return plan
}

// closer orders workers by how good a place they are for a member.
func closer(a, b candidate) int {
	switch {
	case a.here != b.here:
		return a.here - b.here
	case a.now != b.now && a.now:
		return -1
	case a.now != b.now:
		return 1
	}
	return cmp.Compare(score(max(b.slots, 0), b.w.Slots), score(max(a.slots, 0), a.w.Slots))
}

// spread is how many workers a gang has with a plan.
func (st *stage) spread(plan []seating) int {
	seen := map[*worker]bool{}
	for _, x := range plan {
		seen[x.w] = true
	}
	for a := st.running.first; a != nil; a = st.running.next(a) {
		if a.w != nil {
			seen[a.w] = true
		}
	}
	return len(seen)
}

// before says whether a gang that waits comes before another.
func before(a, b *job) bool {
	x, y := a.stages[Map].begun(), b.stages[Map].begun()
	switch {
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	case x != y:
		return x
	case a.gang.since != b.gang.since:
		return a.gang.since < b.gang.since
	}
	return a.seq < b.seq
}

// passes says whether a gang may be placed so, though others have waited for longer: they must find room when all has
// ended that was there before them. One that has begun may: others can only wait until it ends.
func (s *State) passes(j *job, plan []seating) bool {
	if j.stages[Map].begun() {
		return true
	}
	for _, b := range s.gangs {
		if b == j || !b.gang.waits || !before(b, j) {
			continue
		}
		tasks, _ := b.stages[Map].unplaced()
		mine := map[*worker]hold{}
		b.heldSince(0, mine)
		taken := map[*worker]hold{}
		b.heldSince(0, taken)
		for _, c := range s.gangs {
			if c != b {
				c.heldSince(b.gang.since, taken)
			}
		}
		for _, x := range plan {
			h := taken[x.w]
			taken[x.w] = hold{h.slots + 1, h.mem + x.mem}
		}
		for _, crowded := range []bool{false, true} {
			if s.fit(b, tasks, usableEver, but(mine), crowded, false) == nil {
				continue // no room ever, so none is taken from it
			}
			if s.fit(b, tasks, usableEver, but(taken), crowded, false) == nil {
				return false
			}
			break
		}
	}
	return true
}

// fitsEver says whether all members of a gang had room if nothing else ran.
func (s *State) fitsEver(j *job) bool {
	tasks, _ := j.stages[Map].unplaced()
	if len(tasks) == 0 {
		return true
	}
	mine := map[*worker]hold{}
	j.heldSince(0, mine)
	return s.fit(j, tasks, usableEver, but(mine), true, false) != nil
}

// gangWaits says whether members of a gang wait to be placed.
func (j *job) gangWaits() bool { return j.gang != nil && j.gang.waits && j.stage == Map && !j.ended }

// gangText says why a gang can't be placed even if nothing else runs.
func (s *State) gangText(j *job) string {
	return fmt.Sprintf("its %d members run at once and take %d bytes of memory each, and the workers that are there have room for %d of them", len(j.stages[Map].tasks), j.TaskMemory, s.roomFor(j))
}

// roomFor counts the members of a gang for which there were room if nothing else ran.
func (s *State) roomFor(j *job) int {
	n, fleet := 0, s.fleetOf(j)
	for _, w := range s.workerList {
		if s.workers[w.ID] != w || w.Slots == 0 || !usableEver(w) || fleet != s.all && w.fleet != fleet {
			continue
		}
		if need := j.need(w); need > 0 {
			n += int(min(w.whole()/need, int64(len(j.stages[Map].tasks))))
		}
	}
	return n
}

// ---- placing ----

// placeGang launches all members of a gang that wait, if there is room for all and it is its turn. Those of an iteration that
// has come to its end are of use one by one.
func (s *State) placeGang(j *job, st *stage) bool {
	if j.gang.done || j.stage != Map {
		return s.placeMember(j, st)
	}
	tasks, ready := st.unplaced()
	if !ready || len(tasks) == 0 {
		return false
	}
	plan := s.fit(j, tasks, usableNow, j.gang.free(), false, true)
	if plan == nil || !s.passes(j, plan) {
		return false
	}
	s.seatAll(j, tasks, plan)
	return true
}

// placeMember launches one.
func (s *State) placeMember(j *job, st *stage) bool {
	tasks, _ := st.unplaced()
	for _, i := range tasks {
		if q := st.tasks[i].queue; q != queued && q != shy {
			continue
		}
		if plan := s.fit(j, []uint32{i}, usableNow, j.gang.free(), false, true); plan != nil {
			s.launch(st, i, plan[0].w, false)
			return true
		}
	}
	return false
}

func (s *State) seatAll(j *job, tasks []uint32, plan []seating) {
	st, g := j.stages[Map], j.gang
	s.unkeep(j)
	g.waits = false
	s.timers.stop(&g.wait)
	for k, i := range tasks {
		s.launch(st, i, plan[k].w, false)
	}
	s.checkCapable(j)
}

// keep keeps room for a gang, and no other than that. freed: some was kept before and is not now.
func (s *State) keep(j *job, plan []seating) (freed bool) {
	g := j.gang
	if slices.Equal(g.kept, plan) {
		return false
	}
	was := g.own()
	s.unkeep(j)
	g.kept = plan
	for _, x := range plan {
		x.w.kept = hold{x.w.kept.slots + 1, x.w.kept.mem + x.mem}
		s.moved(x.w)
	}
	s.keptSlots += len(plan)
	is := g.own()
	for w, h := range was {
		freed = freed || is[w].slots < h.slots || is[w].mem < h.mem
	}
	return freed
}

// unkeep lets go of what is kept for a gang.
func (s *State) unkeep(j *job) {
	g := j.gang
	if len(g.kept) == 0 {
		return
	}
	list := g.kept
	g.kept = nil
	s.keptSlots -= len(list)
	for _, x := range list {
		x.w.kept = hold{x.w.kept.slots - 1, x.w.kept.mem - x.mem}
		s.moved(x.w)
	}
}

// seatGangs sees to gangs that were not placed in their turn. again: others may get something now that could not before.
func (s *State) seatGangs() (again bool) {
	s.gangs = slices.DeleteFunc(s.gangs, func(j *job) bool { return j.ended || j.stage != Map })
	waiting := make([]*job, 0, len(s.gangs))
	for _, j := range s.gangs {
		if j.gang.waits && !(j.restored && s.settles) {
			waiting = append(waiting, j)
		}
	}
	slices.SortFunc(waiting, func(a, b *job) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	for _, j := range waiting {
		if s.seatGang(j) {
			again = true
		}
	}
	return again
}

func (s *State) seatGang(j *job) (freed bool) {
	st, g := j.stages[Map], j.gang
	tasks, ready := st.unplaced()
	if len(tasks) == 0 { // one came back
		freed = s.keep(j, nil)
		g.waits = false
		s.timers.stop(&g.wait)
		s.checkCapable(j)
		return freed
	}
	if !ready || g.done {
		return s.keep(j, nil)
	}
	if s.placeGang(j, st) { // in room that was kept for it
		return false
	}
	begun, waited := st.begun(), s.now-g.since
	if !begun && waited < s.cfg.GangWait {
		return s.keep(j, nil)
	}
	plan := s.fit(j, tasks, usableNow, g.quiet(), false, true)
	if plan == nil && s.fit(j, tasks, usableNow, g.quiet(), false, false) != nil {
		return s.keep(j, nil) // in a moment one may go where it failed
	}
	patience := crowdAfter
	if s.expected > 0 { // one of those may have a member
		patience = s.cfg.GangWait
	}
	if plan == nil && waited >= patience {
		plan = s.fit(j, tasks, usableNow, g.quiet(), true, false)
		if now := s.fit(j, tasks, usableNow, g.free(), true, false); now != nil && st.spread(now) >= st.spread(plan) && s.passes(j, now) {
			s.seatAll(j, tasks, now)
			return false
		}
	}
	if plan != nil && s.passes(j, plan) {
		return s.keep(j, plan)
	}
	freed = s.keep(j, nil)
	if plan == nil && begun && waited >= s.cfg.GangWait && s.othersWait(j) {
		s.yield(j)
		freed = true
	}
	return freed
}

// othersWait says whether another job has something to run.
func (s *State) othersWait(j *job) bool {
	for _, b := range s.jobList {
		if b == j || b.ended || b.restored && s.settles {
			continue
		}
		for k := range s.queues {
			if st := b.candidate(k); st != nil && st.pending() > 0 && !b.full() && s.capable(b) {
				return true
			}
		}
	}
	return false
}

// yield has a gang let go of what it holds.
func (s *State) yield(j *job) {
	st := j.stages[Map]
	j.gang.since = s.now // those for whom it makes room come first
	const why = "makes room for other jobs: the gang has lost a member, and there is no room for another one until others end"
	s.emit(Note{Job: j.ID, Text: fmt.Sprintf("its %d members that ran made room for other jobs, since there was no room for the %d that were lost; all go on from the last state that was kept when there is room for all", st.running.n, len(st.tasks)-st.running.n)})
	for a := st.running.first; a != nil; {
		next := st.running.next(a)
		if !a.claimed {
			i := a.task
			s.stop(a, why)
			s.want(st, i)
		}
		a = next
	}
	s.gangTimer(j)
}

// placeKept launches a task that makes a map output again in room that is kept for a gang: what holds the rest of that room may
// wait for it.
func (s *State) placeKept(j *job, st *stage) bool {
	if s.keptSlots == 0 || j.gang != nil {
		return false
	}
	r := st.retries.next(0)
	if r < 0 {
		r = st.open.next(0)
	}
	if r < 0 {
		return false
	}
	i, fleet := st.taskAt(r), s.fleetOf(j)
	avoid := st.tasks[i].avoid
	var best *worker
	for _, g := range s.gangs {
		for _, x := range g.gang.kept {
			w := x.w
			if s.workers[w.ID] != w || !w.usable() || fleet != s.all && w.fleet != fleet || w.used[mapSlot] >= w.Slots || w.freeMem() < j.need(w) {
				continue
			}
			if best == nil || best == avoid && w != avoid {
				best = w
			}
		}
	}
	if best == nil {
		return false
	}
	s.launch(st, i, best, false)
	return true
}
