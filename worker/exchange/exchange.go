// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
)

// Options say what an exchange works with. Receiver, Sender and Dial must be set.
type Options struct {
	// Dir is where map outputs are kept, in a folder of the exchange's own that
	// Close removes.
	Dir string
	// Receiver and Sender stay their owner's, who closes them after the exchange.
	Receiver *receive.Receiver
	Sender   *push.Sender
	// Dial returns a connection to another worker, given as host:port. It is called
	// for every request and has to keep connections; the exchange closes none.
	Dial    func(ctx context.Context, address string) (*grpc.ClientConn, error)
	Address string // host:port where peers reach this worker's control plane
	Worker  string // this worker's id
	// Memory is for outputs that are being cut into frames, in bytes, for all
	// receivers together; one that is larger goes alone. 0: 256 MiB.
	Memory int64
	// Jobs is for how many jobs reduce attempts are gathered at once; others wait.
	// The other half of a kernel's slots for jobs is the sender's. 0: 32.
	Jobs int
	// Stall is how long a peer may say nothing before it is taken for gone. 0: 20 s.
	Stall time.Duration
	Log   *slog.Logger // nil: nothing is logged
}

// ErrPermanent marks errors that every attempt would meet.
var ErrPermanent = errors.New("another attempt would fail in the same way")

// ErrChanged is returned if a map output that was made again differs from the one before:
// the part has to begin anew with the new one.
var ErrChanged = errors.New("a map output changed")

// ErrClosed is returned by an exchange that was closed.
var ErrClosed = errors.New("the exchange is closed")

// Exchange is a worker's end of the exchange of pairs. Its methods may be called
// from several goroutines.
type Exchange struct {
	opts   Options
	log    *slog.Logger
	store  *store
	guard  *guard
	memory *semaphore.Weighted // bytes

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup // gatherings and what peers asked for
	jobs   map[shuffle.JobID]*openJob
	free   chan struct{} // closed, and made anew, when a job ends
}

// New makes an exchange. Jobs that an earlier process has left with the receiver are dropped:
// nobody will go on with them.
func New(opts Options) (*Exchange, error) {
	if opts.Receiver == nil || opts.Sender == nil || opts.Dial == nil {
		return nil, errors.New("exchange: receiver, sender and dialler must be set")
	}
	opts.Memory = cmp.Or(max(opts.Memory, 0), 256<<20)
	opts.Jobs = cmp.Or(max(opts.Jobs, 0), 32)
	opts.Stall = cmp.Or(max(opts.Stall, 0), 20*time.Second)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	st, err := newStore(opts.Dir)
	if err != nil {
		return nil, err
	}
	x := &Exchange{
		opts: opts, log: opts.Log, store: st, memory: semaphore.NewWeighted(opts.Memory),
		jobs: map[shuffle.JobID]*openJob{}, free: make(chan struct{}),
	}
	x.guard = &guard{x}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	for _, id := range opts.Receiver.TakenUp() {
		if err := opts.Receiver.Drop(x.ctx, id); err != nil {
			return nil, errors.Join(fmt.Errorf("exchange: drop job %s of an earlier process: %w", id, err), st.close())
		}
	}
	return x, nil
}

// Control is what senders ask of this worker's receiver, for rpc.NewServer. It takes
// streams only for what is being gathered here: a sender that comes late opens
// nothing that nobody would close.
func (x *Exchange) Control() shuffle.Control { return x.guard }

// Close ends what is under way, waits for it, and removes all outputs.
func (x *Exchange) Close() error {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.cancel(ErrClosed)
	x.calls.Wait()
	return x.store.close()
}

// enter counts a call in. Its context ends with the exchange.
func (x *Exchange) enter(ctx context.Context) (context.Context, func(), error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, nil, ErrClosed
	}
	x.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(x.ctx, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		x.calls.Done()
	}, nil
}

// pause waits, and returns false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
