// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
)

// emitFloats emits lines of a key and a float.
func emitFloats(rec mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
	key, text, _ := strings.Cut(string(rec.Value), " ")
	v, err := strconv.ParseFloat(text, 64)
	emit.Emit(key, v)
	return err
}

func emitFloats32(rec mapreduce.Record, emit *mapreduce.Emitter[string, float32]) error {
	key, text, _ := strings.Cut(string(rec.Value), " ")
	v, err := strconv.ParseFloat(text, 32)
	emit.Emit(key, float32(v))
	return err
}

// emitWeighted has the value's weight from its own digits.
func emitWeighted(rec mapreduce.Record, emit *mapreduce.Emitter[string, mapreduce.Weighted[float64]]) error {
	key, text, _ := strings.Cut(string(rec.Value), " ")
	v, err := strconv.ParseFloat(text, 64)
	emit.Emit(key, mapreduce.Weighted[float64]{Value: v, Weight: weightOf(v)})
	return err
}

func weightOf(v float64) float64 { return float64(math.Float64bits(v)%1000)/64 + 1 }

// floatCase is a fold of floats and what it must give.
type floatCase struct {
	name string
	job  func() mapreduce.Runnable
	get  func(opts mapreduce.Options) (map[string]float64, error)
	want func(vs []float64) float64
}

var floatFolds = []floatCase{
	floatFold("sum", emitFloats, mapreduce.Float64Sum[float64](), func(vs []float64) float64 { return near(ratSum(vs)) }),
	floatFold("mean", emitFloats, mapreduce.FloatMean[float64](), func(vs []float64) float64 { return near(over(ratSum(vs), len(vs))) }),
	floatFold("weighted mean", emitWeighted, mapreduce.WeightedMean[float64](), func(vs []float64) float64 {
		sum, weights := new(big.Rat), new(big.Rat)
		for _, v := range vs {
			w := rat(weightOf(v))
			weights.Add(weights, w)
			sum.Add(sum, w.Mul(w, rat(v)))
		}
		return near(sum.Quo(sum, weights))
	}),
	floatFold("variance", emitFloats, mapreduce.Variance[float64](), func(vs []float64) float64 { return near(ratVariance(vs, 0)) }),
	floatFold("sample variance", emitFloats, mapreduce.SampleVariance[float64](), func(vs []float64) float64 { return near(ratVariance(vs, 1)) }),
	floatFold("deviation", emitFloats, mapreduce.StdDev[float64](), func(vs []float64) float64 { return nearRoot(ratVariance(vs, 0)) }),
	floatFold("sample deviation", emitFloats, mapreduce.SampleStdDev[float64](), func(vs []float64) float64 { return nearRoot(ratVariance(vs, 1)) }),
	floatFold("min", emitFloats, mapreduce.FloatMin[float64](), slices.Min[[]float64]),
	floatFold("max", emitFloats, mapreduce.FloatMax[float64](), slices.Max[[]float64]),
	floatFold("sum of float32", emitFloats32, mapreduce.Float64Sum[float32](), func(vs []float64) float64 { return near(ratSum(narrowed(vs))) }),
	floatFold("mean of float32", emitFloats32, mapreduce.FloatMean[float32](), func(vs []float64) float64 { return near(over(ratSum(narrowed(vs)), len(vs))) }),
	floatFold("float32 sum", emitFloats32, mapreduce.Then(mapreduce.Float32Sum[float32](), func(v float32) (float64, error) { return float64(v), nil }), func(vs []float64) float64 {
		v, _ := ratSum(narrowed(vs)).Float32()
		return float64(v)
	}),
	floatFold("float32 variance", emitFloats32, mapreduce.Variance[float32](), func(vs []float64) float64 { return near(ratVariance(narrowed(vs), 0)) }),
	floatFold("quantised sum", emitFloats, mapreduce.Float64Sum[float64](mapreduce.Quantum(quantumOfTests)), func(vs []float64) float64 {
		return near(ratSum(rounded(vs)))
	}),
	floatFold("quantised mean", emitFloats, mapreduce.FloatMean[float64](mapreduce.Quantum(quantumOfTests)), func(vs []float64) float64 {
		return near(over(ratSum(rounded(vs)), len(vs)))
	}),
}

const quantumOfTests = 0x1p-10

// rounded rounds to multiples of the quantum, which is exact for a power of two.
func rounded(vs []float64) (out []float64) {
	for _, v := range vs {
		if math.Abs(v) < 1<<50 { // else it is a multiple
			v = math.RoundToEven(v/quantumOfTests) * quantumOfTests
		}
		out = append(out, v)
	}
	return out
}

func narrowed(vs []float64) (out []float64) {
	for _, v := range vs {
		out = append(out, float64(float32(v)))
	}
	return out
}

func floatFold[V any](name string, emit func(mapreduce.Record, *mapreduce.Emitter[string, V]) error, fold mapreduce.Fold[V, float64], want func([]float64) float64) floatCase {
	job := func() *mapreduce.Job[string, V, float64] {
		return &mapreduce.Job[string, V, float64]{Name: name, Map: emit, Fold: fold}
	}
	return floatCase{
		name, func() mapreduce.Runnable { return job() },
		func(opts mapreduce.Options) (map[string]float64, error) {
			rows, _, err := mapreduce.Collect(context.Background(), job(), opts)
			got := map[string]float64{}
			for _, r := range rows {
				got[r.Key] = r.Result
			}
			return got, err
		}, want,
	}
}

