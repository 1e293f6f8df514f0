// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/shuffle/pairs"
)

// The phases of an iteration that other jobs have not.
const (
	phaseLoad   = "load"
	phaseRounds = "rounds"
)

// errNoSplit is of an iteration whose input is empty.
var errNoSplit = &permanent{errors.New("there is no input: an iteration needs one file at least, be it empty")}

// iterate runs an iteration in this process.
func (e *engine) iterate(ctx context.Context, it iterationCode, checkpoints string) (res *Result, err error) {
	callers := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := e.reportProgress()
	defer stop()

	if e.plan, err = input.Discover(ctx, e.opts.Inputs, e.opts.Input); err != nil {
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
	mapped := time.Now()
	m, err := e.newMember(it, sharesFrom(e.plan, 0), len(e.plan.Splits))
	if err != nil {
		return nil, err
	}
	gang := &localGang{progress: &e.iteration}
	if checkpoints != "" {
		if gang.file, err = openCheckpoint(checkpoints, m); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil && m.state.rounds > 0 { // it went well up to there
			if failed := gang.save(&m.state); failed != nil {
				err = fmt.Errorf("%w; and %w", err, failed)
			}
		}
	}()
	if err := m.takePart(ctx, gang); err != nil {
		return nil, err
	}
	drained := time.Now()
	if e.arena, err = pairs.NewArena(e.mem.arena + e.largest()); err != nil {
		return nil, err
	}
	defer e.arena.Close()
	defer e.removeRuns()
	it.emits(m.state.numbers)
	if err := e.emitLast(true); err != nil {
		return nil, m.named(err)
	}
	e.setPhase("merge")
	audit, err := e.drain(ctx, tx)
	if err != nil {
		return nil, err
	}
	success, err := success(e.t.name, e.opts.Partitions, audit)
	if err != nil {
		return nil, err
	}
	if err := callers.Err(); err != nil {
		return nil, err
	}
	if err := tx.Commit(success); err != nil {
		return nil, err
	}
	if t, ok := tx.(interface{ Notes() []string }); ok {
		e.notes = append(e.notes, t.Notes()...)
	}
	if gang.file != nil {
		if err := gang.file.remove(); err != nil {
			e.notes = append(e.notes, err.Error())
		}
	}
	e.setPhase("done")
	return &Result{
		Job: e.t.name, Audit: *audit, Counters: e.counters(), Notes: e.allNotes(),
		Records: e.records.Load(), Bytes: e.bytes.Load(),
		Files: len(e.plan.Files), Splits: len(e.plan.Splits), Parts: e.opts.Partitions,
		Spills: e.spills.Load(), Spilled: e.spilled,
		Elapsed: time.Since(e.started), Map: drained.Sub(mapped), Drain: time.Since(drained),
		Iteration: m.result(),
	}, nil
}
