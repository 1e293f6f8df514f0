// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"fmt"
	"time"
)

// Env names the variable that tells a program that it was started by a worker or
// by a driver: "3,4", the descriptors that it reads its request from and
// writes its replies to.
const Env = "QUERN_TASK"

// Protocol is the version of this package's messages. Both ends must have the same.
const Protocol = 1

// Kind is what a program is to do.
type Kind string

// The kinds.
const (
	// Drive has the program run its main; each call of Run is told to the parent
	// (Reply.Call), which answers with a CallResult. Nothing is computed here.
	Drive Kind = "drive"
	// Plan finds the input, cuts it into splits and prepares the output.
	Plan Kind = "plan"
	// Map maps one split, and leaves one run of combined pairs, sorted by key, in
	// Request.Dir.
	Map Kind = "map"
	// Reduce turns the runs of a partition into a part of the output.
	Reduce Kind = "reduce"
	// Commit makes the whole output visible.
	Commit Kind = "commit"
	// Abort removes what Plan and Reduce left of the output.
	Abort Kind = "abort"
)

// Request is what a program is asked to do. One of Map, Reduce and Commit is set for
// the kind of that name.
type Request struct {
	Protocol int    `json:"protocol"`
	Kind     Kind   `json:"kind"`
	Job      string `json:"job"` // the job's id, in hex
	// Call is which call of Run is meant, counted from 0. Earlier holds the
	// results of those before it, which return them without running anything.
	Call    int          `json:"call"`
	Earlier []CallResult `json:"earlier,omitempty"`

	Dir     string `json:"dir"`     // an empty folder for what the task writes
	Memory  int64  `json:"memory"`  // budget in bytes
	Workers int    `json:"workers"` // goroutines
	// Uploads maps paths as the job names them to files that the submitter
	// shipped. Nil: none. A path that is not in it is opened as it is.
	Uploads map[string]string `json:"uploads,omitempty"`

	// SideInputs are what the job's plan found by that name, for map and reduce tasks. A
	// task of a plan makes them: PlanResult.SideInputs.
	SideInputs []SideInput `json:"side_inputs,omitempty"`
	// SideInputsLimit is how many bytes the side inputs that a plan makes may have together. 0: no limit.
	SideInputsLimit int64 `json:"side_inputs_limit,omitempty"`
	// Members is how many members the gang of a plan task may have: 0 is 1.
	Members int `json:"members,omitempty"`
	// Explain has a program that is driven say how each call of Run would go about it (Call.Explanation).
	Explain bool `json:"explain,omitempty"`
	// Gang is set for a map task that is a member of one.
	Gang *GangRequest `json:"gang,omitempty"`

	Plan      []byte         `json:"plan,omitempty"`     // PlanResult.Plan; of a map task only what its split needs
	Constants Constants      `json:"constants,omitzero"` // map and reduce
	Map       *MapRequest    `json:"map,omitempty"`      //
	Reduce    *ReduceRequest `json:"reduce,omitempty"`   //
	Commit    *CommitRequest `json:"commit,omitempty"`   //
	Ticket    []byte         `json:"ticket,omitempty"`   // PlanResult.Ticket: reduce, commit; abort, but for a job without a plan
}

// SideInput is where a task finds a side input: behind a descriptor that it inherited, which
// can be mapped to be read (see HandOn and Map). An empty one has no descriptor.
type SideInput struct {
	Name       string `json:"name"`
	Descriptor int    `json:"descriptor"`
	Offset     int64  `json:"offset"` // of its first byte
	Size       int64  `json:"size"`
}

// SideFile is a side input that a plan made, in a file of Request.Dir.
type SideFile struct {
	Name   string `json:"name"`
	File   string `json:"file"` // its name there
	Size   int64  `json:"size"`
	Digest string `json:"digest"` // SHA-256 in hex
}

// Constants are the same for all tasks of a job, whenever and wherever they run.
type Constants struct {
	Seed       [2]uint64 `json:"seed"`       // of hashes, pairs.Seed
	Partitions int       `json:"partitions"` // of the shuffle: 1 with a total order
	Parts      int       `json:"parts"`      // of the output
}

// MapRequest names a map task.
type MapRequest struct {
	Split int `json:"split"`
}

// RunFile is a run of pairs (package spill) that a reduce task reads. Its pairs
// are in part 0 of the file.
type RunFile struct {
	Path  string  `json:"path"`
	Scale []uint8 `json:"scale,omitempty"` // decimals per lane, nil if none
}

