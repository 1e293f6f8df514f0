// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
	"github.com/quernmr/quern/shuffle/wire"
)

// target is what is folded together, and the user-space fold of it.
type target struct {
	r     *Receiver
	id    shuffle.TargetID
	spec  shuffle.TargetSpec
	job   *job
	slot  int // in the shared memory
	lanes int
	dense uint64 // values of a vector, else 0
	keys  [wire.Classes + 1]uint64

	// Guarded by the receiver's lock.
	vacated   bool // not in the shared memory any more
	streams   map[part]*stream
	done      map[part]sum // complete streams
	kept      []uint32     // slots of confirmed streams, see Confirm
	gone      bool         // discarded
	finishing bool         // no stream is opened any more
	finished  *Totals

	ops    []wireOp
	single bool // one sum lane

	// using is held for reading while rows of the result are read.
	using sync.RWMutex
	freed bool

	// mu guards the fold. Whoever holds it and claims a frame folds it before letting go.
	mu         sync.Mutex
	change     *sync.Cond // a spill or a drain has ended
	shut       bool       // nothing is claimed any more
	dropped    bool       // nor is anything that was folded wanted
	dirty      bool
	config     fold.Config
	active     *fold.Combiner // takes pairs; nil before the first one
	spare      *fold.Combiner // empty, or nil
	made       int            // combiners there are
	busy       int            // spills and drains under way
	spills     int            // the spills among them
	runs       []fold.Run
	vector     []int64
	carries    map[uint64]int64 // of the vector
	sorted     *fold.Drain      // of a finished target
	userPairs  uint64
	userFrames uint64
	err        error  // what went wrong first
	drained    uint64 // pairs that tables held when they were drained

	// Guarded by the lock of the receiver's tables.
	tables   tablesOf
	untabled bool // no table is given to it any more
}

type wireOp = uint8

func newTarget(r *Receiver, j *job, spec shuffle.TargetSpec, slot int) *target {
	t := &target{
		r: r, id: spec.ID, job: j, spec: spec, slot: slot, dense: spec.Dense, keys: spec.Keys,
		streams: map[part]*stream{}, done: map[part]sum{},
	}
	t.change = sync.NewCond(&t.mu)
	return t
}

// begin sets up what follows from the job, once that is known. The receiver's
// lock is held.
func (t *target) begin() {
	spec := &t.job.spec
	if !t.job.opened || t.lanes > 0 {
		return
	}
	t.lanes = len(spec.Ops)
	for i := range spec.Ops {
		op := uint8(spec.Ops[i])
		if spec.Ops[i] == fold.Sum && bound(spec, i) {
			op = wire.OpSumBound
		}
		t.ops = append(t.ops, op)
	}
	t.single = t.lanes == 1 && spec.Ops[0] == fold.Sum
	t.config = fold.Config{
		Arena: t.r.arena, Ops: spec.Ops, Seed: spec.Seed, Partitions: 1,
		Share: t.r.opts.FoldMemory / 2, Spill: t.spillNow, Ordered: true,
	}
	t.size()
}

// size fits front table and buckets to the keys that are expected.
func (t *target) size() {
	keys := uint64(0)
	for _, n := range t.keys {
		keys += n
	}
	if keys == 0 {
		keys = 1 << 16
	}
	most := bits.Len64(uint64(t.r.opts.FoldMemory)/64) - 1 // the front table takes an eighth at most
	t.config.Front = max(8, min(bits.Len64(keys)+1, 21, most))
	buckets := min(1<<bits.Len64(keys>>13), 1024)
	for buckets > 1 && int64(buckets)*1024 > t.r.opts.FoldMemory/16 {
		buckets /= 2
	}
	t.config.SubBuckets = buckets
}

// suits says whether frames of such a shape belong to the target.
func (t *target) suits(h *wire.Head) bool {
	return (h.Shape&wire.Dense != 0) == (t.dense > 0)
}

// soil marks the target dirty, before user space first claims a frame of it or
// takes a table from it. The target is locked.
func (t *target) soil() {
	t.dirty = true
	atomic.StoreUint32(&t.r.mem.Targets[t.slot].Dirty, 1)
}

// join returns when no user-space folder works on a frame that it has claimed.
func (t *target) join() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

