// SPDX-License-Identifier: Apache-2.0

package reducelab

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
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/wire"
)

// Outcome is what a case came to.
type Outcome struct {
	Results [][]Result // by group and rank
	Kernel  int        // members whose programs served
	Deeds   Deeds      // of all hosts that live
	Overrun uint64     // packets that the lab dropped since a queue was full
	Took    time.Duration
}

// run is a case under way.
type run struct {
	*Case
	rig    *Rig
	hosts  []int
	formed []*allreduce.Formed
	out    Outcome
}

// Run has a case happen on a rig. It returns an error unless every call at every member that lives brought what it was to bring,
// or failed for a reason that there was, and nothing is left open.
func Run(ctx context.Context, rig *Rig, c *Case) (out *Outcome, err error) {
	begin := time.Now()
	r := &run{Case: c, rig: rig, hosts: slices.Clone(c.Groups[0].Members)}
	defer func() { r.out.Took = time.Since(begin) }()
	if err := rig.Lab.SetFaults(netlab.Faults{}); err != nil {
		return &r.out, err
	}
	if err := r.prepare(ctx); err != nil {
		return &r.out, err
	}
	deeds, err := r.deeds(ctx)
	if err != nil {
		return &r.out, err
	}
	before, err := rig.Lab.Counters()
	if err == nil {
		err = rig.Lab.SetFaults(c.Faults)
	}
	if err != nil {
		return &r.out, err
	}
	err = r.reduce(ctx)
	after, counted := rig.Lab.Counters()
	r.out.Overrun = after.Total().Overrun - before.Total().Overrun
	// What is looked at from here on is looked at over links that work.
	err = errors.Join(err, counted, rig.Lab.SetFaults(netlab.Faults{}))
	for _, h := range r.hosts {
		if !r.killed(h) {
			err = errors.Join(err, r.quiet(ctx, h))
		}
	}
	r.out.Deeds, counted = r.deeds(ctx)
	r.out.Deeds.add(&deeds, 1<<64-1)
	return &r.out, errors.Join(err, counted)
}

// killed says whether a host's process is killed in this case.
func (r *run) killed(h int) bool {
	return slices.ContainsFunc(r.Killed, func(e End) bool { return r.Groups[0].Members[e.Rank] == h })
}

// prepare has all hosts ready.
func (r *run) prepare(ctx context.Context) error {
	for _, h := range r.hosts {
		if err := r.rig.ready(h); err != nil {
			return err
		}
		mode := r.Answers[h]
		if _, err := r.rig.ask(ctx, h, order{Answer: &mode}); err != nil {
			return err
		}
	}
	return nil
}

// deeds adds up what hosts have done that are not killed in this case.
func (r *run) deeds(ctx context.Context) (all Deeds, err error) {
	for _, h := range r.hosts {
		if r.killed(h) {
			continue
		}
		a, err := r.rig.ask(ctx, h, order{Report: true})
		if err != nil {
			return all, err
		}
		all.add(&a.Deeds, 1)
	}
	return all, nil
}

