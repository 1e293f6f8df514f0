// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

// numbers is what a split's lines hold, one number a line.
func numbers(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
	var kept []float64
	for rec := range records {
		v, err := strconv.ParseFloat(string(rec.Value), 64)
		if err != nil {
			return nil, err
		}
		kept = append(kept, v)
	}
	return kept, nil
}

// means is k-means of numbers.
func means(start ...float64) *mapreduce.Iteration[[]float64] {
	return &mapreduce.Iteration[[]float64]{
		Name:  "means",
		Load:  numbers,
		Start: func() ([]float64, error) { return start, nil },
		Sums:  2 * len(start), // of each centre the sum of its points and their number
		Round: func(r mapreduce.Round, points, sums []float64) error {
			for _, p := range points {
				best := 0
				for i, c := range r.State {
					if math.Abs(p-c) < math.Abs(p-r.State[best]) {
						best = i
					}
				}
				sums[2*best] += p
				sums[2*best+1]++
			}
			return nil
		},
		Update: func(r mapreduce.Round, state, sums []float64) (bool, error) {
			for i := range state {
				if n := sums[2*i+1]; n > 0 {
					state[i] = sums[2*i] / n
				}
			}
			return slices.Equal(state, r.State), nil
		},
		Rounds: 100,
	}
}

// slope is gradient descent for the w with the least squares of w x - y, over lines of x and y.
func slope(rate float64) *mapreduce.Iteration[[][2]float64] {
	return &mapreduce.Iteration[[][2]float64]{
		Name: "slope",
		Load: func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) (kept [][2]float64, err error) {
			for rec := range records {
				var p [2]float64
				if _, err := fmt.Sscan(string(rec.Value), &p[0], &p[1]); err != nil {
					return nil, err
				}
				kept = append(kept, p)
			}
			return kept, nil
		},
		Start: func() ([]float64, error) { return []float64{0}, nil },
		Round: func(r mapreduce.Round, kept [][2]float64, sums []float64) error {
			for _, p := range kept {
				sums[0] += p[0] * (r.State[0]*p[0] - p[1])
			}
			return nil
		},
		Update: func(_ mapreduce.Round, state, sums []float64) (bool, error) {
			state[0] -= rate * sums[0]
			return false, nil
		},
	}
}

// iterate runs an iteration, and returns its rows too.
func iterate[D any](it *mapreduce.Iteration[D], opts mapreduce.IterateOptions) (string, *mapreduce.IterationResult, error) {
	var buf bytes.Buffer
	if opts.Output == nil {
		opts.Output = output.Stream(&buf, output.StreamOptions{Format: output.CSV})
	}
	res, err := mapreduce.Iterate(context.Background(), it, opts)
	return buf.String(), res, err
}

func on(paths ...string) mapreduce.IterateOptions {
	return mapreduce.IterateOptions{Options: mapreduce.Options{Inputs: paths}}
}

// From 1 and 2: 2, 3, 10, 11 and 12 are nearer to 2, and their mean is 7.6; then 2 and 3 are nearer to 1, and the means
// are 2 and 11, where they stay.
func TestIterateMeans(t *testing.T) {
	path := text(t, "1\n2\n3\n10\n11\n12\n")
	for _, workers := range []int{1, 2, 5} {
		for _, split := range []int64{0, 1, 2, 5} {
			dir := filepath.Join(t.TempDir(), "out")
			opts := on(path)
			opts.Workers, opts.Input.SplitSize, opts.Output = workers, split, output.Dir(dir, output.DirOptions{})
			var seen []float64
			it := means(1, 2)
			update := it.Update
			it.Update = func(r mapreduce.Round, state, sums []float64) (bool, error) {
				done, err := update(r, state, sums)
				seen = append(seen, state...)
				return done, err
			}
			_, res, err := iterate(it, opts)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(seen, []float64{1, 7.6, 2, 11, 2, 11}) || !slices.Equal(res.State, []float64{2, 11}) || res.Rounds != 3 || !res.Converged {
				t.Errorf("%d workers, splits of %d bytes: the states are %v, the result is %+v", workers, split, seen, res)
			}
			if len(res.Times) != 3 || res.Groups != 1 || res.Resumed != 0 || res.Working < res.Waiting || res.Result.Records != 6 || res.Result.Iteration != res {
				t.Errorf("%d workers, splits of %d bytes: %+v of %+v", workers, split, res, res.Result)
			}
			for name, want := range map[string]string{
				"part-00000": "0\t2\n1\t11\n",
				"_SUCCESS":   "{\n  \"job\": \"means\",\n  \"parts\": 1,\n  \"pairs_emitted\": 2,\n  \"keys\": 2,\n  \"rows\": 2,\n  \"audit_balanced\": true\n}\n",
			} {
				if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
					t.Errorf("%s is %q, %v", name, b, err)
				}
			}
		}
	}
}

