// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

// wordEmitter takes what is counted: a word, a line, a field.
type wordEmitter = mapreduce.Emitter[[]byte, int64]

// emitOne counts an item.
func emitOne(emit *wordEmitter, item []byte) { emit.Emit(item, 1) }

// blockMapper is the type of Job.NewBlockMap.
type blockMapper[K, V any] = func() func(mapreduce.Block, *mapreduce.Emitter[K, V]) error

// lineMapper makes a map over blocks that puts each record.
func lineMapper[K, V any](cut recordCutter, put func(emit *mapreduce.Emitter[K, V], line []byte)) blockMapper[K, V] {
	return func() func(mapreduce.Block, *mapreduce.Emitter[K, V]) error {
		return func(b mapreduce.Block, emit *mapreduce.Emitter[K, V]) error {
			records := int64(0)
			for data := b.Data; len(data) > 0; records++ {
				var record []byte
				record, data = cut.next(data)
				put(emit, record)
			}
			emit.AddRecords(records)
			return nil
		}
	}
}

// wordMapper makes a map over blocks that puts each word.
func wordMapper[K, V any](cut recordCutter, put func(emit *mapreduce.Emitter[K, V], word []byte)) blockMapper[K, V] {
	return func() func(mapreduce.Block, *mapreduce.Emitter[K, V]) error {
		edges := new(edgeBuffer)
		words := func(text []byte, emit *mapreduce.Emitter[K, V]) {
			t := newTokenizer(text)
			for n := t.next(edges); n > 0; n = t.next(edges) {
				for i := 0; i < n; i += 2 {
					put(emit, text[edges[i]:edges[i+1]])
				}
			}
		}
		return func(b mapreduce.Block, emit *mapreduce.Emitter[K, V]) error {
			if cut.isWhiteSpace() {
				words(b.Data, emit)
				return nil
			}
			for data := b.Data; len(data) > 0; {
				var record []byte
				record, data = cut.next(data)
				words(record, emit)
			}
			return nil
		}
	}
}

// fieldMapper makes a map over blocks that puts the first wanted column of each
// row; rows that lack it (or have null there) are counted and left out.
func fieldMapper[K, V any](src *source, put func(emit *mapreduce.Emitter[K, V], field []byte)) blockMapper[K, V] {
	return func() func(mapreduce.Block, *mapreduce.Emitter[K, V]) error {
		reader := src.newReader()
		return func(b mapreduce.Block, emit *mapreduce.Emitter[K, V]) error {
			missing := int64(0)
			err := reader.each(b, emit, func() error {
				if field := reader.Field(0); field != nil {
					put(emit, field)
				} else {
					missing++
				}
				return nil
			})
			if missing > 0 {
				emit.Counter(missingFields).Add(missing)
			}
			return err
		}
	}
}

// missingFields is the counter of rows that lack the field a job is about.
const missingFields = "rows without the field"

// itemChoice says what a job looks at: lines, words, or a field of rows.
type itemChoice struct {
	words bool
	field string
	rows  *RowFormat
}

// items says how a job gets at what it looks at.
type items struct {
	source *source      // of fields; nil: lines or words
	cut    recordCutter // for lines and words
	words  bool
}

func (c itemChoice) items(job string, in *input.Options, inputs []string) (*items, error) {
	switch {
	case c.words && c.field != "":
		return nil, errors.New("--words and --field exclude each other")
	case c.field != "":
		src, err := c.rows.open(in, inputs, []string{c.field})
		if err != nil {
			return nil, err
		}
		return &items{source: src}, nil
	}
	if err := c.rows.unused(); err != nil {
		return nil, err
	}
	if err := linesOnly(job, in); err != nil {
		return nil, err
	}
	return &items{cut: recordCutter{in.Delimiter}, words: c.words}, nil
}

// mapItems makes a map over blocks that puts each item.
func mapItems[K, V any](it *items, put func(emit *mapreduce.Emitter[K, V], item []byte)) blockMapper[K, V] {
	switch {
	case it.source != nil:
		return fieldMapper(it.source, put)
	case it.words:
		return wordMapper(it.cut, put)
	}
	return lineMapper(it.cut, put)
}

// firstBlock is the job's FirstBlock.
func (it *items) firstBlock() func(mapreduce.Block) error {
	if it.source == nil {
		return nil
	}
	return it.source.learn
}
