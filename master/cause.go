// SPDX-License-Identifier: Apache-2.0

package master

import (
	"encoding/json"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// maxCause bounds what a job's end keeps of a cause: an error may hold a whole record.
const maxCause = 64 << 10

// causeText is what the scheduler is given of an error's cause, and gives back when that error has ended a job:
// task.Cause as JSON, "" if there is none, or only its kind if it is too long.
func causeText(e *task.Error) string {
	if e.Cause == nil {
		return ""
	}
	b, err := json.Marshal(e.Cause)
	if err != nil || len(b) > maxCause {
		b, err = json.Marshal(&task.Cause{Kind: e.Cause.Kind, Is: e.Cause.Is})
	}
	if err != nil || len(b) > maxCause {
		return ""
	}
	return string(b)
}

// failureOf is what submitters are told beside the text of why a job has ended: task.Cause as JSON.
func failureOf(state api.JobState, cause string) []byte {
	kind := task.FaultKind("")
	switch {
	case state == api.JobState_JOB_CANCELLED:
		kind = task.KindCancelled
	case state != api.JobState_JOB_FAILED:
		return nil
	case cause == schedule.NoWorkers:
		kind = task.KindWorkers
	case cause == schedule.Refused:
		kind = task.KindRefused
	default:
		return []byte(cause)
	}
	b, _ := json.Marshal(&task.Cause{Kind: kind}) // of one text
	return b
}
