// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/group"
	"github.com/quernmr/quern/shuffle/pairs"
)

// drain folds, sorts, reduces and writes, and balances the books.
func (e *engine) drain(ctx context.Context, tx output.Transaction) (*Audit, error) {
	if err := e.spillRest(ctx); err != nil {
		return nil, err
	}
	f, g, err := e.openDrain(ctx)
	if err != nil {
		return nil, err
	}
	e.setPhase("write")
	w := &writePhase{e: e, tx: tx}
	if early, ok := tx.(output.Early); ok && f != nil && f.Check() != nil && !f.Carries() && e.opts.Partitions == 1 {
		if _, err := e.audit(f, w); err != nil {
			return nil, err
		}
		early.Early()
	}
	if e.opts.TotalOrder && e.opts.Partitions > 1 {
		w.cuts = e.sample.Cuts(e.opts.Partitions)
	}
	var ranges func(part int) int
	if f != nil {
		ranges = f.Ranges
	} else {
		ranges = g.Ranges
	}
	if err := w.run(ctx, ranges, func() reducer { return e.newReducer(f, g) }); err != nil {
		return nil, err
	}
	return e.audit(f, w)
}

// spillRest writes what mappers still hold as runs if there are runs already,
// or if what the drain needs beside the records would not fit.
func (e *engine) spillRest(ctx context.Context) error {
	if len(e.foldRuns) == 0 && len(e.grpRuns) == 0 && e.drainFits() {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range e.mappers {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if c := m.combiner(); c != nil && c.Records() > 0 {
				if err := e.spillFold(c); err != nil {
					return err
				}
				c.Reset()
			}
			if c := m.collector(); c != nil && c.Records() > 0 {
				if err := e.spillGroup(c); err != nil {
					return err
				}
				c.Reset()
			}
			return nil
		})
	}
	return g.Wait()
}

// drainFits says whether the records can be drained in memory. Folded records
// are copied before the memory of those they were made of is free again, so in
// the worst case there is everything twice; grouped ones need an entry each.
// Chunks that are not full take up to a quarter of a share per worker.
func (e *engine) drainFits() bool {
	var records int64
	for _, m := range e.mappers {
		if c := m.combiner(); c != nil {
			records += c.Bytes()
		} else {
			records += m.collector().Bytes()
		}
	}
	need := 2 * records
	if e.t.grouped {
		need = records + records/2
	}
	chunks := max(e.mem.share/4, int64(e.partitions())*2*pairs.FirstChunk) * int64(e.opts.Workers)
	return need+chunks <= e.mem.arena
}

func (e *engine) openDrain(ctx context.Context) (*fold.Drain, *group.Drain, error) {
	sample := 0
	if e.sample != nil {
		sample = e.sampleSize()
	}
	if e.t.grouped {
		var cs []*group.Collector
		for _, m := range e.mappers {
			cs = append(cs, m.collector())
		}
		if err := e.compactGroup(ctx); err != nil {
			return nil, nil, err
		}
		for _, c := range cs {
			e.combined += c.Records()
		}
		d, err := group.NewDrain(ctx, e.grpCfg, cs, e.grpRuns, group.Options{Workers: e.opts.Workers, Sample: sample, RangeBytes: e.mem.buffer / 2})
		if err == nil && sample > 0 {
			e.sample.Merge(d.Sample())
		}
		return nil, d, err
	}
	var cs []*fold.Combiner
	for _, m := range e.mappers {
		cs = append(cs, m.combiner())
	}
	for _, c := range cs {
		e.combined += c.Records()
	}
	if err := e.compactFold(ctx); err != nil {
		return nil, nil, err
	}
	d, err := fold.NewDrain(ctx, e.foldCfg, cs, e.foldRuns, fold.Options{Workers: e.opts.Workers, Sample: sample, EarlyCheck: e.t.safe, Scale: e.scale, RangeBytes: e.mem.buffer / 2})
	if err == nil && sample > 0 {
		e.sample.Merge(d.Sample())
	}
	return d, nil, err
}

// audit balances the books of a job that ran here from end to end.
func (e *engine) audit(f *fold.Drain, w *writePhase) (*Audit, error) {
	s := w.sum()
	return e.balance(f, s.keys, s.pairs+s.groupPairs, s.check)
}

// sum adds up what the reducers counted.
func (w *writePhase) sum() reduceState {
	all := reduceState{check: make([]uint64, len(w.e.t.ops))}
	for _, r := range w.reducers {
		s := r.state()
		all.keys += s.keys
		all.kept += s.kept
		all.pairs += s.pairs
		all.groupPairs += s.groupPairs
		for i, v := range s.check {
			all.check[i] += v
		}
	}
	return all
}