func rat(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }

func ratSum(vs []float64) *big.Rat {
	sum := new(big.Rat)
	for _, v := range vs {
		sum.Add(sum, rat(v))
	}
	return sum
}

func over(r *big.Rat, n int) *big.Rat { return new(big.Rat).Quo(r, big.NewRat(int64(n), 1)) }

// ratVariance is the mean square of deviations from the mean, as defined. Nil: there is none.
func ratVariance(vs []float64, less int) *big.Rat {
	if len(vs) <= less {
		return nil
	}
	mean, sum := over(ratSum(vs), len(vs)), new(big.Rat)
	for _, v := range vs {
		d := rat(v)
		d.Sub(d, mean)
		sum.Add(sum, d.Mul(d, d))
	}
	return over(sum, len(vs)-less)
}

func near(r *big.Rat) float64 {
	if r == nil {
		return math.NaN()
	}
	v, _ := r.Float64()
	return v // -0 if it is a little less than 0
}

func nearRoot(r *big.Rat) float64 {
	if r == nil {
		return math.NaN()
	}
	f := new(big.Float).SetPrec(6000).SetRat(r)
	v, _ := f.Sqrt(f).Float64()
	return v
}

// sameFloat compares bits, but for the kinds of NaN.
func sameFloat(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

func floatLines(keys []string, vs []float64) string {
	var b strings.Builder
	for i, v := range vs {
		fmt.Fprintf(&b, "%s %x\n", keys[i], v)
	}
	return b.String()
}

func stdin(text string) mapreduce.Options {
	return mapreduce.Options{Inputs: []string{"-"}, Input: input.Options{Stdin: strings.NewReader(text)}, Memory: 32 << 20, Workers: 2}
}

// hardFloats draws lists that plain addition gets wrong.
func hardFloats(t *rapid.T) []float64 {
	kind := rapid.SampledFrom([]string{"any", "subnormal", "ratios", "negative", "usual", "huge"}).Draw(t, "kind")
	vs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float64 {
		b := rapid.Uint64().Draw(t, "bits")
		sign := b & (1 << 63)
		switch kind {
		case "subnormal":
			b &= 1<<52 - 1
		case "ratios":
			return math.Float64frombits(sign|math.Float64bits(1)) * rapid.SampledFrom([]float64{1e308, 1e-308, 1e200, 1e-200, 1, 3e-324}).Draw(t, "size")
		case "negative":
			return -rapid.Float64Range(1e-3, 1e6).Draw(t, "v")
		case "usual":
			return rapid.Float64Range(-1e3, 1e3).Draw(t, "v")
		case "huge":
			return math.Float64frombits(sign | b>>12 | 2046<<52)
		}
		if b&(0x7ff<<52) == 0x7ff<<52 {
			b &^= 1 << 60
		}
		return math.Float64frombits(b | sign)
	}), 1, 30).Draw(t, "values")
	if rapid.Bool().Draw(t, "cancel") { // all but a little of it
		for _, v := range slices.Clone(vs) {
			vs = append(vs, -v)
		}
		vs = append(vs, rapid.SampledFrom([]float64{0x1p-1074, 1e-300, 0.1}).Draw(t, "rest"))
	}
	return vs
}

// Every fold gives the exact result, rounded once, or says that it is too large.
func TestFloatFoldsAgainstBig(t *testing.T) {
	for _, f := range floatFolds {
		t.Run(f.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				vs := hardFloats(t)
				if strings.Contains(f.name, "float32") { // keep them from being infinite
					for i := range vs {
						vs[i] = float64(float32(math.Mod(vs[i], 1e38)))
					}
				}
				keys := make([]string, len(vs))
				for i := range keys {
					keys[i] = "k"
				}
				want := f.want(vs)
				quantised := strings.Contains(f.name, "quantised")
				large := slices.ContainsFunc(vs, func(v float64) bool { return math.Abs(v/quantumOfTests) >= 1<<62 })
				got, err := f.get(stdin(floatLines(keys, vs)))
				switch {
				case quantised && large:
					if !errors.Is(err, mapreduce.ErrQuantum) || !strings.Contains(err.Error(), `key "k"`) {
						t.Fatalf("error %v", err)
					}
				case math.IsInf(want, 0):
					if !errors.Is(err, mapreduce.ErrFloatOverflow) || !strings.Contains(err.Error(), `key "k"`) {
						t.Fatalf("got %v, error %v", got, err)
					}
				case err != nil:
					t.Fatal(err)
				case len(got) != 1 || !sameFloat(got["k"], want):
					t.Fatalf("got %x, want %x", got, want)
				}
			})
		})
	}
}

// shuffledFloats is 30 keys of values of very different size.
func shuffledFloats(seed uint64) (keys []string, vs []float64) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 6_000 {
		keys = append(keys, "key"+strconv.Itoa(i%30))
		vs = append(vs, math.Ldexp(r.NormFloat64(), r.IntN(100)-60))
	}
	r = rand.New(rand.NewPCG(3, seed))
	if seed > 0 {
		r.Shuffle(len(vs), func(i, j int) { keys[i], keys[j], vs[i], vs[j] = keys[j], keys[i], vs[j], vs[i] })
	}
	return keys, vs
}

