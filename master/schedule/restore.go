// SPDX-License-Identifier: Apache-2.0

package schedule

import "time"

// RestoredJob is a job as a journal knows it.
type RestoredJob struct {
	Job     Job
	Planned *Planned // nil: it has not planned
	// Commits are the accepted results of map and reduce tasks in the order of the
	// journal. Of several of a task the last one counts. Only Attempt, Worker and Digests are looked at.
	Commits []Finished
	// StageAttempts are those of reduce tasks that were begun anew: how often there was a Reset, or
	// State.Changes named them when a map result was written. Reduce results of a lower stage attempt are
	// void, and attempts of one can't come back.
	StageAttempts map[uint32]uint32
	// Aborting: it was ending, for the reason Ending, or Cancelled.
	Aborting  bool
	Ending    string
	Cause     string // see JobEnded
	Cancelled bool
	// Left: JobEnded was said with Left. It needs no Planned.
	Left bool
	// GangDone: see the event.
	GangDone bool
}

// Restore takes over what was going on before a restart, on a new State whose Config.Epoch is higher
// than any before. Workers that hold map outputs are expected from then on, and
// others may have been announced by WorkerExpected before: for each that does not come back in time
// WorkerDown is due. Until they have, or Config.Settle has passed, nothing of the jobs is launched, so
// that what still runs can be adopted.
func (s *State) Restore(now time.Duration, jobs []RestoredJob) []Action {
	s.now = max(s.now, now)
	for i := range jobs {
		s.restore(&jobs[i])
	}
	if s.expected > 0 && s.cfg.Settle > 0 {
		s.settles = true
		s.timers.set(&s.settle, s.now+s.cfg.Settle)
	}
	return s.Apply(now)
}

func (s *State) restore(r *RestoredJob) {
	j := s.addJob(r.Job)
	if j == nil {
		return
	}
	j.restored, j.left = true, r.Left
	s.checkCapable(j)
	j.prepared = true // by an attempt of the time before, perhaps
	var err error
	if r.Planned != nil {
		err = s.shape(j, r.Planned)
	} else if !r.Aborting && !r.Left {
		s.enter(j, Plan)
		return
	}
	if r.Aborting || r.Left || err != nil {
		j.ending, j.cause, j.cancelled = r.Ending, r.Cause, r.Cancelled
		if err != nil && j.ending == "" {
			j.ending, j.cause = err.Error(), Refused
		}
		s.enter(j, Abort)
		return
	}
	if j.gang != nil {
		j.gang.done = r.GangDone
	}
	maps := j.stages[Map]
	reduces := newStage(j, Reduce, j.parts)
	for p, sa := range r.StageAttempts {
		if int64(p) < int64(len(reduces.tasks)) {
			reduces.tasks[p].sa = sa
		}
	}
	for i := range r.Commits {
		c := &r.Commits[i]
		n := c.Attempt
		switch {
		case n.Stage == Map && int64(n.Task) < int64(len(maps.tasks)) && len(c.Digests) == j.width:
			s.restoreMap(j, n, c)
		case n.Stage == Reduce && int64(n.Task) < int64(len(reduces.tasks)):
			t := &reduces.tasks[n.Task]
			if n.StageAttempt < t.sa {
				continue
			}
			if !t.have {
				reduces.done++
			}
			t.have, t.sa = true, n.StageAttempt
			t.winNumber, t.winEpoch = n.Number, n.Epoch
		}
	}
	switch {
	case j.mapped < len(maps.tasks):
		j.stage = Map
	case reduces.done < len(reduces.tasks):
		j.stages[Reduce] = reduces
		j.stage = Reduce
	default:
		j.stages[Reduce] = reduces
		s.release(j)
		s.enter(j, Commit)
		j.published = true // perhaps
		return
	}
	s.emit(JobStage{Job: j.ID, Stage: j.stage})
	for _, st := range j.stages {
		if st == nil {
			continue
		}
		for i := range st.tasks {
			s.want(st, uint32(i))
		}
	}
	s.touch(j)
}

func (s *State) restoreMap(j *job, n Attempt, c *Finished) {
	st, t := j.stages[Map], &j.stages[Map].tasks[n.Task]
	copy(j.digests[int(n.Task)*j.width:], c.Digests)
	if !t.have {
		st.done++
	}
	if !t.ran {
		j.mapped++
	}
	t.have, t.ran = true, true
	t.winNumber, t.winEpoch = n.Number, n.Epoch
	if old := t.home; old != nil {
		t.home = nil
		s.unhold(old)
	}
	w := s.workers[c.Worker]
	if w == nil {
		w = s.addWorker(Worker{ID: c.Worker, Name: c.Worker})
	}
	s.hold(w, st, n.Task)
}
