// SPDX-License-Identifier: Apache-2.0

package master

import (
	"fmt"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/schedule"
)

func toAPI(a schedule.Attempt) *api.Attempt {
	return &api.Attempt{
		Job: a.Job, Stage: a.Stage.String(), StageAttempt: a.StageAttempt,
		Task: a.Task, Number: a.Number, Epoch: a.Epoch,
	}
}

// fromAPI reads an attempt; ok is false if it can't be one.
func fromAPI(a *api.Attempt) (at schedule.Attempt, ok bool) {
	if a == nil {
		return at, false
	}
	stage, ok := schedule.ParseStage(a.Stage)
	return schedule.Attempt{
		Job: a.Job, Stage: stage, StageAttempt: a.StageAttempt,
		Task: a.Task, Number: a.Number, Epoch: a.Epoch,
	}, ok
}

// describe names an attempt for people.
func describe(a schedule.Attempt) string {
	return fmt.Sprintf("%s %d of job %s (attempt %d)", a.Stage.String(), a.Task, a.Job, a.Number)
}
