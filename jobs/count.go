// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

var countDefinition = Definition{
	Name:  "count",
	Short: "count how often each line occurs",
	Long: `A row is a line and its count, as sort | uniq -c would find them. An empty line
is the empty key. A carriage return before the line feed is no part of the line.`,
	Example: `  quern count --top 10 access.log
  cut -d' ' -f1 access.log | quern count --min-count 100 -`,
	New: func() Options { return &countOptions{} },
}

type countOptions struct {
	MinCount int64 `name:"min-count" help:"keep only what occurs at least that often"`
	Top      int   `name:"top" short:"n" help:"only that many rows: the most frequent, ties by key"`
}

func (o *countOptions) Build(in *input.Options, _ []string) (mapreduce.Runnable, error) {
	keep := frequency{o.MinCount, o.Top}
	if err := keep.check(); err != nil {
		return nil, err
	}
	if err := linesOnly("count", in); err != nil {
		return nil, err
	}
	job := &mapreduce.Job[[]byte, int64, int64]{
		Name:        "count",
		NewBlockMap: lineMapper(recordCutter{in.Delimiter}, emitOne),
		Fold:        mapreduce.Sum[int64](),
		KeyColumns:  []string{"line"},
		Columns:     []string{"count"},
	}
	keep.apply(job)
	return job, nil
}