// The gradient at w over (1, 2) and (2, 4) is 5w - 10, so that a step of one eighth leads from w to 3/8 w + 5/4.
func TestIterateGradient(t *testing.T) {
	path := text(t, "1 2\n2 4\n")
	it := slope(1.0 / 8)
	it.Rounds = 3
	rows, res, err := iterate(it, on(path))
	if err != nil {
		t.Fatal(err)
	}
	if want := 1.89453125; res.State[0] != want || res.Rounds != 3 || res.Converged || rows != "index,value\n0,1.89453125\n" {
		t.Errorf("%+v, rows %q", res, rows)
	}
	it.Rounds = 0
	it.Update = func(r mapreduce.Round, state, sums []float64) (bool, error) {
		state[0] -= sums[0] / 8
		return math.Abs(sums[0]) < 1e-12, nil
	}
	if _, res, err = iterate(it, on(path)); err != nil || math.Abs(res.State[0]-2) > 1e-12 || !res.Converged || res.Rounds < 20 {
		t.Errorf("%+v, %v", res, err)
	}
}

// Sums of one part and of many, by one goroutine and several, are the same.
func TestIterateWide(t *testing.T) {
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, "%v\n", math.Sin(float64(i))*math.Pow(2, float64(i%50)))
	}
	path := text(t, b.String())
	var want []float64
	for _, workers := range []int{1, 2, 3, 8} {
		it := &mapreduce.Iteration[[]float64]{
			Name: "wide", Load: numbers, Rounds: 3,
			Start: func() ([]float64, error) { return make([]float64, 5000), nil },
			Round: func(r mapreduce.Round, kept, sums []float64) error {
				for i, v := range kept {
					for j := range sums {
						sums[j] += v / float64(1+i+j+r.Split)
					}
				}
				return nil
			},
			Update: func(_ mapreduce.Round, state, sums []float64) (bool, error) {
				for i := range state {
					state[i] = state[i]/3 + sums[i]
				}
				return false, nil
			},
		}
		opts := on(path)
		opts.Workers, opts.Input.SplitSize = workers, 100
		_, res, err := iterate(it, opts)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = res.State
		}
		if !slices.Equal(res.State, want) || res.Result.Splits < 50 || res.Bound <= 0 {
			t.Errorf("%d workers: another state; %d splits, bound %v", workers, res.Result.Splits, res.Bound)
		}
	}
}

