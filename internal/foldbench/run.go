// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/wire"
)

// Options say what Fold and Contention measure.
type Options struct {
	Keys       []int    // distinct keys, one measurement each
	Conditions []string // Idle, Busy
	Paths      []string // kernel, socket, tcp (which stands for both orders)
	Runs       int      // of each; medians are reported
	Pairs      int      // sent per run at least
	Trips      int      // round trips per run
	// Place is what roles' processes are started with; its host is chosen here.
	Place Place
	Log   io.Writer // progress; nil: none
	Quick bool      // nothing is waited for; figures mean nothing
}

// MaxTrips is the most round trips of a run: the frames of one stream.
const MaxTrips = wire.Segment

// Paths that there are.
var Paths = []string{"kernel", "socket", "tcp"}

// session is one path, set up between two processes.
type session interface {
	// bulk sends at least so many pairs and returns when they are folded.
	bulk(ctx context.Context, pairs int) (Sent, error)
	// alone sends as many with nobody to fold them; no pairs: the path can't.
	alone(ctx context.Context, pairs int) (Sent, error)
	// program returns the nanoseconds per pair of the program that folds; 0: there is none.
	program(ctx context.Context, pairs int) (float64, error)
	// trip measures round trips.
	trip(ctx context.Context) (p50, p99 time.Duration, sent Sent, err error)
	// verify ends the path and checks what was folded.
	verify(ctx context.Context) error
	close() error
	self() *base
}

// base is what sessions have in common.
type base struct {
	path, order   string
	keys          int
	send, receive *Process
	note          string  // what the last bulk did, for the log
	inKernel      float64 // share of pairs that programs folded, known after verify
}

func (b *base) self() *base { return b }

func (b *base) String() string {
	s := b.path
	if b.order != "" {
		s += " in " + b.order + " order"
	}
	return s
}

func (b *base) start(ctx context.Context, from, to Place, send, receive string) (err error) {
	if b.send, err = Start(ctx, from, send); err != nil {
		return err
	}
	b.receive, err = Start(ctx, to, receive)
	return err
}

func (b *base) close() error {
	var errs []error
	for _, p := range []*Process{b.send, b.receive} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// bench is a run of Fold or Contention.
type bench struct {
	o          Options
	lab        *netlab.Lab
	background float64 // processors that the machine uses while nothing is measured
}

func (b *bench) say(format string, args ...any) {
	if b.o.Log != nil {
		fmt.Fprintf(b.o.Log, format+"\n", args...)
	}
}

// Links of the lab: programs are attached to the first alone.
const (
	kernelLink = iota
	plainLink
	links
)

// with builds the lab and calls f.
func with(o Options, f func(b *bench) error) (err error) {
	b := &bench{o: o}
	if b.lab, err = netlab.New(netlab.Options{Hosts: 2}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.lab.Close()) }()
	for i := range links {
		if err := connect(b.lab.Host(1), b.lab.Host(2), i); err != nil {
			return err
		}
	}
	return f(b)
}

func (b *bench) places(link int) (from, to Place) {
	from, to = b.o.Place, b.o.Place
	from.Host, from.Addr = b.lab.Host(1), linkAddress(link, 1)
	to.Host, to.Addr = b.lab.Host(2), linkAddress(link, 2)
	return from, to
}

