// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/quernmr/quern/shuffle/allreduce"
)

func BenchmarkAdder(b *testing.B) {
	const shares, sums = 16, 100_000
	vecs := make([][]float64, shares)
	for i := range vecs {
		vecs[i] = make([]float64, sums)
		for j := range vecs[i] {
			vecs[i][j] = math.Sin(float64(i * j))
		}
	}
	out := make([]float64, sums)
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			a := newAdder(allreduce.Local(1)[0], &iterationFacts{sums: sums}, workers, shares, shares)
			b.SetBytes(8 * shares * sums)
			for b.Loop() {
				if _, err := a.add(context.Background(), vecs, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	// Several members, each with a part of the splits, would do the same.
	b.Run("2 members", func(b *testing.B) {
		ends := allreduce.Local(2)
		var as [2]*adder
		for i, g := range ends {
			as[i] = newAdder(g, &iterationFacts{sums: sums}, 1, shares/2, shares)
		}
		outs := [2][]float64{out, make([]float64, sums)}
		b.SetBytes(8 * shares * sums)
		for b.Loop() {
			err := forEach(context.Background(), 2, 2, func(i int) error {
				_, err := as[i].add(context.Background(), vecs[i*shares/2:(i+1)*shares/2], outs[i])
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