// TestIterateSizesApart has sums of all sizes beside each other: none takes digits from another.
func TestIterateSizesApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "numbers")
	if err := os.WriteFile(path, []byte(strings.Repeat("1\n", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	it := means(0)
	it.Name, it.Rounds = "sizes", 1
	it.Start = func() ([]float64, error) { return make([]float64, 4), nil }
	it.Sums = 4
	it.Round = func(_ mapreduce.Round, points, sums []float64) error {
		for range points {
			sums[0] += 0x1p1000
			sums[1]++
			sums[2] += 0x1p-1000
			sums[3] -= 0x1p20
		}
		return nil
	}
	it.Update = func(_ mapreduce.Round, state, sums []float64) (bool, error) {
		copy(state, sums)
		return false, nil
	}
	opts := on(path)
	opts.Input.SplitSize = 8 // four lines
	_, res, err := iterate(it, opts)
	if err != nil {
		t.Fatal(err)
	}
	if want := []float64{40 * 0x1p1000, 40, 40 * 0x1p-1000, -40 * 0x1p20}; !slices.Equal(res.State, want) {
		t.Errorf("%v, not %v", res.State, want)
	}
	if res.Result.Splits < 5 {
		t.Errorf("%d splits", res.Result.Splits)
	}
}

func TestIterateRows(t *testing.T) {
	path := text(t, "1\n2\n3\n10\n11\n12\n")
	it := means(1, 2)
	it.Columns, it.KeyColumn = []string{"first", "second"}, "pair"
	if rows, _, err := iterate(it, on(path)); err != nil || rows != "pair,first,second\n0,2,11\n" {
		t.Errorf("%q, %v", rows, err)
	}
	it.KeyColumn = ""
	it.Rows = func(state []float64, yield func(string, ...float64)) error {
		yield("upper", state[1], state[1]/2)
		yield("lower", state[0], state[0]/2)
		return nil
	}
	if rows, _, err := iterate(it, on(path)); err != nil || rows != "key,first,second\nlower,2,1\nupper,11,5.5\n" {
		t.Errorf("%q, %v", rows, err)
	}
	it = means(12, 11, 10, 3, 2, 1, 0)
	dir := filepath.Join(t.TempDir(), "out")
	opts := on(path)
	opts.Partitions, opts.TotalOrder, opts.Output = 3, true, output.Dir(dir, output.DirOptions{})
	if _, _, err := iterate(it, opts); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for i := range 3 {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("part-%05d", i)))
		if err != nil || len(b) == 0 {
			t.Errorf("part %d is %q, %v", i, b, err)
		}
		all = append(all, b...)
	}
	if want := "0\t12\n1\t11\n2\t10\n3\t3\n4\t2\n5\t1\n6\t0\n"; string(all) != want {
		t.Errorf("%q", all)
	}
}

