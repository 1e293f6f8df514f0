// SPDX-License-Identifier: Apache-2.0

package master

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/schedule"
)

const (
	// messageSize is about how large a message to a worker gets before another one is begun.
	messageSize = 1 << 20
	// maxWaiting is how many orders may wait for a worker that does not read them.
	maxWaiting = 100_000
)

// session is one stream of a worker. Orders wait in it until they can be sent;
// those that replace each other are one.
type session struct {
	worker string
	ended  chan struct{} // closed when the stream is to end

	mu        sync.Mutex
	wake      chan struct{} // has room for one
	welcome   *api.Welcome
	spreads   []*api.Spread
	overs     []*api.SpreadOver
	launches  []*api.Launch
	stops     []*api.Stop
	relocates map[relocated]*api.Relocate
	forget    map[string]bool
	forms     []*api.GangForm
	groups    []*api.GangGroup
	breaks    []*api.GangBreak
	ends      []*api.GangOver
	drain     bool
	reason    error // why it ended
}

type relocated struct {
	reader schedule.Attempt
	task   uint32
}

func newSession(worker string) *session {
	return &session{worker: worker, ended: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// end has the stream end.
func (s *session) end(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == nil {
		s.reason = reason
		close(s.ended)
	}
}

// order adds orders by f, and wakes whoever sends them.
func (s *session) order(f func()) {
	s.mu.Lock()
	f()
	over := len(s.spreads)+len(s.overs)+len(s.launches)+len(s.stops)+len(s.relocates)+len(s.forget)+
		len(s.forms)+len(s.groups)+len(s.breaks)+len(s.ends) > maxWaiting
	s.mu.Unlock()
	if over {
		s.end(errSlow)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) spread(o *api.Spread) { s.order(func() { s.spreads = append(s.spreads, o) }) }

// spreadOver says that nothing more comes of what another worker was ordered to spread.
func (s *session) spreadOver(o *api.Spread) {
	s.order(func() { s.overs = append(s.overs, &api.SpreadOver{Job: o.Job, Blob: o.Blob}) })
}

func (s *session) launch(l *api.Launch) { s.order(func() { s.launches = append(s.launches, l) }) }

func (s *session) stop(a *api.Attempt, reason string) {
	s.order(func() { s.stops = append(s.stops, &api.Stop{Attempt: a, Reason: reason}) })
}

func (s *session) relocate(reader schedule.Attempt, o *api.MapOutput) {
	s.order(func() {
		if s.relocates == nil {
			s.relocates = map[relocated]*api.Relocate{}
		}
		s.relocates[relocated{reader, o.Task}] = &api.Relocate{Reader: toAPI(reader), Output: o}
	})
}

func (s *session) forgetJob(job string) {
	s.order(func() {
		if s.forget == nil {
			s.forget = map[string]bool{}
		}
		s.forget[job] = true
		s.spreads = slices.DeleteFunc(s.spreads, func(o *api.Spread) bool { return o.Job == job })
		s.overs = slices.DeleteFunc(s.overs, func(o *api.SpreadOver) bool { return o.Job == job })
	})
}

func (s *session) formGang(o *api.GangForm)   { s.order(func() { s.forms = append(s.forms, o) }) }
func (s *session) gangGroup(o *api.GangGroup) { s.order(func() { s.groups = append(s.groups, o) }) }
func (s *session) breakGang(o *api.GangBreak) { s.order(func() { s.breaks = append(s.breaks, o) }) }
func (s *session) gangOver(o *api.GangOver)   { s.order(func() { s.ends = append(s.ends, o) }) }

// take returns the next message to be sent, nil if there is nothing to say.
func (s *session) take() *api.MasterMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &api.MasterMessage{}
	if s.welcome != nil {
		m.Welcome, s.welcome = s.welcome, nil
		return m
	}
	size, said := 0, false
	for len(s.spreads) > 0 && size < messageSize {
		size += proto.Size(s.spreads[0])
		m.Spread = append(m.Spread, s.spreads[0])
		s.spreads = s.spreads[1:]
		said = true
	}
	for len(s.overs) > 0 && size < messageSize {
		size += proto.Size(s.overs[0])
		m.SpreadOver = append(m.SpreadOver, s.overs[0])
		s.overs = s.overs[1:]
		said = true
	}
	for len(s.launches) > 0 && size < messageSize {
		size += proto.Size(s.launches[0])
		m.Launch = append(m.Launch, s.launches[0])
		s.launches[0] = nil
		s.launches = s.launches[1:]
		said = true
	}
	if len(s.spreads)+len(s.overs)+len(s.launches) > 0 {
		return m // stops may be of launches that were not sent yet
	}
	if len(s.stops) > 0 {
		m.Stop, s.stops, said = s.stops, nil, true
	}
	for _, r := range s.relocates {
		m.Relocate, said = append(m.Relocate, r), true
	}
	for job := range s.forget {
		m.Forget, said = append(m.Forget, job), true
	}
	s.relocates, s.forget = nil, nil
	if len(s.forms)+len(s.groups)+len(s.breaks)+len(s.ends) > 0 {
		m.GangForm, m.GangGroup, m.GangBreak, m.GangOver, said = s.forms, s.groups, s.breaks, s.ends, true
		s.forms, s.groups, s.breaks, s.ends = nil, nil, nil, nil
	}
	if s.drain {
		m.Drain, s.drain, said = true, false, true
	}
	if !said {
		return nil
	}
	return m
}
