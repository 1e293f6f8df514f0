// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/shuffle/fold"
)

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	goleak.VerifyTestMain(m)
}

func countWords(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
	for w := range bytes.FieldsSeq(rec.Value) {
		emit.Emit(w, 1)
	}
	return nil
}

func wordcount() *mapreduce.Job[[]byte, int64, int64] {
	return &mapreduce.Job[[]byte, int64, int64]{Name: "wordcount", Map: countWords, Fold: mapreduce.Sum[int64]()}
}

// text writes a file and returns its path.
func text(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a job and returns its rows as JSON lines.
func run(t testing.TB, job mapreduce.Runnable, opts mapreduce.Options) (string, *mapreduce.Result) {
	t.Helper()
	out, res, err := try(job, opts)
	if err != nil {
		t.Fatal(err)
	}
	return out, res
}

func try(job mapreduce.Runnable, opts mapreduce.Options) (string, *mapreduce.Result, error) {
	var buf bytes.Buffer
	if opts.Output == nil {
		opts.Output = output.Stream(&buf, output.StreamOptions{Format: output.JSONL})
	}
	res, err := mapreduce.Run(context.Background(), job, opts)
	return buf.String(), res, err
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

// many is text with 40,014 different words, some with long common prefixes.
var many = func() string {
	if os.Getenv(childEnv) != "" {
		return "" // a program need not make it
	}
	var b strings.Builder
	for range 1000 {
		b.WriteString("a b c a\nfoo bar\n\n  x\ty a\n")
	}
	for i := range 20000 {
		fmt.Fprintf(&b, "word%d common%d verylongcommonprefixword%d\n", i, i%7, i*7919%30000)
	}
	return b.String()
}()

// The same job must give the same bytes with any number of workers, any memory
// and any split size.
func TestSameBytesHoweverItRuns(t *testing.T) {
	path := text(t, many)
	for _, shape := range []struct {
		parts int
		total bool
	}{{1, false}, {3, false}, {3, true}, {7, true}} {
		var want string
		for _, memory := range []int64{1 << 30, 16 << 20} {
			for _, workers := range []int{1, 2, 4} {
				for _, split := range []int64{0, 100_003} {
					got, res := run(t, wordcount(), mapreduce.Options{
						Inputs: []string{path}, Memory: memory, Workers: workers, Partitions: shape.parts,
						TotalOrder: shape.total, Input: input.Options{SplitSize: split},
					})
					if want == "" {
						want = got
						if n := len(lines(got)); n != 40014 {
							t.Fatalf("%d rows", n)
						}
						if shape.total && !slices.IsSorted(lines(got)) {
							t.Error("total order is not sorted")
						}
					}
					if got != want {
						t.Errorf("%+v memory %d workers %d split %d: other bytes", shape, memory, workers, split)
					}
					if res.Audit.PairsEmitted != 69000 || res.Audit.PairsCombined != res.Audit.PairsFolded || res.Records != 24000 {
						t.Errorf("%+v", res)
					}
				}
			}
		}
	}
}

func TestSpillsWhenMemoryIsSmall(t *testing.T) {
	var b strings.Builder
	for i := range 400_000 {
		fmt.Fprintf(&b, "w%d w%d\n", i, i/2)
	}
	path := text(t, b.String())
	dir := t.TempDir()
	small, res := run(t, wordcount(), mapreduce.Options{Inputs: []string{path}, Memory: 16 << 20, SpillDir: dir})
	if res.Spills < 2 {
		t.Fatalf("%d spills", res.Spills)
	}
	large, _ := run(t, wordcount(), mapreduce.Options{Inputs: []string{path}, Memory: 1 << 30})
	if small != large {
		t.Error("spilling changed the result")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTopKeepCountKeysEmpty(t *testing.T) {
	path := text(t, "b a c a b a d\n")
	job := wordcount()
	job.Top, job.Rank = 2, func(a, b int64) int { return int(b - a) }
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{path}, Partitions: 5}); got != "{\"key\":\"a\",\"value\":3}\n{\"key\":\"b\",\"value\":2}\n" {
		t.Errorf("top: %s", got)
	}
	job = wordcount()
	job.Keep = func(k []byte, n int64) bool { return n == 1 && string(k) != "c" }
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{path}}); got != "{\"key\":\"d\",\"value\":1}\n" {
		t.Errorf("keep: %s", got)
	}
	job = wordcount()
	job.CountKeys = true
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{path}}); got != "{\"value\":4}\n" {
		t.Errorf("count keys: %s", got)
	}
	job = wordcount()
	job.HideKey = true
	job.Empty = func() (int64, bool) { return 0, true }
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{text(t, "")}}); got != "{\"value\":0}\n" {
		t.Errorf("empty: %s", got)
	}
}

