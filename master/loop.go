// SPDX-License-Identifier: Apache-2.0

package master

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

const (
	// maxBatch bounds the results that share one write of the journal.
	maxBatch = 256
	// retryFull is how long the loop waits before it writes again what the disk had no room for.
	retryFull = time.Second
	// cleanEvery is how often blobs and old history are removed.
	cleanEvery = 10 * time.Minute
	// rememberGone is how many workers that are gone are remembered.
	rememberGone = 50
)

// loop owns the state until the master stops.
func (m *Master) loop() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the master's loop failed: %v\n%s", p, debug.Stack())
		}
		for _, w := range m.workers {
			if w.session != nil {
				w.session.end(errStopping)
			}
		}
	}()
	m.ticked = m.clock.now()
	for _, w := range m.workers {
		w.heard.Store(int64(m.ticked))
	}
	m.cleanAt = m.ticked
	m.apply(schedule.Tick{})
	suspects := m.opts.Suspects
	for {
		timer, stop := m.clock.timer(m.nextWake())
		select {
		case f := <-m.requests:
			f()
		case f := <-m.finishes:
			m.finish(m.batch(f))
		case s, ok := <-suspects:
			if !ok {
				suspects = nil
				break
			}
			m.suspicion(s)
		case <-timer:
			m.tick()
		case <-m.stopping:
			stop()
			return nil
		}
		stop()
		if m.fatal != nil {
			return m.fatal // whoever starts again sees what the journal has
		}
	}
}

// batch takes what waits beside a first result.
func (m *Master) batch(first *finish) []*finish {
	batch := []*finish{first}
	for len(batch) < maxBatch {
		select {
		case f := <-m.finishes:
			batch = append(batch, f)
		default:
			return batch
		}
	}
	return batch
}

// nextWake is how long the loop may sleep.
func (m *Master) nextWake() time.Duration {
	now := m.clock.now()
	wake := m.ticked + m.opts.Lease/8
	if at, ok := m.state.Next(); ok {
		wake = min(wake, at)
	}
	if len(m.unwritten) > 0 {
		wake = min(wake, m.retryAt)
	}
	return max(wake-now, 0)
}

// tick looks after what time alone brings.
func (m *Master) tick() {
	now := m.clock.now()
	// A master that did not run for a while has not read what workers sent meanwhile.
	if late := now - m.ticked - m.opts.Lease/8; late > m.opts.Lease/4 {
		m.log.Warn("the master did not run for a while; leases are prolonged", "by", late)
		for _, w := range m.workers {
			// Some were heard since it runs again: their lease is a whole one, and no longer.
			w.heard.Store(min(w.heard.Load()+int64(late), int64(now)))
		}
	}
	m.ticked = now
	for id, w := range m.workers {
		if now-time.Duration(w.heard.Load()) > m.opts.Lease {
			m.log.Warn("a worker's lease has run out", "worker", id, "name", w.hello.Name)
			m.workerGone(w, errGone)
		}
	}
	if len(m.unwritten) > 0 && now >= m.retryAt {
		again := m.unwritten
		m.unwritten = nil
		for _, j := range again {
			m.writeEnd(j)
		}
	}
	if len(m.roll) > 0 {
		_ = m.write() // it is tried again
	}
	if now >= m.cleanAt {
		m.cleanAt = now + cleanEvery
		m.clean()
	}
	m.apply(schedule.Tick{})
}

// write writes to the journal, and remembers whether there is room. Which workers there are is written
// on the way: thousands may come at once, and a worker that is not in it is only not waited for
// after a restart.
func (m *Master) write(entries ...journal.Entry) error {
	for id, h := range m.roll {
		if h == nil {
			entries = append(entries, journal.WorkerGone{ID: id})
			continue
		}
		h = proto.CloneOf(h)
		h.Running, h.Outputs = nil, nil
		b, err := proto.Marshal(h)
		if err != nil {
			m.log.Error("a worker can't be encoded", "worker", id, "error", err)
			delete(m.roll, id)
			continue
		}
		w := m.workers[id]
		entries = append(entries, journal.WorkerSeen{Worker: journal.Worker{ID: id, Hello: b, Draining: w != nil && w.draining, ByName: w != nil && w.byName}})
	}
	err := m.journal.Write(entries...)
	if err == nil {
		clear(m.roll)
	}
	switch {
	case errors.Is(err, journal.ErrUnsure):
		m.fatal = err
	case err == nil && m.full != nil:
		m.full = nil
		m.log.Info("the journal can be written again")
		for _, j := range m.jobs {
			j.touch()
		}
	case err != nil:
		if m.full == nil {
			m.log.Error("the journal can't be written; new jobs are refused, results wait", "error", err)
			for _, j := range m.jobs {
				j.touch()
			}
		}
		m.full = err
	}
	return err
}

