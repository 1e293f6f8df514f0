// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"context"
	"fmt"
	"sort"
)

// CompactOptions say how Compact merges.
type CompactOptions struct {
	// Write says how the new runs are written. If Write.ByKey is set, runs are
	// merged by key alone: pairs with equal keys stay in the order of their runs.
	Write Options
	// FanIn is the largest number of runs that shall be left, and the largest
	// number that is merged at once. At least 2.
	FanIn int
	// NewPath returns the name for a new run's file, a different one each time.
	NewPath func() string
	// Combine, if set, makes one pair of all pairs that have the same part and key.
	// acc is the payload so far, at first a copy of the first pair's; it may be
	// changed and appended to, and is returned with the next payload worked in.
	Combine func(key, acc, payload []byte) ([]byte, error)
}

// Compact merges runs until no more than opt.FanIn are left, and returns those
// that hold the pairs now, in the order of what they were made from. Runs that
// were merged are removed. It merges as few bytes as it can: neighbours that
// are small, and only as many as it must.
//
// Also with an error the runs returned are what there is, for the caller to
// remove. Cancelling ctx ends it with the cause.
func Compact(ctx context.Context, runs []*Run, opt CompactOptions) ([]*Run, error) {
	runs = append([]*Run(nil), runs...)
	if opt.FanIn < 2 {
		return runs, fmt.Errorf("spill: compact: fan-in %d: must be at least 2", opt.FanIn)
	}
	for len(runs) > opt.FanIn {
		width := min(opt.FanIn, len(runs)-opt.FanIn+1)
		i := smallestWindow(runs, width)
		group := runs[i : i+width]
		merged, err := mergeRuns(ctx, group, opt)
		if err != nil {
			return runs, err
		}
		for _, r := range group {
			if e := r.Remove(); e != nil && err == nil {
				err = e
			}
		}
		runs = append(append(runs[:i:i], merged), runs[i+width:]...)
		if err != nil {
			return runs, err
		}
	}
	return runs, nil
}

// smallestWindow returns where the n neighbours begin that are smallest together.
func smallestWindow(runs []*Run, n int) int {
	var sum int64
	for _, r := range runs[:n] {
		sum += r.Bytes()
	}
	best, at := sum, 0
	for i := n; i < len(runs); i++ {
		sum += runs[i].Bytes() - runs[i-n].Bytes()
		if sum < best {
			best, at = sum, i-n+1
		}
	}
	return at
}

func mergeRuns(ctx context.Context, runs []*Run, opt CompactOptions) (*Run, error) {
	w, err := Create(opt.NewPath(), opt.Write)
	if err != nil {
		return nil, err
	}
	for part := nextPart(runs, -1); part >= 0; part = nextPart(runs, part) {
		if err := mergePart(ctx, w, runs, part, opt); err != nil {
			w.Abort()
			return nil, err
		}
	}
	return w.Close()
}

// nextPart returns the smallest part beyond after that any run has, or -1.
func nextPart(runs []*Run, after int) int {
	next := -1
	for _, r := range runs {
		parts := r.index.parts
		i := sort.Search(len(parts), func(i int) bool { return int(parts[i].part) > after })
		if i < len(parts) && (next < 0 || int(parts[i].part) < next) {
			next = int(parts[i].part)
		}
	}
	return next
}

func mergePart(ctx context.Context, w *Writer, runs []*Run, part int, opt CompactOptions) error {
	var cs []Cursor
	for _, r := range runs {
		if r.PartPairs(part) > 0 {
			cs = append(cs, r.Cursor(part, nil, nil))
		}
	}
	m := newMerger(cs, opt.Write.ByKey)
	defer m.Close()
	var key, acc []byte // the pair being combined, once there was one
	n := 0
	for ; m.Next(); n++ {
		if n&0xFFF == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if opt.Combine == nil {
			if err := w.Append(part, m.Key(), m.Payload()); err != nil {
				return err
			}
			continue
		}
		if n > 0 && m.SameKey() {
			var err error
			if acc, err = opt.Combine(key, acc, m.Payload()); err != nil {
				return fmt.Errorf("spill: combine values of key %.60q: %w", key, err)
			}
			continue
		}
		if n > 0 {
			if err := w.Append(part, key, acc); err != nil {
				return err
			}
		}
		key = append(key[:0], m.Key()...)
		acc = append(acc[:0], m.Payload()...)
	}
	if err := m.Err(); err != nil {
		return err
	}
	if opt.Combine != nil && n > 0 {
		return w.Append(part, key, acc)
	}
	return nil
}
