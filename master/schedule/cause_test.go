// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"
	"time"
)

// TestCauses: the end of a job has the cause of the failure that ended it, and of no other.
func TestCauses(t *testing.T) {
	at := Attempt{Job: "j", Stage: Plan, Epoch: 1}
	for name, c := range map[string]struct {
		events []Event
		wait   time.Duration
		want   JobEnded
	}{
		"permanent": {
			[]Event{Failed{Attempt: at, Worker: "w", Error: "bad", Cause: "c", Permanent: true}},
			0,
			JobEnded{Job: "j", Error: "the plan task: bad", Cause: "c"},
		},
		"cancelled": {
			[]Event{JobCancelled{ID: "j", Reason: "enough"}},
			0,
			JobEnded{Job: "j", Error: "enough", Cancelled: true},
		},
		"cancelled after a failure": {
			[]Event{Failed{Attempt: at, Worker: "w", Error: "bad", Cause: "c"}, JobCancelled{ID: "j", Reason: "enough"}},
			0,
			JobEnded{Job: "j", Error: "enough", Cancelled: true},
		},
		"nobody there": {
			[]Event{WorkerDown{ID: "w"}}, 2 * time.Minute, JobEnded{Job: "j", Error: "there is no worker, for 1m0s: start a worker", Cause: NoWorkers},
		},
		"too much": {
			[]Event{Finished{Attempt: at, Worker: "w", Planned: &Planned{Splits: make([]Split, 9), Partitions: 1}}},
			0,
			JobEnded{Job: "j", Error: "the input makes 9 splits, and a job may have at most 8: choose larger splits", Cause: Refused},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{Epoch: 1, MaxTasks: 8, NoWorkers: time.Minute})
			var ends []JobEnded
			var apply func(now time.Duration, events ...Event)
			apply = func(now time.Duration, events ...Event) {
				var more []Event
				for _, a := range s.Apply(now, events...) {
					switch a := a.(type) {
					case JobEnded:
						a.Left = false
						ends = append(ends, a)
					case Launch:
						if a.Attempt.Stage == Abort {
							more = append(more, Finished{Attempt: a.Attempt, Worker: a.Worker})
						}
					}
				}
				if len(more) > 0 {
					apply(now, more...)
				}
			}
			apply(0, WorkerUp{Worker{ID: "w", Name: "w", Slots: 1}}, JobAdded{Job{ID: "j"}})
			apply(time.Second, c.events...)
			apply(time.Second+c.wait, Tick{})
			if len(ends) != 1 || ends[0] != c.want {
				t.Errorf("ends %+v, want %+v", ends, c.want)
			}
		})
	}
}
