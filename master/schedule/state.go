// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"fmt"
	"time"
)

// State is a scheduler. It is not safe for use by several goroutines at once.
type State struct {
	cfg     Config
	now     time.Duration
	actions []Action
	timers  timers

	jobs    map[string]*job
	jobList []*job // in the order of arrival
	gone    int    // ended ones in jobList
	jobSeq  int
	queues  [kinds]jobQueue
	cause   string   // of what ends a job now: see JobEnded
	copies  []*stage // that could do with a copy of a slow task

	workers    map[string]*worker
	workerList []*worker // in the order of arrival
	indices    int
	freeIndex  []int
	all        *fleet            // all workers
	fleets     map[string]*fleet // those of a platform, if there are any
	nobody     *fleet            // of a platform that no worker has
	// groupChanges counts changes of the groups of all fleets.
	groupChanges uint64
	live         int // workers that have said hello
	aside        int
	expected     int
	leavers      []*worker // may have nothing left
	gangs        []*job    // whose members run, or wait to
	keptSlots    int       // that are kept for gangs

	settle  timer
	settles bool // restored jobs wait
}

// Defaults of Config.
const (
	defaultMaxAttempts    = 4
	defaultMaxLost        = 20
	defaultBackoff        = 500 * time.Millisecond
	defaultMaxBackoff     = 30 * time.Second
	defaultSpeculate      = 1.5
	defaultSpeculateAfter = 5 * time.Second
	defaultAsideFailures  = 5
	defaultAsideWindow    = time.Minute
	defaultAsideFor       = time.Minute
	defaultNoWorkers      = 5 * time.Minute
	defaultLocalWait      = 3 * time.Second
	defaultSettle         = 3 * time.Second
	defaultGangWait       = 5 * time.Second
	defaultMaxTasks       = 1 << 20
	defaultMaxOutputs     = 1 << 22

	abortTries = 3
)

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// New returns a scheduler that knows no workers and no jobs.
func New(cfg Config) *State {
	orDefault(&cfg.MaxAttempts, defaultMaxAttempts)
	orDefault(&cfg.MaxLost, defaultMaxLost)
	orDefault(&cfg.Backoff, defaultBackoff)
	orDefault(&cfg.MaxBackoff, defaultMaxBackoff)
	orDefault(&cfg.Speculate, defaultSpeculate)
	orDefault(&cfg.SpeculateAfter, defaultSpeculateAfter)
	orDefault(&cfg.AsideFailures, defaultAsideFailures)
	orDefault(&cfg.AsideWindow, defaultAsideWindow)
	orDefault(&cfg.AsideFor, defaultAsideFor)
	orDefault(&cfg.NoWorkers, defaultNoWorkers)
	orDefault(&cfg.LocalWait, defaultLocalWait)
	orDefault(&cfg.Settle, defaultSettle)
	orDefault(&cfg.GangWait, defaultGangWait)
	orDefault(&cfg.MaxTasks, defaultMaxTasks)
	orDefault(&cfg.MaxOutputs, defaultMaxOutputs)
	s := &State{
		cfg:     cfg,
		jobs:    map[string]*job{},
		workers: map[string]*worker{},
		all:     newFleet(""),
		fleets:  map[string]*fleet{},
		nobody:  newFleet(""),
	}
	for k := range s.queues {
		s.queues[k].kind = k
	}
	s.settle.fire = func(s *State) { s.settleDown() }
	return s
}

func (s *State) emit(a Action) { s.actions = append(s.actions, a) }

// Apply takes events in and says what is to be done. Now is the time since any fixed
// moment, never less than in an earlier call; timers that are due are seen to first.
// The order of the actions is that in which they are to be done.
func (s *State) Apply(now time.Duration, events ...Event) []Action {
	s.now = max(s.now, now)
	for t := s.timers.due(s.now); t != nil; t = s.timers.due(s.now) {
		t.fire(s)
	}
	for _, e := range events {
		s.handle(e)
	}
	s.assign()
	for len(s.leavers) > 0 {
		list := s.leavers
		s.leavers = nil
		for _, w := range list {
			s.leave(w)
		}
	}
	out := s.actions
	s.actions = nil
	return out
}