func (t *target) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.errLocked()
}

func (t *target) errLocked() error {
	if t.err == nil && t.active != nil {
		t.err = t.active.Err()
	}
	if t.err != nil {
		return fmt.Errorf("receive: fold %s: %w (%w; begin another generation)", t.id, t.err, shuffle.ErrRefused)
	}
	return nil
}

func (t *target) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// limit is how many bytes of records a target may hold before they are spilled.
func (t *target) limit() int64 {
	return max(t.r.opts.FoldMemory/2/max(1, t.r.folding.Load()), 2*pairs.BlockSize)
}

// hasRoom says whether n more bytes of pairs can be folded; if not it has seen
// to it that they can be soon. The target is locked.
func (t *target) hasRoom(n int) bool {
	if t.dropped || t.errLocked() != nil {
		return false
	}
	if t.dense > 0 {
		if t.vector == nil {
			t.vector = make([]int64, t.dense)
			if id := t.job.spec.Ops[0].Identity(); id != 0 {
				for i := range t.vector {
					t.vector[i] = id
				}
			}
		}
		return true
	}
	if t.active == nil {
		if t.spare == nil && t.made < 2 {
			t.made++
			t.r.folding.Add(1)
			t.spare = fold.NewCombiner(t.config)
		}
		t.active, t.spare = t.spare, nil
		if t.active == nil {
			return false // both are being written
		}
	}
	if t.active.Bytes() >= t.limit() && t.active.Records() > 0 {
		t.spillActive()
		return t.active != nil || t.hasRoom(n)
	}
	// A new block must be there when records need one.
	if t.r.arena.Used()+needs(n) > t.r.opts.FoldMemory {
		select {
		case t.r.press <- struct{}{}:
		default:
		}
		return false
	}
	return true
}

// needs returns the memory that must be free before n bytes of pairs are folded:
// records take up to four times as much, and come in blocks.
func needs(n int) int64 { return int64(4*n) + 2*pairs.BlockSize }

// spillActive has the records written, by another goroutine. The target is
// locked.
func (t *target) spillActive() {
	c := t.active
	t.active = nil
	t.busy++
	t.spills++
	t.r.tasks.Add(1)
	go func() {
		defer t.r.tasks.Done()
		t.r.work <- struct{}{}
		run, err := t.write(c)
		<-t.r.work
		t.mu.Lock()
		defer t.mu.Unlock()
		t.busy--
		t.spills--
		t.change.Broadcast()
		if err != nil {
			t.fail(err)
			return
		}
		t.runs = append(t.runs, run)
		t.spare = c
		if len(t.runs) < 4*maxRuns {
			return
		}
		// Each run is an open file. While busy, nobody asks for the list.
		t.busy++
		list := t.runs
		t.runs = nil
		t.mu.Unlock()
		list, err = t.compact(context.Background(), list)
		t.mu.Lock()
		t.busy--
		t.runs = append(t.runs, list...)
		if err != nil {
			t.fail(err)
		}
	}()
}

// spillNow is called by a combiner in the midst of a frame, when the arena is
// full all the same.
func (t *target) spillNow(c *fold.Combiner) error {
	run, err := t.write(c)
	if err == nil {
		t.runs = append(t.runs, run)
	}
	return err
}

func (t *target) write(c *fold.Combiner) (fold.Run, error) {
	err := c.Err()
	if err != nil {
		return fold.Run{}, err
	}
	run, _, err := c.WriteRun(t.newPath(), nil)
	if err != nil {
		return fold.Run{}, fmt.Errorf("spill: %w", err)
	}
	c.Reset()
	t.r.spilled.runs.Add(1)
	t.r.spilled.bytes.Add(uint64(run.Bytes()))
	return run, nil
}

// waitRoom waits until there is room for more, or nothing is taken any more.
func (t *target) waitRoom(ctx context.Context, n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waitRoomLocked(ctx, n, false)
}

