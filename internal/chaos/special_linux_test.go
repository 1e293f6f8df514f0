// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/labcluster"
)

// gate holds up the tasks of a stage of the program, see its flag -gates.
type gate struct {
	t    *testing.T
	path string
}

// newGate makes a gate in a folder. first says that one task needs not wait.
func newGate(t *testing.T, dir, stage string, first bool) *gate {
	t.Helper()
	g := &gate{t, filepath.Join(dir, stage)}
	names := []string{g.path}
	if !first {
		names = append(names, g.path+".first")
	}
	for _, name := range names {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g *gate) open() {
	g.t.Helper()
	if err := os.Remove(g.path); err != nil {
		g.t.Fatal(err)
	}
}

// TestZombie stops a worker while it runs an attempt, until that has been given to another
// one, and lets it go on: while others still map, in the reduce stage, or after the end. Its
// attempt's result is refused. Every process emits other values, so a result that was taken
// from it beside another's would show: keys that were emitted together would not have one sum.
func TestZombie(t *testing.T) {
	t.Parallel()
	path := userProgram(t)
	for _, c := range []struct {
		name    string
		grouped bool
		at      string // the stage in which the worker is stopped
		awake   string // when it goes on
		always  bool   // also in short runs
	}{
		{"map, on while others map", false, "mapping", "mapping", false},
		{"map, on in the reduce stage", false, "mapping", "reducing", true},
		{"map, on after the end", true, "mapping", "done", false},
		{"reduce, on while others reduce", false, "reducing", "reducing", false},
		{"reduce, on after the end", true, "reducing", "done", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.always && os.Getenv("QUERN_LONG") == "" {
				t.Skip("one of the long variants: QUERN_LONG=1")
			}
			t.Parallel()
			r := newRig(t, 3, labcluster.Options{Slots: 1, Lease: time.Second})
			in, out := r.input(300), r.out()
			gates := t.TempDir()
			held := newGate(t, gates, map[string]string{"mapping": "map", "reducing": "reduce"}[c.at], false)
			p := r.start("submit", path, "--json", "--", "-o", out, "-map", "20ms", "-reduce", "30ms", "-random", "-gates", gates,
				"-parts", "6", "-keys", "60", "-split", "165", fmt.Sprintf("-grouped=%v", c.grouped), in) // 15 lines a split: 20 splits
			victim := r.cluster.Worker(2)
			// It has an attempt: not the plan's, which has one task.
			r.until(p, "the worker has an attempt", func(s status) bool {
				children, err := childrenOf(r.lab.Host(2), victim.PID())
				return err == nil && len(children) > 0 && s.State == c.at
			})
			if err := victim.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = victim.Signal(syscall.SIGCONT) }()
			held.open()
			r.until(p, "its attempt is lost", func(s status) bool { return s.Map.Lost+s.Reduce.Lost > 0 })
			if c.awake == "reducing" {
				r.until(p, "the reduce stage", func(s status) bool { return s.State == "reducing" })
			}
			if c.awake == "done" {
				if o := p.wait(); o.code != 0 {
					t.Fatal(o.stderr)
				}
			}
			if err := victim.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if o := p.wait(); o.code != 0 {
				t.Fatal(o.stderr)
			}
			ctx, cancel := context.WithTimeout(t.Context(), comeUp)
			defer cancel()
			if err := r.cluster.WaitWorkers(ctx, 3); err != nil {
				t.Fatal(err)
			}
			err := within(settle, func() error {
				children, err := childrenOf(r.lab.Host(2), victim.PID())
				if err == nil && len(children) > 0 {
					err = fmt.Errorf("the worker still runs %v", children)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			oneSum(t, out, 60)
			r.only("result")
		})
	}
}

// oneSum fails the test unless an output has so many keys, all with the same sum.
func oneSum(t *testing.T, out string, keys int) {
	t.Helper()
	files, err := readTree(out)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]int{}
	for name, text := range files {
		if strings.HasPrefix(name, "part-") {
			for line := range strings.Lines(string(text)) {
				_, sum, _ := strings.Cut(strings.TrimSpace(line), "\t")
				sums[sum]++
			}
		}
	}
	if len(sums) != 1 {
		t.Errorf("keys that were emitted together have %d sums: %v", len(sums), sums)
	}
	for _, n := range sums {
		if n != keys && len(sums) == 1 {
			t.Errorf("%d keys, want %d", n, keys)
		}
	}
}

// TestNotDeterministic has every process emit other values, and kills workers whose map
// outputs are needed again. All keys were emitted together, so they must have one sum: that
// of one run of every map task. The user is told.
func TestNotDeterministic(t *testing.T) {
	t.Parallel()
	path := userProgram(t)
	for _, grouped := range []bool{false, true} {
		t.Run(fmt.Sprintf("grouped=%v", grouped), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3, labcluster.Options{Slots: 1, Lease: time.Second})
			out := r.out()
			gates := t.TempDir()
			held := newGate(t, gates, "reduce", true)
			p := r.start("submit", path, "--json", "--", "-o", out, "-parts", "9", "-keys", "180", "-split", "165", "-random",
				"-gates", gates, fmt.Sprintf("-grouped=%v", grouped), r.input(150))
			r.until(p, "some parts are done", func(s status) bool { return s.State == "reducing" && s.Reduce.Done >= 1 })
			if err := r.cluster.Worker(2).Kill(); err != nil {
				t.Fatal(err)
			}
			r.until(p, "maps are run again", func(s status) bool { return s.Reruns > 0 })
			held.open()
			o := p.wait()
			if o.code != 0 {
				t.Fatal(o.stderr)
			}
			if err := r.cluster.StartWorker(2); err != nil {
				t.Fatal(err)
			}
			s, err := r.whole()
			if err != nil {
				t.Fatal(err)
			}
			if s.Resets == 0 || !strings.Contains(strings.Join(s.Notes, "\n"), "not deterministic") {
				t.Errorf("%+v does not say that the map function is not deterministic", s)
			}
			if !strings.Contains(lastLine(o.stderr), "not deterministic") {
				t.Errorf("the submitter is not told: %s", o.stderr)
			}
			oneSum(t, out, 180)
			r.only("result")
		})
	}
}