// Top against a sort, with more rows than are kept and many ties.
func TestTopManyRows(t *testing.T) {
	var b strings.Builder
	for i := range 30000 {
		b.WriteString(strings.Repeat(fmt.Sprintf("k%05d ", i), 1+i*7%5) + "\n")
	}
	path := text(t, b.String())
	all, _ := run(t, wordcount(), mapreduce.Options{Inputs: []string{path}})
	want := lines(all)
	slices.SortStableFunc(want, func(a, b string) int {
		return strings.Compare(b[strings.LastIndex(b, ":"):], a[strings.LastIndex(a, ":"):])
	})
	for _, top := range []int{1, 10, 7000, 40000} {
		job := wordcount()
		job.Top, job.Rank = top, func(a, b int64) int { return int(b - a) }
		got, _ := run(t, job, mapreduce.Options{Inputs: []string{path}, Workers: 3})
		if !slices.Equal(lines(got), want[:min(top, len(want))]) {
			t.Errorf("top %d differs", top)
		}
	}
}

type visit struct {
	Time int64
	URL  string
}

func TestGroupedReduce(t *testing.T) {
	path := text(t, "u2 5 /e\nu1 3 /c\nu1 1 /a\nu2 4 /d\nu1 2 /b\n")
	job := &mapreduce.Job[string, visit, string]{
		Name: "sessions",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, visit]) error {
			var user, url string
			var at int64
			if _, err := fmt.Sscan(string(rec.Value), &user, &at, &url); err != nil {
				return err
			}
			emit.Emit(user, visit{at, url})
			return nil
		},
		Reduce: func(user string, visits iter.Seq[visit], yield func(string)) error {
			var b strings.Builder
			for v := range visits {
				b.WriteString(v.URL)
			}
			yield(b.String())
			return nil
		},
	}
	want := "{\"key\":\"u1\",\"value\":\"/a/b/c\"}\n{\"key\":\"u2\",\"value\":\"/d/e\"}\n"
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{path}}); got != want {
		t.Errorf("got %s", got)
	}
	job.ValueOrder = func(dst []byte, v visit) []byte { return append(dst, 0, byte(100-v.Time)) }
	want = "{\"key\":\"u1\",\"value\":\"/c/b/a\"}\n{\"key\":\"u2\",\"value\":\"/e/d\"}\n"
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{path}}); got != want {
		t.Errorf("secondary sort: got %s", got)
	}
}