// balance compares what mappers counted with what came out of the drain: keys, pairs
// read from runs (of grouped jobs, all), and the check per lane.
func (e *engine) balance(f *fold.Drain, keys, read int64, check []uint64) (*Audit, error) {
	a := &Audit{PairsCombined: e.combined, Rows: e.rows.Load(), Keys: keys}
	if f != nil {
		for i, v := range f.Check() {
			check[i] += v
		}
	}
	for _, m := range e.mappers {
		if c := m.combiner(); c != nil {
			a.PairsEmitted += c.Emitted()
			for i, v := range c.Check() {
				a.SumCombined += v * uint64(2*i+1)
			}
		} else {
			a.PairsEmitted += m.collector().Emitted()
		}
	}
	for i, v := range check {
		a.SumFolded += v * uint64(2*i+1)
	}
	var written int64
	for _, r := range e.foldRuns {
		written += r.Pairs()
	}
	for _, r := range e.grpRuns {
		written += r.Pairs()
	}
	a.PairsFolded = e.folded
	if f != nil {
		a.PairsFolded += f.Folded()
	} else {
		a.PairsFolded = read
	}
	if f != nil && read != written {
		return nil, fmt.Errorf("%w: %d pairs were written to runs, %d read back", errAudit, written, read)
	}
	if a.PairsCombined != a.PairsFolded {
		return nil, fmt.Errorf("%w: %d pairs left the map tasks, %d were folded", errAudit, a.PairsCombined, a.PairsFolded)
	}
	if a.SumCombined != a.SumFolded {
		return nil, fmt.Errorf("%w: the checksum of the sums is %#x in the map tasks and %#x in the result", errAudit, a.SumCombined, a.SumFolded)
	}
	return a, nil
}

// writePhase turns ranges into rows in their order.
type writePhase struct {
	e        *engine
	tx       output.Transaction
	cuts     [][]byte // total order: the keys at which parts 1... begin
	reducers []reducer
	others   bool // there are keys in parts that are not written here

	mu    sync.Mutex
	parts []output.Part
}

// stretch is one range of one part.
type stretch struct{ part, rng, index int }

// segment is a piece of a part in its final form.
type segment struct {
	part int
	data []byte
	rows int64
}

func (w *writePhase) part(i int) (output.Part, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.parts[i] == nil {
		p, err := w.tx.Part(i)
		if err != nil {
			return nil, err
		}
		w.parts[i] = p
		if enc := p.Encoder(); enc != nil {
			if h := enc.AppendHeader(nil); len(h) > 0 {
				if _, err := p.Write(h); err != nil {
					return nil, err
				}
			}
		}
	}
	return w.parts[i], nil
}

// partOf returns the part of a key with total order, not below from.
func (w *writePhase) partOf(key []byte, from int) int {
	for from < len(w.cuts) && bytes.Compare(key, w.cuts[from]) >= 0 {
		from++
	}
	return from
}

