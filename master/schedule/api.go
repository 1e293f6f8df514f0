// SPDX-License-Identifier: Apache-2.0

package schedule

import "time"

// Stage is a step of a job. The stages follow each other: a stage begins when the one
// before has committed all of its tasks.
type Stage uint8

// The stages. Plan and Commit have one task each. Abort follows in the place of
// Commit when a job ends in any other way, unless no plan attempt can have prepared its output.
const (
	Plan Stage = iota
	Map
	Reduce
	Commit
	Abort
)

// Attempt names a try at a task. It is comparable.
type Attempt struct {
	Job   string
	Stage Stage
	// StageAttempt counts how often the task's stage was begun anew; of a reduce
	// task, how often its partition was (a map output changed).
	StageAttempt uint32
	Task         uint32
	// Number counts the tries at this task that this epoch's master ordered. It goes on
	// when the task begins anew, so (Epoch, Number) is unique for a task.
	Number uint32
	Epoch  uint64 // of the master
}

// Worker is what the scheduler knows of a worker.
type Worker struct {
	ID     string
	Name   string // the same name in another process is another worker
	Slots  int    // map attempts at once, and as many reduce attempts
	Memory int64  // bytes for all attempts; 0: no limit
	Local  []string
	// Platform is what programs it runs, as GOOS/GOARCH; "": only those of jobs that
	// run anywhere.
	Platform string
	// Running are attempts that it has, also those that are over but whose result
	// nobody has taken or refused yet, and Outputs the map outputs. Both are all that it has: what
	// is not in them and was believed to be there is lost.
	Running []Attempt
	Outputs []Attempt
}

// Job is what the scheduler knows of a job.
type Job struct {
	ID          string
	Priority    int
	MaxSlots    int   // attempts at once; 0: no limit
	TaskMemory  int64 // bytes an attempt takes of a worker's; 0: its share of a slot
	MaxAttempts int   // per task; 0: Config.MaxAttempts
	// Platform is that of the workers that can run it, as GOOS/GOARCH; "": all can.
	Platform string
}

// Event is one of the structs below.
type Event interface{ event() }

// The events.
type (
	// WorkerExpected: a worker of the time before this master's start, which may
	// come back (see State.Restore). It is given nothing, and what it is known to
	// hold counts until WorkerUp says otherwise, or WorkerDown.
	WorkerExpected struct{ ID string }
	// WorkerUp: a worker said hello, for the first time or again. Attempts of Running
	// that may still win are Adopted, others are answered with Stop; outputs that are still of
	// use are taken into account again.
	WorkerUp struct{ Worker Worker }
	// WorkerDown: its lease ran out, or it left.
	WorkerDown struct{ ID string }
	// WorkerSuspect: the gossip says that it may be gone, or is back. Nothing is given
	// to a suspect, and nothing is taken from it.
	WorkerSuspect struct {
		ID      string
		Suspect bool
	}
	// WorkerDrain: it gets no more attempts. Its running ones are finished; map outputs
	// that are still needed are made again elsewhere before it is told Left.
	WorkerDrain struct{ ID string }

	// JobAdded: a job was submitted.
	JobAdded struct{ Job Job }
	// JobCancelled: somebody wants it to end.
	JobCancelled struct{ ID, Reason string }
	// JobForgotten: what an ended job has left is not to be removed any more (see JobEnded.Left).
	JobForgotten struct{ ID string }

	// Finished: an attempt's result was accepted (see State.Offer).
	Finished struct {
		Attempt Attempt
		Worker  string
		Planned *Planned // of Plan
		// Digests are, of a map attempt, those of its output by partition.
		// 0: nothing for that partition.
		Digests []uint64
	}
	// Failed: an attempt ended without a result.
	Failed struct {
		Attempt Attempt
		Worker  string
		Error   string
		// Cause is what the error is beside its text, in words of the caller's: JobEnded has it if this ends the job.
		Cause string
		// Permanent: another attempt would fail in the same way.
		Permanent bool
		// Infrastructure: it is no fault of the task's: it counts as a lost
		// attempt, and against the worker.
		Infrastructure bool
	}
	// OutputLost: a reduce attempt could not get a map output from where it is said to be.
	OutputLost struct {
		Reader Attempt // the reduce attempt
		Output Attempt // the map attempt whose output it is
		Worker string
		Error  string
		// Certain: the worker says that it has it not, or it is damaged. Otherwise it
		// could not be reached, and the first such report is not believed. A reader that reaches neither of two
		// workers that are there counts as lost itself.
		Certain bool
	}
	// Progressed: an attempt is at work.
	Progressed struct {
		Attempt Attempt
		Done    float64 // share done, 0 to 1
	}
	// GangReady: a member of a gang waits for a group. Generation is that of the group that it was in last (0: in none), which is
	// broken, for the reason Broken. Rounds is how far its state is, -1: it has none.
	GangReady struct {
		Attempt    Attempt
		Worker     string
		Generation uint64
		Rounds     int64
		Broken     string
	}
	// GangJoined: a member is in a group, as its worker says when it says hello.
	GangJoined struct {
		Attempt    Attempt
		Worker     string
		Generation uint64
	}
	// GangFormed: a group that was ordered is there, or could not be formed: Error.
	GangFormed struct {
		Job        string
		Generation uint64
		Error      string
	}
	// GangDone: the last state of a gang's job is kept. Its attempts need no group any more.
	GangDone struct{ Job string }
	// Tick: time has passed.
	Tick struct{}
)

