// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// Run is a run of folded pairs on disk and the decimal scale of its lanes.
type Run struct {
	*spill.Run
	Scale []uint8
}

// rangeRecords is about how many records a range is to have: few enough for
// them to be sorted in the cache.
const rangeRecords = 8 << 10

// Drain gives every key of a job once, in order within each part.
type Drain struct {
	cfg    Config
	runs   []Run
	scale  []uint8
	folded int64
	cuts   *pairs.BottomK

	// In memory: folded records by (part, range), one set per worker of the fold.
	sets      []*pairs.Buckets
	ranges    int
	splitters pairs.Splitters
	carries   map[uint64]int64

	early bool
	check []uint64 // per lane, of Options.EarlyCheck

	// From runs: the borders of each part's ranges.
	borders    [][][]byte
	rangeBytes int64
}

// Options steer a drain.
type Options struct {
	Workers int
	Sample  int // keep that many keys as a sample of the distinct ones; 0: none
	// EarlyCheck has the sum check of folded records made when they are folded,
	// so that the books can be balanced before rows are written. It does nothing
	// for runs.
	EarlyCheck bool
	// Scale is how many digits after the point the values of each lane have at
	// least; nil: what combiners and runs have. At most MaxScale.
	Scale []uint8
	// RangeBytes is about how many bytes of runs, on disk, a range of a merge
	// is to have; 0: 4 MiB.
	RangeBytes int64
}

// NewDrain folds what combiners hold. If there are runs, the combiners must
// be empty (see [Combiner.Spill]).
func NewDrain(ctx context.Context, cfg Config, cs []*Combiner, runs []Run, opt Options) (*Drain, error) {
	d := &Drain{cfg: cfg, runs: runs, ranges: 1, rangeBytes: cmp.Or(opt.RangeBytes, 4<<20), carries: map[uint64]int64{}}
	if opt.Sample > 0 {
		d.cuts = pairs.NewBottomK(opt.Sample)
	}
	if err := d.align(cs, opt.Scale); err != nil {
		return nil, err
	}
	if len(runs) > 0 {
		d.planRuns()
		return d, nil
	}
	d.early, d.check = opt.EarlyCheck, make([]uint64, len(cfg.Ops))
	return d, d.foldAll(ctx, cs, opt)
}

// Close gives back what the drain takes of the arena. The combiners that it was made of
// are to be Reset afterwards, not before. Runs stay as they are.
func (d *Drain) Close() {
	for _, b := range d.sets {
		b.Reset()
	}
	d.sets = nil
}

// align brings all lanes to one decimal scale.
func (d *Drain) align(cs []*Combiner, least []uint8) error {
	if least != nil && len(least) != len(d.cfg.Ops) {
		return fmt.Errorf("scales for %d lanes, the job has %d", len(least), len(d.cfg.Ops))
	}
	for i, n := range least {
		if n > MaxScale {
			return fmt.Errorf("scale %d of lane %d: scales are 0 to %d", n, i, MaxScale)
		}
	}
	var scale []uint8
	raise := func(s []uint8) {
		if s != nil && scale == nil {
			scale = make([]uint8, len(d.cfg.Ops))
		}
		for i, n := range s {
			scale[i] = max(scale[i], n)
		}
	}
	raise(least)
	for _, c := range cs {
		raise(c.scale)
	}
	for _, r := range d.runs {
		raise(r.Scale)
	}
	for _, c := range cs {
		for i, n := range scale {
			c.SetScale(i, n)
		}
		if c.err != nil {
			return c.err
		}
	}
	d.scale = scale
	return nil
}