func TestIterateInputs(t *testing.T) {
	one, two := text(t, "1\r\n2\r\n"), text(t, "30")
	load := func(t *testing.T, opts mapreduce.IterateOptions) (loaded []string) {
		var mu sync.Mutex
		it := means(0)
		it.Rounds = 1
		it.Load = func(s mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
			line := fmt.Sprintf("%d/%d %d-%d", s.Number, s.Of, s.Start, s.End)
			for _, f := range s.Files {
				line += " " + filepath.Base(filepath.Dir(f))
			}
			for rec := range records {
				line += fmt.Sprintf(" %q@%d", rec.Value, rec.Offset)
				if string(rec.Value) == "stop" {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			loaded = append(loaded, line)
			return nil, nil
		}
		if _, _, err := iterate(it, opts); err != nil {
			t.Fatal(err)
		}
		slices.Sort(loaded)
		return loaded
	}
	first, second := filepath.Base(filepath.Dir(one)), filepath.Base(filepath.Dir(two))
	check := func(name string, opts mapreduce.IterateOptions, want ...string) {
		t.Helper()
		if got := load(t, opts); !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	check("small files", on(one, two), fmt.Sprintf(`0/1 0--1 %s %s "1"@0 "2"@3 "30"@0`, first, second))
	opts := on(one)
	opts.Input.SplitSize = 3
	check("splits", opts, fmt.Sprintf(`0/2 0-3 %s "1"@0`, first), fmt.Sprintf(`1/2 3-6 %s "2"@3`, first))
	opts = on(one)
	opts.Input.Delimiter = []byte("\n")
	check("a newline as delimiter", opts, fmt.Sprintf(`0/1 0--1 %s "1"@0 "2"@3`, first))
	opts.Input.Delimiter = []byte("\r")
	check("another delimiter", opts, fmt.Sprintf(`0/1 0--1 %s "1"@0 "\n2"@2 "\n"@5`, first))
	opts = on("-")
	opts.Input.Stdin = strings.NewReader("a\nstop\nb\n")
	check("standard input, not all of it", opts, `0/1 0--1 . "a"@0 "stop"@2`)
	empty := text(t, "")
	check("an empty file", on(empty), "0/1 0--1 "+filepath.Base(filepath.Dir(empty)))
}

func TestIterateFails(t *testing.T) {
	path := text(t, "1\n2\n3\n10\n11\n12\n")
	own := errors.New("of my own")
	for _, c := range []struct {
		name   string
		change func(it *mapreduce.Iteration[[]float64], opts *mapreduce.IterateOptions)
		want   []string // that the error says
	}{
		{"no Load", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) { it.Load = nil }, []string{"iteration means: set Load, Start, Round and Update"}},
		{"negative", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) { it.Checkpoint = -1 }, []string{"4, 100 and -1: none may be negative"}},
		{"quantum", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) { it.Quantum = math.Inf(1) }, []string{"field Quantum is +Inf"}},
		{"no columns", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) { it.Columns = []string{} }, []string{"field Columns is empty"}},
		{"columns", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Columns = []string{"a", "b", "c"}
		}, []string{"2 numbers, which makes no whole rows of 3"}},
		{"no such file", func(_ *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) { o.Inputs = []string{path + "x"} }, []string{path + "x"}},
		{"no input", func(_ *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) {
			o.Inputs, o.Input.AllowEmpty = []string{path + "*x"}, true
		}, []string{"there is no input"}},
		{"Start fails", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Start = func() ([]float64, error) { return nil, own }
		}, []string{"before the first round: of my own"}},
		{"no state", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Start = func() ([]float64, error) { return nil, nil }
		}, []string{"is empty"}},
		{"Start panics", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Start = func() ([]float64, error) { panic("at the start") }
		}, []string{"panic in the job's code: at the start", "iterate_test.go"}},
		{"NaN at the start", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Start = func() ([]float64, error) { return []float64{1, math.NaN()}, nil }
		}, []string{"before the first round: number 1 of the state is NaN"}},
		{"a bad line", func(_ *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) {
			o.Inputs = []string{text(t, "1\n2\nthree\n4\n")}
		}, []string{"in.txt:3: strconv.ParseFloat: parsing \"three\""}},
		{"Load fails at the end", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Load = func(s mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
				for range records {
				}
				return nil, own
			}
		}, []string{"split 0 (" + path, "of my own"}},
		{"Load panics", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Load = func(s mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
				for range records {
					panic("on the way")
				}
				return nil, nil
			}
		}, []string{"in.txt:1: panic in the job's code: on the way"}},
		{"Load ends its goroutine", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Load = func(mapreduce.Split, iter.Seq[mapreduce.Record]) ([]float64, error) {
				runtime.Goexit()
				return nil, nil
			}
		}, []string{"ended its goroutine"}},
		{"Load reads twice", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Load = func(s mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
				_, _ = numbers(s, records)
				return numbers(s, records)
			}
		}, []string{"a second time"}},
		{"a long line", func(it *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) {
			o.Input.MaxLine = 1
			it.Load = func(_ mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
				for range records {
				}
				return nil, nil // which knows nothing of it
			}
		}, []string{path}},
		{"Round fails", func(it *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) {
			o.Input.SplitSize = 2
			it.Round = func(r mapreduce.Round, _, _ []float64) error {
				if r.Number == 2 && r.Split >= 3 {
					return own
				}
				return nil
			}
			it.Update = func(mapreduce.Round, []float64, []float64) (bool, error) { return false, nil }
		}, []string{"iteration means: round 2, split 3 (" + path + " from 6 to 8): of my own"}},
		{"Round panics", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Round = func(mapreduce.Round, []float64, []float64) error { panic("in a round") }
		}, []string{"round 1, split 0 (" + path + "): panic in the job's code: in a round\n", "iterate_test.go"}},
		{"Round changes the state", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Round = func(r mapreduce.Round, _, _ []float64) error {
				r.State[1] = math.Nextafter(r.State[1], 9)
				return nil
			}
		}, []string{"round 1: the state was changed by Round"}},
		{"NaN", func(it *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) {
			o.Input.SplitSize = 2
			it.Round = func(r mapreduce.Round, _, sums []float64) error {
				if r.Number == 2 && r.Split == 1 {
					sums[3] = math.NaN()
				}
				return nil
			}
			it.Update = func(mapreduce.Round, []float64, []float64) (bool, error) { return false, nil }
		}, []string{"round 2, split 1 (", "number 3 of its sums is NaN"}},
		{"infinite", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Round = func(r mapreduce.Round, _, sums []float64) error {
				sums[0] = math.Inf(-1)
				return nil
			}
		}, []string{"round 1, split 0 (", "number 0 of its sums is -Inf"}},
		{"too large for the quantum", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) { it.Quantum = 1e-300 }, []string{"round 1: element", "too large for the quantum"}},
		{"Update fails", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Update = func(mapreduce.Round, []float64, []float64) (bool, error) { return true, own }
		}, []string{"round 1, Update: of my own"}},
		{"Update makes NaN", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Update = func(_ mapreduce.Round, state, _ []float64) (bool, error) {
				state[1] = math.NaN()
				return true, nil
			}
		}, []string{"round 1, Update: number 1 of the state is NaN"}},
		{"Update panics", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Update = func(_ mapreduce.Round, state, _ []float64) (bool, error) { return state[7] > 0, nil }
		}, []string{"round 1, Update: panic in the job's code: runtime error: index out of range [7]"}},
		{"no memory", func(it *mapreduce.Iteration[[]float64], o *mapreduce.IterateOptions) {
			it.Sums, o.Memory = 1<<20, 16<<20
		}, []string{"the sums of 1 splits are 1048576 numbers each: they take 24 MiB, and 16 MiB may be taken"}},
		{"Rows fails", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Rows = func([]float64, func(string, ...float64)) error { return own }
		}, []string{"the rows of the output: of my own"}},
		{"Rows panics", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Rows = func([]float64, func(string, ...float64)) error { panic("among rows") }
		}, []string{"the rows of the output: panic in the job's code: among rows"}},
		{"a row that is too long", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Rows = func(_ []float64, yield func(string, ...float64)) error {
				yield("a", 1)
				yield("b", 1, 2)
				return nil
			}
		}, []string{`row "b" has 2 values, and there are 1 Columns`}},
		{"a row twice", func(it *mapreduce.Iteration[[]float64], _ *mapreduce.IterateOptions) {
			it.Rows = func(_ []float64, yield func(string, ...float64)) error {
				yield("a", 1)
				yield("a", 2)
				return nil
			}
		}, []string{`key "a": there are two rows of that key`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			it, opts := means(1, 2), on(path)
			dir := t.TempDir()
			opts.Workers, opts.Output = 3, output.Dir(filepath.Join(dir, "out"), output.DirOptions{})
			c.change(it, &opts)
			_, res, err := iterate(it, opts)
			if err == nil {
				t.Fatalf("%+v", res)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nshould say %s", err, want)
				}
			}
			if strings.Contains(c.want[0], "of my own") && !errors.Is(err, own) {
				t.Errorf("%v does not wrap the program's own error", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("there is %v, %v", left, err)
			}
		})
	}
}

