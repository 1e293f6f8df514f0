// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"
)

// Iteration is a computation that goes over the same input again and again: each round adds numbers up over
// all of it, and makes the next state of the sums. Training a model by gradient descent is one, and so
// are k-means and PageRank. D is what the program keeps of a split of the input.
//
// The input is read once, and stays in memory as Load left it. Rounds then cost no reading and
// no planning: Round is called for all splits at once, the sums of all splits are added, and Update makes the
// next state. On a cluster the splits are spread over workers, and the sums are added by an all-reduce between them.
//
// The result is the same to the last bit wherever the iteration runs and however the splits are spread: the sums
// that a split's Round leaves are rounded to integers, each split's by itself, and integers are added.
// IterationResult.Bound says how far off that can be. Splits depend on the input and Options.Input alone; a split of a plain
// file has 4 MiB unless that says otherwise. For the
// promise to hold, Load, Start, Round and Update must follow from their arguments and the program alone, and not from
// time, chance, the order of a map or the number of processors. On machines of other architectures Go may
// round x*y + z once instead of twice; float64(x*y) + z is the same on all.
//
// An Iteration is [Runnable], so that it can be submitted to a cluster like any job. Its functions must not call Iterate or Run.
type Iteration[D any] struct {
	Name string

	// Load makes of a split's records what Round will work on, such as a matrix. It is called once per
	// split (again, on another worker, if one is lost), by several goroutines for several splits.
	// Records can be ranged over once; a record's Value is only valid until the next one. What Load returns stays in
	// memory until the iteration ends: Options.Memory does not bound it.
	Load func(s Split, records iter.Seq[Record]) (D, error)

	// Start returns the state before the first round, which must not be empty. It may be called on several
	// machines, and must return the same on all.
	Start func() ([]float64, error)

	// Sums is how many numbers a round adds up; 0: as many as the state has. There is a vector of that
	// length in memory for every split, which must fit Options.Memory.
	Sums int

	// Round adds a split's share to sums, which are zeros when it is called. It may change what kept points to, as
	// long as what it adds to sums later is the same when Load is done anew, and must not change the state.
	Round func(r Round, kept D, sums []float64) error

	// Update makes the next state: it changes state, which holds the same numbers as r.State when it is called.
	// sums are those of all splits. It says that the iteration has come to its end by done. Every member
	// of a cluster's iteration calls it with the same arguments, and must come to the same.
	Update func(r Round, state, sums []float64) (done bool, err error)

	// Rounds is how many there are at most; 0: as many as Update wants.
	Rounds int
	// Checkpoint is after how many rounds the state is written down, but not more than once a second; 0: 10. On a cluster the
	// members compare their states then.
	Checkpoint int
	// Quantum, if it is not 0, is what the sums of a split are rounded to multiples of. Otherwise the step is chosen
	// for each round, and each number of the sums by itself, as small as the sums allow: about 2^-62 of the largest split's, times the number of splits. A sum that is too large for 64 bits then ends the iteration.
	Quantum float64

	// Columns cut the state into rows of as many numbers for the output, and name them. Nil: one a row, "value". The key
	// of a row is its number, from 0.
	Columns []string
	// Rows, if not nil, makes the rows of the output. Each has a key of its own and as many values as there are
	// Columns. They are sorted by key.
	Rows func(state []float64, yield func(key string, values ...float64)) error
	// KeyColumn names the key's column; "": "index", or "key" with Rows.
	KeyColumn string
}

// Split is a part of the input, as [Iteration.Load] is told of it.
type Split struct {
	Number int // from 0
	Of     int // how many there are
	// Files are those it has records of: one, or several small ones that are read whole.
	Files []string
	// Start and End are the bytes of the file in which its records begin; End is -1 if it is read to the end.
	Start, End int64
}

// Round is what the functions of an [Iteration] are told of a round.
type Round struct {
	Number int       // from 1
	State  []float64 // that the round begins with; not to be changed or kept
	Split  int       // its number, from 0; of Update, -1
	Splits int       // how many there are
}

