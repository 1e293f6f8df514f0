// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// code is a compiled job without its types.
type code interface {
	newMapper(comb *fold.Combiner, coll *group.Collector, delim []byte) mapper
	newReducer(f *fold.Drain, g *group.Drain) reducer
	combine() func(key []byte, values spill.Cursor, add func([]byte)) error
	traits() traits
}

// traits are the facts about a job that the engine plans with.
type traits struct {
	name       string
	schema     output.Schema
	grouped    bool
	ops        []fold.Op
	suffix     int
	top        bool
	countKeys  bool
	safe       bool // once folded without carries, rows can be made without error
	firstBlock func(b Block) error
	sides      []*SideInput
	why        []string // of the job's maker
	notes      []string // of the fold's maker
	iter       iterated // nil: it is none
}

func (p *program[K, V, R]) traits() traits {
	j := p.job
	t := traits{
		name: j.Name, schema: p.schema, grouped: j.grouped(), ops: j.Fold.ops,
		top: j.Top > 0, countKeys: j.CountKeys, firstBlock: j.FirstBlock, sides: j.sides, why: j.Why, notes: j.Fold.notes,
	}
	t.safe = j.Fold.safe && j.Keep == nil && j.Repeat == nil && !t.top && !t.countKeys
	if j.Fold.getSub != nil {
		t.suffix = subSuffix
	}
	return t
}

// engine runs one job in this process.
type engine struct {
	code
	t       traits
	opts    Options
	plan    *input.Plan
	mem     memoryPlan
	arena   *pairs.Arena
	seed    pairs.Seed
	dir     string // of runs, made when the first is written
	started time.Time

	found []foundSide     // side inputs, before they are read
	sides []SideInputInfo // and afterwards

	mappers []mapper
	foldCfg fold.Config
	grpCfg  group.Config

	mu       sync.Mutex // guards dir
	runsMu   sync.Mutex // guards what follows, down to notes
	foldRuns []fold.Run
	grpRuns  []*spill.Run
	sample   *pairs.BottomK
	scale    []uint8 // decimals that lanes have at least; nil: those of the values
	folded   int64   // records folded on their way into runs
	combined int64   // records that went into runs
	spilled  int64
	notes    []string

	// moved counts keys that were reduced, while they are: it says that a task of a
	// cluster is not stuck. live does so for records that are mapped.
	moved atomic.Int64
	live  *atomic.Int64
	total atomic.Int64 // of a map task: bytes to read, then records to write

	phase   atomic.Pointer[string]
	bytes   atomic.Int64
	records atomic.Int64
	pairs   atomic.Int64
	rows    atomic.Int64
	spills  atomic.Int64
	skipped atomic.Int64
	cut     atomic.Int64

	sideBytes atomic.Int64 // of side inputs read so far

	iteration atomic.Pointer[iterationProgress] // nil: it does none, or no round yet
}

// Run runs the job in this process on all cores, or stands for it in a process of a
// cluster; see [Runnable].
func (j *Job[K, V, R]) Run(ctx context.Context, opts Options) (res *Result, err error) {
	p, err := j.compile()
	if here != nil {
		if err != nil {
			return here.run(ctx, nil, j.Name, err, opts)
		}
		return here.run(ctx, p, j.Name, nil, opts)
	}
	_, done := countCall()
	defer func() { done(res, err) }()
	if err != nil {
		return nil, err
	}
	e, err := newEngine(p, opts)
	if err != nil {
		return nil, err
	}
	return e.run(ctx)
}

func newEngine(c code, opts Options) (*engine, error) {
	e := &engine{code: c, t: c.traits(), opts: opts, started: time.Now()}
	e.notes = slices.Clone(e.t.notes)
	if len(opts.Inputs) == 0 && !opts.Input.AllowEmpty {
		return nil, errors.New("no inputs: Options.Inputs names files, patterns, folders, or \"-\" for standard input")
	}
	if opts.Partitions < 0 || opts.Partitions > MaxPartitions {
		return nil, fmt.Errorf("%d partitions: 1 to %d are possible", opts.Partitions, MaxPartitions)
	}
	if e.opts.Partitions == 0 || e.t.top || e.t.countKeys {
		e.opts.Partitions = 1
	}
	if e.opts.Workers <= 0 {
		e.opts.Workers = runtime.GOMAXPROCS(0)
	}
	var err error
	e.mem, err = planMemory(opts.Memory, e.opts.Workers)
	if err != nil {
		return nil, err
	}
	e.opts.Workers = e.mem.workers
	if e.t.iter != nil && e.opts.Input.SplitSize == 0 {
		e.opts.Input.SplitSize = iterationSplit
	}
	e.setPhase("plan")
	return e, nil
}

// largest is address space for a record per worker that is larger than all of
// its share: the budget can't be kept then, but the record can.
func (e *engine) largest() int64 {
	line := e.opts.Input.MaxLine
	if line == 0 {
		line = 64 << 20
	}
	return (line + line/4) * int64(e.opts.Workers+1)
}

// phaseSides is the phase in which side inputs are read.
const phaseSides = "side inputs"

func (e *engine) setPhase(s string) { e.phase.Store(&s) }

// partitions is the number of partitions that the shuffle keeps apart: with a
// total order parts are cut out of one sequence at the end.
func (e *engine) partitions() int {
	if e.opts.TotalOrder {
		return 1
	}
	return e.opts.Partitions
}

