// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"
)

// How a task stands in the queue.
const (
	unqueued = iota
	queued   // may go to any worker
	shy      // failed lately: another worker than that one is wanted
	near     // waits for a worker near it
	backoff  // failed: waits before it is tried again
)

// task is kept small, since there may be a million.
type task struct {
	run *attempt // those that run, most recent first
	// home is, of a map task, the worker that has its output. Nil: nobody has it, or
	// nobody needs it.
	home  *worker
	avoid *worker // where it failed last

	winEpoch  uint64 // of the attempt that won, with winNumber
	winNumber uint32
	sa        uint32
	next      uint32 // attempt number
	version   uint32 // counts changes of queue, so that what was put off can be told from what is new
	failures  uint16
	lost      uint16 // attempts in a row
	queue     uint8
	// have: it is committed, and of a map task the output is there. idle: the output is
	// lost, but nobody needs it. moving: it is to be made elsewhere while it still is there.
	have, idle, moving bool
	ran                bool // digests of it are known
}

// stage is a job's stage.
type stage struct {
	job   *job
	kind  Stage
	tasks []task
	done  int // tasks that have or are idle

	order, rank   []uint32 // of tasks, longest first; nil: as they are numbered
	open, retries set      // of ranks: queued and shy
	nears         int      // how many tasks are near
	nearQueue     []putOff // in the order of time
	nearTimer     timer

	running   list
	copyable  list
	spec      timer
	wantsCopy bool // in State.copies
	took      durations

	failed, lost, copies uint32 // attempts, ever
	speculative          uint32 // running copies
	lastError            string
}

// putOff is a task that waits until a time.
type putOff struct {
	at            time.Duration
	task, version uint32
}

type job struct {
	Job
	seq   int
	stage Stage
	// prepared: there may be something of its output, which Abort removes. A plan attempt that nobody
	// hears of any more may have got so far, too; one that failed by itself has tidied up.
	prepared bool
	stages   [Abort + 1]*stage
	paths    *paths // of map tasks; nil: no worker is near any

	parts, width int      // reduce tasks, digests per map output
	mapped       int      // map tasks that were ever committed
	digests      []uint64 // of task t: [t*width, (t+1)*width)

	running [kinds]int // attempts
	place   [kinds]int // in State.queues, plus 1
	touched []uint64   // bit per worker: it has something of the job
	workers []*worker  // the same, in order

	ended         bool
	left          bool   // JobEnded was said, and Abort waits for a worker
	ending        string // why it ends, when Abort has begun
	cause         string // see JobEnded
	cancelled     bool
	restored      bool
	published     bool // an attempt to publish may have run
	noWorker      timer
	doubts        map[uint32]int     // reports of map outputs that may be lost
	bad           map[won]struct{}   // outputs that are not to be taken again
	losses        map[uint32]lossRow // of map outputs
	idleOutputs   []uint32           // map tasks that are idle, some of them no more
	resets        uint32
	reruns        uint32
	commits       uint32 // of reduce tasks, ever
	saidChanged   bool
	gang          *gang         // nil: its map tasks are none
	attemptsEnded []AttemptView // the last ones that failed or were lost
}

type won struct {
	task, number uint32
	epoch        uint64
}

// lossRow is how often an output was lost while no reduce task was committed.
type lossRow struct{ n, commits uint32 }

func newStage(j *job, kind Stage, n int) *stage {
	st := &stage{
		job: j, kind: kind, tasks: make([]task, n),
		open: newSet(n), retries: newSet(0),
		running: list{which: byStage}, copyable: list{which: bySpec},
	}
	st.nearTimer.fire = func(s *State) { s.nearDue(st) }
	st.spec.fire = func(s *State) { s.look(st) }
	return st
}

func (st *stage) rankOf(i uint32) int {
	if st.rank == nil {
		return int(i)
	}
	return int(st.rank[i])
}

func (st *stage) taskAt(rank int) uint32 {
	if st.order == nil {
		return uint32(rank)
	}
	return st.order[rank]
}

// active says whether tasks of the stage may run.
func (st *stage) active() bool {
	j := st.job
	return !j.ended && (j.stage == st.kind || st.kind == Map && j.stage == Reduce)
}

