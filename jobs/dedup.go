// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"iter"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

var dedupDefinition = Definition{
	Name:  "dedup",
	Short: "each distinct line once",
	Long: `Rows are the distinct lines in bytewise order, as sort -u gives them. With
--field, there is one record per value of that column: of those that share a
value the one that sorts first, as it stands in the file (without a header); they
are in order of the value.`,
	Example: `  quern dedup -o unique 'urls/*.txt'
  quern dedup --field user_id visits.csv`,
	New: func() Options { return &dedupOptions{} },
}

type dedupOptions struct {
	Field string `name:"field" short:"f" help:"one record per value of that column"`
	RowFormat
}

func (o *dedupOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	if o.Field != "" {
		src, err := o.RowFormat.open(in, inputs, []string{o.Field})
		if err != nil {
			return nil, err
		}
		in.Columns = nil // rows are records as they stand, with all columns
		return inOrder{dedupRecords(src)}, nil
	}
	it, err := itemChoice{rows: &o.RowFormat}.items("dedup", in, inputs)
	if err != nil {
		return nil, err
	}
	return inOrder{&mapreduce.Job[[]byte, int64, struct{}]{
		Name:        "dedup",
		NewBlockMap: mapItems(it, emitOne),
		Fold:        presence(),
		KeyColumns:  []string{"line"},
	}}, nil
}

func dedupRecords(src *source) mapreduce.Runnable {
	smallest := func(records iter.Seq[[]byte], yield func([]byte)) {
		var least []byte
		first := true
		for r := range records {
			if first || bytes.Compare(r, least) < 0 {
				least = append(least[:0], r...)
			}
			first = false
		}
		yield(least)
	}
	return &mapreduce.Job[[]byte, []byte, []byte]{
		Name: "dedup",
		NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[[]byte, []byte]) error {
			reader := src.newReader()
			return func(b mapreduce.Block, emit *mapreduce.Emitter[[]byte, []byte]) error {
				return reader.each(b, emit, func() error {
					emit.Emit(reader.Field(0), reader.Record())
					return nil
				})
			}
		},
		Combine: func(_ []byte, records iter.Seq[[]byte], yield func([]byte)) error {
			smallest(records, yield)
			return nil
		},
		Reduce: func(_ []byte, records iter.Seq[[]byte], yield func([]byte)) error {
			smallest(records, yield)
			return nil
		},
		FirstBlock: src.learn,
		Columns:    []string{"line"},
		HideKey:    true,
	}
}

// givesLines says that rows are lines of the input and nothing else.
func (*dedupOptions) givesLines() bool { return true }
