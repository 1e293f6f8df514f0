// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"time"
)

// The map tasks of some jobs are a gang: they run at once and reduce vectors with each other. An attempt says when it is ready;
// when all are, a group is formed of them. A group is broken when one of its attempts is lost or says so; the others
// say again that they are ready, and a new group is formed when the lost one's next attempt is.

// gangState is how the members of a gang stand.
type gangState uint8

const (
	apart    gangState = iota // not all are ready
	forming                   // a group is ordered
	together                  // and is there
)

// gang is what a job whose map tasks are one has beside others.
type gang struct {
	state      gangState
	generation uint64 // of the group that was ordered, or heard of, last
	broken     uint64 // the last one that is known to be broken
	done       bool   // a member has come to the end, and its state is kept
	groups     int    // that were formed
	best       int64  // rounds that a member had done when the last group was ordered
	vain       int    // groups that broke, or were not formed, one after the other without a round
	why        string // the last one was

	waits bool          // members wait to be placed
	since time.Duration // since when
	kept  []seating     // room that is kept for them
	wait  timer         // when more may be done for them

	again timer // when a group that could not be formed is ordered again
}

// membership is how an attempt of a gang stands.
type membership struct {
	ready      bool   // it waits for a group
	generation uint64 // of the group that it is in or was in last; 0: none
	rounds     int64  // that its state has done; -1: it has none
}

func (s *State) newGang(j *job) *gang {
	g := &gang{best: -1}
	g.wait.fire = func(s *State) { s.gangTimer(j) }
	g.again.fire = func(s *State) { s.form(j) }
	return g
}

// member says whether an attempt is one of a gang.
func (a *attempt) member() bool { return a.st.kind == Map && a.st.job.gang != nil }

// gangAttempt finds the attempt that an event is about.
func (s *State) gangAttempt(n Attempt, worker string) *attempt {
	a, err := s.find(n)
	if err != nil || a.w == nil || a.w.ID != worker || !a.member() {
		return nil
	}
	return a
}

func (s *State) gangReady(e GangReady) {
	a := s.gangAttempt(e.Attempt, e.Worker)
	if a == nil {
		return
	}
	j, g := a.st.job, a.st.job.gang
	if g.state != apart && e.Generation < g.generation && a.generation == g.generation {
		return // it has not heard of the group yet that it is in
	}
	g.generation = max(g.generation, e.Generation)
	a.generation = max(a.generation, e.Generation)
	a.rounds = e.Rounds
	if e.Generation == g.generation && e.Rounds > g.best {
		g.vain = 0
	}
	if e.Generation > 0 && e.Generation == g.generation {
		why := e.Broken
		if why == "" {
			why = "it left the group"
		}
		if !s.breakUp(j, fmt.Sprintf("%s at worker %s: %s", a.st.label(a.task), a.w.label(), why)) {
			return
		}
	}
	a.ready = true
	s.form(j)
}

func (s *State) gangJoined(e GangJoined) {
	a := s.gangAttempt(e.Attempt, e.Worker)
	if a == nil || e.Generation == 0 {
		return
	}
	j, g := a.st.job, a.st.job.gang
	if e.Generation <= g.broken {
		// It was away when the others were told.
		a.ready, a.generation = false, e.Generation
		s.emit(GangBreak{Job: j.ID, Generation: g.broken, Workers: []string{a.w.ID}, Reason: g.why})
		return
	}
	if e.Generation < g.generation {
		return
	}
	g.generation = e.Generation
	a.ready, a.generation = false, e.Generation
	for i := range a.st.tasks {
		r := a.st.tasks[i].run
		if r != nil && r.epoch == s.cfg.Epoch && r.generation != g.generation {
			s.breakUp(j, fmt.Sprintf("%s was begun anew", a.st.label(uint32(i))))
			return
		}
	}
	for i := range a.st.tasks {
		r := a.st.tasks[i].run
		if r == nil || r.ready || r.generation != g.generation {
			return
		}
	}
	if g.state == apart {
		g.state = together
		g.groups++
	}
}

func (s *State) gangFormed(e GangFormed) {
	j := s.jobs[e.Job]
	if j == nil || j.gang == nil || j.gang.state != forming || j.gang.generation != e.Generation {
		return
	}
	g := j.gang
	if e.Error == "" {
		g.state = together
		g.groups++
		return
	}
	if s.breakUp(j, "the group could not be formed: "+e.Error) {
		wait := s.cfg.Backoff
		for range min(g.vain-1, 16) {
			wait = min(2*wait, s.cfg.MaxBackoff)
		}
		s.timers.set(&g.again, s.now+wait)
	}
}

