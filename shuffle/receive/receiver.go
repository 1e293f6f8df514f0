// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/scratch"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	maxTableBits = wire.MaxBits
	// packetCost is about what a packet takes of a socket's buffer, in bytes.
	packetCost = 2304
	// kernelInFlight is how many frames may be under way to programs, which hold
	// none: what interfaces hold is for the senders to find out.
	kernelInFlight = 8192
)

// ErrClosed is returned by a receiver that was closed.
var ErrClosed = errors.New("the receiver is closed")

// Receiver is the receiving end of a host's streams. It implements
// [shuffle.Control]; its methods may be called from several goroutines.
type Receiver struct {
	opts    Options
	kernel  shuffle.Kernel // nil: none
	folds   bool           // programs fold
	mem     *shuffle.Memory
	arena   *pairs.Arena
	sockets []*socket
	outlet  *outlet // nil: frames leave by the first of sockets
	port    int
	dir     *scratch.Folder // of runs
	tables  *tables

	bySlot []atomic.Pointer[stream] // open streams, for readers
	nonce  atomic.Uint64            // answers made
	whole  sync.Map                 // addresses (netip.Addr) to which packets can't be cut

	ending sync.Mutex     // is held while the receiver ends
	calls  sync.WaitGroup // calls that look at the memory; see enter

	// life is held while targets begin and end, waits for the kernel included.
	life sync.Mutex
	// mu guards what follows and the maps of targets. Nobody waits for the kernel,
	// the disk or a sender while holding it.
	mu          sync.Mutex
	jobs        map[shuffle.JobID]*job
	jobSlots    *shuffle.JobSlots // nil: no kernel
	targets     map[place]*target
	freeTargets []int
	freeSlots   []uint32
	staleSlots  []uint32 // free, and to be quiesced before they are written
	open        int      // streams whose frames are taken
	closed      bool

	// slots counts those that are free or can be freed at any time.
	slots *semaphore.Weighted

	hands   []*hand
	control *hand // of Deliver, under its own lock
	deliver sync.Mutex
	spilled spillStats
	runs    atomic.Int64  // names given to runs
	folding atomic.Int64  // combiners in use
	work    chan struct{} // one token per spill at a time
	drains  chan struct{} // and per drain
	press   chan struct{} // memory for records is short
	done    chan struct{}
	readers sync.WaitGroup
	tasks   sync.WaitGroup // spills and drains under way
}

// place is where in a cluster's work a target stands, whatever its generation.
type place struct {
	job       shuffle.JobID
	partition uint32
}

// job is what is known of a job.
type job struct {
	spec shuffle.JobSpec
	tags *wire.Tags
	slot int // of its keys in the kernel's memory, -1 if there is no kernel
	// opened is false for a job whose targets an earlier process has left, until it
	// is opened again.
	opened bool
}

// New makes a receiver and begins to take frames.
func New(opts Options) (_ *Receiver, err error) {
	opts, err = opts.ensureDefaults()
	if err != nil {
		return nil, err
	}
	r := &Receiver{
		opts:    opts,
		kernel:  opts.Kernel,
		jobs:    map[shuffle.JobID]*job{},
		targets: map[place]*target{},
		done:    make(chan struct{}),
		press:   make(chan struct{}, 1),
		drains:  make(chan struct{}, max(2, opts.Readers)),
		work:    make(chan struct{}, max(2, opts.Readers)),
	}
	r.folds = r.kernel != nil && opts.Mode != shuffle.UserOnly
	if r.kernel != nil {
		r.mem = r.kernel.Memory()
		r.jobSlots = opts.Jobs
	} else {
		r.mem = shuffle.NewMemory(opts.Limits)
	}
	r.bySlot = make([]atomic.Pointer[stream], len(r.mem.Streams))
	r.slots = semaphore.NewWeighted(int64(len(r.mem.Streams)))
	r.tables = newTables(r)
	if r.arena, err = pairs.NewArena(opts.FoldMemory); err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	defer func() {
		if err != nil {
			r.release()
		}
	}()
	if r.dir, err = scratch.New(opts.TempDir, "quern-receive-"); err != nil {
		return nil, fmt.Errorf("receive: no folder for runs: %w; set another one (--temp)", err)
	}
	if r.sockets, r.port, err = listen(opts.Listen, opts.Port, opts.Readers, opts.ReceiveBuffer); err != nil {
		return nil, err
	}
	r.outlet = newOutlet(r.sockets)
	if r.opts.InFlight <= 0 {
		for _, s := range r.sockets {
			r.opts.InFlight += s.buffer / packetCost
		}
		if r.kernel != nil {
			r.opts.InFlight = max(r.opts.InFlight, kernelInFlight)
		}
	}
	if err = r.takeUp(); err != nil {
		return nil, err
	}
	r.control = newHand(r, nil)
	for _, s := range r.sockets {
		h := newHand(r, s)
		r.hands = append(r.hands, h)
		r.readers.Add(1)
		go h.read()
	}
	r.readers.Add(1)
	go r.relieve()
	if r.folds {
		r.readers.Add(1)
		go r.tables.watch()
	}
	return r, nil
}