// A reducer that stops early, reads twice, or reads nothing must not disturb
// the groups after it.
func TestReducerNeedNotReadAll(t *testing.T) {
	var b strings.Builder
	for i := range 50 {
		for j := range 20 {
			fmt.Fprintf(&b, "k%02d %d\n", i, j)
		}
	}
	for name, reduce := range map[string]func(k string, vs iter.Seq[int64], yield func(int64)) error{
		"none": func(_ string, _ iter.Seq[int64], yield func(int64)) error { yield(7); return nil },
		"one": func(_ string, vs iter.Seq[int64], yield func(int64)) error {
			for range vs {
				break
			}
			yield(7)
			return nil
		},
		"two passes": func(_ string, vs iter.Seq[int64], yield func(int64)) error {
			n := int64(0)
			for range vs {
				if n++; n == 5 {
					break
				}
			}
			for range vs {
				n++
			}
			if n != 20 {
				return fmt.Errorf("%d values", n)
			}
			yield(7)
			return nil
		},
	} {
		job := &mapreduce.Job[string, int64, int64]{
			Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
				var k string
				var v int64
				fmt.Sscan(string(rec.Value), &k, &v)
				emit.Emit(k, v)
				return nil
			},
			Reduce: reduce,
		}
		got, res := run(t, job, mapreduce.Options{Inputs: []string{text(t, b.String())}})
		if n := len(lines(got)); n != 50 || strings.Count(got, ":7}") != 50 {
			t.Errorf("%s: %d rows", name, n)
		}
		if res.Audit.PairsFolded != 1000 {
			t.Errorf("%s: %+v", name, res.Audit)
		}
	}
}

// Grouped reduce with spills, with and without a combiner, many keys and one
// giant group, equals the same in memory.
func TestGroupedSpills(t *testing.T) {
	var b strings.Builder
	for i := range 120_000 {
		fmt.Fprintf(&b, "k%d %d\nbig %d\n", i%9000, i, i)
	}
	path := text(t, b.String())
	for _, combine := range []bool{false, true} {
		for _, parts := range []int{1, 4} {
			job := &mapreduce.Job[string, int64, int64]{
				Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
					k, v, _ := bytes.Cut(rec.Value, []byte{' '})
					n := int64(0)
					for _, c := range v {
						n = n*10 + int64(c-'0')
					}
					emit.Emit(string(k), n)
					return nil
				},
				Reduce: func(_ string, vs iter.Seq[int64], yield func(int64)) error {
					var n, last int64 = 0, math.MinInt64
					for v := range vs {
						if !combine && v < last {
							return errors.New("values are not in order")
						}
						last = v
						n += v
					}
					yield(n)
					return nil
				},
			}
			if combine {
				job.Combine = func(_ string, vs iter.Seq[int64], yield func(int64)) error {
					var n int64
					for v := range vs {
						n += v
					}
					yield(n)
					return nil
				}
			}
			small, res := run(t, job, mapreduce.Options{Inputs: []string{path}, Memory: 16 << 20, Partitions: parts, SpillDir: t.TempDir()})
			large, _ := run(t, job, mapreduce.Options{Inputs: []string{path}, Memory: 1 << 30, Partitions: parts, Workers: 1})
			if res.Spills == 0 {
				t.Fatal("no spills")
			}
			if small != large {
				t.Errorf("combine %v, %d parts: spilling changed the result", combine, parts)
			}
			if n := len(lines(large)); n != 9001 {
				t.Errorf("%d rows", n)
			}
		}
	}
}

