// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"time"

	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// Job is a job as it was submitted, with the constants that it keeps.
type Job struct {
	ID        string    `json:"id"`
	Seq       uint64    `json:"seq"` // order of submission
	Key       string    `json:"key,omitempty"`
	User      string    `json:"user,omitempty"`
	Submitted time.Time `json:"submitted"`
	Secret    []byte    `json:"secret"`
	Seed      [2]uint64 `json:"seed"`
	Epoch     uint64    `json:"epoch"`  // of the master that took it
	Submit    []byte    `json:"submit"` // api.SubmitRequest
}

// Plan is an accepted result of a plan attempt.
type Plan struct {
	Attempt schedule.Attempt `json:"attempt"`
	Worker  string           `json:"worker"`
	Result  task.PlanResult  `json:"result"`
}

// Map is an accepted result of a map attempt.
type Map struct {
	Attempt schedule.Attempt `json:"attempt"`
	Worker  string           `json:"worker"`
	// Moved says that readers may look for the output elsewhere: another attempt's was accepted before.
	Moved  bool           `json:"moved,omitempty"`
	Result task.MapResult `json:"result"`
}

// Reduce is an accepted result of a reduce attempt.
type Reduce struct {
	Attempt schedule.Attempt  `json:"attempt"`
	Worker  string            `json:"worker"`
	Result  task.ReduceResult `json:"result"`
	Kernel  int64             `json:"kernel"` // pairs by path
	User    int64             `json:"user"`
	Pulled  int64             `json:"pulled"`
	Scale   []uint8           `json:"scale,omitempty"` // that it was given
}

// Totals are what the map stage as a whole decides.
type Totals struct {
	// Scale is the largest one of the map results per lane. It never falls.
	Scale []uint8 `json:"scale,omitempty"`
	// Cuts are the borders of a total order, from when the map stage was done for the first time.
	Cuts [][]byte `json:"cuts,omitempty"`
	Cut  bool     `json:"cut,omitempty"` // Cuts are settled
	// Mapped is when the map stage was done for the first time.
	Mapped time.Time `json:"mapped,omitzero"`
}

// Ending is why a job is to end before it is done.
type Ending struct {
	Reason    string `json:"reason"`
	Cause     string `json:"cause,omitempty"`     // schedule.JobEnded.Cause: of what failed
	Cancelled bool   `json:"cancelled,omitempty"` // by somebody; else it failed
	// Aborting: what it left of its output is being removed. Else it was only asked for.
	Aborting bool `json:"aborting,omitempty"`
}

// State is where an iteration goes on from: a blob.
type State struct {
	Rounds uint64 `json:"rounds"` // that it comes after
	Final  bool   `json:"final,omitempty"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Before is the blob of the state before, which may not be removed yet; "": there is none.
	Before string `json:"before,omitempty"`
}

// Attempt is what the history keeps of an attempt.
type Attempt struct {
	Attempt schedule.Attempt `json:"attempt"`
	Worker  string           `json:"worker"`
	State   string           `json:"state"`
	Error   string           `json:"error,omitempty"`
	Elapsed time.Duration    `json:"elapsed"`
}

// History is a job that has ended.
type History struct {
	ID       string    `json:"id"`
	Seq      uint64    `json:"seq"`
	Key      string    `json:"key,omitempty"`
	User     string    `json:"user,omitempty"`
	Ended    time.Time `json:"ended"`
	Status   []byte    `json:"status"` // api.JobStatus
	Attempts []Attempt `json:"attempts,omitempty"`
}

// Leftover is what it takes to remove what a job has left of its output, when the job has ended.
type Leftover struct {
	Job    Job    `json:"job"`
	Ticket []byte `json:"ticket,omitempty"` // of its plan, if it had one
}

// Worker is a worker that was there.
type Worker struct {
	ID    string `json:"id"`
	Hello []byte `json:"hello"` // api.Hello, without what it runs and holds
	// Draining: it was told to leave, perhaps by somebody who is not there to say so again.
	Draining bool `json:"draining,omitempty"`
	// ByName: it was told so by its name when it was not there, so that whoever comes under that name is meant.
	ByName bool `json:"by_name,omitempty"`
}

// Entry is one of the changes below.
type Entry interface{ put(tx) error }

// The changes.
type (
	// JobAdded: a job was submitted.
	JobAdded struct{ Job Job }
	// Planned: a plan was accepted.
	Planned struct {
		Job  string
		Plan Plan
	}
	// Mapped: a map result was accepted, in the place of one that may be there. The parts in
	// Reset begin anew: their results are dropped.
	Mapped struct {
		Job   string
		Map   Map
		Reset []uint32
	}
	// Settled replaces a job's totals.
	Settled struct {
		Job    string
		Totals Totals
	}
	// Reduced: a reduce result was accepted.
	Reduced struct {
		Job    string
		Reduce Reduce
	}
	// Broadcast: a broadcast has ended. Number counts those of the job.
	Broadcast struct {
		Job    string
		Number uint32
		Report []byte // api.Spreaded
	}
	// Kept: an iteration goes on from a state.
	Kept struct {
		Job   string
		State State
	}
	// Committed: the job's output is published.
	Committed struct {
		Job     string
		Attempt schedule.Attempt
		Result  task.CommitResult
	}
	// Ends: a job is to end.
	Ends struct {
		Job    string
		Ending Ending
	}
	// Ended: a job is over. All that was stored of it makes way for its history, and for what it has
	// left, if that is not nil.
	Ended struct {
		History History
		Left    *Leftover
	}
	// Cleared: what a job had left is removed, or is not going to be.
	Cleared struct{ Job string }
	// Forgotten: ended jobs leave the history, and what they have left.
	Forgotten struct{ Jobs []History }
	// WorkerSeen: a worker said hello.
	WorkerSeen struct{ Worker Worker }
	// WorkerGone: it is no more.
	WorkerGone struct{ ID string }
)

// Running is what is stored of a job that has not ended, but for its map results.
type Running struct {
	Job     Job
	Plan    *Plan
	Reduces []Reduce // by task
	Totals  Totals
	Resets  map[uint32]uint32 // how often a part was begun anew, if ever
	Ending  *Ending
	State   *State // nil: there is none
	// Broadcasts are reports of those that have ended, by Number.
	Broadcasts [][]byte
	// Commit is set if the output is published; CommitBy is whose work it was.
	Commit   *task.CommitResult
	CommitBy schedule.Attempt
}

// Content is all of a journal.
type Content struct {
	Running []*Running // by Seq
	History []History  // by Seq
	Left    []Leftover // of jobs in History
	Workers []Worker
}

// commitRecord is how Committed is stored.
type commitRecord struct {
	Attempt schedule.Attempt  `json:"attempt"`
	Result  task.CommitResult `json:"result"`
}

func sealJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return seal(b), nil
}

func openJSON(b []byte, v any) error {
	b, err := open(b)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
