// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

// Whatever the job's own code does, Run returns an error that says so: it never
// takes the process with it and never returns half a result.
func TestMisbehavingCode(t *testing.T) {
	path := text(t, many)
	boom := func() { panic("boom") }
	none := func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error { return nil }
	for name, c := range map[string]struct {
		spoil func(j *mapreduce.Job[[]byte, int64, int64], o *mapreduce.Options)
		want  string
	}{
		"Map exits": {func(j *mapreduce.Job[[]byte, int64, int64], _ *mapreduce.Options) {
			j.Map = func(rec mapreduce.Record, _ *mapreduce.Emitter[[]byte, int64]) error {
				if string(rec.Value) == "foo bar" {
					runtime.Goexit()
				}
				return nil
			}
		}, "ended its goroutine"},
		"Keep exits": {func(j *mapreduce.Job[[]byte, int64, int64], _ *mapreduce.Options) {
			j.Keep = func([]byte, int64) bool { runtime.Goexit(); return true }
		}, "ended its goroutine"},
		"NewMap": {func(j *mapreduce.Job[[]byte, int64, int64], _ *mapreduce.Options) {
			j.Map = nil
			j.NewMap = func() func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error { boom(); return nil }
		}, "boom"},
		"FirstBlock": {func(j *mapreduce.Job[[]byte, int64, int64], o *mapreduce.Options) {
			o.Inputs, o.Input.Stdin = []string{"-"}, strings.NewReader(many)
			j.FirstBlock = func(mapreduce.Block) error { boom(); return nil }
		}, "boom"},
		"Keep": {func(j *mapreduce.Job[[]byte, int64, int64], _ *mapreduce.Options) {
			j.Keep = func([]byte, int64) bool { boom(); return true }
		}, "boom"},
		"Rank": {func(j *mapreduce.Job[[]byte, int64, int64], _ *mapreduce.Options) {
			j.Top, j.Rank = 100_000, func(int64, int64) int { boom(); return 0 }
		}, "boom"},
		"Empty": {func(j *mapreduce.Job[[]byte, int64, int64], _ *mapreduce.Options) {
			j.Map, j.Empty = none, func() (int64, bool) { boom(); return 0, true }
		}, "boom"},
		"Progress": {func(_ *mapreduce.Job[[]byte, int64, int64], o *mapreduce.Options) {
			o.Progress = func(mapreduce.Progress) { boom() }
		}, ""},
	} {
		job := wordcount()
		target := filepath.Join(t.TempDir(), "out")
		opts := mapreduce.Options{Inputs: []string{path}, Workers: 3, Input: input.Options{SplitSize: 50_000}, Output: output.Dir(target, output.DirOptions{})}
		c.spoil(job, &opts)
		_, err := job.Run(context.Background(), opts)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of several errors it is always the first in the output that is told.
func TestFirstErrorIsTold(t *testing.T) {
	var b strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&b, "k%05d\n", i)
	}
	path := text(t, b.String())
	boom := errors.New("boom")
	job := &mapreduce.Job[string, int64, int64]{
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			emit.Emit(string(rec.Value), 1)
			return nil
		},
		Reduce: func(key string, _ iter.Seq[int64], _ func(int64)) error {
			if key >= "k41007" {
				return boom
			}
			return nil
		},
	}
	for range 20 {
		_, _, err := try(job, mapreduce.Options{Inputs: []string{path}, Workers: 4})
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), `"k41007"`) {
			t.Fatalf("got %v", err)
		}
	}
}

// More runs than may stand side by side are merged while mapping goes on, and the
// result is the same.
func TestManyRuns(t *testing.T) {
	defer mapreduce.SetMaxRuns(4)()
	var b strings.Builder
	for i := range 400_000 {
		fmt.Fprintf(&b, "%d ", i*7919%300_000)
		if i%10 == 9 {
			b.WriteByte('\n')
		}
	}
	path := text(t, b.String())
	grouped := &mapreduce.Job[[]byte, int64, int64]{
		Map: countWords,
		Reduce: func(_ []byte, ones iter.Seq[int64], yield func(int64)) error {
			n := int64(0)
			for range ones {
				n++
			}
			yield(n)
			return nil
		},
	}
	var want string
	for name, job := range map[string]mapreduce.Runnable{"fold": wordcount(), "grouped": grouped} {
		large, _ := run(t, job, mapreduce.Options{Inputs: []string{path}, Memory: 1 << 30})
		small, res := run(t, job, mapreduce.Options{Inputs: []string{path}, Memory: 16 << 20, SpillDir: t.TempDir()})
		if want == "" {
			want = large
		}
		if small != large || large != want {
			t.Errorf("%s: spilling changed the result", name)
		}
		if res.Spills < 5 {
			t.Errorf("%s: only %d runs", name, res.Spills)
		}
	}
}
