// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"cmp"
	"fmt"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

var topkDefinition = Definition{
	Name:  "topk",
	Short: "the most frequent lines, words or values of a field",
	Long: `Rows are the K most frequent lines and how often each occurs, the most frequent
first, equally frequent ones in order of the line. With --words it is words
(runs of non-white-space), with --field the values of a column of csv, tsv, jsonl
or parquet. The counts are exact.`,
	Example: `  queries | quern topk -k 20 -
  quern topk --field url -k 5 logs/*.jsonl`,
	New: func() Options { return &topkOptions{K: 10} },
}

type topkOptions struct {
	K     int    `name:"k" short:"k" help:"how many"`
	Words bool   `name:"words" help:"words, not lines"`
	Field string `name:"field" short:"f" help:"values of that column, not lines"`
	RowFormat
}

func (o *topkOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	if o.K < 1 {
		return nil, fmt.Errorf("--k %d: must be at least 1", o.K)
	}
	it, err := itemChoice{o.Words, o.Field, &o.RowFormat}.items("topk", in, inputs)
	if err != nil {
		return nil, err
	}
	item := cmp.Or(o.Field, "line")
	if o.Words {
		item = "word"
	}
	return &mapreduce.Job[[]byte, int64, int64]{
		Name:        "topk",
		KeyColumns:  []string{item},
		Columns:     []string{"count"},
		NewBlockMap: mapItems(it, emitOne),
		FirstBlock:  it.firstBlock(),
		Fold:        mapreduce.Sum[int64](),
		Top:         o.K,
		Rank:        largestFirst,
	}, nil
}