// Next says when a Tick is needed at the latest. Not ok: nothing is waited for.
func (s *State) Next() (at time.Duration, ok bool) {
	if len(s.timers.heap) == 0 {
		return 0, false
	}
	return s.timers.heap[0].at, true
}

func (s *State) handle(e Event) {
	switch e := e.(type) {
	case WorkerExpected:
		if s.workers[e.ID] == nil {
			s.addWorker(Worker{ID: e.ID, Name: e.ID})
		}
	case WorkerUp:
		s.workerUp(e.Worker)
	case WorkerDown:
		if w := s.workers[e.ID]; w != nil {
			s.workerDown(w)
		}
	case WorkerSuspect:
		if w := s.workers[e.ID]; w != nil && w.suspect != e.Suspect && !w.expected {
			w.suspect = e.Suspect
			s.setCapacity(w, w.capacity())
			s.moved(w)
		}
	case WorkerDrain:
		if w := s.workers[e.ID]; w != nil {
			s.drain(w)
		}
	case JobAdded:
		if j := s.addJob(e.Job); j != nil {
			s.checkCapable(j)
			s.enter(j, Plan)
		}
	case JobCancelled:
		s.cancel(e)
	case JobForgotten:
		if j := s.jobs[e.ID]; j != nil && j.left {
			s.end(j)
		}
	case Finished:
		s.finished(e)
	case Failed:
		s.failedEvent(e)
	case OutputLost:
		s.outputLost(e)
	case Progressed:
		if a, err := s.find(e.Attempt); err == nil {
			a.done = e.Done
		}
	case GangReady:
		s.gangReady(e)
	case GangJoined:
		s.gangJoined(e)
	case GangFormed:
		s.gangFormed(e)
	case GangDone:
		s.gangDone(e.Job)
	case Tick:
	}
}

// ---- attempts ----

// find returns the attempt of that name, or why there is none (any more).
func (s *State) find(n Attempt) (*attempt, error) {
	j := s.jobs[n.Job]
	if j == nil {
		return nil, errors.New("the job has ended, or was never here")
	}
	if int(n.Stage) >= len(j.stages) || j.stages[n.Stage] == nil {
		return nil, fmt.Errorf("the job has not come to stage %s", n.Stage)
	}
	st := j.stages[n.Stage]
	if !st.active() {
		return nil, fmt.Errorf("the job is at stage %s now", j.stage)
	}
	if int64(n.Task) >= int64(len(st.tasks)) {
		return nil, fmt.Errorf("stage %s has no task %d", n.Stage, n.Task)
	}
	t := &st.tasks[n.Task]
	if t.sa != n.StageAttempt {
		return nil, fmt.Errorf("%s has begun anew: %d is its stage attempt now", st.label(n.Task), t.sa)
	}
	for a := t.run; a != nil; a = a.sibling {
		if a.number == n.Number && a.epoch == n.Epoch {
			return a, nil
		}
	}
	if t.have && t.winNumber == n.Number && t.winEpoch == n.Epoch {
		return nil, errors.New("its result was taken before")
	}
	if t.have {
		return nil, fmt.Errorf("another attempt of %s was first", st.label(n.Task))
	}
	if n.Epoch != s.cfg.Epoch {
		return nil, errors.New("it is from before the master's start and was not taken over")
	}
	return nil, errors.New("it was stopped, or is held to be lost")
}

// Offer says whether an attempt's result would be taken now: nil, or why not.
func (s *State) Offer(n Attempt, worker string) error {
	a, err := s.find(n)
	if err != nil {
		return err
	}
	if a.at != worker {
		return errors.New("it was given to another worker")
	}
	for b := a.st.tasks[a.task].run; b != nil; b = b.sibling {
		if b != a && b.claimed {
			return fmt.Errorf("another attempt of %s was first", a.st.label(a.task))
		}
	}
	return nil
}

