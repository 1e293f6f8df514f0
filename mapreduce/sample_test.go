// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

// TestSample leaves keys out in Map, or in Reduce. Parts are the same if Map says which ones.
func TestSample(t *testing.T) {
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintln(&text, i*7919%20_000)
	}
	path := filepath.Join(t.TempDir(), "numbers")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// What is left out is at one end, so that the parts' borders tell.
	out := func(k int) bool { return k > 3000 }
	parts := func(early, told bool, memory int64) [][]int64 {
		job := &mapreduce.Job[int, int64, int64]{
			Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[int, int64]) error {
				k, err := strconv.Atoi(string(rec.Value))
				switch {
				case err != nil:
					return err
				case early && out(k):
					if told {
						emit.Sample(k)
					}
				default:
					emit.Emit(k, 1)
				}
				return nil
			},
			Reduce: func(k int, values iter.Seq[int64], yield func(int64)) error {
				for v := range values {
					if !out(k) {
						yield(v)
					}
				}
				return nil
			},
		}
		all := make([][]int64, 4)
		_, err := job.Run(context.Background(), mapreduce.Options{
			Inputs: []string{path}, Partitions: 4, TotalOrder: true, Workers: 3, Memory: memory, SpillDir: t.TempDir(),
			Output: output.Func(func(part int, r *output.Row) error {
				all[part] = append(all[part], r.Keys[0].I)
				return nil
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	same := func(a, b [][]int64) bool { return slices.EqualFunc(a, b, slices.Equal[[]int64]) }
	want := parts(false, false, 64<<20)
	if len(want[1]) > 0 {
		t.Fatalf("the second part has %d keys: leaving some out would not show", len(want[1]))
	}
	if !same(parts(true, true, 64<<20), want) {
		t.Error("parts are cut otherwise if Map leaves keys out and says so")
	}
	if same(parts(true, false, 64<<20), want) {
		t.Error("parts are cut in the same way if Map says nothing: this test finds nothing")
	}
}

// TestSideRoom tells a source how much memory there is.
func TestSideRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "one")
	if err := os.WriteFile(path, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for memory, want := range map[int64]int64{mapreduce.MinMemory: 0, mapreduce.MinMemory + 1000: 1000} {
		job := &mapreduce.Job[string, int64, int64]{Fold: mapreduce.Sum[int64](), Why: []string{"because"}}
		got := int64(-1)
		side := job.SideInput("made", mapreduce.ReaderSource(func(ctx context.Context) (io.ReadCloser, error) {
			got = mapreduce.SideRoom(ctx)
			mapreduce.SideNote(ctx, "made small")
			return io.NopCloser(strings.NewReader(strings.Repeat("y", int(got)))), nil
		}))
		job.Map = func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit("bytes", int64(len(side.Bytes())))
			return nil
		}
		opts := mapreduce.Options{Inputs: []string{path}, Workers: 1, Memory: memory}
		rows, res, err := mapreduce.Collect(context.Background(), job, opts)
		if err == nil && (len(res.Notes) == 0 || res.Notes[0] != "made small") {
			t.Errorf("notes %q", res.Notes)
		}
		if err != nil || got != want || rows[0].Result != want {
			t.Errorf("memory %d: room for %d bytes, %v, error %v; want %d", memory, got, rows, err, want)
		}
		x, err := job.Explain(context.Background(), opts)
		if err != nil || x.Why[0] != "because" {
			t.Errorf("why: %v, error %v", x, err)
		}
	}
	if n := mapreduce.SideRoom(context.Background()); n != 0 {
		t.Errorf("room for %d bytes anywhere", n)
	}
	mapreduce.SideNote(context.Background(), "nobody is told")
}

// TestKeyText has errors show keys as the job says, of a Reduce and of a fold's value.
func TestKeyText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "one")
	if err := os.WriteFile(path, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := mapreduce.Options{Inputs: []string{path}, Workers: 1}
	text := func(k string) string { return "<" + k + ">" }
	reduced := &mapreduce.Job[string, int64, int64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit("k", 1)
			return nil
		},
		Reduce:  func(string, iter.Seq[int64], func(int64)) error { return errors.New("boom") },
		KeyText: text,
	}
	if _, err := mapreduce.Run(context.Background(), reduced, opts); err == nil || !strings.Contains(err.Error(), "key <k>: boom") {
		t.Errorf("error %v", err)
	}
	folded := &mapreduce.Job[string, float64, float64]{
		Map: func(_ mapreduce.Record, emit *mapreduce.Emitter[string, float64]) error {
			emit.Emit("k", math.NaN())
			return nil
		},
		Fold:    mapreduce.Float64Sum[float64](),
		KeyText: text,
	}
	if _, err := mapreduce.Run(context.Background(), folded, opts); err == nil || !strings.Contains(err.Error(), "key <k>: ") {
		t.Errorf("error %v", err)
	}
}
