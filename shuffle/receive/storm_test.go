// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
)

// TestGenerationStorm has targets of several jobs begun anew, reset, finished and
// dropped while their streams are pushed. Whatever is finished at last must be right,
// maxima included, of which the audit sees only counts, and all that was taken is given back.
func TestGenerationStorm(t *testing.T) {
	rounds := 3
	if os.Getenv("QUERN_LONG") != "" {
		rounds = 200
	}
	k := newFakeKernel(t, 2, nil)
	k.slow = 2 * time.Millisecond
	o := k.options(Options{Readers: 2, TableBits: 10, TableMemory: 1 << 20, FoldMemory: 2 << 20})
	r := testReceiver(t, o)
	links := k.links(t)
	for round := range rounds {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var wg sync.WaitGroup
		for n := range 3 {
			rng := rand.New(rand.NewPCG(uint64(round), uint64(n)))
			job := newJob(rng, []fold.Op{fold.Max, fold.Sum}[n%2])
			l := []link{links(), links(), links()}
			wg.Go(func() {
				if err := storm(ctx, rng, r, job, l); err != nil {
					t.Errorf("round %d, job %d: %v", round, n, err)
				}
			})
		}
		wg.Wait()
		cancel()
		if t.Failed() {
			return
		}
		r.mu.Lock()
		slots, targets := len(r.freeSlots)+len(r.staleSlots), len(r.freeTargets)
		free := r.slots.TryAcquire(int64(len(r.mem.Streams)))
		r.mu.Unlock()
		if free {
			r.slots.Release(int64(len(r.mem.Streams)))
		}
		if slots != len(r.mem.Streams) || targets != len(r.mem.Targets) || !free || r.arena.Used() != 0 || r.folding.Load() != 0 {
			t.Fatalf("round %d: %d slots and %d targets are free (all counted: %v), %d bytes and %d combiners in use",
				round, slots, targets, free, r.arena.Used(), r.folding.Load())
		}
		r.tables.mu.Lock()
		idle := 0
		for _, list := range r.tables.free {
			idle += len(list)
		}
		r.tables.mu.Unlock()
		if idle != len(k.list) {
			t.Fatalf("round %d: %d of %d tables are free", round, idle, len(k.list))
		}
	}
}

func storm(ctx context.Context, rng *rand.Rand, r *Receiver, job *testJob, links []link) error {
	if err := r.OpenJob(ctx, job.spec); err != nil {
		return err
	}
	list := make([][]pair, len(links))
	for m := range list {
		list[m] = randomPairs(rng, 600, 1, 2000, 24, false)
	}
	keys := [5]uint64{uint64(rng.IntN(2)) * 600, 300, 300}
	last := uint32(3 + rng.IntN(4))
	var wg sync.WaitGroup
	for gen := uint32(1); gen <= last; gen++ {
		id := job.target(0, gen)
		if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: id, Keys: keys}); err != nil {
			return err
		}
		outputs := make([]*output, len(list))
		e := Expect{Streams: len(list)}
		errs := make(chan error, len(list))
		for m := range list {
			outputs[m] = job.cut(shuffle.StreamID{Target: id, Map: uint32(m)}, list[m])
			e.Pairs += outputs[m].spec.Pairs
			l := links[m]
			wg.Go(func() { errs <- push(ctx, r, outputs[m], nil, l) })
		}
		if gen < last {
			// Begun anew, perhaps while it is being finished.
			wait := time.Duration(rng.IntN(12)) * time.Millisecond
			if rng.IntN(2) == 0 {
				wg.Go(func() {
					for ctx.Err() == nil {
						res, err := r.Finish(ctx, id, e)
						if err == nil {
							_ = res.Close()
						}
						if !errors.Is(err, ErrIncomplete) {
							return
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			if rng.IntN(2) == 0 {
				r.mu.Lock()
				tg := r.targets[place{job.spec.ID, 0}]
				r.mu.Unlock()
				wg.Go(func() { _ = r.reset(tg, "a test") })
			}
			time.Sleep(wait)
			continue
		}
		for range list {
			if err := <-errs; err != nil {
				return fmt.Errorf("generation %d: %w", gen, err)
			}
		}
		res, err := r.Finish(ctx, id, e)
		if err != nil {
			return err
		}
		want := newOracle(job.spec.Ops)
		for _, l := range list {
			want.add(l)
		}
		if err := errors.Join(want.check(ctx, res), res.Close()); err != nil {
			return err
		}
	}
	err := r.Drop(ctx, job.spec.ID)
	wg.Wait()
	return err
}
