// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// member is one of those that do an iteration together. It has a share of the splits; all of them have the
// whole state, and come to the same one in every round.
type member struct {
	e      *engine
	it     iterationCode
	f      iterationFacts
	gang   gang
	shares []share
	total  int // splits of all members

	state  iterationState
	next   []float64   // becomes the state's numbers
	sums   []float64   // of all splits
	vecs   [][]float64 // of each of ours
	synced bool        // the state is more than what Start returned

	groups           int
	resumed          int
	times            []RoundTime // a ring, once it is full
	counted          int         // rounds, for times
	working, waiting time.Duration
}

// newMember makes a member whose state is that of the start. The engine's plan has the files of the share's
// splits; total is how many splits the whole input has.
func (e *engine) newMember(it iterationCode, shares []share, total int) (*member, error) {
	m := &member{e: e, it: it, f: it.facts(), shares: shares, total: total}
	if err := m.begin(); err != nil {
		return nil, m.named(err)
	}
	return m, nil
}

// takePart loads the share and does the rounds with the gang's other members, from the state that was kept. After an
// error the state is that after the last round that went well.
func (m *member) takePart(ctx context.Context, g gang) error {
	m.gang = g
	if err := m.takeKept(); err != nil {
		return m.named(err)
	}
	if m.done() { // the state that was kept is the last one
		return nil
	}
	if err := m.room(); err != nil {
		return m.named(err)
	}
	if err := m.e.loadAll(ctx, m.it, m.shares, m.total); err != nil {
		return err
	}
	m.e.setPhase(phaseRounds)
	err := m.run(ctx)
	m.shares, m.next, m.sums, m.vecs = nil, nil, nil, nil // it may be a lot
	if err != nil {
		return m.named(err)
	}
	return nil
}

// room finds out whether there is room for the sums.
func (m *member) room() error {
	// One vector a split, one for what they add up to, and as much again to add them.
	if need := float64(len(m.shares)+2) * float64(m.f.sums) * 8; need > float64(m.e.mem.budget) {
		return fmt.Errorf("the sums of %d splits are %d numbers each: they take %.0f MiB, and %d MiB may be taken; allow for more memory, or make fewer splits of the input by a larger Options.Input.SplitSize",
			len(m.shares), m.f.sums, need/(1<<20), m.e.mem.budget>>20)
	}
	return nil
}

func (m *member) named(err error) error {
	if m.f.name == "" {
		return err
	}
	return fmt.Errorf("iteration %s: %w", m.f.name, err)
}

// result is what the iteration came to.
func (m *member) result() *IterationResult {
	r := &IterationResult{
		State: m.state.numbers, Rounds: m.state.rounds, Converged: m.state.converged, Bound: m.state.bound,
		Resumed: m.resumed, Groups: m.groups, Working: m.working, Waiting: m.waiting,
	}
	at := 0
	if len(m.times) == keptTimes {
		at = m.counted % keptTimes
	}
	r.Times = append(append(r.Times, m.times[at:]...), m.times[:at]...)
	return r
}

// begin takes the state of the start.
func (m *member) begin() error {
	if m.total == 0 {
		return errNoSplit
	}
	start, err := m.it.start()
	if err != nil {
		return fmt.Errorf("the state before the first round: %w", err)
	}
	switch {
	case len(start) == 0:
		return &permanent{errors.New("the state that Start returned is empty")}
	case m.f.columns > 0 && len(start)%m.f.columns != 0:
		return &permanent{fmt.Errorf("the state has %d numbers, which makes no whole rows of %d Columns", len(start), m.f.columns)}
	}
	if err := noNaN(start); err != nil {
		return fmt.Errorf("the state before the first round: %w", err)
	}
	if m.f.sums == 0 {
		m.f.sums = len(start)
	}
	m.state.numbers, m.next = append([]float64(nil), start...), make([]float64, len(start))
	return nil
}

func noNaN(state []float64) error {
	for i, v := range state {
		if v != v {
			return &permanent{fmt.Errorf("number %d of the state is NaN", i)}
		}
	}
	return nil
}