// form forms the case's groups, as somebody does who is no member.
func (r *run) form(ctx context.Context) (closeConns func() error, err error) {
	var conns []func() error
	closeConns = func() error {
		var errs []error
		for _, c := range conns {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	members := map[int]allreduce.Member{}
	for _, h := range r.hosts {
		m, c, err := r.rig.member(h, r.IPv6)
		if err != nil {
			return closeConns, err
		}
		conns = append(conns, c)
		members[h] = m
	}
	for i, g := range r.Groups {
		spec := allreduce.FormSpec{Name: r.name(i), Bits: g.Bits, Patience: r.rig.cfg.Patience, Streams: r.Streams}
		switch {
		case r.Patience > 0:
			spec.Patience = r.Patience
		case r.whole():
			spec.Patience = max(spec.Patience, patience) // machines are slow
		}
		binary.LittleEndian.PutUint64(spec.Job[:], r.Seed+1)
		copy(spec.Secret[:], spec.Job[:])
		if r.Flavour == NoHelp {
			spec.Mode = shuffle.UserOnly
		}
		for _, h := range g.Members {
			spec.Members = append(spec.Members, members[h])
		}
		f, err := allreduce.Form(ctx, spec)
		if err != nil {
			return closeConns, err
		}
		r.formed = append(r.formed, f)
		for rank, h := range g.Members {
			if f.Kernel[rank] != (r.rig.limits.hasKernel(h) && r.Flavour != NoHelp && len(g.Members) > 1) {
				return closeConns, fmt.Errorf("programs serve host %d: %v", h, f.Kernel[rank])
			}
			if f.Kernel[rank] {
				r.out.Kernel++
			}
		}
	}
	return closeConns, nil
}

// reduce forms the groups, has all members make their calls, and looks at what they say.
func (r *run) reduce(ctx context.Context) (err error) {
	closeConns, err := r.form(ctx)
	defer func() { err = errors.Join(err, closeConns()) }()
	defer func() {
		for _, f := range r.formed {
			cerr := f.Close(ctx)
			// Nobody is there to be told.
			if cerr != nil && len(r.Killed) == 0 {
				err = errors.Join(err, cerr)
			}
		}
	}()
	if err != nil {
		return err
	}
	if r.Formed != nil {
		r.Formed()
	}
	r.out.Results = make([][]Result, len(r.Groups))
	for i, g := range r.Groups {
		r.out.Results[i] = make([]Result, len(g.Members))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, h := range r.hosts {
		all.Go(func() {
			o := order{}
			ranks := []int{}
			for i, g := range r.Groups {
				rank := slices.Index(g.Members, h)
				ranks = append(ranks, rank)
				d := duty{Token: r.formed[i].Token, Seed: r.Seed, Group: i, Members: len(g.Members), Calls: g.Calls}
				if i == 0 {
					d.Pauses = pick(r.Pauses, func(p Pause) bool { return p.Rank == rank })
					d.Dies, d.GivesUp = endOf(r.Killed, rank), endOf(r.GivesUp, rank)
				}
				o.Do = append(o.Do, d)
			}
			a, aerr := r.rig.ask(ctx, h, o)
			mu.Lock()
			defer mu.Unlock()
			if r.killed(h) {
				r.rig.bury(h)
				a.Results, aerr = make([]Result, len(o.Do)), nil
				for i := range a.Results {
					a.Results[i].Killed = true
				}
			}
			if err = errors.Join(err, aerr); aerr == nil {
				for i, result := range a.Results {
					r.out.Results[i][ranks[i]] = result
				}
			}
		})
	}
	all.Wait()
	if err != nil {
		return err
	}
	for i := range r.Groups {
		err = errors.Join(err, r.check(i))
	}
	return err
}

func pick[T any](list []T, want func(T) bool) (picked []T) {
	for _, x := range list {
		if want(x) {
			picked = append(picked, x)
		}
	}
	return picked
}

func endOf(list []End, rank int) *End {
	for i := range list {
		if list[i].Rank == rank {
			return &list[i]
		}
	}
	return nil
}

// check looks at what members of a group say.
func (r *run) check(group int) error {
	g := &r.Groups[group]
	var errs []error
	for rank, got := range r.out.Results[group] {
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("group %d: member %d (host %d): %w", group, rank, g.Members[rank], fmt.Errorf(format, args...)))
		}
		switch {
		case got.Killed:
		case got.Wrong != "":
			fail("%s", got.Wrong)
		case got.Err == "" && got.Done == len(g.Calls):
		case got.Err == "":
			fail("%d of %d calls are done, and there is no error", got.Done, len(g.Calls))
		case !r.mayFail(group):
			fail("%s", got.Err)
		case !got.Broken:
			fail("the error is not that the group is broken: %s", got.Err)
		case got.Rank >= 0 && !r.isReason(group, got.Rank) && !strings.Contains(got.Err, "has not answered"): // by then: machines are slow
			fail("the error names member %d, to whom nothing happened: %s", got.Rank, got.Err)
		case got.Rank < 0 && endOf(r.GivesUp, rank) == nil:
			fail("the error does not say who is the reason: %s", got.Err)
		}
	}
	return errors.Join(errs...)
}

// mayFail says whether there is a reason for calls of a group to fail.
func (r *run) mayFail(group int) bool {
	return len(r.Killed) > 0 || group == 0 && len(r.GivesUp)+len(r.Lost) > 0
}

// isReason says whether a member is a reason for calls to fail.
func (r *run) isReason(group, rank int) bool {
	return r.killed(r.Groups[group].Members[rank]) || group == 0 && (endOf(r.GivesUp, rank) != nil || slices.Contains(r.Lost, rank))
}

// patience is how long is waited for what has to happen at some time.
const patience = 30 * time.Second

// quiet waits until nothing is open at a host.
func (r *run) quiet(ctx context.Context, h int) error {
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		a, err := r.rig.ask(ctx, h, order{Report: true})
		if err != nil || len(a.Open) == 0 {
			return err
		}
		if time.Now().After(until) || ctx.Err() != nil {
			return fmt.Errorf("host %d: open after the end: %q", h, a.Open)
		}
	}
}

// count adds reasons up.
func count(of [wire.Reasons]uint64, reasons ...wire.Reason) (n uint64) {
	for _, r := range reasons {
		n += of[r]
	}
	return n
}
