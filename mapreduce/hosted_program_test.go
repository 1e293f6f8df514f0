// SPDX-License-Identifier: Apache-2.0

package mapreduce_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/rows"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/spill"
)

// mains are programs that do more, or less, than run one job.
var mains = map[string]func(opts mapreduce.Options){
	// The second job's threshold is what the first one found.
	"two jobs": func(opts mapreduce.Options) {
		first := opts
		first.Output = output.Dir(filepath.Join(filepath.Dir(opts.Inputs[0]), "first"), output.DirOptions{})
		res, err := mapreduce.Run(context.Background(), wordcount(), first)
		if err != nil {
			fmt.Fprintln(os.Stderr, "first:", err)
			os.Exit(7)
		}
		if os.Getenv(task.Env) != "" {
			fmt.Fprintln(os.Stderr, "the variable is still set")
			os.Exit(8)
		}
		// Collect is no call: it runs here, whoever has started this.
		rows, _, err := mapreduce.Collect(context.Background(), wordcount(), mapreduce.Options{Inputs: opts.Inputs})
		if err != nil || len(rows) == 0 {
			fmt.Fprintln(os.Stderr, "collect:", rows, err)
			os.Exit(9)
		}
		job := wordcount()
		job.Name, job.Keep = "rare", func(_ []byte, n int64) bool { return n < res.Audit.Keys }
		if _, err := mapreduce.Run(context.Background(), job, opts); err != nil {
			fmt.Fprintln(os.Stderr, "second:", err)
			os.Exit(10)
		}
	},
	"no call": func(mapreduce.Options) {},
	"exits":   func(mapreduce.Options) { os.Exit(4) },
	"invalid": func(opts mapreduce.Options) {
		job := wordcount()
		job.Name, job.Fold = "unfinished", mapreduce.Fold[int64, int64]{}
		_, err := mapreduce.Run(context.Background(), job, opts)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(5)
	},
}

// failures are jobs that fail, or are made for one test.
var failures = map[string]func(opts *mapreduce.Options) mapreduce.Runnable{
	"map error": misbehaving(func() error { return errors.New("boom") }),
	"map panic": misbehaving(func() error { panic("boom") }),
	"map exit":  misbehaving(func() error { os.Exit(3); return nil }),
	"malformed": misbehaving(func() error { return &rows.Error{File: "x", Offset: 3, Line: 2, Err: errors.New("boom")} }),
	"permanent": misbehaving(func() error { return mapreduce.Permanent(errors.New("boom")) }),
	"hangs":     misbehaving(func() error { time.Sleep(time.Hour); return nil }),
	"no output": func(o *mapreduce.Options) mapreduce.Runnable { o.Output = nil; return wordcount() },
	"stdin":     func(o *mapreduce.Options) mapreduce.Runnable { o.Inputs = []string{"-"}; return wordcount() },
	"many parts": func(o *mapreduce.Options) mapreduce.Runnable {
		o.Input.SplitSize, o.Partitions = 1, 65536
		return wordcount()
	},
	"no inputs": func(o *mapreduce.Options) mapreduce.Runnable {
		o.Inputs, o.Input.AllowEmpty = nil, false
		return wordcount()
	},
	"little": func(o *mapreduce.Options) mapreduce.Runnable { o.Memory = 1; return wordcount() },
	"to a stream": func(o *mapreduce.Options) mapreduce.Runnable {
		o.Output = output.Stream(os.Stdout, output.StreamOptions{})
		return wordcount()
	},
	"overflow": func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.Map = func(_ mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			emit.Emit([]byte("big"), math.MaxInt64)
			return nil
		}
		return j
	},
	"reduce error": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, int64]{Name: "grouped", Map: lengths, Reduce: func(k string, _ iter.Seq[int64], _ func(int64)) error {
			return errors.New("boom")
		}}
	},
	"reduce panic": func(*mapreduce.Options) mapreduce.Runnable {
		return &mapreduce.Job[string, int64, int64]{Name: "grouped", Map: lengths, Reduce: func(k string, _ iter.Seq[int64], _ func(int64)) error {
			panic("boom")
		}}
	},
	// What main asks for differs from run to run.
	"fickle": func(o *mapreduce.Options) mapreduce.Runnable {
		if os.Getenv("FICKLE") != "" {
			o.Partitions += 2
		}
		return wordcount()
	},
	"long name": func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.Name = strings.Repeat("x", task.MaxMessage)
		return j
	},
	"parquet": func(o *mapreduce.Options) mapreduce.Runnable {
		o.Input.Format = input.Parquet
		return wordcount()
	},
	"slow": func(o *mapreduce.Options) mapreduce.Runnable {
		o.Input.AllowEmpty = false
		j := wordcount()
		j.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			time.Sleep(20 * time.Millisecond)
			return countWords(rec, emit)
		}
		return j
	},
}

