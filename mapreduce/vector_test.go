// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
)

// vectorLength is that of the folds in tests: the last part is not full.
const vectorLength = 11

// vectorCase is a fold of vectors and what an element must be.
type vectorCase struct {
	name  string
	job   func() mapreduce.Runnable
	get   func(opts mapreduce.Options) (map[string][]float64, *mapreduce.Result, error)
	value func(v float64) float64 // what of a number in the input is folded
	want  func(vs []float64) float64
}

// ints makes integers of 48 bits of floats of any size, so that sums fit.
func ints(v float64) float64 { return math.Trunc(math.Mod(v, 1<<48)) + 0 }

func small(v float64) float64 { return float64(float32(math.Mod(v, 0x1p100))) }

func brief(v float64) float64 { return float64(mapreduce.BFloat16Of(float32(small(v))).Float32()) }

func same(v float64) float64 { return v }

var vectorFolds = []vectorCase{
	vectorFold("sum of int64", ints, func(v float64) int64 { return int64(v) }, mapreduce.VectorSum[int64](vectorLength), func(vs []float64) float64 { return near(ratSum(vs)) }),
	vectorFold("sum of int32", func(v float64) float64 { return math.Trunc(math.Mod(v, 1<<31)) + 0 }, func(v float64) int32 { return int32(v) }, mapreduce.VectorSum[int32](vectorLength), func(vs []float64) float64 { return near(ratSum(vs)) }),
	vectorFold("min of int64", ints, func(v float64) int64 { return int64(v) }, mapreduce.VectorMin[int64](vectorLength), slices.Min[[]float64]),
	vectorFold("max of int32", func(v float64) float64 { return math.Trunc(math.Mod(v, 1<<31)) + 0 }, func(v float64) int32 { return int32(v) }, mapreduce.VectorMax[int32](vectorLength), slices.Max[[]float64]),
	vectorFold("sum", same, same, mapreduce.VectorFloat64Sum[float64](vectorLength), func(vs []float64) float64 { return near(ratSum(vs)) }),
	vectorFold("sum of float32", small, func(v float64) float32 { return float32(v) }, mapreduce.VectorFloat64Sum[float32](vectorLength), func(vs []float64) float64 { return near(ratSum(vs)) }),
	vectorFold("float32 sum", small, func(v float64) float32 { return float32(v) }, mapreduce.VectorFloat32Sum[float32](vectorLength), func(vs []float64) float64 {
		v, _ := ratSum(vs).Float32()
		return float64(v) + 0
	}),
	vectorFold("bfloat16 sum", brief, func(v float64) mapreduce.BFloat16 { return mapreduce.BFloat16Of(float32(v)) }, mapreduce.VectorBFloat16Sum(vectorLength), func(vs []float64) float64 {
		return roundBits(near(ratSum(vs)), ratSum(vs).Cmp(rat(near(ratSum(vs)))), 8)
	}),
	vectorFold("quantised sum", same, same, mapreduce.VectorFloat64Sum[float64](vectorLength, mapreduce.Quantum(quantumOfTests)), func(vs []float64) float64 { return near(ratSum(rounded(vs))) }),
	vectorFold("min", same, same, mapreduce.VectorFloatMin[float64](vectorLength), slices.Min[[]float64]),
	vectorFold("max", small, func(v float64) float32 { return float32(v) }, mapreduce.VectorFloatMax[float32](vectorLength), slices.Max[[]float64]),
}

// roundBits rounds v, from which an exact number differs in the direction off, to so many bits; by halves as fractions.
func roundBits(v float64, off, bits int) float64 {
	if v == 0 {
		return v
	}
	_, e := math.Frexp(v)
	step := math.Ldexp(1, max(e-bits, -133))
	low := math.Floor(v/step) * step
	switch rest := v - low; {
	case rest < step/2, rest == step/2 && off < 0:
		return low
	case rest > step/2, off > 0:
		return low + step
	}
	if math.Mod(low/step, 2) == 0 {
		return low
	}
	return low + step
}