// IterateOptions are Options and what is of use to iterations.
type IterateOptions struct {
	Options

	// Checkpoints is a folder for the states that are written down while the iteration runs in this process, and when it
	// ends by an error or its context; it is made if it is not there. "": none are. If there is one of the same program, called
	// with the same arguments, on the same input, the iteration goes on from there. It is removed when the output is written. On
	// a cluster the master keeps them.
	Checkpoints string
}

// IterationResult is what an iteration came to.
type IterationResult struct {
	// State is that after the last round. Of an iteration that ran on a cluster it is nil if it has more than MaxResultState
	// numbers: they are in the output.
	State     []float64
	Rounds    int  // that were done, also those before a checkpoint that it went on from
	Converged bool // Update said that it was done
	// Bound is the most that a sum of any round can be off the exact sum of what the splits added, because of rounding.
	Bound float64
	// Resumed is how many rounds a checkpoint had of them; 0: there was none.
	Resumed int
	// Groups is how often the members came together: 1, unless one was lost.
	Groups int
	// Times are those of the last rounds, 4096 at most, as one of the members saw them.
	Times []RoundTime
	// Working is the time of all rounds since it began or went on, and Waiting how much of it passed in all-reduces.
	Working, Waiting time.Duration

	Result *Result `json:"-"` // as that of any job: audit, notes, bytes read
}

// RoundTime is how long a round took.
type RoundTime struct {
	Took    time.Duration
	Waiting time.Duration // of that, in all-reduces: for other members and the network
}

// MaxResultState is how many numbers the state of an IterationResult has at most that comes from a cluster.
const MaxResultState = 500_000

// keptTimes is how many RoundTimes a result has at most.
const keptTimes = 4096

// ErrDiverged is why an iteration ends whose members came to different states.
var ErrDiverged = errors.New("members came to different states: Start and Update must follow from their arguments alone, and not from time, chance or the order of a map")

// Validate says what is wrong with the iteration itself.
func (it *Iteration[D]) Validate() error {
	_, err := it.compile()
	return err
}

// Run is [Iterate] without checkpoints in this process; Result.Iteration is what it came to. It makes an iteration [Runnable].
func (it *Iteration[D]) Run(ctx context.Context, opts Options) (*Result, error) {
	res, err := Iterate(ctx, it, IterateOptions{Options: opts})
	if err != nil {
		return nil, err
	}
	return res.Result, nil
}

// Explain finds the input and says how Run would go about it.
func (it *Iteration[D]) Explain(ctx context.Context, opts Options) (*Explanation, error) {
	p, err := it.compile()
	if err != nil {
		return nil, err
	}
	return explain(ctx, p, opts)
}

// Iterate runs an iteration in this process on all cores, or stands for it in a process of a cluster; what
// [Runnable] says of Run holds for it too. Rows go to Options.Output.
func Iterate[D any](ctx context.Context, it *Iteration[D], opts IterateOptions) (*IterationResult, error) {
	p, err := it.compile()
	if here != nil {
		if err != nil {
			return iterationOf(here.run(ctx, nil, it.Name, err, opts.Options))
		}
		return iterationOf(here.run(ctx, p, it.Name, nil, opts.Options))
	}
	_, done := countCall()
	var res *Result
	if err == nil {
		res, err = iterateHere(ctx, p, opts)
	}
	done(res, err)
	return iterationOf(res, err)
}

// iterationOf is an iteration's result in that of its job.
func iterationOf(res *Result, err error) (*IterationResult, error) {
	if err != nil {
		return nil, err
	}
	if res.Iteration == nil {
		return nil, fmt.Errorf("the call's result is that of job %s, which is no iteration: the program's calls must come in the same order in every run", res.Job)
	}
	res.Iteration.Result = res
	return res.Iteration, nil
}

func iterateHere(ctx context.Context, p iterationCode, opts IterateOptions) (*Result, error) {
	e, err := newEngine(p, opts.Options)
	if err != nil {
		return nil, err
	}
	return e.iterate(ctx, p, opts.Checkpoints)
}