// misbehaving does something at the third line.
func misbehaving(do func() error) func(*mapreduce.Options) mapreduce.Runnable {
	return func(*mapreduce.Options) mapreduce.Runnable {
		j := wordcount()
		j.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			if bytes.Equal(rec.Value, []byte("bad")) {
				return do()
			}
			return countWords(rec, emit)
		}
		return j
	}
}

// Every failure says what it is, and whether another attempt would meet it again.
func TestTaskFailures(t *testing.T) {
	const content = "ok a\nok b\nbad\nok c\n"
	for _, c := range []struct {
		shape     string
		spoil     func(t *testing.T, p *program, r *task.Request)
		want      string // %s is the input's path
		permanent bool
		panics    bool
		content   string // of the input
	}{
		{shape: "map error", want: "%s:3: boom"},
		{shape: "map panic", want: "%s:3: panic in the job's code: boom", panics: true},
		{shape: "malformed", want: "x:2: boom", permanent: true},
		{shape: "permanent", want: "%s:3: boom", permanent: true},
		{shape: "no output", want: "needs an output", permanent: true},
		{shape: "to a stream", want: "can't write to standard output", permanent: true},
		{shape: "stdin", want: "standard input can't be read on a cluster", permanent: true},
		{shape: "many parts", want: "66 splits and 65536 partitions", permanent: true, content: strings.Repeat("x\n", 33)},
		{shape: "no inputs", want: "no inputs", permanent: true},
		{shape: "overflow", want: `key "big": ` + mapreduce.ErrOverflow.Error(), permanent: true},
		{shape: "reduce error", want: `boom`},
		{shape: "reduce panic", want: `panic in the job's code: boom`, panics: true},
		{shape: "fickle", want: "the job was planned with", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			if r.Kind == task.Map {
				t.Setenv("FICKLE", "1")
			}
		}},
		{shape: "slow", want: "is no regular file", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			if err := os.Remove(p.Inputs[0]); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("mkfifo", p.Inputs[0]).CombinedOutput(); err != nil {
				t.Skipf("mkfifo: %s", out)
			}
		}},
		{shape: "slow", want: "%s does not exist", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			_ = os.Remove(p.Inputs[0])
		}},
		{shape: "slow", want: "%s: no such file or directory", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			if r.Kind == task.Map {
				_ = os.Remove(p.Inputs[0])
			}
		}},
		{shape: "slow", want: "%s was changed while the job ran", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			if r.Kind == task.Map {
				if err := os.Chtimes(p.Inputs[0], time.Time{}, time.Unix(1e9, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{shape: "slow", want: "%s shrank", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			if r.Kind == task.Map {
				if err := os.Truncate(p.Inputs[0], 3); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{shape: "slow", want: "exists and is not empty", permanent: true, spoil: func(t *testing.T, p *program, r *task.Request) {
			if err := os.MkdirAll(filepath.Join(p.Output, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{shape: "slow", want: "version", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Protocol++ }},
		{shape: "slow", want: "does not know", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Kind = "bake" }},
		{shape: "slow", want: "without a folder", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Dir = "" }},
		{shape: "slow", want: "without a split", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Map = nil }},
		{shape: "slow", want: "without a part", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Reduce = nil }},
		{shape: "slow", want: "without parts", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Commit = nil }},
		{shape: "slow", want: "part 7 of 1", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) {
			if r.Reduce != nil {
				r.Reduce.Part = 7
			}
		}},
		{shape: "slow", want: "a commit of 0 parts of a job of 1", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) {
			if r.Commit != nil {
				r.Commit.Parts = nil
			}
		}},
		{shape: "slow", want: "a plan from another process", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) {
			if r.Map != nil {
				r.Plan = []byte("{")
			}
		}},
		{shape: "slow", want: "the result of call 0 was not handed over", permanent: true, spoil: func(_ *testing.T, _ *program, r *task.Request) { r.Call = 2; r.Earlier = r.Earlier[:0] }},
		// Wrong sums are never written.
		{shape: "slow", want: "6 pairs were announced, 5 read", spoil: func(_ *testing.T, _ *program, r *task.Request) {
			if r.Reduce != nil {
				r.Reduce.Pairs++
			}
		}},
		{shape: "slow", want: "the checksum of lane 0", spoil: func(_ *testing.T, _ *program, r *task.Request) {
			if r.Reduce != nil {
				r.Reduce.Check[0]++
			}
		}},
	} {
		t.Run(c.shape+": "+c.want, func(t *testing.T) {
			path := text(t, cmp.Or(c.content, content))
			p := &program{Shape: c.shape, Inputs: []string{path}, Output: filepath.Join(t.TempDir(), "out")}
			r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}
			if c.spoil != nil {
				r.Before = func(req *task.Request) { c.spoil(t, p, req) }
			}
			_, err := r.Run(context.Background())
			var failed *task.Error
			if !errors.As(err, &failed) {
				t.Fatalf("got %v", err)
			}
			want := strings.ReplaceAll(c.want, "%s", path)
			if !strings.Contains(failed.Message, want) || failed.Permanent != c.permanent || failed.Panic != c.panics || failed.Input != "" {
				t.Errorf("got %+v, want %q", failed, want)
			}
			if c.panics != strings.Contains(failed.Stack, "hosted_program_test.go") || strings.Contains(failed.Message, "goroutine") {
				t.Errorf("message %s, stack %s", failed.Message, failed.Stack)
			}
			if _, err := os.Stat(filepath.Join(p.Output, "_SUCCESS")); err == nil {
				t.Error("the output was published")
			}
		})
	}
}