// Claim is Offer, and if it returns nil keeps the place for that attempt: until Finished is
// applied or Release called, results of other attempts of the task are refused, and
// the attempt is not lost with its worker. It is for the time in which a result is written to a journal.
func (s *State) Claim(n Attempt, worker string) error {
	if err := s.Offer(n, worker); err != nil {
		return err
	}
	a, _ := s.find(n)
	a.claimed = true
	return nil
}

// Release takes a claim back: the result could not be written. The attempt goes on as before.
func (s *State) Release(n Attempt) {
	a, err := s.find(n)
	if err != nil || !a.claimed {
		return
	}
	a.claimed = false
	if a.w == nil {
		s.lose(a, "its worker is gone")
	}
}

// launch gives a task to a worker.
func (s *State) launch(st *stage, i uint32, w *worker, spec bool) {
	t := &st.tasks[i]
	s.dequeue(st, i)
	a := &attempt{st: st, task: i, sa: t.sa, number: t.next, epoch: s.cfg.Epoch, started: s.now, spec: spec}
	t.next++
	a.waits = st.kind == Reduce && st.job.missing() > 0
	a.rounds = -1
	s.attach(a, w)
	if st.kind == Commit {
		st.job.published = true
	}
	if a.member() && st.job.stage == Map {
		s.breakUp(st.job, fmt.Sprintf("%s is begun anew", st.label(i)))
	}
	s.emit(Launch{Worker: w.ID, Attempt: a.name(), Speculative: spec, Memory: a.mem})
}

// attach has an attempt run at a worker.
func (s *State) attach(a *attempt, w *worker) {
	st, j := a.st, a.st.job
	a.w, a.at = w, w.ID
	a.mem = j.TaskMemory
	if a.mem <= 0 {
		a.mem = w.share()
	}
	k := kindOf(st.kind)
	w.used[k]++
	w.usedMem += a.mem
	if a.member() {
		w.members = hold{w.members.slots + 1, w.members.mem + a.mem}
	}
	w.attempts.add(a)
	s.moved(w)
	t := &st.tasks[a.task]
	a.sibling = t.run
	t.run = a
	st.running.add(a)
	if a.spec {
		st.copies++
		st.speculative++
	}
	if a.sibling == nil {
		st.copyable.add(a)
	} else {
		for b := a.sibling; b != nil; b = b.sibling {
			st.copyable.remove(b)
		}
	}
	j.running[k]++
	s.meets(j, w)
	s.touch(j)
	s.look(st)
}

// meets notes that a worker has something of a job.
func (s *State) meets(j *job, w *worker) {
	for w.index/64 >= len(j.touched) {
		j.touched = append(j.touched, 0)
	}
	if bit := uint64(1) << (w.index % 64); j.touched[w.index/64]&bit == 0 {
		j.touched[w.index/64] |= bit
		j.workers = append(j.workers, w)
	}
}

// detach takes an attempt from its worker.
func (s *State) detach(a *attempt) {
	w := a.w
	if w == nil {
		return
	}
	w.used[kindOf(a.st.kind)]--
	w.usedMem -= a.mem
	if a.member() {
		w.members = hold{w.members.slots - 1, w.members.mem - a.mem}
	}
	w.attempts.remove(a)
	a.w = nil
	s.moved(w)
	s.empty(w)
}

// drop takes an attempt out of everything.
func (s *State) drop(a *attempt) {
	st := a.st
	s.detach(a)
	t := &st.tasks[a.task]
	for p := &t.run; *p != nil; p = &(*p).sibling {
		if *p == a {
			*p = a.sibling
			break
		}
	}
	a.sibling = nil
	st.running.remove(a)
	st.copyable.remove(a)
	if a.spec {
		st.speculative--
	}
	if r := t.run; r != nil && r.sibling == nil && !r.in[bySpec] {
		st.copyable.add(r)
	}
	st.job.running[kindOf(st.kind)]--
	s.touch(st.job)
	s.look(st)
}

func (s *State) stop(a *attempt, why string) {
	if a.w != nil {
		s.emit(Stop{Worker: a.w.ID, Attempt: a.name(), Reason: why})
	}
	s.silenced(a.st)
	s.drop(a)
}

