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
	"strconv"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/mapreduce/task/tasktest"
)

// drawn draws 40 numbers towards those in the input, for so many rounds. In round fail split 1 fails; or, if it is negative,
// members say other things in that round.
func drawn(rounds, fail int) *mapreduce.Iteration[[]float64] {
	const size = 40
	return &mapreduce.Iteration[[]float64]{
		Name: "drawn",
		Load: numbers,
		Start: func() ([]float64, error) {
			state := make([]float64, size)
			for i := range state {
				state[i] = float64(i)
			}
			return state, nil
		},
		Sums: size + 1,
		Round: func(r mapreduce.Round, points, sums []float64) error {
			if r.Number == fail && r.Split == 1 {
				return errors.New("enough of it")
			}
			for i, s := range r.State {
				p := points[(i*7+r.Number)%len(points)]
				sums[i] += (p - s) / (1 + p*p)
			}
			sums[size] += float64(len(points))
			return nil
		},
		Update: func(r mapreduce.Round, state, sums []float64) (bool, error) {
			for i := range state {
				state[i] += 3 * sums[i] / sums[size]
			}
			if r.Number == -fail {
				state[0] = float64(os.Getpid())
			}
			return false, nil
		},
		Rounds: rounds,
	}
}

func init() {
	for name, it := range map[string]func() *mapreduce.Iteration[[]float64]{
		"drawn":  func() *mapreduce.Iteration[[]float64] { return drawn(35, 0) },
		"fails":  func() *mapreduce.Iteration[[]float64] { return drawn(35, 12) },
		"differ": func() *mapreduce.Iteration[[]float64] { return drawn(35, -12) },
		"unable": func() *mapreduce.Iteration[[]float64] {
			it := drawn(5, 0)
			it.Load = func(mapreduce.Split, iter.Seq[mapreduce.Record]) ([]float64, error) {
				return nil, errors.New("not this one")
			}
			return it
		},
	} {
		mains[name] = func(opts mapreduce.Options) {
			res, err := mapreduce.Iterate(context.Background(), it(), mapreduce.IterateOptions{Options: opts})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Println(res.State[0])
		}
	}
}

// points are lines that make six splits or so of 100 bytes.
func points(t *testing.T) string {
	var b strings.Builder
	for i := range 120 {
		fmt.Fprintln(&b, strconv.FormatFloat(math.Sqrt(float64(i*7919%1000)), 'f', 2, 64))
	}
	return text(t, b.String())
}

// rowsOf reads the parts of an output.
func rowsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "part-*"))
	if err != nil || len(list) == 0 {
		t.Fatalf("no parts in %s, %v", dir, err)
	}
	parts := map[string]string{}
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		parts[filepath.Base(path)] = string(b)
	}
	return parts
}

// Members in processes of their own, also if some are lost on the way, come to what one process comes to.
func TestHostedIteration(t *testing.T) {
	in := points(t)
	p := &program{Shape: "drawn", Inputs: []string{in}, Split: 100, Parts: 2, Output: filepath.Join(t.TempDir(), "local")}
	cmd := p.command(t)()
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := rowsOf(t, p.Output)
	lost := 0 // by Lose, one at a time: it is called under a lock
	for _, c := range []struct {
		name    string
		members int
		lose    func(member, n int) bool
		groups  int
	}{
		{"one", 0, nil, 1},
		{"two", 2, nil, 1},
		{"four", 4, nil, 1},
		{"more than splits", 32, nil, 1},
		{"lost at first", 3, func(m, n int) bool { return m == 1 && n == 1 }, 2},
		{"the first is lost", 3, func(m, n int) bool { return m == 0 && n == 20 }, 2},
		{"lost twice", 3, func(m, n int) bool { return m == 2 && (lost == 0 && n == 30 || lost == 1 && n == 10) }, 3},
		{"two are lost", 3, func(m, n int) bool { return m != 1 && n == 40+m }, 0},
		{"all are lost", 2, func(_, n int) bool { return n == 60 }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			lost = 0
			p.Output = filepath.Join(t.TempDir(), "out")
			r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Members: c.members}
			if c.lose != nil {
				seen := map[[2]int]bool{} // a process that takes a lost one's place counts anew
				r.Lose = func(m, n int) bool {
					if k := [2]int{m, n}; c.lose(m, n) && !seen[k] {
						seen[k] = true
						lost++
						return true
					}
					return false
				}
			}
			o, err := r.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			got := rowsOf(t, p.Output)
			for name, rows := range want {
				if got[name] != rows {
					t.Errorf("%s differs: %q, want %q", name, got[name], rows)
				}
			}
			if c.lose != nil && lost == 0 || c.groups != 0 && o.Groups != c.groups {
				t.Errorf("%d lost, %d groups, want %d", lost, o.Groups, c.groups)
			}
			splits, err := task.ParsePlan(o.Plan.Plan)
			if err != nil {
				t.Fatal(err)
			}
			if n := max(1, min(c.members, splits.Len())); len(o.Maps) != n || len(o.Plan.Gang.Shares) != n || o.Plan.Gang.Rounds != 35 {
				t.Errorf("%d members, %+v", len(o.Maps), o.Plan.Gang)
			}
			for i, m := range o.Maps {
				if (m.Emitted == 40) != (i == 0) || (m.Iteration != nil) != (i == 0) || m.Emitted != 0 && i > 0 {
					t.Errorf("member %d emitted %d, says %s", i, m.Emitted, m.Iteration)
				}
			}
			var res mapreduce.IterationResult
			if err := json.Unmarshal(o.Maps[0].Iteration, &res); err != nil || res.Rounds != 35 || fmt.Sprintln(res.State[0]) != string(said) {
				t.Errorf("%v: %+v, the local engine says %s", err, res, said)
			}
		})
	}
}

