// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// worker is a worker whose lease has not run out.
type worker struct {
	id          string
	hello       *api.Hello
	session     *session     // nil: it has no stream at present
	heard       atomic.Int64 // when it was heard of, by the clock
	up          bool         // the scheduler knows it
	suspected   bool         // by the gossip, since suspectedAt
	told        bool         // the scheduler was told that it is a suspect
	suspectedAt time.Duration
	draining    bool
	left        bool // it may go
	aside       time.Duration
	asideWhy    string
	byName      bool     // it was told to leave by its name when it had no stream
	owed        []string // jobs to be forgotten, which it could not be told of
}

// Bounds of what a worker may say of itself.
const (
	maxSlots = 1 << 12
	maxName  = 1 << 10
)

type attendance struct {
	api.UnimplementedAttendanceServer
	m *Master
}

// checkHello says what is wrong with a worker.
func (m *Master) checkHello(h *api.Hello) error {
	if h == nil {
		return status.Error(codes.InvalidArgument, "a worker's first message says hello")
	}
	if h.Protocol != api.Protocol {
		return status.Errorf(codes.FailedPrecondition, "the worker speaks version %d of the cluster's protocol and the master version %d: run the same version of quern on all hosts", h.Protocol, api.Protocol)
	}
	if h.Version != m.opts.Version {
		return status.Errorf(codes.FailedPrecondition, "the worker is quern %s and the master %s: run the same version on all hosts", h.Version, m.opts.Version)
	}
	if h.Worker == "" || len(h.Worker) > maxName || len(h.Name) > maxName || len(h.Shuffle) > maxName {
		return status.Error(codes.InvalidArgument, "a worker's id, name and description have 1 to 1024 bytes")
	}
	if h.Slots < 1 || h.Slots > maxSlots || h.Memory < 0 {
		return status.Errorf(codes.InvalidArgument, "a worker with %d slots and %d bytes of memory: give 1 to %d slots", h.Slots, h.Memory, maxSlots)
	}
	host, port, err := net.SplitHostPort(h.Address)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || host == "" {
		return status.Errorf(codes.InvalidArgument, "%q is no address that peers reach the worker at; give host:port", h.Address)
	}
	if h.Platform == "" {
		return status.Error(codes.InvalidArgument, "a worker says what platform it is (GOOS/GOARCH)")
	}
	return nil
}