// The same bits for any order of the input and any way to run, where plain
// addition gives others.
func TestFloatFoldsDoNotDependOnOrder(t *testing.T) {
	plain := func(keys []string, vs []float64) map[string]float64 {
		sums := map[string]float64{}
		for i, k := range keys {
			sums[k] += vs[i]
		}
		return sums
	}
	values := map[string][]float64{}
	keys, vs := shuffledFloats(0)
	for i, k := range keys {
		values[k] = append(values[k], vs[i])
	}
	first := plain(keys, vs)
	var texts []string
	for seed := range uint64(3) {
		keys, vs := shuffledFloats(seed)
		if seed > 0 && maps.Equal(plain(keys, vs), first) {
			t.Fatal("plain addition does not depend on this order: the test proves nothing")
		}
		texts = append(texts, floatLines(keys, vs))
	}
	for _, f := range floatFolds {
		t.Run(f.name, func(t *testing.T) {
			want := map[string]float64{}
			for k, vs := range values {
				want[k] = f.want(vs)
			}
			for i, c := range []struct {
				workers int
				split   int64
			}{{1, 0}, {2, 20_000}, {3, 3_000}, {8, 9_000}} {
				got, err := f.get(mapreduce.Options{
					Inputs: []string{text(t, texts[i%len(texts)])}, Workers: c.workers, Memory: 64 << 20, Input: input.Options{SplitSize: c.split},
				})
				if err != nil || len(got) != len(want) {
					t.Fatal(got, err)
				}
				for k, v := range got {
					if !sameFloat(v, want[k]) {
						t.Errorf("%+v: %s: got %x, want %x", c, k, v, want[k])
					}
				}
			}
		})
	}
}

// Spills change nothing.
func TestFloatSumsThatSpill(t *testing.T) {
	var b strings.Builder
	r := rand.New(rand.NewPCG(1, 2))
	want := map[string]*big.Rat{}
	for i := range 3000 {
		for range 100 {
			k, v := "key"+strconv.Itoa(r.IntN(150_000)), math.Ldexp(r.NormFloat64(), r.IntN(100)-60)
			fmt.Fprintf(&b, "%s %x ", k, v)
			if i%100 == 0 { // those of some keys are enough to be added up by other means
				want[k] = new(big.Rat)
			}
		}
		b.WriteString("\n")
	}
	job := &mapreduce.Job[string, float64, float64]{
		Name: "many", Fold: mapreduce.Float64Sum[float64](),
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
			fields := strings.Fields(string(rec.Value))
			for i := 0; i < len(fields); i += 2 {
				v, err := strconv.ParseFloat(fields[i+1], 64)
				if err != nil {
					return err
				}
				emit.Emit(fields[i], v)
			}
			return nil
		},
	}
	fields := strings.Fields(b.String())
	for i := 0; i < len(fields); i += 2 {
		if sum := want[fields[i]]; sum != nil {
			v, _ := strconv.ParseFloat(fields[i+1], 64)
			sum.Add(sum, rat(v))
		}
	}
	rows, res, err := mapreduce.Collect(context.Background(), job, mapreduce.Options{Inputs: []string{text(t, b.String())}, Memory: 16 << 20, SpillDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if res.Spills < 2 {
		t.Errorf("%d spills", res.Spills)
	}
	checked := 0
	for _, row := range rows {
		if sum := want[row.Key]; sum != nil {
			checked++
			if !sameFloat(row.Result, near(sum)) {
				t.Errorf("%s: got %x, want %x", row.Key, row.Result, near(sum))
			}
		}
	}
	if checked != len(want) {
		t.Errorf("%d keys of %d", checked, len(want))
	}
}

// So many numbers of the largest exponent that lanes wrap: the sums are of the
// carries too.
func TestFloatSumsThatWrap(t *testing.T) {
	const n = 1<<21 + 1<<19
	// All bits of the mantissa, in the highest place of a window: lanes that are full.
	full := math.Nextafter(4, 0)
	add := &mapreduce.Job[string, float64, float64]{
		Name: "wrap", Fold: mapreduce.Float64Sum[float64](),
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
			for range n {
				emit.Emit("k", full)
			}
			return nil
		},
	}
	want := near(new(big.Rat).Mul(rat(full), big.NewRat(n, 1)))
	if rows, _, err := mapreduce.Collect(context.Background(), add, stdin("x\n")); err != nil || len(rows) != 1 || rows[0].Result != want {
		t.Errorf("got %v, %v, want %v", rows, err, want)
	}
	for _, sign := range []float64{1, -1} {
		job := &mapreduce.Job[string, float64, float64]{
			Name: "wrap", Fold: mapreduce.Float64Sum[float64](),
			Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
				largest := sign * math.MaxFloat64
				if rec.Value[0] == '-' {
					largest = -largest
				}
				for range n {
					emit.Emit("k", largest)
				}
				emit.Emit("k", sign*0x1p-1074)
				return nil
			},
		}
		rows, _, err := mapreduce.Collect(context.Background(), job, stdin("+\n-\n"))
		if err != nil || len(rows) != 1 || rows[0].Result != sign*0x1p-1073 {
			t.Errorf("got %v, %v", rows, err)
		}
		if sign < 0 {
			continue
		}
		if _, _, err := mapreduce.Collect(context.Background(), job, stdin("+\n")); !errors.Is(err, mapreduce.ErrFloatOverflow) {
			t.Errorf("error %v", err)
		}
	}
}

