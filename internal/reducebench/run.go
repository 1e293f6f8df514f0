// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/quernmr/quern/internal/benchlab"
	"github.com/quernmr/quern/internal/foldbench"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/scratch"
)

// bench is a run.
type bench struct {
	o          Options
	lab        *netlab.Lab
	hosts      []*netlab.Host // of the members
	folder     *scratch.Folder
	members    []*foldbench.Process
	formers    map[string]*former // by path, as nodes
	background float64            // processors that the machine uses while nothing is measured
	round      uint32             // number of the next one
}

func (b *bench) say(format string, args ...any) {
	if b.o.Log != nil {
		fmt.Fprintf(b.o.Log, format+"\n", args...)
	}
}

// folderPrefix begins the name of a run's folder.
const folderPrefix = "quern-bench-allreduce-"

// Run measures all paths with all numbers of elements and members under all conditions.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Network == "" {
		o.Network = Plain
	}
	b := &bench{o: o, round: 1}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	report = &Report{Network: o.Network}
	for _, condition := range o.Conditions {
		if err := b.under(ctx, condition, report); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// open builds the lab and starts the roles.
func (b *bench) open(ctx context.Context) (err error) {
	n := slices.Max(b.o.Members)
	b.say("setting up a lab of %d hosts", n)
	if b.lab, err = netlab.New(netlab.Options{Hosts: n + 1, StaticNeighbours: true, Switch: true}); err != nil {
		return err
	}
	b.hosts = b.lab.Hosts()[:n]
	if err := benchlab.LayPlain(b.lab.Host(n+1), b.hosts); err != nil {
		return err
	}
	if b.folder, err = scratch.New("", folderPrefix); err != nil {
		return err
	}
	ports, nodes := make([]MemberPorts, n), map[string][]NodeSpec{}
	for i, h := range b.hosts {
		place := b.o.Place
		place.Host = h
		p, err := foldbench.Start(ctx, place, "member")
		if err != nil {
			return err
		}
		b.members = append(b.members, p)
		spec := MemberSpec{i, b.address(h), b.nodes(h)}
		if err := p.Call(ctx, "Open", &spec, &ports[i]); err != nil {
			return err
		}
		for path, node := range spec.Nodes {
			nodes[path] = append(nodes[path], node)
		}
	}
	b.formers = map[string]*former{}
	for path, list := range nodes {
		if b.formers[path], err = newFormer(list); err != nil {
			delete(b.formers, path)
			return err
		}
	}
	return b.all(ctx, n, "Meet", &ports)
}

// address is that of a host that TCP uses.
func (b *bench) address(h *netlab.Host) string {
	if b.o.Network == Switch {
		return netlab.IPv4(h.Number()).String()
	}
	return benchlab.PlainAddress(h.Number()).String()
}

// links are the interfaces that a path uses.
func (b *bench) links(path string) []string {
	switch {
	case path == Auto && b.o.Network == Plain:
		return []string{netlab.InterfaceName, benchlab.PlainName}
	case nodeOf(path) == Kernel || path != User && b.o.Network == Switch:
		return []string{netlab.InterfaceName}
	}
	return []string{benchlab.PlainName}
}

// nodes says what a host has for our protocol.
func (b *bench) nodes(h *netlab.Host) map[string]NodeSpec {
	all := map[string]NodeSpec{}
	for _, path := range b.o.Paths {
		path = nodeOf(path)
		s := NodeSpec{Temp: b.folder.Path(), Control: filepath.Join(b.folder.Path(), fmt.Sprintf("%s-%d", path, h.Number()))}
		switch path {
		case Kernel:
			s.Interface, s.Listen = netlab.InterfaceName, netlab.IPv4(h.Number()).String()
			s.Streams, s.Plain = b.address(h), b.o.Network == Plain
		case User:
			s.Listen = benchlab.PlainAddress(h.Number()).String()
		default:
			continue
		}
		all[path] = s
	}
	return all
}

func (b *bench) close() error {
	var errs []error
	for _, f := range b.formers {
		errs = append(errs, f.close())
	}
	for _, p := range b.members {
		errs = append(errs, p.Close())
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	if b.folder != nil {
		errs = append(errs, b.folder.Close())
	}
	return errors.Join(errs...)
}

// each calls f for the first members at the same time. If it fails for one it ends for all.
func (b *bench) each(ctx context.Context, members int, f func(ctx context.Context, rank int, p *foldbench.Process) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	for rank, p := range b.members[:members] {
		wait.Go(func() {
			if err := f(ctx, rank, p); err != nil {
				cancel(fmt.Errorf("member %d: %w", rank, err)) // the first one is the cause
			}
		})
	}
	wait.Wait()
	return context.Cause(ctx)
}

// all calls a method of the first members, at the same time.
func (b *bench) all(ctx context.Context, members int, method string, args any) error {
	return b.each(ctx, members, func(ctx context.Context, _ int, p *foldbench.Process) error {
		return p.Call(ctx, method, args, &none{})
	})
}

// rest finds out what the machine uses while nothing is measured.
func (b *bench) rest() (err error) {
	if b.o.Quick {
		return nil
	}
	b.background, err = benchlab.Rest()
	b.say("without work the machine uses %.3f of a processor", b.background)
	if b.background > benchlab.AtRest {
		b.say("that is too much: processor times are those of our processes, not of the whole machine")
	}
	return err
}

// under measures everything under one condition.
func (b *bench) under(ctx context.Context, condition string, report *Report) (err error) {
	if condition == Busy {
		place := b.o.Spin
		place.Host = b.hosts[0]
		end, err := benchlab.Spin(ctx, place)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	} else if err := b.rest(); err != nil {
		return err
	}
	for _, members := range b.o.Members {
		for _, elements := range b.o.Elements {
			b.say("measuring %d members, %d elements, %s", members, elements, condition)
			all := map[string]*tally{}
			for range b.o.Blocks {
				for _, path := range b.o.Paths {
					if all[path] == nil {
						all[path] = &tally{}
					}
					if all[path].took > enough*b.o.Time {
						continue
					}
					if err := b.turn(ctx, Turn{Path: path, Members: members, Elements: elements}, condition, all[path]); err != nil {
						return fmt.Errorf("%s, %d members, %d elements, %s: %w", path, members, elements, condition, err)
					}
				}
			}
			for _, path := range b.o.Paths {
				r := all[path].result()
				r.Path, r.Members, r.Elements, r.Condition = path, members, elements, condition
				report.Results = append(report.Results, r)
				b.say("%s: %.1f us, 99th percentile %.1f us, %d rounds, %.0f us of processors", path, r.P50us, r.P99us, r.Rounds, r.CPUus)
			}
		}
	}
	return nil
}

// enough is how many times the time of a turn a path may take, of one size and so on, and
// still have another turn: what takes seconds is not measured better by that.
const enough = 10

const (
	// burstBytes is the memory that a member may use for the vectors of a burst, of which there is one at least.
	burstBytes = 8 << 20
	// warmRounds go ahead of a turn.
	warmRounds = 3
	// apart is how many rounds a burst must have for its first one not to count: others may have
	// sent their parts of that before the last member began.
	apart = 4
)

// tally adds up what turns of one path did.
type tally struct {
	times  []time.Duration // of rounds that count
	rounds int             // all but those that went ahead
	cpu    time.Duration
	bytes  uint64
	took   time.Duration
}

// closes is how long a group may take to be closed at members, which may be gone after an error.
const closes = 3 * time.Second

// turn lets a path have its turn.
func (b *bench) turn(ctx context.Context, turn Turn, condition string, t *tally) (err error) {
	began := time.Now()
	defer func() { t.took += time.Since(began) }()
	if f := b.formers[nodeOf(turn.Path)]; f != nil {
		group, failed := f.form(ctx, turn.Path, turn.Members)
		if failed != nil {
			return failed
		}
		defer func() {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), closes)
			defer cancel()
			if failed := group.Close(undo); err == nil {
				err = failed
			}
		}()
		turn.Token = group.Token
	}
	turn.Rounds = max(1, min(burstBytes/(4*turn.Elements), b.o.Rounds+1))
	if err := b.all(ctx, turn.Members, "Prepare", &turn); err != nil {
		return err
	}
	if err := b.burst(ctx, &turn, min(warmRounds, turn.Rounds), condition, &tally{}); err != nil {
		return err
	}
	run, done := time.Now(), t.rounds+b.o.Rounds
	for first := true; first || t.rounds < done && time.Since(run) < b.o.Time; first = false {
		if err := b.burst(ctx, &turn, turn.Rounds, condition, t); err != nil {
			return err
		}
	}
	return b.all(ctx, turn.Members, "End", &none{})
}

