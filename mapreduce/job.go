// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"iter"
	"time"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

// Record is one input record: a line, or whatever stands between delimiters.
type Record struct {
	Value  []byte // without the delimiter; valid only during the call
	File   string // the file it comes from; "-" is standard input
	Offset int64  // of its first byte in the (decompressed) file
}

// Block is a run of whole records, for mappers that would rather look at many
// records at once.
type Block = input.Block

// Job says what is to be computed. K is the key's type, V what Map emits, R
// the result of a key.
//
// K may be a string, a byte slice, a bool, an integer of any size, an array of
// bytes, or a struct of exported fields of such types. Keys sort by their
// fields in order: strings bytewise, integers by value.
//
// Exactly one of Map, NewMap and NewBlockMap and exactly one of Fold and Reduce
// are to be set.
type Job[K, V, R any] struct {
	Name string

	// Map is called for every record, by several goroutines at once.
	Map func(rec Record, emit *Emitter[K, V]) error
	// NewMap makes a Map for one goroutine, which may keep state between records.
	NewMap func() func(rec Record, emit *Emitter[K, V]) error
	// NewBlockMap makes a map function over blocks for one goroutine.
	NewBlockMap func() func(b Block, emit *Emitter[K, V]) error

	// Fold combines the values of a key.
	Fold Fold[V, R]

	// Reduce is called once per key with all its values, which it need not
	// read to the end. Values come in the order of ValueOrder, or else of their
	// encodings, so that the result never depends on who mapped what. The key
	// and values must not be kept after the call if they are byte slices.
	Reduce func(key K, values iter.Seq[V], yield func(R)) error
	// Combine may shrink the values of a key before they go to disk; it is called
	// any number of times on any subset of them, must read all that it is given,
	// and what it yields stands for them.
	Combine func(key K, values iter.Seq[V], yield func(V)) error
	// ValueOrder appends bytes whose order is the order in which Reduce shall
	// see values (secondary sort). Equal ones come in order of their encodings.
	ValueOrder func(dst []byte, v V) []byte
	// ValueCodec encodes values on their way to Reduce. The default knows
	// strings, byte slices, bools, numbers, structs of these, types with
	// AppendBinary and UnmarshalBinary, and falls back to JSON.
	ValueCodec Codec[V]

	// Keep drops rows for which it is false, after the fold or reduce.
	Keep func(key K, result R) bool
	// Repeat, if not nil, says how often a row is written; default once.
	Repeat func(key K, result R) int64
	// Top keeps only that many rows: the first in the order of Rank, ties by
	// key. The result is then one part. 0 keeps all.
	Top  int
	Rank func(a, b R) int

	// CountKeys makes the number of keys kept the result: one row without key.
	CountKeys bool
	// Empty, if not nil, gives the row of a job whose input gave no key at all.
	Empty func() (R, bool)
	// FirstBlock is called with the first block of a file that several
	// mappers share (standard input, pipes, large compressed files) before any
	// other block of it is mapped.
	FirstBlock func(b Block) error

	// Columns names the result's columns; default: the fields of R if it is a
	// struct, else "value". KeyColumns names those of the key; default: the
	// fields of K, else "key". HideKey leaves the key out of the rows; Columns
	// that are empty but not nil leave the result out.
	Columns    []string
	KeyColumns []string
	HideKey    bool
	// ColumnKinds says the kinds of the Columns if R is []output.Value.
	ColumnKinds []output.Kind
	// KeyText, if not nil, gives a key as errors show it; default: as it is, quoted.
	KeyText func(key K) string
	// Why says how the job's maker chose to go about it, and why. Explanation.Why begins with it.
	Why []string

	sides []*SideInput
}

// Codec turns values into bytes and back. Append appends v's encoding to dst.
// Decode may keep b's memory only until the next call.
type Codec[V any] struct {
	Append func(dst []byte, v V) []byte
	Decode func(b []byte) (V, error)
}

// Runnable is a Job of any type.
type Runnable interface {
	// Run runs the job in this process on all cores.
	//
	// In a process that a worker of a cluster started, it does the task that the
	// worker wants done, and ends the process; or it returns what the job's run
	// on the cluster has returned, if a later call is the one that is meant. So
	// that all of these processes come to the same calls, a program calls Run one
	// call after the other, and how often and with what follows from its arguments
	// and from what earlier calls returned. What it does beside that is done again
	// in every such process.
	Run(ctx context.Context, opts Options) (*Result, error)
	// Explain says how Run would go about it.
	Explain(ctx context.Context, opts Options) (*Explanation, error)
	// Validate says what is wrong with the job itself.
	Validate() error
}

