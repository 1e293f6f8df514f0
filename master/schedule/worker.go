// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"
)

var errDouble = errors.New("another attempt of the task is at work")

// maxLocal bounds the folders of a worker that are looked at.
const maxLocal = 64

type worker struct {
	Worker
	index int // of its bit in job.touched; given to another when it is gone

	used     [kinds]int
	usedMem  int64
	members  hold // of that, what those of gangs have
	kept     hold // for gangs, beside what is used
	attempts list

	expected, suspect, draining, left bool
	aside                             bool
	counted                           bool // in State.usable
	asideUntil                        time.Duration
	asideTimer                        timer
	failures                          []failure // the last ones

	seats  [kinds][]seat // in the pools of its fleets, and of its groups
	fleet  *fleet        // of its platform; nil: it has none
	groups []*group      // in State.all
	also   []*group      // the same in fleet

	// held are outputs that it was given; those that are still there have it as home.
	held  []heldOutput
	nheld int
}

type failure struct {
	at    time.Duration
	job   int
	stage Stage
	task  uint32
	// infrastructure: it was no fault of a program.
	infrastructure bool
}

type heldOutput struct {
	st   *stage
	task uint32
}

// group is the workers of a fleet near a folder.
type group struct {
	folder  string
	pool    *pool // of map slots
	members int
}

func (w *worker) usable() bool {
	return !w.expected && !w.suspect && !w.draining && !w.aside
}

// unlimited is the memory of a worker that has no limit.
const unlimited = math.MaxInt64

func (w *worker) freeMem() int64 {
	if w.Memory <= 0 {
		return unlimited
	}
	return w.Memory - w.usedMem
}

// share is what an attempt takes that does not say.
func (w *worker) share() int64 {
	if w.Memory <= 0 {
		return 0
	}
	return w.Memory / int64(2*w.Slots)
}

func (w *worker) room(kind int) room {
	free := w.Slots - w.used[kind]
	if kind == mapSlot {
		free -= w.kept.slots
	}
	if free <= 0 || !w.usable() {
		return noRoom
	}
	r := room{score: score(free, w.Slots), mem: max(w.freeMem()-w.kept.mem, 0)}
	if r.mem >= w.share() {
		r.share = r.score
	}
	return r
}

// moved tells the pools what a worker has now.
func (s *State) moved(w *worker) {
	if u := w.usable(); u != w.counted {
		s.count(w, u)
	}
	for k := range w.seats {
		r := w.room(k)
		for _, seat := range w.seats[k] {
			seat.pool.set(seat.leaf, r)
		}
	}
}

// capacity is what jobs could get if nothing ran.
func (w *worker) capacity() room {
	if w.expected || w.suspect || w.draining {
		return noRoom
	}
	mem := w.Memory
	if mem <= 0 {
		mem = unlimited
	}
	return room{score: 1, mem: mem}
}

// addWorker makes a worker, live or expected.
func (s *State) addWorker(spec Worker) *worker {
	w := &worker{Worker: Worker{ID: spec.ID, Name: spec.Name}, attempts: list{which: byWorker}}
	if n := len(s.freeIndex); n > 0 {
		w.index = s.freeIndex[n-1]
		s.freeIndex = s.freeIndex[:n-1]
	} else {
		w.index = s.indices
		s.indices++
	}
	w.asideTimer.fire = func(s *State) {
		w.aside = false
		s.aside--
		s.moved(w)
	}
	s.workers[w.ID] = w
	s.workerList = append(s.workerList, w)
	if len(s.workerList) > 16 && len(s.workerList) > 2*len(s.workers) {
		s.workerList = slices.DeleteFunc(s.workerList, func(w *worker) bool { return s.workers[w.ID] != w })
	}
	w.expected = true
	s.expected++
	return w
}

// configure takes over what a hello says.
func (s *State) configure(w *worker, spec Worker) {
	s.unseat(w)
	if w.expected {
		w.expected = false
		s.expected--
		s.live++
	}
	s.enlist(w, spec.Platform)
	w.Name, w.Slots, w.Memory = spec.Name, max(spec.Slots, 1), max(spec.Memory, 0)
	w.suspect = false
	w.Local = nil
	for _, l := range spec.Local {
		l = strings.TrimRight(l, "/")
		if len(w.Local) < maxLocal && !slices.Contains(w.Local, l) {
			w.Local = append(w.Local, l)
		}
	}
	w.groups = s.seat(s.all, w)
	if w.fleet != nil {
		w.also = s.seat(w.fleet, w)
	}
	s.setCapacity(w, w.capacity())
	s.moved(w)
}

