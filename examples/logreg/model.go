// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/quernmr/quern/mapreduce"
)

// settings say what is learned from which fields, and how.
type settings struct {
	label  int   // the field that is 0 or 1, from 1
	fields []int // those that it is told from

	batches int     // an epoch's steps; 1: each is made of all rows
	epochs  int     // at most
	rate    float64 // how far the first epoch's steps go
	decay   float64 // in epoch e, from 0, they go rate / (1 + decay x e)
	ridge   float64 // weight of half the square of the weights, but for the bias, in the loss
	enough  float64 // the last epoch is the one that makes the loss less by no more than this; below 0: there is no such
	quantum float64 // gradients are sums of multiples of it; 0: as fine as they can be
}

// The state has the bias, the weights, and then what the last evaluation found.
const (
	stateLoss     = iota // after bias and weights
	stateAccuracy        // share of rows whose label is what the model thinks more likely
	stateRows
	stateExtra
)

// The sums of a round have the gradient of bias and weights, and then:
const (
	sumRows = iota // of the batch, or all
	sumLoss
	sumRight
	sumExtra
)

// rows are those of a split.
type rows struct {
	x      []float64 // features, one row after another
	y      []float64 // labels
	offset []uint64  // of the row in its file: what it is told from others by

	// The batches of one epoch: order has the rows of batch b from first[b] to first[b+1]. They follow from the
	// rows, so who has loaded them anew makes the same.
	epoch        int // -1: of none
	order, first []int32
}

// maxBatches is how many batches an epoch may have: every split has a list of their beginnings.
const maxBatches = 1 << 20

// iteration makes the training. An epoch is a round for each batch and one that evaluates.
func iteration(s settings) (*mapreduce.Iteration[*rows], error) {
	switch {
	case len(s.fields) == 0:
		return nil, errors.New("no fields: name those that the label is told from")
	case s.label < 1 || slices.Min(s.fields) < 1:
		return nil, errors.New("the first field is 1")
	case slices.Contains(s.fields, s.label):
		return nil, fmt.Errorf("field %d is the label and cannot be what it is told from", s.label)
	case s.batches < 1 || s.epochs < 1 || s.batches > maxBatches:
		return nil, fmt.Errorf("%d epochs of %d batches: want at least 1 of each, and %d batches at most", s.epochs, s.batches, maxBatches)
	case !(s.rate > 0) || !(s.decay >= 0) || !(s.ridge >= 0):
		return nil, fmt.Errorf("rate %v, decay %v, ridge %v: the rate must be above 0, and none of the others below", s.rate, s.decay, s.ridge)
	}
	weights := 1 + len(s.fields)
	return &mapreduce.Iteration[*rows]{
		Name: "logreg",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (*rows, error) {
			return load(records, s)
		},
		Start: func() ([]float64, error) {
			state := make([]float64, weights+stateExtra)
			state[weights+stateLoss] = math.Inf(1)
			return state, nil
		},
		Sums: weights + sumExtra,
		Round: func(r mapreduce.Round, data *rows, sums []float64) error {
			if epoch, batch := s.step(r.Number); batch < s.batches {
				data.descend(r.State[:weights], epoch, batch, s.batches, sums)
			} else {
				data.evaluate(r.State[:weights], sums[weights:])
			}
			return nil
		},
		Update: func(r mapreduce.Round, state, sums []float64) (bool, error) {
			epoch, batch := s.step(r.Number)
			w, found, total := state[:weights], state[weights:], sums[weights:]
			if batch < s.batches {
				s.walk(w, sums[:weights], total[sumRows], epoch)
				return false, nil
			}
			if total[sumRows] == 0 {
				return false, errors.New("the input has no rows")
			}
			loss := total[sumLoss]/total[sumRows] + s.penalty(w)
			if math.IsInf(loss, 0) || math.IsNaN(loss) {
				return false, errors.New("the loss grows beyond all measure: take a smaller rate")
			}
			better := found[stateLoss] - loss
			found[stateLoss], found[stateAccuracy], found[stateRows] = loss, total[sumRight]/total[sumRows], total[sumRows]
			return s.enough >= 0 && better <= s.enough, nil
		},
		Rounds:     s.epochs * (s.batches + 1),
		Checkpoint: s.batches + 1,
		Quantum:    s.quantum,
		Rows: func(state []float64, yield func(string, ...float64)) error {
			yield("bias", state[0])
			for i, f := range s.fields {
				yield(fmt.Sprintf("x%d", f), state[1+i])
			}
			yield("loss", state[weights+stateLoss])
			yield("accuracy", state[weights+stateAccuracy])
			return nil
		},
		KeyColumn: "what",
	}, nil
}

// step says which epoch a round is of, from 0, and which batch's turn it is. One beyond the last batch
// stands for the evaluation.
func (s settings) step(round int) (epoch, batch int) {
	return (round - 1) / (s.batches + 1), (round - 1) % (s.batches + 1)
}

