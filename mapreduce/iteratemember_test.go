// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/quantise"
)

// testHub brings members together that run in this process, and has them fail.
type testHub struct {
	mu      sync.Mutex
	rand    *rand.Rand
	odds    int // one event in so many is a fault; 0: none is
	faults  int // that are left
	met     int // faults that there were
	waiting []chan allreduce.Group
	rounds  int // of the state that was kept
	state   []byte
	final   []byte
	trouble []string // what should not have happened
}

func newTestHub(members int, seed uint64, odds, faults int) *testHub {
	return &testHub{rand: rand.New(rand.NewPCG(seed, 1)), odds: odds, faults: faults, waiting: make([]chan allreduce.Group, members)}
}

// fault says which of n faults happens now; -1: none.
func (h *testHub) fault(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.odds == 0 || h.faults == 0 || h.rand.IntN(h.odds) != 0 {
		return -1
	}
	h.faults--
	h.met++
	return h.rand.IntN(n)
}

func (h *testHub) complain(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trouble = append(h.trouble, fmt.Sprintf(format, args...))
}

// end takes what a member came to.
func (h *testHub) end(final []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.final == nil {
		h.final = final
	}
	for i, wake := range h.waiting {
		if wake != nil {
			close(wake)
			h.waiting[i] = nil
		}
	}
}

// testGang is a member's end of a hub.
type testGang struct {
	hub  *testHub
	rank int
	die  context.CancelFunc
}

func (g *testGang) form(ctx context.Context, _ int) (allreduce.Group, error) {
	h := g.hub
	if h.fault(2) == 0 {
		g.die()
	}
	wake := make(chan allreduce.Group, 1)
	h.mu.Lock()
	if h.final != nil {
		h.mu.Unlock()
		return nil, fmt.Errorf("no group: %w", errGangDone)
	}
	h.waiting[g.rank] = wake
	if !slices.Contains(h.waiting, nil) {
		for i, end := range allreduce.Local(len(h.waiting)) {
			h.waiting[i] <- end
			h.waiting[i] = nil
		}
	}
	h.mu.Unlock()
	select {
	case end, ok := <-wake:
		if !ok {
			return nil, fmt.Errorf("no group: %w", errGangDone)
		}
		return &testGroup{end, g}, nil
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.waiting[g.rank] == wake {
			h.waiting[g.rank] = nil
		} else if end := <-wake; end != nil { // it was formed meanwhile
			_ = end.Close()
		}
		return nil, ctx.Err()
	}
}

func (g *testGang) keep(_ context.Context, rounds int, state []byte) error {
	if g.rank != 0 {
		g.hub.complain("member %d keeps a state", g.rank)
	}
	fault := g.hub.fault(3)
	if fault == 0 {
		g.die() // before it is kept
		return nil
	}
	h := g.hub
	h.mu.Lock()
	if rounds <= h.rounds {
		h.trouble = append(h.trouble, fmt.Sprintf("the state of round %d is kept after that of round %d", rounds, h.rounds))
	}
	h.rounds, h.state = rounds, slices.Clone(state)
	h.mu.Unlock()
	if fault == 1 {
		g.die() // thereafter
	}
	return nil
}

func (g *testGang) kept() (int, []byte) {
	g.hub.mu.Lock()
	defer g.hub.mu.Unlock()
	return g.hub.rounds, g.hub.state
}

func (g *testGang) say(iterationProgress) {
	if g.hub.fault(2) == 0 {
		g.die()
	}
}

// testGroup breaks now and then.
type testGroup struct {
	allreduce.Group
	gang *testGang
}

func (g *testGroup) Reduce(ctx context.Context, v allreduce.Vector) error {
	broken := func() error { return fmt.Errorf("test: %w", allreduce.ErrBroken) }
	fault := g.gang.hub.fault(4)
	switch fault {
	case 0: // nobody gets the result
		_ = g.Close()
		return broken()
	case 1:
		g.gang.die()
	}
	err := g.Group.Reduce(ctx, v)
	if err == nil && fault > 1 { // the others have the result, and this one has not
		for i := range v.Int64 {
			v.Int64[i] = -1
		}
		for i := range v.Int32 {
			v.Int32[i] = -1
		}
		if fault == 2 {
			g.gang.die()
		}
		_ = g.Close()
		return broken()
	}
	return err
}

// memberRun is an iteration as tests run it with several members.
type memberRun struct {
	it     iterationCode
	plan   *input.Plan
	shares [][]share // by member
	hub    *testHub
}