func vectorFold[V, R any](name string, value func(float64) float64, element func(float64) V, fold mapreduce.Fold[[]V, []R], want func([]float64) float64) vectorCase {
	job := func() *mapreduce.Job[string, []V, []R] {
		return &mapreduce.Job[string, []V, []R]{Name: name, Fold: fold, Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, []V]) error {
			fields := strings.Fields(string(rec.Value))
			var vector []V
			for _, f := range fields[1:] {
				v, err := strconv.ParseFloat(f, 64)
				if err != nil {
					return err
				}
				vector = append(vector, element(value(v)))
			}
			emit.Emit(fields[0], vector)
			return nil
		}}
	}
	return vectorCase{
		name, func() mapreduce.Runnable { return job() },
		func(opts mapreduce.Options) (map[string][]float64, *mapreduce.Result, error) {
			rows, res, err := mapreduce.Collect(context.Background(), job(), opts)
			got := map[string][]float64{}
			for _, r := range rows {
				var vs []float64
				for _, x := range r.Result {
					switch x := any(x).(type) {
					case float64:
						vs = append(vs, x)
					case float32:
						vs = append(vs, float64(x))
					case int64:
						vs = append(vs, float64(x))
					case int32:
						vs = append(vs, float64(x))
					case mapreduce.BFloat16:
						vs = append(vs, float64(x.Float32()))
					}
				}
				got[r.Key] = vs
			}
			return got, res, err
		}, value, want,
	}
}

// vectorShapes are jobs that child processes run, as shapes are. Their input is of vectors.
var vectorShapes = map[string]func(*mapreduce.Options) mapreduce.Runnable{}

func init() {
	for _, f := range vectorFolds {
		vectorShapes["vector "+f.name] = func(*mapreduce.Options) mapreduce.Runnable { return f.job() }
	}
}

func vectorLines(keys []string, vs [][]float64) string {
	var b strings.Builder
	for i, vector := range vs {
		b.WriteString(keys[i])
		for _, v := range vector {
			fmt.Fprintf(&b, " %x", v)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Every element is the exact result, rounded once, or the error says which is too large.
func TestVectorFoldsAgainstBig(t *testing.T) {
	for _, f := range vectorFolds {
		t.Run(f.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				flat := hardFloats(t)
				for len(flat)%vectorLength != 0 {
					flat = append(flat, 0)
				}
				vectors := slices.Collect(slices.Chunk(flat, vectorLength))
				keys, columns := make([]string, len(vectors)), make([][]float64, vectorLength)
				for i, vector := range vectors {
					keys[i] = "k"
					for j, v := range vector {
						columns[j] = append(columns[j], f.value(v))
					}
				}
				var want []float64
				bad := -1 // the first element that is too large
				quantised := strings.Contains(f.name, "quantised")
				for j, vs := range columns {
					want = append(want, f.want(vs))
					if quantised && slices.ContainsFunc(vs, func(v float64) bool { return math.Abs(v/quantumOfTests) >= 1<<62 }) || math.IsInf(want[j], 0) {
						if bad < 0 {
							bad = j
						}
					}
				}
				got, _, err := f.get(stdin(vectorLines(keys, vectors)))
				switch {
				case bad >= 0 && quantised:
					// Of the first vector that has any.
					if !errors.Is(err, mapreduce.ErrQuantum) || !strings.Contains(err.Error(), `key "k": element `) {
						t.Fatalf("error %v", err)
					}
				case bad >= 0:
					if !errors.Is(err, mapreduce.ErrFloatOverflow) || !strings.Contains(err.Error(), fmt.Sprintf(`key "k": element %d: `, bad)) {
						t.Fatalf("got %v, error %v", got, err)
					}
				case err != nil:
					t.Fatal(err)
				case len(got) != 1 || !slices.EqualFunc(got["k"], want, sameFloat):
					t.Fatalf("got %x, want %x", got, want)
				}
			})
		})
	}
}