// Planned is the shape of a job.
type Planned struct {
	Splits     []Split
	Partitions int // reduce tasks
	// Shuffle is how many digests a map output has: 1 with a total order, whose parts are cut
	// from one sequence (a digest that changes then concerns all parts), else 0 for Partitions.
	Shuffle int
	// Gang: all map tasks are to run at once. There is at least one.
	Gang bool
}

// Split is what matters of a split for where it runs.
type Split struct {
	Path  string // of its first file
	Bytes int64
}

// Action is one of the structs below.
type Action interface{ action() }

// The actions.
type (
	// Launch an attempt. A reduce attempt may be launched while a few map outputs (at most one
	// in twenty) are being made again: State.Output has no worker for these, and a Relocate follows.
	Launch struct {
		Worker      string
		Attempt     Attempt
		Speculative bool
		Memory      int64 // bytes of the worker's that it may take; 0: no limit
	}
	// Adopted: an attempt that a worker reported to have is one of this master's from now on.
	Adopted struct {
		Worker  string
		Attempt Attempt
	}
	// Stop an attempt that runs, or may.
	Stop struct {
		Worker  string
		Attempt Attempt
		Reason  string
	}
	// Relocate tells a running reduce attempt where a map output is to be had now.
	Relocate struct {
		Worker string
		Reader Attempt
		Output Attempt
		At     string // worker
	}
	// Reset: a reduce task begins anew, since a map output that it reads has changed. If it
	// was committed, that is void. Its attempts are of StageAttempt from now on.
	Reset struct {
		Job                string
		Task, StageAttempt uint32
	}
	// Forget: a worker may drop all that it has of a job.
	Forget struct{ Worker, Job string }
	// Left: a draining worker holds nothing more that is needed.
	Left struct{ Worker string }
	// JobStage: a job has come to a stage.
	JobStage struct {
		Job   string
		Stage Stage
	}
	// JobEnded: all is over. Error is "" if it is done.
	JobEnded struct {
		Job       string
		Error     string
		Cause     string // that of the failure that ended it, or NoWorkers or Refused; "": nobody knows
		Cancelled bool
		// Left: but for stage Abort, which waits for a worker that can do it. JobCleared follows.
		Left bool
	}
	// JobCleared: a job that ended with something left has come to the end of stage Abort.
	JobCleared struct{ Job string }
	// GangForm: all members of a gang are ready, and a group is to be formed. GangFormed is to follow.
	GangForm struct {
		Job        string
		Generation uint64
		Members    []GangMember // by task
	}
	// GangBreak: the group of that generation, and any before, is none any more. These workers have members in it.
	GangBreak struct {
		Job        string
		Generation uint64
		Workers    []string
		Reason     string
	}
	// Note is something a job's user should know.
	Note struct{ Job, Text string }
	// SetAside: a worker gets nothing for a while, since so much failed there.
	SetAside struct {
		Worker string
		Until  time.Duration
		Why    string
	}
)