func TestOverflowNamesTheKey(t *testing.T) {
	job := &mapreduce.Job[string, int64, int64]{
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit("big", math.MaxInt64)
			emit.Emit("fine", 1)
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
	for _, memory := range []int64{1 << 30, 16 << 20} {
		out, _, err := try(job, mapreduce.Options{Inputs: []string{text(t, "1\n2\n")}, Memory: memory})
		if !errors.Is(err, mapreduce.ErrOverflow) || !strings.Contains(err.Error(), `"big"`) || !strings.Contains(err.Error(), "18446744073709551614") {
			t.Errorf("got %v", err)
		}
		if out != "" {
			t.Errorf("output: %q", out)
		}
	}
}

func TestErrorsNameThePlace(t *testing.T) {
	path := text(t, "ok\nok\nbad\nok\nworse\n")
	boom := errors.New("boom")
	for name, fail := range map[string]func(){
		"error": func() {},
		"panic": func() { panic("boom") },
	} {
		job := wordcount()
		job.Map = func(rec mapreduce.Record, _ *mapreduce.Emitter[[]byte, int64]) error {
			if string(rec.Value) == "bad" || string(rec.Value) == "worse" {
				fail()
				return boom
			}
			return nil
		}
		for _, split := range []int64{0, 1, 4} {
			_, _, err := try(job, mapreduce.Options{Inputs: []string{path}, Input: input.Options{SplitSize: split}, Workers: 4})
			if err == nil || !strings.Contains(err.Error(), path+":3:") || !strings.Contains(err.Error(), "boom") {
				t.Errorf("%s, split %d: %v", name, split, err)
			}
			var p *mapreduce.PanicError
			if isPanic := errors.As(err, &p); isPanic != (name == "panic") {
				t.Errorf("%s: %T", name, err)
			} else if isPanic && !strings.Contains(string(p.Stack), "engine_test.go") {
				t.Errorf("stack: %s", p.Stack)
			}
		}
	}
	reduce := &mapreduce.Job[string, int64, int64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error { emit.Emit("k", 1); return nil },
		Reduce: func(string, iter.Seq[int64], func(int64)) error {
			var none []int
			none[len(none)] = 1
			return nil
		},
	}
	_, _, err := try(reduce, mapreduce.Options{Inputs: []string{path}})
	var p *mapreduce.PanicError
	if !errors.As(err, &p) {
		t.Errorf("panic in Reduce: %v", err)
	}
}

func TestCancel(t *testing.T) {
	path := text(t, many)
	target := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	job := wordcount()
	var seen atomic.Int64
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		if seen.Add(1) == 100 {
			cancel()
		}
		return countWords(rec, emit)
	}
	_, err := job.Run(ctx, mapreduce.Options{Inputs: []string{path}, Input: input.Options{SplitSize: 10_000}, Output: output.Dir(target, output.DirOptions{Format: output.TSV})})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(target)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCountersProgressStdin(t *testing.T) {
	job := wordcount()
	job.NewMap = func() func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error {
		return func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			emit.Counter("lines").Add(1)
			return countWords(rec, emit)
		}
	}
	job.Map = nil
	var last mapreduce.Progress
	got, res := run(t, job, mapreduce.Options{
		Inputs: []string{"-"}, Input: input.Options{Stdin: strings.NewReader(many)}, Workers: 4,
		Progress: func(p mapreduce.Progress) { last = p },
	})
	if n := len(lines(got)); n != 40014 || res.Counters["lines"] != 24000 {
		t.Errorf("%d rows, counters %v", n, res.Counters)
	}
	if last.Phase != "done" || last.Records != 24000 || last.Rows != 40014 {
		t.Errorf("progress %+v", last)
	}
}

