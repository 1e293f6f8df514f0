// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
)

var errDropped = errors.New("the target is gone")

// Errors of Finish and of walking through its result.
var (
	// ErrIncomplete says that streams are missing or not complete yet.
	ErrIncomplete = errors.New("not all streams are complete")
	// ErrAudit says that the books do not balance: the result is wrong and must
	// not be used.
	ErrAudit = errors.New("the books do not balance")
	// ErrOverflow says that a sum does not fit in 64 bits.
	ErrOverflow = errors.New("a sum does not fit in 64 bits")
)

// Expect is what a target's manifests say of it.
type Expect struct {
	Streams int      // how many there are in this generation
	Pairs   uint64   // in all of them; values, if the target is a vector
	Check   []uint64 // per lane the sum over all streams of StreamSpec.Check; nil: what the streams said
	// SumAbs is per lane the sum of all absolute values (commit.Manifest). With it
	// Finish sees to it that JobSpec.Bound was kept; nil: that is not looked at, and a
	// bounded sum that wraps in the kernel is a wrong number.
	SumAbs []commit.Total
}

// promised returns an error if a bounded lane's values could wrap after all.
func (e *Expect) promised(job *shuffle.JobSpec) error {
	for i, total := range e.SumAbs {
		if i < len(job.Ops) && job.Ops[i] == fold.Sum && bound(job, i) && !total.Fits() {
			return fmt.Errorf("lane %d was said to be bounded, and its absolute values add up to 2^63 or more: %w; leave JobSpec.Bound out for it", i, ErrOverflow)
		}
	}
	return nil
}

// Totals are the books of a target.
type Totals struct {
	Streams int
	Sent    uint64 // pairs, as the streams said
	Kernel  uint64 // pairs folded by programs
	User    uint64 // pairs folded here
	Check   []uint64
}

// Result is a finished target: each key once. It holds memory and files until
// Close.
type Result struct {
	Totals
	t     *target
	drain *fold.Drain
	known bool // sums were checked before the first row

	mu     sync.Mutex
	check  []uint64 // of the rows walked through
	walked int
	closed bool
}

// Finish ends a target: all of its streams must be complete. It drains what
// programs have folded, balances the books and returns the keys in order.
// ErrIncomplete leaves the target as it is; after ErrReset its streams are to be opened
// again; after any other error it is to be begun in a new generation.
func (r *Receiver) Finish(ctx context.Context, id shuffle.TargetID, expect Expect) (*Result, error) {
	leave, err := r.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	t, err := r.close(id, &expect)
	if err != nil {
		return nil, err
	}
	res, err := t.finish(ctx, expect)
	if err != nil {
		t.mu.Lock()
		t.fail(err)
		t.mu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		if t.gone && !errors.Is(err, shuffle.ErrReset) {
			err = fmt.Errorf("receive: finish %s: %w", id, shuffle.ErrReset)
		}
		return nil, err
	}
	return res, nil
}