// Port returns the UDP port that frames go to.
func (r *Receiver) Port() int { return r.port }

// enter keeps the memory there until leave is called.
func (r *Receiver) enter() (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	r.calls.Add(1)
	return r.calls.Done, nil
}

// quiesce waits until no program runs any more that began before the call.
func (r *Receiver) quiesce() error {
	if r.kernel == nil {
		return nil
	}
	if err := r.kernel.Quiesce(); err != nil {
		return fmt.Errorf("receive: wait for running programs: %w", err)
	}
	return nil
}

// Endpoint says where frames go.
func (r *Receiver) Endpoint(context.Context) (shuffle.Endpoint, error) {
	e := shuffle.Endpoint{Port: r.port, Frame: wire.FrameSize}
	if r.kernel != nil {
		e.Kernel, e.Generic = r.folds, r.opts.Generic
		e.Frame = min(e.Frame, r.kernel.MTU()-48) // IPv6 and UDP
	}
	return e, nil
}

// OpenJob makes a job known. Opening it again is fine, with the same
// specification.
func (r *Receiver) OpenJob(_ context.Context, spec shuffle.JobSpec) error {
	if n := len(spec.Ops); n < 1 || n > fold.MaxLanes {
		return fmt.Errorf("receive: job %s has %d lanes; 1 to %d are possible: %w", spec.ID, n, fold.MaxLanes, shuffle.ErrRefused)
	}
	for i, op := range spec.Ops {
		if op > fold.Xor {
			return fmt.Errorf("receive: job %s: lane %d has operation %d, which does not exist: %w", spec.ID, i, op, shuffle.ErrRefused)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	j := r.jobs[spec.ID]
	if j != nil && j.opened {
		if !sameJob(&j.spec, &spec) {
			return fmt.Errorf("receive: job %s is open with another seed, secret, mode or operations; a job keeps its specification, give the new one another id: %w", spec.ID, shuffle.ErrRefused)
		}
		return nil
	}
	if j == nil {
		j = &job{slot: -1}
	}
	tags := wire.NewTags(spec.Secret)
	if r.jobSlots != nil {
		// Also for jobs that programs do not fold: they check whose frames they pass up.
		slot, err := r.jobSlots.Acquire(spec.ID, tags.Job())
		if err != nil {
			return fmt.Errorf("receive: open job %s: %w", spec.ID, err)
		}
		if j.slot >= 0 {
			r.jobSlots.Release(spec.ID) // it was reserved until now
		}
		j.slot = slot
	}
	j.spec, j.tags = spec, tags
	j.opened = true
	r.jobs[spec.ID] = j
	for at, t := range r.targets {
		if at.job == spec.ID {
			t.begin()
		}
	}
	return nil
}

func sameJob(a, b *shuffle.JobSpec) bool {
	if a.Secret != b.Secret || a.Seed != b.Seed || a.Mode != b.Mode || len(a.Ops) != len(b.Ops) {
		return false
	}
	for i := range a.Ops {
		if a.Ops[i] != b.Ops[i] || bound(a, i) != bound(b, i) {
			return false
		}
	}
	return true
}

func bound(j *shuffle.JobSpec, lane int) bool { return lane < len(j.Bound) && j.Bound[lane] }

// OpenTarget makes a target known. Opening it again is fine; a higher
// generation resets it, a lower one is ErrReset.
func (r *Receiver) OpenTarget(_ context.Context, spec shuffle.TargetSpec) error {
	leave, err := r.enter()
	if err != nil {
		return err
	}
	defer leave()
	r.life.Lock()
	defer r.life.Unlock()
	at := place{spec.ID.Job, spec.ID.Partition}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	j := r.jobs[spec.ID.Job]
	if j == nil || !j.opened {
		r.mu.Unlock()
		return fmt.Errorf("receive: %s: its job is %w; open it first", spec.ID, shuffle.ErrUnknown)
	}
	if most := uint64(r.opts.FoldMemory) / 8; spec.Dense > 0 && (len(j.spec.Ops) != 1 || spec.Dense > most) {
		r.mu.Unlock()
		return fmt.Errorf("receive: %s: a vector of %d values with %d lanes; it takes one lane, and there is memory for %d values: use more partitions, or more memory for the fold: %w", spec.ID, spec.Dense, len(j.spec.Ops), most, shuffle.ErrRefused)
	}
	old := r.targets[at]
	r.mu.Unlock()
	if old != nil {
		switch {
		case old.id.Generation == spec.ID.Generation && old.dense != spec.Dense:
			return fmt.Errorf("receive: %s is open with %d values, not %d; begin a new generation: %w", spec.ID, old.dense, spec.Dense, shuffle.ErrRefused)
		case old.id.Generation == spec.ID.Generation:
			r.tables.hint(old, spec.Keys)
			return nil
		case old.id.Generation > spec.ID.Generation:
			return fmt.Errorf("receive: %s is over, generation %d has begun: %w", spec.ID, old.id.Generation, shuffle.ErrReset)
		}
		r.opts.Log.Info("target begins anew", "target", spec.ID.String(), "was", old.id.Generation)
		if err := r.discard(old); err != nil {
			return err
		}
	}
	return r.newTarget(j, spec)
}

// newTarget registers a target. life is held.
func (r *Receiver) newTarget(j *job, spec shuffle.TargetSpec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.freeTargets) == 0 {
		return fmt.Errorf("receive: %s: all %d targets of this host are in use; finish some first, or raise the limit: %w", spec.ID, len(r.mem.Targets), shuffle.ErrBusy)
	}
	slot := r.freeTargets[len(r.freeTargets)-1]
	r.freeTargets = r.freeTargets[:len(r.freeTargets)-1]
	t := newTarget(r, j, spec, slot)
	t.begin()
	id := spec.ID
	e := &r.mem.Targets[slot]
	*e = wire.Target{
		Job:       [2]uint64{le.Uint64(id.Job[:8]), le.Uint64(id.Job[8:])},
		Partition: id.Partition, Generation: id.Generation,
		JobSlot: uint32(max(j.slot, 0)), Lanes: uint32(len(j.spec.Ops)),
		Spare: [3]uint64{spec.Dense},
	}
	atomic.StoreUint32(&e.State, 1)
	r.targets[place{id.Job, id.Partition}] = t
	return nil
}

// Drop forgets a job, its targets and what they hold.
func (r *Receiver) Drop(_ context.Context, id shuffle.JobID) error {
	leave, err := r.enter()
	if err != nil {
		return nil // nothing is known any more
	}
	defer leave()
	r.life.Lock()
	defer r.life.Unlock()
	r.mu.Lock()
	var list []*target
	for at, t := range r.targets {
		if at.job == id {
			list = append(list, t)
		}
	}
	r.mu.Unlock()
	var failed error
	for _, t := range list {
		failed = errors.Join(failed, r.discard(t))
	}
	if failed != nil {
		return failed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.jobs[id]; j != nil {
		if j.slot >= 0 {
			r.jobSlots.Release(id)
		}
		delete(r.jobs, id)
	}
	return nil
}

// DropTarget forgets a target, whatever it holds, if it is of that generation or an
// earlier one.
func (r *Receiver) DropTarget(_ context.Context, id shuffle.TargetID) error {
	leave, err := r.enter()
	if err != nil {
		return nil // nothing is known any more
	}
	defer leave()
	r.life.Lock()
	defer r.life.Unlock()
	r.mu.Lock()
	t := r.targets[place{id.Job, id.Partition}]
	r.mu.Unlock()
	if t == nil || t.id.Generation > id.Generation {
		return nil
	}
	return r.discard(t)
}

// TakenUp returns the jobs that an earlier process has left and nobody has opened
// since. What nobody will open is to be dropped.
func (r *Receiver) TakenUp() (list []shuffle.JobID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, j := range r.jobs {
		if !j.opened {
			list = append(list, id)
		}
	}
	return list
}

// target returns the target of an id, or why there is none. mu is held.
func (r *Receiver) target(id shuffle.TargetID) (*target, error) {
	if r.closed {
		return nil, ErrClosed
	}
	t := r.targets[place{id.Job, id.Partition}]
	switch {
	case t == nil || t.id.Generation < id.Generation:
		return nil, fmt.Errorf("receive: %s is %w; open it first", id, shuffle.ErrUnknown)
	case t.id.Generation > id.Generation:
		return nil, fmt.Errorf("receive: %s is over, generation %d has begun: %w", id, t.id.Generation, shuffle.ErrReset)
	case !t.job.opened:
		return nil, fmt.Errorf("receive: %s: its job is %w; open it first", id, shuffle.ErrUnknown)
	}
	return t, nil
}

// discard ends a target: whatever it holds is gone. life is held.
func (r *Receiver) discard(t *target) error {
	r.mu.Lock()
	if t.gone {
		r.mu.Unlock()
		return nil
	}
	t.gone = true
	r.spoil(t)
	slots, held := r.closeStreams(t)
	r.mu.Unlock()
	if err := r.quiesce(); err != nil {
		return err
	}
	r.tables.forget(t)
	t.mu.Lock()
	t.shut = true
	t.mu.Unlock()
	err := t.clear()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targets[place{t.id.Job, t.id.Partition}] == t {
		delete(r.targets, place{t.id.Job, t.id.Partition})
	}
	r.freeSlots = append(r.freeSlots, slots...)
	r.slots.Release(held)
	r.vacate(t)
	return err
}

// spoil marks a target dirty before its streams are forgotten: a process that
// takes the memory up in between would fold them into what is there already. mu
// is held.
func (r *Receiver) spoil(t *target) {
	if !t.vacated {
		atomic.StoreUint32(&r.mem.Targets[t.slot].Dirty, 1)
	}
}

// vacate frees a target's place in the shared memory. mu is held, and no
// program can come to it any more.
func (r *Receiver) vacate(t *target) {
	if t.vacated {
		return
	}
	t.vacated = true
	atomic.StoreUint32(&r.mem.Targets[t.slot].State, 0) // first
	r.mem.Targets[t.slot] = wire.Target{}
	for i := range r.cells(t.slot) {
		r.cells(t.slot)[i] = wire.Cell{}
	}
	r.freeTargets = append(r.freeTargets, t.slot)
}

func (r *Receiver) cells(slot int) []wire.Cell {
	return r.mem.Cells[slot*r.mem.CPUs:][:r.mem.CPUs]
}

// reset begins a target anew in the same generation, after what happened to it
// can't be told any more.
func (r *Receiver) reset(t *target, why string) error {
	r.life.Lock()
	defer r.life.Unlock()
	r.mu.Lock()
	over := t.gone || r.closed
	r.mu.Unlock()
	if over {
		return nil
	}
	r.opts.Log.Warn("target begins anew", "target", t.id.String(), "why", why)
	if err := r.discard(t); err != nil {
		return err
	}
	return r.newTarget(t.job, t.spec)
}

// Close ends the receiver: what it holds is gone, and no program folds for it
// any more. The kernel's help is its owner's to close, afterwards.
func (r *Receiver) Close() error { return r.end(false) }

// Release ends the receiver and leaves the shared memory as it is, for another
// process to take up.
func (r *Receiver) Release() error { return r.end(true) }

func (r *Receiver) end(keep bool) error {
	r.ending.Lock()
	defer r.ending.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.done)
	r.mu.Unlock()
	for _, s := range r.sockets {
		s.conn.Close()
	}
	r.outlet.close()
	r.readers.Wait()
	failed := r.endTargets(keep)
	r.calls.Wait() // what they waited for is over
	if !keep {
		r.mu.Lock()
		for id, j := range r.jobs {
			if j.slot >= 0 {
				r.jobSlots.Release(id)
			}
		}
		r.jobs = nil
		r.mu.Unlock()
	}
	r.tasks.Wait()
	return errors.Join(failed, r.release())
}

// endTargets ends all targets of a receiver that is closed.
func (r *Receiver) endTargets(keep bool) (failed error) {
	r.life.Lock()
	defer r.life.Unlock()
	r.mu.Lock()
	var list []*target
	for _, t := range r.targets {
		list = append(list, t)
	}
	r.mu.Unlock()
	for _, t := range list {
		if keep {
			t.mu.Lock()
			t.shut = true
			t.mu.Unlock()
			failed = errors.Join(failed, t.clear())
			continue
		}
		failed = errors.Join(failed, r.discard(t))
	}
	return failed
}

// release gives back what New took.
func (r *Receiver) release() error {
	var failed error
	for _, s := range r.sockets {
		s.conn.Close()
	}
	r.outlet.close()
	if r.dir != nil {
		failed = r.dir.Close()
	}
	return errors.Join(failed, r.arena.Close())
}

func (r *Receiver) runPath(t *target, n int) string {
	return filepath.Join(r.dir.Path(), fmt.Sprintf("%x-%d-%d-%d.run", t.id.Job[:4], t.id.Partition, t.id.Generation, n))
}
