// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
)

// childEnv has this test binary be a job program.
const childEnv = "QUERN_TEST_PROGRAM"

// program is what a job program of these tests is asked to run.
type program struct {
	Shape  string
	Inputs []string
	Output string
	Format output.Format
	Parts  int
	Total  bool
	Split  int64
	Memory int64
}

// childMain is the program's main; false if this is a test.
func childMain() bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	var p program
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(err)
	}
	job, opts := p.job()
	if main := mains[p.Shape]; main != nil {
		main(opts)
		return true
	}
	if _, err := mapreduce.Run(context.Background(), job, opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func (p *program) job() (mapreduce.Runnable, mapreduce.Options) {
	opts := mapreduce.Options{
		Inputs: p.Inputs, Input: input.Options{SplitSize: p.Split, AllowEmpty: true}, Partitions: p.Parts, TotalOrder: p.Total, Memory: p.Memory,
	}
	if p.Output != "" {
		opts.Output = output.Dir(p.Output, output.DirOptions{Format: p.Format, ParquetBinary: true})
	}
	for _, jobs := range []map[string]func(*mapreduce.Options) mapreduce.Runnable{shapes, vectorShapes, failures} {
		if make := jobs[p.Shape]; make != nil {
			return make(&opts), opts
		}
	}
	for _, f := range floatFolds {
		if p.Shape == "float "+f.name {
			return f.job(), opts
		}
	}
	return nil, opts
}

func (p *program) command(t testing.TB) func() *exec.Cmd {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("child processes can't inherit descriptors on this system")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return func() *exec.Cmd {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childEnv+"="+string(text))
		return cmd
	}
}

// shapes are jobs of every kind that there is.
var shapes = map[string]func(opts *mapreduce.Options) mapreduce.Runnable{
	"sum": func(*mapreduce.Options) mapreduce.Runnable { return wordcount() },
	"summary": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, mapreduce.Summary]{Name: "summary", Map: lengths, Fold: mapreduce.MinMaxMean[int64]()}
	},
	"wrap": func(*mapreduce.Options) mapreduce.Runnable { // sums that leave 64 bits and come back
		return &mapreduce.Job[string, int64, int64]{Name: "wrap", Fold: mapreduce.Sum[int64](), Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			k := string(rec.Value[:min(4, len(rec.Value))])
			for _, v := range []int64{math.MaxInt64, math.MaxInt64, -math.MaxInt64, -math.MaxInt64, 1} {
				emit.Emit(k, v)
			}
			return nil
		}}
	},
	"decimals": func(*mapreduce.Options) mapreduce.Runnable { // of a scale that differs by split
		fold := mapreduce.NewFold([]mapreduce.Op{mapreduce.OpSum, mapreduce.OpMax, mapreduce.OpSum},
			func(dst []int64, v int64) { dst[0], dst[1], dst[2] = v, v, 1 },
			func(l mapreduce.Lanes) (string, error) {
				scale := uint8(0)
				if l.Scale != nil {
					scale = l.Scale[0]
				}
				return fmt.Sprintf("%v/%v e-%d %v", l.Big(0), l.V[1], scale, l.Mean(0, 2)), nil
			})
		newMap := func() func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
			scale, tens := uint8(0), int64(1)
			return func(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
				for n := uint8(len(rec.Value) % 50 / 10); scale < n; scale++ {
					tens *= 10
					emit.SetScale(0, scale+1)
					emit.SetScale(1, scale+1)
				}
				emit.Emit(string(rec.Value[:min(2, len(rec.Value))]), int64(len(rec.Value))*tens)
				return nil
			}
		}
		return &mapreduce.Job[string, int64, string]{Name: "decimals", Fold: fold, NewMap: newMap}
	},
	"distinct": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, string, int64]{Name: "distinct", Fold: mapreduce.Distinct[string](), Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, string]) error {
			for w := range bytes.FieldsSeq(rec.Value) {
				emit.Emit(string(w[:min(2, len(w))]), string(w))
				emit.Emit(string(w[:min(2, len(w))])+"\x00", string(w))
			}
			return nil
		}}
	},
	"grouped": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, string]{Name: "grouped", Map: lengths, Reduce: listed}
	},
	"combined": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, int64]{Name: "combined", Map: lengths, Reduce: added, Combine: added}
	},
	"ordered": func(*mapreduce.Options) mapreduce.Runnable { // the largest first
		return &mapreduce.Job[string, int64, string]{Name: "ordered", Map: lengths, Reduce: listed, ValueOrder: func(dst []byte, v int64) []byte {
			return append(dst, 0, byte(255-v))
		}}
	},
	"top": func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.Top, j.Rank = 100, func(a, b int64) int { return cmp.Compare(b, a) }
		return j
	},
	"top grouped": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, int64]{
			Name: "top", Map: lengths, Reduce: added, Combine: added,
			Top: 10, Rank: func(a, b int64) int { return cmp.Compare(b, a) },
		}
	},
	"count keys": func(*mapreduce.Options) mapreduce.Runnable { j := wordcount(); j.CountKeys = true; return j },
	"keep repeat": func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.Keep = func(k []byte, n int64) bool { return len(k)%3 != 0 }
		j.Repeat = func(k []byte, n int64) int64 { return n % 4 }
		j.HideKey = true
		return j
	},
	"none": func(*mapreduce.Options) mapreduce.Runnable { // no key, whatever the input
		j := wordcount()
		j.Map = func(mapreduce.Record, *mapreduce.Emitter[[]byte, int64]) error { return nil }
		j.Empty = func() (int64, bool) { return 7, true }
		return j
	},
	"one key": func(*mapreduce.Options) mapreduce.Runnable { // and no other part has one
		j := wordcount()
		j.Map = func(_ mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			emit.Emit(nil, 1)
			return nil
		}
		j.Empty = func() (int64, bool) { return 7, true }
		return j
	},
	"few keys": func(*mapreduce.Options) mapreduce.Runnable { // one of which is empty
		j := wordcount()
		j.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			emit.Emit(rec.Value[:min(1, len(rec.Value))], 1)
			return nil
		}
		return j
	},
	"long keys": func(*mapreduce.Options) mapreduce.Runnable { // beyond what samples keep
		j := wordcount()
		j.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			emit.Emit(append(bytes.Repeat([]byte{'x'}, 300), rec.Value...), 1)
			return nil
		}
		return j
	},
	"blocks": func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.Map, j.NewBlockMap = nil, func() func(mapreduce.Block, *mapreduce.Emitter[[]byte, int64]) error {
			return func(b mapreduce.Block, emit *mapreduce.Emitter[[]byte, int64]) error {
				n := int64(0)
				for range bytes.Lines(b.Data) {
					n++
				}
				emit.AddRecords(n)
				for ; n > 0; n-- {
					emit.Emit([]byte(filepath.Base(b.File.Path)+strconv.Itoa(b.File.Index)), 1)
				}
				return nil
			}
		}
		return j
	},
}

