// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	// mostParts is how many parts there is room for at a reducer, of all members, and mostWindow how many of each: fewer mean
	// more waiting for each other, more mean more memory, an element per block and processor. Calls use as much of it as gets through.
	mostParts  = 500
	mostWindow = 256
	// askEvery is how often members are asked how they stand, at most.
	askEvery = 500 * time.Millisecond
	// All wait in one call, and no result has come anywhere, for that many times the patience, that long at least and as often
	// as that asked: frames do not get through, and never will.
	stuckPatience = 6
	stuckLeast    = 10 * time.Second
	stuckAsked    = 20
)

// Member is a member as who forms a group knows it.
type Member struct {
	Name    string         // for errors
	Address netip.AddrPort // where its frames go: host and ReduceEndpoint's port; port 0: it is asked
	Control shuffle.ReduceControl
}

// FormSpec forms a group.
type FormSpec struct {
	Job    shuffle.JobID
	Secret [16]byte // for wire.NewTags
	Mode   shuffle.Mode
	Name   string // for people
	// Members by rank, at most wire.MaxMembers.
	Members []Member
	// Bits is log2 of the blocks of a reducer that there is room for, twice the window: 2 to 12. 0: chosen by
	// the number of members.
	Bits int
	// Streams says which calls go over streams, TCP, instead of frames: by default those of large vectors, if all members take
	// streams. StreamsAlways is an error if one does not.
	Streams shuffle.StreamUse
	// Patience is how long a member need not answer while others wait in a call, until the group is broken. 0: 10 s.
	Patience time.Duration
	Log      *slog.Logger // nil: nothing is logged
}

// bitsFor chooses bits so that the parts of all members under way to one reducer are not too many.
func bitsFor(members int) int {
	bits := minBits
	for w := 2 << bits / 2; w <= mostWindow && w*(members-1) <= mostParts; w *= 2 {
		bits++
	}
	return bits
}

// Formed is a group as who formed it sees it. It asks members how they stand, and breaks the group
// at all of them if one is gone or broken. A member that computes for long is waited for.
type Formed struct {
	Token  uint64 // Node.Group at the members has their ends by it
	Kernel []bool // by rank: programs serve the member

	spec   FormSpec
	stop   context.CancelFunc
	ended  chan struct{}
	broken chan struct{}

	mu     sync.Mutex
	why    error
	reason string // as members are told it; "": it is not broken
	told   []bool // by rank
}