// TestNoWorkers kills all workers: the job ends when none has come for a while, and says why.
// Then workers come back and do another one.
func TestNoWorkers(t *testing.T) {
	t.Parallel()
	path := userProgram(t)
	r := newRig(t, 2, labcluster.Options{Slots: 1, Lease: time.Second, MasterArgs: []string{"--no-workers", "3s"}})
	in, out := r.input(150), r.out()
	gates := t.TempDir()
	newGate(t, gates, "map", true)
	p := r.start("submit", path, "--json", "--", "-o", out, "-split", "165", "-gates", gates, in)
	r.until(p, "some maps are done", func(s status) bool { return s.Map.Done > 0 })
	for h := 1; h <= 2; h++ {
		if err := r.cluster.Worker(h).Kill(); err != nil {
			t.Fatal(err)
		}
	}
	p.wait().failed(t, 1, "no worker")
	if _, err := os.Lstat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is an output: %v", err)
	}
	for h := 1; h <= 2; h++ {
		if err := r.cluster.StartWorker(h); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), comeUp)
	defer cancel()
	if err := r.cluster.WaitWorkers(ctx, 2); err != nil {
		t.Fatal(err)
	}
	// Nobody was there to remove what the job had prepared: that is done now.
	s, err := r.whole()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(s.Notes, "\n"), "will be removed when a worker is there") {
		t.Errorf("%+v does not say that something is left", s)
	}
	r.only()
	if o := r.run("submit", path, "--", "-o", out, "-split", "165", in); o.code != 0 {
		t.Fatal(o.stderr)
	}
	if err := sameTree(out, r.local("-split", "165", in)); err != nil {
		t.Error(err)
	}
}

