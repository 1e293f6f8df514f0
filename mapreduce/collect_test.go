// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
)

func TestCollect(t *testing.T) {
	path := text(t, "b a\nc b a\na\n")
	job := wordcount()
	rows, res, err := mapreduce.Collect(context.Background(), job, mapreduce.Options{Inputs: []string{path}, Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range rows {
		got += fmt.Sprintf("%s=%d ", r.Key, r.Result)
	}
	if got != "a=3 b=2 c=1 " || res.Audit.Rows != 3 {
		t.Errorf("%s, %+v", got, res.Audit)
	}
	job.Top, job.Rank = 2, func(a, b int64) int { return int(a - b) }
	rows, _, err = mapreduce.Collect(context.Background(), job, mapreduce.Options{Inputs: []string{path}})
	if err != nil || len(rows) != 2 || string(rows[0].Key) != "c" || string(rows[1].Key) != "b" {
		t.Errorf("%v, %v", rows, err)
	}
	// Many rows, from several ranges, come in key order.
	rows, _, err = mapreduce.Collect(context.Background(), wordcount(), mapreduce.Options{Inputs: []string{text(t, many)}, Workers: 4})
	if err != nil || len(rows) != 40014 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if !slices.IsSortedFunc(rows, func(a, b mapreduce.Row[[]byte, int64]) int { return slices.Compare(a.Key, b.Key) }) {
		t.Error("rows are not in key order")
	}
}

func TestThen(t *testing.T) {
	tenths := mapreduce.Then(mapreduce.MinMaxMean[int64](), func(s mapreduce.Summary) (string, error) {
		return fmt.Sprintf("%.1f/%.1f/%.1f", float64(s.Min)/10, s.Mean/10, float64(s.Max)/10), nil
	})
	job := &mapreduce.Job[string, int64, string]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit("k", -123)
			emit.Emit("k", 41)
			return nil
		},
		Fold: tenths,
	}
	if got, _ := run(t, job, mapreduce.Options{Inputs: []string{text(t, "x\n")}}); got != "{\"key\":\"k\",\"value\":\"-12.3/-4.1/4.1\"}\n" {
		t.Errorf("got %s", got)
	}
	failing := mapreduce.Then(mapreduce.Distinct[string](), func(int64) (int64, error) { return 0, fmt.Errorf("no") })
	dist := &mapreduce.Job[string, string, int64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, string]) error {
			emit.Emit("k", "v")
			return nil
		},
		Fold: failing,
	}
	if _, _, err := try(dist, mapreduce.Options{Inputs: []string{text(t, "x\n")}}); err == nil || err.Error() != `key "k": no` {
		t.Errorf("got %v", err)
	}
}

func TestTopK(t *testing.T) {
	job := &mapreduce.Job[string, int32, []mapreduce.Frequency]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int32]) error {
			for _, v := range []int32{7, -2, 7, 3, -2147483648, 3, 7, -2} {
				emit.Emit("k", v)
			}
			return nil
		},
		Fold: mapreduce.TopK[int32](3),
	}
	rows, _, err := mapreduce.Collect(context.Background(), job, mapreduce.Options{Inputs: []string{text(t, "x\n")}})
	if err != nil || len(rows) != 1 || !slices.Equal(rows[0].Result, []mapreduce.Frequency{{7, 3}, {-2, 2}, {3, 2}}) {
		t.Errorf("%v, %v", rows, err)
	}
	unsigned := &mapreduce.Job[string, uint32, []mapreduce.Frequency]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, uint32]) error {
			emit.Emit("k", 1<<32-1)
			return nil
		},
		Fold: mapreduce.TopK[uint32](3),
	}
	all, _, err := mapreduce.Collect(context.Background(), unsigned, mapreduce.Options{Inputs: []string{text(t, "x\n")}})
	if err != nil || len(all) != 1 || !slices.Equal(all[0].Result, []mapreduce.Frequency{{1<<32 - 1, 1}}) {
		t.Errorf("%v, %v", all, err)
	}
}

// Results that are kept until the end must not share memory with values that
// come later, in memory or from runs.
func TestKeptResultsAreTheirOwn(t *testing.T) {
	var b strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&b, "key%05d value%05d\n", i, i)
	}
	path := text(t, b.String())
	job := &mapreduce.Job[[]byte, []byte, []byte]{
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, []byte]) error {
			k, v, _ := bytes.Cut(rec.Value, []byte{' '})
			emit.Emit(k, v)
			return nil
		},
		Reduce: func(_ []byte, vs iter.Seq[[]byte], yield func([]byte)) error {
			for v := range vs {
				yield(v)
			}
			return nil
		},
	}
	for _, top := range []int{0, 100} {
		job.Top, job.Rank = top, func(a, b []byte) int { return bytes.Compare(b, a) }
		for _, memory := range []int64{16 << 20, 1 << 30} {
			rows, _, err := mapreduce.Collect(context.Background(), job, mapreduce.Options{Inputs: []string{path}, Memory: memory, SpillDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if want := 60_000; top == 0 && len(rows) != want || top > 0 && len(rows) != top {
				t.Fatalf("%d rows", len(rows))
			}
			for _, r := range rows {
				if string(r.Key[3:]) != string(r.Result[5:]) {
					t.Fatalf("%s has %s", r.Key, r.Result)
				}
			}
		}
	}
}

// A key larger than the memory budget is taken all the same, up to the longest
// record; one beyond that is a clear error.
func TestHugeKeys(t *testing.T) {
	huge := strings.Repeat("x", 5<<20)
	path := text(t, "a "+huge+" b\nc "+huge+"y d\n")
	for _, c := range []struct {
		memory int64
		err    string
	}{{32 << 20, ""}, {16 << 20, ""}} {
		rows, _, err := mapreduce.Collect(context.Background(), wordcount(), mapreduce.Options{Inputs: []string{path}, Memory: c.memory, SpillDir: t.TempDir()})
		if err != nil || len(rows) != 6 {
			t.Errorf("memory %d: %d rows, %v", c.memory, len(rows), err)
		}
	}
	path = text(t, strings.Repeat("x", 20<<20))
	if rows, _, err := mapreduce.Collect(context.Background(), wordcount(), mapreduce.Options{Inputs: []string{path}, Memory: 16 << 20}); err != nil || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	job := wordcount()
	job.Map = func(_ mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		emit.Emit(make([]byte, 300<<20), 1)
		return nil
	}
	if _, _, err := mapreduce.Collect(context.Background(), job, mapreduce.Options{Inputs: []string{path}, Memory: 16 << 20, Workers: 1}); err == nil || !strings.Contains(err.Error(), "314572800 bytes") || !strings.Contains(err.Error(), "--memory") {
		t.Errorf("got %v", err)
	}
}
