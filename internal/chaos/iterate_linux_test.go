// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/labcluster"
)

// compiledDescent is a program that iterates, built once.
var compiledDescent struct {
	once sync.Once
	path string
	err  error
}

func descentProgram(t *testing.T) string {
	t.Helper()
	executable(t) // which makes the folder
	compiledDescent.once.Do(func() {
		compiledDescent.path = filepath.Join(built.folder, "descent")
		cmd := exec.Command("go", "build", "-o", compiledDescent.path, "./testdata/descent")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			compiledDescent.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if compiledDescent.err != nil {
		t.Fatal(compiledDescent.err)
	}
	return compiledDescent.path
}

// iterating is a cluster in a lab that iterates.
type iterating struct {
	*rig
	program, in string
	jobs        int
}

func newIterating(t *testing.T, hosts, slots int, shuffle string) *iterating {
	r := &iterating{rig: newRig(t, hosts, labcluster.Options{Slots: slots, Shuffle: shuffle, Lease: 2 * time.Second}), program: descentProgram(t)}
	r.in = filepath.Join(r.dir, "points")
	var text bytes.Buffer
	for i := range 3000 {
		fmt.Fprintf(&text, "%d.%03d\n", i*7919%1000, i*104729%1000)
	}
	if err := os.WriteFile(r.in, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// iteration is a run of the program on the cluster.
type iteration struct {
	*pending
	r    *iterating
	id   string
	out  string
	args []string
}

// begin submits the program, and waits until a round is done.
func (r *iterating) begin(rounds uint64, args ...string) *iteration {
	r.t.Helper()
	r.jobs++
	i := &iteration{r: r, out: filepath.Join(r.dir, fmt.Sprintf("out-%d", r.jobs), "result"), args: args}
	if err := os.Mkdir(filepath.Dir(i.out), 0o755); err != nil {
		r.t.Fatal(err)
	}
	i.pending = r.start(append([]string{"submit", r.program, "--", "-o", i.out}, append(args, r.in)...)...)
	s := r.until(i.pending, "the first rounds", func(s status) bool {
		return s.State == "mapping" && s.Iteration != nil && s.Iteration.Round >= rounds
	})
	i.id = s.ID
	return i
}

// at returns how far it is; none if that can't be found out now.
func (i *iteration) at() (s iterationStatus) {
	o := i.r.run("status", "--json", i.id)
	var all status
	if o.code == 0 && json.Unmarshal([]byte(o.stdout), &all) == nil && all.Iteration != nil {
		s = *all.Iteration
	}
	return s
}

// reaches waits until it is as wanted.
func (i *iteration) reaches(what string, wanted func(iterationStatus) bool) {
	i.r.t.Helper()
	err := within(jobTime, func() error {
		s := i.at()
		if wanted(s) {
			return nil
		}
		select {
		case <-i.done:
			i.r.t.Fatalf("it ended before %s: %s", what, i.stderr.String())
		default:
		}
		return fmt.Errorf("%+v", s)
	})
	if err != nil {
		i.r.t.Fatalf("%s: %v", what, err)
	}
}

// same waits for the end, and fails the test unless the result is that of the local engine.
func (i *iteration) same() (s status) {
	t := i.r.t
	t.Helper()
	o := i.wait()
	if o.code != 0 {
		t.Fatalf("exit code %d: %s", o.code, o.stderr)
	}
	local := filepath.Join(t.TempDir(), "local")
	var args []string
	for k := 0; k < len(i.args); k++ {
		if i.args[k] == "-nap" {
			k++
			continue
		}
		args = append(args, i.args[k])
	}
	said, err := exec.Command(i.r.program, append(append(args, "-o", local), i.r.in)...).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if o.stdout != string(said) {
		t.Errorf("it says %q, the local engine %q", o.stdout, said)
	}
	want, err := readTree(local)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readTree(i.out)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d files, want %d; %v", len(got), len(want), err)
	}
	for name, text := range want {
		if !bytes.Equal(got[name], text) {
			t.Errorf("%s differs", name)
		}
	}
	reply := i.r.run("status", "--json", i.id)
	if err := json.Unmarshal([]byte(reply.stdout), &s); err != nil || s.Iteration == nil {
		t.Fatalf("%v: %s%s", err, reply.stdout, reply.stderr)
	}
	t.Logf("%+v, %.1f s", *s.Iteration, s.Seconds)
	if !s.Iteration.Ended {
		t.Errorf("%+v", *s.Iteration)
	}
	if list, err := os.ReadDir(filepath.Dir(i.out)); err != nil || len(list) != 1 {
		t.Errorf("beside the output: %v, %v", list, err)
	}
	return s
}

// up waits until so many workers are there again.
func (r *iterating) up(workers int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), comeUp)
	defer cancel()
	if err := r.cluster.WaitWorkers(ctx, workers); err != nil {
		r.t.Fatal(err)
	}
}

// blobs fails the test unless the master keeps nothing but the program.
func (r *iterating) blobs() {
	r.t.Helper()
	err := within(settle, func() error {
		list, err := filepath.Glob(filepath.Join(r.dir, "cluster", "master", "blobs", "*"))
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("the master has the blobs %q, the program is one", list)
		}
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
}

// members returns the processes of members at a host.
func (r *iterating) members(host int) []process {
	r.t.Helper()
	var list []process
	err := within(settle, func() (err error) {
		list, err = childrenOf(r.lab.Host(host), r.cluster.Worker(host).PID())
		if err == nil && len(list) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	if err != nil {
		r.t.Fatalf("members at host %d: %v", host, err)
	}
	return list
}

// TestIterate has a cluster iterate, with the kernel's help and without: the result is that of the local engine, to the byte.
func TestIterate(t *testing.T) {
	t.Parallel()
	for _, shuffle := range []string{"auto", "user"} {
		t.Run(shuffle, func(t *testing.T) {
			t.Parallel()
			r := newIterating(t, 4, 1, shuffle)
			i := r.begin(1, "-rounds", "200", "-size", "3000")
			s := i.same()
			if x := s.Iteration; x.Members != 4 || x.Groups != 1 || x.Round != 200 || s.Map.Lost != 0 {
				t.Errorf("%+v, lost %d", *x, s.Map.Lost)
			}
			text, err := os.ReadFile(r.cluster.Master().Log)
			if err != nil {
				t.Fatal(err)
			}
			formed := regexp.MustCompile(`"a group is formed".* members=4 workers=4 kernel=(\w+)`).FindSubmatch(text)
			if formed == nil || string(formed[1]) != fmt.Sprint(shuffle == "auto") {
				t.Errorf("the master says %q", formed)
			}
			r.blobs()
		})
	}
}

// TestIterateSurvives has members, workers and the master killed in the middle of an iteration.
func TestIterateSurvives(t *testing.T) {
	t.Parallel()
	r := newIterating(t, 4, 1, "auto")
	rounds := []string{"-rounds", "400", "-nap", "1ms"}
	long := func(t *testing.T) {
		if os.Getenv("QUERN_LONG") == "" {
			t.Skip("one of the long variants: QUERN_LONG=1")
		}
	}

	t.Run("member", func(t *testing.T) {
		long(t)
		r.t = t
		i := r.begin(5, rounds...)
		for _, p := range r.members(3) {
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if s := i.same(); s.Iteration.Groups < 2 || s.Map.Failed == 0 {
			t.Errorf("%+v %+v", *s.Iteration, s.Map)
		}
		r.blobs()
	})
	t.Run("worker", func(t *testing.T) {
		r.t = t
		i := r.begin(5, rounds...)
		if err := r.cluster.Worker(2).Kill(); err != nil {
			t.Fatal(err)
		}
		// Nobody takes its place: a worker has two members.
		s := i.same()
		if s.Iteration.Groups < 2 || s.Map.Lost == 0 {
			t.Errorf("%+v %+v", *s.Iteration, s.Map)
		}
		if err := r.cluster.StartWorker(2); err != nil {
			t.Fatal(err)
		}
		r.up(4)
		r.blobs()
	})
	t.Run("master", func(t *testing.T) {
		r.t = t
		i := r.begin(5, rounds...)
		if err := r.cluster.Master().Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		if err := r.cluster.StartMaster(); err != nil {
			t.Fatal(err)
		}
		if s := i.same(); s.Iteration.Groups != 1 || s.Map.Lost+s.Map.Failed != 0 {
			t.Errorf("%+v %+v", *s.Iteration, s.Map)
		}
		r.up(4)
		r.blobs()
	})
	t.Run("master and worker", func(t *testing.T) {
		long(t)
		r.t = t
		i := r.begin(5, rounds...)
		if err := errors.Join(r.cluster.Master().Kill(), r.cluster.Worker(1).Kill()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.cluster.StartMaster(), r.cluster.StartWorker(1)); err != nil {
			t.Fatal(err)
		}
		i.same()
		r.up(4)
		r.blobs()
	})
	t.Run("all workers", func(t *testing.T) {
		r.t = t
		i := r.begin(5, "-rounds", "1000", "-nap", "1ms")
		i.reaches("a state that is kept", func(s iterationStatus) bool { return s.Kept > 0 })
		var errs []error
		for host := 1; host <= 4; host++ {
			errs = append(errs, r.cluster.Worker(host).Kill())
		}
		kept := i.at().Kept
		for host := 1; host <= 4; host++ {
			errs = append(errs, r.cluster.StartWorker(host))
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if s := i.same(); s.Map.Lost != 4 {
			t.Errorf("%+v", s.Map)
		}
		m := regexp.MustCompile(`resumed at (\d+)`).FindStringSubmatch(i.stderr.String())
		if m == nil {
			t.Fatalf("it did not go on from a state: %s", i.stderr.String())
		}
		if n, err := strconv.ParseUint(m[1], 10, 64); err != nil || n < kept {
			t.Errorf("it went on from round %s, %d was kept", m[1], kept)
		}
		r.up(4)
		r.blobs()
	})
	t.Run("cancel", func(t *testing.T) {
		r.t = t
		i := r.begin(5, "-rounds", "1000000", "-nap", "1ms")
		if o := r.run("cancel", i.id); o.code != 0 {
			t.Fatal(o.stderr)
		}
		if o := i.wait(); o.code == 0 || !strings.Contains(o.stderr, "cancelled") {
			t.Errorf("exit code %d: %s", o.code, o.stderr)
		}
		err := within(settle, func() error {
			for host := 1; host <= 4; host++ {
				if list, err := childrenOf(r.lab.Host(host), r.cluster.Worker(host).PID()); err != nil || len(list) > 0 {
					return fmt.Errorf("host %d runs %v, %w", host, list, err)
				}
			}
			list, err := os.ReadDir(filepath.Dir(i.out))
			if err == nil && len(list) > 0 {
				err = fmt.Errorf("there are %v", list)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		r.blobs()
	})
}
