// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/rpc"
	"github.com/quernmr/quern/worker/exchange"
)

const (
	// maxSpreads is how many broadcasts are under way from here: while one is being opened, or waits for the last
	// member, another one uses the link.
	maxSpreads = 2
	// fileWindow is how many bytes of what becomes a file are sent under one token: members see by each one that it
	// goes on, and need memory for two.
	fileWindow = 64 << 20
	// maxReason bounds the text that the master gets of what went wrong, in bytes.
	maxReason = 1 << 10
)

// spreads are the broadcasts that the master has ordered.
type spreads struct {
	w  *Worker
	do func(ctx context.Context, o *api.Spread) *api.Spreaded

	mu      sync.Mutex
	byID    map[string]*spread // as long as their jobs
	queue   []*spread
	running int
}

// spread is one of them.
type spread struct {
	order  *api.Spread
	ctx    context.Context
	cancel context.CancelCauseFunc
	report *api.Spreaded // nil: it is not over
	told   bool
}

func newSpreads(w *Worker) *spreads {
	return &spreads{w: w, do: w.spreadBlob, byID: map[string]*spread{}}
}

// order takes an order. One that is known is nothing new; if it is over, the master has not heard of that.
func (s *spreads) order(o *api.Spread) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.byID[o.GetId()]; sp != nil {
		if sp.report != nil {
			sp.told = false
			s.w.nudge()
		}
		return
	}
	if s.w.ctx.Err() != nil {
		return
	}
	sp := &spread{order: o}
	sp.ctx, sp.cancel = context.WithCancelCause(s.w.ctx)
	s.byID[o.GetId()] = sp
	s.queue = append(s.queue, sp)
	s.next()
}

// next begins what may begin. The caller holds the lock.
func (s *spreads) next() {
	for s.running < maxSpreads && len(s.queue) > 0 {
		sp := s.queue[0]
		s.queue = s.queue[1:]
		s.running++
		s.w.wg.Go(func() {
			report := s.do(sp.ctx, sp.order)
			s.mu.Lock()
			defer s.mu.Unlock()
			sp.report = report
			s.running--
			s.next()
			s.w.nudge()
		})
	}
}

// news are the reports that were not told yet.
func (s *spreads) news() (list []*api.Spreaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.byID {
		if sp.report != nil && !sp.told {
			sp.told = true
			list = append(list, sp.report)
		}
	}
	slices.SortFunc(list, func(a, b *api.Spreaded) int { return strings.Compare(a.GetId(), b.GetId()) })
	return list
}

// repeat has all be told once more that may not have been heard.
func (s *spreads) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.byID {
		sp.told = false
	}
}

// forget ends those of a job.
func (s *spreads) forget(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(sp *spread) bool { return sp.order.GetJob() == job })
	for id, sp := range s.byID {
		if sp.order.GetJob() == job {
			sp.cancel(fmt.Errorf("%w: its job has ended", errStopped))
			delete(s.byID, id)
		}
	}
}

// known lists the jobs of those that are here.
func (s *spreads) known() (jobs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.byID {
		jobs = append(jobs, sp.order.GetJob())
	}
	return jobs
}

// spreadBlob gives a blob to others.
func (w *Worker) spreadBlob(ctx context.Context, o *api.Spread) *api.Spreaded {
	r := &api.Spreaded{Id: o.GetId(), Job: o.GetJob(), Name: o.GetName(), Size: o.GetSize()}
	began := time.Now()
	report, err := w.spreadTo(ctx, o)
	r.ElapsedUs = time.Since(began).Microseconds()
	var failed []error
	if err != nil {
		failed = append(failed, err)
	}
	if report == nil {
		r.Failed = uint32(len(o.GetMembers()))
	} else {
		r.Sent = report.Sent
		for i := range report.Members {
			switch m := &report.Members[i]; {
			case m.Err != nil:
				r.Failed++
				failed = append(failed, fmt.Errorf("%s: %w", m.Name, m.Err))
			case m.Have:
				r.Had++
			default:
				r.Reached++
				if m.Kernel {
					r.Kernel++
				}
			}
		}
		r.Failed += uint32(max(0, len(o.GetMembers())-len(report.Members)))
	}
	if err := errors.Join(failed...); err != nil {
		r.Error = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxReason)], "?")
		w.opt.Log.Warn("a broadcast has not reached all", "job", o.GetJob(), "name", o.GetName(), "reached", r.GetReached(), "had", r.GetHad(), "failed", r.GetFailed(), "error", r.GetError())
	}
	return r
}

