// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// rangeRecords is about how many records a range in memory has.
const rangeRecords = 16 << 10

// Drain gives the pairs of a job back in order.
type Drain struct {
	cfg       Config
	runs      []*spill.Run
	entries   []*pairs.Buckets
	splitters pairs.Splitters
	ranges    int
	borders   [][][]byte
	cuts      *pairs.BottomK

	rangeBytes int64
}

// Options steer a drain.
type Options struct {
	Workers int
	Sample  int // keep that many keys as a sample of the distinct ones; 0: none
	// RangeBytes is about how many bytes of runs, on disk, a range of a merge
	// is to have; 0: 4 MiB.
	RangeBytes int64
}

// NewDrain sorts what collectors hold. If there are runs, the collectors must be empty.
func NewDrain(ctx context.Context, cfg Config, cs []*Collector, runs []*spill.Run, opt Options) (*Drain, error) {
	d := &Drain{cfg: cfg, runs: runs, ranges: 1, rangeBytes: cmp.Or(opt.RangeBytes, 4<<20)}
	if opt.Sample > 0 {
		d.cuts = pairs.NewBottomK(opt.Sample)
	}
	if len(runs) > 0 {
		d.planRuns()
		return d, nil
	}
	var records int64
	for _, c := range cs {
		records += c.Records()
	}
	if n := int(records / int64(cfg.Partitions) / rangeRecords); n > 1 {
		d.splitters = pairs.ChooseSplitters(pairs.SampleKeys(pairs.Payload, sets(cs)...), min(n, 1<<10))
		d.ranges = d.splitters.Len()
	}
	buckets := cfg.Partitions * subBuckets
	var next atomic.Int64
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for range max(1, min(opt.Workers, buckets)) {
		out := pairs.NewBuckets(cfg.Arena, cfg.Partitions*d.ranges, cfg.Share)
		d.entries = append(d.entries, out)
		g.Go(func() error {
			sorter := pairs.NewSorter(cfg.Arena, pairs.Payload)
			var cuts *pairs.BottomK
			if d.cuts != nil {
				cuts = pairs.NewBottomK(opt.Sample)
			}
			for ctx.Err() == nil {
				b := int(next.Add(1) - 1)
				if b >= buckets {
					break
				}
				for _, c := range cs {
					var failed error
					c.buckets.Each(b, pairs.Payload, func(r pairs.Ref, rec pairs.Record) {
						key := rec.PayloadKey()
						at, err := out.Reserve(b/subBuckets*d.ranges+d.splitters.Range(key), entryWords)
						if err != nil {
							failed = err
							return
						}
						*(*pairs.Entry)(cfg.Arena.At(at)) = sorter.Entry(r)
						if cuts != nil {
							cuts.Add(key)
						}
					})
					if failed != nil {
						return fmt.Errorf("sort keys: %w", failed)
					}
				}
			}
			if cuts != nil {
				mu.Lock()
				defer mu.Unlock()
				d.cuts.Merge(cuts)
			}
			return ctx.Err()
		})
	}
	return d, g.Wait()
}

func sets(cs []*Collector) []*pairs.Buckets {
	s := make([]*pairs.Buckets, len(cs))
	for i, c := range cs {
		s[i] = c.buckets
	}
	return s
}

// Ranges returns the number of ranges of a part. Their keys follow each other;
// no key is in two.
func (d *Drain) Ranges(part int) int {
	if d.borders != nil {
		return len(d.borders[part]) + 1
	}
	return d.ranges
}

// Sample returns the sample of distinct keys that Options.Sample asked for.
func (d *Drain) Sample() *pairs.BottomK { return d.cuts }