// Children that end without a word, or have none to say.
func TestProgramsThatDoNotServe(t *testing.T) {
	path := text(t, "ok\nbad\n")
	for shape, want := range map[string]string{
		"map exit": "exit status 3", "exits": "exit status 4", "no call": "without a reply",
	} {
		p := &program{Shape: shape, Inputs: []string{path}, Output: filepath.Join(t.TempDir(), "out")}
		_, err := (&tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}).Run(context.Background())
		if !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", shape, err)
		}
	}
	p := &program{Shape: "invalid", Inputs: []string{path}, Output: filepath.Join(t.TempDir(), "out")}
	_, err := (&tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}).Run(context.Background())
	var failed *task.Error
	if !errors.As(err, &failed) || !failed.Permanent || !strings.Contains(failed.Message, "job unfinished: set exactly one of Fold and Reduce") {
		t.Errorf("invalid: %v", err)
	}
}

// A run that is damaged, or gone, is named: its maker has to make it anew.
func TestDamagedRunIsNamed(t *testing.T) {
	for _, shape := range []string{"sum", "grouped"} {
		p := &program{Shape: shape, Inputs: []string{text(t, many[:60_000])}, Output: filepath.Join(t.TempDir(), "out"), Split: 10_000}
		r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}
		tried := 0
		r.Before = func(req *task.Request) {
			if req.Kind != task.Reduce {
				return
			}
			whole, err := os.ReadFile(req.Reduce.Runs[3].Path)
			if err != nil {
				t.Fatal(err)
			}
			flipped := bytes.Clone(whole)
			flipped[len(flipped)/3] ^= 1
			for name, damaged := range map[string][]byte{"flipped": flipped, "cut": whole[:100], "gone": nil} {
				for _, memory := range []int64{16 << 20, 64 << 20} { // merged before, or at once
					tried++
					bad := filepath.Join(t.TempDir(), name)
					if damaged != nil {
						if err := os.WriteFile(bad, damaged, 0o600); err != nil {
							t.Fatal(err)
						}
					}
					in := *req.Reduce
					in.Attempt = fmt.Sprint("try", tried)
					in.Runs = slices.Clone(in.Runs)
					in.Runs[3].Path = bad
					again := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Memory: memory}
					_, err := again.Do(context.Background(), &task.Request{Kind: task.Reduce, Constants: req.Constants, Ticket: req.Ticket, Reduce: &in})
					var failed *task.Error
					if !errors.As(err, &failed) || failed.Permanent || failed.Input != bad {
						t.Errorf("%s, %s: %+v, want %s", shape, name, err, bad)
					}
				}
			}
		}
		if _, err := r.Run(context.Background()); err != nil || tried != 6 {
			t.Errorf("%s: %d tries, %v", shape, tried, err)
		}
	}
}