// open sets all paths up for some keys.
func (b *bench) open(ctx context.Context, keys int) (all []session, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(all))
		}
	}()
	add := func(name string, f func() (session, error)) error {
		b.say("%d keys: setting up %s", keys, name)
		s, err := f()
		if err != nil {
			return fmt.Errorf("set up %s with %d keys: %w", name, keys, err)
		}
		all = append(all, s)
		return nil
	}
	for _, path := range b.o.Paths {
		switch path {
		case "kernel", "socket":
			link, iface := plainLink, ""
			if path == "kernel" {
				link, iface = kernelLink, linkName(kernelLink)
			}
			from, to := b.places(link)
			err = add(path, func() (session, error) {
				return openStreams(ctx, from, to, iface, Config{Keys: keys, Trips: b.o.Trips})
			})
		case "tcp":
			from, to := b.places(plainLink)
			for _, order := range []string{RandomOrder, HashOrder} {
				if err = add("tcp in "+order+" order", func() (session, error) {
					return openTCP(ctx, from, to, Config{Keys: keys, Order: order, Trips: b.o.Trips})
				}); err != nil {
					break
				}
			}
		default:
			err = fmt.Errorf("there is no path %q (kernel, socket, tcp)", path)
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func closeAll(all []session) error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// busy starts two processes per processor that do nothing but use it.
func (b *bench) busy(ctx context.Context) (end func() error, err error) {
	var all []*Process
	end = func() error {
		var errs []error
		for _, p := range all {
			errs = append(errs, p.Close())
		}
		return errors.Join(errs...)
	}
	from, _ := b.places(plainLink)
	for range 2 * runtime.NumCPU() {
		p, err := Start(ctx, from, "spin")
		if err != nil {
			return nil, errors.Join(err, end())
		}
		all = append(all, p)
		if err := p.Call(ctx, "Ready", &None{}, &None{}); err != nil {
			return nil, errors.Join(err, end())
		}
	}
	return end, nil
}

// each calls f for every path under every condition, as often as there are runs:
// paths take turns, so that what disturbs a run disturbs all.
func (b *bench) each(ctx context.Context, all []session, f func(s session, condition string, run int) error) error {
	for _, condition := range b.o.Conditions {
		end := func() error { return nil }
		if condition == Busy {
			var err error
			if end, err = b.busy(ctx); err != nil {
				return err
			}
		} else if err := b.rest(); err != nil {
			return err
		}
		for run := range b.o.Runs {
			for _, s := range all {
				if err := f(s, condition, run); err != nil {
					return errors.Join(fmt.Errorf("%s, %d keys, %s: %w", s.self(), s.self().keys, condition, err), end())
				}
			}
		}
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

// rest finds out what the machine uses while nothing is measured.
func (b *bench) rest() error {
	if b.o.Quick {
		return nil
	}
	time.Sleep(300 * time.Millisecond)
	before, err := MachineTime()
	if err != nil {
		return err
	}
	began := time.Now()
	time.Sleep(time.Second)
	after, err := MachineTime()
	b.background = float64(after-before) / float64(time.Since(began))
	b.say("without work the machine uses %.3f of a processor", b.background)
	if b.background > atRest {
		b.say("that is too much: times are those of the two processes, not of the whole machine")
	}
	return err
}

// used is processor time that passed, in nanoseconds.
type used struct {
	send, receive float64 // of the processes
	interrupts    float64 // of the kernel's threads that go on with what interrupts began
	machine       float64 // of all, less what it uses while nothing is measured
}

// atRest is how many processors a machine may use that counts as idle.
const atRest = 0.2

// cost is what something took of the machine; where that does other things too,
// of both processes and of the kernel's threads for interrupts.
func (b *bench) cost(u used, condition string) float64 {
	if condition == Busy || b.background > atRest || b.o.Quick {
		return u.send + u.receive + u.interrupts
	}
	return u.machine
}

// watch runs f and tells what it used. Both roles embed Meter.
func (b *bench) watch(ctx context.Context, s session, f func() error) (used, error) {
	take := func() (u used, err error) {
		var send, receive, interrupts, machine time.Duration
		if err = s.self().send.Call(ctx, "Used", &None{}, &send); err != nil {
			return u, err
		}
		if err = s.self().receive.Call(ctx, "Used", &None{}, &receive); err != nil {
			return u, err
		}
		if interrupts, err = InterruptTime(); err != nil {
			return u, err
		}
		machine, err = MachineTime()
		return used{float64(send), float64(receive), float64(interrupts), float64(machine)}, err
	}
	before, err := take()
	if err != nil {
		return before, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return before, err
	}
	took := time.Since(began)
	after, err := take()
	return used{
		after.send - before.send, after.receive - before.receive, after.interrupts - before.interrupts,
		after.machine - before.machine - b.background*float64(took),
	}, err
}

// measure measures a path once.
func (b *bench) measure(ctx context.Context, s session, condition string) (Result, error) {
	r := Result{Path: s.self().path, Order: s.self().order, Keys: s.self().keys, Condition: condition}
	var sent Sent
	u, err := b.watch(ctx, s, func() (err error) {
		sent, err = s.bulk(ctx, b.o.Pairs)
		return err
	})
	if err != nil {
		return r, err
	}
	note := s.self().note
	n := float64(sent.Pairs)
	r.PairsPerSecond = n / sent.Took.Seconds()
	r.CPUNsPerPair = b.cost(u, condition) / n
	r.RecvCPUNsPerPair = u.receive / n
	var alone Sent
	a, err := b.watch(ctx, s, func() (err error) {
		alone, err = s.alone(ctx, b.o.Pairs)
		return err
	})
	if err != nil {
		return r, err
	}
	if alone.Pairs > 0 {
		a.receive = 0 // it does nothing
		r.RecvCPUNsPerPair = r.CPUNsPerPair - b.cost(a, condition)/float64(alone.Pairs)
	}
	r.SendCPUNsPerPair = r.CPUNsPerPair - r.RecvCPUNsPerPair
	if r.ProgramNsPerPair, err = s.program(ctx, b.o.Pairs/4); err != nil {
		return r, err
	}
	if b.o.Trips > 0 {
		p50, p99, _, err := s.trip(ctx)
		if err != nil {
			return r, err
		}
		r.RTTp50Us, r.RTTp99Us = micros(p50), micros(p99)
	}
	program := ""
	if r.ProgramNsPerPair > 0 {
		program = fmt.Sprintf(", program %.1f", r.ProgramNsPerPair)
	}
	b.say("%s, %d keys, %s: %s, %.1f ns a pair (send %.1f, receive %.1f%s), round trip %.1f us, 99th percentile %.1f us", s.self(), r.Keys, condition,
		sentWords(sent), r.CPUNsPerPair, r.SendCPUNsPerPair, r.RecvCPUNsPerPair, program, r.RTTp50Us, r.RTTp99Us)
	b.say("  processes %.1f and %.1f, machine %.1f ns a pair%s", u.send/n, u.receive/n, u.machine/n, note)
	return r, nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// Fold measures all paths with all numbers of keys.
func Fold(ctx context.Context, o Options) (*Report, error) {
	return run(ctx, o, (*bench).measure)
}

// Contention measures round trips alone: one question at a time.
func Contention(ctx context.Context, o Options) (*Report, error) {
	r, err := run(ctx, o, (*bench).ping)
	if r != nil {
		r.tripsOnly = true
	}
	return r, err
}

// ping measures a path's round trips once. Pairs per second and times are those of the questions.
func (b *bench) ping(ctx context.Context, s session, condition string) (Result, error) {
	r := Result{Path: s.self().path, Order: s.self().order, Keys: s.self().keys, Condition: condition}
	var p50, p99 time.Duration
	var sent Sent
	u, err := b.watch(ctx, s, func() (err error) {
		p50, p99, sent, err = s.trip(ctx)
		return err
	})
	if err != nil {
		return r, err
	}
	n := float64(sent.Pairs)
	r.PairsPerSecond = n / sent.Took.Seconds()
	r.CPUNsPerPair = b.cost(u, condition) / n
	r.RecvCPUNsPerPair = u.receive / n
	r.SendCPUNsPerPair = r.CPUNsPerPair - r.RecvCPUNsPerPair
	r.RTTp50Us, r.RTTp99Us = micros(p50), micros(p99)
	b.say("%s, %s: %d questions, round trip %.1f us, 99th percentile %.1f us", s.self(), condition, b.o.Trips, r.RTTp50Us, r.RTTp99Us)
	return r, nil
}

func run(ctx context.Context, o Options, measure func(*bench, context.Context, session, string) (Result, error)) (*Report, error) {
	for _, keys := range o.Keys {
		if keys < 1 || keys > MaxKeys {
			return nil, fmt.Errorf("%d keys: 1 to %d are possible", keys, MaxKeys)
		}
	}
	report := &Report{}
	err := with(o, func(b *bench) error {
		for _, keys := range o.Keys {
			results, err := b.keys(ctx, keys, measure)
			if err != nil {
				return err
			}
			report.Results = append(report.Results, results...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

func (b *bench) keys(ctx context.Context, keys int, measure func(*bench, context.Context, session, string) (Result, error)) (results []Result, err error) {
	all, err := b.open(ctx, keys)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll(all)) }()
	type place struct {
		s         session
		condition string
	}
	runs := map[place][]Result{}
	err = b.each(ctx, all, func(s session, condition string, _ int) error {
		r, err := measure(b, ctx, s, condition)
		at := place{s, condition}
		runs[at] = append(runs[at], r)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if err := s.verify(ctx); err != nil {
			return nil, err
		}
		if s.self().path == "kernel" {
			b.say("%d keys: %.2f %% of the pairs were folded by programs; %s", keys, 100*s.self().inKernel, s.self().note)
			if s.self().inKernel == 0 {
				return nil, fmt.Errorf("the kernel path with %d keys folded nothing in the kernel", keys)
			}
		}
	}
	for _, condition := range b.o.Conditions {
		for _, s := range all {
			results = append(results, medians(runs[place{s, condition}]))
		}
	}
	return results, nil
}

// medians returns the median of each figure.
func medians(runs []Result) Result {
	m := runs[0]
	for _, f := range []func(*Result) *float64{
		func(r *Result) *float64 { return &r.PairsPerSecond },
		func(r *Result) *float64 { return &r.CPUNsPerPair },
		func(r *Result) *float64 { return &r.SendCPUNsPerPair },
		func(r *Result) *float64 { return &r.RecvCPUNsPerPair },
		func(r *Result) *float64 { return &r.ProgramNsPerPair },
		func(r *Result) *float64 { return &r.RTTp50Us },
		func(r *Result) *float64 { return &r.RTTp99Us },
	} {
		var list []float64
		for i := range runs {
			list = append(list, *f(&runs[i]))
		}
		slices.Sort(list)
		n := len(list)
		*f(&m) = (list[(n-1)/2] + list[n/2]) / 2
	}
	return m
}