const notFinite = "a 1.5\na NaN\nb +Inf\na 2\nb -Inf\nb -Inf\nc NaN\nd 0\n"

func TestNonFiniteIsAnError(t *testing.T) {
	for _, f := range floatFolds {
		_, err := f.get(stdin("a 1\nbad NaN\n"))
		if !errors.Is(err, mapreduce.ErrNonFinite) || !strings.Contains(err.Error(), `-: offset 4: key "bad": value NaN`) {
			t.Errorf("%s: error %v", f.name, err)
		}
		_, err = f.get(stdin("a 1\na -Inf\n"))
		if order := f.name == "min" || f.name == "max"; order != (err == nil) || !order && !strings.Contains(err.Error(), `-: offset 4: key "a": value -Inf`) {
			t.Errorf("%s: error %v", f.name, err)
		}
	}
	job := &mapreduce.Job[int, float64, float64]{Name: "ints", Fold: mapreduce.Float64Sum[float64](), NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[int, float64]) error {
		return func(b mapreduce.Block, emit *mapreduce.Emitter[int, float64]) error {
			emit.Emit(-7, math.NaN())
			emit.Emit(-8, math.NaN())
			return nil
		}
	}}
	if _, _, err := mapreduce.Collect(context.Background(), job, stdin("x\n")); !errors.Is(err, mapreduce.ErrNonFinite) || !strings.Contains(err.Error(), "-: in the block at offset 0: key -7: value NaN") {
		t.Errorf("error %v", err)
	}
}

func TestNonFiniteIsSkipped(t *testing.T) {
	skip := mapreduce.SkipNonFinite
	for _, c := range []struct {
		fold mapreduce.Fold[float64, float64]
		want string
		nan  int64
		inf  int64
	}{
		{mapreduce.Float64Sum[float64](skip), "map[a:3.5 d:0]", 2, 3},
		{mapreduce.Float64Sum[float64](skip, mapreduce.Quantum(0.5)), "map[a:3.5 d:0]", 2, 3},
		{mapreduce.FloatMean[float64](skip), "map[a:1.75 d:0]", 2, 3},
		{mapreduce.FloatMean[float64](mapreduce.Quantum(1), skip), "map[a:2 d:0]", 2, 3},
		{mapreduce.Variance[float64](skip), "map[a:0.0625 d:0]", 2, 3},
		{mapreduce.SampleStdDev[float64](skip), "map[a:0.3535533905932738 d:NaN]", 2, 3},
		{mapreduce.FloatMin[float64](skip), "map[a:1.5 b:-Inf d:0]", 2, 0},
		{mapreduce.FloatMax[float64](skip), "map[a:2 b:+Inf d:0]", 2, 0},
	} {
		rows, res, err := mapreduce.Collect(context.Background(), &mapreduce.Job[string, float64, float64]{Name: "skip", Map: emitFloats, Fold: c.fold}, stdin(notFinite))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, r := range rows {
			got[r.Key] = r.Result
		}
		if fmt.Sprint(got) != c.want || res.Counters["NaN values skipped"] != c.nan || res.Counters["infinite values skipped"] != c.inf {
			t.Errorf("got %v, %v, want %s, %d, %d", got, res.Counters, c.want, c.nan, c.inf)
		}
	}
}

func TestNonFiniteIsCounted(t *testing.T) {
	for _, c := range []struct {
		fold mapreduce.Fold[float64, float64]
		want string
	}{
		{mapreduce.Float64Sum[float64](), "a={3.5 1 0 0} b={0 0 1 2} c={0 1 0 0} d={0 0 0 0} "},
		{mapreduce.Float64Sum[float64](mapreduce.Quantum(0.5)), "a={3.5 1 0 0} b={0 0 1 2} c={0 1 0 0} d={0 0 0 0} "},
		{mapreduce.FloatMean[float64](), "a={1.75 1 0 0} b={NaN 0 1 2} c={NaN 1 0 0} d={0 0 0 0} "},
		{mapreduce.FloatMean[float64](mapreduce.Quantum(1)), "a={2 1 0 0} b={NaN 0 1 2} c={NaN 1 0 0} d={0 0 0 0} "},
		{mapreduce.Variance[float64](), "a={0.0625 1 0 0} b={NaN 0 1 2} c={NaN 1 0 0} d={0 0 0 0} "},
		{mapreduce.FloatMin[float64](), "a={1.5 1 0 0} b={-Inf 0 0 0} c={NaN 1 0 0} d={0 0 0 0} "},
		{mapreduce.FloatMax[float64](), "a={2 1 0 0} b={+Inf 0 0 0} c={NaN 1 0 0} d={0 0 0 0} "},
	} {
		job := &mapreduce.Job[string, float64, mapreduce.Counted[float64]]{Name: "count", Map: emitFloats, Fold: mapreduce.CountNonFinite(c.fold)}
		rows, _, err := mapreduce.Collect(context.Background(), job, stdin(notFinite))
		got := ""
		for _, r := range rows {
			got += fmt.Sprintf("%s=%v ", r.Key, r.Result)
		}
		if err != nil || got != c.want {
			t.Errorf("got %v, %v, want %v", got, err, c.want)
		}
	}
	job := &mapreduce.Job[string, float64, mapreduce.Counted[float64]]{Name: "count", Map: emitFloats, Fold: mapreduce.CountNonFinite(mapreduce.Float64Sum[float64]())}
	got, _ := run(t, job, stdin("a NaN\na 0.5\n"))
	if want := "{\"key\":\"a\",\"value\":{\"value\":0.5,\"nan\":1,\"pos_inf\":0,\"neg_inf\":0}}\n"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestWeightsThatAreNotFinite(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	pairs := []mapreduce.Weighted[float64]{{Value: 1, Weight: 2}, {Value: inf, Weight: 0}, {Value: 0, Weight: nan}, {Value: -1, Weight: inf}, {Value: -inf, Weight: -1}, {Value: 4, Weight: 1}}
	job := &mapreduce.Job[string, mapreduce.Weighted[float64], mapreduce.Counted[float64]]{
		Name: "weights", Fold: mapreduce.CountNonFinite(mapreduce.WeightedMean[float64]()),
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, mapreduce.Weighted[float64]]) error {
			for _, p := range pairs {
				emit.Emit("a", p)
			}
			emit.Emit("none", mapreduce.Weighted[float64]{Value: 5, Weight: 1})
			emit.Emit("none", mapreduce.Weighted[float64]{Value: 7, Weight: -1})
			return nil
		},
	}
	rows, _, err := mapreduce.Collect(context.Background(), job, stdin("x\n"))
	if got := fmt.Sprint(rows); err != nil || got != "[{a {2 2 1 1}} {none {NaN 0 0 0}}]" {
		t.Error(got, err)
	}
}