// shuffledVectors is 20 keys of vectors of very different size, some with many zeros.
func shuffledVectors(seed uint64) (keys []string, vs [][]float64) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1500 {
		keys = append(keys, "key"+strconv.Itoa(i%20))
		vector := make([]float64, vectorLength)
		for j := range vector {
			if i%3 != 0 || r.IntN(5) == 0 {
				vector[j] = math.Ldexp(r.NormFloat64(), r.IntN(100)-60)
			}
		}
		vs = append(vs, vector)
	}
	r = rand.New(rand.NewPCG(3, seed))
	if seed > 0 {
		r.Shuffle(len(vs), func(i, j int) { keys[i], keys[j], vs[i], vs[j] = keys[j], keys[i], vs[j], vs[i] })
	}
	return keys, vs
}

// The same bits for any order of the input and any way to run.
func TestVectorFoldsDoNotDependOnOrder(t *testing.T) {
	var texts []string
	for seed := range uint64(3) {
		texts = append(texts, text(t, vectorLines(shuffledVectors(seed))))
	}
	keys, vs := shuffledVectors(0)
	for _, f := range vectorFolds {
		t.Run(f.name, func(t *testing.T) {
			columns := map[string][][]float64{}
			for i, k := range keys {
				if columns[k] == nil {
					columns[k] = make([][]float64, vectorLength)
				}
				for j, v := range vs[i] {
					columns[k][j] = append(columns[k][j], f.value(v))
				}
			}
			for i, c := range []struct {
				workers int
				split   int64
			}{{1, 0}, {2, 20_000}, {3, 9_000}} {
				got, _, err := f.get(mapreduce.Options{Inputs: []string{texts[i]}, Workers: c.workers, Memory: 64 << 20, Input: input.Options{SplitSize: c.split}})
				if err != nil || len(got) != len(columns) {
					t.Fatal(got, err)
				}
				for k, vector := range got {
					for j, v := range vector {
						if want := f.want(columns[k][j]); !sameFloat(v, want) {
							t.Errorf("%+v: %s, element %d: got %x, want %x", c, k, j, v, want)
						}
					}
				}
			}
		})
	}
}

// Tasks of a cluster give the local bytes, which do not depend on the order of lines.
func TestVectorTasks(t *testing.T) {
	var inputs [2][]string
	for seed := range inputs {
		keys, vs := shuffledVectors(uint64(seed))
		for part := range slices.Chunk(vs, 750) {
			inputs[seed] = append(inputs[seed], text(t, vectorLines(keys[:len(part)], part)))
			keys = keys[len(part):]
		}
	}
	for i, f := range vectorFolds {
		if f.name == "sum of int32" || f.name == "min of int64" || f.name == "sum of float32" || f.name == "max" {
			continue // whose parts are those of others
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var first map[string]string
			for seed, files := range inputs {
				p := program{Shape: "vector " + f.name, Inputs: files, Format: output.JSONL, Parts: 1 + 2*(i%2), Split: 150_000, Total: i%4 == 1}
				sameAsLocal(t, &p, &tasktest.Runner{Folded: i%2 == seed, Memory: 16 << 20})
				files := tree(t, p.Output)
				delete(files, "_SUCCESS")
				if seed == 0 {
					first = files
				} else {
					sameTree(t, files, first)
				}
			}
		})
	}
}

// Long vectors of many keys, more than there is memory for.
func TestVectorsThatSpill(t *testing.T) {
	const n, keys, rounds = 5000, 40, 3
	value := func(key, round, i int) float64 {
		if i%7 == 0 {
			return 0
		}
		return math.Ldexp(float64(key*n+i), (i*round)%50)
	}
	job := &mapreduce.Job[int, []float64, []float64]{
		Name: "long", Fold: mapreduce.VectorFloat64Sum[float64](n),
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[int, []float64]) error {
			vector := make([]float64, n)
			for round := range rounds {
				for key := range keys {
					for i := range vector {
						vector[i] = value(key, round, i)
					}
					emit.Emit(key, vector)
				}
			}
			return nil
		},
	}
	opts := stdin("x\n")
	opts.Memory, opts.SpillDir = 16<<20, t.TempDir()
	rows, res, err := mapreduce.Collect(context.Background(), job, opts)
	if err != nil || len(rows) != keys {
		t.Fatal(len(rows), err)
	}
	if res.Spills < 2 {
		t.Errorf("%d spills", res.Spills)
	}
	for _, row := range rows {
		for i, v := range row.Result {
			var vs []float64
			for round := range rounds {
				vs = append(vs, value(row.Key, round, i))
			}
			if want := near(ratSum(vs)); i%10 < 2 && !sameFloat(v, want) {
				t.Fatalf("key %d, element %d: got %x, want %x", row.Key, i, v, want)
			}
		}
	}
}

