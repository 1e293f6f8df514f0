// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/quernmr/quern/shuffle/fold"
)

// randomFold makes a job of any shape: lanes, operations, digits after the point, keys of all
// lengths, sums beyond 64 bits.
func randomFold(rng *rand.Rand, parts, maps int) *testJob {
	lanes := 1 + rng.IntN(6)
	var ops []fold.Op
	for range lanes {
		ops = append(ops, fold.Op(rng.IntN(int(fold.Xor)+1)))
	}
	if rng.IntN(2) == 0 {
		for i := range ops {
			ops[i] = fold.Sum
		}
	}
	j := newJob(parts, ops...)
	scaled := rng.IntN(2) == 0
	wide := uint(rng.IntN(75)) // bits of the largest value
	space := 1 + rng.IntN(3000)
	for range maps {
		var scale []uint8
		if scaled && rng.IntN(4) > 0 {
			scale = make([]uint8, lanes)
			for i, op := range ops {
				if op <= fold.Max {
					scale[i] = uint8(rng.IntN(4))
				}
			}
		}
		if scaled {
			j.scales = append(j.scales, scale)
		}
		var out []map[string]value
		for p := range parts {
			part := map[string]value{}
			for range rng.IntN(2 * space) {
				k := rng.IntN(space)
				key := fmt.Sprintf("%d-%d", p, k)
				switch {
				case k == 0 && p == 0:
					key = ""
				case k%7 == 3:
					key = fmt.Sprintf("%-*s|", k%200, key)
				case k%500 == 9:
					key = fmt.Sprintf("%-20000s|", key)
				}
				v := make(value, lanes)
				for i, op := range ops {
					bits := wide
					if op != fold.Sum {
						bits = min(bits, 50) // room for three digits more
					}
					v[i] = new(big.Int).SetUint64(rng.Uint64())
					v[i].Mul(v[i], new(big.Int).SetUint64(rng.Uint64())).Rsh(v[i], 128-bits)
					if rng.IntN(2) == 0 {
						v[i].Neg(v[i])
					}
					if (op == fold.Min || op == fold.Max) && rng.IntN(8) == 0 {
						v[i] = big.NewInt(op.Identity())
					}
				}
				part[key] = v
			}
			out = append(out, part)
		}
		j.outputs = append(j.outputs, out)
	}
	return j
}

func long() bool { return os.Getenv("QUERN_LONG") != "" }

// TestRandomFolds gathers random jobs by push, and those of one partition also by pull, in ranges
// as a total order has them; all must be what plain arithmetic says.
func TestRandomFolds(t *testing.T) {
	ws := []*worker{start(t, "a", settings{}), start(t, "b", settings{}), start(t, "c", settings{})}
	seeds := uint64(12)
	if long() {
		seeds = 200
	}
	for seed := range seeds {
		ctx := testContext(t)
		rng := rand.New(rand.NewPCG(seed, 77))
		parts := 1 + rng.IntN(3)
		j := randomFold(rng, parts, 1+rng.IntN(7))
		shift := rng.IntN(3)
		where := func(m int) *worker { return ws[(m+shift)%3] }
		var outs []Output
		for m := range j.outputs {
			outs = append(outs, j.keep(t, where(m), m, 0))
		}
		for p := range uint32(parts) {
			in := j.input(p, outs, where)
			got, err := ws[0].x.Gather(ctx, j.gather(t, in))
			if err == nil {
				err = j.checkFolded(got, int(p))
			}
			if err != nil {
				t.Fatalf("seed %d, ops %v, part %d: %v", seed, j.ops, p, err)
			}
			if n := got.Counts.User; got.Folded && (n < in.Pairs || got.Counts.Kernel+got.Counts.Pulled != 0) || !got.Folded && got.Counts != (Counts{Pulled: in.Pairs}) {
				t.Errorf("seed %d: %+v for %d pairs", seed, got.Counts, in.Pairs)
			}
		}
		if parts > 1 {
			continue
		}
		j.constants.Parts = 4
		cuts := []string{"", "0-2", "0-55", "0-7", ""}
		pulled := int64(0)
		for p := range uint32(4) {
			in := j.input(p, outs, where)
			in.Pull, in.Low, in.High = true, []byte(cuts[p]), []byte(cuts[p+1])
			g := j.gather(t, in)
			g.Memory = int64(rng.IntN(16)) << 20
			got, err := ws[1].x.Gather(ctx, g)
			if err == nil {
				err = j.checkRange(got, 0, cuts[p], cuts[p+1])
			}
			if err != nil {
				t.Fatalf("seed %d, ops %v, range %d: %v", seed, j.ops, p, err)
			}
			pulled += got.Counts.Pulled
			if p == 3 && pulled != in.Pairs {
				t.Errorf("seed %d: %d pairs in all ranges, want %d", seed, pulled, in.Pairs)
			}
		}
	}
}
