// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/blobs"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

var (
	errStopping = status.Error(codes.Unavailable, "the master is stopping; try again")
	errReplaced = errors.New("the worker has opened another stream")
	errGone     = errors.New("the worker's lease has run out")
	errSlow     = errors.New("the worker does not read what it is told")
)

// Master is a cluster's master.
type Master struct {
	opts     Options
	log      *slog.Logger
	clock    clock
	listener net.Listener
	server   *grpc.Server
	journal  *journal.Journal
	blobs    *blobs.Store

	requests chan func()
	finishes chan *finish
	stopping chan struct{} // closed when Serve is to end
	stopped  chan struct{} // closed when the loop has ended
	stopOnce sync.Once
	started  atomic.Bool
	begun    time.Time
	work     sync.WaitGroup // what the loop has started beside it

	// What follows belongs to the loop.
	state     *schedule.State
	events    []schedule.Event // to be applied
	applying  bool
	jobs      map[string]*job
	left      map[string]*job    // have ended, but for the removal of what they left of their output
	history   []*journal.History // by Seq
	byID      map[string]*journal.History
	keys      map[string]string // of submissions: job
	seq       uint64
	workers   map[string]*worker
	gone      []*worker             // the last ones
	unwritten []*job                // have ended, but the journal does not know it
	roll      map[string]*api.Hello // workers that came, or went (nil), since the last write
	fatal     error                 // why the loop is to end
	full      error                 // why the journal could not be written the last time
	retryAt   time.Duration
	cleanAt   time.Duration
	ticked    time.Duration
	ends      map[schedule.Attempt]bool
	endList   []schedule.Attempt // in ends, oldest first
}

// New opens the journal and the folder of blobs, restores what was going on, and
// listens. Serve does the rest; Close must be called.
func New(opts Options) (m *Master, err error) {
	if err := opts.ensureDefaults(); err != nil {
		return nil, err
	}
	m = &Master{
		opts: opts, log: opts.Log, clock: opts.clock, begun: time.Now(),
		requests: make(chan func()), finishes: make(chan *finish, maxBatch),
		stopping: make(chan struct{}), stopped: make(chan struct{}),
		jobs: map[string]*job{}, left: map[string]*job{}, byID: map[string]*journal.History{}, keys: map[string]string{}, workers: map[string]*worker{}, ends: map[schedule.Attempt]bool{},
		roll: map[string]*api.Hello{},
	}
	var undo []io.Closer
	defer func() {
		if err != nil {
			for _, c := range undo {
				err = errors.Join(err, c.Close())
			}
		}
	}()
	if m.journal, err = journal.Open(opts.Dir); err != nil {
		return nil, err
	}
	undo = append(undo, m.journal)
	if opts.noSync {
		m.journal.DontSync()
	}
	if m.blobs, err = blobs.Open(filepath.Join(opts.Dir, "blobs"), opts.Limits.Blob); err != nil {
		return nil, err
	}
	if err = m.restore(); err != nil {
		return nil, err
	}
	if m.listener = opts.Listener; m.listener == nil {
		if m.listener, err = net.Listen("tcp", opts.Address); err != nil {
			return nil, fmt.Errorf("the master's address: %w", err)
		}
	}
	m.server = grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(opts.Limits.Message),
		grpc.MaxSendMsgSize(1 << 30),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(4096),
		grpc.ChainUnaryInterceptor(m.guardUnary),
		grpc.ChainStreamInterceptor(m.guardStream),
	}, opts.Server...)...)
	api.RegisterClusterServer(m.server, clusterService{m: m})
	api.RegisterAttendanceServer(m.server, attendance{m: m})
	return m, nil
}

// Addr is where the master listens.
func (m *Master) Addr() net.Addr { return m.listener.Addr() }

// Cluster is the cluster's name, made with its journal.
func (m *Master) Cluster() string { return m.journal.Cluster() }

// Epoch counts the master's starts.
func (m *Master) Epoch() uint64 { return m.journal.Epoch() }

// Serve serves until the context is done or Close is called, and returns nil then. It may be
// called once.
func (m *Master) Serve(ctx context.Context) error {
	if m.started.Swap(true) {
		return errors.New("a master serves once")
	}
	m.log.Info("master serves", "address", m.listener.Addr().String(), "cluster", m.Cluster(), "epoch", m.Epoch(),
		"jobs", len(m.jobs), "history", len(m.history))
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(m.stopped)
		if err := m.loop(); err != nil {
			failed <- err
			m.stop()
		}
	})
	served := make(chan error, 1)
	wg.Go(func() { served <- m.server.Serve(m.listener) })
	var err error
	select {
	case <-ctx.Done():
	case <-m.stopping:
	case err = <-served:
		select {
		case <-m.stopping: // Close was faster than the server
			err = nil
		default:
			err = fmt.Errorf("the master's listener: %w", err)
		}
	}
	m.stop()
	// Streams end since the master is stopping; calls that wait get errStopping.
	halted := make(chan struct{})
	wg.Go(func() {
		m.server.GracefulStop()
		close(halted)
	})
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case <-halted:
	case <-t.C:
		m.server.Stop()
	}
	wg.Wait()
	m.work.Wait()
	select {
	case e := <-failed:
		err = e
	default:
	}
	return err
}

func (m *Master) stop() { m.stopOnce.Do(func() { close(m.stopping) }) }

// Close ends Serve, waits for it if it was called, and closes the journal.
func (m *Master) Close() error {
	m.stop()
	if m.started.Load() {
		<-m.stopped
		m.server.Stop()
		m.work.Wait()
	} else {
		m.server.Stop()
		_ = m.listener.Close() // the server may have closed it
	}
	return m.journal.Close()
}

// do has the loop call f, and waits for it.
func (m *Master) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case m.requests <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-m.stopping:
		return errStopping
	}
	select {
	case <-done:
		return nil
	case <-m.stopped:
		select {
		case <-done:
			return nil
		default:
			return errStopping
		}
	}
}

// random64 returns a random number that nobody can guess.
func random64() (uint64, error) {
	var b [8]byte
	_, err := rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}