// A pair for every four elements that are not all 0, and one at least, so that there is a row.
func TestPairsOfVectors(t *testing.T) {
	emitted := func(name string, text string) int64 {
		i := slices.IndexFunc(vectorFolds, func(f vectorCase) bool { return f.name == name })
		got, res, err := vectorFolds[i].get(stdin(text))
		if err != nil || len(got) != 1 || len(got["k"]) != vectorLength {
			t.Errorf("%s: %v, %v", name, got, err)
			return 0
		}
		return res.Audit.PairsEmitted
	}
	for _, c := range []struct {
		name string
		text string
		want int64
	}{
		{"sum of int64", "0 0 0 0 0 0 0 0 0 0 0", 1},
		{"sum of int64", "0 0 0 0 0 0 0 1 0 0 0", 1},
		{"sum of int64", "0 1 0 0 0 0 0 1 0 0 2", 3},
		{"max of int32", "0 0 0 0 0 0 0 0 0 0 0", 3},
		{"min", "0 0 0 0 0 0 0 0 0 0 0", 3},
		{"quantised sum", "0 0 0 0 0 0 0 0x1p-20 0 0 0", 1},
		{"quantised sum", "1 2 3 4 5 6 7 8 9 10 11", 3},
		{"sum", "0 0 0 0 0 0 0 0 0 0 0", 1},
		{"sum", "8 9 10 11 12 13 14 15 16 17 18", 6},
		{"sum", "1 2 3 4 5 6 7 8 9 10 11", 7}, /* 2 to 4 are the border of a range */
		{"sum", "1 1e300 0 0 0 0 1e-300 1 0 0 0", 4},
		{"sum", "0 -0 0 7 0 0 0 0 0 0 0", 1},
		{"float32 sum", "8 9 10 11 12 13 14 15 16 17 18", 3},
		{"float32 sum", "1 1e-20 1 1e20 0 0 0 0 0 0 0", 3},
		{"bfloat16 sum", "1 0 0 0 0 0 0 0 0 0 1", 2},
	} {
		if n := emitted(c.name, "k "+c.text+"\n"); n != c.want {
			t.Errorf("%s of %s: %d pairs, want %d", c.name, c.text, n, c.want)
		}
	}
}