// takeKept takes the state that was kept, if one was.
func (m *member) takeKept() error {
	_, b := m.gang.kept()
	if b == nil {
		return nil
	}
	s, err := decodeState(b)
	if err != nil {
		return err
	}
	if len(s.numbers) != len(m.state.numbers) {
		return &permanent{fmt.Errorf("the state that was kept has %d numbers, and Start returned %d", len(s.numbers), len(m.state.numbers))}
	}
	m.state, m.synced, m.resumed = *s, true, s.rounds
	return nil
}

// done says whether the state is the last one.
func (m *member) done() bool { return m.state.converged || m.state.rounds >= m.f.rounds }

// futile is how many groups in a row may break before a round is done in one.
const futile = 20

// run does what is left of the rounds, in as many groups as it takes.
func (m *member) run(ctx context.Context) error {
	m.next = make([]float64, len(m.state.numbers))
	m.sums = make([]float64, m.f.sums)
	m.vecs = make([][]float64, len(m.shares))
	for i := range m.vecs {
		m.vecs[i] = make([]float64, m.f.sums)
	}
	for tries := 0; ; tries++ {
		before := m.state.rounds
		err := m.together(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.As(err, new(*brokenError)) {
			return err
		}
		if m.state.rounds > before {
			tries = 0
		}
		if tries >= futile {
			return fmt.Errorf("%d groups broke one after the other, and no round was done: %w", futile, err)
		}
	}
}

// together does rounds with one group, until all are done or the group breaks.
func (m *member) together(ctx context.Context) (err error) {
	has := -1
	if m.synced {
		has = m.state.rounds
	}
	formed, err := m.gang.form(ctx, has)
	if err != nil {
		return err
	}
	g := &timedGroup{Group: formed}
	defer g.Close()
	m.groups++
	if err := m.sync(ctx, g); err != nil {
		return err
	}
	a := newAdder(g, &m.f, m.e.opts.Workers, len(m.shares), m.total)
	for !m.done() {
		if err := m.round(ctx, g, a); err != nil {
			return err
		}
		if !m.done() && m.state.rounds%m.f.checkpoint == 0 {
			if err := m.agree(ctx, g); err != nil {
				return err
			}
			if err := m.keep(ctx, g); err != nil {
				return err
			}
		}
	}
	return m.agree(ctx, g)
}

// agree finds out whether all members have the same state.
func (m *member) agree(ctx context.Context, g *timedGroup) error {
	if g.Size() == 1 {
		return nil
	}
	d := m.state.digest()
	both := []int64{d, ^d}
	if err := g.max(ctx, both); err != nil {
		return err
	}
	if both[0] != ^both[1] {
		return fmt.Errorf("after round %d: %w", m.state.rounds, &permanent{ErrDiverged})
	}
	return nil
}

// keep has one member keep the state, on which all agree.
func (m *member) keep(ctx context.Context, g *timedGroup) error {
	if g.Rank() != 0 {
		return nil
	}
	if err := m.gang.keep(ctx, m.state.rounds, m.state.encode()); err != nil {
		return fmt.Errorf("keep the state after round %d: %w", m.state.rounds, err)
	}
	return nil
}

// sync gives all members of a new group the newest state of one of them.
func (m *member) sync(ctx context.Context, g *timedGroup) error {
	if g.Size() == 1 {
		m.synced = true
		return nil
	}
	id := m.identity()
	head := []int64{id, ^id, int64(m.state.rounds)}
	if err := g.max(ctx, head); err != nil {
		return err
	}
	if head[0] != ^head[1] {
		return &permanent{errOtherIteration}
	}
	newest := int(head[2])
	// Those that have it may differ, if Update does not always do the same.
	who := []int64{math.MinInt64, math.MinInt64, math.MinInt64, 1}
	if m.state.rounds == newest {
		d := m.state.digest()
		who = []int64{-int64(g.Rank()), d, ^d, 0}
	}
	if err := g.max(ctx, who); err != nil {
		return err
	}
	if who[1] != ^who[2] {
		return fmt.Errorf("after round %d: %w", newest, &permanent{ErrDiverged})
	}
	if who[3] == 0 {
		m.synced = true
		return nil
	}
	all := make([]int64, 2+len(m.state.numbers))
	if g.Rank() == int(-who[0]) {
		all[0], all[1] = int64(m.state.flag()), int64(math.Float64bits(m.state.bound))
		for i, v := range m.state.numbers {
			all[2+i] = int64(math.Float64bits(v))
		}
	}
	if err := g.Reduce(ctx, allreduce.Vector{Op: allreduce.Sum, Int64: all}); err != nil {
		return err
	}
	m.state.rounds, m.state.converged, m.state.bound = newest, all[0] == 1, math.Float64frombits(uint64(all[1]))
	for i := range m.state.numbers {
		m.state.numbers[i] = math.Float64frombits(uint64(all[2+i]))
	}
	m.synced = true
	return nil
}

var errOtherIteration = errors.New("members do not run the same iteration: what a program asks for must follow from its arguments alone")

// identity is the same for members of the same iteration.
func (m *member) identity() int64 {
	return int64(xxh3.HashString(fmt.Sprintf("%q %d %d %d %d %d %v", m.f.name, len(m.state.numbers), m.f.sums, m.total, m.f.rounds, m.f.checkpoint, m.f.quantum)))
}

// round does one round.
func (m *member) round(ctx context.Context, g *timedGroup, a *adder) error {
	begun, waited := time.Now(), g.waited
	r := Round{Number: m.state.rounds + 1, State: m.state.numbers, Splits: m.total}
	copy(m.next, m.state.numbers)
	err := forEach(ctx, m.e.opts.Workers, len(m.shares), func(i int) error {
		s := &m.shares[i]
		sums := m.vecs[i]
		clear(sums)
		r := r
		r.Split = s.number
		err := m.it.round(r, s.kept, sums)
		if err == nil {
			err = finiteSums(sums)
		}
		if err != nil {
			return fmt.Errorf("round %d, %s: %w", r.Number, s.text(m.e.plan), err)
		}
		m.e.moved.Add(1) // a long round is not stuck
		return nil
	})
	if err == nil && !equalBits(m.next, m.state.numbers) {
		// It depends on chance which splits saw that, and in what order.
		copy(m.state.numbers, m.next)
		err = fmt.Errorf("round %d: %w", r.Number, &permanent{errors.New("the state was changed by Round, which may only read it; Update makes the next one")})
	}
	if err != nil {
		return err
	}
	bound, err := a.add(ctx, m.vecs, m.sums)
	if g.broke != nil {
		return g.broke
	}
	if err != nil {
		return fmt.Errorf("round %d: %w", r.Number, err)
	}
	r.Split = -1
	done, err := m.it.update(r, m.next, m.sums)
	if err == nil {
		err = noNaN(m.next)
	}
	if err != nil {
		return fmt.Errorf("round %d, Update: %w", r.Number, err)
	}
	m.state.numbers, m.next = m.next, m.state.numbers
	m.state.rounds, m.state.converged, m.state.bound = r.Number, done, max(m.state.bound, bound)
	m.count(RoundTime{Took: time.Since(begun), Waiting: g.waited - waited})
	m.gang.say(iterationProgress{Round: r.Number, Rounds: m.f.limit(), Change: change(m.next, m.state.numbers)})
	return nil
}

func equalBits(a, b []float64) bool {
	for i, v := range a {
		if math.Float64bits(v) != math.Float64bits(b[i]) {
			return false
		}
	}
	return true
}

// change is how far the number that moved most has moved.
func change(from, to []float64) float64 {
	most := 0.0
	for i, v := range to {
		most = max(most, math.Abs(v-from[i]))
	}
	return most
}

// count takes the time of a round.
func (m *member) count(t RoundTime) {
	m.working += t.Took
	m.waiting += t.Waiting
	if len(m.times) < keptTimes {
		m.times = append(m.times, t)
	} else {
		m.times[m.counted%keptTimes] = t
	}
	m.counted++
}

// brokenError is the error of a group, after which another one may be formed.
type brokenError struct{ error }

func (b *brokenError) Unwrap() error { return b.error }

// timedGroup is a group that knows how long its calls took, and why it broke.
type timedGroup struct {
	allreduce.Group
	waited time.Duration
	broke  error
}

func (g *timedGroup) Reduce(ctx context.Context, v allreduce.Vector) error {
	begun := time.Now()
	err := g.Group.Reduce(ctx, v)
	g.waited += time.Since(begun)
	if err != nil {
		g.broke = &brokenError{err}
		return g.broke
	}
	return nil
}

func (g *timedGroup) max(ctx context.Context, v []int64) error {
	return g.Reduce(ctx, allreduce.Vector{Op: allreduce.Max, Int64: v})
}