func (st *stage) pending() int { return st.open.count + st.retries.count + st.nears }

func (t *task) wanted() bool { return !t.have && !t.idle || t.moving }

func (st *stage) label(i uint32) string {
	if len(st.tasks) == 1 && st.kind != Map && st.kind != Reduce {
		return "the " + st.kind.String() + " task"
	}
	return fmt.Sprintf("%s task %d", st.kind, i)
}

// candidate is the stage whose tasks take slots of a kind, or nil.
func (j *job) candidate(kind int) *stage {
	if j.ended {
		return nil
	}
	switch {
	case kind == mapSlot && j.stage == Plan:
		return j.stages[Plan]
	case kind == mapSlot && (j.stage == Map || j.stage == Reduce):
		return j.stages[Map]
	case kind == reduceSlot && j.stage == Reduce:
		if !j.canReduce() {
			return nil
		}
		return j.stages[Reduce]
	case kind == reduceSlot && (j.stage == Commit || j.stage == Abort):
		return j.stages[j.stage]
	}
	return nil
}

// missing is how many map outputs are being made again.
func (j *job) missing() int {
	st := j.stages[Map]
	return len(st.tasks) - st.done
}

// canReduce says whether reduce attempts may begin, once all map tasks have been committed. With many workers there is
// always one that has just died, so a few outputs may be missing: all at once would never be there, and a
// reduce attempt has enough to fetch meanwhile.
func (j *job) canReduce() bool { return j.missing()*20 <= len(j.stages[Map].tasks) }

func (j *job) full() bool {
	return j.MaxSlots > 0 && j.running[mapSlot]+j.running[reduceSlot] >= j.MaxSlots
}

func (j *job) runnable(kind int) bool {
	st := j.candidate(kind)
	if st == nil || st.pending() == 0 {
		return false
	}
	// A map output that is made again may take the place of a reduce attempt that waits for it.
	return !j.full() || kind == mapSlot && j.stage == Reduce && j.running[mapSlot] == 0
}

// jobQueue is a heap of the jobs that have something to run.
type jobQueue struct {
	kind int
	jobs []*job
}

func (q *jobQueue) Len() int { return len(q.jobs) }
func (q *jobQueue) Less(i, k int) bool {
	a, b := q.jobs[i], q.jobs[k]
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	if a.running[q.kind] != b.running[q.kind] {
		return a.running[q.kind] < b.running[q.kind]
	}
	return a.seq < b.seq
}

func (q *jobQueue) Swap(i, k int) {
	q.jobs[i], q.jobs[k] = q.jobs[k], q.jobs[i]
	q.jobs[i].place[q.kind], q.jobs[k].place[q.kind] = i+1, k+1
}

func (q *jobQueue) Push(x any) {
	x.(*job).place[q.kind] = len(q.jobs) + 1
	q.jobs = append(q.jobs, x.(*job))
}

func (q *jobQueue) Pop() any {
	n := len(q.jobs) - 1
	x := q.jobs[n]
	q.jobs[n] = nil
	q.jobs = q.jobs[:n]
	x.place[q.kind] = 0
	return x
}

// touch puts a job where it belongs in the queues, after anything about it has changed.
func (s *State) touch(j *job) {
	for k := range s.queues {
		q := &s.queues[k]
		switch at, in := j.place[k]-1, j.runnable(k); {
		case in && at < 0:
			heap.Push(q, j)
		case in:
			heap.Fix(q, at)
		case at >= 0:
			heap.Remove(q, at)
		}
	}
}

// ---- queueing ----

func (s *State) enqueue(st *stage, i uint32, how uint8) {
	t := &st.tasks[i]
	s.dequeue(st, i)
	t.queue = how
	t.version++
	switch how {
	case queued:
		st.open.add(st.rankOf(i))
	case shy:
		if st.retries.size < len(st.tasks) {
			st.retries = newSet(len(st.tasks)) // most stages never need it
		}
		st.retries.add(st.rankOf(i))
		s.putOff(st, i)
	case near:
		st.nears++
		s.putOff(st, i)
	}
	if st.kind == Map && st.job.paths != nil && how != backoff {
		st.job.paths.set(st, i, true)
	}
	if st.kind == Map && st.job.gang != nil {
		s.gangWaits(st.job)
	}
	s.touch(st.job)
}