func TestVectorsThatAreWrong(t *testing.T) {
	good := "a" + strings.Repeat(" 1", vectorLength) + "\n"
	for _, f := range vectorFolds {
		for _, wrong := range []int{0, vectorLength - 1, vectorLength + 1} {
			_, _, err := f.get(stdin(good + "bad" + strings.Repeat(" 1", wrong) + "\n"))
			want := fmt.Sprintf(`-: offset %d: key "bad": %v: %d elements, not %d`, len(good), mapreduce.ErrVector, wrong, vectorLength)
			if !errors.Is(err, mapreduce.ErrVector) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %s", f.name, err, want)
			}
		}
		if strings.Contains(f.name, " of int") {
			continue
		}
		if strings.Contains(f.name, "max") || strings.Contains(f.name, "32") || strings.Contains(f.name, "16") {
			continue // whose values here are never infinite
		}
		_, _, err := f.get(stdin(good + "bad 1 NaN" + strings.Repeat(" 1", vectorLength-2) + "\n"))
		if !errors.Is(err, mapreduce.ErrNonFinite) || !strings.Contains(err.Error(), `key "bad": value NaN`) {
			t.Errorf("%s: error %v", f.name, err)
		}
	}
	// Sums that do not fit name the element.
	job := &mapreduce.Job[string, []int64, []int64]{Name: "wrap", Fold: mapreduce.VectorSum[int64](6), Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, []int64]) error {
		n, err := strconv.ParseInt(string(rec.Value), 10, 64)
		emit.Emit("k", []int64{0, 0, 0, 0, 0, n})
		return err
	}}
	if _, _, err := mapreduce.Collect(t.Context(), job, stdin("9223372036854775807\n1\n")); !errors.Is(err, mapreduce.ErrOverflow) || !strings.Contains(err.Error(), `key "k": element 5: `) {
		t.Errorf("error %v", err)
	}
	rows, _, err := mapreduce.Collect(t.Context(), job, stdin("9223372036854775807\n1\n-9\n"))
	if err != nil || len(rows) != 1 || rows[0].Result[5] != math.MaxInt64-8 {
		t.Errorf("%v, %v", rows, err)
	}
}

// Elements that are no numbers are as good as 0, beside those that are.
func TestVectorsThatAreNotFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	vectors := [][]float64{{1, nan, 0, inf, 2}, {nan, nan, 0.25, -inf, -3}}
	none := [][]float64{{nan, -inf, nan, nan, nan}}
	collect := func(fold mapreduce.Fold[[]float64, []float64]) (string, map[string]int64) {
		job := &mapreduce.Job[string, []float64, []float64]{Name: "skip", Fold: fold, Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, []float64]) error {
			for _, v := range vectors {
				emit.Emit("k", v)
			}
			emit.Emit("none", none[0])
			return nil
		}}
		rows, res, err := mapreduce.Collect(t.Context(), job, stdin("x\n"))
		if err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
		return fmt.Sprint(rows[0].Result, rows[1].Result), res.Counters
	}
	skip := mapreduce.SkipNonFinite
	for _, c := range []struct {
		fold     mapreduce.Fold[[]float64, []float64]
		want     string
		nan, inf int64
	}{
		{mapreduce.VectorFloat64Sum[float64](5, skip), "[1 0 0.25 0 -1] [0 0 0 0 0]", 7, 3},
		{mapreduce.VectorFloat64Sum[float64](5, skip, mapreduce.Quantum(0.25)), "[1 0 0.25 0 -1] [0 0 0 0 0]", 7, 3},
		{mapreduce.VectorFloatMin[float64](5, skip), "[1 NaN 0 -Inf -3] [NaN -Inf NaN NaN NaN]", 7, 0},
		{mapreduce.VectorFloatMax[float64](5, skip), "[1 NaN 0.25 +Inf 2] [NaN -Inf NaN NaN NaN]", 7, 0},
	} {
		got, counters := collect(c.fold)
		if got != c.want || counters["NaN values skipped"] != c.nan || counters["infinite values skipped"] != c.inf {
			t.Errorf("got %s, %v, want %s", got, counters, c.want)
		}
	}
	extremes := &mapreduce.Job[string, []float32, []float32]{Name: "skip", Fold: mapreduce.VectorFloatMin[float32](4, skip), Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, []float32]) error {
		emit.Emit("k", []float32{0.1, float32(nan), float32(inf), float32(-inf)})
		return nil
	}}
	if got, _ := run(t, extremes, stdin("x\n")); got != "{\"key\":\"k\",\"value\":[0.1,\"NaN\",\"Infinity\",\"-Infinity\"]}\n" {
		t.Errorf("rows %s", got)
	}
	for _, fold := range []mapreduce.Fold[[]float64, []float64]{
		mapreduce.VectorFloat64Sum[float64](5), mapreduce.VectorFloat64Sum[float64](5, mapreduce.Quantum(0.25)),
	} {
		counted := mapreduce.Then(mapreduce.CountNonFinite(fold), func(c mapreduce.Counted[[]float64]) ([]float64, error) {
			return append(c.Value, float64(c.NaN), float64(c.PosInf), float64(c.NegInf)), nil
		})
		if got, _ := collect(counted); got != "[1 0 0.25 0 -1 3 1 1] [0 0 0 0 0 4 0 1]" {
			t.Errorf("got %s", got)
		}
	}
}