// Zeros, their signs, and float32 sums that are rounded once, not twice.
func TestFloatSumsByHand(t *testing.T) {
	for _, c := range []struct {
		lines  string
		double float64
		single float32
	}{
		{"k -0\nk -0\n", 0, 0},
		{"k 0.1\nk -0.1\n", 0, 0},
		{"k 0x1.000001p0\nk 0x1p-60\n", 0x1.000001p0, 0x1.000002p0}, // the float64 alone is a tie
		{"k 0x1p60\nk 1\nk -0x1p60\n", 1, 1},
		{"k 0x1p-149\nk 0x1p-149\n", 0x1p-148, 0x1p-148},
	} {
		rows, _, err := mapreduce.Collect(context.Background(), &mapreduce.Job[string, float64, float64]{Name: "sum", Map: emitFloats, Fold: mapreduce.Float64Sum[float64]()}, stdin(c.lines))
		if err != nil || len(rows) != 1 || !sameFloat(rows[0].Result, c.double) {
			t.Errorf("%q: %v, %v", c.lines, rows, err)
		}
		lines := strings.ReplaceAll(c.lines, "0x1.000001p0", "1\nk 0x1p-24")
		single, _, err := mapreduce.Collect(context.Background(), &mapreduce.Job[string, float32, float32]{Name: "sum", Map: emitFloats32, Fold: mapreduce.Float32Sum[float32]()}, stdin(lines))
		if err != nil || len(single) != 1 || !sameFloat(float64(single[0].Result), float64(c.single)) {
			t.Errorf("%q: %v, %v", lines, single, err)
		}
	}
	job := &mapreduce.Job[string, float32, float32]{Name: "sum", Map: emitFloats32, Fold: mapreduce.Float32Sum[float32]()}
	if _, _, err := mapreduce.Collect(context.Background(), job, stdin("big 3e38\nbig 3e38\n")); !errors.Is(err, mapreduce.ErrFloatOverflow) || !strings.Contains(err.Error(), `key "big"`) {
		t.Errorf("error %v", err)
	}
}

// What decides a tie may stand far behind the digits that are kept.
func TestFloatMeansByHand(t *testing.T) {
	for lines, want := range map[string]float64{
		"k 1\nk 0x1p-53\nk 0\nk 0\n":                           0.25,
		"k 1\nk 0x1p-53\nk 0x1p-300\nk 0\n":                    0.25 + 0x1p-54,
		"k 1\nk 0x1p-53\nk 0x1p-1074\nk 0\n":                   0.25 + 0x1p-54,
		"k 0x1p-1074\nk 0\n":                                   0,
		"k 0x1p-1074\nk 0x1p-1074\nk 0\n":                      0x1p-1074,
		"k 0x1.fffffffffffffp1023\nk 0x1.fffffffffffffp1023\n": math.MaxFloat64,
	} {
		rows, _, err := mapreduce.Collect(context.Background(), &mapreduce.Job[string, float64, float64]{Name: "mean", Map: emitFloats, Fold: mapreduce.FloatMean[float64]()}, stdin(lines))
		if err != nil || len(rows) != 1 || rows[0].Result != want {
			t.Errorf("%q: %x, want %x, %v", lines, rows, want, err)
		}
	}
}