func (s *State) dequeue(st *stage, i uint32) {
	t := &st.tasks[i]
	switch t.queue {
	case unqueued:
		return
	case queued:
		st.open.remove(st.rankOf(i))
	case shy:
		st.retries.remove(st.rankOf(i))
	case near:
		st.nears--
	}
	if st.kind == Map && st.job.paths != nil {
		st.job.paths.set(st, i, false)
	}
	t.queue = unqueued
	t.version++
	s.touch(st.job)
}

// putOff lets a task that waits for a certain worker go anywhere after a while.
func (s *State) putOff(st *stage, i uint32) {
	at := s.now + s.cfg.LocalWait
	st.nearQueue = append(st.nearQueue, putOff{at, i, st.tasks[i].version})
	if st.nearTimer.index == 0 {
		s.timers.set(&st.nearTimer, at)
	}
}

func (s *State) nearDue(st *stage) {
	for len(st.nearQueue) > 0 {
		p := st.nearQueue[0]
		t := &st.tasks[p.task]
		current := t.version == p.version && (t.queue == near || t.queue == shy)
		if current && p.at > s.now {
			s.timers.set(&st.nearTimer, p.at)
			return
		}
		st.nearQueue = st.nearQueue[1:]
		if current {
			s.enqueue(st, p.task, queued)
		}
	}
	st.nearQueue = nil
}

// want queues a task that nobody runs and somebody needs.
func (s *State) want(st *stage, i uint32) {
	t := &st.tasks[i]
	if !st.active() || t.run != nil || t.queue != unqueued || !t.wanted() {
		return
	}
	how := uint8(queued)
	if st.kind == Map && st.job.stage == Map && s.cfg.LocalWait > 0 && st.job.paths.anyNear(s, st.job, i) {
		how = near
	}
	s.enqueue(st, i, how)
}

// retry queues a task that failed on a worker.
func (s *State) retry(st *stage, i uint32, w *worker, tries int) {
	t := &st.tasks[i]
	t.avoid = w
	if !st.active() || t.run != nil || !t.wanted() {
		return
	}
	wait := s.cfg.MaxBackoff
	if n := tries - 1; n < 32 && s.cfg.Backoff<<n>>n == s.cfg.Backoff {
		wait = min(wait, s.cfg.Backoff<<n)
	}
	s.enqueue(st, i, backoff)
	version := t.version
	s.timers.set(&timer{fire: func(s *State) {
		if !st.job.ended && t.queue == backoff && t.version == version {
			how := uint8(shy)
			if s.cfg.LocalWait <= 0 {
				how = queued
			}
			s.enqueue(st, i, how)
		}
	}}, s.now+wait)
}

// ---- the way of a job ----

func (s *State) addJob(spec Job) *job {
	if s.jobs[spec.ID] != nil {
		return nil
	}
	if spec.MaxAttempts <= 0 {
		spec.MaxAttempts = s.cfg.MaxAttempts
	}
	s.jobSeq++
	j := &job{Job: spec, seq: s.jobSeq}
	j.noWorker.fire = func(s *State) { s.tooLong(j) }
	s.jobs[j.ID] = j
	s.jobList = append(s.jobList, j)
	return j
}

// enter brings a job to a stage.
func (s *State) enter(j *job, to Stage) {
	j.stage = to
	s.emit(JobStage{Job: j.ID, Stage: to})
	switch to {
	case Reduce:
		j.stages[Reduce] = newStage(j, Reduce, j.parts)
		if g := j.gang; g != nil {
			s.timers.stop(&g.again)
			s.disband(j)
		}
	case Map: // planned has made it
	default:
		j.stages[to] = newStage(j, to, 1)
	}
	st := j.stages[to]
	for i := range st.tasks {
		s.want(st, uint32(i))
	}
	s.touch(j)
	if to == Map && j.gang != nil {
		s.checkCapable(j)
	}
	s.advance(j)
}

