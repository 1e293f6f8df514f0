// SPDX-License-Identifier: Apache-2.0

package master

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// restore takes over what the journal has.
func (m *Master) restore() error {
	content, err := m.journal.Load()
	if err != nil {
		return err
	}
	cfg := m.opts.Schedule
	cfg.Epoch = m.journal.Epoch()
	m.state = schedule.New(cfg)
	for i := range content.History {
		h := &content.History[i]
		m.seq = max(m.seq, h.Seq)
		m.history = append(m.history, h)
		m.byID[h.ID] = h
		if h.Key != "" {
			m.keys[submitKey(h.User, h.Key)] = h.ID
		}
	}
	for _, w := range content.Workers {
		h := &api.Hello{}
		if err := proto.Unmarshal(w.Hello, h); err != nil {
			return fmt.Errorf("%w: worker %s: %w", journal.ErrDamaged, w.ID, err)
		}
		m.expect(w.ID, h)
		m.workers[w.ID].draining, m.workers[w.ID].byName = w.Draining, w.ByName
	}
	var jobs []schedule.RestoredJob
	for i := range content.Left {
		j, err := leftJob(&content.Left[i])
		if err != nil {
			return err
		}
		j.restored = true
		m.left[j.rec.ID] = j
		jobs = append(jobs, schedule.RestoredJob{Job: j.spec(), Left: true})
	}
	var published []*job
	var asked []schedule.Event
	for _, r := range content.Running {
		j, commits, err := m.restoreJob(r)
		if err != nil {
			return fmt.Errorf("job %s: %w", r.Job.ID, err)
		}
		m.seq = max(m.seq, r.Job.Seq)
		m.jobs[j.rec.ID] = j
		if j.rec.Key != "" {
			m.keys[submitKey(j.rec.User, j.rec.Key)] = j.rec.ID
		}
		if j.commit != nil {
			published = append(published, j)
			continue
		}
		restored := schedule.RestoredJob{Job: j.spec(), Commits: commits, StageAttempts: r.Resets}
		if j.plan != nil {
			restored.Planned = j.planned()
			restored.GangDone = j.kept != nil && j.kept.Final
		}
		if e := j.ending; e != nil {
			if e.Aborting {
				restored.Aborting, restored.Ending, restored.Cause, restored.Cancelled = true, e.Reason, e.Cause, e.Cancelled
			} else {
				asked = append(asked, schedule.JobCancelled{ID: j.rec.ID, Reason: e.Reason})
			}
		}
		jobs = append(jobs, restored)
	}
	for id := range m.workers {
		m.apply(schedule.WorkerExpected{ID: id})
	}
	m.applying = true
	for _, a := range m.state.Restore(m.clock.now(), jobs) {
		m.act(a)
	}
	m.applying = false
	m.apply(asked...)
	for _, j := range published {
		m.ended(j, schedule.JobEnded{Job: j.rec.ID})
	}
	m.prune()
	return nil
}

// expect notes a worker of the time before this start. It has a whole lease to come back.
func (m *Master) expect(id string, h *api.Hello) {
	if m.workers[id] == nil {
		m.workers[id] = &worker{id: id, hello: h}
	}
}

// restoreJob makes a job of what the journal has of it, and lists the results that were taken.
func (m *Master) restoreJob(r *journal.Running) (*job, []schedule.Finished, error) {
	submit := &api.SubmitRequest{}
	if err := proto.Unmarshal(r.Job.Submit, submit); err != nil {
		return nil, nil, fmt.Errorf("%w: its submission: %w", journal.ErrDamaged, err)
	}
	j := newJob(r.Job, submit)
	j.ending, j.commit, j.commitBy, j.restored = r.Ending, r.Commit, r.CommitBy, true
	if j.kept = r.State; r.State != nil && r.State.Before != "" {
		j.keptBefore = &journal.State{Digest: r.State.Before}
	}
	for _, b := range r.Broadcasts {
		s := &api.Spreaded{}
		if err := proto.Unmarshal(b, s); err != nil {
			return nil, nil, fmt.Errorf("%w: a broadcast: %w", journal.ErrDamaged, err)
		}
		j.broadcasts = append(j.broadcasts, s)
	}
	for _, n := range r.Resets {
		j.resets += int(n)
	}
	if r.Plan == nil {
		return j, nil, nil
	}
	splits, err := task.ParsePlan(r.Plan.Result.Plan)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	m.setPlan(j, r.Plan, splits)
	j.totals = r.Totals
	// The scale never falls, not even if the map task that had it was run again and has it no more.
	j.ledger.raise(r.Totals.Scale)
	var commits []schedule.Finished
	err = m.journal.Maps(r.Job.ID, func(c *journal.Map) error {
		n := c.Attempt.Task
		if int64(n) >= int64(j.ledger.maps) || j.ledger.outputs[n].done {
			return fmt.Errorf("map %d of %d", n, j.ledger.maps)
		}
		if err := j.ledger.check(&c.Result); err != nil {
			return fmt.Errorf("map %d: %w", n, err)
		}
		j.ledger.add(c)
		if c.Result.Iteration != nil {
			j.iteration = c.Result.Iteration
		}
		if c.Moved {
			j.reruns++
		}
		if r.Plan.Result.TotalOrder && !j.totals.Cut && len(c.Result.Sample) > 0 {
			j.sample(c.Result.Sample)
		}
		m.expect(c.Worker, &api.Hello{Worker: c.Worker, Name: c.Worker})
		commits = append(commits, schedule.Finished{Attempt: c.Attempt, Worker: c.Worker, Digests: digests(&c.Result)})
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range r.Reduces {
		c := &r.Reduces[i]
		n := c.Attempt.Task
		if int64(n) >= int64(len(j.reduces)) || j.reduces[n] != nil {
			return nil, nil, fmt.Errorf("%w: reduce %d of %d", journal.ErrDamaged, n, len(j.reduces))
		}
		if c.Attempt.StageAttempt < r.Resets[n] {
			continue // it was written together with the map result that voids it
		}
		j.reduces[n] = c
		j.reduced++
		commits = append(commits, schedule.Finished{Attempt: c.Attempt, Worker: c.Worker})
	}
	return j, commits, nil
}