// The measured error is that of the multiples, and never above the bound.
func TestMeasuredSum(t *testing.T) {
	measure := func(q float64, lines string) (mapreduce.Measured, error) {
		job := &mapreduce.Job[string, float64, mapreduce.Measured]{Name: "measured", Map: emitFloats, Fold: mapreduce.MeasuredSum[float64](q)}
		rows, _, err := mapreduce.Collect(context.Background(), job, stdin(lines))
		if err != nil || len(rows) != 1 {
			return mapreduce.Measured{}, err
		}
		return rows[0].Result, nil
	}
	m, err := measure(0.25, "k 0.375\nk 1.125\nk -0.0625\n") // ties go to 0.5 and 1
	if want := (mapreduce.Measured{Sum: 1.5, Exact: 1.4375, Error: 0.0625, Bound: 0.375, Count: 3}); err != nil || m != want {
		t.Errorf("got %+v, %v", m, err)
	}
	m, err = measure(0.5, "k 0.25\nk 0.25\nk 1.25\n")
	if want := (mapreduce.Measured{Sum: 1, Exact: 1.75, Error: -0.75, Bound: 0.75, Count: 3}); err != nil || m != want {
		t.Errorf("got %+v, %v", m, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		vs := hardFloats(t)
		q := rapid.OneOf(rapid.SampledFrom([]float64{0.01, 1e-3, 1, 0x1p-1074, 1e300, 1e291}), rapid.Float64Range(1e-9, 1e9)).Draw(t, "quantum")
		keys := slices.Repeat([]string{"k"}, len(vs))
		m, err := measure(q, floatLines(keys, vs))
		if errors.Is(err, mapreduce.ErrQuantum) || errors.Is(err, mapreduce.ErrFloatOverflow) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		exactly := ratSum(vs)
		if !sameFloat(m.Exact, near(exactly)) || m.Count != int64(len(vs)) {
			t.Errorf("%+v: the exact sum is %x", m, near(exactly))
		}
		bound := new(big.Rat).Mul(rat(q), big.NewRat(m.Count, 2))
		if math.Abs(m.Error) > m.Bound || rat(m.Bound).Cmp(bound) < 0 || rat(m.Bound/2).Cmp(bound) > 0 {
			t.Errorf("%+v, the bound is %v", m, bound)
		}
		sum := new(big.Rat)
		for _, v := range vs { // rounded by other means
			k := new(big.Rat).Quo(rat(v), rat(q))
			n := new(big.Int).Div(new(big.Int).Add(new(big.Int).Lsh(k.Num(), 1), k.Denom()), new(big.Int).Lsh(k.Denom(), 1)) // floor(k + 1/2)
			if k.Sub(k, new(big.Rat).SetInt(n)).Cmp(big.NewRat(-1, 2)) == 0 && n.Bit(0) == 1 {
				n.Sub(n, big.NewInt(1))
			}
			sum.Add(sum, k.SetInt(n))
		}
		sum.Mul(sum, rat(q))
		if !sameFloat(m.Sum, near(sum)) || m.Error != near(sum.Sub(sum, exactly)) {
			t.Errorf("%+v: the multiples make %x", m, near(sum))
		}
	})
}

func TestQuantumSaysItsBound(t *testing.T) {
	job := &mapreduce.Job[string, float64, float64]{Name: "quantum", Map: emitFloats, Fold: mapreduce.Float64Sum[float64](mapreduce.Quantum(0.01))}
	_, res := run(t, job, stdin("a 0.014\n"))
	const note = "values were rounded to the nearest multiple of 0.01: before it is rounded to a 64-bit float, a sum of n values is off by at most n x 0.005"
	if !slices.Contains(res.Notes, note) {
		t.Errorf("notes %q", res.Notes)
	}
	x, err := job.Explain(context.Background(), stdin(""))
	if err != nil || !slices.Contains(x.Notes, note) {
		t.Errorf("%+v, %v", x, err)
	}
	// Sums beyond 64 bits, in one record and over several.
	job.Map = func(_ mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
		for range 7 {
			emit.Emit("a", 0x1.8p61)
			emit.Emit("b", -0x1.8p61)
		}
		return nil
	}
	job.Fold = mapreduce.Float64Sum[float64](mapreduce.Quantum(1))
	rows, _, err := mapreduce.Collect(context.Background(), job, stdin("x\ny\n"))
	if got := fmt.Sprint(rows); err != nil || got != fmt.Sprint([]mapreduce.Row[string, float64]{{Key: "a", Result: 21 * 0x1p61}, {Key: "b", Result: -21 * 0x1p61}}) {
		t.Error(got, err)
	}
	job.Map = emitFloats
	if _, _, err := mapreduce.Collect(context.Background(), job, stdin("a 1\nb 0x1p62\n")); !errors.Is(err, mapreduce.ErrQuantum) || !strings.Contains(err.Error(), `-: offset 4: key "b": value 4.611686018427388e+18`) {
		t.Errorf("error %v", err)
	}
}

