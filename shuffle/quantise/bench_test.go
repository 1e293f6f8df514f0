// SPDX-License-Identifier: Apache-2.0

package quantise_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/quantise"
)

// alone is a group of one, whose sums are its own values.
type alone struct{}

func (alone) Rank() int                                      { return 0 }
func (alone) Size() int                                      { return 1 }
func (alone) Reduce(context.Context, allreduce.Vector) error { return nil }
func (alone) Close() error                                   { return nil }

// calls are all sums, by name, of that many values.
func calls(n int) map[string]func(rule quantise.Rule) error {
	r := quantise.NewReducer(alone{})
	wide, narrow, half := make([]float64, n), make([]float32, n), make([]uint16, n)
	for i := range n {
		wide[i] = rand.NormFloat64()
		narrow[i] = float32(wide[i])
		half[i] = quantise.ToBFloat16(narrow[i])
	}
	out, vecs, f := make([]float64, n), [][]float64{wide}, &quantise.Feedback{}
	ctx := context.Background()
	return map[string]func(rule quantise.Rule) error{
		"float64":           func(rule quantise.Rule) error { _, err := r.Float64(ctx, vecs, out, rule); return err },
		"float32":           func(rule quantise.Rule) error { _, err := r.Float32(ctx, narrow, nil, rule); return err },
		"float32, feedback": func(rule quantise.Rule) error { _, err := r.Float32(ctx, narrow, f, rule); return err },
		"bfloat16":          func(rule quantise.Rule) error { _, err := r.BFloat16(ctx, half, nil, rule); return err },
		"max of float64":    func(quantise.Rule) error { return r.MinMax64(ctx, allreduce.Max, wide) },
		"max of float32":    func(quantise.Rule) error { return r.MinMax32(ctx, allreduce.Max, narrow) },
	}
}

func TestCallsAllocateNothing(t *testing.T) {
	for name, call := range calls(1000) {
		for _, rule := range []quantise.Rule{{}, {Quantum: 0x1p-20, Measure: true, NonFinite: quantise.Count}} {
			var err error
			if n := testing.AllocsPerRun(10, func() { err = call(rule) }); n != 0 || err != nil {
				t.Errorf("%s: %v allocations, error %v", name, n, err)
			}
		}
	}
}

// Quantising and back, without the sum itself.
func BenchmarkQuantise(b *testing.B) {
	const n = 1 << 16
	for name, call := range calls(n) {
		for rules, rule := range map[string]quantise.Rule{"scales": {}, "fixed": {Quantum: 0x1p-20}} {
			b.Run(name+"/"+rules, func(b *testing.B) {
				for b.Loop() {
					if err := call(rule); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/value")
			})
		}
	}
}