func TestValidate(t *testing.T) {
	type bad struct{ hidden int }
	for name, job := range map[string]mapreduce.Runnable{
		"no map":   &mapreduce.Job[string, int64, int64]{Fold: mapreduce.Sum[int64]()},
		"no fold":  &mapreduce.Job[[]byte, int64, int64]{Map: countWords},
		"key type": &mapreduce.Job[float64, int64, int64]{Map: func(mapreduce.Record, *mapreduce.Emitter[float64, int64]) error { return nil }, Fold: mapreduce.Sum[int64]()},
		"hidden key": &mapreduce.Job[bad, int64, int64]{Map: func(_ mapreduce.Record, e *mapreduce.Emitter[bad, int64]) error {
			e.Emit(bad{hidden: 1}, 1)
			return nil
		}, Fold: mapreduce.Sum[int64]()},
		"top no rank": func() mapreduce.Runnable { j := wordcount(); j.Top = 3; return j }(),
	} {
		if err := job.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, n := range []int{-1, 1<<31 - 1} {
		if _, _, err := try(wordcount(), mapreduce.Options{Inputs: []string{text(t, "a")}, Partitions: n}); err == nil || !strings.Contains(err.Error(), "partitions") {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
}

func TestFolds(t *testing.T) {
	values := []int64{5, -3, 12, 7, -3}
	for name, c := range map[string]struct {
		job  func(m func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error) mapreduce.Runnable
		want string
	}{
		"sum":   {scalar(mapreduce.Sum[int64]()), `18`},
		"count": {scalar(mapreduce.Count[int64]()), `5`},
		"min":   {scalar(mapreduce.Min[int64]()), `-3`},
		"max":   {scalar(mapreduce.Max[int64]()), `12`},
		"mean":  {scalar(mapreduce.Mean[int64]()), `3.6`},
		"and":   {scalar(mapreduce.And[int64]()), `4`}, // 5 & -3 & 12 & 7 & -3
		"or":    {scalar(mapreduce.Or[int64]()), `-1`},
		"xor":   {scalar(mapreduce.Xor[int64]()), `14`}, // 5 ^ 12 ^ 7
		"mmm":   {scalar(mapreduce.MinMaxMean[int64]()), `{"min":-3,"mean":3.6,"max":12}`},
		"hist":  {scalar(mapreduce.Histogram[int64](5)), `[{"Low":-5,"Count":2},{"Low":5,"Count":2},{"Low":10,"Count":1}]`},
	} {
		job := c.job(func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			for _, v := range values {
				emit.Emit("k", v)
			}
			return nil
		})
		if got, _ := run(t, job, mapreduce.Options{Inputs: []string{text(t, "x")}}); got != `{"key":"k","value":`+c.want+"}\n" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func scalar[R any](f mapreduce.Fold[int64, R]) func(func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error) mapreduce.Runnable {
	return func(m func(mapreduce.Record, *mapreduce.Emitter[string, int64]) error) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, R]{Map: m, Fold: f}
	}
}

// The estimate of n different values is within four standard errors, and the
// same however the input is divided.
func TestDistinct(t *testing.T) {
	var b strings.Builder
	sizes := map[string]int{"a": 10, "b": 1000, "c\x00d": 100_000, "": 50_000}
	for k, n := range sizes {
		for i := range n {
			fmt.Fprintf(&b, "%s\t%d\n", k, i)
		}
	}
	path := text(t, b.String())
	job := &mapreduce.Job[[]byte, []byte, int64]{
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, []byte]) error {
			k, v, _ := bytes.Cut(rec.Value, []byte{'\t'})
			emit.Emit(k, v)
			return nil
		},
		Fold: mapreduce.Distinct[[]byte](),
	}
	var want string
	for _, memory := range []int64{1 << 30, 16 << 20} {
		for _, parts := range []int{1, 3} {
			for _, workers := range []int{1, 4} {
				var buf bytes.Buffer
				_, _, err := try(job, mapreduce.Options{Inputs: []string{path}, Memory: memory, Workers: workers, Partitions: parts, Output: output.Stream(&buf, output.StreamOptions{Format: output.JSONL})})
				if err != nil {
					t.Fatal(err)
				}
				l := lines(buf.String())
				slices.Sort(l)
				got := strings.Join(l, "\n")
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("the estimate depends on how it runs: %s, %s", got, want)
				}
			}
		}
	}
	for k, n := range sizes {
		var est int64
		prefix := fmt.Sprintf(`{"key":%s,"value":`, map[string]string{"a": `"a"`, "b": `"b"`, "c\x00d": `"c\u0000d"`, "": `""`}[k])
		for _, l := range lines(want) {
			if s, ok := strings.CutPrefix(l, prefix); ok {
				fmt.Sscan(s, &est)
			}
		}
		if e := math.Abs(float64(est)/float64(n) - 1); e > 4*mapreduce.DistinctError {
			t.Errorf("%q: %d for %d values", k, est, n)
		}
	}
}

type key struct {
	Name  string
	Score int32
	Tag   []byte
}

