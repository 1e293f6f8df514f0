// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/worker/exchange"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// exchanger is what a worker needs of package exchange.
type exchanger interface {
	Keep(exchange.Output) error
	Held() []*api.Held
	Drop(job string) error
	Gather(context.Context, exchange.Gather) (*exchange.Gathered, error)
	Push(*api.PushRequest, grpc.ServerStreamingServer[api.PushReply]) error
	Fetch(*api.FetchRequest, grpc.ServerStreamingServer[api.FetchBlock]) error
	// member returns a worker as broadcasts know it, but for its name.
	member(ctx context.Context, address string) (broadcast.Member, error)
	// spread gives others a blob.
	spread(context.Context, broadcast.SpreadSpec) (*broadcast.Report, error)
	// dropBroadcasts ends those of a job, and its groups.
	dropBroadcasts(job string)
	// formGroup has the ends of workers be a group.
	formGroup(context.Context, *api.GangForm) (groupFormed, error)
	// group returns this worker's end of a group, and closeGroup gives it back.
	group(token uint64) (allreduce.Group, error)
	closeGroup(ctx context.Context, token uint64) error
	// register adds what peers ask of the shuffle's receiving end, and of this worker as a
	// member of broadcasts.
	register(*grpc.Server)
	Close() error
}

// MaxMessage bounds messages of the control plane, in bytes: plans of jobs with many splits are long.
const MaxMessage = 256 << 20

// Worker is a member of a cluster. New makes one.
type Worker struct {
	opt    Options
	id     string
	folder *folder
	ex     exchanger
	blobs  *blobs
	casts  *spreads
	gangs  *gangs
	logs   *logbook
	server *grpc.Server
	// mapSlots and reduceSlots hold a token per attempt that runs.
	mapSlots, reduceSlots chan struct{}

	// ctx is that of all attempts; cancelled, all are killed.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // attempts and what else works for the master

	mu       sync.Mutex
	attempts map[key]*attempt
	folders  int // counts them
	link     *link
	linked   chan struct{} // closed when there is a link; made anew when it breaks
	cluster  string        // of the master it was with
	masters  []string      // addresses where that one was
	draining bool          // wants to leave
	may      bool          // the master says that it may leave
	dropped  []string      // jobs, to be told
	running  bool
	hurry    chan struct{} // closed by Hurry
	hurried  sync.Once
	wake     chan struct{} // there is something to be told at once
	idle     chan struct{} // told when an attempt has ended
}

// New takes a worker's folder and makes what it needs. Run must be called, which
// gives it all back.
func New(o Options) (_ *Worker, err error) {
	o, err = o.ensureDefaults()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	w := &Worker{
		opt: o, id: hex.EncodeToString(id[:]), folder: f,
		mapSlots: make(chan struct{}, o.Slots), reduceSlots: make(chan struct{}, o.Slots),
		attempts: map[key]*attempt{}, linked: make(chan struct{}),
		wake: make(chan struct{}, 1), idle: make(chan struct{}, 1), hurry: make(chan struct{}),
	}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	for _, name := range []string{"attempts", "logs", "exchange"} {
		if err := os.Mkdir(filepath.Join(f.path, name), 0o700); err != nil {
			return nil, fmt.Errorf("worker: its folder: %w", err)
		}
	}
	w.logs = newLogbook(filepath.Join(f.path, "logs"), o.Logs)
	if w.blobs, err = newBlobs(filepath.Join(f.path, "blobs"), o.Blobs, w.fetchBlob, o.Log); err != nil {
		return nil, err
	}
	w.casts = newSpreads(w)
	w.gangs = newGangs(w)
	if o.exchange == nil {
		o.exchange = w.newExchange
	}
	if w.ex, err = o.exchange(filepath.Join(f.path, "exchange")); err != nil {
		return nil, err
	}
	creds := o.Server
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	w.server = grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage), grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(unaryCaller), grpc.ChainStreamInterceptor(streamCaller))
	api.RegisterPeerServer(w.server, &peer{w: w})
	w.ex.register(w.server)
	return w, nil
}

// ID returns the worker's id: random, and the same as long as it lives.
func (w *Worker) ID() string { return w.id }

// Run attends masters until ctx is done, or until a drain has ended. It then stops all
// attempts, tells the master that it leaves (for two seconds at most), and
// removes all its files. The error is nil if it left as it was meant to.
func (w *Worker) Run(ctx context.Context) (err error) {
	w.mu.Lock()
	if w.running {
		w.mu.Unlock()
		return errors.New("worker: Run was called before")
	}
	w.running = true
	w.mu.Unlock()
	defer func() { err = errors.Join(err, w.end()) }()

	served := make(chan error, 1)
	go func() { served <- w.server.Serve(w.opt.Listener) }()
	attendance, stop := context.WithCancelCause(context.Background())
	attended := make(chan struct{})
	go func() {
		defer close(attended)
		w.attend(attendance)
	}()
	defer func() {
		stop(errLeft)
		<-attended
	}()
	for {
		select {
		case <-ctx.Done():
			w.opt.Log.Info("leaving", "attempts", w.count())
			w.leave(attended)
			return nil
		case <-w.idle:
			if w.mayGo() {
				w.opt.Log.Info("drained, leaving")
				w.leave(attended)
				return nil
			}
		case err := <-served:
			return fmt.Errorf("worker: calls on %s: %w", w.opt.Listener.Addr(), err)
		}
	}
}

// errLeft is why attempts end when the worker goes.
var errLeft = errors.New("the worker leaves")

// Drain has the worker finish what it does and leave: it gets no more attempts, and Run
// returns once the master needs nothing that is here.
func (w *Worker) Drain() {
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	w.nudge()
}

// Hurry has a Run that is leaving not wait for the master to see it.
func (w *Worker) Hurry() { w.hurried.Do(func() { close(w.hurry) }) }

// mayGo says whether nothing keeps the worker.
func (w *Worker) mayGo() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.may && len(w.attempts) == 0
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.attempts)
}

// nudge has what is to be told be told soon.
func (w *Worker) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Worker) nudgeIdle() {
	select {
	case w.idle <- struct{}{}:
	default:
	}
}

// leave tells the master, if there is one, and ends all attempts.
func (w *Worker) leave(attended <-chan struct{}) {
	w.mu.Lock()
	l := w.link
	w.mu.Unlock()
	if l != nil {
		// First, so that the master gives the attempts to others and does not
		// wonder why they fail.
		l.leave()
		select {
		case <-l.ctx.Done():
		case <-attended:
		case <-time.After(parting):
		case <-w.hurry:
		}
	}
	w.cancel(errLeft)
}

// parting is how long a master may take to see that a worker leaves.
const parting = 2 * time.Second

// end gives back all that New and Run took. No attempt outlives it.
func (w *Worker) end() error {
	w.cancel(errLeft)
	// Peers that fetch get an error and ask elsewhere.
	w.server.Stop()
	w.wg.Wait()
	w.blobs.close() // while what gave them their memory is there
	return errors.Join(w.ex.Close(), w.folder.Close())
}
