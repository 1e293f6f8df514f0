// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	defaultMemory = 256 << 20
	// defaultPatience is longer than most things take that pass by themselves: a process
	// that swaps, a collector's pause, a network that converges.
	defaultPatience = 10 * time.Second
	// refreshEvery is how often ways to members are looked up again: neighbours change.
	refreshEvery = time.Second
)

// ErrClosed is why groups break at a node that was closed.
var ErrClosed = errors.New("all-reduces are closed here")

// ErrDropped is why groups break whose job was dropped.
var ErrDropped = errors.New("the group's job was dropped")

// Options say what a node works with. Send must be set.
type Options struct {
	// Kernel is this host's help; nil: none. Jobs hands out the kernel's slots for keys,
	// and is shared with whatever else uses them; nil: the node makes its own.
	Kernel shuffle.Reduces
	Jobs   *shuffle.JobSlots
	Mode   shuffle.Mode
	// Port is the UDP port that frames for this host go to.
	Port int
	// Send sends frames that stand behind each other in b, all of size bytes but for a smaller last one, from
	// Port. It keeps nothing of b. Several goroutines call it. receive.Receiver has it.
	Send func(b []byte, size int, to netip.AddrPort) error
	// Streams takes the connections by which large vectors come, TCP. The node closes it when it is closed. nil: groups that
	// this host is a member of reduce by frames alone.
	Streams net.Listener
	// Dial connects to another member's. nil: as the system does.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Memory is how many bytes all groups together may take. 0: 256 MiB.
	Memory int64
	// Patience is after what time of waiting the log says for whom. 0: 10 s.
	Patience time.Duration
	Log      *slog.Logger // nil: nothing is logged

	sizes streamSizes // for tests: the same at all members
}

// Node is a host's end of groups. Its methods may be called from several goroutines.
type Node struct {
	opts   Options
	kernel shuffle.Reduces // nil: programs do nothing of groups here
	shared []wire.Group    // mapped
	cpus   int
	jobs   *shuffle.JobSlots
	counts counts
	frames sync.Pool // of *[wire.FrameSize]byte
	door   door

	// tokens are the open ends, replaced as a whole, so that frames find theirs without a lock.
	tokens atomic.Pointer[map[uint64]*end]

	mu     sync.Mutex
	ends   map[uint64]*opening
	free   []int // slots of the mapped memory
	used   int64 // bytes
	closed bool
	work   sync.WaitGroup
	done   chan struct{}
	soon   chan struct{} // a way is to be looked up again soon
}

// opening is an end that is open, or is being opened.
type opening struct {
	spec  shuffle.GroupSpec
	ready chan struct{}
	end   *end // after ready; nil: it could not be opened
	err   error
}

// Stats counts what a node did. What programs did stands in their own counts.
type Stats struct {
	Open    int                  // ends
	Memory  int64                // bytes that they take
	Reasons [wire.Reasons]uint64 // how frames ended that came to Handle
	Sent    uint64               // frames that left this host by Send, of all kinds
	Again   uint64               // parts among them that were sent again
	Woken   uint64               // times that a call was woken by results
	Spun    uint64               // times that results came while a call watched for them, so that nobody had to be woken
	Timers  uint64               // times that a call looked because nothing had come for a while
	// Pieces came over streams; Strangers are connections that were dropped since they were no member's.
	Pieces, Strangers uint64
}

type counts struct {
	reasons [wire.Reasons]atomic.Uint64

	sent, again, woken, spun, timers, pieces, strangers atomic.Uint64
}

