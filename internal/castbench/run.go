// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/quernmr/quern/internal/benchlab"
	"github.com/quernmr/quern/internal/foldbench"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/broadcast"
	"github.com/quernmr/quern/shuffle/scratch"
)

// bench is a run.
type bench struct {
	o          Options
	lab        *netlab.Lab
	hosts      []*netlab.Host // the source and then the members
	folder     *scratch.Folder
	source     *foldbench.Process
	members    []*foldbench.Process
	background float64 // processors that the machine uses while nothing is measured
}

func (b *bench) say(format string, args ...any) {
	if b.o.Log != nil {
		fmt.Fprintf(b.o.Log, format+"\n", args...)
	}
}

// folderPrefix begins the name of a run's folder.
const folderPrefix = "quern-bench-broadcast-"

// Run measures all paths with all sizes and numbers of members under all conditions.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Network == "" {
		o.Network = Switch
	}
	b := &bench{o: o}
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

// ours says whether a path is our protocol.
func ours(path string) bool { return path == Kernel || path == Relay }

// open builds the lab and starts the roles.
func (b *bench) open(ctx context.Context) (err error) {
	n := 1 + slices.Max(b.o.Members)
	b.say("setting up a lab of %d hosts", n)
	if b.lab, err = netlab.New(netlab.Options{Hosts: n + 1, StaticNeighbours: true, Switch: b.o.Network == Switch}); err != nil {
		return err
	}
	b.hosts = b.lab.Hosts()[:n]
	if err := benchlab.LayPlain(b.lab.Host(n+1), b.hosts); err != nil {
		return err
	}
	if b.folder, err = scratch.New("", folderPrefix); err != nil {
		return err
	}
	largest := slices.Max(b.o.Sizes)
	spec := SourceSpec{Plain: benchlab.PlainAddress(1).String(), Largest: largest, Nodes: b.nodes(1)}
	for i := 2; i <= n; i++ {
		p, err := b.start(ctx, i, "member")
		if err != nil {
			return err
		}
		b.members = append(b.members, p)
		m := SourceMember{Nodes: b.nodes(i)}
		if err := p.Call(ctx, "Open", &MemberSpec{Plain: benchlab.PlainAddress(i).String(), Nodes: m.Nodes}, &m.Ports); err != nil {
			return err
		}
		spec.Members = append(spec.Members, m)
	}
	if b.source, err = b.start(ctx, 1, "source"); err != nil {
		return err
	}
	return b.source.Call(ctx, "Open", &spec, &none{})
}

// nodes says what a host has for our protocol.
func (b *bench) nodes(host int) map[string]NodeSpec {
	all := map[string]NodeSpec{}
	for _, path := range b.o.Paths {
		s := NodeSpec{Temp: b.folder.Path(), Largest: slices.Max(b.o.Sizes)}
		switch path {
		case Kernel:
			s.Interface, s.Listen = netlab.InterfaceName, netlab.IPv4(host).String()
		case Relay:
			s.Listen = benchlab.PlainAddress(host).String()
		default:
			continue
		}
		if host != 1 {
			s.Control = filepath.Join(b.folder.Path(), fmt.Sprintf("%s-%d", path, host))
		}
		all[path] = s
	}
	return all
}

func (b *bench) start(ctx context.Context, host int, role string) (*foldbench.Process, error) {
	p := b.o.Place
	p.Host = b.hosts[host-1]
	return foldbench.Start(ctx, p, role)
}

func (b *bench) close() error {
	var errs []error
	for _, p := range append([]*foldbench.Process{b.source}, b.members...) {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	if b.folder != nil {
		errs = append(errs, b.folder.Close())
	}
	return errors.Join(errs...)
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
		for _, size := range b.o.Sizes {
			b.say("measuring %d members, %s, %s", members, sizeWords(size), condition)
			all := map[string]*tally{}
			for range b.o.Blocks {
				for _, path := range b.o.Paths {
					if all[path] == nil {
						all[path] = &tally{}
					}
					if all[path].took > enough*b.o.Time {
						continue
					}
					if err := b.turns(ctx, path, members, size, condition, all[path]); err != nil {
						return fmt.Errorf("%s, %d members, %d bytes, %s: %w", path, members, size, condition, err)
					}
				}
			}
			for _, path := range b.o.Paths {
				r := all[path].result()
				r.Path, r.Members, r.Bytes, r.Condition = path, members, size, condition
				report.Results = append(report.Results, r)
				b.say("%s", resultWords(&r))
			}
		}
	}
	return nil
}

// enough is how many times the time of a turn a path may take, of one size and so on, and
// still have another turn: what takes seconds is not measured better by that.
const enough = 10

// tally adds up what turns of one path did.
type tally struct {
	known, confirmed  []time.Duration
	plain, confirming spent
	rounds            int // of all turns
	again, woken      int
	took              time.Duration
	chains, wrong     int
}

// spent is what turns of one kind took.
type spent struct {
	rounds int
	bytes  uint64
	cpu    float64 // ns
}

