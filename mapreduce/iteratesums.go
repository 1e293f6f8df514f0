// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/quantise"
)

// adder adds up the sums of all splits of all members of a group.
type adder struct {
	reducers []*quantise.Reducer // one; or, of a member that is alone, one for each part of the sums
	rule     quantise.Rule
	part     int // sums of a part
}

// addStep is how many values of all splits are worth a goroutine, and addBlock how many sums have a scale
// in common: none, so that a count beside a huge sum keeps all its digits. That costs half as much again to send.
const (
	addStep  = 1 << 15
	addBlock = 1
)

func newAdder(g allreduce.Group, f *iterationFacts, workers, shares, total int) *adder {
	a := &adder{rule: quantise.Rule{Quantum: f.quantum, Block: addBlock, Terms: total}, part: f.sums}
	if parts := min(workers, f.sums*shares/addStep); parts > 1 && g.Size() == 1 {
		a.part = f.sums/parts + 1
		for at := 0; at < f.sums; at += a.part {
			a.reducers = append(a.reducers, quantise.NewReducer(allreduce.Local(1)[0]))
		}
		return a
	}
	a.reducers = []*quantise.Reducer{quantise.NewReducer(g)}
	return a
}

// add sets out to the sums of the vectors of all splits. It returns the bound on the error of each.
func (a *adder) add(ctx context.Context, vecs [][]float64, out []float64) (bound float64, err error) {
	if len(a.reducers) == 1 {
		report, err := a.reducers[0].Float64(ctx, vecs, out, a.rule)
		return report.Bound, sumError(err, 0)
	}
	bounds := make([]float64, len(a.reducers))
	err = forEach(ctx, len(a.reducers), len(a.reducers), func(i int) error {
		from := i * a.part
		to := min(from+a.part, len(out))
		ours := make([][]float64, len(vecs))
		for j, v := range vecs {
			ours[j] = v[from:to]
		}
		report, err := a.reducers[i].Float64(ctx, ours, out[from:to], a.rule)
		bounds[i] = report.Bound
		return sumError(err, from)
	})
	for _, b := range bounds {
		bound = max(bound, b)
	}
	return bound, err
}

// sumError is an error about a sum, of a call whose first sum has that number.
func sumError(err error, from int) error {
	var value *quantise.ValueError
	if !errors.As(err, &value) {
		return err
	}
	return &permanent{&quantise.ValueError{Element: value.Element + from, Member: value.Member, Value: value.Value, Err: value.Err}}
}

// finiteSums says whether the sums of a split can be added.
func finiteSums(sums []float64) error {
	for i, v := range sums {
		if math.Float64bits(v)&(0x7ff<<52) == 0x7ff<<52 {
			return &permanent{fmt.Errorf("number %d of its sums is %v, which can't be added up", i, v)}
		}
	}
	return nil
}