// burst has so many rounds.
func (b *bench) burst(ctx context.Context, turn *Turn, rounds int, condition string, t *tally) error {
	burst := Burst{b.round, rounds}
	b.round += uint32(rounds)
	if err := b.all(ctx, turn.Members, "Fill", &burst); err != nil {
		return err
	}
	ran := make([]Ran, turn.Members)
	err := b.watch(turn, condition, t, func() error {
		return b.each(ctx, turn.Members, func(ctx context.Context, rank int, p *foldbench.Process) error {
			return p.Call(ctx, "Run", &burst, &ran[rank])
		})
	})
	if err != nil {
		return err
	}
	t.rounds += rounds
	t.times = append(t.times, roundTimes(ran, rounds)...)
	return b.all(ctx, turn.Members, "Check", &burst)
}

// roundTimes returns how long each round took that counts.
func roundTimes(ran []Ran, rounds int) []time.Duration {
	var times []time.Duration
	for i := range rounds {
		if i == 0 && rounds >= apart {
			continue
		}
		began, ended := ran[0].Began[i], ran[0].Ended[i]
		for _, r := range ran[1:] {
			began, ended = max(began, r.Began[i]), max(ended, r.Ended[i])
		}
		times = append(times, time.Duration(ended-began))
	}
	return times
}

// watch runs f and adds what it used of the processors and what the members' interfaces sent meanwhile.
func (b *bench) watch(turn *Turn, condition string, t *tally, f func() error) error {
	sent := func() (sum uint64, err error) {
		for _, h := range b.hosts[:turn.Members] {
			for _, link := range b.links(turn.Path) {
				n, err := benchlab.SentBytes(h, link)
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
		return sum, nil
	}
	sentBefore, err := sent()
	if err != nil {
		return err
	}
	before, err := benchlab.Used(b.members...)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := benchlab.Used(b.members...)
	if err != nil {
		return err
	}
	if condition == Idle && b.background <= benchlab.AtRest && !b.o.Quick {
		t.cpu += after.Machine(before, b.background)
	} else {
		t.cpu += after.Own(before)
	}
	sentAfter, err := sent()
	t.bytes += sentAfter - sentBefore
	return err
}

// result makes figures of it.
func (t *tally) result() Result {
	r := Result{
		P50us: micros(foldbench.Quantile(t.times, 0.50)), P99us: micros(foldbench.Quantile(t.times, 0.99)), Rounds: len(t.times),
	}
	if t.rounds > 0 {
		r.CPUus = max(0, micros(t.cpu)/float64(t.rounds))
		r.WireBytes = float64(t.bytes) / float64(t.rounds)
	}
	return r
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