// The runs that a reduce task was given are another's: it leaves them as they are,
// however many it has to merge.
func TestGivenRunsStay(t *testing.T) {
	for _, shape := range []string{"sum", "grouped", "decimals"} {
		p := &program{Shape: shape, Inputs: []string{text(t, many[:60_000])}, Output: filepath.Join(t.TempDir(), "out"), Split: 8_000}
		var given []task.RunFile
		r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Memory: 16 << 20, Before: func(req *task.Request) {
			if req.Kind == task.Reduce {
				given = req.Reduce.Runs
			}
		}}
		if _, err := r.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if len(given) < 7 {
			t.Fatalf("%d runs", len(given))
		}
		for _, g := range given {
			run, err := spill.Open(g.Path)
			if err != nil {
				t.Error(err)
				continue
			}
			_ = run.Close()
		}
	}
}

// What a task leaves in its folder: a map task one run, the others nothing.
func TestTasksLeaveTheirFolderTidy(t *testing.T) {
	var b strings.Builder
	for i := range 300_000 {
		b.WriteString("w" + strconv.Itoa(i) + " ")
		if i%10 == 0 {
			b.WriteByte('\n')
		}
	}
	for _, shape := range []string{"sum", "grouped", "none"} {
		p := &program{Shape: shape, Inputs: []string{text(t, b.String())}, Output: filepath.Join(t.TempDir(), "out"), Split: 1 << 30, Parts: 3}
		dir := t.TempDir()
		o, err := (&tasktest.Runner{Command: p.command(t), Dir: dir, Memory: 16 << 20}).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if shape == "sum" && o.Maps[0].Spills == 0 {
			t.Error("nothing was spilled: the test shows nothing")
		}
		folders, _ := filepath.Glob(filepath.Join(dir, "task-*"))
		for _, folder := range folders {
			left, _ := os.ReadDir(folder)
			want := 0
			if strings.HasSuffix(folder, "-map") && shape != "none" {
				want = 1
			}
			if len(left) != want {
				t.Errorf("%s: left in %s: %v", shape, folder, left)
			}
		}
	}
}

// Abort takes away what a plan and a reduce task have left.
func TestAbort(t *testing.T) {
	dir := t.TempDir()
	p := &program{Shape: "sum", Inputs: []string{text(t, many[:1000])}, Output: filepath.Join(dir, "out")}
	r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Before: func(req *task.Request) {
		if req.Kind == task.Commit {
			req.Kind, req.Commit = task.Abort, nil
		}
	}}
	if _, err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A plan attempt of which nobody has heard has left a place of which nobody has the ticket.