// close makes sure that all streams are complete, and closes them.
func (r *Receiver) close(id shuffle.TargetID, expect *Expect) (*target, error) {
	r.mu.Lock()
	t, err := r.target(id)
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	var full []*stream
	for _, st := range t.streams {
		if _, n := st.claimed(); n == int(st.frames) && !st.complete && st.isReady && !st.asleep {
			full = append(full, st)
		}
	}
	r.mu.Unlock()
	if err := r.settle(full); err != nil {
		return nil, err
	}
	r.mu.Lock()
	if t.gone {
		r.mu.Unlock()
		return nil, fmt.Errorf("receive: finish %s: %w", id, shuffle.ErrReset)
	}
	if t.finishing {
		r.mu.Unlock()
		return nil, fmt.Errorf("receive: %s was finished before: %w", id, shuffle.ErrRefused)
	}
	for _, st := range t.streams {
		if !st.complete {
			_, n := st.claimed()
			r.mu.Unlock()
			return nil, fmt.Errorf("receive: finish %s: %w: map task %d, segment %d has %d of %d frames", id, ErrIncomplete, st.id.Map, st.id.Segment, n, st.frames)
		}
	}
	if len(t.done) != expect.Streams {
		n := len(t.done)
		r.mu.Unlock()
		return nil, fmt.Errorf("receive: finish %s: %w: %d of %d were opened", id, ErrIncomplete, n, expect.Streams)
	}
	t.finishing = true
	r.spoil(t)
	slots, held := r.closeStreams(t)
	r.mu.Unlock()
	if err := r.quiesce(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.shut = true
	t.mu.Unlock()
	if r.torn(t) {
		// Slots are the target's until it is discarded.
		r.mu.Lock()
		r.freeSlots = append(r.freeSlots, slots...)
		r.slots.Release(held)
		r.mu.Unlock()
		if err := r.reset(t, "a program folded a part of a frame alone"); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("receive: finish %s: %w", id, shuffle.ErrReset)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freeSlots = append(r.freeSlots, slots...)
	r.slots.Release(held)
	return t, nil
}

// finish drains and balances. No frame comes to the target any more.
func (t *target) finish(ctx context.Context, expect Expect) (*Result, error) {
	r := t.r
	if err := expect.promised(&t.job.spec); err != nil {
		return nil, fmt.Errorf("receive: finish %s: %w", t.id, err)
	}
	sealed := r.tables.detach(t)
	for _, tab := range sealed {
		t.drain(ctx, tab)
		r.tables.put(tab)
	}
	t.mu.Lock()
	t.idle()
	err := t.errLocked()
	res := &Result{t: t}
	res.User = t.userPairs
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := t.balance(res, expect); err != nil {
		return nil, err
	}
	if t.dense > 0 {
		err = t.balanceVector(res)
	} else {
		err = t.openDrain(ctx, res)
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.gone {
		return nil, fmt.Errorf("receive: finish %s: %w", t.id, shuffle.ErrReset)
	}
	t.finished = &res.Totals
	return res, nil
}

// balance compares what was sent with what was folded.
func (t *target) balance(res *Result, expect Expect) error {
	t.mu.Lock()
	drained := t.drained
	t.mu.Unlock()
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.vacated { // its cells may be another's by now
		return fmt.Errorf("receive: finish %s: %w", t.id, shuffle.ErrReset)
	}
	for i := range t.r.cells(t.slot) {
		res.Kernel += atomic.LoadUint64(&t.r.cells(t.slot)[i].Pairs)
	}
	res.Check = expect.Check
	known := true
	sums := make([]uint64, t.lanes)
	for _, d := range t.done {
		res.Streams++
		res.Sent += d.pairs
		known = known && d.known
		for i := range d.check {
			sums[i] += d.check[i]
		}
	}
	switch {
	case res.Sent != expect.Pairs:
		return fmt.Errorf("receive: audit of %s: %w: the streams held %d pairs, the manifests say %d", t.id, ErrAudit, res.Sent, expect.Pairs)
	case res.Sent != res.Kernel+res.User:
		return fmt.Errorf("receive: audit of %s: %w: %d pairs were sent, %d were folded (%d in the kernel, %d in user space)", t.id, ErrAudit, res.Sent, res.Kernel+res.User, res.Kernel, res.User)
	case res.Kernel != drained:
		return fmt.Errorf("receive: audit of %s: %w: %d pairs were folded in the kernel, the tables that were drained held %d", t.id, ErrAudit, res.Kernel, drained)
	case expect.Check == nil && !known:
		return fmt.Errorf("receive: audit of %s: %w: nobody has said what its values sum up to", t.id, ErrAudit)
	case expect.Check == nil:
		res.Check = sums
	case len(expect.Check) != t.lanes:
		return fmt.Errorf("receive: audit of %s: check sums for %d lanes, not %d", t.id, len(expect.Check), t.lanes)
	}
	if known {
		for i, op := range t.job.spec.Ops {
			if op == fold.Sum && sums[i] != res.Check[i] {
				return fmt.Errorf("receive: audit of %s: %w: the values of lane %d sum up to %#x in the streams, to %#x in the manifests", t.id, ErrAudit, i, sums[i], res.Check[i])
			}
		}
	}
	return nil
}

// openDrain sorts what was folded, in memory if that is enough.
func (t *target) openDrain(ctx context.Context, res *Result) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active == nil {
		t.active, t.spare = t.spare, nil
	}
	if c := t.active; c != nil {
		c.Flush()
		// Sorting copies the records; most copies take the place of what was folded.
		free := t.r.opts.FoldMemory - t.r.arena.Used()
		if c.Records() > 0 && (len(t.runs) > 0 || free < c.Bytes()/2+int64(t.config.SubBuckets)*pairs.FirstChunk+4*pairs.BlockSize) {
			run, err := t.write(c)
			if err != nil {
				return fmt.Errorf("receive: finish %s: %w", t.id, err)
			}
			t.runs = append(t.runs, run)
		}
	}
	var err error
	if t.runs, err = t.compact(ctx, t.runs); err != nil {
		return fmt.Errorf("receive: finish %s: %w", t.id, err)
	}
	var cs []*fold.Combiner
	if t.active != nil {
		cs = append(cs, t.active)
	}
	res.check = make([]uint64, t.lanes)
	res.drain, err = fold.NewDrain(ctx, t.config, cs, t.runs, fold.Options{Workers: runtime.GOMAXPROCS(0), EarlyCheck: len(t.runs) == 0})
	t.sorted = res.drain // for release to close, after an error too
	if err != nil {
		return fmt.Errorf("receive: finish %s: %w", t.id, err)
	}
	if sums := res.drain.Check(); sums != nil {
		res.known = true
		return res.compare(sums)
	}
	return nil
}

// compare balances the values.
func (res *Result) compare(rows []uint64) error {
	for i, op := range res.t.job.spec.Ops {
		if op == fold.Sum && rows[i] != res.Check[i] {
			return fmt.Errorf("receive: audit of %s: %w: the values of lane %d sum up to %#x, those sent to %#x", res.t.id, ErrAudit, i, rows[i], res.Check[i])
		}
	}
	return nil
}

// balanceVector balances the values of a vector. A value's key is its number in
// eight little-endian bytes, as commit has it.
func (t *target) balanceVector(res *Result) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hasRoom(0) // makes the vector, should nobody have sent a value
	rows := make([]uint64, 1)
	if t.job.spec.Ops[0] == fold.Sum {
		for i, v := range t.vector {
			rows[0] += uint64(v) * t.job.spec.Seed.HashShort(uint64(i), 0, 8)
		}
	}
	return res.compare(rows)
}

// Ranges returns the number of ranges of keys; they follow each other.
func (res *Result) Ranges() int {
	if res.drain == nil {
		return 1
	}
	return res.drain.Ranges(0)
}

// Each calls fn for every key of a range in ascending order; key and lanes are valid
// during the call. Several ranges may be walked through at once. When the last
// of all ranges is through, each once, the values are balanced if they were not
// before. ErrOverflow names the key whose sum does not fit.
func (res *Result) Each(ctx context.Context, rng int, fn func(key []byte, lanes []int64) error) error {
	return res.EachCarried(ctx, rng, func(key []byte, lanes, carry []int64) error {
		for i, c := range carry {
			if c != 0 && res.t.job.spec.Ops[i] == fold.Sum {
				return fmt.Errorf("receive: %s: %w: lane %d of key %q", res.t.id, ErrOverflow, i, key)
			}
		}
		return fn(key, lanes)
	})
}

// EachCarried is Each for who decides about sums that do not fit later: those of a
// key are lanes[i] + carry[i] x 2^64. carry is nil if all fit.
func (res *Result) EachCarried(ctx context.Context, rng int, fn func(key []byte, lanes, carry []int64) error) error {
	if res.drain == nil {
		return fmt.Errorf("receive: %s is a vector; ask for its values", res.t.id)
	}
	res.t.using.RLock()
	defer res.t.using.RUnlock()
	if res.t.freed {
		return fmt.Errorf("receive: %s: its result was closed", res.t.id)
	}
	w := res.drain.Walker()
	if err := w.Each(ctx, 0, rng, fn); err != nil {
		return err
	}
	res.mu.Lock()
	defer res.mu.Unlock()
	for i, v := range w.Check() {
		res.check[i] += v
	}
	if res.walked++; res.walked == res.Ranges() && !res.known {
		return res.compare(res.check)
	}
	return nil
}

// Walk calls fn for every key in ascending order, as Each does.
func (res *Result) Walk(ctx context.Context, fn func(key []byte, lanes []int64) error) error {
	for rng := range res.Ranges() {
		if err := res.Each(ctx, rng, fn); err != nil {
			return err
		}
	}
	return nil
}

// Values returns the values of a vector, which are the result's own.
func (res *Result) Values() ([]int64, error) {
	t := res.t
	if t.dense == 0 {
		return nil, fmt.Errorf("receive: %s is no vector", t.id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.carries) > 0 {
		first := ^uint64(0)
		for i := range t.carries {
			first = min(first, i)
		}
		return nil, fmt.Errorf("receive: %s: %w: value %d", t.id, ErrOverflow, first)
	}
	return t.vector, nil
}

// Close frees what the result holds. The target is known to be finished until
// its job is dropped.
func (res *Result) Close() error {
	res.mu.Lock()
	defer res.mu.Unlock()
	if res.closed {
		return nil
	}
	res.closed = true
	err := res.t.clear()
	res.t.r.mu.Lock()
	defer res.t.r.mu.Unlock()
	if !res.t.r.closed { // else the memory may be another's, or gone
		res.t.r.vacate(res.t)
	}
	return err
}
