// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/broadcast"
)

// Outcome is what a case came to.
type Outcome struct {
	Report  broadcast.Report // of all messages together
	Parts   int              // regions, or messages of a group
	Dead    int              // members that were reported to be out
	Stored  int              // members whose programs stored
	Late    int              // members that joined later
	Had     int              // members that had it
	Overrun uint64           // packets that the lab dropped since a queue was full
	Counted bool             // nothing was lost, and the source was woken once per part at most
	Took    time.Duration
}

// spread is what is to be known of a whole to send it.
type spread struct {
	Name    string
	Job     shuffle.JobID
	Content Content
	Mode    shuffle.Mode
	Window  int64
	Chains  int
}

func (s *spread) spec(members []broadcast.Member) broadcast.SpreadSpec {
	return broadcast.SpreadSpec{
		Job: s.Job, Secret: [16]byte(append(s.Job[:0:0], s.Job[:]...)), Mode: s.Mode, Name: s.Name, Kind: "lab", Members: members,
		Source: s.Content, Size: s.Content.Size, Window: s.Window, Chains: s.Chains,
	}
}

func (c *Case) job() (id shuffle.JobID) {
	binary.LittleEndian.PutUint64(id[:], c.Seed+1)
	return id
}

func (c *Case) mode() shuffle.Mode {
	if c.Flavour == NoHelp {
		return shuffle.UserOnly
	}
	return shuffle.Auto
}

func (c *Case) spread() *spread {
	return &spread{Name: c.name(), Job: c.job(), Content: c.content(0), Mode: c.mode(), Window: c.Window, Chains: c.Chains}
}

// run is a case under way.
type run struct {
	*Case
	rig     *Rig
	source  *node
	host    *netlab.Host
	out     Outcome
	members []broadcast.Member // in the order of Case.Members

	mu     sync.Mutex
	killed map[int]bool
}

// Run has a case happen on a rig. It returns an error unless every member that lives and was not
// left out for a reason has what was sent, and nothing is left open.
func Run(ctx context.Context, rig *Rig, c *Case) (out *Outcome, err error) {
	begin := time.Now()
	r := &run{Case: c, rig: rig, source: rig.nodes[c.Source-1], host: rig.Lab.Host(c.Source), killed: map[int]bool{}}
	defer func() { r.out.Took = time.Since(begin) }()
	if err := rig.Lab.SetFaults(netlab.Faults{}); err != nil {
		return &r.out, err
	}
	for _, h := range append([]int{c.Source}, c.Members...) {
		if err := rig.ready(h); err != nil {
			return &r.out, err
		}
	}
	for _, h := range c.Members {
		s := settings{Retain: c.Retain}
		if slices.Contains(c.Have, h) {
			s.Have = []string{c.name()}
		}
		if err := rig.set(h, s); err != nil {
			return &r.out, err
		}
		m, closeConn, err := memberAt(r.host.Do, rig.address(h, c.IPv6))
		if err != nil {
			return &r.out, err
		}
		defer closeConn()
		r.members = append(r.members, m)
	}
	if err := rig.Lab.SetFaults(c.Faults); err != nil {
		return &r.out, err
	}
	before, err := rig.Lab.Counters()
	if err != nil {
		return &r.out, err
	}
	happened := r.happen()
	var reports []broadcast.MemberReport
	failed := r.host.Do(func() (err error) {
		if c.group() {
			reports, err = r.sendMessages(ctx)
		} else {
			reports, err = r.sendWhole(ctx)
		}
		return err
	})
	err = happened()
	after, counted := rig.Lab.Counters()
	r.out.Overrun = after.Total().Overrun - before.Total().Overrun
	// What is looked at from here on is looked at over links that work.
	err = errors.Join(err, counted, rig.Lab.SetFaults(netlab.Faults{}))
	if failed != nil && !(errors.Is(failed, broadcast.ErrNobody) && r.allMayFail()) {
		err = errors.Join(err, failed)
	}
	return &r.out, errors.Join(err, r.check(reports), r.woken(), r.settle(ctx))
}

// woken holds the source to one wake-up per region or message, where programs count and send, and nothing
// was lost. It is none where all had answered before the source went to sleep.
func (r *run) woken() error {
	if !r.lossFree() || r.Flavour != Programs || r.Late > 0 || r.out.Overrun > 0 || r.out.Report.Again > 0 {
		return nil
	}
	if k := r.source.kernel; k == nil || !k.Pumps() || !k.Clones() {
		return nil
	}
	if r.Faults.Delay > 0 && r.out.Report.Chunks > 4 {
		// The lab sends an answer that it held in a buffer without room for a chunk, so that programs can't
		// send the next one in it, as they do with what comes from a network's card or another veth.
		return nil
	}
	r.out.Counted = true
	if r.out.Report.Woken > r.out.Parts {
		return fmt.Errorf("the source was woken %d times for %d parts, and nothing was lost", r.out.Report.Woken, r.out.Parts)
	}
	return nil
}