// silenced notes that nobody will hear what an attempt has done.
func (s *State) silenced(st *stage) {
	if st.kind == Plan {
		st.job.prepared = true
	}
}

// lose notes that an attempt is gone through no fault of its own.
func (s *State) lose(a *attempt, why string) {
	if a.claimed {
		s.detach(a) // its result is on its way to the journal
		return
	}
	st, t, i := a.st, &a.st.tasks[a.task], a.task
	s.remember(a, "lost", why)
	s.silenced(st)
	s.drop(a)
	if a.member() {
		s.left(a, why)
	}
	st.lost++
	t.lost++
	if s.spent(st, i, int(t.lost) > s.cfg.MaxLost, fmt.Sprintf("%s was lost %s in a row, at last since %s", st.label(i), times(t.lost), why)) {
		return
	}
	s.want(st, i)
}

func times[N uint16 | uint32](n N) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// spent sees to a task that has used up its tries, and says whether that was so.
func (s *State) spent(st *stage, i uint32, spent bool, why string) bool {
	t := &st.tasks[i]
	if st.kind == Abort && int(t.lost)+int(t.failures) >= abortTries {
		s.emit(Note{Job: st.job.ID, Text: "what is left of its output was not removed: " + why})
		s.end(st.job)
		return true
	}
	if !spent || st.kind == Abort {
		return false
	}
	if t.have { // it was to be moved from a worker that wants to leave, who has to stay
		t.moving = false
		return true
	}
	s.finishWith(st.job, why, false)
	return true
}

// keepEnded is how many attempts that failed or were lost a job remembers.
const keepEnded = 1000

func (s *State) remember(a *attempt, state, why string) {
	j := a.st.job
	if len(j.attemptsEnded) >= 2*keepEnded {
		j.attemptsEnded = append(j.attemptsEnded[:0], j.attemptsEnded[keepEnded:]...)
	}
	v := a.view(s.now)
	v.State, v.Error = state, why
	j.attemptsEnded = append(j.attemptsEnded, v)
}

func (s *State) failedEvent(e Failed) { s.because(e.Cause, func() { s.failure(e) }) }

func (s *State) failure(e Failed) {
	a, err := s.find(e.Attempt)
	if err != nil || a.w == nil || a.w.ID != e.Worker || a.claimed {
		return
	}
	st, i, w := a.st, a.task, a.w
	t := &st.tasks[i]
	s.remember(a, "failed", e.Error)
	s.drop(a)
	st.lastError = e.Error
	if a.member() && !e.Permanent {
		s.left(a, e.Error)
	}
	if e.Permanent && !e.Infrastructure && st.kind != Abort {
		st.failed++
		t.failures++
		s.spent(st, i, true, fmt.Sprintf("%s: %s", st.label(i), e.Error))
		return
	}
	s.blame(w, st, i, e.Infrastructure, e.Error)
	if e.Infrastructure {
		s.silenced(st)
		st.lost++
		t.lost++
		if !s.spent(st, i, int(t.lost) > s.cfg.MaxLost, fmt.Sprintf("%s was lost %s in a row, at last at worker %s: %s", st.label(i), times(t.lost), w.label(), e.Error)) {
			s.retry(st, i, w, int(t.lost))
		}
		return
	}
	st.failed++
	t.failures++
	t.lost = 0
	if !s.spent(st, i, int(t.failures) >= st.job.MaxAttempts, fmt.Sprintf("%s failed %s, at last at worker %s: %s", st.label(i), times(t.failures), w.label(), e.Error)) {
		s.retry(st, i, w, int(t.failures))
	}
}