func (d *Drain) foldAll(ctx context.Context, cs []*Combiner, opt Options) error {
	var records int64
	for _, c := range cs {
		records += c.Records()
	}
	buckets := d.cfg.Partitions * d.cfg.SubBuckets
	if n := int(records / int64(d.cfg.Partitions) / rangeRecords); n > 1 {
		d.splitters = pairs.ChooseSplitters(d.sample(cs), min(n, 1<<11))
		d.ranges = d.splitters.Len()
	}
	workers := max(1, min(opt.Workers, buckets))
	if records < 4*rangeRecords {
		workers = 1
	}
	var next atomic.Int64
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		out := pairs.NewBuckets(d.cfg.Arena, d.cfg.Partitions*d.ranges, d.cfg.Share)
		d.sets = append(d.sets, out)
		g.Go(func() error {
			f := newFolder(d.cfg)
			lanes := len(d.cfg.Ops)
			carries := map[uint64]int64{}
			check := make([]uint64, lanes)
			var cuts *pairs.BottomK
			if d.cuts != nil {
				cuts = pairs.NewBottomK(opt.Sample)
			}
			for ctx.Err() == nil {
				b := int(next.Add(1) - 1)
				if b >= buckets {
					break
				}
				part := b / d.cfg.SubBuckets
				// Records of a range are brought together, so that sorting and
				// writing a range stays in the cache. They fit where the bucket's
				// records were before they were folded, or nearly.
				for _, r := range f.fold(cs, b) {
					rec := d.cfg.Arena.Rec(r)
					key := rec.Key()
					rng := d.splitters.Range(key)
					at, err := out.Copy(part*d.ranges+rng, rec, 1+pairs.KeyWords(len(key))+lanes)
					if err != nil {
						return fmt.Errorf("sort keys: %w", err)
					}
					if d.early {
						d.sum(check, key, rec.Lanes(lanes))
					}
					if len(f.carries) > 0 {
						f.moveCarries(r, at, carries)
					}
					if cuts != nil {
						cuts.Add(d.group(key))
					}
				}
				for _, c := range cs {
					out.Recycle(c.buckets, b)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			d.folded += f.folded
			maps.Copy(d.carries, carries)
			for i, v := range check {
				d.check[i] += v
			}
			if cuts != nil {
				d.cuts.Merge(cuts)
			}
			return ctx.Err()
		})
	}
	return g.Wait()
}

// group is the part of a key that chooses its partition.
func (d *Drain) group(key []byte) []byte { return key[:len(key)-d.cfg.Suffix] }

// sample takes keys from all over the buckets.
func (d *Drain) sample(cs []*Combiner) [][]byte {
	sets := make([]*pairs.Buckets, len(cs))
	for i, c := range cs {
		sets[i] = c.buckets
	}
	keys := pairs.SampleKeys(pairs.Layout{Lanes: len(d.cfg.Ops)}, sets...)
	for i, k := range keys {
		keys[i] = d.group(k)
	}
	return keys
}

// Ranges returns the number of ranges of a part. Their keys follow each other.
func (d *Drain) Ranges(part int) int {
	if d.borders != nil {
		return len(d.borders[part]) + 1
	}
	return d.ranges
}

// Scale returns the decimal scale per lane, nil if none was set.
func (d *Drain) Scale() []uint8 { return d.scale }

// Folded returns how many records were folded into the keys' values, not
// counting those that were folded on their way into runs.
func (d *Drain) Folded() int64 { return d.folded }

// Sample returns the sample of distinct keys (less their suffix) that
// Options.Sample asked for.
func (d *Drain) Sample() *pairs.BottomK { return d.cuts }

// Walker visits ranges. It belongs to one goroutine and keeps scratch memory.
type Walker struct {
	d      *Drain
	sorter *pairs.Sorter
	list   []pairs.Entry
	carry  []int64
	lanes  []int64
	key    []byte
	check  []uint64
	pairs  int64
}

// Walker makes a walker.
func (d *Drain) Walker() *Walker {
	n := len(d.cfg.Ops)
	return &Walker{d: d, sorter: pairs.NewSorter(d.cfg.Arena, pairs.Layout{Lanes: n}), carry: make([]int64, n), lanes: make([]int64, n), check: make([]uint64, n)}
}

// Check returns, per sum lane, the sum of value x hash(key) mod 2^64 over all
// that the walker visited, 0 if the drain has made the check already.
func (w *Walker) Check() []uint64 { return w.check }

// Pairs returns how many pairs the walker read from runs.
func (w *Walker) Pairs() int64 { return w.pairs }

// Each calls fn for every key of a range in ascending order. carry is nil
// unless a sum lane wrapped: the sum is lanes[i] + carry[i] x 2^64. The slices
// are valid only during the call.
func (w *Walker) Each(ctx context.Context, part, rng int, fn func(key []byte, lanes, carry []int64) error) error {
	if w.d.borders != nil {
		return w.eachMerged(ctx, part, rng, fn)
	}
	d := w.d
	w.list = w.list[:0]
	lanes := len(d.cfg.Ops)
	for _, b := range d.sets {
		b.Spans(part*d.ranges+rng, func(r, end pairs.Ref) {
			for r < end {
				w.list = append(w.list, w.sorter.Entry(r))
				r += pairs.Ref(1 + pairs.KeyWords(d.cfg.Arena.Rec(r).KeyLen()) + lanes)
			}
		})
	}
	w.sorter.Sort(w.list)
	for i, e := range w.list {
		if i&0xfff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		rec := d.cfg.Arena.Rec(e.Ref())
		key := rec.Key()
		lanes := rec.Lanes(lanes)
		if !d.early {
			d.sum(w.check, key, lanes)
		}
		var carry []int64
		if len(d.carries) > 0 {
			carry = w.carriesOf(e.Ref())
		}
		if err := fn(key, lanes, carry); err != nil {
			return err
		}
	}
	return nil
}

// sum adds value x hash(key) of every sum lane to check.
func (d *Drain) sum(check []uint64, key []byte, lanes []int64) {
	h := d.cfg.Seed.HashBytes(key)
	for i, op := range d.cfg.Ops {
		if op == Sum {
			check[i] += uint64(lanes[i]) * h
		}
	}
}

// Check returns, per lane, what EarlyCheck found, else nil; see [Walker.Check].
func (d *Drain) Check() []uint64 {
	if !d.early {
		return nil
	}
	return d.check
}

// Carries says whether a sum lane of any key wrapped. It is only known of
// what was folded in memory.
func (d *Drain) Carries() bool { return d.borders != nil || len(d.carries) > 0 }

func (w *Walker) carriesOf(r pairs.Ref) []int64 {
	any := false
	for i := range w.carry {
		w.carry[i] = w.d.carries[uint64(r)*MaxLanes+uint64(i)]
		any = any || w.carry[i] != 0
	}
	if any {
		return w.carry
	}
	return nil
}