func (w *Worker) spreadTo(ctx context.Context, o *api.Spread) (*broadcast.Report, error) {
	c := o.GetConstants()
	spec := broadcast.SpreadSpec{Name: o.GetBlob(), Kind: kindFile, Size: o.GetSize()}
	spec.Window = fileWindow
	if o.GetMapped() {
		spec.Kind, spec.Window = kindMapped, 0
	}
	if len(c.GetId()) != len(spec.Job) || len(c.GetSecret()) != len(spec.Secret) || hex.EncodeToString(c.GetId()) != o.GetJob() {
		return nil, fmt.Errorf("the order names job %q by %d bytes and a secret of %d", o.GetJob(), len(c.GetId()), len(c.GetSecret()))
	}
	spec.Job, spec.Secret = shuffle.JobID(c.GetId()), [16]byte(c.GetSecret())
	if c.GetShuffle() != "" {
		mode, err := shuffle.ParseMode(c.GetShuffle())
		if err != nil {
			return nil, err
		}
		spec.Mode = mode
	}
	for _, m := range o.GetMembers() {
		member, err := w.ex.member(ctx, m.GetAddress())
		if err != nil {
			w.opt.Log.Warn("a worker gets nothing by broadcast", "worker", cmp.Or(m.GetName(), m.GetWorker()), "address", m.GetAddress(), "error", err)
			continue
		}
		member.Name = cmp.Or(m.GetName(), m.GetWorker())
		spec.Members = append(spec.Members, member)
	}
	if len(spec.Members) == 0 {
		return nil, errors.New("no member can be reached")
	}
	source, size, release, err := w.blobs.reader(ctx, o.GetBlob())
	if err != nil {
		return nil, err
	}
	defer release()
	if size != o.GetSize() {
		return nil, fmt.Errorf("blob %.12s has %d bytes, the order says %d", o.GetBlob(), size, o.GetSize())
	}
	spec.Source = source
	return w.ex.spread(ctx, spec)
}

// reader returns a blob to be read until release is called.
func (s *blobs) reader(ctx context.Context, digest string) (from io.ReaderAt, size int64, release func(), err error) {
	b, err := s.acquire(ctx, digest, "")
	if err != nil {
		return nil, 0, nil, err
	}
	s.mu.Lock()
	r, path, size := b.region, b.path, b.size
	s.mu.Unlock()
	if r == nil {
		f, err := os.Open(path)
		if err != nil {
			s.release(b)
			return nil, 0, nil, err
		}
		return f, size, func() {
			_ = f.Close()
			s.release(b)
		}, nil
	}
	data, unmap, err := r.bytes()
	if err != nil {
		s.release(b)
		return nil, 0, nil, err
	}
	return bytes.NewReader(data), size, func() {
		if err := unmap(); err != nil {
			s.log.Warn("a side input stays mapped", "error", err)
		}
		s.release(b)
	}, nil
}

// errNoBroadcasts is why an exchange has none.
var errNoBroadcasts = errors.New("this worker takes no part in broadcasts; its log says why")

// member implements exchanger.
func (s *shuffler) member(ctx context.Context, address string) (m broadcast.Member, err error) {
	host, err := exchange.HostOf(ctx, address)
	if err != nil {
		return m, err
	}
	conn, err := s.peers.get(ctx, address)
	if err != nil {
		return m, err
	}
	m.Address, m.Control = netip.AddrPortFrom(host, 0), rpc.NewBroadcastClient(conn)
	return m, nil
}

// spread implements exchanger.
func (s *shuffler) spread(ctx context.Context, spec broadcast.SpreadSpec) (*broadcast.Report, error) {
	if s.node == nil {
		return nil, errNoBroadcasts
	}
	return s.node.Spread(ctx, spec)
}