func (s *State) unseat(w *worker) {
	for k := range w.seats {
		for _, seat := range w.seats[k] {
			seat.pool.leave(seat.leaf)
		}
		w.seats[k] = nil
	}
	s.ungroup(s.all, w.groups)
	w.groups = nil
	if w.fleet != nil {
		s.ungroup(w.fleet, w.also)
		w.also = nil
	}
}

func (s *State) setCapacity(w *worker, r room) {
	changed := s.all.setCapacity(w, r)
	if w.fleet != nil && w.fleet.setCapacity(w, r) {
		changed = true
	}
	if changed {
		for _, j := range s.jobList {
			s.checkCapable(j)
		}
		return
	}
	for _, j := range s.gangs { // they may need several
		s.checkCapable(j)
	}
}

// capable says whether a worker is there that could run a job's attempts, had it nothing else to do.
func (s *State) capable(j *job) bool {
	best := s.fleetOf(j).capacities.tree[1]
	if j.gangWaits() {
		return best.score > 0 && s.fitsEver(j)
	}
	return best.score > 0 && (j.TaskMemory <= 0 || best.mem >= j.TaskMemory)
}

func (s *State) checkCapable(j *job) {
	switch {
	case j.ended, j.left:
	case s.capable(j):
		s.timers.stop(&j.noWorker)
	case j.noWorker.index == 0:
		s.timers.set(&j.noWorker, s.now+s.cfg.NoWorkers)
	}
}

// usableBut says whether a fleet has a usable worker other than w.
func (f *fleet) usableBut(w *worker) bool {
	n := f.usable
	if w != nil && w.counted {
		n--
	}
	return n > 0
}

func (w *worker) label() string {
	if w.Name != "" {
		return w.Name
	}
	return w.ID
}

// ---- coming and going ----

func (s *State) workerUp(spec Worker) {
	w := s.workers[spec.ID]
	if w == nil {
		w = s.addWorker(spec)
	}
	s.configure(w, spec)
	s.settled()

	unknown := map[string]bool{} // jobs
	forget := func(id string) {
		if s.jobs[id] == nil && !unknown[id] {
			unknown[id] = true
			s.emit(Forget{Worker: w.ID, Job: id})
		}
	}

	// Attempts.
	reported := make(map[*attempt]bool, len(spec.Running))
	for _, n := range spec.Running {
		a, err := s.find(n)
		switch {
		case err == nil && a.w == w:
			reported[a] = true
		case err == nil && a.claimed:
		default:
			if err == nil {
				s.drop(a) // it was another's, of which nobody has heard since
			}
			if a := s.adopt(w, n); a != nil {
				reported[a] = true
				break
			}
			_, err := s.find(n)
			if err == nil {
				err = errDouble
			}
			s.emit(Stop{Worker: w.ID, Attempt: n, Reason: err.Error()})
		}
		forget(n.Job)
	}
	var lost []*attempt
	for a := w.attempts.first; a != nil; a = w.attempts.next(a) {
		if !reported[a] && !a.claimed {
			lost = append(lost, a)
		}
	}
	for _, a := range lost {
		if a.w == w { // one that was lost before may have ended its job
			s.lose(a, "worker "+w.label()+" does not know of it")
		}
	}

	// Outputs.
	there := make(map[heldOutput]bool, len(spec.Outputs))
	for _, n := range spec.Outputs {
		forget(n.Job)
		j := s.jobs[n.Job]
		if j == nil || j.stages[Map] == nil || n.Stage != Map || int64(n.Task) >= int64(len(j.stages[Map].tasks)) {
			continue
		}
		st, i := j.stages[Map], n.Task
		s.meets(j, w)
		t := &st.tasks[i]
		if !t.ran || t.winNumber != n.Number || t.winEpoch != n.Epoch {
			continue
		}
		if _, bad := j.bad[won{i, n.Number, n.Epoch}]; bad {
			continue
		}
		there[heldOutput{st, i}] = true
		if t.home == w {
			delete(j.doubts, i)
			continue
		}
		s.takeBack(w, st, i)
	}
	for _, h := range slices.Clone(w.held) {
		if h.st.tasks[h.task].home == w && !there[h] {
			s.loseOutput(h.st, h.task, "worker "+w.label()+" has it no more")
		}
	}
	s.empty(w)
}