// advance goes on to the next stage if this one is done.
func (s *State) advance(j *job) {
	if j.ended {
		return
	}
	st := j.stages[j.stage]
	if j.stage == Map {
		if j.mapped == len(st.tasks) && j.canReduce() {
			s.enter(j, Reduce)
		}
		return
	}
	if st.done < len(st.tasks) {
		return
	}
	switch j.stage {
	case Plan: // planned goes on
	case Reduce:
		s.halt(j, "all that needed it is committed")
		s.release(j)
		s.enter(j, Commit)
	case Commit:
		s.end(j)
	case Abort:
		s.end(j)
	}
}

// shape checks what Plan found and makes the map stage.
func (s *State) shape(j *job, p *Planned) error {
	if p == nil {
		return fmt.Errorf("the plan task gave no plan")
	}
	n := len(p.Splits)
	width := p.Shuffle
	if width <= 0 {
		width = p.Partitions
	}
	switch {
	case p.Partitions < 1 || p.Partitions > math.MaxInt32 || width != 1 && width != p.Partitions:
		return fmt.Errorf("a job can't have %d partitions", p.Partitions)
	case n > s.cfg.MaxTasks:
		return fmt.Errorf("the input makes %d splits, and a job may have at most %d: choose larger splits", n, s.cfg.MaxTasks)
	case p.Partitions > s.cfg.MaxOutputs || n > 0 && width > s.cfg.MaxOutputs/n:
		return fmt.Errorf("%d splits x %d partitions are more than %d: choose larger splits or fewer partitions", n, p.Partitions, s.cfg.MaxOutputs)
	}
	j.prepared = true
	if p.Gang && n < 1 {
		return fmt.Errorf("a gang without members")
	}
	if p.Gang && j.MaxSlots > 0 && n > j.MaxSlots {
		return fmt.Errorf("its %d members run at once, and it may have %d attempts at once: allow for more slots", n, j.MaxSlots)
	}
	j.parts, j.width = p.Partitions, width
	st := newStage(j, Map, n)
	j.stages[Map] = st
	j.digests = make([]uint64, n*width)
	if !slices.IsSortedFunc(p.Splits, func(a, b Split) int { return cmp.Compare(b.Bytes, a.Bytes) }) {
		st.order = make([]uint32, n)
		st.rank = make([]uint32, n)
		for i := range st.order {
			st.order[i] = uint32(i)
		}
		slices.SortFunc(st.order, func(a, b uint32) int {
			return cmp.Or(cmp.Compare(p.Splits[b].Bytes, p.Splits[a].Bytes), cmp.Compare(a, b))
		})
		for r, i := range st.order {
			st.rank[i] = uint32(r)
		}
	}
	if p.Gang {
		j.gang = s.newGang(j)
		s.gangs = append(s.gangs, j)
		return nil // near what a share begins with is no reason to wait
	}
	j.paths = newPaths(p.Splits)
	return nil
}

// halt stops all that runs and waits of a job.
func (s *State) halt(j *job, why string) {
	for _, st := range j.stages {
		if st == nil {
			continue
		}
		for a := st.running.first; a != nil; a = st.running.first {
			s.stop(a, why)
		}
		s.timers.stop(&st.nearTimer)
		s.timers.stop(&st.spec)
		if st.kind == Map && j.gang != nil {
			s.timers.stop(&j.gang.again)
			s.timers.stop(&j.gang.wait)
			j.gang.waits = false
			s.unkeep(j)
		}
		st.nearQueue = nil
		if st.pending() > 0 || st.kind == Map {
			for i := range st.tasks {
				s.dequeue(st, uint32(i))
			}
		}
	}
}

// release says that a job's map outputs are not needed any more.
func (s *State) release(j *job) {
	st := j.stages[Map]
	if st == nil {
		return
	}
	for i := range st.tasks {
		t := &st.tasks[i]
		t.moving = false
		if w := t.home; w != nil {
			t.home = nil
			s.unhold(w)
		}
	}
}

