// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/push"
)

// TestChaos gathers random jobs while servers go and come back, targets are taken away, and
// outputs are damaged or dropped; what is lost is made again somewhere.
func TestChaos(t *testing.T) {
	seeds := uint64(3)
	if long() {
		seeds = 60
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaos(t, seed) })
	}
}

func chaos(t *testing.T, seed uint64) {
	ctx := testContext(t)
	rng := rand.New(rand.NewPCG(seed, 99))
	s := settings{push: push.Options{Retry: 200 * time.Millisecond, Stall: 2 * time.Second}, options: Options{Stall: 5 * time.Second}}
	ws := []*worker{start(t, "a", s), start(t, "b", s), start(t, "c", s)}
	maps := 4 + rng.IntN(5)
	pull := rng.IntN(2) == 0
	var j *testJob
	if pull {
		j = groups(rng, 2, maps, 5000, 200)
	} else {
		j = words(2, maps, 10_000)
	}

	// Where each output is, and how often it was made.
	var mu sync.Mutex
	at := make([]*worker, maps)
	made := make([]uint32, maps)
	outs := make([]Output, maps)
	for m := range maps {
		at[m] = ws[rng.IntN(3)]
		outs[m] = j.keep(t, at[m], m, 0)
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { // ws[0] gathers, and its own server goes too
		rng := rand.New(rand.NewPCG(seed, 100))
		for range 4 {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(rng.IntN(60)) * time.Millisecond):
			}
			w := ws[rng.IntN(3)]
			switch rng.IntN(4) {
			case 0:
				w.cut()
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
				w.mend()
			case 1:
				ws[0].x.mu.Lock()
				var ids []shuffle.JobID
				for id := range ws[0].x.jobs {
					ids = append(ids, id)
				}
				ws[0].x.mu.Unlock()
				for _, id := range ids {
					if err := ws[0].receiver.DropTarget(ctx, shuffle.TargetID{Job: id, Partition: uint32(rng.IntN(2)), Generation: 1<<32 - 1}); err != nil {
						t.Error(err)
					}
				}
			case 2:
				m := rng.IntN(maps)
				mu.Lock()
				damage(t, at[m], Output{Attempt: j.attempt(m, made[m])})
				mu.Unlock()
			case 3:
				if err := w.x.Drop(j.id()); err != nil {
					t.Error(err)
				}
			}
		}
	})
	var gathers sync.WaitGroup
	for p := range uint32(2) {
		in := j.input(p, outs, func(m int) *worker { return at[m] })
		in.Pull = pull
		g := j.gather(t, in)
		g.Memory = int64(rng.IntN(8)) << 20
		moved := make(chan *api.MapOutput, 100)
		g.Moved = moved
		g.Lost = func(l *api.OutputLost) {
			mu.Lock()
			defer mu.Unlock()
			m := int(l.MapTask)
			if (l.Gone || l.Damaged) && l.Output.GetNumber() == made[m] {
				made[m]++
				at[m] = ws[(m+int(made[m]))%3]
				o, err := j.write(t.TempDir(), m, made[m])
				if err == nil {
					err = at[m].x.Keep(o)
				}
				if err != nil {
					t.Error(err)
				}
			}
			// Both parts may have lost it, and it is made again once.
			if l.Output.GetNumber() != made[m] {
				o := at[m].has(Output{Attempt: j.attempt(m, made[m]), Parts: outs[m].Parts}, p)
				select {
				case moved <- o:
				default:
				}
			}
		}
		gathers.Go(func() {
			got, err := ws[0].x.Gather(ctx, g)
			if err == nil && pull {
				err = j.checkGrouped(got, int(p), "", "")
			} else if err == nil {
				err = j.checkFolded(got, int(p))
			}
			if err != nil {
				t.Errorf("seed %d, part %d, pull %v: %v", seed, p, pull, err)
			}
		})
	}
	gathers.Wait()
	close(stop)
	beside.Wait()
}