// ReduceRequest names a reduce task.
type ReduceRequest struct {
	Part    int       `json:"part"`    // of the output
	Attempt string    `json:"attempt"` // makes the part's file name its own
	Runs    []RunFile `json:"runs"`
	// NoKeys says that no map task emitted anything: part 0 then holds what
	// the job has for that case.
	NoKeys bool `json:"no_keys,omitempty"`
	// Pairs and Check are what the runs must hold: of folds, Check has the sum of
	// value x hash(key) per sum lane, at the scale of Scale.
	Pairs int64    `json:"pairs"`
	Check []uint64 `json:"check,omitempty"`
	Scale []uint8  `json:"scale,omitempty"`
	// Folded says that the runs hold each key once (they come from a receiver
	// that folded); Pairs is then not to be compared.
	Folded bool `json:"folded,omitempty"`
}

// CommitRequest ends a job.
type CommitRequest struct {
	Parts []string `json:"parts"` // ReduceResult.Name of the winner of each part
	Audit Audit    `json:"audit"`
}

// Audit is what _SUCCESS is made of.
type Audit struct {
	PairsEmitted int64 `json:"pairs_emitted"`
	Keys         int64 `json:"keys"`
	Rows         int64 `json:"rows"`
}

// Reply is a message of a program. One field is set. The last one is a result or Error.
type Reply struct {
	Hello    *Hello        `json:"hello,omitempty"`
	Call     *Call         `json:"call,omitempty"`
	Progress *Progress     `json:"progress,omitempty"`
	Ready    *Ready        `json:"ready,omitempty"`
	Sum      *AllReduce    `json:"sum,omitempty"`
	Keep     *Keep         `json:"keep,omitempty"`
	Plan     *PlanResult   `json:"plan,omitempty"`
	Map      *MapResult    `json:"map,omitempty"`
	Reduce   *ReduceResult `json:"reduce,omitempty"`
	Commit   *CommitResult `json:"commit,omitempty"`
	Error    *Error        `json:"error,omitempty"`
}

// Answer is what a parent says after its request. To a program that is driven it is a CallResult,
// to a member of a gang one of the other fields.
type Answer struct {
	CallResult
	Group   *Group   `json:"group,omitempty"`   // after Ready
	Over    *State   `json:"over,omitempty"`    // after Ready, in the place of a group: another member came to the end
	Reduced *Reduced `json:"reduced,omitempty"` // after Sum
	Kept    *Kept    `json:"kept,omitempty"`    // after Keep
}

// Hello is a program's first message: it has reached the call that was meant.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the library, from the build information
}

// Call tells a driver that the program called Run.
type Call struct {
	Call int    `json:"call"`
	Job  string `json:"job"`           // its name
	Err  string `json:"err,omitempty"` // the job can't run on a cluster, or not be explained: why
	// Cause is what Err is beside its text.
	Cause *Cause `json:"cause,omitempty"`
	// Explanation is, if the request has Explain, a mapreduce.Explanation.
	Explanation json.RawMessage `json:"explanation,omitempty"`
}

// CallResult is what a call of Run is to return: a mapreduce.Result, or an error.
type CallResult struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
	Cause  *Cause          `json:"cause,omitempty"` // of the error
}

// Progress is sent a few times a second while work is done. A worker ends
// attempts whose progress stands still for too long.
type Progress struct {
	Phase   string  `json:"phase"`
	Bytes   int64   `json:"bytes"`
	Records int64   `json:"records"`
	Pairs   int64   `json:"pairs"`
	Rows    int64   `json:"rows"`
	Done    float64 `json:"done"` // share of the task that is done, 0 to 1, as far as it is known
	// Round is the round of an iteration that is done, and Rounds how many there may be.
	Round  int `json:"round,omitempty"`
	Rounds int `json:"rounds,omitempty"`
}

