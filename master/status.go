// SPDX-License-Identifier: Apache-2.0

package master

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// status is how a job stands.
func (m *Master) status(j *job) *api.JobStatus {
	s := &api.JobStatus{
		Job: j.rec.ID, Name: j.name(), State: j.state, User: j.rec.User, Priority: j.submit.Priority,
		SubmittedUnixMs: j.rec.Submitted.UnixMilli(), ElapsedMs: max(time.Since(j.rec.Submitted).Milliseconds(), 0),
		Map: &api.StageStatus{}, Reduce: &api.StageStatus{}, Notes: j.allNotes(), Why: j.why(), Resets: uint32(j.resets),
		Broadcasts: slices.Clone(j.broadcasts),
	}
	for _, st := range []struct {
		to   *api.StageStatus
		kind schedule.Stage
	}{{s.Map, schedule.Map}, {s.Reduce, schedule.Reduce}} {
		c := j.counts[st.kind]
		st.to.FailedAttempts, st.to.LostAttempts, st.to.Speculative = uint32(c.failed), uint32(c.lost), uint32(c.speculative)
	}
	if j.plan == nil {
		s.Waiting = m.waits(j)
		return s
	}
	l := j.ledger
	s.Map.Tasks, s.Map.Done = uint32(l.maps), uint32(l.done)
	s.Reduce.Tasks, s.Reduce.Done = uint32(len(j.reduces)), uint32(j.reduced)
	s.TotalBytes = j.plan.Result.Bytes
	if !j.plan.Result.Exact {
		s.TotalBytes = 0
	}
	t := &l.totals
	s.Bytes, s.Records, s.PairsEmitted, s.PairsCombined = t.bytes, t.records, t.emitted, t.combined
	s.Counters = maps.Clone(l.counts)
	s.Reruns = uint32(j.reruns)
	for _, r := range j.reduces {
		if r == nil {
			continue
		}
		s.PairsKernel += r.Kernel
		s.PairsUser += r.User
		s.PairsPulled += r.Pulled
		s.Rows += r.Result.Rows
		s.Keys += r.Result.Keys
	}
	// Of the attempts at one task the furthest counts, and none if the task is done.
	furthest := map[taskOf]*api.AttemptProgress{}
	for a, r := range j.running {
		switch a.Stage {
		case schedule.Map:
			s.Map.Running++
		case schedule.Reduce:
			s.Reduce.Running++
		}
		k := taskOf{a.Stage, a.Task}
		if p := r.progress; p != nil && !j.taskDone(k) && (furthest[k] == nil || furthest[k].Bytes+furthest[k].Rows < p.Bytes+p.Rows) {
			furthest[k] = p
		}
	}
	for k, p := range furthest {
		switch k.stage {
		case schedule.Map:
			s.Bytes += max(p.Bytes, 0)
			s.Records += max(p.Records, 0)
		case schedule.Reduce:
			s.Rows += max(p.Rows, 0)
			s.PairsKernel += max(p.KernelPairs, 0)
			s.PairsUser += max(p.UserPairs, 0)
		}
	}
	s.Iteration = m.iterationStatus(j)
	s.Waiting = m.waits(j)
	return s
}

type taskOf struct {
	stage schedule.Stage
	task  uint32
}

func (j *job) taskDone(k taskOf) bool {
	switch k.stage {
	case schedule.Map:
		return int64(k.task) < int64(j.ledger.maps) && j.ledger.outputs[k.task].done
	case schedule.Reduce:
		return int64(k.task) < int64(len(j.reduces)) && j.reduces[k.task] != nil
	}
	return false
}

// waits says why nothing happens, if nothing does.
func (m *Master) waits(j *job) string {
	if m.full != nil {
		return m.full.Error()
	}
	v, _ := m.state.Job(j.rec.ID)
	if v.Waiting == "" && j.ending != nil && j.ending.Aborting {
		return "what it has left of its output is being removed, and then it ends: " + j.ending.Reason
	}
	return v.Waiting
}

// pastStatus is the status of a job that has ended.
func pastStatus(h *journal.History) (*api.JobStatus, error) {
	s := &api.JobStatus{}
	if err := proto.Unmarshal(h.Status, s); err != nil {
		return nil, fmt.Errorf("the journal's status of job %s: %w", h.ID, err)
	}
	return s, nil
}

// over says whether a state is a last one.
func over(s api.JobState) bool {
	return s == api.JobState_JOB_DONE || s == api.JobState_JOB_FAILED || s == api.JobState_JOB_CANCELLED
}

// workerStatus is how a worker stands.
func (m *Master) workerStatus(w *worker, running uint32) *api.WorkerStatus {
	h := w.hello
	s := &api.WorkerStatus{
		Worker: w.id, Name: h.Name, Address: h.Address, Slots: h.Slots, Memory: h.Memory,
		Shuffle: h.Shuffle, State: "live", Version: h.Version, Local: h.Local,
		Running: running,
	}
	switch {
	case m.workers[w.id] != w:
		s.State = "gone"
	case w.draining:
		s.State = "draining"
	case w.suspected || w.session == nil:
		s.State = "suspect"
	case w.aside > m.clock.now():
		s.State = "aside"
	}
	return s
}
