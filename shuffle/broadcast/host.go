// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	userCasts     = 64 // sources' ends open at once, of those without programs
	defaultMemory = 1 << 30
	defaultIdle   = 60 * time.Second
	// defaultPatience is longer than most things take that pass by themselves: a process
	// that swaps, a collector's pause, a network that converges.
	defaultPatience = 10 * time.Second
	// refreshEvery is how often ways to hosts are looked up again: neighbours change.
	refreshEvery = time.Second
)

// ErrClosed is returned by a node that was closed.
var ErrClosed = errors.New("broadcasts are closed here")

// ErrDropped is how what is open ends when its job is dropped.
var ErrDropped = errors.New("the broadcast's job was dropped")

// Node is a host's end of broadcasts, as a source and as a member. Its methods may be called from
// several goroutines.
type Node struct {
	opts   Options
	kernel shuffle.Broadcasts // nil: programs do nothing of broadcasts here
	ends   *shuffle.Ends      // mapped; nil: no kernel
	jobs   *shuffle.JobSlots
	budget budget
	counts [wire.Reasons]atomic.Uint64

	// tokens are the open regions, replaced as a whole, so that frames find theirs without a lock.
	tokens atomic.Pointer[map[uint64]*region]
	// casts are sources' ends by slot: those of the mapped memory first, then those without
	// programs.
	casts []atomic.Pointer[cast]

	mu          sync.Mutex
	opening     map[uint64]*opening
	fates       fates
	freeRegions []int // slots of the mapped memory
	freeCasts   []int // slots of the mapped memory
	freeUser    []int // slots behind them
	groups      map[*Group]struct{}
	coming      map[*Group]context.CancelCauseFunc // groups that are being opened
	closed      bool
	work        sync.WaitGroup // goroutines of regions, and calls under way
	done        chan struct{}
	soon        chan struct{} // a way is to be looked up again soon

	listen func(six, both bool) (port, error) // for tests
	tick   time.Duration                      // for tests: how long nothing may come at least until a source looks
}

