// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
)

// A source reads records with fields. All goroutines of a job share it; each
// has a reader of its own.
type source struct {
	layout *rows.Layout
	typed  bool // fields have types of their own (jsonl, parquet)
}

// learn is a job's FirstBlock: it takes the header of files whose blocks are
// spread over several readers, and which can perhaps be read only once.
func (s *source) learn(b mapreduce.Block) error { return s.layout.Learn(b) }

// A rowReader goes through the records of blocks.
type rowReader struct {
	*rows.Parser
	skipped int64
}

func (s *source) newReader() *rowReader { return &rowReader{Parser: s.layout.NewParser()} }

// counters is what a rowReader needs of an emitter.
type counters interface {
	AddRecords(n int64)
	Counter(name string) *mapreduce.Counter
}

// begin begins a block; Next then goes through its records.
func (r *rowReader) begin(b mapreduce.Block) error { return r.Reset(b) }

// end ends a block after so many records, and gives the error that Next met.
func (r *rowReader) end(counts counters, records int64) error {
	counts.AddRecords(records)
	if n := r.Skipped(); n > r.skipped {
		counts.Counter("records skipped").Add(n - r.skipped)
		r.skipped = n
	}
	return r.Err()
}

// each calls do for every record of b, while the parser stands at it.
func (r *rowReader) each(b mapreduce.Block, counts counters, do func() error) error {
	if err := r.begin(b); err != nil {
		return err
	}
	records := int64(0)
	for r.Next() {
		records++
		if err := do(); err != nil {
			return err
		}
	}
	return r.end(counts, records)
}

// newHeaderFunc returns the function that reads the beginning of a file for
// goroutines which got a block from its middle.
func newHeaderFunc(options input.Options) rows.HeaderFunc {
	return func(file *input.File) ([]byte, error) {
		if file.Path == "-" {
			return nil, errors.New("standard input cannot be read twice")
		}
		return readHead(file.Path, options)
	}
}

// readHead reads the first block of a file.
func readHead(path string, options input.Options) ([]byte, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	plan, err := input.Discover(ctx, []string{path}, options)
	if err != nil {
		return nil, err
	}
	if len(plan.Splits) == 0 {
		return nil, nil
	}
	r, err := plan.Open(ctx, plan.Splits[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read from
	b, err := r.ReadBlock(nil)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the beginning: %w", err)
	}
	return b.Data, nil
}