// blame counts a failure against a worker. Of failures that may be the program's own, each job's
// counts once: a faulty program must not take workers from others.
func (s *State) blame(w *worker, st *stage, i uint32, infrastructure bool, why string) {
	f := failure{s.now, st.job.seq, st.kind, i, infrastructure}
	if !infrastructure {
		for _, g := range w.failures {
			if g.job == f.job && !g.infrastructure && s.now-g.at <= s.cfg.AsideWindow {
				return
			}
		}
	}
	w.failures = append(w.failures, f)
	n := len(w.failures)
	if n > s.cfg.AsideFailures {
		w.failures = append(w.failures[:0], w.failures[n-s.cfg.AsideFailures:]...)
		n = s.cfg.AsideFailures
	}
	if n < s.cfg.AsideFailures || s.now-w.failures[0].at > s.cfg.AsideWindow || w.aside {
		return
	}
	first, several := w.failures[0], false
	for _, g := range w.failures {
		several = several || g.job != first.job || g.stage != first.stage || g.task != first.task
	}
	// If all workers fail it is not the workers.
	if !several || 2*(s.aside+1) > s.live {
		return
	}
	w.failures = nil
	w.aside = true
	w.asideUntil = s.now + s.cfg.AsideFor
	s.aside++
	s.timers.set(&w.asideTimer, w.asideUntil)
	s.moved(w)
	s.emit(SetAside{Worker: w.ID, Until: w.asideUntil, Why: fmt.Sprintf("%d attempts failed there within %s, at last %s: %s", n, s.cfg.AsideWindow, st.label(i), why)})
}

func (s *State) cancel(e JobCancelled) {
	j := s.jobs[e.ID]
	if j == nil || j.stage == Abort {
		return
	}
	if j.published && j.stage == Commit {
		s.emit(Note{Job: j.ID, Text: "it was too late to cancel: its output is being published"})
		return
	}
	why := e.Reason
	if why == "" {
		why = "cancelled"
	}
	s.finishWith(j, why, true)
}

// ---- results ----

func (s *State) finished(e Finished) {
	a, err := s.find(e.Attempt)
	if err != nil || s.Offer(e.Attempt, e.Worker) != nil {
		return
	}
	st, j, i := a.st, a.st.job, a.task
	t := &st.tasks[i]
	w := a.w
	if st.kind == Map && len(e.Digests) != j.width {
		s.finishWith(j, fmt.Sprintf("%s: the result has %d digests for %d partitions", st.label(i), len(e.Digests), j.width), false)
		return
	}
	st.took.add(s.now - a.started)
	s.drop(a)
	if a.member() {
		s.setDone(j) // it could not have come to its end otherwise
	}
	if up := s.workers[e.Worker]; w == nil && up != nil && !up.expected {
		w = up // it was away for a moment
	}
	for b := t.run; b != nil; b = t.run {
		s.stop(b, "another attempt of the task was first")
	}
	s.commit(st, i, a.number, a.epoch, w, e)
}

// commit notes that a task has a result. w is nil if its worker is gone.
func (s *State) commit(st *stage, i uint32, number uint32, epoch uint64, w *worker, e Finished) {
	j, t := st.job, &st.tasks[i]
	s.dequeue(st, i)
	if !t.have && !t.idle {
		st.done++
	}
	t.have, t.idle, t.moving = true, false, false
	t.winNumber, t.winEpoch = number, epoch
	t.failures, t.lost = 0, 0
	t.avoid = nil
	switch st.kind {
	case Plan:
		if err := s.shape(j, e.Planned); err != nil {
			j.prepared = true
			s.because(Refused, func() { s.finishWith(j, err.Error(), false) })
			return
		}
		s.enter(j, Map)
		return
	case Map:
		s.mapped(st, i, w, e.Digests)
	case Reduce:
		j.commits++
	}
	if j.ended {
		return
	}
	s.touch(j)
	s.look(st)
	s.advance(j)
}

// mapped notes where a map output is, and what has changed since it was there last.
func (s *State) mapped(st *stage, i uint32, w *worker, digests []uint64) {
	j, t := st.job, &st.tasks[i]
	if old := t.home; old != nil {
		t.home = nil
		s.unhold(old)
	}
	delete(j.doubts, i)
	if w != nil {
		s.hold(w, st, i)
	}
	was := j.digests[int(i)*j.width : (int(i)+1)*j.width]
	again := t.ran
	t.ran = true
	if !again {
		j.mapped++
		copy(was, digests)
	} else {
		s.compare(j, i, was, digests)
	}
	if w == nil {
		s.loseOutput(st, i, "its worker is gone")
		return
	}
	if again && j.stage == Reduce {
		s.relocate(j, i)
	}
	if w.draining {
		s.move(st, i)
	}
}