func TestAbortWithoutPlan(t *testing.T) {
	dir := t.TempDir()
	p := &program{Shape: "sum", Inputs: []string{text(t, many[:1000])}, Output: filepath.Join(dir, "new", "out")}
	r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}
	do := func(kind task.Kind) {
		t.Helper()
		if _, err := r.Do(t.Context(), &task.Request{Kind: kind}); err != nil {
			t.Fatal(err)
		}
	}
	do(task.Plan)
	if left := tree(t, dir); len(left) == 0 {
		t.Fatal("nothing is prepared")
	}
	for range 2 { // there may be nothing, too
		do(task.Abort)
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Fatalf("left behind: %v", left)
		}
	}
	// What is there and not the job's stays.
	if err := os.MkdirAll(filepath.Join(p.Output, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	do(task.Abort)
	sameTree(t, tree(t, dir), before)
}

// What a plan task has prepared is removed if nobody can be told of it.
func TestPlanTooLargeToTell(t *testing.T) {
	dir := t.TempDir()
	p := &program{Shape: "long name", Inputs: []string{text(t, many[:1000])}, Output: filepath.Join(dir, "out")}
	_, err := (&tasktest.Runner{Command: p.command(t), Dir: t.TempDir()}).Do(t.Context(), &task.Request{Kind: task.Plan})
	var failed *task.Error
	if !errors.As(err, &failed) || !failed.Permanent || !strings.Contains(failed.Message, "what the plan task has to say is too much") {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// talk runs a program for a request and hands each message to say.
func talk(t *testing.T, p *program, req *task.Request, say func(c *task.Conn, m *task.Reply)) error {
	t.Helper()
	cmd := p.command(t)()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	c, err := task.Pipe(cmd)
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Start()
	c.Started()
	if err != nil {
		t.Fatal(err)
	}
	req.Protocol, req.Job = task.Protocol, "ab"
	if err := c.Send(req); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := c.Recv()
		if err != nil {
			break
		}
		say(c, m)
	}
	_ = c.Close()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	return nil
}

// A driver runs main, and tells of each call; the next one is made of its answer.
func TestDrive(t *testing.T) {
	path := text(t, "a a b\n")
	p := &program{Shape: "two jobs", Inputs: []string{path}, Output: filepath.Join(t.TempDir(), "out")}
	result, err := json.Marshal(mapreduce.Result{Job: "wordcount", Audit: mapreduce.Audit{Keys: 2}})
	if err != nil {
		t.Fatal(err)
	}
	drive := func(p *program, earlier []task.CallResult, answers ...task.CallResult) (said string, err error) {
		t.Helper()
		err = talk(t, p, &task.Request{Kind: task.Drive, Earlier: earlier}, func(c *task.Conn, m *task.Reply) {
			switch {
			case m.Hello != nil:
				said += "hello "
			case m.Call != nil:
				said += fmt.Sprintf("%d:%s:%s ", m.Call.Call, m.Call.Job, m.Call.Err)
				if err := c.Send(&answers[0]); err != nil {
					t.Fatal(err)
				}
				answers = answers[1:]
			default:
				t.Errorf("%+v", m)
			}
		})
		return said, err
	}
	fine := task.CallResult{Result: result}
	if said, err := drive(p, nil, fine, fine); err != nil || said != "hello 0:wordcount: 1:rare: " {
		t.Errorf("%s, %v", said, err)
	}
	if said, err := drive(p, []task.CallResult{fine}, fine); err != nil || said != "hello 1:rare: " {
		t.Errorf("a driver that goes on: %s, %v", said, err)
	}
	if said, err := drive(p, nil, task.CallResult{Error: "all workers are gone"}); err == nil || !strings.Contains(err.Error(), "exit status 7: first: all workers are gone") {
		t.Errorf("a job that failed: %s, %v", said, err)
	}
	if said, err := drive(p, nil, task.CallResult{Result: []byte("[]")}); err == nil || !strings.Contains(err.Error(), "the result of a job on the cluster") {
		t.Errorf("a result that is none: %s, %v", said, err)
	}
	for shape, want := range map[string]string{
		"stdin":     "standard input can't be read on a cluster",
		"no output": "needs an output",
		"little":    "a memory budget of 1 bytes",
	} {
		q := *p
		q.Shape = shape
		said, err := drive(&q, nil, task.CallResult{Error: "refused"})
		if err == nil || !strings.Contains(said, "hello 0:wordcount:") || !strings.Contains(said, want) {
			t.Errorf("%s: %s, %v", shape, said, err)
		}
	}
	q := *p
	q.Shape = "invalid"
	if said, _ := drive(&q, nil, task.CallResult{Error: "refused"}); !strings.Contains(said, "0:unfinished:job unfinished: set exactly one") {
		t.Errorf("invalid: %s", said)
	}
	// The second job runs as tasks, with the first one's result.
	q = *p
	r := &tasktest.Runner{Command: q.command(t), Dir: t.TempDir(), Call: 1, Earlier: []task.CallResult{fine}}
	if _, err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, q.Output)["part-00000"]; got != "b\t1\n" {
		t.Errorf("rare words: %q", got)
	}
}

// A program whose parent is gone ends, whatever its code does.
func TestOrphansEnd(t *testing.T) {
	p := &program{Shape: "hangs", Inputs: []string{text(t, "bad\n")}, Output: filepath.Join(t.TempDir(), "out")}
	var plan *task.PlanResult
	if err := talk(t, p, &task.Request{Kind: task.Plan, Dir: t.TempDir()}, func(_ *task.Conn, m *task.Reply) { plan = m.Plan }); err != nil || plan == nil {
		t.Fatal(err)
	}
	for _, req := range []*task.Request{
		{Kind: task.Map, Dir: t.TempDir(), Plan: plan.Plan, Map: &task.MapRequest{}, Constants: task.Constants{Partitions: 1, Parts: 1}},
		{Kind: task.Drive},
	} {
		err := talk(t, p, req, func(c *task.Conn, m *task.Reply) {
			if m.Progress != nil || m.Call != nil {
				_ = c.Close()
			} else if m.Hello == nil {
				t.Errorf("%+v", m)
			}
		})
		if err == nil || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("%s: %v", req.Kind, err)
		}
	}
}