func (w *writePhase) run(ctx context.Context, ranges func(part int) int, newReducer func() reducer) error {
	e := w.e
	w.parts = make([]output.Part, e.opts.Partitions)
	// The first part is opened before the work is done, to see whether it takes
	// bytes or rows and whether the output can be written at all.
	first, err := w.part(0)
	if err != nil {
		return err
	}
	var tasks []stretch
	for p := range e.partitions() {
		for r := range ranges(p) {
			tasks = append(tasks, stretch{p, r, len(tasks)})
		}
	}
	workers := min(e.opts.Workers, len(tasks))
	for range workers {
		r := newReducer()
		r.state().moved = &e.moved
		w.reducers = append(w.reducers, r)
	}
	switch {
	case e.t.top || e.t.countKeys:
		err = w.collect(ctx, tasks)
	case first.Encoder() == nil:
		err = w.byRows(ctx, tasks)
	default:
		err = w.encoded(ctx, tasks)
	}
	if err != nil {
		return err
	}
	if err := guard(func() error { return w.single(newReducer) }); err != nil {
		return err
	}
	for i := range w.parts {
		p, err := w.part(i)
		if err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}

// single writes the rows that belong to the job as a whole.
func (w *writePhase) single(newReducer func() reducer) error {
	e := w.e
	row := func(_ []byte, r *output.Row) error { return w.writeRow(0, r) }
	s := w.sum()
	switch {
	case e.t.countKeys:
		return row(nil, &output.Row{Values: []output.Value{{Kind: output.Int, I: s.kept}}})
	case e.t.top && len(w.reducers) > 0:
		if err := w.reducers[0].top(w.reducers, row); err != nil {
			return err
		}
	}
	if s.keys == 0 && !w.others {
		return newReducer().empty(row)
	}
	return nil
}

// writeRow writes one row to a part, in whatever way the part takes rows.
func (w *writePhase) writeRow(part int, r *output.Row) error {
	p, err := w.part(part)
	if err != nil {
		return err
	}
	w.e.rows.Add(1)
	if enc := p.Encoder(); enc != nil {
		_, err = p.Write(enc.AppendRow(nil, r))
		return err
	}
	return p.WriteRow(r)
}

// each runs tasks on all reducers, in order of their indices.
func (w *writePhase) each(ctx context.Context, tasks []stretch, do func(ctx context.Context, r reducer, t stretch) error) error {
	var next atomic.Int64
	errs := make([]error, len(w.reducers))
	at := make([]int, len(w.reducers))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed atomic.Int64
	failed.Store(int64(len(tasks)))
	var wg sync.WaitGroup
	for i, r := range w.reducers {
		wg.Go(func() {
			finished := false
			n := int64(0)
			defer func() {
				if !finished { // the job's code ended the goroutine
					errs[i], at[i] = errGoexit, int(n)
					failed.Store(min(failed.Load(), n))
					cancel()
				}
			}()
			for {
				n = next.Add(1) - 1
				if n >= int64(len(tasks)) || n > failed.Load() {
					finished = true
					return
				}
				if err := do(ctx, r, tasks[n]); err != nil {
					errs[i], at[i] = err, int(n)
					for {
						old := failed.Load()
						if n >= old || failed.CompareAndSwap(old, n) {
							break
						}
					}
					finished = true
					return
				}
			}
		})
	}
	wg.Wait()
	// Of several errors, the one that stands first in the output, so that the
	// same job fails the same way.
	var err error
	best := len(tasks)
	for i, x := range errs {
		if x != nil && at[i] < best && !errors.Is(x, errAborted) {
			err, best = x, at[i]
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (w *writePhase) collect(ctx context.Context, tasks []stretch) error {
	return w.each(ctx, tasks, func(ctx context.Context, r reducer, t stretch) error {
		return r.visit(ctx, t.part, t.rng, func([]byte, *output.Row) error { return nil })
	})
}

// byRows writes to parts that take rows, not bytes: each part by one goroutine.
func (w *writePhase) byRows(ctx context.Context, tasks []stretch) error {
	parts := make([]stretch, w.e.partitions())
	byPart := make([][]stretch, len(parts))
	for i := range parts {
		parts[i] = stretch{part: i, index: i}
	}
	for _, t := range tasks {
		byPart[t.part] = append(byPart[t.part], t)
	}
	return w.each(ctx, parts, func(ctx context.Context, r reducer, t stretch) error {
		to := t.part
		for _, t := range byPart[t.part] {
			err := r.visit(ctx, t.part, t.rng, func(key []byte, row *output.Row) error {
				to = w.partOf(key, to)
				return w.writeRow(to, row)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// encoded writes to parts that take bytes: ranges are encoded by all
// goroutines and written in order.
func (w *writePhase) encoded(ctx context.Context, tasks []stretch) error {
	q := newQueue(w, tasks)
	// A failed range must not leave those behind it waiting.
	stop := context.AfterFunc(ctx, func() { q.abort(-1) })
	defer stop()
	var pool sync.Pool
	return w.each(ctx, tasks, func(ctx context.Context, r reducer, t stretch) error {
		enc, err := w.part(t.part)
		if err != nil {
			return err
		}
		encoder := enc.Encoder()
		if !q.enter(t) {
			return errAborted
		}
		seg := segment{part: t.part}
		if b, ok := pool.Get().(*[]byte); ok {
			seg.data = (*b)[:0]
		}
		flush := func(last bool) error {
			s := seg
			seg = segment{part: seg.part}
			err := q.put(t, s, last, func(b []byte) { pool.Put(&b) })
			return err
		}
		err = r.visit(ctx, t.part, t.rng, func(key []byte, row *output.Row) error {
			if w.cuts != nil {
				if to := w.partOf(key, seg.part); to != seg.part {
					if err := flush(false); err != nil {
						return err
					}
					seg.part = to
				}
			}
			seg.data = encoder.AppendRow(seg.data, row)
			seg.rows++
			if int64(len(seg.data)) >= w.e.mem.buffer {
				return flush(false)
			}
			return nil
		})
		if err == nil {
			err = flush(true)
		}
		if err != nil {
			q.abort(t.index)
		}
		return err
	})
}
