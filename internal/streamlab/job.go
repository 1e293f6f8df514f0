// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
)

// Job is a random job: what each map task puts out for each partition, every key
// once. It depends on the seed alone.
type Job struct {
	Seed       uint64
	Spec       shuffle.JobSpec
	Maps       int
	Partitions int
	Keys       int                    // distinct keys that pairs are drawn from
	Output     [][]map[string][]int64 // by map task, then partition
	shape      string
}

// String describes the job in one line, for the log of a run that failed.
func (j *Job) String() string {
	ops := make([]string, len(j.Spec.Ops))
	for i, op := range j.Spec.Ops {
		ops[i] = op.String()
		if j.Spec.Bound != nil && j.Spec.Bound[i] {
			ops[i] += "(bounded)"
		}
	}
	return fmt.Sprintf("seed %d: %d map tasks, %d partitions, %d keys (%s), lanes %s",
		j.Seed, j.Maps, j.Partitions, j.Keys, j.shape, strings.Join(ops, " "))
}

// Size bounds a random job.
type Size struct {
	Maps, Partitions, Keys, Pairs int // the most of each; pairs per map task
}

// NewJob draws a job.
func NewJob(seed uint64, size Size) *Job {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	j := &Job{
		Seed:       seed,
		Maps:       1 + rng.IntN(size.Maps),
		Partitions: 1 + rng.IntN(size.Partitions),
		Keys:       1 + int(float64(size.Keys)*math.Pow(rng.Float64(), 2)),
	}
	binary.LittleEndian.PutUint64(j.Spec.ID[:], seed)
	binary.LittleEndian.PutUint64(j.Spec.ID[8:], rng.Uint64())
	binary.LittleEndian.PutUint64(j.Spec.Secret[:], rng.Uint64())
	binary.LittleEndian.PutUint64(j.Spec.Secret[8:], rng.Uint64())
	j.Spec.Seed = pairs.Seed{A: rng.Uint64(), B: rng.Uint64()}
	lanes := 1 + rng.IntN(4)
	for range lanes {
		j.Spec.Ops = append(j.Spec.Ops, fold.Op(rng.IntN(6)))
	}
	narrow := rng.IntN(2) == 0
	if narrow || rng.IntN(2) == 0 {
		j.Spec.Bound = make([]bool, lanes)
		for i := range j.Spec.Bound {
			j.Spec.Bound[i] = narrow || rng.IntN(2) == 0
		}
	}
	keyOf := j.drawKeys(rng)
	zipf := rng.IntN(2) == 0
	var draw func() uint64
	if zipf {
		j.shape += ", zipf"
		z := rand.NewZipf(rng, 1.01+rng.Float64(), 1, uint64(j.Keys-1))
		draw = z.Uint64
	} else {
		j.shape += ", uniform"
		draw = func() uint64 { return rng.Uint64N(uint64(j.Keys)) }
	}
	j.Output = make([][]map[string][]int64, j.Maps)
	for m := range j.Output {
		j.Output[m] = make([]map[string][]int64, j.Partitions)
		for p := range j.Output[m] {
			j.Output[m][p] = map[string][]int64{}
		}
		n := rng.IntN(size.Pairs + 1)
		for range n {
			key := keyOf(draw())
			v := make([]int64, lanes)
			for i := range v {
				v[i] = j.value(rng, i, narrow)
			}
			part := pairs.Partition(pairs.FixedSeed.HashBytes([]byte(key)), j.Partitions)
			out := j.Output[m][part]
			old, ok := out[key]
			if !ok {
				out[key] = v
				continue
			}
			// The map side combines; it may only do so where a sum does not overflow.
			for i, op := range j.Spec.Ops {
				sum := op.Apply(old[i], v[i])
				if op == fold.Sum && (old[i]^sum)&(v[i]^sum) < 0 {
					continue
				}
				old[i] = sum
			}
		}
	}
	return j
}

// value draws a value that keeps the promise of a bounded lane.
func (j *Job) value(rng *rand.Rand, lane int, narrow bool) int64 {
	if narrow {
		return int64(int16(rng.Uint32()))
	}
	sum := j.Spec.Ops[lane] == fold.Sum
	if sum && j.Spec.Bound != nil && j.Spec.Bound[lane] {
		return int64(int32(rng.Uint32()))
	}
	switch rng.IntN(8) {
	case 0:
		return math.MaxInt64
	case 1:
		return math.MinInt64
	case 2:
		return int64(rng.IntN(3)) - 1
	default:
		return int64(rng.Uint64())
	}
}

// drawKeys chooses what keys look like and returns the key of a number.
func (j *Job) drawKeys(rng *rand.Rand) func(uint64) string {
	salt := rng.Uint64()
	least, most := 0, 200
	switch rng.IntN(4) {
	case 0:
		least, most, j.shape = 1, 8, "keys of 1 to 8 bytes"
	case 1:
		least, most, j.shape = 0, 32, "keys of 0 to 32 bytes"
	case 2:
		least, most, j.shape = 0, 64, "keys of 0 to 64 bytes"
	default:
		j.shape = "keys of 0 to 200 bytes"
	}
	return func(n uint64) string {
		r := rand.New(rand.NewPCG(n, salt))
		b := make([]byte, least+r.IntN(most-least+1))
		for i := range b {
			// Zeros are frequent, since padding is made of them.
			if n := r.Uint32(); n%4 > 0 {
				b[i] = byte(n >> 8)
			}
		}
		return string(b)
	}
}

// Result is what a job comes to: the exact value of each lane per key.
type Result map[string][]*big.Int

// Want works a partition out in plain arithmetic.
func (j *Job) Want(partition int) Result {
	want := Result{}
	for _, parts := range j.Output {
		for key, v := range parts[partition] {
			w, ok := want[key]
			if !ok {
				w = make([]*big.Int, len(v))
				for i := range w {
					w[i] = big.NewInt(v[i])
				}
				want[key] = w
				continue
			}
			for i, op := range j.Spec.Ops {
				if op == fold.Sum {
					w[i].Add(w[i], big.NewInt(v[i]))
				} else {
					w[i].SetInt64(op.Apply(w[i].Int64(), v[i]))
				}
			}
		}
	}
	return want
}

// Overflows says whether a sum of the partition does not fit 64 bits, which a
// receiver has to report.
func (r Result) Overflows() bool {
	for _, lanes := range r {
		for _, v := range lanes {
			if !v.IsInt64() {
				return true
			}
		}
	}
	return false
}