func TestBFloat16(t *testing.T) {
	b, err := json.Marshal([]mapreduce.BFloat16{mapreduce.BFloat16Of(1), mapreduce.BFloat16Of(-0.1), 0x8000, 1})
	if want := "[1,-0.100097656,-0,9.1835e-41]"; string(b) != want || err != nil {
		t.Errorf("got %s, %v", b, err)
	}
	if _, err := json.Marshal(mapreduce.BFloat16Of(float32(math.Inf(1)))); err == nil {
		t.Error("JSON has infinities")
	}
}

func TestEmitOfVectorsDoesNotAllocate(t *testing.T) {
	noAllocs(t, "VectorSum", mapreduce.VectorSum[int64](7), []int64{1, 2, 3, 4, 5, 6, 7})
	noAllocs(t, "VectorMin", mapreduce.VectorMin[int32](3), []int32{1, 2, 3})
	noAllocs(t, "VectorFloat64Sum", mapreduce.VectorFloat64Sum[float64](3), []float64{1, 2e99, 3})
	noAllocs(t, "VectorFloat32Sum", mapreduce.VectorFloat32Sum[float32](5), []float32{1, 2e9, 3, 4, 5})
	noAllocs(t, "VectorBFloat16Sum", mapreduce.VectorBFloat16Sum(5), []mapreduce.BFloat16{1, 2, 3, 4, 5})
	noAllocs(t, "Quantum", mapreduce.VectorFloat64Sum[float64](3, mapreduce.Quantum(1)), []float64{1, 2e9, 3})
	noAllocs(t, "VectorFloatMin", mapreduce.VectorFloatMin[float64](3, mapreduce.SkipNonFinite), []float64{1, math.NaN(), 3})
}

func BenchmarkEmitVectors(b *testing.B) {
	const n = 1000
	wide, narrow, ints, half := make([]float64, n), make([]float32, n), make([]int64, n), make([]mapreduce.BFloat16, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		wide[i] = r.NormFloat64()
		narrow[i], ints[i], half[i] = float32(wide[i]), int64(wide[i]*1000), mapreduce.BFloat16Of(float32(wide[i]))
	}
	keys := []string{"a", "b", "c", "d"}
	benchVectors(b, "VectorSum int64", mapreduce.VectorSum[int64](n), keys, ints)
	benchVectors(b, "VectorMin int64", mapreduce.VectorMin[int64](n), keys, ints)
	benchVectors(b, "VectorFloat64Sum", mapreduce.VectorFloat64Sum[float64](n), keys, wide)
	benchVectors(b, "VectorFloat64Sum quantised", mapreduce.VectorFloat64Sum[float64](n, mapreduce.Quantum(1e-6)), keys, wide)
	benchVectors(b, "VectorFloat32Sum", mapreduce.VectorFloat32Sum[float32](n), keys, narrow)
	benchVectors(b, "VectorBFloat16Sum", mapreduce.VectorBFloat16Sum(n), keys, half)
	benchVectors(b, "VectorFloatMin", mapreduce.VectorFloatMin[float64](n), keys, wide)
}

func benchVectors[V, R any](b *testing.B, name string, fold mapreduce.Fold[[]V, R], keys []string, v []V) {
	b.Run(name, func(b *testing.B) {
		job := &mapreduce.Job[string, []V, R]{Name: name, Fold: fold, Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, []V]) error {
			emit.Emit(keys[0], v)
			b.ResetTimer()
			for i := range b.N {
				emit.Emit(keys[i%len(keys)], v)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(v)), "ns/element")
			return nil
		}}
		if _, _, err := mapreduce.Collect(context.Background(), job, stdin("x\n")); err != nil {
			b.Fatal(err)
		}
	})
}
