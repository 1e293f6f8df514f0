// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"fmt"
	"slices"

	"github.com/quernmr/quern/mapreduce/input"
)

// Explain finds the input and says how Run would go about it.
func (j *Job[K, V, R]) Explain(ctx context.Context, opts Options) (*Explanation, error) {
	p, err := j.compile()
	if err != nil {
		return nil, err
	}
	return explain(ctx, p, opts)
}

func explain(ctx context.Context, c code, opts Options) (*Explanation, error) {
	e, err := newEngine(c, opts)
	if err != nil {
		return nil, err
	}
	plan, err := input.Discover(ctx, e.opts.Inputs, e.opts.Input)
	if err != nil {
		return nil, err
	}
	if err := e.findSides(ctx); err != nil {
		return nil, err
	}
	for i := range e.found {
		e.sides = append(e.sides, e.found[i].info())
	}
	x := &Explanation{
		Job: e.t.name, Files: len(plan.Files), Splits: len(plan.Splits), Bytes: plan.TotalBytes,
		Partitions: e.opts.Partitions, TotalOrder: e.ordered(), Reduce: "fold", Workers: e.opts.Workers, Memory: e.mem.budget, Notes: append(plan.Notes, e.notes...), SideInputs: e.sides,
	}
	switch {
	case e.t.iter != nil:
		x.Reduce = "iteration"
	case e.t.grouped:
		x.Reduce = "grouped"
	}
	for _, op := range e.t.ops {
		x.Lanes = append(x.Lanes, op.String())
	}
	x.Why = e.explain(plan)
	return x, nil
}

// explain says in words what was chosen.
func (e *engine) explain(plan *input.Plan) []string {
	all := slices.Clone(e.t.why)
	why := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch {
	case e.t.iter != nil:
		rounds := "as many rounds as it takes"
		if n := e.t.iter.limit(); n > 0 {
			rounds = fmt.Sprintf("%d rounds at most", n)
		}
		why("iteration: the input is read once and stays in memory as the program keeps it; %s, each of which adds up the sums of all splits as integers", rounds)
	case e.t.grouped:
		why("grouped: the job has a Reduce function, which sees all values of a key; pairs are sorted by key and value")
	default:
		why("fold: the result of a key is %d lane(s) of 64-bit integers, combined as they are emitted", len(e.t.ops))
	}
	streams := 0
	for _, s := range plan.Splits {
		if s.Stream {
			streams++
		}
	}
	if streams > 0 && e.t.iter == nil {
		why("%d split(s) can only be read from front to back; their blocks are shared among workers when there are fewer splits than workers", streams)
	}
	switch {
	case e.t.top:
		why("one part: the job keeps only its first rows")
	case e.t.countKeys:
		why("one part: the job only counts its keys")
	case e.opts.TotalOrder && e.opts.Partitions > 1:
		why("parts follow each other in key order, cut by a sample of the distinct keys that depends on nothing but them")
	case e.opts.Partitions > 1:
		why("a key's part is chosen by its hash; keys are sorted within each part")
	default:
		why("one part, sorted by key")
	}
	for _, s := range e.sides {
		if s.Size < 0 {
			why("side input %q is %s, read once and whole; its size is known then", s.Name, s.Source)
		} else {
			why("side input %q is %s, read once and whole: %d bytes", s.Name, s.Source, s.Size)
		}
	}
	if e.t.iter == nil {
		why("records may take %d MiB per worker before a sorted run goes to disk", e.mem.share>>20)
	}
	return all
}