// adopt takes an attempt over that a worker says it has, if its result could still be of use.
func (s *State) adopt(w *worker, n Attempt) *attempt {
	j := s.jobs[n.Job]
	if j == nil || int(n.Stage) >= len(j.stages) || j.stages[n.Stage] == nil {
		return nil
	}
	st := j.stages[n.Stage]
	if !st.active() || int64(n.Task) >= int64(len(st.tasks)) || n.Epoch > s.cfg.Epoch {
		return nil
	}
	t := &st.tasks[n.Task]
	if j.full() || !t.wanted() || t.sa != n.StageAttempt || n.Epoch == s.cfg.Epoch && n.Number >= t.next {
		return nil
	}
	copies := 0
	for a := t.run; a != nil; a = a.sibling {
		if copies++; a.w == w || a.claimed || copies > 1 || a.member() {
			return nil
		}
	}
	s.dequeue(st, n.Task)
	a := &attempt{st: st, task: n.Task, sa: n.StageAttempt, number: n.Number, epoch: n.Epoch, started: s.now, spec: copies > 0}
	a.rounds = -1
	a.waits = st.kind == Reduce && j.missing() > 0
	s.attach(a, w)
	if st.kind == Commit {
		j.published = true
	}
	s.emit(Adopted{Worker: w.ID, Attempt: n})
	return a
}

// takeBack uses an output again that was held to be lost, or that is on a worker which has
// another connection now.
func (s *State) takeBack(w *worker, st *stage, i uint32) {
	j, t := st.job, &st.tasks[i]
	if !st.active() || t.home != nil {
		return
	}
	for a := t.run; a != nil; a = a.sibling {
		if a.claimed {
			return // it is as good as made again
		}
	}
	for a := t.run; a != nil; a = t.run {
		s.stop(a, "the output that it is to make is back")
	}
	s.dequeue(st, i)
	if !t.have && !t.idle {
		st.done++
	}
	t.have, t.idle = true, false
	s.hold(w, st, i)
	s.touch(j)
	s.look(st)
	if j.stage == Reduce {
		s.relocate(j, i)
	}
	if w.draining {
		s.move(st, i)
	}
	s.advance(j)
}

func (s *State) workerDown(w *worker) {
	s.unseat(w)
	s.setCapacity(w, noRoom)
	if w.expected {
		s.expected--
	} else {
		s.live--
	}
	if w.aside {
		w.aside = false
		s.aside--
		s.timers.stop(&w.asideTimer)
	}
	if w.counted {
		s.count(w, false)
	}
	s.enlist(w, "")
	w.expected = true // so that nothing is given to it while its attempts are seen to
	delete(s.workers, w.ID)
	why := "worker " + w.label() + " is gone"
	for a := w.attempts.first; a != nil; a = w.attempts.first {
		s.lose(a, why)
	}
	for _, h := range slices.Clone(w.held) {
		if h.st.tasks[h.task].home == w {
			s.loseOutput(h.st, h.task, why)
		}
	}
	for _, j := range s.jobList {
		if at := w.index / 64; at < len(j.touched) && j.touched[at]>>(w.index%64)&1 != 0 {
			j.touched[at] &^= 1 << (w.index % 64)
		}
	}
	for _, j := range s.gangs {
		s.checkCapable(j)
	}
	s.freeIndex = append(s.freeIndex, w.index)
	s.settled()
}

// drain gives a worker nothing more, and has what it holds made elsewhere.
func (s *State) drain(w *worker) {
	if w.draining {
		return
	}
	w.draining = true
	s.setCapacity(w, w.capacity())
	s.moved(w)
	for _, h := range slices.Clone(w.held) {
		if h.st.tasks[h.task].home == w {
			s.move(h.st, h.task)
		}
	}
	s.empty(w)
}

// move has an output made elsewhere, or lets go of it if nobody needs it.
func (s *State) move(st *stage, i uint32) {
	t := &st.tasks[i]
	if !s.needed(st.job, i) {
		s.loseOutput(st, i, "nobody needs it")
		return
	}
	if t.moving {
		return
	}
	t.moving = true
	st.job.reruns++
	s.want(st, i)
}

// settleDown lets restored jobs go on. Gangs have waited since now.
func (s *State) settleDown() {
	s.settles = false
	for _, j := range s.gangs {
		if j.restored && j.gang.waits {
			j.gang.since = s.now
			s.gangTimer(j)
		}
	}
}

// settled lets restored jobs go on when nobody is waited for any more.
func (s *State) settled() {
	if s.settles && s.expected == 0 {
		s.settleDown()
		s.timers.stop(&s.settle)
	}
}
