// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"iter"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

var distinctDefinition = Definition{
	Name:  "distinct",
	Short: "how many different lines, words or values of a field there are",
	Long: `The result is one row with one number: how many different lines there are; with
--words, different words (runs of non-white-space); with --field, different values
of a column of csv, tsv, jsonl or parquet, as written, rows without the field left
out. The number is exact. With --approx it is an estimate by HyperLogLog (standard
error 0.81 %), which takes next to no memory.`,
	Example: `  quern distinct access.log
  quern distinct --approx --field user_id 'events/*.parquet'`,
	New: func() Options { return &distinctOptions{} },
}

type distinctOptions struct {
	Words  bool   `name:"words" help:"words, not lines"`
	Field  string `name:"field" short:"f" help:"values of that column, not lines"`
	Approx bool   `name:"approx" help:"an estimate (standard error 0.81 %) in little memory"`
	RowFormat
}

func (o *distinctOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	it, err := itemChoice{o.Words, o.Field, &o.RowFormat}.items("distinct", in, inputs)
	if err != nil {
		return nil, err
	}
	if o.Approx {
		return distinctEstimate(it), nil
	}
	return &mapreduce.Job[[]byte, int64, struct{}]{
		Name:        "distinct",
		NewBlockMap: mapItems(it, emitOne),
		FirstBlock:  it.firstBlock(),
		Fold:        presence(),
		CountKeys:   true,
	}, nil
}

// presence is the fold of jobs that only want to know which keys there are.
func presence() mapreduce.Fold[int64, struct{}] {
	return mapreduce.NewFold([]mapreduce.Op{mapreduce.OpOr},
		func(dst []int64, _ int64) { dst[0] = 0 },
		func(mapreduce.Lanes) (struct{}, error) { return struct{}{}, nil })
}

// register is what an item tells a sketch.
type register struct {
	number uint32
	rank   int64
}

func distinctEstimate(it *items) mapreduce.Runnable {
	return &mapreduce.Job[bool, register, int64]{
		Name: "distinct",
		NewBlockMap: mapItems(it, func(emit *mapreduce.Emitter[bool, register], item []byte) {
			number, rank := mapreduce.DistinctRegister(item)
			emit.Emit(false, register{number, rank})
		}),
		FirstBlock: it.firstBlock(),
		Fold: mapreduce.NewSubFold([]mapreduce.Op{mapreduce.OpMax},
			func(dst []int64, v register) uint32 {
				dst[0] = v.rank
				return v.number
			},
			func(subs iter.Seq2[uint32, mapreduce.Lanes]) (int64, error) {
				return mapreduce.DistinctEstimate(func(yield func(int64) bool) {
					for _, l := range subs {
						if !yield(l.V[0]) {
							return
						}
					}
				}), nil
			}),
		Empty:   func() (int64, bool) { return 0, true },
		HideKey: true,
	}
}
