// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
)

// programEnv has this test binary be a program that runs one job.
const programEnv = "QUERN_TEST_JOB"

// jobProgram is what it is to run.
type jobProgram struct {
	Job        string
	Args       []string
	Output     string
	Partitions int
	Split      int64
}

// programMain is the program's main; false if this is a test.
func programMain() bool {
	text := os.Getenv(programEnv)
	if text == "" {
		return false
	}
	if err := runProgram(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func runProgram(text string) error {
	var p jobProgram
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	runnable, opts, err := p.prepare()
	if err != nil {
		return err
	}
	_, err = runnable.Run(context.Background(), opts)
	return err
}

func (p *jobProgram) prepare() (mapreduce.Runnable, mapreduce.Options, error) {
	def, options, common, inputs := parseArgs(new(testing.T), p.Job, p.Args)
	runnable, opts, err := Prepare(def, options, common, inputs, new(bytes.Buffer))
	opts.Output = output.Dir(p.Output, output.DirOptions{})
	opts.Partitions, opts.Input.SplitSize = p.Partitions, p.Split
	return runnable, opts, err
}

// runTasks runs a job as the tasks of a cluster, each in a process of its own.
func runTasks(t *testing.T, p jobProgram, memory int64) (*tasktest.Outcome, error) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	r := &tasktest.Runner{
		Dir: t.TempDir(), Memory: memory,
		Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), programEnv+"="+string(text))
			return cmd
		},
	}
	return r.Run(t.Context())
}

// TestJoinTaskFailures has what another attempt of a task would meet again be marked so.
func TestJoinTaskFailures(t *testing.T) {
	small := write(t, "a.csv", "k,v\nhot,aaaaa\nhot,bbbbb\n")
	large := write(t, "b.csv", "k,w\n"+strings.Repeat("hot,x\n", 9))
	for _, c := range []struct {
		name   string
		args   []string
		memory int64
		want   string
	}{
		{"no room", []string{"--strategy", "broadcast"}, mapreduce.MinMemory, "it can't be broadcast: no memory is left for it beside the records; give more --memory (on a cluster --task-memory), or say --strategy repartition"},
		{"group, broadcast", []string{"--max-group", "27"}, 0, `key "hot": more than 27 bytes`},
		{"group, repartition", []string{"--max-group", "27", "--strategy", "repartition"}, 0, `key "hot": more than 27 bytes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := jobProgram{Job: "join", Args: append(c.args, "--on", "k", small, large), Output: filepath.Join(t.TempDir(), "out"), Partitions: 1}
			_, err := runTasks(t, p, c.memory)
			var failed *task.Error
			if !errors.As(err, &failed) || !failed.Permanent || !strings.Contains(failed.Message, c.want) {
				t.Errorf("got %+v (%v)", failed, err)
			}
		})
	}
}

// TestJoinAsTasks has a join's tasks find the table that its plan made.
func TestJoinAsTasks(t *testing.T) {
	var a, b strings.Builder
	a.WriteString("k,v\n")
	b.WriteString("k,w\n")
	for i := range 300 {
		fmt.Fprintf(&a, "%d,%d\n", i%200, i)
	}
	for i := range 3000 {
		fmt.Fprintf(&b, "%d,%d\n", i%900, i%7)
	}
	small, large := write(t, "a.csv", a.String()), write(t, "b.csv", b.String())
	for _, c := range []struct {
		name   string
		args   []string
		memory int64
		table  bool
	}{
		{"broadcast", []string{"--strategy", "broadcast"}, 64 << 20, true},
		{"auto", nil, 64 << 20, true},
		{"the large side kept", []string{"--type", "right"}, 64 << 20, true},
		{"no room for the table", nil, 16 << 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			want, got := filepath.Join(dir, "local"), filepath.Join(dir, "tasks")
			p := jobProgram{Job: "join", Output: want, Partitions: 3, Split: 8 << 10}
			p.Args = append(c.args, "--on", "k", small, large)
			local := p
			local.Args = append([]string{"--strategy", "repartition"}, p.Args...)
			if c.args != nil && c.args[0] == "--strategy" {
				local.Args = []string{"--strategy", "repartition", "--on", "k", small, large}
			}
			runnable, opts, err := local.prepare()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := runnable.Run(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			p.Output = got
			o, err := runTasks(t, p, c.memory)
			if err != nil {
				t.Fatal(err)
			}
			if said := strings.Contains(strings.Join(o.Plan.Notes, "\n"), "a repartition join after all: "); said == c.table {
				t.Errorf("notes of the plan: %q", o.Plan.Notes)
			}
			if sides := o.Plan.SideInputs; len(sides) != 1 || (sides[0].Size > 0) != c.table {
				t.Errorf("side inputs: %+v", sides)
			}
			if len(o.Maps) < 3 || !strings.HasPrefix(o.Plan.Why[0], "broadcast: ") {
				t.Errorf("%d map tasks, why: %q", len(o.Maps), o.Plan.Why)
			}
			for part := range 3 {
				name := fmt.Sprintf("part-%05d", part)
				a, err := os.ReadFile(filepath.Join(want, name))
				if err != nil {
					t.Fatal(err)
				}
				b, err := os.ReadFile(filepath.Join(got, name))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(a, b) || len(a) == 0 {
					t.Errorf("%s: %d bytes, a local repartition join has %d, or others", name, len(b), len(a))
				}
			}
		})
	}
}