// New makes a node. With a kernel's help its programs serve from now on what is opened.
func New(opts Options) (*Node, error) {
	if opts.Memory <= 0 {
		opts.Memory = DefaultMemory()
	}
	if opts.PerJob <= 0 {
		opts.PerJob = opts.Memory / 2
	}
	if opts.Idle <= 0 {
		opts.Idle = defaultIdle
	}
	if opts.Patience <= 0 {
		opts.Patience = defaultPatience
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Mode == shuffle.KernelOnly && opts.Kernel == nil {
		return nil, fmt.Errorf("broadcast: mode %s, and no kernel's help; `quern doctor` says what is missing, --shuffle auto does without", opts.Mode)
	}
	n := &Node{
		opts: opts, opening: map[uint64]*opening{}, groups: map[*Group]struct{}{}, coming: map[*Group]context.CancelCauseFunc{}, done: make(chan struct{}), soon: make(chan struct{}, 1),
		budget: budget{total: opts.Memory, perJob: opts.PerJob, byJob: map[shuffle.JobID]int64{}}, listen: listen,
	}
	n.tokens.Store(&map[uint64]*region{})
	mapped := 0
	if opts.Kernel != nil && opts.Mode != shuffle.UserOnly {
		n.kernel, n.jobs = opts.Kernel, opts.Jobs
		if n.jobs == nil {
			n.jobs = shuffle.NewJobSlots(opts.Kernel, shuffle.Limits{}.EnsureDefaults().Jobs)
		}
		n.ends = opts.Kernel.Ends()
		mapped = len(n.ends.Casts)
		if err := n.sweep(); err != nil {
			return nil, err
		}
		if err := n.kernel.OnEvent(n.event); err != nil {
			return nil, fmt.Errorf("broadcast: hear of what programs stored: %w", err)
		}
	} else if opts.Kernel != nil {
		// Programs pass up what is for a cast that they don't have.
		mapped = len(opts.Kernel.Ends().Casts)
	}
	n.casts = make([]atomic.Pointer[cast], mapped+userCasts)
	for i := range userCasts {
		n.freeUser = append(n.freeUser, mapped+userCasts-1-i)
	}
	n.work.Add(1)
	go n.keep()
	return n, nil
}

// sweep closes what an earlier process has left open in the mapped memory, and notes all slots as free.
func (n *Node) sweep() error {
	left := false
	for i := len(n.ends.Regions) - 1; i >= 0; i-- {
		r := &n.ends.Regions[i]
		if token := atomic.LoadUint64(&r.Token); token != 0 {
			left = true
			atomic.StoreUint64(&r.Token, 0)
			if err := n.kernel.ClearToken(token); err != nil {
				return fmt.Errorf("broadcast: close what an earlier process left open: %w", err)
			}
		}
		n.freeRegions = append(n.freeRegions, i)
	}
	for i := len(n.ends.Casts) - 1; i >= 0; i-- {
		if c := &n.ends.Casts[i]; atomic.LoadUint64(&c.Token) != 0 {
			left = true
			atomic.StoreUint64(&c.Token, 0)
		}
		n.freeCasts = append(n.freeCasts, i)
	}
	if left {
		return n.kernel.Quiesce()
	}
	return nil
}

// Handle takes a frame that came up to the host's socket: a chunk, or the answer to one. It may change the
// frame, and keeps nothing of it. It may be called from several goroutines.
func (n *Node) Handle(frame []byte, from netip.AddrPort) {
	n.counts[n.handle(frame, from)].Add(1)
}

func (n *Node) handle(frame []byte, from netip.AddrPort) wire.Reason {
	h, c, data, err := wire.ParseChunk(frame)
	switch {
	case errors.Is(err, wire.ErrMagic), errors.Is(err, wire.ErrShort) && len(frame) < wire.HeadSize:
		return wire.Foreign
	case err != nil:
		return wire.Malformed
	case h.Kind == wire.BroadcastAck:
		return n.collect(frame, &h, &c)
	}
	r := (*n.tokens.Load())[h.Token]
	if r == nil || !r.gate.enter() {
		return wire.UpRegion
	}
	reason := r.chunk(frame, &c, data, from)
	r.gate.leave()
	return reason
}

// event is told of a message that programs have stored whole.
func (n *Node) event(e wire.Event) {
	if r := (*n.tokens.Load())[e.Token]; r != nil {
		r.wake()
	}
}

// keep looks ways up again and ends regions whose source is silent, until the node is closed.
func (n *Node) keep() {
	defer n.work.Done()
	every := time.NewTicker(min(refreshEvery, max(n.opts.Idle/8, time.Millisecond)))
	defer every.Stop()
	var again <-chan time.Time
	var wait time.Duration
	for {
		select {
		case <-n.done:
			return
		case <-n.soon:
			wait = 10 * time.Millisecond
			again = time.After(wait)
			continue
		case <-again:
			again = nil
		case <-every.C:
		}
		now := time.Now()
		pending := false
		for _, r := range *n.tokens.Load() {
			pending = r.attend(now) || pending
		}
		n.mu.Lock()
		groups := make([]*Group, 0, len(n.groups))
		for g := range n.groups {
			groups = append(groups, g)
		}
		n.mu.Unlock()
		for _, g := range groups {
			pending = g.refresh() || pending
		}
		if pending && wait < refreshEvery/2 {
			wait = max(2*wait, 10*time.Millisecond)
			again = time.After(wait)
		}
	}
}

// lookAgain has keep look ways up soon.
func (n *Node) lookAgain() {
	select {
	case n.soon <- struct{}{}:
	default:
	}
}

// begin counts a call in that Close waits for.
func (n *Node) begin() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	n.work.Add(1)
	return nil
}

// Drop ends all regions and groups of a job. It returns when the regions are gone; a group's
// owner still closes it. What is being opened fails.
func (n *Node) Drop(job shuffle.JobID) {
	n.end(ErrDropped, func(j shuffle.JobID) bool { return j == job })
}

func (n *Node) end(err error, which func(shuffle.JobID) bool) {
	n.mu.Lock()
	var groups []*Group
	for g := range n.groups {
		if which(g.spec.Job) {
			groups = append(groups, g)
		}
	}
	for g, cancel := range n.coming {
		if which(g.spec.Job) {
			cancel(err)
		}
	}
	var waits []*opening
	for _, o := range n.opening {
		if which(o.spec.Job) {
			waits = append(waits, o)
		}
	}
	n.mu.Unlock()
	for _, g := range groups {
		g.stop(err)
	}
	for _, o := range waits {
		<-o.ready
		if o.region != nil {
			o.region.stop(err)
		}
	}
	for _, o := range waits {
		if o.region != nil {
			<-o.region.gone
		}
	}
}

// Close ends all regions and groups, and waits for their calls. Whoever feeds Handle has ended.
// Messages that are retained without a kernel's help stay.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	close(n.done)
	n.end(ErrClosed, func(shuffle.JobID) bool { return true })
	n.mu.Lock()
	var groups []*Group
	for g := range n.groups {
		groups = append(groups, g)
	}
	n.mu.Unlock()
	var errs []error
	for _, g := range groups {
		errs = append(errs, g.shut())
	}
	n.work.Wait()
	return errors.Join(errs...)
}

// warn says what went wrong where nobody else is told.
func (n *Node) warn(what string, err error, args ...any) {
	if err != nil {
		n.opts.Log.Warn("broadcast: "+what, append(args, "reason", err)...)
	}
}