// A task says how far it is, also within a block of its input.
func TestProgressOfTasks(t *testing.T) {
	p := &program{Shape: "slow", Inputs: []string{text(t, strings.Repeat("a b c\n", 100))}, Output: filepath.Join(t.TempDir(), "out")}
	var plan *task.PlanResult
	if err := talk(t, p, &task.Request{Kind: task.Plan, Dir: t.TempDir()}, func(_ *task.Conn, m *task.Reply) { plan = m.Plan }); err != nil || plan == nil {
		t.Fatal(err)
	}
	if len(plan.Splits) != 1 || plan.Splits[0].Path != p.Inputs[0] || plan.Splits[0].Bytes != 600 || plan.Bytes != 600 || !plan.Exact || len(plan.Why) == 0 || len(plan.Ops) != 1 {
		t.Errorf("plan %+v", plan)
	}
	seen := map[int64]bool{}
	var last *task.Reply
	req := &task.Request{Kind: task.Map, Dir: t.TempDir(), Plan: plan.Plan, Workers: 1, Map: &task.MapRequest{}, Constants: task.Constants{Partitions: 1, Parts: 1}}
	err := talk(t, p, req, func(_ *task.Conn, m *task.Reply) {
		if m.Progress != nil {
			seen[m.Progress.Records] = true
		}
		last = m
	})
	if err != nil || last.Map == nil || last.Map.Records != 100 || last.Map.Emitted != 300 {
		t.Fatalf("%+v, %v", last, err)
	}
	if len(seen) < 3 { // 2 s of mapping, four messages a second
		t.Errorf("records that were told of: %v", seen)
	}
}

// An input that is gone by then was named before; an empty one is no input.
func TestNoInputAtAll(t *testing.T) {
	p := &program{Shape: "none", Inputs: []string{filepath.Join(t.TempDir(), "nothing*")}, Format: output.JSONL, Parts: 2}
	o := sameAsLocal(t, p, &tasktest.Runner{})
	if len(o.Maps) != 0 {
		t.Errorf("%d map tasks", len(o.Maps))
	}
}