// breakUp ends the group of a gang, if there is one or was one that not all have left. It says whether the job goes on.
func (s *State) breakUp(j *job, why string) bool {
	g, st := j.gang, j.stages[Map]
	was := g.state
	g.state = apart
	var workers []string
	for a := st.running.first; a != nil; a = st.running.next(a) {
		if a.generation != g.generation || was == apart && a.ready {
			continue
		}
		if a.w != nil {
			workers = append(workers, a.w.ID)
		}
		a.ready = was == forming // it waits on, since it was told of no group
	}
	if g.generation > g.broken {
		g.broken, g.why = g.generation, why
		if workers = unique(workers); len(workers) > 0 {
			s.emit(GangBreak{Job: j.ID, Generation: g.generation, Workers: workers, Reason: why})
		}
		g.vain++
		if g.vain > s.cfg.MaxLost && !g.done {
			s.finishWith(j, fmt.Sprintf("the group of its members broke %s in a row without a round, at last: %s", times(uint32(g.vain)), why), false)
			return false
		}
	}
	return true
}

// disband has workers let go of a group that has served.
func (s *State) disband(j *job) {
	g := j.gang
	var workers []string
	for _, w := range j.workers {
		if s.workers[w.ID] == w && !w.expected {
			workers = append(workers, w.ID)
		}
	}
	if g.generation > g.broken && len(workers) > 0 {
		s.emit(GangBreak{Job: j.ID, Generation: g.generation, Workers: workers, Reason: "all of its members have come to their end"})
	}
	g.state, g.broken = apart, g.generation
}

// unique drops all but the first of equal strings.
func unique(list []string) []string {
	seen := make(map[string]bool, len(list))
	keep := list[:0]
	for _, x := range list {
		if !seen[x] {
			seen[x] = true
			keep = append(keep, x)
		}
	}
	return keep
}

// form orders a group if all members are ready.
func (s *State) form(j *job) {
	g, st := j.gang, j.stages[Map]
	if j.ended || j.stage != Map || g.done || g.state != apart || g.again.index != 0 {
		return
	}
	members := make([]GangMember, len(st.tasks))
	best := int64(-1)
	for i := range st.tasks {
		a := st.tasks[i].run
		if a == nil || a.w == nil || !a.ready {
			return
		}
		members[i] = GangMember{Attempt: a.name(), Worker: a.w.ID}
		best = max(best, a.rounds)
	}
	g.generation = max(g.generation, s.cfg.Epoch<<32) + 1
	g.state, g.best = forming, best
	for i := range st.tasks {
		a := st.tasks[i].run
		a.ready, a.generation = false, g.generation
	}
	s.emit(GangForm{Job: j.ID, Generation: g.generation, Members: members})
}

// left notes that an attempt of a gang is no more.
func (s *State) left(a *attempt, why string) {
	j := a.st.job
	if g := j.gang; !j.ended && j.stage == Map && a.generation == g.generation && g.generation > 0 && (g.state != apart || !a.ready) {
		s.breakUp(j, fmt.Sprintf("%s: %s", a.st.label(a.task), why))
	}
}

// setDone has members be of use one by one from now on.
func (s *State) setDone(j *job) {
	g := j.gang
	g.done, g.waits = true, false
	s.timers.stop(&g.wait)
	s.unkeep(j)
}

// gangDone notes that a member has come to the end.
func (s *State) gangDone(id string) {
	if j := s.jobs[id]; j != nil && j.gang != nil {
		s.setDone(j)
	}
}

// GangView is how the members of a gang stand.
type GangView struct {
	Members  int
	Ready    int // wait for a group
	Together bool
	Groups   int    // that were formed, as far as this master knows
	Why      string // the last one broke
	Kept     int    // members for whom room is kept as it becomes free
}

func (j *job) gangView() *GangView {
	g := j.gang
	if g == nil {
		return nil
	}
	st := j.stages[Map]
	if st == nil {
		return nil
	}
	v := &GangView{Members: len(st.tasks), Together: g.state == together, Groups: g.groups, Why: g.why, Kept: len(g.kept)}
	for a := st.running.first; a != nil; a = st.running.next(a) {
		if a.ready {
			v.Ready++
		}
	}
	return v
}