// turns lets a path have its turn.
func (b *bench) turns(ctx context.Context, path string, members, size int, condition string, t *tally) error {
	turn := Turn{Path: path, Members: members, Bytes: size, Rounds: b.o.Rounds, Time: b.o.Time, Chains: b.o.Chains, Window: b.o.Window}
	if !ours(path) {
		ran, err := b.turn(ctx, turn, condition, t, &t.plain)
		t.known = append(t.known, ran.Known...)
		return err
	}
	// Regions have an end.
	if chunks := broadcast.ChunksOf(int64(size)); turn.Rounds > spareChunks/chunks-turn.warm() {
		turn.Rounds = max(1, spareChunks/chunks-turn.warm())
	}
	// Small messages go one after the other as on the other paths, and in a turn of their own
	// with confirmations between them: to ask for those takes longer than to broadcast, and
	// disturbs the next. A large message does not notice.
	if size <= small {
		ran, err := b.turn(ctx, turn, condition, t, &t.plain)
		if err != nil {
			return err
		}
		t.known = append(t.known, ran.Known...)
	}
	turn.Confirm = true
	ran, err := b.turn(ctx, turn, condition, t, &t.confirming)
	if size > small {
		t.known = append(t.known, ran.Known...)
	}
	t.confirmed = append(t.confirmed, ran.Confirmed...)
	return err
}

// turn has one turn.
func (b *bench) turn(ctx context.Context, turn Turn, condition string, t *tally, s *spent) (ran Ran, err error) {
	began := time.Now()
	defer func() { t.took += time.Since(began) }()
	if err := b.source.Call(ctx, "Prepare", &turn, &none{}); err != nil {
		return ran, err
	}
	used, bytes, err := b.watch(turn.Path, condition, func() error { return b.source.Call(ctx, "Run", &turn, &ran) })
	if err != nil {
		return ran, err
	}
	s.rounds += len(ran.Known)
	s.bytes += bytes
	s.cpu += used
	t.rounds += len(ran.Known)
	t.again += ran.Again
	t.woken += ran.Woken
	t.chains = ran.Chains
	if err := b.check(ctx, turn, &ran, t); err != nil {
		return ran, err
	}
	return ran, b.source.Call(ctx, "End", &turn, &none{})
}

// check asks the members what they got.
func (b *bench) check(ctx context.Context, turn Turn, ran *Ran, t *tally) error {
	var last Ended
	if err := b.source.Call(ctx, "Last", &turn, &last); err != nil {
		return err
	}
	due := Due{turn.Path, ran.Warm + len(ran.Known)}
	for i, p := range b.members[:turn.Members] {
		var got Taken
		if err := p.Call(ctx, "Taken", &due, &got); err != nil {
			return err
		}
		want := Taken{Messages: due.Messages, Number: last.Number, Bytes: turn.Bytes, Digest: last.Digest}
		if got != want {
			b.say("member %d has %+v, not %+v", i+1, got, want)
			t.wrong++
		}
	}
	return nil
}

// watch runs f and tells what it used of the processors, in nanoseconds, and what the
// source's interface sent meanwhile.
func (b *bench) watch(path, condition string, f func() error) (cpu float64, bytes uint64, err error) {
	link := benchlab.PlainName
	if path == Kernel {
		link = netlab.InterfaceName
	}
	sent, err := benchlab.SentBytes(b.hosts[0], link)
	if err != nil {
		return 0, 0, err
	}
	all := append([]*foldbench.Process{b.source}, b.members...)
	before, err := benchlab.Used(all...)
	if err != nil {
		return 0, 0, err
	}
	if err := f(); err != nil {
		return 0, 0, err
	}
	after, err := benchlab.Used(all...)
	if err != nil {
		return 0, 0, err
	}
	cpu = float64(after.Own(before))
	if condition == Idle && b.background <= benchlab.AtRest && !b.o.Quick {
		cpu = float64(after.Machine(before, b.background))
	}
	bytes, err = benchlab.SentBytes(b.hosts[0], link)
	return cpu, bytes - sent, err
}

// result makes figures of it.
func (t *tally) result() Result {
	r := Result{
		P50us: micros(foldbench.Quantile(t.known, 0.50)), P99us: micros(foldbench.Quantile(t.known, 0.99)),
		Rounds: len(t.known), Chains: t.chains, Mismatches: t.wrong,
	}
	perRound := func(s *spent) *float64 {
		if s.rounds == 0 || s.cpu <= 0 {
			return nil
		}
		v := s.cpu / 1e3 / float64(s.rounds)
		return &v
	}
	r.CPUus = perRound(&t.plain)
	sent := t.plain
	if len(t.confirmed) > 0 {
		r.ConfirmedP50us, r.ConfirmedP99us = micros(foldbench.Quantile(t.confirmed, 0.50)), micros(foldbench.Quantile(t.confirmed, 0.99))
		r.ConfirmedCPUus = perRound(&t.confirming)
		if t.plain.rounds == 0 {
			r.CPUus, sent = r.ConfirmedCPUus, t.confirming
		}
	}
	if sent.rounds > 0 {
		r.SourceBytes = float64(sent.bytes) / float64(sent.rounds)
	}
	if t.rounds > 0 {
		r.Again = float64(t.again) / float64(t.rounds)
		r.Woken = float64(t.woken) / float64(t.rounds)
	}
	return r
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// resultWords tells a result in a line.
func resultWords(r *Result) string {
	cpu := ""
	if r.CPUus != nil {
		cpu = fmt.Sprintf(", %.0f us of processors", *r.CPUus)
	}
	confirmed := ""
	if r.ConfirmedP50us > 0 {
		confirmed = fmt.Sprintf(" (confirmed %.1f)", r.ConfirmedP50us)
	}
	return fmt.Sprintf("%s, %d members, %s, %s: %.1f us%s, 99th percentile %.1f us, %d rounds%s", r.Path, r.Members, sizeWords(r.Bytes), r.Condition,
		r.P50us, confirmed, r.P99us, r.Rounds, cpu)
}