// Nothing is loaded for an output that can't be written.
func TestIterateChecksTheOutputFirst(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	it := means(1)
	it.Load = func(mapreduce.Split, iter.Seq[mapreduce.Record]) ([]float64, error) {
		t.Error("it is loaded")
		return nil, nil
	}
	opts := on(text(t, "1\n"))
	opts.Output = output.Dir(dir, output.DirOptions{})
	if _, _, err := iterate(it, opts); !errors.Is(err, output.ErrExists) {
		t.Error(err)
	}
}

// unending never comes to its end.
func unending() *mapreduce.Iteration[[]float64] {
	it := means(1, 2)
	it.Rounds = 0
	it.Update = func(_ mapreduce.Round, state, sums []float64) (bool, error) {
		state[0]++
		return false, nil
	}
	return it
}

func TestIterateStops(t *testing.T) {
	path := text(t, "1\n2\n3\n10\n11\n12\n")
	dir := t.TempDir()
	for _, where := range []string{"Load", "Round", "Update", "Rows"} {
		ctx, cancel := context.WithCancel(context.Background())
		it := unending()
		at := func(here string) {
			if here == where {
				cancel()
			}
		}
		load, round, update := it.Load, it.Round, it.Update
		it.Load = func(s mapreduce.Split, records iter.Seq[mapreduce.Record]) ([]float64, error) {
			at("Load")
			return load(s, records)
		}
		it.Round = func(r mapreduce.Round, kept, sums []float64) error {
			if r.Number == 7 {
				at("Round")
			}
			return round(r, kept, sums)
		}
		it.Update = func(r mapreduce.Round, state, sums []float64) (bool, error) {
			done, err := update(r, state, sums)
			if r.Number == 7 {
				at("Update")
			}
			return done || r.Number == 20, err
		}
		it.Rows = func([]float64, func(string, ...float64)) error {
			at("Rows")
			return nil
		}
		opts := on(path)
		opts.Output, opts.Input.SplitSize = output.Dir(filepath.Join(dir, "out"), output.DirOptions{}), 3
		res, err := mapreduce.Iterate(ctx, it, opts)
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %+v, %v", where, res, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s: there is %v, %v", where, left, err)
		}
	}
}