// PlanResult is a job as its first task found it.
type PlanResult struct {
	Name       string      `json:"name"`
	Grouped    bool        `json:"grouped"`
	Ops        []uint8     `json:"ops,omitempty"` // fold.Op per lane
	Suffix     int         `json:"suffix"`        // see fold.Config.Suffix
	Partitions int         `json:"partitions"`    // of the output
	TotalOrder bool        `json:"total_order"`   // parts are cut from one sequence by a sample
	Splits     []SplitInfo `json:"splits"`
	Files      int         `json:"files"`
	Bytes      int64       `json:"bytes"`
	Exact      bool        `json:"exact"` // Bytes is known exactly
	// Plan is for requests of map tasks; Plan of split i is made of it by SplitPlan.
	Plan   json.RawMessage `json:"plan"`
	Ticket []byte          `json:"ticket"` // of the output
	Notes  []string        `json:"notes,omitempty"`
	Why    []string        `json:"why,omitempty"`
	// SideInputs are those of the job, each once.
	SideInputs []SideFile `json:"side_inputs,omitempty"`
	// Gang is set if all map tasks are to run at once. Splits are then those of the map tasks, each with a share of
	// the splits in Plan.
	Gang *Gang `json:"gang,omitempty"`
}

// SplitInfo is what is to be known of a split for giving it to a worker.
type SplitInfo struct {
	Path  string `json:"path"` // of its first file
	Bytes int64  `json:"bytes"`
}

// MapResult describes the output of a map task.
type MapResult struct {
	Run      string           `json:"run"` // file name in Request.Dir; "" if there are no pairs
	Size     int64            `json:"size"`
	Scale    []uint8          `json:"scale,omitempty"`
	Parts    []Manifest       `json:"parts"` // per partition of the shuffle, as many as Constants say
	Emitted  int64            `json:"emitted"`
	Records  int64            `json:"records"`
	Bytes    int64            `json:"bytes"`
	Spills   int64            `json:"spills"`
	Spilled  int64            `json:"spilled"`
	Skipped  int64            `json:"skipped"`
	Cut      int64            `json:"cut"`
	Counters map[string]int64 `json:"counters,omitempty"`
	// Sample is the task's share of the sample that a total order is cut by
	// (pairs.BottomK, its own encoding).
	Sample []byte `json:"sample,omitempty"`
	// Iteration is, of the first member of a gang, what the submitter is told of the iteration (mapreduce.IterationResult).
	Iteration json.RawMessage `json:"iteration,omitempty"`
}

// Manifest describes what one map task has for one partition.
type Manifest struct {
	Pairs  int64  `json:"p"`
	Bytes  int64  `json:"b"` // before compression
	Digest uint64 `json:"d"` // xxh3 over the pairs in order and the scale: equal digests are equal pairs
	// Check is, of folds, the sum of value x hash(key) per lane, mod 2^64, 0 for
	// lanes that are no sums. SumAbs is the sum of absolute values per lane, as
	// two words (high, low).
	Check  []uint64    `json:"c,omitempty"`
	SumAbs [][2]uint64 `json:"s,omitempty"`
	Keys   [5]uint64   `json:"k"` // keys by class, the last one those longer than wire.MaxKey
}

// ReduceResult describes a part that was written.
type ReduceResult struct {
	Name  string   `json:"name"` // by which Commit knows it
	Rows  int64    `json:"rows"`
	Keys  int64    `json:"keys"`
	Pairs int64    `json:"pairs"` // read from the runs
	Bytes int64    `json:"bytes"`
	Check []uint64 `json:"check,omitempty"`
}

// CommitResult says how a job's output was published.
type CommitResult struct {
	Notes []string `json:"notes,omitempty"`
}

// Error is why a task failed.
type Error struct {
	Message string `json:"message"`
	// Permanent says that another attempt would fail in the same way: an input
	// that is malformed or not there, an output that exists, an overflow, a job
	// that is not valid.
	Permanent bool   `json:"permanent,omitempty"`
	Panic     bool   `json:"panic,omitempty"` // of the job's own code; Stack is set
	Stack     string `json:"stack,omitempty"`
	// Input names a run of Request.Reduce.Runs that is damaged, which is nobody's
	// fault but its maker's disk's.
	Input string `json:"input,omitempty"`
	// Cause is what the error is beside its text; nil: nobody knows.
	Cause *Cause `json:"cause,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Timeouts of the protocol.
const (
	// HelloTimeout is how long a program may take to reach its call of Run.
	HelloTimeout = 2 * time.Minute
	// ProgressEvery is how often progress is sent.
	ProgressEvery = 250 * time.Millisecond
)

// Check says whether a request can be served by this version.
func (r *Request) Check() error {
	if r.Protocol != Protocol {
		return fmt.Errorf("this program speaks version %d of the task protocol and its worker version %d: build it anew with the workers' version of the library", Protocol, r.Protocol)
	}
	return nil
}