// Options says on what, with what means and whereto a job runs.
type Options struct {
	// Inputs are paths, glob patterns (with **), directories, or "-".
	Inputs []string
	Input  input.Options

	// Output is where rows go. Nil discards them (counters and audit remain).
	Output output.Target
	// Partitions is the number of parts; 0: 1.
	Partitions int
	// TotalOrder makes the parts follow each other in key order; without it
	// keys are sorted within each part.
	TotalOrder bool

	// Workers is the number of goroutines that map and reduce; 0: the number of CPUs granted. On a cluster it is the most
	// that one task has.
	Workers int
	// Memory is the budget in bytes; 0: half of what the machine or cgroup grants. On a cluster it is the most that the engine of
	// one task uses: a worker may grant less (SubmitOptions.TaskMemory of package cluster says how much it grants).
	Memory int64
	// SpillDir is where runs go that exceed it; "": the system's folder for temporary files.
	SpillDir string

	// Progress is called a few times a second and once at the end.
	Progress func(Progress)
}

// Progress is the state of a running job.
type Progress struct {
	Phase      string // "plan", "side inputs", "map", "merge", "write", "done"; of an iteration also "load", "rounds"
	Bytes      int64  // read so far: of side inputs in that phase, else of the inputs
	TotalBytes int64  // 0 if unknown
	Records    int64
	Pairs      int64
	Rows       int64 // written so far
	Spills     int64
	Elapsed    time.Duration

	// Of an iteration: rounds that are done, and how many there are at most (0: that is not said), and how
	// far that number of the state moved in the last one that moved most.
	Round, Rounds int
	Change        float64
}

// Audit is the balance that every job ends with.
type Audit struct {
	PairsEmitted  int64  `json:"pairs_emitted"`   // calls of Emit, each as often as its fold has parts for a value
	PairsCombined int64  `json:"pairs_combined"`  // left after combining in the map tasks
	PairsFolded   int64  `json:"pairs_folded"`    // that the drain took in; equals PairsCombined
	SumCombined   uint64 `json:"sum_check_map"`   // sum of value x hash(key) over sum lanes, mod 2^64, before
	SumFolded     uint64 `json:"sum_check_drain"` // and after the fold; equal
	Keys          int64  `json:"keys"`
	Rows          int64  `json:"rows"`
}

// Result is what a finished job leaves beside its rows.
type Result struct {
	Job      string
	Audit    Audit
	Counters map[string]int64 // user-defined ones
	Notes    []string         // said once to the user
	Records  int64            // records read (0 for block mappers that do not count)
	Bytes    int64            // bytes read from disk
	Files    int
	Splits   int
	Parts    int
	Spills   int64 // runs written for want of memory
	Spilled  int64 // their bytes on disk
	Elapsed  time.Duration
	Map      time.Duration // wall time of the map phase
	Drain    time.Duration // of fold, sort, merge, write and commit

	SideInputs []SideInputInfo // as they were read, in the order in which they were declared

	Iteration *IterationResult `json:",omitempty"` // what it came to, if it is one; see Iterate
}

// Explanation is a plan in words and numbers.
type Explanation struct {
	Job        string          `json:"job"`
	Files      int             `json:"files"`
	Splits     int             `json:"splits"`
	Bytes      int64           `json:"bytes"`
	Partitions int             `json:"partitions"`
	TotalOrder bool            `json:"total_order,omitempty"` // parts follow each other in key order
	Reduce     string          `json:"reduce"`                // "fold", "grouped" or "iteration"
	Lanes      []string        `json:"lanes,omitempty"`
	Workers    int             `json:"workers"`
	Memory     int64           `json:"memory_bytes"`
	Why        []string        `json:"why"`
	SideInputs []SideInputInfo `json:"side_inputs,omitempty"`
	Notes      []string        `json:"notes,omitempty"`
}

// Run runs a job in this process on all cores, or stands for it in a process of a
// cluster; see [Runnable].
func Run(ctx context.Context, job Runnable, opts Options) (*Result, error) {
	return job.Run(ctx, opts)
}