// apply tells the scheduler of events, and does what it says. Events that come up
// meanwhile follow.
func (m *Master) apply(events ...schedule.Event) {
	m.events = append(m.events, events...)
	if m.applying {
		return
	}
	m.applying = true
	defer func() { m.applying = false }()
	for len(m.events) > 0 {
		events := m.events
		m.events = nil
		for _, a := range m.state.Apply(m.clock.now(), events...) {
			m.act(a)
		}
	}
}

// act does what the scheduler says.
func (m *Master) act(a schedule.Action) {
	switch a := a.(type) {
	case schedule.Launch:
		m.launch(a)
	case schedule.Adopted:
		if j := m.job(a.Attempt.Job); j != nil {
			j.begin(a.Attempt, a.Worker, false, m.clock.now()).unsure = true
		}
	case schedule.Stop:
		if j := m.job(a.Attempt.Job); j != nil {
			j.end(a.Attempt, "stopped", a.Reason, m)
		}
		if s := m.sessionOf(a.Worker); s != nil {
			s.stop(toAPI(a.Attempt), a.Reason)
		}
	case schedule.Relocate:
		m.relocate(a)
	case schedule.Reset:
		if j := m.jobs[a.Job]; j != nil {
			j.reset(a.Task)
		}
	case schedule.Forget:
		if s := m.sessionOf(a.Worker); s != nil {
			s.forgetJob(a.Job)
		}
	case schedule.Left:
		if w := m.workers[a.Worker]; w != nil {
			w.left = true
			if w.session != nil {
				w.session.order(func() { w.session.drain = true })
			}
		}
	case schedule.JobStage:
		if j := m.jobs[a.Job]; j != nil {
			m.stage(j, a.Stage)
		}
	case schedule.JobEnded:
		if j := m.jobs[a.Job]; j != nil {
			m.ended(j, a)
		}
	case schedule.JobCleared:
		m.cleared(a.Job)
	case schedule.GangForm:
		m.formGang(a)
	case schedule.GangBreak:
		m.breakGang(a)
	case schedule.Note:
		if j := m.jobs[a.Job]; j != nil {
			j.note(a.Text)
		} else if m.left[a.Job] != nil {
			m.log.Warn("a note on a job that has ended", "job", a.Job, "note", a.Text)
		}
	case schedule.SetAside:
		if w := m.workers[a.Worker]; w != nil {
			w.aside, w.asideWhy = a.Until, a.Why
		}
		m.log.Warn("a worker is set aside for a while", "worker", a.Worker, "why", a.Why)
	}
}

func (m *Master) sessionOf(id string) *session {
	if w := m.workers[id]; w != nil {
		return w.session
	}
	return nil
}

// suspicion passes on a hint of the gossip.
func (m *Master) suspicion(s Suspicion) {
	for id, w := range m.workers {
		if id == s.Worker || w.hello.Name == s.Worker {
			w.suspected, w.suspectedAt = s.Suspect, m.clock.now()
			m.tellSuspect(w)
		}
	}
	m.apply()
}

// tellSuspect tells the scheduler whether a worker is to be given anything: not if
// the gossip doubts that it is there, and not if it has no stream to be told by.
func (m *Master) tellSuspect(w *worker) {
	if suspect := w.suspected || w.session == nil; suspect != w.told && w.up {
		w.told = suspect
		m.apply(schedule.WorkerSuspect{ID: w.id, Suspect: suspect})
	}
}