// New makes a node. With a kernel's help its programs serve from now on what is opened.
func New(opts Options) (*Node, error) {
	if opts.Send == nil {
		return nil, errors.New("all-reduce: a node without a way to send; set Options.Send")
	}
	if opts.Memory <= 0 {
		opts.Memory = defaultMemory
	}
	if opts.Patience <= 0 {
		opts.Patience = defaultPatience
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Mode == shuffle.KernelOnly && opts.Kernel == nil {
		return nil, fmt.Errorf("all-reduce: mode %s, and no kernel's help; `quern doctor` says what is missing, --shuffle auto does without", opts.Mode)
	}
	n := &Node{opts: opts, ends: map[uint64]*opening{}, done: make(chan struct{}), soon: make(chan struct{}, 1)}
	n.frames.New = func() any { return new([wire.FrameSize]byte) }
	n.tokens.Store(&map[uint64]*end{})
	if opts.Kernel != nil && opts.Mode != shuffle.UserOnly {
		n.kernel, n.jobs, n.shared, n.cpus = opts.Kernel, opts.Jobs, opts.Kernel.Groups(), opts.Kernel.Memory().CPUs
		if n.jobs == nil {
			n.jobs = shuffle.NewJobSlots(opts.Kernel, shuffle.Limits{}.EnsureDefaults().Jobs)
		}
		if err := n.sweep(); err != nil {
			return nil, err
		}
		if err := n.kernel.OnRound(n.event); err != nil {
			return nil, fmt.Errorf("all-reduce: hear of what programs stored: %w", err)
		}
		n.work.Add(1)
		go n.keep()
	}
	if opts.Streams != nil {
		n.work.Add(1)
		go n.accept()
	}
	return n, nil
}

// sweep closes what an earlier process has left open in the mapped memory, and notes all slots as free.
func (n *Node) sweep() error {
	left := false
	for i := len(n.shared) - 1; i >= 0; i-- {
		g := &n.shared[i]
		if token := atomic.LoadUint64(&g.Token); token != 0 {
			left = true
			atomic.StoreUint64(&g.Token, 0)
			if err := n.kernel.ClearToken(token); err != nil {
				return fmt.Errorf("all-reduce: close what an earlier process left open: %w", err)
			}
		}
		n.free = append(n.free, i)
	}
	if left {
		return n.kernel.Quiesce()
	}
	return nil
}

// event is told of a result that a call waits for.
func (n *Node) event(e wire.Event) {
	if g := (*n.tokens.Load())[e.Token]; g != nil {
		g.poke()
	}
}

// keep looks ways up again, until the node is closed.
func (n *Node) keep() {
	defer n.work.Done()
	every := time.NewTicker(refreshEvery)
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
		pending := false
		for _, e := range *n.tokens.Load() {
			if e.gate.enter() {
				pending = e.aim() || pending
				e.gate.leave()
			}
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

// Group returns the end that was opened here under a token, for who calls it. An error wraps shuffle.ErrUnknown.
func (n *Node) Group(token uint64) (Group, error) {
	if e := (*n.tokens.Load())[token]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("all-reduce: a group with token %#x: %w", token, shuffle.ErrUnknown)
}

// Drop breaks and closes all groups of a job. It returns when they are gone.
func (n *Node) Drop(job shuffle.JobID) {
	n.end(ErrDropped, func(j shuffle.JobID) bool { return j == job })
}

// end closes groups for a reason.
func (n *Node) end(why error, which func(shuffle.JobID) bool) {
	n.mu.Lock()
	var list []*opening
	for _, o := range n.ends {
		if which(o.spec.Job) {
			list = append(list, o)
		}
	}
	n.mu.Unlock()
	for _, o := range list {
		<-o.ready
		if o.end != nil {
			o.end.fail(why)
		}
	}
	for _, o := range list {
		if o.end != nil {
			o.end.shut()
		}
	}
}

// Stats returns what the node did.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	s := Stats{Open: len(*n.tokens.Load()), Memory: n.used}
	n.mu.Unlock()
	for i := range s.Reasons {
		s.Reasons[i] = n.counts.reasons[i].Load()
	}
	s.Sent, s.Again = n.counts.sent.Load(), n.counts.again.Load()
	s.Woken, s.Spun, s.Timers = n.counts.woken.Load(), n.counts.spun.Load(), n.counts.timers.Load()
	s.Pieces, s.Strangers = n.counts.pieces.Load(), n.counts.strangers.Load()
	return s
}

// Close breaks and closes all groups, and waits for their calls. Whoever feeds Handle has ended.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	close(n.done)
	n.shutDoor()
	n.end(ErrClosed, func(shuffle.JobID) bool { return true })
	n.work.Wait()
	return nil
}

// send sends frames; what can't be sent counts as lost.
func (n *Node) send(b []byte, size int, to netip.AddrPort) {
	n.counts.sent.Add(uint64((len(b) + size - 1) / size))
	_ = n.opts.Send(b, size, to)
}

// warn says what went wrong where nobody else is told.
func (n *Node) warn(what string, err error, args ...any) {
	if err != nil {
		n.opts.Log.Warn("all-reduce: "+what, append(args, "reason", err)...)
	}
}