// Files of every kind are read by the tasks as they are here.
func TestInputsOfTasks(t *testing.T) {
	dir := t.TempDir()
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	_, _ = w.Write([]byte(many[:60_000]))
	_ = w.Close()
	for name, content := range map[string]string{"a.txt": many[:90_000], "b.gz": gz.String(), "c \xff.txt": "odd name\n", "d.txt": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, shape := range []string{"sum", "blocks"} {
		sameAsLocal(t, &program{Shape: shape, Inputs: []string{dir}, Format: output.CSV, Parts: 2, Split: 30_000}, &tasktest.Runner{})
	}
}

// Parquet goes in and out.
func TestParquetTasks(t *testing.T) {
	p := &program{Shape: "sum", Inputs: []string{text(t, many[:50_000])}, Format: output.Parquet, Parts: 3, Split: 20_000}
	sameAsLocal(t, p, &tasktest.Runner{})
	q := &program{Shape: "parquet", Inputs: []string{p.Output}, Format: output.Parquet, Parts: 2, Total: true}
	o := sameAsLocal(t, q, &tasktest.Runner{})
	if len(o.Maps) != 3 {
		t.Errorf("%d map tasks for 3 row groups", len(o.Maps))
	}
}

// The program's own files stand where the plan's paths say.
func TestUploadsInTasks(t *testing.T) {
	local := text(t, many[:50_000])
	p := &program{Shape: "sum", Inputs: []string{"/no/such/folder/x.txt"}, Output: filepath.Join(t.TempDir(), "out"), Split: 20_000}
	r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Before: func(req *task.Request) {
		// Each machine has its own copy, made at its own time.
		copied := filepath.Join(req.Dir, "copy")
		b, err := os.ReadFile(local)
		if err == nil {
			err = os.WriteFile(copied, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		req.Uploads = map[string]string{"/no/such/folder/x.txt": copied}
	}}
	o, err := r.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Maps) != 3 || o.Plan.Splits[0].Path != "/no/such/folder/x.txt" {
		t.Errorf("%d map tasks, %+v", len(o.Maps), o.Plan.Splits)
	}
	q := &program{Shape: "sum", Inputs: []string{local}, Split: 20_000, Output: filepath.Join(t.TempDir(), "out")}
	job, opts := q.job()
	if _, err := mapreduce.Run(context.Background(), job, opts); err != nil {
		t.Fatal(err)
	}
	sameTree(t, tree(t, p.Output), tree(t, q.Output))
}

// What a manifest says, worked out by hand.
func TestManifest(t *testing.T) {
	p := &program{Shape: "sum", Inputs: []string{text(t, "b a\na\nlonger-than-thirty-two-bytes-and-more-than-64-bytes-so-it-is-of-no-class\n")}, Output: filepath.Join(t.TempDir(), "out")}
	var c task.Constants
	o, err := (&tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Before: func(req *task.Request) { c = req.Constants }}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	seed := pairs.Seed{A: c.Seed[0], B: c.Seed[1]}
	long := "longer-than-thirty-two-bytes-and-more-than-64-bytes-so-it-is-of-no-class"
	// Lengths, key, and a payload: no carries, and the sum as a signed varint.
	content := "\x01\x02a\x00\x04" + "\x01\x02b\x00\x02" + string(rune(len(long))) + "\x02" + long + "\x00\x02"
	want := task.Manifest{
		Pairs: 3, Bytes: 3 + 3 + int64(len(long)) + 2, Digest: xxh3.HashString(content),
		Check:  []uint64{2*seed.HashBytes([]byte("a")) + seed.HashBytes([]byte("b")) + seed.HashBytes([]byte(long))},
		SumAbs: [][2]uint64{{0, 4}}, Keys: [5]uint64{2, 0, 0, 0, 1},
	}
	if got := o.Maps[0].Parts; len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if o.Maps[0].Emitted != 4 || o.Maps[0].Records != 3 {
		t.Errorf("%+v", o.Maps[0])
	}
}

// A map task that runs again has the same manifests, with whatever means; one of
// other pairs has another digest where they differ.
func TestDigests(t *testing.T) {
	var b strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&b, "w%d x%d\n", i, i%100)
	}
	path := text(t, b.String())
	other := text(t, b.String()+"x7\n")
	asked := int64(0) // by the program
	digests := func(shape, path string, memory int64, workers int) (parts []task.Manifest, spilled bool) {
		p := &program{Shape: shape, Inputs: []string{path}, Output: filepath.Join(t.TempDir(), "out"), Parts: 5, Split: 1 << 30, Memory: asked}
		r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Memory: memory, Workers: workers}
		reply, err := r.Do(context.Background(), &task.Request{Kind: task.Plan})
		if err != nil {
			t.Fatal(err)
		}
		req := &task.Request{Kind: task.Map, Plan: reply.Plan.Plan, Constants: task.Constants{Seed: [2]uint64{1, 2}, Partitions: 5, Parts: 5}, Map: &task.MapRequest{}}
		if reply, err = r.Do(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		return reply.Map.Parts, reply.Map.Spills > 0
	}
	for _, shape := range []string{"sum", "grouped", "decimals"} {
		want, _ := digests(shape, path, 256<<20, 1)
		spills := false
		for _, c := range []struct {
			memory  int64
			workers int
		}{{256 << 20, 3}, {16 << 20, 1}, {16 << 20, 2}} {
			got, spilled := digests(shape, path, c.memory, c.workers)
			spills = spills || spilled
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v with %+v, else %+v", shape, got, c, want)
			}
		}
		if shape == "grouped" && !spills {
			t.Error("nothing was spilled")
		}
		for _, asked = range []int64{16 << 20, 1 << 40} {
			got, spilled := digests(shape, path, 256<<20, 2)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v of a program that asks for %d bytes, else %+v", shape, got, asked, want)
			}
			if shape == "grouped" && spilled != (asked == 16<<20) {
				t.Errorf("a program that asks for %d bytes, and may take 256 MiB, spilled: %v", asked, spilled)
			}
		}
		asked = 0
		got, _ := digests(shape, other, 256<<20, 1)
		differ := 0
		for i := range got {
			if got[i].Digest != want[i].Digest {
				differ++
			}
		}
		if differ != 1 {
			t.Errorf("%s: one more word changed %d digests", shape, differ)
		}
	}
}