func TestIterateProgress(t *testing.T) {
	path := text(t, "1\n2\n3\n10\n11\n12\n")
	it := unending()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var phases []string
	opts := on(path)
	opts.Progress = func(p mapreduce.Progress) {
		if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
			phases = append(phases, p.Phase)
		}
		if p.Round > 0 {
			if p.Phase == "rounds" && (p.Change != 1 || p.Rounds != 0 || p.Records != 6) {
				t.Errorf("%+v", p)
			}
			cancel()
		}
	}
	if _, err := mapreduce.Iterate(ctx, it, opts); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !slices.Contains(phases, "rounds") {
		t.Errorf("%q", phases)
	}
}

// checkpoints are the names in a folder.
func checkpoints(t *testing.T, dir string) (names []string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range left {
		names = append(names, f.Name())
	}
	return names
}

func TestIterateCheckpoints(t *testing.T) {
	defer mapreduce.SetKeepPause(0)()
	path := text(t, "1\n2\n3\n10\n11\n12\n")
	it := slowly()
	_, want, err := iterate(it, on(path))
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "a", "b")
	opts := on(path)
	opts.Checkpoints = folder
	fail := errors.New("no more")
	var rounds atomic.Int64
	until := func(n int) *mapreduce.Iteration[[]float64] {
		it := slowly()
		update := it.Update
		it.Update = func(r mapreduce.Round, state, sums []float64) (bool, error) {
			rounds.Add(1)
			if r.Number > n {
				return false, fail
			}
			return update(r, state, sums)
		}
		return it
	}
	for _, n := range []int{4, 17, 25} {
		if _, _, err := iterate(until(n), opts); !errors.Is(err, fail) {
			t.Fatal(err)
		}
		if names := checkpoints(t, folder); len(names) != 1 || !strings.HasSuffix(names[0], ".state") {
			t.Fatalf("%q", names)
		}
	}
	if n := rounds.Load(); n != 5+14+9 {
		t.Errorf("%d rounds: each run is to go on from the round before the one it failed in", n)
	}
	// Those of another input, quantum or start are other iterations.
	other := opts
	other.Inputs = []string{text(t, "1\n2\n3\n10\n11\n13\n")}
	if _, res, err := iterate(slowly(), other); err != nil || res.Resumed != 0 || slices.Equal(res.State, want.State) {
		t.Errorf("%+v, %v", res, err)
	}
	it = slowly()
	it.Quantum = 0.25
	if _, res, err := iterate(it, opts); err != nil || res.Resumed != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	it = slowly()
	it.Start = func() ([]float64, error) { return []float64{1, 3}, nil }
	if _, res, err := iterate(it, opts); err != nil || res.Resumed != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	// A damaged one is not taken.
	file := filepath.Join(folder, checkpoints(t, folder)[0])
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, good[:len(good)-8], append(bytes.Clone(good[:50]), good[58:]...), bytes.Replace(good, []byte("qrn"), []byte("quern"), 1)} {
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := iterate(slowly(), opts); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "remove it to begin anew") {
			t.Error(err)
		}
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	rows, res, err := iterate(slowly(), opts)
	if err != nil || res.Resumed != 25 || res.Rounds != want.Rounds || len(res.Times) != want.Rounds-25 || res.Bound != want.Bound || !slices.Equal(res.State, want.State) || !res.Converged {
		t.Errorf("%+v, %v; without a stop it is %+v", res, err, want)
	}
	if want, _, _ := iterate(slowly(), on(path)); rows != want {
		t.Errorf("%q instead of %q", rows, want)
	}
	if names := checkpoints(t, folder); len(names) != 0 {
		t.Errorf("%q are left", names)
	}
}

// slowly is means that come to their end in some forty rounds.
func slowly() *mapreduce.Iteration[[]float64] {
	it := means(1, 2)
	it.Checkpoint = 5
	it.Update = func(r mapreduce.Round, state, sums []float64) (bool, error) {
		for i := range state {
			state[i] += (sums[2*i]/max(1, sums[2*i+1]) - state[i]) / 3
		}
		return math.Abs(state[1]-r.State[1]) < 1e-7, nil
	}
	return it
}