// What JobEnded.Cause says where no attempt's failure ended the job.
const (
	NoWorkers = "no workers" // none that could take its attempts was there for too long
	Refused   = "refused"    // it has more tasks, or more of something, than may be
)

// GangMember is an attempt of a gang, and where it runs.
type GangMember struct {
	Attempt Attempt
	Worker  string
}

// Config has the scheduler's constants. The zero value of each field is replaced by
// the default that it names.
type Config struct {
	Epoch       uint64
	MaxAttempts int // failed attempts of a task before the job fails; 4
	// MaxLost bounds, per task, attempts and outputs that were lost in a row; 20.
	MaxLost int
	// Backoff is the wait before a task that failed is tried again; it doubles with every
	// failure up to MaxBackoff. 500 ms, 30 s.
	Backoff, MaxBackoff time.Duration
	// Speculate: an attempt that has run for that many times the median of its stage's finished ones, and
	// at least SpeculateAfter, gets a copy when slots are free and at least three quarters of the tasks of
	// the stage are done. 1.5; 5 s. Negative: never.
	Speculate      float64
	SpeculateAfter time.Duration
	// A worker with AsideFailures failed attempts within AsideWindow (of those that may be the program's own fault one a job), of at least two different
	// tasks, is set aside for AsideFor. 5; 1 min; 1 min.
	AsideFailures         int
	AsideWindow, AsideFor time.Duration
	// NoWorkers is how long jobs wait when there is no worker that could take
	// their attempts, before they fail, or end without their stage Abort; 5 min.
	NoWorkers time.Duration
	// LocalWait is how long a split waits for a worker near it, and a task that failed for
	// another worker than the one where it did; 3 s. Negative: not at all.
	LocalWait time.Duration
	// Settle is how long after a restart nothing of the restored jobs is launched while
	// expected workers have not come back; 3 s. Negative: not at all.
	Settle time.Duration
	// GangWait is how long a gang waits before room is kept for it as it becomes free, and before one that has
	// lost a member gives up the others' room; 5 s.
	GangWait time.Duration
	// MaxTasks bounds the splits of a job (2^20), MaxOutputs splits x partitions (2^22).
	MaxTasks, MaxOutputs int
}

func (WorkerExpected) event() {}
func (WorkerUp) event()       {}
func (WorkerDown) event()     {}
func (WorkerSuspect) event()  {}
func (WorkerDrain) event()    {}
func (JobAdded) event()       {}
func (JobCancelled) event()   {}
func (JobForgotten) event()   {}
func (Finished) event()       {}
func (Failed) event()         {}
func (OutputLost) event()     {}
func (Progressed) event()     {}
func (GangReady) event()      {}
func (GangJoined) event()     {}
func (GangFormed) event()     {}
func (GangDone) event()       {}
func (Tick) event()           {}

func (Launch) action()     {}
func (Adopted) action()    {}
func (Stop) action()       {}
func (Relocate) action()   {}
func (Reset) action()      {}
func (Forget) action()     {}
func (Left) action()       {}
func (JobStage) action()   {}
func (JobCleared) action() {}
func (JobEnded) action()   {}
func (GangForm) action()   {}
func (GangBreak) action()  {}
func (Note) action()       {}
func (SetAside) action()   {}

var stageNames = [...]string{"plan", "map", "reduce", "commit", "abort"}

// String returns the stage's name as the control plane writes it.
func (s Stage) String() string {
	if int(s) < len(stageNames) {
		return stageNames[s]
	}
	return "unknown"
}

// ParseStage is the inverse of Stage.String.
func ParseStage(name string) (Stage, bool) {
	for i, n := range stageNames {
		if n == name {
			return Stage(i), true
		}
	}
	return 0, false
}