// Form opens a group at all members, or at none. Errors of members wrap theirs.
func Form(ctx context.Context, spec FormSpec) (*Formed, error) {
	n := len(spec.Members)
	if n < 1 || n > wire.MaxMembers {
		return nil, fmt.Errorf("all-reduce %q: %d members, where a group has 1 to %d", spec.Name, n, wire.MaxMembers)
	}
	if spec.Bits == 0 {
		spec.Bits = bitsFor(n)
	}
	if spec.Patience <= 0 {
		spec.Patience = defaultPatience
	}
	if spec.Log == nil {
		spec.Log = slog.New(slog.DiscardHandler)
	}
	spec.Members = slices.Clone(spec.Members)
	f := &Formed{spec: spec, Kernel: make([]bool, n), told: make([]bool, n), ended: make(chan struct{}), broken: make(chan struct{})}
	for f.Token == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, fmt.Errorf("all-reduce %q: draw a token: %w", spec.Name, err)
		}
		f.Token = binary.LittleEndian.Uint64(b[:])
	}
	members := make([]shuffle.GroupMember, n)
	err := f.each(func(i int, m *Member) error {
		if m.Control == nil {
			return errors.New("nobody to ask; set Member.Control")
		}
		end, err := m.Control.ReduceEndpoint(ctx)
		if err != nil {
			return fmt.Errorf("where its frames go: %w", err)
		}
		if end.Frame < wire.FrameSize {
			return fmt.Errorf("frames of %d bytes get through to it, where a block takes %d: %w; a network with a larger MTU is needed", end.Frame, wire.FrameSize, shuffle.ErrRefused)
		}
		if m.Address.Port() == 0 {
			m.Address = netip.AddrPortFrom(m.Address.Addr(), uint16(end.Port))
		}
		members[i] = shuffle.GroupMember{Name: m.Name, Address: m.Address, Stream: end.Stream}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(members, func(m shuffle.GroupMember) bool { return m.Stream == 0 }); i >= 0 && n > 1 {
		if spec.Streams == shuffle.StreamsAlways {
			return nil, fmt.Errorf("all-reduce %q: streams are to be used always, and member %d (%s) takes none", spec.Name, i, members[i].Name)
		}
		spec.Streams = shuffle.StreamsNever
	} else if n == 1 {
		spec.Streams = shuffle.StreamsNever
	}
	opened := make([]bool, n)
	err = f.each(func(i int, m *Member) error {
		grant, err := m.Control.OpenGroup(ctx, shuffle.GroupSpec{
			Job: spec.Job, Secret: spec.Secret, Mode: spec.Mode, Token: f.Token, Name: spec.Name, Rank: i, Members: members, Bits: spec.Bits, Streams: spec.Streams,
		})
		if err != nil {
			return err
		}
		opened[i], f.Kernel[i] = true, grant.Kernel
		return nil
	})
	if err != nil {
		// A call that failed may have opened it all the same.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), spec.Patience)
		defer cancel()
		for i, e := range f.closeAll(undo) {
			if e != nil && opened[i] {
				spec.Log.Warn("all-reduce: a group that was not formed stays open at a member until its job is dropped", "name", spec.Name, "member", spec.Members[i].Name, "reason", e)
			}
		}
		return nil, err
	}
	// It lives until Close, not as long as the call that formed it.
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	go f.watch(watch)
	return f, nil
}

// each does something for all members at once, and returns the error of the first in rank.
func (f *Formed) each(do func(i int, m *Member) error) error {
	for i, err := range f.all(do) {
		if err != nil {
			return fmt.Errorf("all-reduce %q: member %d (%s): %w", f.spec.Name, i, f.spec.Members[i].Name, err)
		}
	}
	return nil
}

func (f *Formed) all(do func(i int, m *Member) error) []error {
	errs := make([]error, len(f.spec.Members))
	var wg sync.WaitGroup
	for i := range f.spec.Members {
		wg.Go(func() { errs[i] = do(i, &f.spec.Members[i]) })
	}
	wg.Wait()
	return errs
}

// Broken is closed once the group is known to be broken; Err says why.
func (f *Formed) Broken() <-chan struct{} { return f.broken }

// Err says why the group is broken, nil if it is not known to be. A member that is the reason stands in a MemberError.
func (f *Formed) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// Break has all calls at all members fail, now and later, for that reason; if it is broken already that one stands. Members that
// can't be told now are named in the error, and told until Close.
func (f *Formed) Break(ctx context.Context, reason string) error {
	return f.fail(ctx, fmt.Errorf("%w: %s", ErrBroken, reason), reason, -1)
}

// BreakMember is Break for a member that is lost: the others' errors have it as a MemberError.
func (f *Formed) BreakMember(ctx context.Context, rank int, why error) error {
	if rank < 0 || rank >= len(f.spec.Members) {
		return fmt.Errorf("all-reduce %q: there is no member %d", f.spec.Name, rank)
	}
	err := &MemberError{Rank: rank, Name: f.spec.Members[rank].Name, Err: why}
	return f.fail(ctx, err, err.Error(), rank)
}

// fail tells all members that the group is broken. What one of them says to that does not count.
func (f *Formed) fail(ctx context.Context, err error, reason string, but int) error {
	f.mu.Lock()
	if f.why == nil {
		f.why, f.reason = err, reason
		close(f.broken)
	}
	f.mu.Unlock()
	var errs []error
	for i, err := range f.tell(ctx) {
		if err != nil && i != but {
			errs = append(errs, fmt.Errorf("all-reduce %q: break it at member %d (%s): %w", f.spec.Name, i, f.spec.Members[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// tell tells members that the group is broken that do not know yet.
func (f *Formed) tell(ctx context.Context) []error {
	return f.all(func(i int, m *Member) error {
		f.mu.Lock()
		told, reason := f.told[i], f.reason
		f.mu.Unlock()
		if told {
			return nil
		}
		err := m.Control.BreakGroup(ctx, f.Token, reason)
		if err != nil && !errors.Is(err, shuffle.ErrUnknown) { // else it is no member any more
			return err
		}
		f.mu.Lock()
		f.told[i] = true
		f.mu.Unlock()
		return nil
	})
}

// Close closes the group at all members: calls that are under way fail. It may be called more than once.
func (f *Formed) Close(ctx context.Context) error {
	f.stop()
	<-f.ended
	return errors.Join(f.closeAll(ctx)...)
}

func (f *Formed) closeAll(ctx context.Context) []error {
	return f.all(func(i int, m *Member) error {
		err := m.Control.CloseGroup(ctx, f.Token)
		if err == nil || errors.Is(err, shuffle.ErrUnknown) {
			return nil
		}
		return fmt.Errorf("all-reduce %q: close it at member %d (%s): %w", f.spec.Name, i, f.spec.Members[i].Name, err)
	})
}

// heard is what is known of a member.
type heard struct {
	status shuffle.GroupStatus
	err    error     // of the last time it was asked
	at     time.Time // when it last answered
	since  time.Time // it stands as it does now, and waits
	asked  int       // times that it has said so
}

// watch asks members how they stand until the group is broken, and then tells those that do not know, until it is closed.
func (f *Formed) watch(ctx context.Context) {
	defer close(f.ended)
	every := max(min(askEvery, f.spec.Patience/4), time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	known := make([]heard, len(f.spec.Members))
	for i := range known {
		known[i].at = time.Now()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f.Err() == nil {
			f.ask(ctx, known)
			if ctx.Err() != nil {
				return
			}
			rank, why := f.judge(known, time.Now())
			if why == nil {
				continue
			}
			var m *MemberError
			if rank < 0 {
				f.spec.Log.Warn("all-reduce: a group breaks", "name", f.spec.Name, "reason", why)
				f.within(ctx, func(ctx context.Context) {
					_ = f.fail(ctx, fmt.Errorf("%w: %w", ErrBroken, why), why.Error(), -1)
				})
				continue
			}
			if !errors.As(why, &m) {
				m = &MemberError{Rank: rank, Name: f.spec.Members[rank].Name, Err: why}
			}
			f.spec.Log.Warn("all-reduce: a group breaks", "name", f.spec.Name, "reason", m)
			f.within(ctx, func(ctx context.Context) { _ = f.fail(ctx, m, m.Error(), m.Rank) })
			continue
		}
		// Somebody may have been out of reach when it broke, and may wait.
		f.within(ctx, func(ctx context.Context) { f.tell(ctx) })
	}
}

// within does something for a part of the patience.
func (f *Formed) within(ctx context.Context, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, max(f.spec.Patience/2, time.Millisecond))
	defer cancel()
	do(ctx)
}

// ask asks all members at once. Who does not answer in a part of the patience is asked again the next time.
func (f *Formed) ask(ctx context.Context, known []heard) {
	f.within(ctx, func(ctx context.Context) {
		f.all(func(i int, m *Member) error {
			k := &known[i]
			status, err := m.Control.GroupStatus(ctx, f.Token)
			k.hear(status, err, time.Now())
			return nil
		})
	})
}

// hear takes in what a member says.
func (k *heard) hear(status shuffle.GroupStatus, err error, now time.Time) {
	same := err == nil && status.Waiting && status == k.status
	if k.err = err; err == nil {
		k.status, k.at = status, now
	}
	if k.asked++; !same {
		k.since, k.asked = now, 0
	}
}

// stuck says since when all wait in one call and nothing comes, if that is long ago.
func (f *Formed) stuck(known []heard, now time.Time) (since time.Time, is bool) {
	for i := range known {
		k := &known[i]
		if k.err != nil || k.asked < stuckAsked || k.status.Calls != known[0].status.Calls {
			return since, false
		}
		if k.since.After(since) {
			since = k.since
		}
	}
	return since, now.Sub(since) >= max(stuckLeast, stuckPatience*f.spec.Patience)
}

// judge says which member is the reason that the group can't go on, and why; nil if it can. Rank -1: none is.
func (f *Formed) judge(known []heard, now time.Time) (rank int, why error) {
	waits, call := false, uint64(0) // the last call that somebody waits in
	for i := range known {
		if s := &known[i].status; known[i].err == nil && s.Waiting {
			waits, call = true, max(call, s.Calls)
		}
	}
	for i := range known {
		k := &known[i]
		switch {
		case k.err == nil && k.status.Broken == left:
			// It has done its share of the calls that it began.
			if waits && call > k.status.Calls {
				return i, errors.New(left)
			}
		case k.err == nil && k.status.Broken != "":
			return i, f.named(k.status.Broken)
		case errors.Is(k.err, shuffle.ErrUnknown):
			return i, fmt.Errorf("it has lost the group: %w", k.err)
		case k.err != nil && waits && now.Sub(k.at) >= f.spec.Patience:
			return i, fmt.Errorf("it has not answered for %v: %w", now.Sub(k.at).Round(time.Millisecond), k.err)
		}
	}
	if since, is := f.stuck(known, now); is {
		return -1, fmt.Errorf("all members wait in call %d, and nothing has come for %v: frames do not get through; look for what stops UDP, or TCP to the ports for streams, between the hosts, or is too small for frames",
			call, now.Sub(since).Round(time.Second))
	}
	return 0, nil
}

// named makes an error of the reason that a member gives, which may be that another member is the reason.
func (f *Formed) named(text string) error {
	members := make([]shuffle.GroupMember, len(f.spec.Members))
	for i, m := range f.spec.Members {
		members[i].Name = m.Name
	}
	return reasonOf(members, text)
}
