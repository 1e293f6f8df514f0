// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

const example = "testdata/rows.csv"

// defaults are those of the flags.
var defaults = settings{label: 1, fields: []int{2, 3, 4, 5, 6}, batches: 20, epochs: 50, rate: 2, decay: 1, ridge: 0.001, enough: -1}

func train(t *testing.T, s settings, splits int64, workers int) *mapreduce.IterationResult {
	t.Helper()
	it, err := iteration(s)
	if err != nil {
		t.Fatal(err)
	}
	res, err := mapreduce.Iterate(t.Context(), it, mapreduce.IterateOptions{Options: mapreduce.Options{
		Inputs: []string{example}, Input: input.Options{SplitSize: splits}, Workers: workers,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// floats trains the same model with float64 alone: no splits, nothing rounded to integers, each sum
// made in one go over the rows. It shares with the example which batch a row belongs to and nothing else.
func floats(t *testing.T, s settings) (w []float64, loss, accuracy float64) {
	t.Helper()
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	records := csv.NewReader(bytes.NewReader(text))
	var x [][]float64
	var y []float64
	var at []uint64
	for {
		offset := records.InputOffset()
		rec, err := records.Read()
		if err != nil {
			break
		}
		row := []float64{1}
		for _, field := range rec[1:] {
			v, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatal(err)
			}
			row = append(row, v)
		}
		x, y, at = append(x, row), append(y, float64(rec[0][0]-'0')), append(at, uint64(offset))
	}
	if len(x) != 3000 {
		t.Fatalf("%d rows", len(x))
	}
	dot := func(a, b []float64) (sum float64) {
		for i := range a {
			sum += a[i] * b[i]
		}
		return sum
	}
	w = make([]float64, len(x[0]))
	for epoch := range s.epochs {
		for batch := range s.batches {
			gradient, n := make([]float64, len(w)), 0.0
			for i := range x {
				if batchOf(at[i], epoch, s.batches) != batch {
					continue
				}
				p := 0.5 * (1 + math.Tanh(dot(w, x[i])/2))
				for j := range w {
					gradient[j] += (p - y[i]) * x[i][j]
				}
				n++
			}
			for j := range w {
				g := gradient[j] / n
				if j > 0 {
					g += s.ridge * w[j]
				}
				w[j] -= s.rate / (1 + s.decay*float64(epoch)) * g
			}
		}
	}
	for i := range x {
		m := dot(w, x[i]) * (2*y[i] - 1)
		loss -= math.Log(1 / (1 + math.Exp(-m)))
		if m > 0 {
			accuracy++
		}
	}
	n := float64(len(x))
	return w, loss/n + s.ridge/2*dot(w[1:], w[1:]), accuracy / n
}

// The claim of this example: gradients that were rounded to integers, by each split for itself, reach the same loss as
// float64 on one machine, within 1e-6.
//
// With 26 splits and a quantum of 2^-10, a batch of about 150 rows has a mean gradient that is off by
// 26 x 2^-11 / 150 < 1e-4 at most, and the loss near its least value by about the square of what weights are off.
// By itself the quantum follows the sums, and is so fine that only the rounding of float64 is left.
func TestAgainstFloats(t *testing.T) {
	w, loss, accuracy := floats(t, defaults)
	for _, c := range []struct{ quantum, loss, weights float64 }{
		{0, 1e-12, 1e-12},
		{1. / (1 << 20), 1e-6, 1e-6},
		{1. / (1 << 10), 1e-6, 1e-3},
	} {
		for _, size := range []int64{0, 4000} {
			s := defaults
			s.quantum = c.quantum
			res := train(t, s, size, 0)
			if size > 0 && res.Result.Splits != 26 {
				t.Errorf("%d splits", res.Result.Splits)
			}
			if got := res.State[6+stateLoss]; !(math.Abs(got-loss) <= c.loss) {
				t.Errorf("quantum %v, %d splits: loss %v, with floats %v", c.quantum, res.Result.Splits, got, loss)
			}
			if got := res.State[6+stateAccuracy]; got != accuracy {
				t.Errorf("quantum %v, %d splits: accuracy %v, with floats %v", c.quantum, res.Result.Splits, got, accuracy)
			}
			for j, got := range res.State[:6] {
				if !(math.Abs(got-w[j]) <= c.weights) {
					t.Errorf("quantum %v, %d splits: weights %v, with floats %v", c.quantum, res.Result.Splits, res.State[:6], w)
					break
				}
			}
		}
	}
}

// Rounding that is much too coarse shows, so the test above can fail.
func TestTooCoarse(t *testing.T) {
	_, loss, _ := floats(t, defaults)
	s := defaults
	s.quantum = 1
	if got := train(t, s, 4000, 0).State[6+stateLoss]; math.Abs(got-loss) < 1e-6 {
		t.Errorf("gradients in whole numbers make a difference of %v to the loss", got-loss)
	}
}

type optimum struct {
	Ridge, Bias, Loss, Accuracy float64
	Weights                     []float64
}

// The least loss that there is, as scikit-learn finds it (testdata/reference.py).
func TestReference(t *testing.T) {
	var ref struct{ Optima []optimum }
	text, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Optima) != 2 {
		t.Fatalf("%d optima", len(ref.Optima))
	}
	for _, want := range ref.Optima {
		// Steps of all rows and of full length come as near as floats allow: in 400 epochs the distance
		// shrinks to less than what is left of 1e-12 after rounding.
		all := defaults
		all.batches, all.epochs, all.decay, all.ridge = 1, 400, 0, want.Ridge
		res := train(t, all, 4000, 0)
		if got := res.State[6+stateLoss]; math.Abs(got-want.Loss) > 1e-12 {
			t.Errorf("ridge %v: loss %v, want %v", want.Ridge, got, want.Loss)
		}
		// Both stop where the gradient is small, which says less of weights than of the loss.
		for j, w := range append([]float64{want.Bias}, want.Weights...) {
			if got := res.State[j]; math.Abs(got-w) > 1e-5 {
				t.Errorf("ridge %v: weight %d is %v, want %v", want.Ridge, j, got, w)
			}
		}
		if got := res.State[6+stateAccuracy]; got != want.Accuracy || res.State[6+stateRows] != 3000 {
			t.Errorf("ridge %v: accuracy %v of %v rows, want %v", want.Ridge, got, res.State[6+stateRows], want.Accuracy)
		}

		// Mini-batches come near it, and never below. Which rows they have is fixed, and so is how near: the last
		// steps go 2/50 of a gradient from 150 rows, whose noise costs less than 1e-6.
		s := defaults
		s.ridge = want.Ridge
		if got := train(t, s, 4000, 0).State[6+stateLoss] - want.Loss; got < -1e-12 || got > 1e-6 {
			t.Errorf("ridge %v: mini-batches reach a loss that is %v above the least one", want.Ridge, got)
		}
	}
}

// However many workers there are, the state is the same to the last bit.
func TestWorkers(t *testing.T) {
	want := train(t, defaults, 4000, 1)
	for _, workers := range []int{2, 7} {
		if got := train(t, defaults, 4000, workers); !slices.Equal(got.State, want.State) || got.Rounds != 50*21 {
			t.Errorf("%d workers: %v after %d rounds, want %v", workers, got.State, got.Rounds, want.State)
		}
	}
}

// An epoch has every row once, in batches of about the same size, and the next has others.
func TestBatches(t *testing.T) {
	const rows, batches = 30_000, 20
	same := 0
	for epoch := range 5 {
		var sizes [batches]int
		for i := range uint64(rows) {
			b := batchOf(i*37, epoch, batches)
			sizes[b]++
			if b == batchOf(i*37, epoch+1, batches) {
				same++
			}
		}
		for b, n := range sizes {
			// 1500 rows with a standard deviation of 38.
			if n < 1300 || n > 1700 {
				t.Errorf("batch %d of epoch %d has %d rows", b, epoch, n)
			}
		}
	}
	if want := 5 * rows / batches; same < want*9/10 || same > want*11/10 {
		t.Errorf("%d rows stayed in their batch; by chance it would be %d", same, want)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Two rows and one step. The model begins with a chance of 1/2 for both, so the gradient of the weight is
// (-1/2 x 2 + 1/2 x -1) / 2 = -3/4, and that of the bias is 0.
// Then the scores are 3/2 and -3/4, and the loss is (log(1 + e^-1.5) + log(1 + e^-0.75)) / 2.
func TestByHand(t *testing.T) {
	in := write(t, "x,y\n2,1\n\n-1, 0\n")
	c := command{settings: settings{label: 2, batches: 1, epochs: 1, rate: 1, decay: 3}, names: "1"}
	c.dir = filepath.Join(t.TempDir(), "out")
	var out, notes bytes.Buffer
	if err := run(t.Context(), []string{in}, c, &out, &notes); err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile(filepath.Join(c.dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "accuracy\t1\nbias\t0\nloss\t0.29414214204882"; !strings.HasPrefix(string(part), want) ||
		!strings.HasSuffix(string(part), "\nx1\t0.75\n") || out.Len() != 0 {
		t.Errorf("part %q, standard output %q", part, out.String())
	}
	if !strings.HasPrefix(notes.String(), "logreg: 1 epochs; sums are off by ") {
		t.Errorf("notes: %s", notes.String())
	}

	// Half of the square of 3/4, by a half, is 9/64 more.
	c.dir, c.ridge = "", 0.5
	if err := run(t.Context(), []string{in}, c, &out, &notes); err != nil {
		t.Fatal(err)
	}
	if want := "accuracy\t1\nbias\t0\nloss\t0.43476714204882"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %q", out.String())
	}

	// Enough of an improvement for a second epoch, and then not.
	c.ridge, c.epochs, c.enough = 0, 9, 0.05
	out.Reset()
	notes.Reset()
	if err := run(t.Context(), []string{in}, c, &out, &notes); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(notes.String(), "logreg: 2 epochs;") {
		t.Errorf("notes: %s", notes.String())
	}
}

// Scores beyond what e^x can be.
func TestLargeScores(t *testing.T) {
	r := &rows{epoch: -1, x: []float64{1000, -1000, 1000, -1000}, y: []float64{1, 0, 0, 1}, offset: []uint64{0, 1, 2, 3}}
	sums := make([]float64, sumExtra)
	r.evaluate([]float64{0, 1}, sums)
	if want := []float64{4, 2000, 2}; !slices.Equal(sums, want) {
		t.Errorf("got %v, want %v", sums, want)
	}
	gradient := make([]float64, 2+sumExtra)
	r.descend([]float64{0, 1}, 0, 0, 1, gradient)
	// The first two rows are right; of the others one is 1 too high, one 1 too low.
	if want := []float64{0, 2000, 4, 0, 0}; !slices.Equal(gradient, want) {
		t.Errorf("got %v, want %v", gradient, want)
	}
}

// The rows are those that scikit-learn was given, on every machine and with every version of Go.
func TestGenerate(t *testing.T) {
	want, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := generate(&got, 3000); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("the rows are no longer those of testdata/rows.csv")
	}
}

func TestErrors(t *testing.T) {
	good := command{settings: settings{label: 1, batches: 1, epochs: 1, rate: 1}, names: "2"}
	change := func(f func(*command)) command {
		c := good
		f(&c)
		return c
	}
	missing := filepath.Join(t.TempDir(), "missing.csv")
	for _, c := range []struct {
		input, want string
		c           command
	}{
		{missing, missing, good},
		{missing, `fields "2;3": want numbers`, change(func(c *command) { c.names = "2;3" })},
		{missing, "the first field is 1", change(func(c *command) { c.names = "0" })},
		{missing, "field 1 is the label", change(func(c *command) { c.names = "2,1" })},
		{missing, "1 epochs of 0 batches", change(func(c *command) { c.batches = 0 })},
		{missing, "1 epochs of 1048577 batches", change(func(c *command) { c.batches = 1<<20 + 1 })},
		{missing, "rate NaN, decay 0, ridge 0", change(func(c *command) { c.rate = math.NaN() })},
		{write(t, "y,x\n1,2\n0\n"), `in.csv:3: 1 fields in "0": want 2`, good},
		{write(t, "1,2\n0,two\n"), `in.csv:2: field 2, "two"`, good},
		{write(t, "1,2\n0,Inf\n"), `in.csv:2: field 2, "Inf": a number must be finite`, good},
		{write(t, "1,2\n2,2\n"), `in.csv:2: field 1, "2": the label is to be 0 or 1`, good},
		{write(t, "y,x\n"), "the input has no rows", good},
		{write(t, "1,1\n1,1\n0,1\n"), "the loss grows beyond all measure", change(func(c *command) { c.rate = 1e200 })},
		{write(t, "1,1\n1,1\n0,1\n"), "the loss grows beyond all measure", change(func(c *command) { c.rate, c.ridge = 1e16, 1e300 })},
	} {
		var out, notes bytes.Buffer
		err := run(t.Context(), []string{c.input}, c.c, &out, &notes)
		if err == nil || !strings.Contains(err.Error(), c.want) || out.Len()+notes.Len() != 0 {
			t.Errorf("error %v, want %q; output %q, notes %q", err, c.want, out.String(), notes.String())
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("1,0.5,-2"))
	f.Add([]byte(" 0 ,1e3,,"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := settings{label: 1, fields: []int{3, 2}}
		x := make([]float64, 2)
		y, err := parse(text, s, make([][]byte, 3), x)
		if err == nil && (y != 0 && y != 1 || math.IsNaN(x[0]+x[1]) || math.IsInf(x[0], 0) || math.IsInf(x[1], 0)) {
			t.Errorf("%q: label %v of %v", text, y, x)
		}
	})
}