// happen has cuts and deaths happen. The function that it returns waits until all have.
func (r *run) happen() (wait func() error) {
	var wg sync.WaitGroup
	errs := make(chan error, 2*len(r.Cut))
	for _, e := range r.Killed {
		wg.Go(func() {
			time.Sleep(e.After)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.killed[e.Host] = true
			r.rig.kill(e.Host)
		})
	}
	for _, e := range r.Cut {
		wg.Go(func() {
			time.Sleep(e.After)
			errs <- r.rig.Lab.Cut(e.Host)
			time.Sleep(e.For)
			errs <- r.rig.Lab.Heal(e.Host)
		})
	}
	return func() error {
		wg.Wait()
		close(errs)
		var all []error
		for err := range errs {
			all = append(all, err)
		}
		return errors.Join(all...)
	}
}

// allMayFail says whether no member has to be left.
func (r *run) allMayFail() bool {
	return !slices.ContainsFunc(r.Members, func(h int) bool { return !r.mayFail(h) })
}

// mayFail says whether a member may be left out.
func (r *run) mayFail(h int) bool {
	return slices.Contains(r.Lost, h) || slices.ContainsFunc(r.Killed, func(e Event) bool { return e.Host == h })
}

func (r *run) sendWhole(ctx context.Context) ([]broadcast.MemberReport, error) {
	rep, err := r.source.node.Spread(ctx, r.spread().spec(r.members))
	if rep == nil {
		return nil, err
	}
	r.out.add(rep)
	return rep.Members, err
}

func (r *run) sendMessages(ctx context.Context) (reports []broadcast.MemberReport, err error) {
	chunks := 0
	for _, size := range r.Sizes {
		chunks += broadcast.ChunksOf(size)
	}
	first := len(r.members) - r.Late
	s := r.spread()
	spec := s.spec(nil)
	g, err := r.source.node.Open(ctx, broadcast.GroupSpec{
		Job: spec.Job, Secret: spec.Secret, Mode: spec.Mode, Name: spec.Name, Kind: spec.Kind,
		Members: r.members[:first], Chunks: chunks, Size: -1, Chains: r.Chains,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.closed(g.Close(ctx))) }()
	joined := make([]error, r.Late)
	for i := range r.Sizes {
		c := r.content(i)
		rep, err := g.Send(ctx, c.Size, func(b []byte) error {
			if len(b) == 0 {
				return nil
			}
			_, err := c.ReadAt(b, 0)
			return err
		})
		if rep != nil {
			r.out.add(rep)
		}
		if err == nil {
			err = g.Confirm(ctx, rep)
		}
		if rep != nil {
			reports = rep.Members
		}
		if err != nil {
			return reports, err
		}
		r.out.Parts++
		if i > 0 {
			continue
		}
		for k, m := range r.members[first:] {
			if joined[k] = g.Join(ctx, m); joined[k] == nil {
				r.out.Late++
			} else if !r.mayFail(r.Members[first+k]) {
				return reports, fmt.Errorf("host %d joins late: %w", r.Members[first+k], joined[k])
			}
		}
	}
	// Those that could not join are in no report.
	all := reports[:first:first]
	rest := reports[first:]
	for k, m := range r.members[first:] {
		if joined[k] != nil {
			all = append(all, broadcast.MemberReport{Name: m.Name, Err: joined[k]})
			continue
		}
		all, rest = append(all, rest[0]), rest[1:]
	}
	return all, nil
}

// closed is what of an error of closing a group counts: a member that is killed after its last confirmation can't be told that
// this was all.
func (r *run) closed(err error) error {
	if err == nil {
		return nil
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		var left []error
		for _, e := range list.Unwrap() {
			left = append(left, r.closed(e))
		}
		return errors.Join(left...)
	}
	for i, m := range r.members {
		if r.mayFail(r.Members[i]) && strings.Contains(err.Error(), "end it at "+m.Name+": ") {
			return nil
		}
	}
	return err
}

func (o *Outcome) add(rep *broadcast.Report) {
	t := &o.Report
	t.Chunks += rep.Chunks
	t.Chains = max(t.Chains, rep.Chains)
	t.Sent += rep.Sent
	t.Pumped += rep.Pumped
	t.Again += rep.Again
	t.Woken += rep.Woken
	t.Timers += rep.Timers
	t.Kernel = t.Kernel || rep.Kernel
	t.Elapsed += rep.Elapsed
}

