// SPDX-License-Identifier: Apache-2.0

package master

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
)

// A job that ends for want of workers ends at once for those who wait for it. What it left of its output can only be
// removed by a worker, so as much of the job as that takes is kept until there is one, or the history
// forgets the job.

// job finds a job of which attempts may run.
func (m *Master) job(id string) *job {
	if j := m.jobs[id]; j != nil {
		return j
	}
	return m.left[id]
}

// allJobs are the jobs of which attempts may run.
func (m *Master) allJobs() iter.Seq[*job] {
	return func(yield func(*job) bool) {
		for _, jobs := range []map[string]*job{m.jobs, m.left} {
			for _, j := range jobs {
				if !yield(j) {
					return
				}
			}
		}
	}
}

// leftover is what is kept of a job.
func (j *job) leftover() *journal.Leftover {
	l := &journal.Leftover{Job: j.rec}
	if j.plan != nil {
		l.Ticket = j.plan.Result.Ticket
	}
	return l
}

// leftJob makes a job of what was kept of one.
func leftJob(l *journal.Leftover) (*job, error) {
	submit := &api.SubmitRequest{}
	if err := proto.Unmarshal(l.Job.Submit, submit); err != nil {
		return nil, fmt.Errorf("%w: what is left of job %s: its submission: %w", journal.ErrDamaged, l.Job.ID, err)
	}
	j := newJob(l.Job, submit)
	j.left = true
	if len(l.Ticket) > 0 {
		j.plan = &journal.Plan{Result: task.PlanResult{Ticket: l.Ticket}}
		j.ledger = newLedger(0, 0, nil)
	}
	return j, nil
}

// keepLeft keeps what it takes to remove what an ended job left.
func (m *Master) keepLeft(j *job, l *journal.Leftover) {
	kept, err := leftJob(l)
	if err != nil {
		kept = j
	}
	kept.running, kept.spreads, kept.restored = j.running, j.spreads, j.restored
	m.left[j.rec.ID] = kept
}

// cleared notes that what a job left is removed, or that nobody will.
func (m *Master) cleared(id string) {
	if j := m.jobs[id]; j != nil {
		j.left = false // its end is not written yet
		m.forgetAll(j)
	}
	if m.left[id] == nil {
		return
	}
	m.forgetAll(m.left[id])
	delete(m.left, id)
	m.log.Info("nothing is kept of an ended job any more", "job", id)
	if err := m.write(journal.Cleared{Job: id}); err != nil {
		// After a restart it is done once more, which does no harm.
		m.log.Warn("that what a job left is removed is not in the journal", "job", id, "error", err)
	}
}
