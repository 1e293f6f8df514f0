// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// damaged is an error about a run that a reduce task was given.
type damaged struct {
	run string
	error
}

func (d *damaged) Unwrap() error { return d.error }

// reduceTask writes one part of the output from runs.
func (e *engine) reduceTask(ctx context.Context, req *task.Request, target output.Shared) (*task.ReduceResult, error) {
	if err := e.constants(req.Constants); err != nil {
		return nil, err
	}
	in := req.Reduce
	if in.Part < 0 || in.Part >= e.opts.Partitions {
		return nil, &permanent{fmt.Errorf("a reduce task for part %d of %d", in.Part, e.opts.Partitions)}
	}
	info := e.info()
	// The runs hold this part and nothing else, so the engine has one.
	e.opts.Partitions, e.opts.TotalOrder = 1, false
	e.scale = in.Scale
	var err error
	if e.arena, err = pairs.NewArena(e.mem.arena); err != nil {
		return nil, err
	}
	defer e.arena.Close()
	e.foldCfg = fold.Config{Arena: e.arena, Ops: e.t.ops, Seed: e.seed, Suffix: e.t.suffix, Partitions: 1, SubBuckets: 1, Share: e.mem.share}
	e.grpCfg = group.Config{Arena: e.arena, Partitions: 1, Share: e.mem.share}

	e.setPhase("merge")
	defer e.closeRuns()
	names, err := e.openRuns(in.Runs, req.Dir)
	if err != nil {
		return nil, err
	}
	r, err := e.writeShared(ctx, info, req, target)
	var corrupt *spill.CorruptError
	if errors.As(err, &corrupt) {
		if run := names[corrupt.Path]; run != "" {
			err = &damaged{run, err}
		}
	}
	return r, err
}

// openRuns opens the runs of a reduce task, and returns what they are called
// by their names in errors.
func (e *engine) openRuns(runs []task.RunFile, dir string) (names map[string]string, err error) {
	names = map[string]string{}
	// What is merged into fewer runs on the way is removed, and those given are not ours
	// to remove: other names are.
	alias := len(runs) > e.fanIn()
	for i, r := range runs {
		path := r.Path
		if alias {
			if path, err = filepath.Abs(r.Path); err != nil {
				return nil, err
			}
			link := filepath.Join(dir, fmt.Sprintf("given-%06d", i))
			if err := os.Symlink(path, link); err != nil {
				return nil, fmt.Errorf("a name for run %s: %w", r.Path, err)
			}
			path = link
		}
		names[path] = r.Path
		if r.Scale != nil && len(r.Scale) != len(e.t.ops) {
			return nil, &permanent{fmt.Errorf("run %s has scales for %d lanes, the job has %d", r.Path, len(r.Scale), len(e.t.ops))}
		}
		run, err := spill.Open(path)
		if err != nil {
			if errors.Is(err, spill.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
				err = &damaged{r.Path, err}
			}
			return nil, err
		}
		if e.t.grouped {
			e.grpRuns = append(e.grpRuns, run)
		} else {
			e.foldRuns = append(e.foldRuns, fold.Run{Run: run, Scale: slices.Clone(r.Scale)})
		}
	}
	return names, nil
}

func (e *engine) closeRuns() {
	for _, r := range e.foldRuns {
		_ = r.Close()
	}
	for _, r := range e.grpRuns {
		_ = r.Close()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
}

// onePart is an attempt at one part as a transaction of the engine's.
type onePart struct{ attempt output.SharedAttempt }

func (p *onePart) Part(int) (output.Part, error) { return p.attempt.Part(), nil }
func (p *onePart) Commit([]byte) error           { return nil }
func (p *onePart) Abort() error                  { return p.attempt.Abort() }

// writeShared merges the runs, writes the part, and balances the books before the part
// gets its name.
func (e *engine) writeShared(ctx context.Context, info output.Info, req *task.Request, target output.Shared) (r *task.ReduceResult, err error) {
	in := req.Reduce
	f, g, err := e.openDrain(ctx)
	if err != nil {
		return nil, err
	}
	attempt, err := target.Attempt(info, req.Ticket, in.Part, in.Attempt)
	if err != nil {
		return nil, &outputError{err}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, attempt.Abort())
		}
	}()
	e.setPhase("write")
	w := &writePhase{e: e, tx: &onePart{attempt}, others: !in.NoKeys || in.Part > 0}
	ranges := func(int) int { return f.Ranges(0) }
	if f == nil {
		ranges = func(int) int { return g.Ranges(0) }
	}
	if err := w.run(ctx, ranges, func() reducer { return e.newReducer(f, g) }); err != nil {
		return nil, err
	}
	s := w.sum()
	r = &task.ReduceResult{Rows: e.rows.Load(), Keys: s.keys, Pairs: s.pairs + s.groupPairs}
	if f != nil {
		r.Check = s.check
	}
	if err := e.tally(in, r); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.Name, err = attempt.Commit(); err != nil {
		return nil, &outputError{err}
	}
	return r, nil
}

// tally compares what a reduce task read with what the map tasks said.
func (e *engine) tally(in *task.ReduceRequest, r *task.ReduceResult) error {
	if !in.Folded && r.Pairs != in.Pairs {
		return fmt.Errorf("part %d: %w: %d pairs were announced, %d read", in.Part, errAudit, in.Pairs, r.Pairs)
	}
	if in.Check == nil || r.Check == nil {
		return nil
	}
	if len(in.Check) != len(r.Check) {
		return &permanent{fmt.Errorf("part %d: checksums of %d lanes, the job has %d", in.Part, len(in.Check), len(r.Check))}
	}
	for i, v := range in.Check {
		if v != r.Check[i] {
			return fmt.Errorf("part %d: %w: the checksum of lane %d is %#x in the map tasks and %#x in the part", in.Part, errAudit, i, v, r.Check[i])
		}
	}
	return nil
}