// Keys sort by their fields in order and come back as they were.
func TestStructKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		gen := rapid.Custom(func(t *rapid.T) key {
			return key{
				rapid.OneOf(rapid.SampledFrom([]string{"", "a", "a\x00", "a\x00b", "a\x01"}), rapid.String()).Draw(t, "name"),
				rapid.Int32().Draw(t, "score"),
				rapid.SliceOf(rapid.Byte()).Draw(t, "tag"),
			}
		})
		keys := rapid.SliceOfN(gen, 1, 20).Draw(rt, "keys")
		job := &mapreduce.Job[key, int64, int64]{
			Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[key, int64]) error {
				for _, k := range keys {
					emit.Emit(k, 1)
				}
				return nil
			},
			Fold: mapreduce.Count[int64](),
		}
		var got []key
		job.Keep = func(k key, _ int64) bool {
			got = append(got, key{k.Name, k.Score, bytes.Clone(k.Tag)})
			return true
		}
		if _, err := job.Run(context.Background(), mapreduce.Options{Inputs: []string{"-"}, Input: input.Options{Stdin: strings.NewReader("x\n")}, Workers: 1}); err != nil {
			rt.Fatal(err)
		}
		less := func(a, b key) int {
			if c := strings.Compare(a.Name, b.Name); c != 0 {
				return c
			}
			if a.Score != b.Score {
				return int(int64(a.Score) - int64(b.Score))
			}
			return bytes.Compare(a.Tag, b.Tag)
		}
		slices.SortFunc(keys, less)
		keys = slices.CompactFunc(keys, func(a, b key) bool { return less(a, b) == 0 })
		if !slices.EqualFunc(got, keys, func(a, b key) bool { return less(a, b) == 0 }) {
			rt.Fatalf("got %v, want %v", got, keys)
		}
	})
}

func TestIntegerAndDynamicKeys(t *testing.T) {
	ints := &mapreduce.Job[int16, int64, int64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[int16, int64]) error {
			for _, k := range []int16{3, -1, 300, -300, 0} {
				emit.Emit(k, 1)
			}
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
	want := "{\"key\":-300,\"value\":1}\n{\"key\":-1,\"value\":1}\n{\"key\":0,\"value\":1}\n{\"key\":3,\"value\":1}\n{\"key\":300,\"value\":1}\n"
	if got, _ := run(t, ints, mapreduce.Options{Inputs: []string{text(t, "x")}}); got != want {
		t.Errorf("got %s", got)
	}
	fields := &mapreduce.Job[mapreduce.Fields, int64, int64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[mapreduce.Fields, int64]) error {
			for _, k := range [][2]string{{"b", "x"}, {"a\x00", "y"}, {"a", "z"}, {"a", ""}} {
				emit.Emit(mapreduce.Fields{[]byte(k[0]), []byte(k[1])}, 1)
			}
			return nil
		},
		Fold: mapreduce.Sum[int64](), KeyColumns: []string{"first", "second"},
	}
	want = "{\"key\":[\"a\",\"\"],\"value\":1}\n{\"key\":[\"a\",\"z\"],\"value\":1}\n{\"key\":[\"a\\u0000\",\"y\"],\"value\":1}\n{\"key\":[\"b\",\"x\"],\"value\":1}\n"
	if got, _ := run(t, fields, mapreduce.Options{Inputs: []string{text(t, "x")}}); got != want {
		t.Errorf("got %s", got)
	}
}

