// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

const (
	// localShared is from how many values on, of all members together, they share the work. Below it the last
	// one to come does all of it, which saves the others a second wake-up.
	localShared = 1 << 13
	// localStep is how many values are reduced over all members before the next ones are: they stay in the cache.
	localStep = 1 << 11
	// localAlign keeps the shares of members off each other's cache lines.
	localAlign = 16
)

// Local returns the ends of a group of n members in this process, none for n below 1. Each is for one goroutine at a time, which
// may be another one for every call. Vectors of one call must not overlap.
func Local(n int) []Group {
	if n < 1 {
		return nil
	}
	l := &local{members: make([]localMember, n)}
	ends := make([]Group, n)
	for i := range ends {
		l.members[i] = localMember{group: l, rank: i, wake: make(chan localNews, 1)}
		ends[i] = &l.members[i]
	}
	return ends
}

type localState uint8

const (
	localGathers localState = iota // not all have come: the group may break
	localReduces                   // all have: nobody leaves before all values are there
)

type local struct {
	members []localMember

	mu     sync.Mutex
	state  localState
	first  int // who came first, whose vector is what those of others are held against
	come   int // members that have come
	done   int // members that have done their share
	broken *localBreak
}

// localBreak is why a group broke: one member's doing.
type localBreak struct {
	rank int
	err  error // as that member is told
	why  error // as the others are
}

type localMember struct {
	group *local
	rank  int
	wake  chan localNews // one for each wait, sent under mu

	// Guarded by group.mu; v is read by all while they reduce.
	v      Vector
	calls  uint64 // that were begun
	inside bool   // a call is under way
	waits  bool   // for news
}

// localNews is what a member that waits is told.
type localNews uint8

const (
	localShare  localNews = iota // all have come: do your share
	localReady                   // all values are there
	localBroken                  // the group broke, and nothing was reduced
)

func (m *localMember) Rank() int { return m.rank }

func (m *localMember) Size() int { return len(m.group.members) }

func (m *localMember) Close() error {
	l := m.group
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.breaks(m.rank, errClosedHere, errLeft)
	return nil
}

var (
	errClosedHere = errors.New("it was closed here")
	errLeft       = errors.New("has left the group")
	errTwice      = errors.New("called while another call is under way")
)

func (m *localMember) Reduce(ctx context.Context, v Vector) error {
	news, err := m.come(ctx, v)
	if news != localShare || err != nil {
		return err
	}
	l := m.group
	l.reduce(m.share())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	if l.done == len(l.members) {
		l.end()
	} else {
		m.waits = true
		l.mu.Unlock()
		// The others are at work, and nothing keeps them from it: this is no time to give up, since they write to v.
		<-m.wake
		l.mu.Lock()
	}
	m.inside = false
	return nil
}

// come brings a vector, and waits for those of the others.
func (m *localMember) come(ctx context.Context, v Vector) (localNews, error) {
	l := m.group
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.inside {
		return localBroken, l.breaks(m.rank, errTwice, errTwice)
	}
	if l.broken != nil {
		return localBroken, l.told(m.rank)
	}
	if ctx.Err() != nil {
		return localBroken, l.gaveUp(ctx, m.rank)
	}
	if err := v.check(); err != nil {
		return localBroken, l.breaks(m.rank, err, err)
	}
	m.calls++ // empty ones too, which nobody waits in
	if v.Len() == 0 || len(l.members) == 1 {
		return localReady, nil
	}
	if l.come == 0 {
		l.first = m.rank
	} else if f := &l.members[l.first]; f.calls != m.calls {
		return localBroken, l.breaks(m.rank, fmt.Errorf("call %d here, and call %d of member %d", m.calls, f.calls, l.first),
			fmt.Errorf("is in its call %d, member %d in call %d", m.calls, l.first, f.calls))
	} else if !v.like(f.v) {
		return localBroken, l.breaks(m.rank, fmt.Errorf("called here with %s, by member %d with %s", v, l.first, f.v),
			fmt.Errorf("called with %s, member %d with %s", v, l.first, f.v))
	}
	m.v, m.inside = v, true
	l.come++
	if l.come < len(l.members) {
		return m.wait(ctx)
	}
	l.state = localReduces
	if v.Len()*len(l.members) < localShared {
		l.reduce(0, v.Len())
		l.end()
		m.inside = false
		return localReady, nil
	}
	l.tell(localShare)
	return localShare, nil
}

// wait waits for the last one to come. mu is held, but not meanwhile.
func (m *localMember) wait(ctx context.Context) (localNews, error) {
	l := m.group
	var news localNews
	m.waits = true
	l.mu.Unlock()
	select {
	case news = <-m.wake:
		l.mu.Lock()
	case <-ctx.Done():
		l.mu.Lock()
		if m.waits {
			m.waits, m.inside, m.v = false, false, Vector{}
			return localBroken, l.gaveUp(ctx, m.rank)
		}
		news = <-m.wake // it came meanwhile
	}
	switch news {
	case localReady:
		m.inside = false
	case localBroken:
		m.inside, m.v = false, Vector{}
		return news, l.told(m.rank)
	}
	return news, nil
}

// end ends a call that was reduced. mu is held.
func (l *local) end() {
	for i := range l.members {
		l.members[i].v = Vector{}
	}
	l.state, l.come, l.done = localGathers, 0, 0
	l.tell(localReady)
}

// tell wakes all that wait. mu is held.
func (l *local) tell(news localNews) {
	for i := range l.members {
		if m := &l.members[i]; m.waits {
			m.waits = false
			m.wake <- news
		}
	}
}

// breaks breaks the group by one member's doing, and returns what that one is told. Those that reduce
// still get their values: the next call fails. mu is held.
func (l *local) breaks(rank int, err, why error) error {
	if l.broken == nil {
		l.broken = &localBreak{rank, err, why}
		if l.state == localGathers {
			l.tell(localBroken)
		}
	}
	return l.told(rank)
}

func (l *local) gaveUp(ctx context.Context, rank int) error {
	cause := ended(ctx)
	// What it says must not pass for the end of the others' own contexts: they are told its text alone.
	return l.breaks(rank, cause, fmt.Errorf("gave up: %v", cause))
}

// told returns what a member is told of why it is broken.
func (l *local) told(rank int) error {
	if rank == l.broken.rank {
		return fmt.Errorf("all-reduce: %w: %w", ErrBroken, l.broken.err)
	}
	return fmt.Errorf("all-reduce: %w", &MemberError{Rank: l.broken.rank, Name: "of this process", Err: l.broken.why})
}

// share is which values a member reduces.
func (m *localMember) share() (from, to int) {
	n, members := m.v.Len(), len(m.group.members)
	each := (n + members - 1) / members
	each = (each + localAlign - 1) / localAlign * localAlign
	return min(n, m.rank*each), min(n, (m.rank+1)*each)
}

// reduce reduces some values over all members, for all of them. Nobody else touches these.
func (l *local) reduce(from, to int) {
	for ; from < to; from += localStep {
		end := min(to, from+localStep)
		into := &l.members[0].v
		for i := 1; i < len(l.members); i++ {
			v := &l.members[i].v
			if len(v.Int32) != 0 {
				combine(into.Op, into.Int32[from:end], v.Int32[from:end])
			} else {
				combine(into.Op, into.Int64[from:end], v.Int64[from:end])
			}
		}
		for i := 1; i < len(l.members); i++ {
			v := &l.members[i].v
			if len(v.Int32) != 0 {
				copy(v.Int32[from:end], into.Int32[from:end])
			} else {
				copy(v.Int64[from:end], into.Int64[from:end])
			}
		}
	}
}