// check holds what members have to what was sent.
func (r *run) check(reports []broadcast.MemberReport) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for i, h := range r.Members {
		if i >= len(reports) {
			break // it was said why
		}
		rep := reports[i]
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("host %d: %w", h, fmt.Errorf(format, args...)))
		}
		if rep.Err != nil {
			r.out.Dead++
			if !r.mayFail(h) {
				fail("it was left out: %w", rep.Err)
			}
		} else if slices.Contains(r.Lost, h) {
			fail("it was cut off, and it is not said that it was left out")
		}
		if rep.Kernel {
			r.out.Stored++
			if !r.rig.limits.hasKernel(h) || r.Flavour == NoHelp {
				fail("its programs stored it, it is said, and it has none")
			}
		}
		if r.killed[h] {
			continue // what it knew went with it
		}
		if rep.Have != slices.Contains(r.Have, h) {
			fail("it had it: %v", rep.Have)
		}
		parts, _, err := r.rig.report(h, r.name())
		switch {
		case err != nil:
			fail("%w", err)
		case rep.Have:
			r.out.Had++
			if len(parts) > 0 {
				fail("it had it, and was given %d parts", len(parts))
			}
		case rep.Err == nil:
			if err := r.same(parts, rep.Kernel); err != nil {
				fail("%w", err)
			}
		}
	}
	return errors.Join(errs...)
}

// same compares what a member was given with what was sent.
func (r *run) same(parts []Part, kernel bool) error {
	var next int64
	stored := false
	for _, p := range parts {
		stored = stored || p.Kernel
		switch {
		case !p.Ended:
			return fmt.Errorf("the part from byte %d on has not ended", p.Offset)
		case p.Err != "":
			if len(p.Messages) > 0 || !r.group() {
				// Such as the part that a smaller one stands for.
				continue
			}
			return fmt.Errorf("the part from byte %d on ended with: %s", p.Offset, p.Err)
		}
		if r.group() {
			if len(p.Messages) != len(r.Sizes) {
				return fmt.Errorf("%d messages, want %d", len(p.Messages), len(r.Sizes))
			}
			for i := range r.Sizes {
				if err := r.compare(r.content(i), 0, r.Sizes[i], p.Messages[i]); err != nil {
					return fmt.Errorf("message %d: %w", i, err)
				}
			}
			next = 1
			continue
		}
		if p.Size != r.Sizes[0] || len(p.Messages) != 1 || p.Offset != next {
			return fmt.Errorf("%d messages from byte %d on of %d; the next was to come from %d on, of %d", len(p.Messages), p.Offset, p.Size, next, r.Sizes[0])
		}
		if err := r.compare(r.content(0), p.Offset, p.Messages[0].Size, p.Messages[0]); err != nil {
			return fmt.Errorf("from byte %d on: %w", p.Offset, err)
		}
		next += p.Messages[0].Size
		if r.out.Parts < len(parts) {
			r.out.Parts = len(parts)
		}
	}
	want := r.Sizes[0]
	if r.group() {
		want = 1
	}
	switch {
	case len(parts) == 0:
		return errors.New("it was given nothing")
	case next != want:
		return fmt.Errorf("it has %d of %d bytes", next, want)
	case stored != kernel:
		return fmt.Errorf("programs store there: %v; it is reported that they did: %v", stored, kernel)
	}
	return nil
}

func (r *run) compare(c Content, off, size int64, got Digest) error {
	want, err := c.Sum(off, size)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%d bytes with digest %x, want %d with %x", got.Size, got.Sum, want.Size, want.Sum)
	}
	return nil
}

// patience is how long is waited for what has to happen at some time.
const patience = 30 * time.Second

// settle waits until nothing of the case is open any more.
func (r *run) settle(ctx context.Context) error {
	var errs []error
	for _, h := range append([]int{r.Source}, r.Members...) {
		if r.killed[h] {
			continue
		}
		errs = append(errs, r.rig.letGo(h))
		errs = append(errs, r.rig.quiet(ctx, h, r.name()))
	}
	return errors.Join(errs...)
}

// quiet waits until no region and no cast is open at a host.
func (r *Rig) quiet(ctx context.Context, h int, name string) error {
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		parts, open, err := r.report(h, name)
		if err != nil {
			return fmt.Errorf("host %d: %w", h, err)
		}
		ended := !slices.ContainsFunc(parts, func(p Part) bool { return !p.Ended })
		if ended && len(open) == 0 {
			return nil
		}
		if time.Now().After(until) || ctx.Err() != nil {
			return fmt.Errorf("host %d: open after the end: %q, parts %+v", h, open, parts)
		}
	}
}
