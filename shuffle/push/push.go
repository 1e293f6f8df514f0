// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/wire"
)

// ErrStalled is returned if nothing arrived any more, by packets or over the
// control connection.
var ErrStalled = errors.New("no progress")

// push is one round of sending an output: all of it, until the receiver wants
// everything opened again.
type push struct {
	sender  *Sender
	path    *path
	req     *Request
	out     *commit.Output
	tags    *wire.Tags
	jobSlot int
	frame   int // bytes of the largest frame the endpoint takes as a packet
	window  int
	generic bool
	kernel  bool // programs fold there
	began   int64

	dropped chan struct{} // closed by the loop
	// These belong to the loop.
	streams  []*stream
	diverted bool // packets do not get through: all goes over the control connection
	stats    stats

	distrust bool // set before the loop is told to divert: it is answers that are wrong, not packets

	mu      sync.Mutex
	events  []event
	parcels map[*stream][]int // frames left to the control connection
	sendErr error
	notify  chan struct{} // capacity 1

	// What follows belongs to the goroutine of Push.
	report   *Report
	opened   int // segments
	closed   int
	live     map[*stream]bool
	checks   []*stream
	again    []*stream
	waiting  int // operations under way
	opening  bool
	checking bool
	sending  bool
	moved    bool // a stream was closed that was not before this round
	results  chan func() error
}

// stats are counts of the loop.
type stats struct {
	sent, again, spurious, acks, wakeups, probes, bursts, past uint64
	kernel, user                                               histogram
}

type event struct {
	s     *stream
	what  int
	times int // that it was stuck
}

// What the loop tells a push.
const (
	finished = iota // all frames of a stream seem to have arrived; the loop has let go of it
	stuck           // no progress for a part of the time allowed
	dead            // none for all of it
)

func (u *push) ring() {
	select {
	case u.notify <- struct{}{}:
	default:
	}
}

// tell is called by the loop.
func (u *push) tell(s *stream, what int) {
	u.mu.Lock()
	u.events = append(u.events, event{s, what, s.warned})
	u.mu.Unlock()
	u.ring()
}

// large is called by the loop for a frame that goes over the control connection.
func (u *push) large(s *stream, f int) {
	u.mu.Lock()
	u.parcels[s] = append(u.parcels[s], f)
	u.mu.Unlock()
	u.ring()
}

// sendFailed is called by the loop.
func (u *push) sendFailed(err error) {
	u.mu.Lock()
	u.sendErr = err
	u.mu.Unlock()
}

// Push sends an output and returns when all of it is folded at the receiver and
// confirmed. The report says what was done, with an error too.
func (s *Sender) Push(ctx context.Context, req Request) (report Report, err error) {
	m := req.Output.Manifest()
	report = Report{Pairs: m.Pairs, Frames: m.Frames, Segments: len(m.Segments)}
	if err := s.begin(); err != nil {
		return report, err
	}
	defer s.end()
	begin := time.Now()
	defer func() { report.Time = time.Since(begin) }()
	tags := wire.NewTags(req.Job.Secret)
	jobSlot := 0
	if s.kernel != nil {
		if jobSlot, err = s.opts.Jobs.Acquire(req.Job.ID, tags.Job()); err != nil {
			return report, fmt.Errorf("push: a slot for the keys of job %s: %w", req.Job.ID, err)
		}
		defer s.opts.Jobs.Release(req.Job.ID)
	}
	var user, kernel histogram
	defer func() { report.UserRTT, report.KernelRTT = user.report(), kernel.report() }()
	for resets := 0; ; resets++ {
		u := &push{
			sender: s, req: &req, out: req.Output, tags: tags, jobSlot: jobSlot, began: now(),
			dropped: make(chan struct{}), notify: make(chan struct{}, 1), parcels: map[*stream][]int{},
			live: map[*stream]bool{}, results: make(chan func() error), report: &report,
		}
		err = u.run(ctx)
		u.stats.addTo(&report, &user, &kernel)
		if u.moved {
			resets = 0
		}
		again := errors.Is(err, shuffle.ErrReset) || errors.Is(err, shuffle.ErrUnknown)
		if !again || resets >= s.opts.Resets || ctx.Err() != nil {
			break
		}
		report.Resets++
		s.opts.Log.Info("the receiver has begun anew; all streams are opened again", "target", req.Target.ID.String(), "map", req.Map, "dest", req.Dest, "error", err)
		if !pause(ctx, min(10*time.Millisecond<<min(resets, 7), time.Second)) {
			break
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("push %s, map task %d to %s: %w", req.Target.ID, req.Map, req.Dest, err)
	}
	return report, err
}

func (t *stats) addTo(r *Report, user, kernel *histogram) {
	r.Sent += t.sent
	r.Retransmitted += t.again
	r.Spurious += t.spurious
	r.Acks += t.acks
	r.Wakeups += t.wakeups
	r.Probes += t.probes
	r.Bursts += t.bursts
	r.Past += t.past
	user.merge(&t.user)
	kernel.merge(&t.kernel)
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

// call repeats a call of the control plane until it works, the receiver wants to begin
// anew or refuses for good, or it has failed for too long.
func (u *push) call(ctx context.Context, what string, f func(context.Context) error) error {
	o := &u.sender.opts
	for begin, wait := time.Now(), 10*time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := f(ctx)
		if err == nil || errors.Is(err, shuffle.ErrReset) || errors.Is(err, shuffle.ErrUnknown) || errors.Is(err, shuffle.ErrRefused) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(begin)+wait > o.Retry {
			return fmt.Errorf("%s: %w", what, err)
		}
		o.Log.Warn("a call to a receiver failed; trying again", "dest", u.req.Dest, "call", what, "error", err)
		if !pause(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// run sends everything once.
func (u *push) run(parent context.Context) (err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	c := u.req.Control
	var end shuffle.Endpoint
	for _, step := range []struct {
		what string
		f    func(context.Context) error
	}{
		{"ask where frames go", func(ctx context.Context) (err error) { end, err = c.Endpoint(ctx); return err }},
		{"open the job", func(ctx context.Context) error { return c.OpenJob(ctx, u.req.Job) }},
		{"open the target", func(ctx context.Context) error { return c.OpenTarget(ctx, u.req.Target) }},
	} {
		if err := u.call(ctx, step.what, step.f); err != nil {
			return err
		}
	}
	if u.out.Frames() == 0 {
		return nil
	}
	u.frame, u.window, u.generic, u.kernel = wire.FrameSize, u.sender.opts.Window, end.Generic, end.Kernel
	if end.Frame > 0 {
		u.frame = min(u.frame, end.Frame)
	}
	if end.Window > 0 {
		u.window = end.Window
	}
	if end.Port <= 0 || end.Port > 0xffff {
		return fmt.Errorf("the receiver takes frames at port %d, which is none", end.Port)
	}
	if u.path, err = u.sender.path(netip.AddrPortFrom(u.req.Dest.Unmap(), uint16(end.Port))); err != nil {
		return err
	}
	defer func() {
		cancel()
		for ; u.waiting > 0; u.waiting-- {
			<-u.results
		}
		u.path.drop(u)
		for s := range u.live {
			u.sender.release(s.slot)
		}
	}()
	for u.closed < u.report.Segments || u.waiting > 0 {
		if err := u.launch(ctx); err != nil {
			return err
		}
		if u.closed == u.report.Segments && u.waiting == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case f := <-u.results:
			u.waiting--
			if err := f(); err != nil {
				return err
			}
		case <-u.notify:
			if err := u.hear(); err != nil {
				return err
			}
		}
	}
	return nil
}