// batchOf says which batch of an epoch a row belongs to. Every process works that out for its own rows: no list
// of batches has to be made or sent, and each epoch has other ones.
func batchOf(offset uint64, epoch, batches int) int {
	h := mix(offset + mix(uint64(epoch)+1))
	return int(h % uint64(batches))
}

// mix makes of a number one that looks like any other (the last steps of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// load reads rows. A first line of a file that is none is its header.
func load(records iter.Seq[mapreduce.Record], s settings) (*rows, error) {
	data := &rows{epoch: -1}
	line := make([][]byte, max(s.label, slices.Max(s.fields)))
	x := make([]float64, len(s.fields))
	for rec := range records {
		if len(rec.Value) == 0 {
			continue
		}
		y, err := parse(rec.Value, s, line, x)
		if err != nil && rec.Offset == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		data.x = append(data.x, x...)
		data.y = append(data.y, y)
		data.offset = append(data.offset, uint64(rec.Offset))
	}
	return data, nil
}

// parse reads a row. It uses line for its fields.
func parse(text []byte, s settings, line [][]byte, x []float64) (y float64, err error) {
	rest, n := text, 0
	for more := true; more && n < len(line); n++ {
		line[n], rest, more = bytes.Cut(rest, []byte(","))
	}
	if n < len(line) {
		return 0, fmt.Errorf("%d fields in %q: want %d", n, text, len(line))
	}
	number := func(f int) (float64, error) {
		x, err := strconv.ParseFloat(string(bytes.TrimSpace(line[f-1])), 64)
		if err == nil && (math.IsNaN(x) || math.IsInf(x, 0)) {
			err = errors.New("a number must be finite")
		}
		if err != nil {
			return 0, fmt.Errorf("field %d, %q: %w", f, line[f-1], err)
		}
		return x, nil
	}
	for i, f := range s.fields {
		if x[i], err = number(f); err != nil {
			return 0, err
		}
	}
	y, err = number(s.label)
	if err == nil && y != 0 && y != 1 {
		err = fmt.Errorf("field %d, %q: the label is to be 0 or 1", s.label, line[s.label-1])
	}
	return y, err
}

// score is what the model says of a row: above 0, that its label is 1. Products are rounded before
// they are added, so that no machine makes one step of two.
func score(w, x []float64) float64 {
	sum := w[0]
	for i, x := range x {
		sum += float64(w[1+i] * x)
	}
	return sum
}

// divide puts the rows in the batches of an epoch.
func (r *rows) divide(epoch, batches int) {
	if r.epoch == epoch {
		return
	}
	r.epoch = epoch
	r.order, r.first = make([]int32, len(r.y)), make([]int32, batches+1)
	of := make([]int32, len(r.y))
	for i, offset := range r.offset {
		of[i] = int32(batchOf(offset, epoch, batches))
		r.first[of[i]+1]++
	}
	for b := range batches {
		r.first[b+1] += r.first[b]
	}
	next := slices.Clone(r.first)
	for i, b := range of {
		r.order[next[b]] = int32(i)
		next[b]++
	}
}

// descend adds up the gradient of the loss over the rows of a batch.
func (r *rows) descend(w []float64, epoch, batch, batches int, sums []float64) {
	r.divide(epoch, batches)
	features := len(w) - 1
	mine := r.order[r.first[batch]:r.first[batch+1]]
	for _, i := range mine {
		x := r.x[int(i)*features:][:features]
		off := 1/(1+math.Exp(-score(w, x))) - r.y[i]
		sums[0] += off
		for j, x := range x {
			sums[1+j] += float64(off * x)
		}
	}
	sums[len(w)+sumRows] = float64(len(mine))
}

// walk makes a step against the mean gradient of a batch.
func (s settings) walk(w, gradient []float64, rows float64, epoch int) {
	if rows == 0 {
		return // a batch may be empty where rows are few
	}
	rate := s.rate / (1 + float64(s.decay*float64(epoch)))
	for j := range w {
		g := gradient[j] / rows
		if j > 0 {
			g += float64(s.ridge * w[j])
		}
		w[j] -= float64(rate * g)
	}
}

// evaluate adds up the loss of all rows, and counts them and those that the model is right about.
func (r *rows) evaluate(w, sums []float64) {
	features := len(w) - 1
	for i, y := range r.y {
		m := score(w, r.x[i*features:][:features])
		sums[sumRows]++
		if (m > 0) == (y == 1) {
			sums[sumRight]++
		}
		if y == 1 {
			m = -m
		}
		// log(1 + e^m), without e^m for large m
		sums[sumLoss] += max(m, 0) + math.Log1p(math.Exp(-math.Abs(m)))
	}
}

// penalty is the part of the loss that keeps weights small.
func (s settings) penalty(w []float64) float64 {
	sum := 0.0
	for _, w := range w[1:] {
		sum += float64(w * w)
	}
	return s.ridge / 2 * sum
}