// iterationFacts are what the engine is to know of an iteration.
type iterationFacts struct {
	name       string
	sums       int // 0: as many as the state has
	rounds     int // at most
	checkpoint int
	quantum    float64
	columns    int // numbers of a row; 0: Rows makes the rows
}

// limit is how many rounds there are at most, 0 if that is not said.
func (f *iterationFacts) limit() int {
	if f.rounds == math.MaxInt {
		return 0
	}
	return f.rounds
}

// iterationCode is a compiled iteration without its types. As code it is the job that writes the rows.
type iterationCode interface {
	code
	facts() iterationFacts
	start() ([]float64, error)
	load(s Split, records iter.Seq[Record]) (kept any, err error)
	round(r Round, kept any, sums []float64) error
	update(r Round, state, sums []float64) (done bool, err error)
	// emits says of which state the mapper that newMapper makes will emit the rows, whatever block it is given.
	emits(state []float64)
}

// iterationProgram is an iteration made ready to run.
type iterationProgram[D any] struct {
	code
	it   *Iteration[D]
	last *lastState
}

func (it *Iteration[D]) compile() (*iterationProgram[D], error) {
	p, err := it.build()
	if err != nil {
		name := it.Name
		if name == "" {
			name = "without a name"
		}
		return nil, fmt.Errorf("iteration %s: %w", name, err)
	}
	return p, nil
}

func (it *Iteration[D]) build() (*iterationProgram[D], error) {
	switch {
	case it.Load == nil, it.Start == nil, it.Round == nil, it.Update == nil:
		return nil, errors.New("set Load, Start, Round and Update")
	case it.Sums < 0, it.Rounds < 0, it.Checkpoint < 0:
		return nil, fmt.Errorf("fields Sums, Rounds and Checkpoint are %d, %d and %d: none may be negative", it.Sums, it.Rounds, it.Checkpoint)
	case it.Quantum < 0, math.IsNaN(it.Quantum), math.IsInf(it.Quantum, 0):
		return nil, fmt.Errorf("field Quantum is %v: it is to be a positive number, or 0", it.Quantum)
	case it.Columns != nil && len(it.Columns) == 0:
		return nil, errors.New("field Columns is empty: name the numbers of a row, or leave it nil")
	}
	p := &iterationProgram[D]{it: it, last: &lastState{}}
	var err error
	p.code, err = stateRows(it.Name, it.Columns, it.KeyColumn, it.Rows, p.last)
	return p, err
}

func (p *iterationProgram[D]) facts() iterationFacts {
	f := iterationFacts{name: p.it.Name, sums: p.it.Sums, rounds: p.it.Rounds, checkpoint: p.it.Checkpoint, quantum: p.it.Quantum}
	if f.rounds == 0 {
		f.rounds = math.MaxInt
	}
	if f.checkpoint == 0 {
		f.checkpoint = 10
	}
	if p.it.Rows == nil {
		f.columns = max(1, len(p.it.Columns))
	}
	return f
}

func (p *iterationProgram[D]) start() (state []float64, err error) {
	err = guard(func() error {
		state, err = p.it.Start()
		return err
	})
	return state, err
}

func (p *iterationProgram[D]) load(s Split, records iter.Seq[Record]) (kept any, err error) {
	err = guard(func() error {
		kept, err = p.it.Load(s, records)
		return err
	})
	return kept, err
}

func (p *iterationProgram[D]) round(r Round, kept any, sums []float64) error {
	return guard(func() error {
		d, _ := kept.(D) // the zero value of an interface type is no D
		return p.it.Round(r, d, sums)
	})
}

func (p *iterationProgram[D]) update(r Round, state, sums []float64) (done bool, err error) {
	err = guard(func() error {
		done, err = p.it.Update(r, state, sums)
		return err
	})
	return done, err
}

func (p *iterationProgram[D]) emits(state []float64) { p.last.numbers = state }

func (p *iterationProgram[D]) traits() traits {
	t := p.code.traits()
	t.iter = p
	return t
}