// TestClientLeaves kills who has submitted a job. The job goes on, and can be followed to its end.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, labcluster.Options{Slots: 1, Lease: time.Second})
	path, in, out := userProgram(t), r.input(150), r.out()
	args := []string{"-split", "165", "-keys", "10", in}
	gates := t.TempDir()
	held := newGate(t, gates, "map", true)
	p := r.start(append([]string{"submit", path, "--", "-o", out, "-gates", gates}, args...)...)
	s := r.until(p, "a map is done", func(s status) bool { return s.Map.Done > 0 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if o := p.wait(); o.code == 0 {
		t.Fatal("the client had ended")
	}
	held.open()
	if o := r.run("status", "--follow", "--json", s.ID[:8]); o.code != 0 {
		t.Fatal(o.stderr)
	} else if err := checkSummary(lastLine(o.stderr)); err != nil {
		t.Error(err)
	}
	if err := sameTree(out, r.local(args...)); err != nil {
		t.Error(err)
	}
	r.only("result")
}

// TestRefused asks for what can't be. Each is one clear error, and nothing is left behind.
func TestRefused(t *testing.T) {
	if raceDetector {
		t.Skip("nothing here happens at the same time as anything else")
	}
	t.Parallel()
	path := userProgram(t)
	r := newRig(t, 2, labcluster.Options{Slots: 1, Lease: time.Second})
	in, out := r.input(300), r.out()

	r.run("submit", "wordcount", filepath.Join(r.dir, "none"), "-o", out).failed(t, 3, filepath.Join(r.dir, "none"))
	r.run("submit", "worcdount", in, "-o", out).failed(t, 2, "worcdount")
	r.run("submit", "wordcount", in).failed(t, 2, "output")
	r.only()
	r.startWith([]string{"QUERN_TOKEN=something-else"}, "submit", "wordcount", in, "-o", out).wait().failed(t, 6, "token")
	r.startWith([]string{"QUERN_CERTS="}, "submit", "wordcount", in, "-o", out).wait().failed(t, 6, "certificates")
	r.startWith([]string{"QUERN_MASTER=10.71.17.2:7119"}, "submit", "wordcount", in, "-o", out).wait().failed(t, 5, "10.71.17.2:7119")

	// A program for another processor, and one that is none.
	arch := "arm64"
	if strings.Contains(os.Getenv("GOARCH"), arch) {
		arch = "amd64"
	}
	foreign := filepath.Join(r.dir, "foreign")
	if err := buildProgram(foreign, "GOARCH="+arch); err != nil {
		t.Fatal(err)
	}
	r.run("submit", foreign, "--", "-o", out, in).failed(t, 2, arch)
	broken := filepath.Join(r.dir, "broken")
	if err := os.WriteFile(broken, []byte("\x7fELF, or so it seems"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.run("submit", broken, "--", "-o", out, in).failed(t, 2, broken)
	r.only()

	// An output that exists, before and during the job.
	if o := r.run("submit", "wordcount", in, "-o", out); o.code != 0 {
		t.Fatal(o.stderr)
	}
	before, err := readTree(out)
	if err != nil {
		t.Fatal(err)
	}
	r.run("submit", "count", in, "-o", out).failed(t, 4, out, "exists")
	after, err := readTree(out)
	if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the output that was there has changed: %v", err)
	}
	r.only("result")
	second := filepath.Join(filepath.Dir(out), "second")
	r.forget()
	gates := t.TempDir()
	held := newGate(t, gates, "map", true)
	p := r.start("submit", path, "--", "-o", second, "-split", "165", "-gates", gates, in)
	r.until(p, "maps run", func(s status) bool { return s.State == "mapping" })
	if err := os.Mkdir(second, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(second, "theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	held.open()
	p.wait().failed(t, 4, second, "exists")
	if files, err := readTree(second); err != nil || len(files) != 1 {
		t.Errorf("somebody else's folder holds %v, %v", files, err)
	}
	r.only("result", "second")

	// An input that vanishes under a job.
	third := filepath.Join(filepath.Dir(out), "third")
	r.forget()
	gates = t.TempDir()
	held = newGate(t, gates, "map", true)
	p = r.start("submit", path, "--", "-o", third, "-split", "165", "-gates", gates, in)
	r.until(p, "a map is done", func(s status) bool { return s.Map.Done > 0 })
	if err := os.Remove(in); err != nil {
		t.Fatal(err)
	}
	held.open()
	p.wait().failed(t, 3, in)
	r.only("result", "second")
}
