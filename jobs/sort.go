// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"iter"
	"strconv"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

var sortDefinition = Definition{
	Name:  "sort",
	Short: "sort lines",
	Long: `Rows are the lines in bytewise order (as with LC_ALL=C sort), parts in order too.
--numeric sorts by number, exactly and whatever its size; what is no number
comes before all numbers. --field sorts by a column of csv, tsv, jsonl or parquet,
or, in other files, by the N-th word of the line; rows are then the records as
they stand in the file, without a header. Lines with equal keys are in bytewise
order. --reverse turns the whole order around. --unique keeps one of lines with
equal keys: the first.`,
	Example: `  quern sort -o sorted huge.txt
  quern sort --numeric --reverse --field bytes --input-format csv sizes.txt`,
	New: func() Options { return &sortOptions{} },
}

type sortOptions struct {
	Field   string `name:"field" short:"f" help:"sort by that column; in plain text: by the word of that number"`
	Numeric bool   `name:"numeric" short:"N" help:"sort by number"`
	Reverse bool   `name:"reverse" short:"r" help:"last first"`
	Unique  bool   `name:"unique" short:"u" help:"only one of lines with equal keys"`
	RowFormat
}

func (o *sortOptions) Build(in *input.Options, inputs []string) (mapreduce.Runnable, error) {
	if o.Field == "" {
		if err := o.RowFormat.unused(); err != nil {
			return nil, err
		}
		if err := linesOnly("sort", in); err != nil {
			return nil, err
		}
		cut := recordCutter{in.Delimiter}
		if o.Numeric {
			return inOrder{o.byKey(o.lineMap(cut, func() lineKey { return func(line []byte) []byte { return line } }))}, nil
		}
		if o.Reverse {
			return inOrder{o.reversedLines(cut)}, nil
		}
		return inOrder{o.wholeLines(cut)}, nil
	}
	kind, err := o.RowFormat.kind(in, inputs)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(o.Field); err == nil && kind == "" && n > 0 {
		return inOrder{o.byKey(o.lineMap(recordCutter{in.Delimiter}, func() lineKey { return nthWord(n) }))}, nil
	}
	src, err := o.RowFormat.open(in, inputs, []string{o.Field})
	if err != nil {
		return nil, err
	}
	in.Columns = nil // rows are records as they stand, with all columns
	job := o.byKey(o.fieldMap(src))
	job.FirstBlock = src.learn
	return inOrder{job}, nil
}

// wholeLines sorts lines by themselves: equal lines are counted, and written as
// often as they were there.
func (o *sortOptions) wholeLines(cut recordCutter) mapreduce.Runnable {
	job := &mapreduce.Job[[]byte, int64, int64]{
		Name:        "sort",
		NewBlockMap: lineMapper(cut, emitOne),
		Fold:        mapreduce.Sum[int64](),
		KeyColumns:  []string{"line"},
		Columns:     []string{},
	}
	if !o.Unique {
		job.Repeat = func(_ []byte, n int64) int64 { return n }
	}
	return job
}

// reversedLines sorts lines by themselves, the last first. Their keys are not
// what is to be written, so a reduce turns them back.
func (o *sortOptions) reversedLines(cut recordCutter) mapreduce.Runnable {
	total := func(counts iter.Seq[int64]) int64 {
		n := int64(0)
		for c := range counts {
			n += c
		}
		return n
	}
	return &mapreduce.Job[[]byte, int64, []byte]{
		Name: "sort",
		NewBlockMap: func() func(mapreduce.Block, *wordEmitter) error {
			var key []byte
			return lineMapper(cut, func(emit *wordEmitter, line []byte) {
				key = appendDescending(key[:0], line)
				emit.Emit(key, 1)
			})()
		},
		Combine: func(_ []byte, counts iter.Seq[int64], yield func(int64)) error {
			yield(total(counts))
			return nil
		},
		Reduce: func(line []byte, counts iter.Seq[int64], yield func([]byte)) error {
			line = parseDescending(nil, line)
			n := total(counts)
			if o.Unique {
				n = 1
			}
			for range n {
				yield(line)
			}
			return nil
		},
		Columns: []string{"line"},
		HideKey: true,
	}
}

type lineEmitter = mapreduce.Emitter[[]byte, []byte]

// byKey sorts lines by keys that newMap emits.
func (o *sortOptions) byKey(newMap func() func(mapreduce.Block, *lineEmitter) error) *mapreduce.Job[[]byte, []byte, []byte] {
	job := &mapreduce.Job[[]byte, []byte, []byte]{
		Name:        "sort",
		NewBlockMap: newMap,
		Reduce: func(_ []byte, lines iter.Seq[[]byte], yield func([]byte)) error {
			for line := range lines {
				yield(line)
				if o.Unique {
					break
				}
			}
			return nil
		},
		Columns: []string{"line"},
		HideKey: true,
	}
	if o.Reverse {
		job.ValueOrder = appendDescending
	}
	return job
}

// appendKey appends the bytes by which a field sorts.
func (o *sortOptions) appendKey(dst, field []byte) []byte {
	if !o.Numeric {
		if o.Reverse {
			return appendDescending(dst, field)
		}
		return append(dst, field...)
	}
	start := len(dst)
	dst, _ = appendNumberKey(dst, field)
	if o.Reverse {
		invert(dst[start:])
	}
	return dst
}

func (o *sortOptions) lineMap(cut recordCutter, newField func() lineKey) func() func(mapreduce.Block, *lineEmitter) error {
	return func() func(mapreduce.Block, *lineEmitter) error {
		field := newField()
		var key []byte
		return lineMapper(cut, func(emit *lineEmitter, line []byte) {
			key = o.appendKey(key[:0], field(line))
			emit.Emit(key, line)
		})()
	}
}

func (o *sortOptions) fieldMap(src *source) func() func(mapreduce.Block, *lineEmitter) error {
	return func() func(mapreduce.Block, *lineEmitter) error {
		reader := src.newReader()
		var key []byte
		return func(b mapreduce.Block, emit *lineEmitter) error {
			return reader.each(b, emit, func() error {
				key = o.appendKey(key[:0], reader.Field(0))
				emit.Emit(key, reader.Record())
				return nil
			})
		}
	}
}

// lineKey finds what a line is sorted by, for one goroutine.
type lineKey func(line []byte) []byte

// nthWord finds the n-th word of a line, counted from 1; empty if there are fewer.
func nthWord(n int) lineKey {
	edges := new(edgeBuffer)
	return func(line []byte) []byte {
		t := newTokenizer(line)
		n := n
		for have := t.next(edges); have > 0; have = t.next(edges) {
			if 2*n <= have {
				return line[edges[2*n-2]:edges[2*n-1]]
			}
			n -= have / 2
		}
		return nil
	}
}

// givesLines says that rows are lines of the input and nothing else.
func (*sortOptions) givesLines() bool { return true }