// compare begins those partitions anew that a map output which was made again has changed.
func (s *State) compare(j *job, i uint32, was, is []uint64) {
	changed := false
	for p := range was {
		if was[p] == is[p] {
			continue
		}
		was[p] = is[p]
		changed = true
		if j.stage != Reduce {
			continue
		}
		if j.width == j.parts {
			s.reset(j, uint32(p))
			continue
		}
		for q := range j.parts {
			s.reset(j, uint32(q))
		}
	}
	if !changed {
		return
	}
	if !j.saidChanged {
		j.saidChanged = true
		s.emit(Note{Job: j.ID, Text: fmt.Sprintf("the map function is not deterministic: map task %d, run again, gave other pairs. The result is of one run of each task, but another run of the job may give another", i)})
	}
	s.recall(j)
}

// reset begins a reduce task anew.
func (s *State) reset(j *job, p uint32) {
	st := j.stages[Reduce]
	t := &st.tasks[p]
	for a := t.run; a != nil; a = t.run {
		s.stop(a, "a map output that it read has changed")
	}
	s.dequeue(st, p)
	if t.have {
		t.have = false
		st.done--
	}
	t.sa++
	t.failures, t.lost = 0, 0
	j.resets++
	s.emit(Reset{Job: j.ID, Task: p, StageAttempt: t.sa})
	s.want(st, p)
}

// recall looks for map outputs that nobody needed and that somebody needs again.
func (s *State) recall(j *job) {
	if len(j.idleOutputs) == 0 {
		return
	}
	st := j.stages[Map]
	keep := j.idleOutputs[:0]
	list := j.idleOutputs
	for _, i := range list {
		t := &st.tasks[i]
		switch {
		case !t.idle:
		case s.needed(j, i):
			t.idle = false
			st.done--
			j.reruns++
			s.want(st, i)
		default:
			keep = append(keep, i)
		}
	}
	j.idleOutputs = keep
}

// needed says whether a reduce task that is not committed reads a map output.
func (s *State) needed(j *job, i uint32) bool {
	d := j.digests[int(i)*j.width : (int(i)+1)*j.width]
	r := j.stages[Reduce]
	if j.stage > Reduce {
		return false
	}
	for p, v := range d {
		if v == 0 {
			continue
		}
		if r == nil {
			return true
		}
		if j.width != j.parts {
			return r.done < len(r.tasks)
		}
		if !r.tasks[p].have {
			return true
		}
	}
	return false
}

// reads says whether a reduce task reads a map output.
func (j *job) reads(p, i uint32) bool {
	if j.width != j.parts {
		p = 0
	}
	return j.digests[int(i)*j.width+int(p)] != 0
}

// relocate tells those who read a map output where it is.
func (s *State) relocate(j *job, i uint32) {
	whole := j.missing() == 0
	r := j.stages[Reduce]
	for a := r.running.first; a != nil; a = r.running.next(a) {
		if a.w != nil && j.reads(a.task, i) {
			s.tell(a, i)
		}
		if whole {
			a.waits = false
		}
	}
}

func (s *State) tell(a *attempt, i uint32) {
	j := a.st.job
	t := &j.stages[Map].tasks[i]
	s.emit(Relocate{Worker: a.w.ID, Reader: a.name(), Output: j.output(i), At: t.home.ID})
}

// output is the attempt that made a map output.
func (j *job) output(i uint32) Attempt {
	t := &j.stages[Map].tasks[i]
	return Attempt{Job: j.ID, Stage: Map, Task: i, Number: t.winNumber, Epoch: t.winEpoch}
}

// ---- map outputs ----

func (s *State) hold(w *worker, st *stage, i uint32) {
	st.tasks[i].home = w
	w.nheld++
	if len(w.held) >= 64 && len(w.held) > 2*w.nheld {
		keep := w.held[:0]
		for _, h := range w.held {
			if h.st.tasks[h.task].home == w {
				keep = append(keep, h)
			}
		}
		clear(w.held[len(keep):])
		w.held = keep
	}
	w.held = append(w.held, heldOutput{st, i})
	s.meets(st.job, w)
}

