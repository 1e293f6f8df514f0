// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
)

// mapAll runs the map tasks of all splits.
func (e *engine) mapAll(ctx context.Context) error {
	e.configure()
	f := &mapPhase{e: e, blocks: make(chan shared, 2*e.opts.Workers), failedSplit: len(e.plan.Splits)}
	f.ctx, f.stop = context.WithCancel(ctx)
	defer f.stop()
	var wg sync.WaitGroup
	for range e.opts.Workers {
		var comb *fold.Combiner
		var coll *group.Collector
		if e.t.grouped {
			coll = group.NewCollector(e.grpCfg)
		} else {
			comb = fold.NewCombiner(e.foldCfg)
		}
		var m mapper
		err := guard(func() error {
			m = e.newMapper(comb, coll, e.opts.Input.Delimiter)
			m.count(e.live)
			if e.sample != nil {
				m.sampleKeys(e.sampleSize())
			}
			return nil
		})
		if err != nil {
			f.mu.Lock()
			f.next, f.err = len(e.plan.Splits), err
			f.closeIfDone()
			f.mu.Unlock()
			break
		}
		e.mappers = append(e.mappers, m)
		w := &mapWorker{f: f, m: m, buf: f.buffer()}
		wg.Go(w.run)
	}
	wg.Wait()
	if f.err != nil {
		return e.locate(ctx, f.err)
	}
	for _, m := range e.mappers {
		if s := m.sampled(); s != nil {
			e.sample.Merge(s)
		}
	}
	return ctx.Err()
}

// configure says how pairs are gathered.
func (e *engine) configure() {
	if e.seed == (pairs.Seed{}) {
		e.seed = pairs.Seed{A: rand.Uint64(), B: rand.Uint64()}
	}
	if e.opts.TotalOrder && e.opts.Partitions > 1 {
		e.sample = pairs.NewBottomK(e.sampleSize())
	}
	e.foldCfg = fold.Config{
		Arena: e.arena, Ops: e.t.ops, Seed: e.seed, Suffix: e.t.suffix,
		Partitions: e.partitions(), SubBuckets: subBuckets(e.partitions(), e.mem.share),
		Share: e.mem.share, Spill: e.spillFold,
	}
	e.grpCfg = group.Config{
		Arena: e.arena, Partitions: e.partitions(), Share: e.mem.share, Spill: e.spillGroup, Combine: e.combine(),
	}
}

// sampleSize is how many keys the sample of a total order has.
func (e *engine) sampleSize() int { return max(1<<12, 64*e.opts.Partitions) }

// subBuckets is the number of buckets of a partition: enough for a bucket's
// keys to fit the cache when it is folded, few enough for half-empty chunks
// not to fill the memory.
func subBuckets(partitions int, share int64) int {
	n := 1
	for n < 512 && n*partitions*2 <= 512 && int64(n*partitions)*(64<<10) < share {
		n *= 2
	}
	return n
}

// locate adds the line to an error about a place in the input.
func (e *engine) locate(ctx context.Context, err error) error {
	var in *InputError
	if errors.As(err, &in) && in.Line == 0 {
		in.Line = e.lineAt(ctx, in.File, in.Offset)
	}
	var row *rows.Error
	if errors.As(err, &row) {
		if row.Line == 0 {
			row.Line = e.lineAt(ctx, row.File, row.Offset)
		}
		return row
	}
	return err
}

func (e *engine) lineAt(ctx context.Context, path string, offset int64) int64 {
	for i := range e.plan.Files {
		if e.plan.Files[i].Path == path {
			if n, err := e.plan.LineAt(ctx, &e.plan.Files[i], offset); err == nil {
				return n
			}
		}
	}
	return 0
}

// mapPhase hands out splits to workers. A long split that can only be read from
// front to back is read by a goroutine of its own when there are too few splits
// to keep all workers busy; its blocks are then shared.
type mapPhase struct {
	e    *engine
	ctx  context.Context
	stop context.CancelFunc

	mu          sync.Mutex
	next        int
	pumps       int
	blocks      chan shared
	closed      bool
	failedSplit int // the lowest split with an error; those above need not be finished
	failedBlock int64
	err         error

	pool sync.Pool
}

// shared is a block of a split that several workers map.
type shared struct {
	b     Block
	split int
	seq   int64
}

func (f *mapPhase) buffer() []byte {
	if b, ok := f.pool.Get().(*[]byte); ok {
		return *b
	}
	return nil
}

// fail keeps the error that stands first in the input, so that the same input
// gives the same error however it is divided.
func (f *mapPhase) fail(split int, block int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if split < f.failedSplit || split == f.failedSplit && block < f.failedBlock {
		f.failedSplit, f.failedBlock, f.err = split, block, err
	}
}

