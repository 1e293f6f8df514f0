// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
)

// TestRandomJobs folds random jobs in random surroundings, many of them if
// QUERN_LONG is set. A seed that fails is run alone by its name.
func TestRandomJobs(t *testing.T) {
	n := 6
	if os.Getenv("QUERN_LONG") != "" {
		n = 300
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 77))
			ctx := testContext(t)
			var ops []fold.Op
			for range 1 + rng.IntN(4) {
				ops = append(ops, fold.Op(rng.IntN(6)))
			}
			if rng.IntN(4) == 0 {
				ops = []fold.Op{fold.Sum}
			}
			f := faults{drop: .2 * rng.Float64(), double: .2 * rng.Float64(), damage: .1 * rng.Float64(), reorder: float64(rng.IntN(2))}
			o := Options{Readers: 1 + rng.IntN(2), Limits: shuffle.Limits{Streams: 2 + rng.IntN(20)}}
			if rng.IntN(3) == 0 {
				o.FoldMemory = 1
			}
			a := amounts{
				maps: 1 + rng.IntN(5), parts: 1 + rng.IntN(3), pairs: 1 + rng.IntN(4000), keySpace: 50 + rng.IntN(9000),
				longest: []int{8, 16, 64, 200, 2000}[rng.IntN(5)], large: rng.IntN(2) == 0,
			}
			w := newWork(rng, ops, a)
			for i := range w.keys {
				w.keys[i] = uint64(rng.IntN(2) * rng.IntN(a.keySpace))
			}
			var links func() link
			if rng.IntN(3) > 0 {
				k := newFakeKernel(t, 1+rng.IntN(4), nil)
				o.TableBits = 10 + rng.IntN(4)
				if rng.IntN(2) == 0 {
					o.TableMemory = int64(20+rng.IntN(1000)) << 10
				}
				o, links = k.options(o), k.links(t)
			}
			r := testReceiver(t, o)
			if links == nil {
				links = socketLinks(t, r)
			}
			w.open(ctx, t, r)
			w.pushAll(ctx, t, rng, r, f, links)
			all := w.finish(ctx, t, r)
			if t.Failed() || testing.Verbose() {
				t.Logf("%+v %+v %+v", a, all, r.Stats())
			}
		})
	}
}