func (e *engine) run(ctx context.Context) (res *Result, err error) {
	callers := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := e.reportProgress()
	defer stop()

	if e.plan, err = input.Discover(ctx, e.opts.Inputs, e.opts.Input); err != nil {
		return nil, err
	}
	if err := e.findSides(ctx); err != nil {
		return nil, err
	}
	tx, err := e.begin()
	if err != nil {
		return nil, err
	}
	defer func() {
		if abort := tx.Abort(); err == nil && abort != nil {
			err = abort
		}
	}()
	release, err := e.readSides(ctx)
	defer func() {
		if freed := release(); err == nil && freed != nil {
			err = freed
		}
	}()
	if err != nil {
		return nil, err
	}
	if e.arena, err = pairs.NewArena(e.mem.arena + e.largest()); err != nil {
		return nil, err
	}
	defer e.arena.Close()
	defer e.removeRuns()

	e.setPhase("map")
	mapped := time.Now()
	if err := e.mapAll(ctx); err != nil {
		return nil, err
	}
	drained := time.Now()
	e.setPhase("merge")
	audit, err := e.drain(ctx, tx)
	if err != nil {
		return nil, err
	}
	success, err := success(e.t.name, e.opts.Partitions, audit)
	if err != nil {
		return nil, err
	}
	// A context made from another learns of its end a little later, and a Map that
	// was told to stop may have returned as if it were done.
	if err := callers.Err(); err != nil {
		return nil, err
	}
	if err := tx.Commit(success); err != nil {
		return nil, err
	}
	if t, ok := tx.(interface{ Notes() []string }); ok {
		e.notes = append(e.notes, t.Notes()...)
	}
	e.setPhase("done")
	return &Result{
		Job: e.t.name, Audit: *audit, Counters: e.counters(), Notes: e.allNotes(),
		Records: e.records.Load(), Bytes: e.bytes.Load(),
		Files: len(e.plan.Files), Splits: len(e.plan.Splits), Parts: e.opts.Partitions,
		Spills: e.spills.Load(), Spilled: e.spilled, SideInputs: e.sides,
		Elapsed: time.Since(e.started), Map: drained.Sub(mapped), Drain: time.Since(drained),
	}, nil
}

func (e *engine) begin() (output.Transaction, error) {
	target := e.opts.Output
	if target == nil {
		target = output.Func(func(int, *output.Row) error { return nil })
	}
	return target.Begin(e.info())
}

// info is what the output is told.
func (e *engine) info() output.Info {
	info := output.Info{Job: e.t.name, Schema: e.t.schema, Parts: e.opts.Partitions}
	if e.plan == nil {
		return info
	}
	info.Inputs = make([]string, 0, len(e.plan.Files))
	for _, f := range e.plan.Files {
		if f.Path != "-" {
			info.Inputs = append(info.Inputs, f.Path)
		}
	}
	for _, f := range e.found {
		if f.whole != nil {
			info.Inputs = append(info.Inputs, f.whole.Paths()...)
		}
	}
	return info
}

// success is the content of _SUCCESS: only what is the same for every run of
// the job on this input.
func success(job string, parts int, a *Audit) ([]byte, error) {
	b, err := json.MarshalIndent(struct {
		Job      string `json:"job"`
		Parts    int    `json:"parts"`
		Pairs    int64  `json:"pairs_emitted"`
		Keys     int64  `json:"keys"`
		Rows     int64  `json:"rows"`
		Balanced bool   `json:"audit_balanced"`
	}{job, parts, a.PairsEmitted, a.Keys, a.Rows, true}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

func (e *engine) counters() map[string]int64 {
	out := map[string]int64{}
	for _, m := range e.mappers {
		_, cs := m.seen()
		for name, c := range cs {
			out[name] += c.n
		}
	}
	return out
}

func (e *engine) allNotes() []string {
	notes := append([]string(nil), e.plan.Notes...)
	if n := e.skipped.Load(); n > 0 {
		notes = append(notes, fmt.Sprintf("%d records longer than the limit were skipped", n))
	}
	if n := e.cut.Load(); n > 0 {
		notes = append(notes, fmt.Sprintf("%d records longer than the limit were truncated", n))
	}
	return append(notes, e.notes...)
}

// reportProgress calls Options.Progress until the function it returns is called.
func (e *engine) reportProgress() func() {
	if e.opts.Progress == nil {
		return func() {}
	}
	report := func() {
		total := int64(0)
		phase := *e.phase.Load()
		if phase != "plan" && e.plan != nil && e.plan.Exact {
			total = e.plan.TotalBytes
		}
		read := e.bytes.Load()
		if phase == phaseSides {
			total, read = 0, e.sideBytes.Load()
		}
		progress := Progress{
			Phase: phase, Bytes: read, TotalBytes: total,
			Records: e.records.Load(), Pairs: e.pairs.Load(), Rows: e.rows.Load(), Spills: e.spills.Load(),
			Elapsed: time.Since(e.started),
		}
		if i := e.iteration.Load(); i != nil {
			progress.Round, progress.Rounds, progress.Change = i.Round, i.Rounds, i.Change
		}
		// A panic there must not take the job with it.
		_ = guard(func() error { e.opts.Progress(progress); return nil })
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				report()
			case <-done:
				report()
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// errAudit is returned when the books do not balance.
var errAudit = errors.New("audit failed: this is a defect of quern or of the machine's memory; the output was not written")
