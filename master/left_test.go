// SPDX-License-Identifier: Apache-2.0

package master

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/schedule"
)

// leftJobs lists the jobs of which something is left.
func (m *testMaster) leftJobs() (list []string) {
	m.t.Helper()
	if err := m.do(m.context(), func() {
		for id := range m.left {
			list = append(list, id)
		}
	}); err != nil {
		m.t.Fatal(err)
	}
	return list
}

// abandoned starts a master and has a job end since its only worker dies at a stage.
func abandoned(t *testing.T, stage schedule.Stage, d *model) (m *testMaster, w *world, job string) {
	m = startMaster(t, func(o *Options) { o.Schedule.NoWorkers = 200 * time.Millisecond })
	w = newWorld()
	a := newWorker(t, m.addr, w, d, "a")
	g := newGate()
	a.pause = func(at schedule.Attempt) error {
		if at.Stage == stage {
			g.wait(at)
		}
		return nil
	}
	a.start()
	until(t, "a worker", func() bool { return m.about().Workers == 1 })
	job = m.submit(jobFile())
	<-g.reached
	a.die()
	close(g.open)
	s := m.wait(job)
	if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, "there is no worker, for 200ms") {
		t.Errorf("%v: %s", s.State, s.Error)
	}
	if !slices.ContainsFunc(s.Notes, func(n string) bool {
		return strings.Contains(n, "will be removed when a worker is there")
	}) {
		t.Errorf("notes %q", s.Notes)
	}
	if left := m.leftJobs(); !slices.Equal(left, []string{job}) {
		t.Errorf("left of %q, want %q", left, job)
	}
	return m, w, job
}

// When all workers are gone a job ends, and what it left is removed by the first one that comes, also if
// the master was started anew since.
func TestLeftBehind(t *testing.T) {
	for _, stage := range []schedule.Stage{schedule.Plan, schedule.Map} {
		for _, restart := range []bool{false, true} {
			t.Run(stage.String(), func(t *testing.T) {
				t.Parallel()
				d := &model{splits: 3, parts: 1}
				m, w, job := abandoned(t, stage, d)
				list, err := m.client.Jobs(m.context(), &api.JobsRequest{RunningOnly: true})
				if err != nil || len(list.Jobs) != 0 {
					t.Errorf("running: %v, %v", list, err)
				}
				if restart {
					m.restart()
				}
				b := startWorker(t, m.addr, w, d, "b")
				until(t, "it is removed", func() bool { return len(m.leftJobs()) == 0 })
				m.wantDone(m.submit(jobFile()), d)
				m.restart()
				if left := m.leftJobs(); len(left) != 0 {
					t.Errorf("left of %q", left)
				}
				if s := m.wait(job); s.State != api.JobState_JOB_FAILED {
					t.Errorf("%v: %s", s.State, s.Error)
				}
				b.stop()
				want := ""
				if stage == schedule.Map {
					want = "ticket"
				}
				if w.aborted[job] != 1 || w.tickets[job] != want {
					t.Errorf("aborted %d times, with the ticket %q, want %q", w.aborted[job], w.tickets[job], want)
				}
				w.check(t)
			})
		}
	}
}

// What is left is remembered for as long as the job.
func TestLeftForgotten(t *testing.T) {
	t.Parallel()
	d := &model{splits: 3, parts: 1}
	m, w, job := abandoned(t, schedule.Map, d)
	age := m.opts.Limits.HistoryAge
	m.opts.Limits.HistoryAge = time.Nanosecond
	m.restart()
	if left := m.leftJobs(); len(left) != 0 {
		t.Errorf("left of %q", left)
	}
	m.opts.Limits.HistoryAge = age // else the next job may be forgotten before anybody has seen its end
	m.restart()
	b := startWorker(t, m.addr, w, d, "b")
	m.wantDone(m.submit(jobFile()), d)
	b.stop()
	if w.aborted[job] != 0 {
		t.Errorf("job %s is forgotten, and its output was removed", job)
	}
}
