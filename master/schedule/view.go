// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"time"
)

// StageView counts the tasks and attempts of a stage.
type StageView struct {
	Tasks, Done int
	Running     int // attempts
	// Failed and Lost are attempts so far, Copies the speculative ones among all so far.
	Failed, Lost, Copies int
}

// JobView is how a job stands.
type JobView struct {
	Job         Job
	Stage       Stage
	Map, Reduce StageView
	Running     int    // attempts of all stages
	Reruns      int    // map tasks that were run again since their output was lost
	Resets      int    // reduce tasks that were begun anew since a map output changed
	Ending      string // in stage Abort: why the job ends
	Cause       string // the same, as in JobEnded
	Cancelled   bool
	// Waiting says why nothing of the job runs; "" if something does.
	Waiting string
	Gang    *GangView // nil: its map tasks are none
}

// AttemptView is how an attempt stands.
type AttemptView struct {
	Attempt     Attempt
	Worker      string // ID
	State       string // running, failed, lost
	Error       string
	Started     time.Duration // by the clock of Apply
	Elapsed     time.Duration
	Done        float64
	Speculative bool
}

// WorkerView is how a worker stands.
type WorkerView struct {
	Worker  Worker // without Running and Outputs
	Running int
	Memory  int64  // taken by attempts
	Outputs int    // map outputs that it holds
	State   string // live, expected, suspect, draining, left, aside
	Until   time.Duration
}

func (st *stage) view() StageView {
	if st == nil {
		return StageView{}
	}
	return StageView{
		Tasks: len(st.tasks), Done: st.done, Running: st.running.n,
		Failed: int(st.failed), Lost: int(st.lost), Copies: int(st.copies),
	}
}

// Job returns how a job stands; not ok if it has ended or was never there. It costs little.
func (s *State) Job(id string) (v JobView, ok bool) {
	j := s.jobs[id]
	if j == nil {
		return JobView{}, false
	}
	return JobView{
		Job: j.Job, Stage: j.stage, Map: j.stages[Map].view(), Reduce: j.stages[Reduce].view(),
		Running: j.running[mapSlot] + j.running[reduceSlot],
		Reruns:  int(j.reruns), Resets: int(j.resets), Ending: j.ending, Cause: j.cause, Cancelled: j.cancelled,
		Waiting: s.waiting(j), Gang: j.gangView(),
	}, true
}

// Jobs returns the jobs that have not ended, in the order of their arrival.
func (s *State) Jobs() []string {
	ids := make([]string, 0, len(s.jobs))
	for _, j := range s.jobList {
		if !j.ended {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

func (a *attempt) view(now time.Duration) AttemptView {
	v := AttemptView{
		Attempt: a.name(), State: "running", Started: a.started, Elapsed: now - a.started,
		Done: a.done, Speculative: a.spec,
	}
	if a.w != nil {
		v.Worker = a.w.ID
	}
	return v
}

// Attempts returns the attempts of a job that run, and the last ones (at most two thousand) that failed
// or were lost.
func (s *State) Attempts(job string) []AttemptView {
	j := s.jobs[job]
	if j == nil {
		return nil
	}
	var list []AttemptView
	for _, st := range j.stages {
		if st == nil {
			continue
		}
		for a := st.running.first; a != nil; a = st.running.next(a) {
			list = append(list, a.view(s.now))
		}
	}
	return append(list, j.attemptsEnded...)
}

// Workers returns all workers, in no order that means anything but the same for the same history.
func (s *State) Workers() []WorkerView {
	list := make([]WorkerView, 0, len(s.workers))
	for _, w := range s.workerList {
		if s.workers[w.ID] == w {
			list = append(list, w.view())
		}
	}
	return list
}

func (w *worker) view() WorkerView {
	v := WorkerView{Worker: w.Worker, Running: w.attempts.n, Memory: w.usedMem, Outputs: w.nheld, State: "live"}
	switch {
	case w.expected:
		v.State = "expected"
	case w.left:
		v.State = "left"
	case w.draining:
		v.State = "draining"
	case w.suspect:
		v.State = "suspect"
	case w.aside:
		v.State, v.Until = "aside", w.asideUntil
	}
	return v
}

// Output returns the attempt whose map output counts, and the worker that has it: "" if
// it is being made again, or holds nothing that anybody reads. Not ok if
// the task was never committed.
func (s *State) Output(job string, task uint32) (output Attempt, worker string, ok bool) {
	j := s.jobs[job]
	if j == nil || j.stages[Map] == nil || int64(task) >= int64(len(j.stages[Map].tasks)) {
		return Attempt{}, "", false
	}
	t := &j.stages[Map].tasks[task]
	if !t.ran {
		return Attempt{}, "", false
	}
	if t.home != nil {
		worker = t.home.ID
	}
	return j.output(task), worker, true
}

// Won says whether an attempt is the one whose result counts for its task, also if it made a map output that
// was lost since.
func (s *State) Won(n Attempt) bool {
	j := s.jobs[n.Job]
	if j == nil || int(n.Stage) >= len(j.stages) || j.stages[n.Stage] == nil || int64(n.Task) >= int64(len(j.stages[n.Stage].tasks)) {
		return false
	}
	t := &j.stages[n.Stage].tasks[n.Task]
	return (t.have || t.ran) && t.sa == n.StageAttempt && t.winNumber == n.Number && t.winEpoch == n.Epoch
}

// Changes returns the reduce tasks that would begin anew if a map attempt's result were applied
// now: what was committed of them would be void. It is for a journal that notes both at once.
func (s *State) Changes(f Finished) []uint32 {
	a, err := s.find(f.Attempt)
	if err != nil || a.st.kind != Map || a.st.job.stage != Reduce {
		return nil
	}
	j := a.st.job
	if !a.st.tasks[a.task].ran || len(f.Digests) != j.width {
		return nil
	}
	var list []uint32
	for p, d := range f.Digests {
		if d == j.digests[int(a.task)*j.width+p] {
			continue
		}
		if j.width == j.parts {
			list = append(list, uint32(p))
			continue
		}
		for q := range j.parts {
			list = append(list, uint32(q))
		}
	}
	return list
}

func (s *State) waiting(j *job) string {
	if j.gangWaits() && !s.capable(j) {
		return s.waitText(j)
	}
	if st := j.stages[Map]; j.gangWaits() && st.pending() > 0 && !(j.restored && s.settles) && s.capable(j) {
		what := fmt.Sprintf("its %d members run at once, and there is no room for all of them now", len(st.tasks))
		if st.begun() {
			what = fmt.Sprintf("%d of %d members wait for a free slot or enough memory, and the others for them", st.pending(), len(st.tasks))
		}
		if len(j.gang.kept) > 0 {
			what += "; it is kept for them as it becomes free"
		}
		return what
	}
	if j.running[mapSlot]+j.running[reduceSlot] > 0 {
		return ""
	}
	if !s.capable(j) {
		return s.waitText(j)
	}
	if j.restored && s.settles {
		return "the master has just started and waits for its workers"
	}
	for k := range s.queues {
		st, pool := j.candidate(k), s.fleetOf(j).pools[k]
		switch {
		case st == nil:
		case st.pending() == 0 && st.done < len(st.tasks):
			return "what failed is tried again in a moment: " + st.lastError
		case !pool.any():
			return "all slots are taken"
		case st.pending() > 0 && pool.best(j.TaskMemory, nil, nil) == nil:
			return "no worker has enough memory free now"
		}
	}
	return ""
}