// A checkpoint is written every so many rounds, and not more often than the pause allows; what the last one is
// when it fails is written in any case.
func TestIterateCheckpointsInTime(t *testing.T) {
	path := text(t, "1\n")
	for _, c := range []struct {
		pause bool
		want  string
	}{{false, "10 20 30"}, {true, "10"}} {
		if !c.pause {
			defer mapreduce.SetKeepPause(0)()
		} else {
			defer mapreduce.SetKeepPause(1 << 60)()
		}
		folder := t.TempDir()
		opts := on(path)
		opts.Checkpoints = folder
		it := unending()
		var seen []string
		last := ""
		it.Round = func(r mapreduce.Round, _, _ []float64) error {
			if names := checkpoints(t, folder); len(names) > 0 {
				b, err := os.ReadFile(filepath.Join(folder, names[0]))
				if err != nil {
					return err
				}
				if string(b) != last {
					last = string(b)
					seen = append(seen, strconv.Itoa(r.Number-1))
				}
			}
			if r.Number == 35 {
				return errors.New("enough")
			}
			return nil
		}
		if _, _, err := iterate(it, opts); err == nil {
			t.Error("it did not fail")
		}
		if got := strings.Join(seen, " "); got != c.want {
			t.Errorf("written after %s", got)
		}
		it.Round = means(1).Round
		it.Rounds = 34
		if _, res, err := iterate(it, opts); err != nil || res.Resumed != 34 || len(res.Times) != 0 || res.State[0] != 35 || res.Converged {
			t.Errorf("%+v, %v", res, err)
		}
	}
}

func TestIterateCheckpointsWithoutPlace(t *testing.T) {
	path := text(t, "1\n")
	opts := on(path)
	opts.Checkpoints = path
	if _, _, err := iterate(means(1), opts); err == nil || !strings.Contains(err.Error(), "folder for checkpoints") {
		t.Error(err)
	}
	opts = on("-")
	opts.Input.Stdin, opts.Checkpoints = strings.NewReader("1\n"), t.TempDir()
	if _, _, err := iterate(means(1), opts); err == nil || !strings.Contains(err.Error(), "- can't be read again") {
		t.Error(err)
	}
}

// Results go to other processes as JSON, to the last bit.
func TestIterationResultAsJSON(t *testing.T) {
	want := &mapreduce.Result{Job: "a", Iteration: &mapreduce.IterationResult{
		State: []float64{0.1, math.Copysign(0, -1), math.Inf(1), math.NaN(), 5e-324}, Rounds: 3, Converged: true, Bound: 1e-9, Resumed: 1, Groups: 2,
		Times: []mapreduce.RoundTime{{Took: 5, Waiting: 2}}, Working: 5, Waiting: 2,
	}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &mapreduce.Result{}
	if err := json.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	for i, v := range want.Iteration.State {
		if math.Float64bits(got.Iteration.State[i]) != math.Float64bits(v) {
			t.Errorf("number %d is %v instead of %v", i, got.Iteration.State[i], v)
		}
	}
	got.Iteration.State, want.Iteration.State = nil, nil
	if g, w := fmt.Sprintf("%+v", *got.Iteration), fmt.Sprintf("%+v", *want.Iteration); g != w {
		t.Errorf("%s instead of %s", g, w)
	}
	if err := json.Unmarshal([]byte(`{"State":"AAAA"}`), got.Iteration); err == nil {
		t.Error("three bytes are no state")
	}
	if b, err := json.Marshal(&mapreduce.Result{}); err != nil || strings.Contains(string(b), "Iteration") {
		t.Errorf("%s, %v", b, err)
	}
}

// An iteration is a job like others.
func TestIterationIsRunnable(t *testing.T) {
	var it mapreduce.Runnable = means(1, 2)
	opts := mapreduce.Options{Inputs: []string{text(t, "1\n2\n3\n10\n11\n12\n")}, Input: input.Options{SplitSize: 5}}
	if err := it.Validate(); err != nil {
		t.Error(err)
	}
	x, err := it.Explain(context.Background(), opts)
	if err != nil || x.Splits != 3 || x.Reduce != "iteration" || !strings.Contains(strings.Join(x.Why, "\n"), "100 rounds at most") {
		t.Errorf("%+v, %v", x, err)
	}
	res, err := mapreduce.Run(context.Background(), it, opts)
	if err != nil || !slices.Equal(res.Iteration.State, []float64{2, 11}) || res.Splits != 3 || res.Job != "means" {
		t.Errorf("%+v, %v", res, err)
	}
}