func TestFloatOptionsThatAreWrong(t *testing.T) {
	q := mapreduce.Quantum
	for want, f := range map[string]mapreduce.Fold[float64, float64]{
		"quantum 0:":    mapreduce.Float64Sum[float64](q(0)),
		"quantum -1:":   mapreduce.FloatMean[float64](q(-1)),
		"quantum NaN:":  mapreduce.Float64Sum[float64](q(math.NaN())),
		"quantum +Inf:": mapreduce.Float64Sum[float64](q(math.Inf(1))),
		"fold Variance": mapreduce.Variance[float64](q(1)),
		"fold FloatMin": mapreduce.FloatMin[float64](q(1)),
		"fold CountNonFinite": mapreduce.Then(mapreduce.CountNonFinite(mapreduce.CountNonFinite(mapreduce.Float64Sum[float64]())), func(c mapreduce.Counted[mapreduce.Counted[float64]]) (float64, error) {
			return c.Value.Value, nil
		}),
		"fold CountNonFinite: it is": mapreduce.Then(mapreduce.CountNonFinite(mapreduce.Count[float64]()), func(c mapreduce.Counted[int64]) (float64, error) { return 0, nil }),
	} {
		job := &mapreduce.Job[string, float64, float64]{Name: "wrong", Map: emitFloats, Fold: f}
		if err := job.Validate(); err == nil || !strings.Contains(err.Error(), "job wrong: "+want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestDecimalSum(t *testing.T) {
	job := &mapreduce.Job[string, string, mapreduce.Decimal]{
		Name: "money", Fold: mapreduce.DecimalSum[string](2),
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, string]) error {
			key, value, _ := strings.Cut(string(rec.Value), " ")
			emit.Emit(key, value)
			return nil
		},
	}
	got, _ := run(t, job, stdin("a 0.10\na 0.2\nb -1\na 1e1\nc 92233720368547758.07\nb 0.5000\n"))
	if want := "{\"key\":\"a\",\"value\":10.3}\n{\"key\":\"b\",\"value\":-0.5}\n{\"key\":\"c\",\"value\":92233720368547758.07}\n"; got != want {
		t.Errorf("got %s", got)
	}
	rows, _, err := mapreduce.Collect(context.Background(), job, stdin("a 0.10\na -12.6\n"))
	if err != nil || len(rows) != 1 || rows[0].Result != (mapreduce.Decimal{Units: -1250, Scale: 2}) || rows[0].Result.String() != "-12.50" {
		t.Errorf("%v, %v", rows, err)
	}
	for lines, want := range map[string]string{
		"a 1\na 0.125\n":                        `-: offset 4: key "a": value "0.125": more than 2 digits after the point`,
		"a 92233720368547758.08\n":              `-: offset 0: key "a": "92233720368547758.08" is out of range`,
		"a 1\nb 1\na x\n":                       `-: offset 8: key "a": "x" is not a number`,
		"a 92233720368547758.07\na 0.01\n":      `key "a": sum overflow`,
		"a -922337203685477580\n":               `value "-922337203685477580": out of range: with 2 digits`,
		"a 92233720368547758070000000000e-12\n": "",
	} {
		_, _, err := mapreduce.Collect(context.Background(), job, stdin(lines))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v", lines, err)
		}
	}
	cents := &mapreduce.Job[string, int32, struct{ Total mapreduce.Decimal }]{
		Name: "cents", Fold: mapreduce.Then(mapreduce.DecimalUnits[int32](2), func(d mapreduce.Decimal) (r struct{ Total mapreduce.Decimal }, _ error) {
			r.Total = d
			return r, nil
		}),
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int32]) error {
			emit.Emit("k", int32(len(rec.Value)))
			return nil
		},
	}
	if got, _ := run(t, cents, stdin("abc\nabcd\n")); got != "{\"key\":\"k\",\"value\":0.07}\n" {
		t.Errorf("got %s", got)
	}
	job.Fold = mapreduce.DecimalSum[string](19)
	if err := job.Validate(); err == nil || !strings.Contains(err.Error(), "DecimalSum of 19 digits") {
		t.Errorf("error %v", err)
	}
}

// A value may go to several parts of its key, or to none.
func TestPartsFold(t *testing.T) {
	job := &mapreduce.Job[string, int64, string]{
		Name: "parts", Fold: mapreduce.NewPartsFold([]mapreduce.Op{mapreduce.OpSum, mapreduce.OpMax},
			func(p *mapreduce.Parts, v int64) {
				if v == 13 {
					p.Fail(errors.New("unlucky"))
				}
				for i := range v { // the number of values above i, and the largest
					p.Lanes[0], p.Lanes[1] = 1, v
					p.Put(uint32(i))
				}
			},
			func(subs iter.Seq2[uint32, mapreduce.Lanes]) (string, error) {
				s := ""
				for sub, l := range subs {
					s += fmt.Sprint(sub, l.V)
				}
				return s, nil
			}),
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			for w := range bytes.FieldsSeq(rec.Value) {
				n, err := strconv.ParseInt(string(w[1:]), 10, 64)
				if err != nil {
					return err
				}
				emit.Emit(string(w[:1]), n)
			}
			return nil
		},
	}
	rows, res, err := mapreduce.Collect(context.Background(), job, stdin("a2 b0 a1 \x002\n"))
	if got := fmt.Sprint(rows); err != nil || got != "[{\x00 0 [1 2]1 [1 2]} {a 0 [2 2]1 [1 2]}]" || res.Audit.PairsEmitted != 5 {
		t.Errorf("%q, %+v, %v", got, res, err)
	}
	if _, _, err := mapreduce.Collect(context.Background(), job, stdin("a1\na1 b13 c13\n")); err == nil || !strings.Contains(err.Error(), `-: offset 3: key "b": unlucky`) {
		t.Errorf("error %v", err)
	}
}

