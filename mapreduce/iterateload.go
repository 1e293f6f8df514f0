// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/mapreduce/input"
)

// iterationSplit is how many bytes a split of a plain file has if the options do not say. Rounds
// run split by split on as many processors, again and again: there are to be enough for all of them in a small input too.
const iterationSplit = 4 << 20

// share is a split that a member has, and what it keeps of it.
type share struct {
	split  input.Split
	number int // among all splits of the input
	kept   any
}

// sharesFrom are those of a member that has the splits of a plan, the first of which has that number.
func sharesFrom(plan *input.Plan, first int) []share {
	shares := make([]share, len(plan.Splits))
	for i, s := range plan.Splits {
		shares[i] = share{split: s, number: first + i}
	}
	return shares
}

// text is a share as errors name it.
func (s *share) text(plan *input.Plan) string {
	names := make([]string, 0, 1)
	for _, f := range s.split.Files {
		names = append(names, plan.Files[f].Path)
	}
	switch {
	case len(names) > 2:
		names = append(names[:1], fmt.Sprintf("%d more", len(names)-1))
	case s.split.End >= 0 && len(names) == 1:
		names[0] = fmt.Sprintf("%s from %d to %d", names[0], s.split.Start, s.split.End)
	}
	return fmt.Sprintf("split %d (%s)", s.number, strings.Join(names, ", "))
}

// forEach calls do for 0 to n-1 by several goroutines. It returns the error of the lowest number
// that fails, whoever is faster, and waits for all that it started.
func forEach(ctx context.Context, workers, n int, do func(i int) error) error {
	var next, failed atomic.Int64
	failed.Store(int64(n))
	errs := make([]error, n)
	fail := func(i int64, err error) {
		errs[i] = err
		for {
			old := failed.Load()
			if i >= old || failed.CompareAndSwap(old, i) {
				return
			}
		}
	}
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			at, inside := int64(0), false
			defer func() {
				if inside { // the job's code ended the goroutine
					fail(at, errGoexit)
				}
			}()
			for {
				at = next.Add(1) - 1
				if at >= int64(n) || at > failed.Load() || ctx.Err() != nil {
					return
				}
				inside = true
				err := do(int(at))
				inside = false
				if err != nil {
					fail(at, err)
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if at := failed.Load(); at < int64(n) {
		return errs[at]
	}
	return nil
}

// loadAll has the iteration load a member's share.
func (e *engine) loadAll(ctx context.Context, it iterationCode, shares []share, total int) error {
	e.setPhase(phaseLoad)
	err := forEach(ctx, e.opts.Workers, len(shares), func(i int) error {
		return e.loadOne(ctx, it, &shares[i], total)
	})
	return e.locate(ctx, err)
}

var (
	errEnough = errors.New("no more records are wanted")
	errTwice  = errors.New("field Load ranged over its records a second time: keep what is needed of them")
	errLate   = errors.New("the records that Load was given were ranged over after it had returned")
)

// loadOne has the iteration load a split.
func (e *engine) loadOne(ctx context.Context, it iterationCode, s *share, total int) error {
	told := Split{Number: s.number, Of: total, Start: s.split.Start, End: s.split.End}
	for _, f := range s.split.Files {
		told.Files = append(told.Files, e.plan.Files[f].Path)
	}
	reader := &splitRecords{e: e, ctx: ctx, split: s.split}
	kept, err := it.load(told, reader.each)
	reader.ended = true
	switch {
	case reader.err != nil: // what Load made of what it got is of no interest
		err = reader.err
	case err != nil && reader.at != nil:
		err = atRecord(reader.at.File, reader.at.Offset, err)
	case err != nil:
		err = fmt.Errorf("%s: %w", s.text(e.plan), err)
	}
	s.kept = kept
	return err
}

// splitRecords reads the records of a split.
type splitRecords struct {
	e     *engine
	ctx   context.Context
	split input.Split
	at    *Record // that was handed out last
	begun bool
	ended bool
	err   error
}

// each is a sequence of records, which can be ranged over once.
func (r *splitRecords) each(yield func(Record) bool) {
	switch {
	case r.ended:
		panic(errLate)
	case r.begun:
		r.err = errTwice
		return
	}
	r.begun = true
	delim := r.e.opts.Input.Delimiter
	if bytes.Equal(delim, []byte{'\n'}) {
		delim = nil // as for mappers: a CR before it is no data
	}
	f := &mapPhase{e: r.e, ctx: r.ctx, failedSplit: r.split.Index + 1}
	err := f.read(r.split, func(b []byte) []byte { return b }, func(b Block) error {
		r.at = &Record{File: b.File.Path}
		n := int64(0)
		err := input.EachLine(b.Data, delim, func(line []byte, off int) error {
			r.at.Value, r.at.Offset = line[:len(line):len(line)], b.Offset+int64(off)
			n++
			if !yield(*r.at) {
				return errEnough
			}
			return nil
		})
		r.e.records.Add(n)
		return err
	}, func() int64 { return 0 })
	if err != nil && !errors.Is(err, errEnough) {
		r.err = err
		return
	}
	if err == nil {
		r.at = nil // it is of no one record what Load fails for now
	}
}