// Attend implements api.AttendanceServer.
func (a attendance) Attend(stream grpc.BidiStreamingServer[api.WorkerMessage, api.MasterMessage]) error {
	m := a.m
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := m.checkHello(first.Hello); err != nil {
		m.log.Warn("a worker is refused", "worker", first.GetHello().GetName(), "address", first.GetHello().GetAddress(), "error", err)
		return err
	}
	s := newSession(first.Hello.Worker)
	if err := m.do(stream.Context(), func() { m.hello(s, first) }); err != nil {
		return err
	}
	defer func() {
		s.end(io.EOF)
		// It fails only if the master stops.
		_ = m.do(context.WithoutCancel(stream.Context()), func() { m.hangUp(s) })
	}()
	received := make(chan error, 1)
	go func() {
		for {
			msg, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			if err := m.do(stream.Context(), func() { m.hear(s, msg) }); err != nil {
				received <- err
				return
			}
		}
	}()
	for {
		for {
			msg := s.take()
			if msg == nil {
				break
			}
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		select {
		case <-s.wake:
		case <-s.ended:
			switch s.reason {
			case errStopping:
				return errStopping
			case io.EOF: // it has left
				return nil
			}
			return status.Error(codes.Aborted, s.reason.Error())
		case err := <-received:
			if err == io.EOF {
				return nil
			}
			return err
		case <-m.stopping:
			return errStopping
		}
	}
}

// hello takes a worker in, or again.
func (m *Master) hello(s *session, msg *api.WorkerMessage) {
	h := msg.Hello
	now := m.clock.now()
	inherits := m.inheritsDrain(h)
	for _, other := range m.workers {
		if other.id != h.Worker && other.hello.Address == h.Address {
			// Nobody else can listen there: the process that did is gone.
			m.workerGone(other, fmt.Errorf("worker %s has taken its address", h.Name))
		}
	}
	w := m.workers[h.Worker]
	if w == nil {
		w = &worker{id: h.Worker}
		for _, g := range m.gone {
			// Its lease had run out, but it is the same process: what was said to it holds.
			w.draining = w.draining || g.id == h.Worker && g.draining
		}
		m.workers[h.Worker] = w
	}
	if w.session != nil {
		w.session.end(errReplaced)
	}
	// Nobody could be told where it is if that was not known.
	moved := w.hello != nil && w.hello.Address != h.Address
	w.hello, w.session = h, s
	w.draining, w.byName = w.draining || inherits, false
	w.heard.Store(int64(now))
	welcome := &api.Welcome{Epoch: m.Epoch(), Cluster: m.Cluster(), LeaseMs: m.opts.Lease.Milliseconds()}
	up := schedule.Worker{ID: h.Worker, Name: h.Name, Slots: int(h.Slots), Memory: h.Memory, Local: h.Local, Platform: h.Platform}
	foreign := h.Cluster != "" && h.Cluster != m.Cluster()
	for _, r := range h.Running {
		at, ok := fromAPI(r)
		if !ok || foreign {
			welcome.Stop = append(welcome.Stop, r)
			continue
		}
		if m.ends[at] {
			continue // it has heard so meanwhile
		}
		if j := m.jobs[at.Job]; j != nil && j.hasTaken(at, h.Worker) {
			// Its result was taken, but the answer did not get there. It will be told when it asks again.
			if at.Stage == schedule.Map {
				up.Outputs = append(up.Outputs, at)
			}
			continue
		}
		up.Running = append(up.Running, at)
	}
	if !foreign {
		for _, o := range h.Outputs {
			if at, ok := fromAPI(o.Attempt); ok && at.Stage == schedule.Map {
				up.Outputs = append(up.Outputs, at)
			}
		}
	} else {
		m.log.Warn("a worker comes from another cluster; what it has of it is dropped", "worker", h.Name, "cluster", h.Cluster)
	}
	s.welcome = welcome
	m.roll[w.id] = h
	m.log.Info("a worker says hello", "worker", w.id, "name", h.Name, "address", h.Address, "slots", h.Slots,
		"running", len(h.Running), "outputs", len(h.Outputs), "shuffle", h.Shuffle)
	// What was believed to run there and does not is lost; the scheduler sees it by itself.
	has := map[schedule.Attempt]bool{}
	for _, at := range up.Running {
		has[at] = true
	}
	for j := range m.allJobs() {
		for at, r := range j.running {
			if r.worker == w.id && !has[at] {
				j.end(at, "lost", "the worker has it no more", m)
			}
		}
	}
	m.spreadAgain(w, s, moved)
	for _, job := range w.owed {
		s.forgetJob(job)
	}
	w.owed = nil
	for _, job := range h.Jobs {
		if m.jobOver(job) { // it ended while the worker was gone
			s.forgetJob(job)
		}
	}
	w.up = true
	m.apply(schedule.WorkerUp{Worker: up})
	w.told = !(w.suspected || w.session == nil) // have it told, whatever it was before
	m.tellSuspect(w)
	if w.draining {
		m.apply(schedule.WorkerDrain{ID: w.id})
	}
	if w.left {
		s.drain = true // it may not have heard
	}
	// Moves that were told while it could not hear are told again.
	for _, j := range m.jobs {
		for at, r := range j.running {
			if at.Stage != schedule.Reduce || j.ledger == nil {
				continue
			}
			if r.worker == w.id {
				m.remind(j, at, s, func(o *output) bool { return o.moved || r.unsure })
			} else if other := m.sessionOf(r.worker); moved && other != nil {
				m.remind(j, at, other, func(o *output) bool { return o.worker == w.id })
			}
		}
	}
	m.report(w, msg)
	m.gangAgain(w)
	s.order(func() {})
}

// inheritsDrain says whether a worker that says hello is the one that somebody told to leave by its name: the name's worker
// had no stream at that time, and this process was started in its place. It counts as long as the other's lease.
func (m *Master) inheritsDrain(h *api.Hello) bool {
	if m.workers[h.Worker] != nil {
		return false
	}
	for _, other := range m.workers {
		if other.byName && other.session == nil && other.hello.Name == h.Name {
			other.byName = false
			m.roll[other.id] = other.hello
			return true
		}
	}
	return false
}

// remind tells a reduce attempt where map outputs are.
func (m *Master) remind(j *job, reader schedule.Attempt, s *session, which func(*output) bool) {
	p := j.shufflePart(reader.Task)
	for t := range j.ledger.outputs {
		if o := &j.ledger.outputs[t]; o.done && which(o) && j.ledger.pairs[p*j.ledger.maps+t] > 0 {
			// One that nobody has, as far as is known, may still be on its way to the reader; where it is will be told.
			if at := j.ledger.mapOutput(p, t, m.locate(j)); at.Address != "" {
				s.relocate(reader, at)
			}
		}
	}
}

// hear takes a message of a worker.
func (m *Master) hear(s *session, msg *api.WorkerMessage) {
	w := m.workers[s.worker]
	if w == nil || w.session != s {
		return // what an older stream says is late
	}
	now := m.clock.now()
	w.heard.Store(int64(now))
	if w.suspected && now-w.suspectedAt > m.opts.Lease {
		// The gossip may not get through, or its last word was lost. Who says something for so long is there.
		w.suspected = false
		m.tellSuspect(w)
	}
	m.report(w, msg)
}

// report takes what a worker reports.
func (m *Master) report(w *worker, msg *api.WorkerMessage) {
	var events []schedule.Event
	for _, p := range msg.Progress {
		at, ok := fromAPI(p.Attempt)
		j := m.jobs[at.Job]
		if !ok || j == nil {
			continue
		}
		if r := j.running[at]; r != nil && r.worker == w.id {
			r.progress = p
			j.touch()
			events = append(events, schedule.Progressed{Attempt: at, Done: p.Done})
		}
	}
	for _, l := range msg.Lost {
		reader, ok := fromAPI(l.Reader)
		output, ok2 := fromAPI(l.Output)
		j := m.jobs[reader.Job]
		if !ok || !ok2 || j == nil || output.Job != reader.Job || reader.Stage != schedule.Reduce || output.Stage != schedule.Map {
			continue
		}
		m.log.Warn("a map output can't be had", "output", describe(output), "reader", describe(reader), "from", l.Worker, "error", l.Error)
		events = append(events, schedule.OutputLost{Reader: reader, Output: output, Worker: l.Worker, Error: l.Error, Certain: l.Damaged || l.Gone})
	}
	for _, g := range msg.Members {
		if e := m.gangMember(w, g); e != nil {
			events = append(events, e)
		}
	}
	for _, r := range msg.Formed {
		m.gangFormed(w, r)
	}
	if msg.Draining && !w.draining {
		w.draining = true
		m.log.Info("a worker drains", "worker", w.id, "name", w.hello.Name)
		events = append(events, schedule.WorkerDrain{ID: w.id})
	}
	var reports []journal.Entry
	for _, r := range msg.Spreaded {
		if e := m.spreaded(w, r); e != nil {
			reports = append(reports, e)
		}
	}
	m.writeReports(reports)
	m.apply(events...)
	if msg.Leaving {
		m.log.Info("a worker leaves", "worker", w.id, "name", w.hello.Name)
		m.workerGone(w, io.EOF)
	}
}

// hangUp notes that a stream has ended.
func (m *Master) hangUp(s *session) {
	w := m.workers[s.worker]
	if w == nil || w.session != s {
		return
	}
	w.session = nil
	m.log.Warn("a worker's stream has ended; its lease goes on", "worker", w.id, "name", w.hello.Name)
	m.tellSuspect(w)
}

// workerGone takes a worker out.
func (m *Master) workerGone(w *worker, why error) {
	if m.workers[w.id] != w {
		return
	}
	delete(m.workers, w.id)
	if w.session != nil {
		w.session.end(why)
	}
	w.session = nil
	m.gone = append(m.gone, w)
	if len(m.gone) > rememberGone {
		m.gone = m.gone[1:]
	}
	m.roll[w.id] = nil
	reason := "its worker is gone"
	if why == io.EOF {
		reason = "its worker has left"
	}
	for j := range m.allJobs() {
		j.lostWith(w.id, reason, m)
	}
	m.sourceGone(w)
	m.apply(schedule.WorkerDown{ID: w.id})
}
