// SPDX-License-Identifier: Apache-2.0

package master

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// TestCauses: what an error is gets from the task to whoever asks for the job, also over a restart while what was left is being
// removed, and over one after the job's end.
func TestCauses(t *testing.T) {
	bad := &task.Cause{Kind: task.KindSideInput, Is: []string{"does not exist"}, SideInput: &task.SideFault{Name: "model", Text: "it is away"}}
	for name, tc := range map[string]struct {
		stage     schedule.Stage
		permanent bool
		cause     *task.Cause
		restart   bool
	}{
		"of the plan":         {schedule.Plan, true, bad, false},
		"of a map task":       {schedule.Map, true, bad, true},
		"after several tries": {schedule.Map, false, bad, false},
		"of a reduce task":    {schedule.Reduce, true, bad, false},
		"nobody knows":        {schedule.Map, true, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Schedule.MaxBackoff = 1 })
			w := newWorld()
			a := newWorker(t, m.addr, w, &model{splits: 2, parts: 1}, "a")
			aborts := newGate()
			a.pause = func(at schedule.Attempt) error {
				switch {
				case at.Stage == tc.stage && at.Task == 0:
					return &failError{task.Error{Message: "it broke", Permanent: tc.permanent, Cause: tc.cause}, false}
				case at.Stage == schedule.Abort && tc.restart:
					aborts.wait(at)
				}
				return nil
			}
			a.start()
			job := m.submit(jobFile())
			if tc.restart {
				<-aborts.reached
				m.restart()
				close(aborts.open)
			}
			for range 2 {
				s := m.wait(job)
				got := &task.Cause{}
				if len(s.GetFailure()) == 0 {
					got = nil
				} else if err := json.Unmarshal(s.GetFailure(), got); err != nil {
					t.Fatal(err)
				}
				if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, "it broke") || !reflect.DeepEqual(got, tc.cause) {
					t.Errorf("%v: %s: %+v, want %+v", s.State, s.Error, got, tc.cause)
				}
				m.restart() // the history has it, too
			}
			w.check(t)
		})
	}
}

// TestCausesOfTheMaster: what ends a job without any attempt's error has a kind, too.
func TestCausesOfTheMaster(t *testing.T) {
	long := &task.Cause{Kind: task.KindRecord, Is: []string{"overflow"}, Row: &task.RecordFault{Text: strings.Repeat("x", maxCause)}}
	if got := causeText(&task.Error{Cause: long}); got != `{"kind":"record","is":["overflow"]}` {
		t.Errorf("of a long record: %q", got[:min(len(got), 100)])
	}
	if got := causeText(&task.Error{}); got != "" {
		t.Errorf("of none: %q", got)
	}
	for _, c := range []struct {
		state api.JobState
		cause string
		want  string
	}{
		{api.JobState_JOB_DONE, "", ""},
		{api.JobState_JOB_FAILED, "", ""},
		{api.JobState_JOB_FAILED, `{"kind":"panic"}`, `{"kind":"panic"}`},
		{api.JobState_JOB_FAILED, schedule.NoWorkers, `{"kind":"workers"}`},
		{api.JobState_JOB_FAILED, schedule.Refused, `{"kind":"refused"}`},
		{api.JobState_JOB_CANCELLED, "", `{"kind":"cancelled"}`},
		{api.JobState_JOB_CANCELLED, `{"kind":"panic"}`, `{"kind":"cancelled"}`},
	} {
		if got := string(failureOf(c.state, c.cause)); got != c.want {
			t.Errorf("%v, %q: %q, want %q", c.state, c.cause, got, c.want)
		}
	}
}
