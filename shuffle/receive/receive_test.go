// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"math/rand/v2"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// work is a job with several parts and maps, and what it must come to.
type work struct {
	job     *testJob
	ops     []fold.Op
	parts   int
	outputs [][]*output // by part
	oracles []*oracle
	expect  []Expect
	keys    [wire.Classes + 1]uint64 // hint for all targets
}

// amounts say how large a work is.
type amounts struct {
	maps, parts, pairs, keySpace, longest int
	large                                 bool
}

func newWork(rng *rand.Rand, ops []fold.Op, a amounts) *work {
	w := &work{job: newJob(rng, ops...), ops: ops, parts: a.parts, expect: make([]Expect, a.parts)}
	for p := range a.parts {
		w.oracles = append(w.oracles, newOracle(ops))
		w.outputs = append(w.outputs, nil)
		w.expect[p].Check = make([]uint64, len(ops))
		for m := range a.maps {
			list := randomPairs(rng, a.pairs, len(ops), a.keySpace, a.longest, a.large)
			w.oracles[p].add(list)
			o := w.job.cut(shuffle.StreamID{Target: w.job.target(uint32(p), 1), Map: uint32(m)}, list)
			w.outputs[p] = append(w.outputs[p], o)
			w.expect[p].Streams++
			w.expect[p].Pairs += o.spec.Pairs
			for i, c := range o.spec.Check {
				w.expect[p].Check[i] += c
			}
		}
	}
	return w
}

func (w *work) open(ctx context.Context, t testing.TB, r *Receiver) {
	t.Helper()
	if err := r.OpenJob(ctx, w.job.spec); err != nil {
		t.Fatal(err)
	}
	for p := range w.parts {
		if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: w.job.target(uint32(p), 1), Keys: w.keys}); err != nil {
			t.Fatal(err)
		}
	}
}

// pushAll pushes everything at the same time.
func (w *work) pushAll(ctx context.Context, t testing.TB, rng *rand.Rand, r *Receiver, f faults, links func() link) {
	t.Helper()
	var g errgroup.Group
	for p := range w.outputs {
		for _, o := range w.outputs[p] {
			mine := f
			mine.rng = rand.New(rand.NewPCG(rng.Uint64(), 1))
			l := links()
			g.Go(func() error { return push(ctx, r, o, &mine, l) })
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// finish finishes all targets, compares them with the oracle and returns their books.
func (w *work) finish(ctx context.Context, t testing.TB, r *Receiver) (all Totals) {
	t.Helper()
	for p := range w.parts {
		res, err := r.Finish(ctx, w.job.target(uint32(p), 1), w.expect[p])
		if err != nil {
			t.Fatal(err)
		}
		if err := w.oracles[p].check(ctx, res); err != nil {
			t.Fatal(err)
		}
		all.Kernel += res.Kernel
		all.User += res.User
		all.Sent += res.Sent
		if err := res.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Drop(ctx, w.job.spec.ID); err != nil {
		t.Fatal(err)
	}
	return all
}

func socketLinks(t testing.TB, r *Receiver) func() link {
	return func() link {
		l, err := dial(r.Port())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
}

var mixed = []fold.Op{fold.Sum, fold.Min, fold.Max, fold.Xor}

func TestUserPath(t *testing.T) {
	for _, c := range []struct {
		name    string
		ops     []fold.Op
		longest int
		memory  int64
		faults  faults
	}{
		{"clean", []fold.Op{fold.Sum}, 40, 0, faults{}},
		{"lossy", []fold.Op{fold.Sum}, 16, 0, faults{drop: .2, double: .1, reorder: 1, damage: .1}},
		{"lanes", mixed, 200, 0, faults{drop: .05, double: .2, reorder: 1}},
		{"manyLanes", append(mixed, fold.Or, fold.And), 2000, 8 << 20, faults{drop: .05}},
		{"tinyMemory", []fold.Op{fold.Sum, fold.Sum}, 60, 1, faults{drop: .05, reorder: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			ctx := testContext(t)
			r := testReceiver(t, Options{Readers: 2, FoldMemory: c.memory})
			a := amounts{maps: 3, parts: 3, pairs: 3000, keySpace: 4000, longest: c.longest, large: true}
			if c.memory == 1 {
				a.pairs, a.keySpace = 8000, 20000
			}
			w := newWork(rng, c.ops, a)
			w.open(ctx, t, r)
			w.pushAll(ctx, t, rng, r, c.faults, socketLinks(t, r))
			all := w.finish(ctx, t, r)
			if all.Kernel != 0 || all.User != all.Sent {
				t.Errorf("books: %+v", all)
			}
			s := r.Stats()
			if s.Streams != 0 {
				t.Errorf("%d streams are open", s.Streams)
			}
			if c.memory == 1 && s.Runs == 0 {
				t.Error("nothing was spilled")
			}
			if used := r.arena.Used(); used != 0 {
				t.Errorf("%d bytes of records are held after the end", used)
			}
			t.Logf("%+v", s)
		})
	}
}