func (s *State) unhold(w *worker) {
	w.nheld--
	if w.nheld == 0 {
		w.held = nil
	}
	s.empty(w)
}

// empty looks later whether a worker that wants to leave may.
func (s *State) empty(w *worker) {
	if w.draining && !w.left {
		s.leavers = append(s.leavers, w)
	}
}

func (s *State) leave(w *worker) {
	if w.draining && !w.left && w.nheld == 0 && w.attempts.n == 0 && s.workers[w.ID] == w && !w.expected {
		w.left = true
		s.emit(Left{Worker: w.ID})
	}
}

// loseOutput notes that nobody has a map output any more.
func (s *State) loseOutput(st *stage, i uint32, why string) {
	j, t := st.job, &st.tasks[i]
	if w := t.home; w != nil {
		t.home = nil
		s.unhold(w)
	}
	delete(j.doubts, i)
	if j.ended || !t.have {
		return
	}
	if !s.needed(j, i) {
		t.moving = false
		if j.stage == Reduce {
			for a := t.run; a != nil; a = t.run {
				s.stop(a, "its output is not needed any more")
			}
			s.dequeue(st, i)
			t.have, t.idle = false, true
			j.idleOutputs = append(j.idleOutputs, i)
		}
		return
	}
	t.have, t.moving = false, false
	st.done--
	j.reruns++
	row := j.losses[i]
	if row.commits != j.commits {
		row = lossRow{commits: j.commits}
	}
	row.n++
	if j.losses == nil {
		j.losses = map[uint32]lossRow{}
	}
	j.losses[i] = row
	if int(row.n) > s.cfg.MaxLost {
		s.finishWith(j, fmt.Sprintf("the output of %s was lost %s while no reduce task could be committed, at last since %s", st.label(i), times(row.n), why), false)
		return
	}
	s.want(st, i)
	s.touch(j)
}

func (s *State) outputLost(e OutputLost) {
	r, err := s.find(e.Reader)
	if err != nil || r.st.kind != Reduce || e.Output.Job != e.Reader.Job || e.Output.Stage != Map || r.w == nil {
		return
	}
	j := r.st.job
	st, i := j.stages[Map], e.Output.Task
	if int64(i) >= int64(len(st.tasks)) {
		return
	}
	t := &st.tasks[i]
	if !t.have {
		r.waits = true
		if t.idle { // it says that it needs it, so it does
			t.idle = false
			st.done--
			s.want(st, i)
		}
		return
	}
	if t.home == nil {
		return
	}
	if t.winNumber != e.Output.Number || t.winEpoch != e.Output.Epoch || t.home.ID != e.Worker && e.Worker != "" {
		s.tell(r, i)
		return
	}
	w := t.home
	if !e.Certain && !w.suspect && !w.expected {
		if j.doubts[i] == 0 {
			if j.doubts == nil {
				j.doubts = map[uint32]int{}
			}
			j.doubts[i] = 1
			return
		}
		if other := r.accused; other != nil && other != w && !r.claimed && s.workers[other.ID] == other && !other.suspect && !other.expected {
			// Both of these are heard of. Who reaches neither is it that can't be reached, and would have
			// all outputs made again for nothing.
			delete(j.doubts, i)
			why := fmt.Sprintf("it reaches neither worker %s nor worker %s: %s", other.label(), w.label(), e.Error)
			s.emit(Stop{Worker: r.w.ID, Attempt: r.name(), Reason: why})
			s.failedEvent(Failed{Attempt: r.name(), Worker: r.w.ID, Error: why, Infrastructure: true})
			return
		}
		r.accused = w
	}
	r.waits = true
	t.avoid = w
	if e.Certain {
		if j.bad == nil {
			j.bad = map[won]struct{}{}
		}
		j.bad[won{i, t.winNumber, t.winEpoch}] = struct{}{}
		s.blame(w, st, i, true, e.Error)
	}
	s.loseOutput(st, i, fmt.Sprintf("worker %s: %s", w.label(), e.Error))
}