// Tasks of a cluster give the local bytes, which do not depend on the order of lines.
func TestFloatTasks(t *testing.T) {
	var inputs [2][]string
	for seed := range inputs {
		keys, vs := shuffledFloats(uint64(seed))
		for part := range slices.Chunk(vs, 3_000) {
			inputs[seed] = append(inputs[seed], text(t, floatLines(keys[:len(part)], part)))
			keys = keys[len(part):]
		}
	}
	for i, f := range floatFolds {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var first map[string]string
			for seed, files := range inputs {
				p := program{Shape: "float " + f.name, Inputs: files, Format: output.JSONL, Parts: 1 + 2*(i%2), Split: 60_000, Total: i%4 == 1}
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

// A value that can't be folded is no reason to try again.
func TestFloatTasksThatFail(t *testing.T) {
	p := program{Shape: "float sum", Inputs: []string{text(t, "a 1\nbad NaN\n")}, Output: filepath.Join(t.TempDir(), "out")}
	_, err := (&tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}).Run(context.Background())
	var failed *task.Error
	if !errors.As(err, &failed) || !failed.Permanent || !strings.Contains(failed.Message, `in.txt:2: key "bad": value NaN`) {
		t.Errorf("error %+v", err)
	}
	p.Inputs = []string{text(t, "big 1e308\nbig 1e308\n")}
	_, err = (&tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}).Run(context.Background())
	if !errors.As(err, &failed) || !failed.Permanent || !strings.Contains(failed.Message, `key "big": float overflow`) {
		t.Errorf("error %+v", err)
	}
}

func TestEmitOfFloatsDoesNotAllocate(t *testing.T) {
	count := mapreduce.CountNonFinite[float64, float64]
	noAllocs(t, "Float64Sum", mapreduce.Float64Sum[float64](), 1.5)
	noAllocs(t, "Float32Sum", mapreduce.Float32Sum[float32](), 1.5)
	noAllocs(t, "FloatMean", mapreduce.FloatMean[float64](), 1.5)
	noAllocs(t, "Quantum", mapreduce.Float64Sum[float64](mapreduce.Quantum(0.01)), 1.5)
	noAllocs(t, "MeasuredSum", mapreduce.MeasuredSum[float64](0.01), 1.5)
	noAllocs(t, "Variance", mapreduce.Variance[float64](), 1.5)
	noAllocs(t, "WeightedMean", mapreduce.WeightedMean[float64](), mapreduce.Weighted[float64]{Value: 1, Weight: 2})
	noAllocs(t, "FloatMin", mapreduce.FloatMin[float64](), 1.5)
	noAllocs(t, "skipped", mapreduce.Float64Sum[float64](mapreduce.SkipNonFinite), math.NaN())
	noAllocs(t, "counted", count(mapreduce.Float64Sum[float64]()), math.NaN())
	noAllocs(t, "counted smallest", count(mapreduce.FloatMin[float64]()), math.NaN())
	noAllocs(t, "DecimalSum", mapreduce.DecimalSum[string](2), "12.50")
	noAllocs(t, "Distinct", mapreduce.Distinct[string](), "value")
}

// noAllocs emits a value many times.
func noAllocs[V, R any](t *testing.T, name string, fold mapreduce.Fold[V, R], v V) {
	t.Helper()
	job := &mapreduce.Job[string, V, R]{Name: name, Fold: fold, Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, V]) error {
		if n := testing.AllocsPerRun(1000, func() { emit.Emit("key", v) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		return nil
	}}
	if _, _, err := mapreduce.Collect(context.Background(), job, stdin("x\n")); err != nil {
		t.Error(name, err)
	}
}

func BenchmarkEmitFloats(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float64, 4096)
	ints := make([]int64, len(values))
	keys := make([]string, 1024)
	for i := range values {
		values[i] = r.NormFloat64() * 1000
		ints[i] = int64(values[i])
	}
	for i := range keys {
		keys[i] = "key" + strconv.Itoa(i)
	}
	benchEmit(b, "Sum int64", mapreduce.Sum[int64](), keys, ints)
	benchEmit(b, "Float64Sum", mapreduce.Float64Sum[float64](), keys, values)
	narrow := make([]float32, len(values))
	for i, v := range values {
		narrow[i] = float32(v)
	}
	benchEmit(b, "Float32Sum", mapreduce.Float32Sum[float32](), keys, narrow)
	benchEmit(b, "Float64Sum quantised", mapreduce.Float64Sum[float64](mapreduce.Quantum(0.01)), keys, values)
	benchEmit(b, "FloatMean", mapreduce.FloatMean[float64](), keys, values)
	benchEmit(b, "Variance", mapreduce.Variance[float64](), keys, values)
	benchEmit(b, "FloatMin", mapreduce.FloatMin[float64](), keys, values)
	benchEmit(b, "Min int64", mapreduce.Min[int64](), keys, ints)
}

// benchEmit emits b.N values in one Map, whose allocations are those of Emit.
func benchEmit[V, R any](b *testing.B, name string, fold mapreduce.Fold[V, R], keys []string, values []V) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		job := &mapreduce.Job[string, V, R]{Name: name, Fold: fold, Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, V]) error {
			for i := range keys { // the records are made
				emit.Emit(keys[i], values[i])
			}
			b.ResetTimer()
			for i := range b.N {
				emit.Emit(keys[i*7%len(keys)], values[i%len(values)])
			}
			b.StopTimer()
			return nil
		}}
		if _, _, err := mapreduce.Collect(context.Background(), job, stdin("x\n")); err != nil {
			b.Fatal(err)
		}
	})
}