// What goes wrong in a member is its task's error, and that of the others only that it is gone.
func TestHostedIterationFails(t *testing.T) {
	in := points(t)
	for _, c := range []struct {
		shape, want string
		permanent   bool
		spoil       func(*task.Request)
	}{
		{shape: "fails", want: "iteration drawn: round 12, split 1 (" + in},
		{shape: "differ", want: "members came to different states", permanent: true},
		{shape: "unable", want: "not this one"},
		{shape: "drawn", want: "another kind of job", permanent: true, spoil: func(r *task.Request) {
			if r.Map != nil {
				r.Gang = nil
			}
		}},
		{shape: "drawn", want: "memory that can't be shared: descriptor 2", spoil: func(r *task.Request) {
			if r.Kind == task.Plan {
				r.Gang = &task.GangRequest{Vector: 2}
			}
		}},
		{shape: "sum", want: "memory that can't be shared: descriptor 900: bad file descriptor", spoil: func(r *task.Request) {
			if r.Map != nil {
				r.Gang = &task.GangRequest{Size: 1, Vector: 900}
			}
		}},
		{shape: "drawn", want: "member 7 of 3", permanent: true, spoil: func(r *task.Request) {
			if r.Map != nil {
				r.Map.Split = 7
			}
		}},
		{shape: "drawn", want: "splits 99 to", permanent: true, spoil: func(r *task.Request) {
			if r.Gang != nil {
				r.Gang.First = 99
			}
		}},
		{shape: "drawn", want: "damaged state", spoil: func(r *task.Request) {
			if r.Gang != nil {
				path := filepath.Join(r.Dir, "odd")
				_ = os.WriteFile(path, bytes.Repeat([]byte("odd "), 100), 0o600)
				r.Gang.State = &task.State{Rounds: 3, Final: true, Path: path}
			}
		}},
		{shape: "drawn", want: "no such file", spoil: func(r *task.Request) {
			if r.Gang != nil {
				r.Gang.State = &task.State{Rounds: 3, Final: true, Path: filepath.Join(r.Dir, "none")}
			}
		}},
	} {
		t.Run(c.shape+": "+c.want, func(t *testing.T) {
			p := &program{Shape: c.shape, Inputs: []string{in}, Split: 100, Output: filepath.Join(t.TempDir(), "out")}
			r := &tasktest.Runner{Command: p.command(t), Dir: t.TempDir(), Members: 3, Before: c.spoil}
			_, err := r.Run(context.Background())
			var failed *task.Error
			if !errors.As(err, &failed) || !strings.Contains(failed.Message, c.want) || failed.Permanent != c.permanent {
				t.Errorf("got %+v, want %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(p.Output, "_SUCCESS")); err == nil {
				t.Error("the output was published")
			}
		})
	}
}