// Emitting must not allocate, whatever the key and the fold.
func TestEmitDoesNotAllocate(t *testing.T) {
	text := text(t, "x\n")
	word := []byte("some word")
	check := func(name string, job mapreduce.Runnable) {
		t.Helper()
		if _, err := job.Run(context.Background(), mapreduce.Options{Inputs: []string{text}, Workers: 1}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	measure := func(emit func()) error {
		emit()
		if n := testing.AllocsPerRun(1000, emit); n != 0 {
			return fmt.Errorf("%v allocations per pair", n)
		}
		return nil
	}
	check("bytes, sum", &mapreduce.Job[[]byte, int64, int64]{Fold: mapreduce.Sum[int64](), Map: func(_ mapreduce.Record, e *mapreduce.Emitter[[]byte, int64]) error {
		return measure(func() { e.Emit(word, 1) })
	}})
	check("string, min max mean", &mapreduce.Job[string, int64, mapreduce.Summary]{Fold: mapreduce.MinMaxMean[int64](), Map: func(_ mapreduce.Record, e *mapreduce.Emitter[string, int64]) error {
		return measure(func() { e.Emit("station", 12) })
	}})
	check("struct, max", &mapreduce.Job[key, int64, int64]{Fold: mapreduce.Max[int64](), Map: func(_ mapreduce.Record, e *mapreduce.Emitter[key, int64]) error {
		return measure(func() { e.Emit(key{"a", 1, word}, 12) })
	}})
	check("distinct", &mapreduce.Job[[]byte, []byte, int64]{Fold: mapreduce.Distinct[[]byte](), Map: func(_ mapreduce.Record, e *mapreduce.Emitter[[]byte, []byte]) error {
		return measure(func() { e.Emit(word, word) })
	}})
	check("grouped", &mapreduce.Job[string, visit, int64]{
		Map: func(_ mapreduce.Record, e *mapreduce.Emitter[string, visit]) error {
			return measure(func() { e.Emit("user", visit{5, "/url"}) })
		},
		Reduce: func(string, iter.Seq[visit], func(int64)) error { return nil },
	})
}

func TestMeanIsRoundedOnce(t *testing.T) {
	for _, c := range []struct {
		lanes mapreduce.Lanes
		want  float64
	}{
		{mapreduce.Lanes{V: []int64{10, 3}}, 10.0 / 3},
		{mapreduce.Lanes{V: []int64{1, 3}, Scale: []uint8{1, 0}}, 1.0 / 30},
		// (2^63-1) + 1 over 2, with the carry beside a wrapped sum.
		{mapreduce.Lanes{V: []int64{math.MinInt64, 2}, Carry: []int64{1, 0}}, 4611686018427387904},
		{mapreduce.Lanes{V: []int64{9007199254740993, 1}}, 9007199254740992}, // ties to even
	} {
		if got := c.lanes.Mean(0, 1); got != c.want {
			t.Errorf("%+v: %v, want %v", c.lanes, got, c.want)
		}
	}
	if !math.IsNaN((mapreduce.Lanes{V: []int64{0, 0}}).Mean(0, 1)) {
		t.Error("mean of nothing")
	}
}

func TestExplain(t *testing.T) {
	path := text(t, many)
	x, err := wordcount().Explain(context.Background(), mapreduce.Options{Inputs: []string{path}, Partitions: 3, Memory: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if x.Reduce != "fold" || x.Partitions != 3 || x.Files != 1 || x.Bytes != int64(len(many)) || x.Memory != 1<<30 || !slices.Equal(x.Lanes, []string{fold.Sum.String()}) {
		t.Errorf("%+v", x)
	}
}

func BenchmarkEmit(b *testing.B) {
	path := text(b, "x\n")
	words := make([][]byte, 1<<14)
	for i := range words {
		words[i] = fmt.Appendf(nil, "word%d", i*7919)
	}
	b.ReportAllocs()
	job := &mapreduce.Job[[]byte, int64, int64]{Fold: mapreduce.Sum[int64](), Map: func(_ mapreduce.Record, e *mapreduce.Emitter[[]byte, int64]) error {
		i := 0
		for b.Loop() {
			e.Emit(words[i&(len(words)-1)], 1)
			i++
		}
		return nil
	}}
	if _, err := job.Run(context.Background(), mapreduce.Options{Inputs: []string{path}, Workers: 1}); err != nil {
		b.Fatal(err)
	}
}