// Cursor walks a range in order of key and payload.
func (d *Drain) Cursor(part, rng int) spill.Cursor {
	if d.borders != nil {
		return d.merge(part, rng)
	}
	var list []pairs.Entry
	for _, b := range d.entries {
		b.Spans(part*d.ranges+rng, func(r, end pairs.Ref) {
			list = append(list, unsafe.Slice((*pairs.Entry)(d.cfg.Arena.At(r)), int(end-r)/entryWords)...)
		})
	}
	pairs.NewSorter(d.cfg.Arena, pairs.Payload).Sort(list)
	return &entries{arena: d.cfg.Arena, list: list, at: -1}
}

func (d *Drain) merge(part, rng int) spill.Cursor {
	lo, hi := pairs.Between(d.borders[part], rng)
	cursors := make([]spill.Cursor, len(d.runs))
	for i, r := range d.runs {
		cursors[i] = r.Cursor(part, lo, hi)
	}
	return spill.NewMerger(cursors)
}

func (d *Drain) planRuns() {
	d.borders = make([][][]byte, d.cfg.Partitions)
	var onDisk int64
	for _, r := range d.runs {
		onDisk += r.Bytes()
	}
	for part := range d.borders {
		var keys [][]byte
		for _, r := range d.runs {
			keys = append(keys, r.FirstKeys(part)...)
		}
		d.borders[part] = pairs.Borders(keys, int(onDisk/int64(d.cfg.Partitions)/d.rangeBytes))
	}
}

// WriteRun sorts what the collector holds and writes it as a run, combined if
// the job has a combiner. It offers every distinct key to sample if that is not nil.
func (c *Collector) WriteRun(path string, sampled *pairs.BottomK) (run *spill.Run, err error) {
	w, err := spill.Create(path, spill.Options{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.Abort()
		}
	}()
	sorter := pairs.NewSorter(c.cfg.Arena, pairs.Payload)
	splitters := pairs.Splitters{}
	if n := int(c.Records() / int64(c.cfg.Partitions) / rangeRecords); n > 1 {
		splitters = pairs.ChooseSplitters(pairs.SampleKeys(pairs.Payload, c.buckets), min(n, 1<<10))
	}
	ranges := make([][]pairs.Entry, splitters.Len())
	for part := range c.cfg.Partitions {
		for b := part * subBuckets; b < (part+1)*subBuckets; b++ {
			c.buckets.Each(b, pairs.Payload, func(r pairs.Ref, rec pairs.Record) {
				i := splitters.Range(rec.PayloadKey())
				ranges[i] = append(ranges[i], sorter.Entry(r))
			})
		}
		for i := range ranges {
			sorter.Sort(ranges[i])
			if err := c.write(w, part, ranges[i], sampled); err != nil {
				return nil, err
			}
			ranges[i] = ranges[i][:0]
		}
	}
	return w.Close()
}

func (c *Collector) write(w *spill.Writer, part int, list []pairs.Entry, sampled *pairs.BottomK) error {
	arena := c.cfg.Arena
	for i := 0; i < len(list); {
		key := arena.Rec(list[i].Ref()).PayloadKey()
		j := i + 1
		for j < len(list) && bytes.Equal(arena.Rec(list[j].Ref()).PayloadKey(), key) {
			j++
		}
		if sampled != nil {
			sampled.Add(key)
		}
		if err := c.writeGroup(w, part, key, list[i:j]); err != nil {
			return err
		}
		i = j
	}
	return nil
}

func (c *Collector) writeGroup(w *spill.Writer, part int, key []byte, group []pairs.Entry) error {
	if c.cfg.Combine == nil || len(group) < 2 {
		for _, e := range group {
			if err := w.Append(part, key, c.cfg.Arena.Rec(e.Ref()).Payload()); err != nil {
				return err
			}
		}
		return nil
	}
	var out [][]byte
	err := c.cfg.Combine(key, &entries{arena: c.cfg.Arena, list: group, at: -1}, func(p []byte) { out = append(out, bytes.Clone(p)) })
	if err != nil {
		return err
	}
	slices.SortFunc(out, bytes.Compare)
	for _, p := range out {
		if err := w.Append(part, key, p); err != nil {
			return err
		}
	}
	return nil
}