// wanted says whether a block need still be mapped.
func (f *mapPhase) wanted(split int, block int64) bool {
	if f.ctx.Err() != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return split < f.failedSplit || split == f.failedSplit && block < f.failedBlock
}

// take returns the next split, and whether it was handed to a pump.
func (f *mapPhase) take() (s input.Split, pumped, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	splits := f.e.plan.Splits
	if f.next >= len(splits) || f.next > f.failedSplit || f.ctx.Err() != nil {
		f.next = len(splits)
		f.closeIfDone()
		return s, false, false
	}
	s = splits[f.next]
	f.next++
	if s.Stream && f.e.opts.Workers > 1 && len(splits)-f.next < f.e.opts.Workers {
		f.pumps++
		go f.pump(s)
		return s, true, true
	}
	return s, false, true
}

func (f *mapPhase) closeIfDone() {
	if f.next >= len(f.e.plan.Splits) && f.pumps == 0 && !f.closed {
		f.closed = true
		close(f.blocks)
	}
}

// pump reads a split's blocks for all workers.
func (f *mapPhase) pump(s input.Split) {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pumps--
		f.closeIfDone()
	}()
	seq := int64(0)
	err := f.read(s, func(buf []byte) []byte { return f.buffer() }, func(b Block) error {
		if first := f.e.t.firstBlock; first != nil && seq == 0 {
			if err := guard(func() error { return first(b) }); err != nil {
				return err
			}
		}
		select {
		case f.blocks <- shared{b, s.Index, seq}:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
		seq++
		return nil
	}, func() int64 { return seq })
	if err != nil {
		f.fail(s.Index, seq, err)
	}
}

// read opens a split and calls fn for each block.
func (f *mapPhase) read(s input.Split, buffer func([]byte) []byte, fn func(Block) error, seq func() int64) error {
	r, err := f.e.plan.Open(f.ctx, s)
	if err != nil {
		return &readError{err}
	}
	defer r.Close()
	var buf []byte
	for f.wanted(s.Index, seq()) {
		buf = buffer(buf)
		b, err := r.ReadBlock(buf)
		if err == io.EOF {
			skipped, cut := r.Skipped()
			f.e.skipped.Add(skipped)
			f.e.cut.Add(cut)
			return nil
		}
		if err != nil {
			return &readError{err}
		}
		f.e.bytes.Add(b.Read)
		if err := fn(b); err != nil {
			return err
		}
		buf = b.Data[:0]
	}
	return f.ctx.Err()
}

// mapWorker maps splits and shared blocks.
type mapWorker struct {
	f       *mapPhase
	m       mapper
	buf     []byte
	records int64
	pairs   int64
}

func (w *mapWorker) run() {
	f := w.f
	for {
		select {
		case b, ok := <-f.blocks:
			if !ok {
				return
			}
			w.shared(b)
			continue
		default:
		}
		s, pumped, ok := f.take()
		switch {
		case !ok:
			for b := range f.blocks {
				w.shared(b)
			}
			return
		case pumped:
		default:
			w.split(s)
		}
	}
}

// errGoexit is what is said of code that ends its goroutine instead of returning.
var errGoexit = errors.New("the job's code ended its goroutine (runtime.Goexit, or a test's FailNow); return an error instead")

func (w *mapWorker) shared(b shared) {
	finished := false
	defer func() {
		if !finished {
			w.f.fail(b.split, b.seq, errGoexit)
		}
	}()
	if w.f.wanted(b.split, b.seq) {
		if err := w.block(b.b); err != nil {
			w.f.fail(b.split, b.seq, err)
		}
	}
	finished = true
	data := b.b.Data[:0]
	w.f.pool.Put(&data)
}

func (w *mapWorker) split(s input.Split) {
	seq := int64(0)
	finished := false
	defer func() {
		if !finished {
			w.f.fail(s.Index, seq, errGoexit)
		}
	}()
	err := w.f.read(s, func(buf []byte) []byte {
		if buf != nil {
			w.buf = buf
		}
		return w.buf
	}, func(b Block) error {
		seq++
		return w.block(b)
	}, func() int64 { return seq })
	finished = true
	if err != nil {
		w.f.fail(s.Index, seq, err)
	}
}

func (w *mapWorker) block(b Block) error {
	err := w.m.block(b)
	records, _ := w.m.seen()
	var emitted int64
	if c := w.m.combiner(); c != nil {
		emitted = c.Emitted()
	} else {
		emitted = w.m.collector().Emitted()
	}
	w.f.e.records.Add(records - w.records)
	w.f.e.pairs.Add(emitted - w.pairs)
	w.records, w.pairs = records, emitted
	return err
}