// finishWith ends a job that did not succeed. A job that may have prepared its output aborts first.
func (s *State) finishWith(j *job, why string, cancelled bool) {
	if j.ended || j.stage == Abort {
		return
	}
	j.ending, j.cancelled, j.cause = why, cancelled, s.cause
	if cancelled {
		why = "the job was cancelled"
	} else {
		why = "the job failed"
	}
	s.halt(j, why)
	s.release(j)
	if j.prepared {
		s.timers.stop(&j.noWorker)
		s.checkCapable(j)
		s.enter(j, Abort)
		return
	}
	s.end(j)
}

// because does something that may end a job, whose cause is then known.
func (s *State) because(cause string, do func()) {
	was := s.cause
	s.cause = cause
	do()
	s.cause = was
}

func (s *State) end(j *job) {
	s.halt(j, "the job ended")
	s.release(j)
	j.ended = true
	s.touch(j)
	s.timers.stop(&j.noWorker)
	for _, w := range j.workers {
		if s.workers[w.ID] == w && !w.expected {
			s.emit(Forget{Worker: w.ID, Job: j.ID})
		}
	}
	delete(s.jobs, j.ID)
	s.gone++
	if s.gone > 16 && s.gone > len(s.jobList)/2 {
		s.jobList = slices.DeleteFunc(s.jobList, func(j *job) bool { return j.ended })
		s.gone = 0
	}
	if j.left {
		s.emit(JobCleared{Job: j.ID})
	} else {
		s.emit(JobEnded{Job: j.ID, Error: j.ending, Cause: j.cause, Cancelled: j.cancelled})
	}
	if j.restored {
		s.settled()
	}
}

// tooLong: there was no worker for a job for too long.
func (s *State) tooLong(j *job) {
	if j.ended || s.capable(j) {
		return
	}
	if j.running[mapSlot]+j.running[reduceSlot] > 0 && !j.gangWaits() {
		s.timers.set(&j.noWorker, s.now+s.cfg.NoWorkers) // on workers that are about to leave
		return
	}
	s.because(NoWorkers, func() { s.finishWith(j, s.noWorkerText(j), false) })
	if !j.ended && !s.capable(j) {
		s.leaveBehind(j)
	}
}

// leaveBehind ends a job for those who wait for it, while its stage Abort waits for a worker.
func (s *State) leaveBehind(j *job) {
	s.emit(Note{Job: j.ID, Text: "what is left of its output will be removed when a worker is there: " + s.waitText(j)})
	s.emit(JobEnded{Job: j.ID, Error: j.ending, Cause: j.cause, Cancelled: j.cancelled, Left: true})
	j.left = true
	s.timers.stop(&j.noWorker)
	// It may be for long.
	clear(j.stages[:Abort])
	j.paths, j.digests, j.losses, j.bad, j.doubts, j.idleOutputs, j.attemptsEnded = nil, nil, nil, nil, nil, nil, nil
}

// waitText says why no worker takes a job's attempts.
func (s *State) waitText(j *job) string {
	f := s.fleetOf(j)
	best := f.capacities.tree[1]
	switch {
	case s.live == 0:
		return "there is no worker"
	case f == s.nobody:
		return fmt.Sprintf("no worker runs %s programs", j.Platform)
	case best.score > 0 && j.gangWaits():
		return s.gangText(j)
	case best.score == 0 && j.Platform != "":
		return fmt.Sprintf("no worker that runs %s programs takes anything: those that are there (%d) leave or do not answer", j.Platform, f.members)
	case best.score == 0:
		return fmt.Sprintf("no worker takes anything: those that are there (%d) leave or do not answer", s.live)
	default:
		return fmt.Sprintf("an attempt of the job takes %d bytes of memory, and the largest worker has %d", j.TaskMemory, best.mem)
	}
}

func (s *State) noWorkerText(j *job) string {
	hint := "start a worker"
	switch f := s.fleetOf(j); {
	case f.capacities.tree[1].score > 0 && j.gangWaits():
		hint = "start more or larger workers, or submit it with less memory per task"
	case f.capacities.tree[1].score > 0:
		hint = "start a larger worker, or submit it with less memory per task"
	case s.live > 0 && f == s.nobody:
		hint = "build it for the workers that there are, or start one that runs it"
	}
	return fmt.Sprintf("%s, for %s: %s", s.waitText(j), s.cfg.NoWorkers, hint)
}