// waitRoomLocked is waitRoom. A drain, which is counted in busy or is that of
// Finish, also needs room in a target that is shut.
func (t *target) waitRoomLocked(ctx context.Context, n int, drain bool) error {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.change.Broadcast()
	})
	defer stop()
	for (drain || !t.shut) && !t.hasRoom(n) {
		if err := t.errLocked(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if t.dropped {
			return errDropped
		}
		if needs(n) > t.r.opts.FoldMemory {
			return fmt.Errorf("receive: fold %s: %d bytes do not fit in %d of memory; more --memory helps: %w", t.id, n, t.r.opts.FoldMemory, shuffle.ErrRefused)
		}
		if t.shut && t.active != nil && t.active.Records() > 0 {
			// It is being finished: nobody else has it written. Results that were not
			// closed may hold all other memory.
			t.spillActive()
		}
		if t.spills > 0 {
			t.change.Wait()
			continue
		}
		t.mu.Unlock() // others hold the memory, and are being spilled
		time.Sleep(time.Millisecond)
		t.mu.Lock()
	}
	return nil
}

// idle waits until no spill or drain of the target is under way. The target is
// locked.
func (t *target) idle() {
	for t.busy > 0 {
		t.change.Wait()
	}
}

// clear drops what was folded.
func (t *target) clear() error {
	t.using.Lock()
	defer t.using.Unlock()
	t.freed = true
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut, t.dropped = true, true
	t.change.Broadcast()
	t.idle()
	var failed error
	for _, run := range t.runs {
		failed = errors.Join(failed, run.Remove())
	}
	t.runs = nil
	t.vector, t.carries = nil, nil
	t.release()
	return failed
}

// release gives the combiners' memory back. The target is locked.
func (t *target) release() {
	if t.sorted != nil {
		t.sorted.Close() // it uses what the combiners own
		t.sorted = nil
	}
	for _, c := range []*fold.Combiner{t.active, t.spare} {
		if c != nil {
			c.Reset()
		}
	}
	t.r.folding.Add(-int64(t.made))
	t.active, t.spare, t.made = nil, nil, 0
}

// foldDense folds the values of a dense frame that was checked. The target is
// locked.
func (t *target) foldDense(r *wire.Reader) {
	op := t.ops[0]
	for r.Next() {
		t.addAt(uint64(r.Index()), op, r.Lanes()[0])
	}
}

func (t *target) addAt(i uint64, op uint8, v int64) {
	s, carry := wire.ApplyOp(op, t.vector[i], v)
	t.vector[i] = s
	if carry != 0 {
		if t.carries == nil {
			t.carries = map[uint64]int64{}
		}
		if t.carries[i] += int64(carry); t.carries[i] == 0 {
			delete(t.carries, i)
		}
	}
}

// compact merges runs until few enough are left to be read at once.
func (t *target) compact(ctx context.Context, runs []fold.Run) ([]fold.Run, error) {
	if len(runs) <= maxRuns {
		return runs, nil
	}
	list := make([]*spill.Run, len(runs))
	for i, r := range runs {
		list[i] = r.Run
	}
	list, err := spill.Compact(ctx, list, spill.CompactOptions{
		Write: fold.RunOptions, FanIn: maxRuns,
		NewPath: t.newPath,
	})
	runs = make([]fold.Run, len(list))
	for i, r := range list {
		runs[i] = fold.Run{Run: r}
	}
	return runs, err
}

func (t *target) newPath() string { return t.r.runPath(t, int(t.r.runs.Add(1))) }

// maxRuns is how many runs are merged at once: each is an open file.
const maxRuns = 64

// relieve has the fold that holds most written, whenever memory is short.
func (r *Receiver) relieve() {
	defer r.readers.Done()
	for {
		select {
		case <-r.press:
		case <-r.done:
			return
		}
		r.mu.Lock()
		list := make([]*target, 0, len(r.targets))
		for _, t := range r.targets {
			list = append(list, t)
		}
		r.mu.Unlock()
		var largest *target
		most := int64(0)
		for _, t := range list {
			t.mu.Lock()
			if t.active != nil && !t.shut && t.active.Records() > 0 && t.active.Bytes() > most {
				largest, most = t, t.active.Bytes()
			}
			t.mu.Unlock()
		}
		if largest == nil {
			continue
		}
		largest.mu.Lock()
		if c := largest.active; c != nil && !largest.shut && c.Records() > 0 {
			largest.spillActive()
		}
		largest.mu.Unlock()
	}
}
