// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
)

// The strategies of a join. Its rows and their order are the same by either.
const (
	strategyAuto        = "auto"
	strategyBroadcast   = "broadcast"
	strategyRepartition = "repartition"
)

// choice is what a strategy is chosen by. It follows from the arguments and the
// inputs alone, so that all processes of a job come to the same.
type choice struct {
	strategy string
	limit    int64 // bytes
	small    int   // the smaller side
	outer    [2]bool
	size     int64 // of the smaller side, on disk
	packed   bool  // its content is larger than that
	once     bool  // it can be read only once
}

var sideNames = [2]string{"left", "right"}

// choose returns the strategy, and why.
func choose(c choice) (strategy, why string, err error) {
	name := sideNames[c.small]
	is := fmt.Sprintf("the smaller side is the %s one (%s)", name, humanize.IBytes(uint64(c.size)))
	var not string // why it can't be broadcast
	switch {
	case c.outer == [2]bool{true, true}:
		not = "a full join asks for the rows of both sides that have no partner, which no mapper can know of the side that all have"
	case c.outer[c.small]:
		not = fmt.Sprintf("%s, and a %s join asks for its rows that have no partner, which no mapper can know", is, name)
	case c.once:
		not = "the smaller side is standard input, a pipe or a device, which can be read only once"
	}
	switch {
	case c.strategy == strategyRepartition:
		return strategyRepartition, "repartition: it was asked for", nil
	case not != "" && c.strategy == strategyBroadcast:
		return "", "", fmt.Errorf("--strategy broadcast is not possible: %s; say --strategy repartition, or auto", not)
	case not != "":
		return strategyRepartition, "repartition: " + not, nil
	case c.strategy == strategyBroadcast:
		return strategyBroadcast, "broadcast: it was asked for; " + is, nil
	case c.size > c.limit:
		return strategyRepartition, fmt.Sprintf("repartition: %s, over the broadcast limit of %s", is, humanize.IBytes(uint64(c.limit))), nil
	case c.packed:
		return strategyBroadcast, fmt.Sprintf("broadcast: %s; if that is more than the broadcast limit of %s once decompressed, or more than fits in memory as a table, it is a repartition join after all",
			is, humanize.IBytes(uint64(c.limit))), nil
	}
	return strategyBroadcast, fmt.Sprintf("broadcast: %s, within the broadcast limit of %s; should it not fit in memory as a table, it is a repartition join after all", is, humanize.IBytes(uint64(c.limit))), nil
}

// spreadSide is the side of a join that all mappers get as a table.
type spreadSide struct {
	inputs      []string
	options     input.Options
	limit       int64  // bytes of content
	must        bool   // broadcast was asked for: whatever its size
	fingerprint uint64 // of the job
	// open returns the table in a run; nil: rows of both sides are to be emitted.
	open func() (*joinTable, error)
}

// fingerprint tells the tables of different joins apart.
func (j *joiner) fingerprint(on [2]string, inputs []string) uint64 {
	return xxh3.HashString(fmt.Sprintf("%q %q %d %v %q %q %v %v", on, inputs, j.small, j.outer,
		j.sides[left].columns, j.sides[right].columns, j.sides[left].whole, j.sides[right].whole))
}

// source makes the table of the small side when it is read. Where the side turns out to be
// too large and a broadcast was not asked for, it is empty: the join is then a repartition
// join, and a note says so.
func (j *joiner) source() mapreduce.Source {
	what := "a table of " + strings.Join(j.spread.inputs, ", ")
	return mapreduce.ReaderSource(func(ctx context.Context) (io.ReadCloser, error) {
		b, err := j.build(ctx, mapreduce.SideRoom(ctx)/2) // beside it there is what it is made of
		if err != nil {
			return nil, err
		}
		if b == nil {
			return io.NopCloser(strings.NewReader("")), nil
		}
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(b.write(w)) }()
		return r, nil
	}).Called(what)
}

// build reads the small side; nil: it is too large, which a note says. memory bounds what that takes, and the
// size of the table.
func (j *joiner) build(ctx context.Context, memory int64) (*tableBuilder, error) {
	b := &tableBuilder{maxGroup: j.maxGroup, memory: memory, fingerprint: j.spread.fingerprint}
	err := j.collect(ctx, b)
	if err == nil {
		err = b.finish()
	}
	var large *tooLargeError
	var over *overLimitError
	switch {
	case err == nil:
		return b, nil
	case errors.As(err, &over), errors.As(err, &large) && !j.spread.must:
		mapreduce.SideNote(ctx, fmt.Sprintf("a repartition join after all: the smaller side is the %s one, and %v", sideNames[j.small], err))
		return nil, nil
	case large != nil:
		return nil, mapreduce.Permanent(fmt.Errorf("it can't be broadcast: %w; give more --memory (on a cluster --task-memory), or say --strategy repartition", err))
	}
	return nil, err
}

// overLimitError says that a side has more content than auto broadcasts.
type overLimitError struct{ limit int64 }

func (e *overLimitError) Error() string {
	return fmt.Sprintf("it has more than the broadcast limit of %s, decompressed", humanize.IBytes(uint64(e.limit)))
}

// collect reads the small side.
func (j *joiner) collect(ctx context.Context, b *tableBuilder) error {
	plan, err := input.Discover(ctx, j.spread.inputs, j.spread.options)
	if err != nil {
		return err
	}
	reader := j.sides[j.small].source.newReader()
	var row []byte
	var content int64
	add := func() error {
		fields := reader.Fields()
		if fields[0] == nil {
			return nil
		}
		row = j.appendRow(row[:0], j.small, reader)
		return b.add(fields[0], row)
	}
	for _, s := range plan.Splits {
		if err := j.collectSplit(ctx, plan, s, reader, &content, add); err != nil {
			var at *rows.Error
			if errors.As(err, &at) {
				return withLine(ctx, plan, at)
			}
			return err
		}
	}
	return nil
}

func (j *joiner) collectSplit(ctx context.Context, plan *input.Plan, s input.Split, reader *rowReader, content *int64, add func() error) (err error) {
	r, err := plan.Open(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		if closed := r.Close(); err == nil {
			err = closed
		}
	}()
	var buf []byte
	for {
		block, err := r.ReadBlock(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if *content += int64(len(block.Data)); *content > j.spread.limit && !j.spread.must {
			return &overLimitError{j.spread.limit}
		}
		if err := reader.begin(block); err != nil {
			return err
		}
		for reader.Next() {
			if err := add(); err != nil {
				return err
			}
		}
		if err := reader.Err(); err != nil {
			return err
		}
		buf = block.Data[:0]
	}
}

// withLine finds the line of an error.
func withLine(ctx context.Context, plan *input.Plan, at *rows.Error) error {
	for i := range plan.Files {
		if f := &plan.Files[i]; at.Line == 0 && f.Path == at.File {
			if n, err := plan.LineAt(ctx, f, at.Offset); err == nil {
				at.Line = n
			}
		}
	}
	return at
}

// table returns the table of the small side; nil if rows of both sides are to be emitted.
func (j *joiner) table() (*joinTable, error) {
	if j.spread == nil {
		return nil, nil
	}
	return j.spread.open()
}