// run runs all members, those that die again and again, and returns where they came to.
func (r *memberRun) run(t interface{ Fatal(...any) }, workers int) []*iterationState {
	ends := make([]*iterationState, len(r.shares))
	g, ctx := errgroup.WithContext(context.Background())
	for rank := range r.shares {
		g.Go(func() (err error) {
			if ends[rank], err = r.member(ctx, rank, workers); err != nil {
				err = fmt.Errorf("member %d: %w", rank, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(r.hub.trouble) > 0 {
		t.Fatal(strings.Join(r.hub.trouble, "; "))
	}
	return ends
}

func (r *memberRun) member(ctx context.Context, rank, workers int) (*iterationState, error) {
	all := ctx
	for {
		ctx, die := context.WithCancel(all)
		e := &engine{code: r.it, t: r.it.traits(), opts: Options{Workers: workers}, plan: r.plan, mem: memoryPlan{budget: 1 << 30}}
		m, err := e.newMember(r.it, slices.Clone(r.shares[rank]), len(r.plan.Splits))
		if err == nil {
			err = m.takePart(ctx, &testGang{r.hub, rank, die})
		}
		died := ctx.Err() != nil && all.Err() == nil
		die()
		var final []byte
		switch {
		case died:
			continue // as a process without any memory
		case errors.Is(err, errGangDone):
			final = r.hub.final
		case err != nil:
			return nil, err
		default:
			if final, err = m.final(); err != nil {
				return nil, err
			}
			r.hub.end(final)
		}
		size, err := stateSize(final)
		if err != nil {
			return nil, err
		}
		return decodeState(final[:size])
	}
}

// mixing is an iteration that makes little sense, whose every number depends on all others.
type mixing struct {
	state, sums, rounds, end, checkpoint int
	quantum                              float64
}

func (x mixing) iteration() *Iteration[[]float64] {
	return &Iteration[[]float64]{
		Name: "mixing", Sums: x.sums, Rounds: x.rounds, Checkpoint: x.checkpoint, Quantum: x.quantum,
		Load: func(_ Split, records iter.Seq[Record]) (kept []float64, err error) {
			for rec := range records {
				v, err := strconv.ParseFloat(string(rec.Value), 64)
				if err != nil {
					return nil, err
				}
				kept = append(kept, v)
			}
			return kept, nil
		},
		Start: func() ([]float64, error) {
			s := make([]float64, x.state)
			for i := range s {
				s[i] = 1 / float64(i+3)
			}
			return s, nil
		},
		Round: x.round, Update: x.update,
	}
}

func (x mixing) round(r Round, kept, sums []float64) error {
	for i, v := range kept {
		for j := range sums {
			s := r.State[(i+j)%len(r.State)]
			sums[j] += v*s + float64(r.Split)/(1+s*s)
		}
	}
	return nil
}

func (x mixing) update(r Round, state, sums []float64) (bool, error) {
	for i := range state {
		s := sums[i%len(sums)]
		state[i] = (r.State[(i+1)%len(state)] + s/(1+math.Abs(s)) + float64(r.Number)) / 3
	}
	return r.Number == x.end, nil
}

// serial is what the iteration comes to by its definition: the sums of each split, quantised, added up.
func (x mixing) serial(plan *input.Plan) (*iterationState, error) {
	it := x.iteration()
	state, err := it.Start()
	if err != nil {
		return nil, err
	}
	var kept [][]float64
	e := &engine{plan: plan}
	for i, s := range plan.Splits {
		records := &splitRecords{e: e, ctx: context.Background(), split: s}
		k, err := it.Load(Split{Number: i}, records.each)
		if err != nil || records.err != nil {
			return nil, errors.Join(err, records.err)
		}
		kept = append(kept, k)
	}
	s := &iterationState{numbers: state}
	sums := make([]float64, x.sums)
	for !s.converged && (x.rounds == 0 || s.rounds < x.rounds) {
		s.rounds++
		r := Round{Number: s.rounds, State: slices.Clone(s.numbers), Splits: len(kept)}
		var vecs [][]float64
		for i := range kept {
			r.Split = i
			v := make([]float64, x.sums)
			if err := x.round(r, kept[i], v); err != nil {
				return nil, err
			}
			vecs = append(vecs, v)
		}
		report, err := quantise.Float64(context.Background(), allreduce.Local(1)[0], vecs, sums, quantise.Rule{Terms: len(kept), Quantum: x.quantum, Block: addBlock})
		if err != nil {
			return nil, err
		}
		s.bound = max(s.bound, report.Bound)
		if s.converged, err = x.update(r, s.numbers, sums); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func same(a, b *iterationState) bool {
	return a.rounds == b.rounds && a.converged == b.converged && a.bound == b.bound && slices.Equal(bitsOf(a.numbers), bitsOf(b.numbers))
}

func bitsOf(v []float64) []uint64 {
	b := make([]uint64, len(v))
	for i, x := range v {
		b[i] = math.Float64bits(x)
	}
	return b
}

// numbersFile writes lines of random numbers, and finds splits in them.
func numbersFile(t interface{ Fatal(...any) }, dir string, seed uint64, lines int, splitSize int64) *input.Plan {
	r := rand.New(rand.NewPCG(seed, 2))
	var text []byte
	for range lines {
		text = strconv.AppendFloat(text, r.NormFloat64()*math.Pow(2, float64(r.IntN(40)-20)), 'g', -1, 64)
		text = append(text, '\n')
	}
	path := filepath.Join(dir, "numbers")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	plan, err := input.Discover(context.Background(), []string{path}, input.Options{SplitSize: splitSize})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// The state is the same to the last bit for any number of members and goroutines, any shares, and whatever happens on
// the way.
func TestMembersComeToTheSame(t *testing.T) {
	dir := t.TempDir()
	var met, groups atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		x := mixing{
			state:      rapid.IntRange(1, 20).Draw(t, "state"),
			sums:       rapid.SampledFrom([]int{1, 3, 167, 400}).Draw(t, "sums"),
			rounds:     rapid.IntRange(0, 25).Draw(t, "rounds"),
			end:        rapid.IntRange(1, 25).Draw(t, "end"),
			checkpoint: rapid.IntRange(1, 12).Draw(t, "checkpoint"),
			quantum:    rapid.SampledFrom([]float64{0, 0, 0x1p-20}).Draw(t, "quantum"),
		}
		plan := numbersFile(t, dir, rapid.Uint64().Draw(t, "numbers"), rapid.IntRange(0, 60).Draw(t, "lines"), int64(rapid.IntRange(20, 400).Draw(t, "split size")))
		want, err := x.serial(plan)
		if err != nil {
			t.Fatal(err)
		}
		p, err := x.iteration().compile()
		if err != nil {
			t.Fatal(err)
		}
		members := rapid.IntRange(1, 8).Draw(t, "members")
		shares := make([][]share, members)
		for _, s := range sharesFrom(plan, 0) {
			m := rapid.IntRange(0, members-1).Draw(t, "member")
			shares[m] = append(shares[m], s)
		}
		hub := newTestHub(members, rapid.Uint64().Draw(t, "faults"), rapid.IntRange(2, 60).Draw(t, "odds"), rapid.IntRange(0, 12).Draw(t, "most faults"))
		workers := rapid.IntRange(1, 4).Draw(t, "workers")
		ends := (&memberRun{p, plan, shares, hub}).run(t, workers)
		for i := range ends {
			if !same(ends[i], want) {
				t.Fatalf("member %d has %+v, by definition it is %+v", i, ends[i], want)
			}
		}
		met.Add(int64(hub.met))
		groups.Add(1)
	})
	if met.Load() < groups.Load() {
		t.Errorf("%d faults in %d runs: too few to tell anything", met.Load(), groups.Load())
	}
}

// Members that come to different states say so.
func TestMembersDiverge(t *testing.T) {
	plan := numbersFile(t, t.TempDir(), 1, 30, 100)
	for _, c := range []struct {
		name   string
		change func(it *Iteration[[]float64], other bool)
		want   error
	}{
		{"Update", func(it *Iteration[[]float64], other bool) {
			update := it.Update
			it.Update = func(r Round, state, sums []float64) (bool, error) {
				done, err := update(r, state, sums)
				if other && r.Number == 4 {
					state[0] = math.Nextafter(state[0], 9)
				}
				return done, err
			}
		}, ErrDiverged},
		{"Start", func(it *Iteration[[]float64], other bool) {
			start := it.Start
			it.Start = func() ([]float64, error) {
				s, err := start()
				if other {
					s[1] = -s[1]
				}
				return s, err
			}
		}, ErrDiverged},
		{"done", func(it *Iteration[[]float64], other bool) { // they call with vectors of different lengths then
			it.Update = func(r Round, _, _ []float64) (bool, error) { return other && r.Number == 4, nil }
		}, ErrDiverged},
		{"Rounds", func(it *Iteration[[]float64], other bool) {
			if other {
				it.Rounds++
			}
		}, errOtherIteration},
	} {
		t.Run(c.name, func(t *testing.T) {
			hub := newTestHub(3, 1, 0, 0)
			errs := make([]error, 3)
			var wg sync.WaitGroup
			for rank := range 3 {
				it := mixing{state: 3, sums: 2, rounds: 20, checkpoint: 5}.iteration()
				c.change(it, rank == 1)
				p, err := it.compile()
				if err != nil {
					t.Fatal(err)
				}
				r := &memberRun{p, plan, [][]share{nil, sharesFrom(plan, 0), nil}, hub}
				wg.Go(func() { _, errs[rank] = r.member(context.Background(), rank, 2) })
			}
			wg.Wait()
			for rank, err := range errs {
				if !errors.Is(err, c.want) || !isPermanent(err) {
					t.Errorf("member %d: %v", rank, err)
				}
			}
			if hub.rounds != 0 {
				t.Errorf("the state of round %d was kept", hub.rounds)
			}
		})
	}
}
