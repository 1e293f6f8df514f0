// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
)

var histogramDefinition = Definition{
	Name:  "histogram",
	Short: "how many numbers fall into each bin of equal width",
	Long: `Lines are numbers; with --field they are a column of csv, tsv, jsonl or parquet.
Bins are W wide and begin at multiples of W: a bin that begins at B has the
numbers v with B <= v < B + W. With --buckets N --from A --to B they begin at A
and are (B-A)/N wide; numbers outside of that range fall into further bins of the
same width. All is computed in exact decimals.

A row is where a bin begins and how many numbers are in it, in ascending order;
bins without numbers are left out. Blank lines and fields are no numbers.`,
	Example: `  quern histogram --field ms --width 50 requests.jsonl
  quern histogram --buckets 20 --from 0 --to 1 scores.txt`,
	New: func() Options { return &histogramOptions{} },
}

type histogramOptions struct {
	Field   string `name:"field" short:"f" help:"column of numbers; default: whole lines"`
	Width   string `name:"width" help:"width of a bin; default: 1"`
	Buckets int    `name:"buckets" help:"so many bins from --from to --to"`
	From    string `name:"from" help:"where the first bin begins; default: 0"`
	To      string `name:"to" help:"where the last of --buckets ends"`
	RowFormat
}

func (o *histogramOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	bins, err := o.bins()
	if err != nil {
		return nil, err
	}
	var newMap blockMapper[int64, int64]
	var first func(mapreduce.Block) error
	if o.Field != "" {
		src, err := o.RowFormat.open(in, inputs, []string{o.Field})
		if err != nil {
			return nil, err
		}
		newMap, first = histogramFields(src, bins), src.learn
	} else {
		if err := o.RowFormat.unused(); err != nil {
			return nil, err
		}
		if err := linesOnly("histogram", in); err != nil {
			return nil, err
		}
		newMap = histogramLines(recordCutter{in.Delimiter}, bins)
	}
	return &mapreduce.Job[int64, int64, []output.Value]{
		Name:        "histogram",
		NewBlockMap: newMap,
		FirstBlock:  first,
		Fold: mapreduce.NewFold([]mapreduce.Op{mapreduce.OpMax, mapreduce.OpSum},
			func(dst []int64, bin int64) { dst[0], dst[1] = bin, 1 },
			func(l mapreduce.Lanes) ([]output.Value, error) {
				start, err := bins.start(l.V[0])
				if err != nil {
					return nil, err
				}
				return []output.Value{start, {Kind: output.Int, I: l.V[1]}}, nil
			}),
		Columns:     []string{"from", "count"},
		ColumnKinds: []output.Kind{output.Decimal, output.Int},
		HideKey:     true,
	}, nil
}

func (o *histogramOptions) bins() (*bins, error) {
	if o.Buckets != 0 {
		if o.Width != "" {
			return nil, errors.New("--buckets and --width exclude each other")
		}
		if o.Buckets < 0 || o.From == "" || o.To == "" {
			return nil, errors.New("--buckets needs a number above 0, --from and --to")
		}
	} else if o.To != "" {
		return nil, errors.New("--to is for --buckets")
	}
	decimal := func(option, text string) (*big.Rat, error) {
		m, scale, err := rows.ParseDecimal([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", option, err)
		}
		return ratOf(m, scale), nil
	}
	origin, width := new(big.Rat), big.NewRat(1, 1)
	var err error
	if o.From != "" {
		if origin, err = decimal("from", o.From); err != nil {
			return nil, err
		}
	}
	if o.Width != "" {
		if width, err = decimal("width", o.Width); err != nil {
			return nil, err
		}
	}
	if o.Buckets > 0 {
		to, err := decimal("to", o.To)
		if err != nil {
			return nil, err
		}
		width.Sub(to, origin)
		width.Quo(width, big.NewRat(int64(o.Buckets), 1))
	}
	if width.Sign() <= 0 {
		return nil, errors.New("bins must be wider than 0: check --width, or --from and --to")
	}
	return newBins(origin, width)
}

func histogramLines(cut recordCutter, bins *bins) blockMapper[int64, int64] {
	return func() func(mapreduce.Block, *binEmitter) error {
		return func(b mapreduce.Block, emit *binEmitter) error {
			records := int64(0)
			for data := b.Data; len(data) > 0; records++ {
				at := len(b.Data) - len(data)
				var record []byte
				record, data = cut.next(data)
				if isBlank(record) {
					emit.Counter(blankFields).Add(1)
					continue
				}
				bin, err := bins.of(record)
				if err != nil {
					e := &rows.Error{File: b.File.Path, Offset: b.Offset + int64(at), Err: err}
					if b.Line > 0 && len(cut.delimiter) == 0 {
						e.Line = b.Line + int64(bytes.Count(b.Data[:at], []byte{'\n'}))
					}
					return e
				}
				emit.Emit(bin, bin)
			}
			emit.AddRecords(records)
			return nil
		}
	}
}

func histogramFields(src *source, bins *bins) blockMapper[int64, int64] {
	return func() func(mapreduce.Block, *binEmitter) error {
		reader := src.newReader()
		return func(b mapreduce.Block, emit *binEmitter) error {
			return reader.each(b, emit, func() error {
				field := reader.Field(0)
				if isBlank(field) {
					emit.Counter(blankFields).Add(1)
					return nil
				}
				bin, err := bins.of(field)
				if err != nil {
					return reader.FieldError(0, err)
				}
				emit.Emit(bin, bin)
				return nil
			})
		}
	}
}

// binEmitter takes the bin that a number falls into.
type binEmitter = mapreduce.Emitter[int64, int64]
