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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/labcluster"
	"github.com/quernmr/quern/internal/netlab"
)

// compiled is a user's program, built once.
var compiled struct {
	once sync.Once
	path string
	err  error
}

// userProgram builds testdata/program as a static file.
func userProgram(t *testing.T) string {
	t.Helper()
	executable(t) // which makes the folder
	compiled.once.Do(func() {
		compiled.path = filepath.Join(built.folder, "program")
		compiled.err = buildProgram(compiled.path)
	})
	if compiled.err != nil {
		t.Fatal(compiled.err)
	}
	return compiled.path
}

func buildProgram(path string, environ ...string) error {
	cmd := exec.Command("go", "build", "-o", path, "./testdata/program")
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// rig is a cluster in a lab to be treated by hand.
type rig struct {
	t       *testing.T
	quern   string
	dir     string
	lab     *netlab.Lab
	cluster *labcluster.Cluster
	seen    map[string]bool // ids of jobs that were there before the last one
}

// newRig starts a cluster. When the test ends it is stopped, and nothing may be left of it.
func newRig(t *testing.T, hosts int, o labcluster.Options) *rig {
	t.Helper()
	r := &rig{t: t, quern: executable(t), dir: t.TempDir(), seen: map[string]bool{}}
	var err error
	if r.lab, err = netlab.New(netlab.Options{Hosts: hosts}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.lab.Close(); err != nil {
			t.Error(err)
		}
	})
	o.Quern, o.Dir, o.Environ = r.quern, filepath.Join(r.dir, "cluster"), os.Environ()
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if r.cluster, err = labcluster.New(r.lab, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(r.cluster.Stop(stopIn), r.cluster.Crashes())
		for _, h := range r.lab.Hosts() {
			all, lookErr := processesIn(h)
			if err = errors.Join(err, lookErr); len(all) > 0 {
				err = errors.Join(err, fmt.Errorf("left on host %d: %v", h.Number(), all))
			}
		}
		if err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(r.cluster.Logs())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), comeUp)
	defer cancel()
	if err := r.cluster.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

// outcome is what came of a run of quern.
type outcome struct {
	code           int
	stdout, stderr string
}

// failed fails the test unless the run ended with that code and one error that says these things.
func (o outcome) failed(t *testing.T, code int, says ...string) {
	t.Helper()
	var complaint string
	for line := range strings.Lines(o.stderr) {
		if strings.HasPrefix(line, "quern: ") || strings.HasPrefix(line, "program: ") {
			complaint += line
		}
	}
	if o.code != code || strings.Count(complaint, "quern: ") != 1 {
		t.Errorf("exit code %d, want %d and one error; %s", o.code, code, o.stderr)
	}
	for _, s := range says {
		if !strings.Contains(complaint, s) {
			t.Errorf("%q does not say %q", complaint, s)
		}
	}
}

// pending is a run of quern that goes on.
type pending struct {
	r              *rig
	cmd            *netlab.Command
	stdout, stderr bytes.Buffer
	done           chan struct{}
}

// start runs quern on host 1.
func (r *rig) start(args ...string) *pending { return r.startWith(nil, args...) }

func (r *rig) startWith(environ []string, args ...string) *pending {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), jobTime)
	p := &pending{r: r, cmd: r.cluster.Command(ctx, args...), done: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, environ...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		cancel()
		r.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		cancel()
		close(p.done)
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *pending) wait() outcome {
	p.r.t.Helper()
	<-p.done
	return outcome{p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
}

// forget has until wait for a job that is newer than those that are there.
func (r *rig) forget() {
	r.t.Helper()
	s, err := r.newest()
	if err != nil {
		r.t.Fatal(err)
	}
	r.seen[s.ID] = true
}

func (r *rig) run(args ...string) outcome {
	r.t.Helper()
	return r.start(args...).wait()
}

// status is what jobs are asked for.
type status struct {
	ID     string   `json:"id"`
	State  string   `json:"state"`
	Notes  []string `json:"notes"`
	Map    stage    `json:"map"`
	Reduce stage    `json:"reduce"`
	Reruns int      `json:"reruns"`
	Resets int      `json:"resets"`

	Seconds   float64          `json:"seconds"`
	Iteration *iterationStatus `json:"iteration"`
}

// iterationStatus is how far an iteration is.
type iterationStatus struct {
	Round   uint64 `json:"round"`
	Members int    `json:"members"`
	Groups  int    `json:"groups"`
	Kept    uint64 `json:"kept"`
	Ended   bool   `json:"ended"`
}

type stage struct {
	Tasks   int `json:"tasks"`
	Running int `json:"running"`
	Done    int `json:"done"`
	Failed  int `json:"failed_attempts"`
	Lost    int `json:"lost_attempts"`
}

// newest returns the status of the job that was submitted last.
func (r *rig) newest() (status, error) {
	o := r.run("history", "--limit", "1", "--json")
	if o.code != 0 {
		return status{}, errors.New(o.stderr)
	}
	var reply struct {
		Jobs []status `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(o.stdout), &reply); err != nil {
		return status{}, err
	}
	if len(reply.Jobs) == 0 {
		return status{}, errors.New("there is no job")
	}
	return reply.Jobs[0], nil
}

// whole returns all about the newest job: lists leave notes out.
func (r *rig) whole() (s status, err error) {
	r.t.Helper()
	if s, err = r.newest(); err != nil {
		return s, err
	}
	o := r.run("status", "--json", s.ID)
	if o.code != 0 {
		return s, errors.New(o.stderr)
	}
	return s, json.Unmarshal([]byte(o.stdout), &s)
}

// until waits until the newest job is as wanted. That it ends before is an error.
func (r *rig) until(p *pending, what string, wanted func(status) bool) status {
	r.t.Helper()
	var s status
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if s, err = r.newest(); err == nil && !r.seen[s.ID] && wanted(s) {
			return s
		}
		select {
		case <-p.done:
			r.t.Fatalf("the job ended before %s: %s", what, p.stderr.String())
		default:
		}
		if time.Since(begin) > jobTime {
			r.t.Fatalf("not within %v: %s; %+v, %v", jobTime, what, s, err)
		}
	}
}

// input writes a file of so many short lines.
func (r *rig) input(lines int) string {
	r.t.Helper()
	path := filepath.Join(r.dir, "input")
	var text bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&text, "line %05d\n", i) // 11 bytes
	}
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// out returns the path of a result in a folder that nothing else is in.
func (r *rig) out() string {
	r.t.Helper()
	dir := filepath.Join(r.dir, "out")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	return filepath.Join(dir, "result")
}

// only fails the test unless the folder of the result holds these.
func (r *rig) only(names ...string) {
	r.t.Helper()
	err := within(settle, func() error {
		list, err := os.ReadDir(filepath.Dir(r.out()))
		var found []string
		for _, e := range list {
			found = append(found, e.Name())
		}
		if err == nil && strings.Join(found, " ") != strings.Join(names, " ") {
			err = fmt.Errorf("there are %q beside the output, want %q", found, names)
		}
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
}

// local runs the program by hand, which is the local engine.
func (r *rig) local(args ...string) string {
	r.t.Helper()
	dir := filepath.Join(r.dir, "local")
	cmd := exec.Command(userProgram(r.t), append([]string{"-o", dir}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return dir
}