func lengths(rec mapreduce.Record, emit *mapreduce.Emitter[string, int64]) error {
	for w := range bytes.FieldsSeq(rec.Value) {
		emit.Emit(string(w[:min(3, len(w))]), int64(len(w)))
		emit.Counter("words").Add(1)
	}
	return nil
}

func listed(_ string, values iter.Seq[int64], yield func(string)) error {
	var b strings.Builder
	for v := range values {
		fmt.Fprint(&b, v, ",")
	}
	yield(b.String())
	return nil
}

func added(_ string, values iter.Seq[int64], yield func(int64)) error {
	n := int64(0)
	for v := range values {
		n += v
	}
	yield(n)
	return nil
}

// tree reads all files below a folder.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func sameTree(t testing.TB, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if other, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		} else if other != text {
			t.Errorf("%s: %d bytes, the local engine's has %d: %.300q ... %.300q", name, len(other), len(text), other, text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there, and not in the local engine's output", name)
		}
	}
}

// Every job gives the same bytes in tasks, in child processes, as it does here.
func TestTasksGiveTheLocalBytes(t *testing.T) {
	files := []string{text(t, many[:120_000]), text(t, many[20_000:50_000]), text(t, "")}
	for shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			for _, c := range []program{
				{Parts: 1, Split: 40_000},
				{Parts: 3, Split: 80_000},
				{Parts: 7, Split: 70_000, Total: true},
			} {
				c.Shape, c.Inputs, c.Format = shape, files, output.JSONL
				sameAsLocal(t, &c, &tasktest.Runner{Folded: c.Parts == 3, Memory: 16 << 20})
			}
		})
	}
}

// sameAsLocal runs a program both ways.
func sameAsLocal(t *testing.T, c *program, r *tasktest.Runner) *tasktest.Outcome {
	t.Helper()
	dir := t.TempDir()
	local := *c
	local.Output = filepath.Join(dir, "local")
	job, opts := local.job()
	res, err := mapreduce.Run(context.Background(), job, opts)
	if err != nil {
		t.Fatal(err)
	}
	c.Output = filepath.Join(dir, "shared")
	r.Command, r.Dir = c.command(t), t.TempDir()
	o, err := r.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	sameTree(t, tree(t, c.Output), tree(t, local.Output))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left beside the output: %v, %v", left, err)
	}
	if o.Audit.PairsEmitted != res.Audit.PairsEmitted || o.Audit.Keys != res.Audit.Keys || o.Audit.Rows != res.Audit.Rows {
		t.Errorf("audit %+v, locally %+v", o.Audit, res.Audit)
	}
	var records, read int64
	counters := map[string]int64{}
	for _, m := range o.Maps {
		records += m.Records
		read += m.Bytes
		for k, n := range m.Counters {
			counters[k] += n
		}
	}
	if records != res.Records || len(o.Maps) != res.Splits || fmt.Sprint(counters) != fmt.Sprint(res.Counters) {
		t.Errorf("%d records, %d splits, counters %v; locally %+v", records, len(o.Maps), counters, res)
	}
	return o
}
