// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// runPath names the next run, in a folder of the job's own.
func (e *engine) runPath() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dir == "" {
		dir, err := os.MkdirTemp(e.opts.SpillDir, "quern-spill-")
		if err != nil {
			return "", fmt.Errorf("make a folder for what does not fit in memory: %w (choose another with --spill-dir)", err)
		}
		e.dir = dir
	}
	if e.live == nil {
		e.moved.Add(1) // a reduce task that merges runs is not stuck
	}
	return filepath.Join(e.dir, fmt.Sprintf("run-%06d", e.spills.Add(1))), nil
}

func (e *engine) removeRuns() {
	for _, r := range e.foldRuns {
		_ = r.Remove()
	}
	for _, r := range e.grpRuns {
		_ = r.Remove()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
}

// spillFold writes what a combiner holds as a run.
func (e *engine) spillFold(c *fold.Combiner) error {
	path, err := e.runPath()
	if err != nil {
		return err
	}
	var sample *pairs.BottomK
	if e.sample != nil {
		sample = pairs.NewBottomK(e.sampleSize())
	}
	records := c.Records()
	run, folded, err := c.WriteRun(path, sample)
	if err != nil {
		return err
	}
	e.runsMu.Lock()
	defer e.runsMu.Unlock()
	e.foldRuns = append(e.foldRuns, run)
	e.folded += folded
	e.combined += records
	e.spilled += run.Bytes()
	if sample != nil {
		e.sample.Merge(sample)
	}
	if len(e.foldRuns) >= maxRuns {
		return e.compactFold(context.Background())
	}
	return nil
}

// spillGroup writes what a collector holds as a run.
func (e *engine) spillGroup(c *group.Collector) error {
	path, err := e.runPath()
	if err != nil {
		return err
	}
	var sample *pairs.BottomK
	if e.sample != nil {
		sample = pairs.NewBottomK(e.sampleSize())
	}
	run, err := c.WriteRun(path, sample)
	if err != nil {
		return err
	}
	e.runsMu.Lock()
	defer e.runsMu.Unlock()
	e.grpRuns = append(e.grpRuns, run)
	e.combined += run.Pairs()
	e.spilled += run.Bytes()
	if sample != nil {
		e.sample.Merge(sample)
	}
	if len(e.grpRuns) >= maxRuns {
		return e.compactGroup(context.Background())
	}
	return nil
}

// maxRuns is how many runs there may be before some are merged: each is an open
// file, and a process may have only so many. Tests lower it.
var maxRuns = 256

// fanIn is how many runs a merge may read at once: their cursors are to take a
// quarter of the memory at most, for all workers together.
func (e *engine) fanIn() int {
	per := spill.CursorMemory(0) * int64(e.opts.Workers)
	return max(2, min(int(max(e.mem.budget/4/per, 4)), maxRuns/2))
}

// compactGroup merges runs until few enough are left to be merged at once.
func (e *engine) compactGroup(ctx context.Context) error {
	runs, err := e.compact(ctx, e.grpRuns, spill.Options{}, e.fanIn())
	e.grpRuns = runs
	return err
}

// compactFold does the same with runs of folded pairs; only those whose lanes
// have the same scale can be merged.
func (e *engine) compactFold(ctx context.Context) error {
	if len(e.foldRuns) <= e.fanIn() {
		return nil
	}
	byScale := map[string][]fold.Run{}
	for _, r := range e.foldRuns {
		byScale[string(r.Scale)] = append(byScale[string(r.Scale)], r)
	}
	fan := max(2, e.fanIn()/len(byScale))
	e.foldRuns = nil
	var failed error
	for _, same := range byScale {
		runs := make([]*spill.Run, len(same))
		for i, r := range same {
			runs[i] = r.Run
		}
		if failed == nil {
			runs, failed = e.compact(ctx, runs, fold.RunOptions, fan)
		}
		for _, r := range runs {
			e.foldRuns = append(e.foldRuns, fold.Run{Run: r, Scale: same[0].Scale})
		}
	}
	return failed
}

func (e *engine) compact(ctx context.Context, runs []*spill.Run, write spill.Options, fan int) ([]*spill.Run, error) {
	if len(runs) <= fan {
		return runs, nil
	}
	var failed error
	out, err := spill.Compact(ctx, runs, spill.CompactOptions{
		Write: write, FanIn: fan,
		NewPath: func() string {
			path, err := e.runPath()
			if err != nil {
				failed = err
			}
			return path
		},
	})
	if failed != nil {
		err = failed
	}
	return out, err
}
