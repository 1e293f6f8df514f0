// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/rpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// TestJob has two workers do a whole job.
func TestJob(t *testing.T) {
	for _, how := range []string{"plain", "grouped"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := newMaster(t)
			a, b := m.startWorker(nil), m.startWorker(nil)
			j, out := m.job(how)
			j.blob()
			j.planned(a)
			if len(j.plan.Splits) < 3 {
				t.Fatalf("%d splits", len(j.plan.Splits))
			}
			j.mapped(a, b)
			var ats []*api.Attempt
			var parts []*task.ReduceResult
			for p := range j.plan.Partitions {
				ats = append(ats, j.launch([]*running{a, b}[p%2], j.reduceLaunch(p)))
			}
			for _, at := range ats {
				r := &task.ReduceResult{}
				j.ok(at, r)
				parts = append(parts, r)
				f := m.result(at)
				if how == "plain" && (f.GetUserPairs() == 0 || f.GetPulledPairs() != 0) || how == "grouped" && (f.GetUserPairs() != 0 || f.GetPulledPairs() == 0) {
					t.Errorf("%d pairs were pushed and %d pulled", f.GetUserPairs(), f.GetPulledPairs())
				}
			}
			j.commit(b, parts)
			n, counts := words(t, out)
			// 200 lines of nine words and a number; "to" and "be" twice each, 200/7 lines with a number.
			if n != 2000 || counts["to"] != 400 || counts["be"] != 400 || counts["question"] != 200 || counts["3"] != 29 || counts["6"] != 28 {
				t.Errorf("%d words: %v", n, counts)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if n := m.served[j.program.GetBlob()]; n != 2 {
				t.Errorf("the program was fetched %d times", n)
			}
		})
	}
}

// attempts lists the folders of attempts that a worker has.
func (r *running) attemptFolders() []string {
	all, _ := filepath.Glob(filepath.Join(r.folder.path, "attempts", "*"))
	return all
}

func (r *running) held() (tasks []uint32) {
	for _, h := range r.ex.Held() {
		tasks = append(tasks, h.GetTask())
	}
	return tasks
}

func (r *running) settled() {
	r.t.Helper()
	wait(r.t, "no attempt is there", func() bool { return r.count() == 0 })
	if left := r.attemptFolders(); len(left) > 0 {
		r.t.Errorf("folders are left: %v", left)
	}
}

func TestOnlyAcceptedOutputIsKept(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("plain")
	j.planned(w)
	m.mu.Lock()
	m.finish = func(r *api.FinishRequest) (*api.FinishReply, error) {
		if r.GetAttempt().GetTask() == 1 {
			return &api.FinishReply{Reason: "another attempt was first"}, nil
		}
		return &api.FinishReply{Accepted: true}, nil
	}
	m.mu.Unlock()
	for i := range 3 {
		j.ok(j.launch(w, j.mapLaunch(i)), &task.MapResult{})
	}
	w.settled()
	if held := w.held(); !slices.Equal(held, []uint32{0, 2}) {
		t.Errorf("outputs of %v are kept", held)
	}
	m.send(w.ID(), &api.MasterMessage{Forget: []string{j.id}})
	wait(t, "it tells that the job is forgotten", func() bool {
		return m.some(func(m *api.WorkerMessage) bool { return slices.Contains(m.GetDropped(), j.id) })
	})
	if held := w.held(); len(held) > 0 {
		t.Errorf("outputs of %v are kept", held)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("fork")
	j.planned(w)
	at := j.launch(w, j.mapLaunch(0))
	wait(t, "it works", func() bool { return len(within(w.dir)) == 2 })
	m.send(w.ID(), &api.MasterMessage{Stop: []*api.Stop{{Attempt: at, Reason: "not wanted"}}})
	w.settled()
	if pids := within(w.dir); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.finished) != 1 {
		t.Errorf("%d results, of the plan alone is one due", len(m.finished))
	}
}

func TestForgetStops(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("hang")
	j.planned(w)
	j.launch(w, j.mapLaunch(0))
	wait(t, "it works", func() bool { return len(within(w.dir)) > 0 })
	m.send(w.ID(), &api.MasterMessage{Forget: []string{j.id}})
	w.settled()
}

func TestLaunchTwiceIsOnce(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("wait", "UNTIL="+until)
	j.planned(w)
	l := j.mapLaunch(0)
	j.launch(w, l)
	j.launch(w, l)
	wait(t, "it runs", func() bool { return len(within(w.dir)) == 1 })
	if w.count() != 1 {
		t.Errorf("%d attempts", w.count())
	}
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.ok(l.GetAttempt(), &task.MapResult{})
	w.settled()
}

// TestOneBreath has an attempt launched and stopped, and another one's job forgotten, in one message each.
func TestOneBreath(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("hang")
	j.planned(w)
	for _, f := range []func(*api.MasterMessage){
		func(m *api.MasterMessage) { m.Stop = []*api.Stop{{Attempt: m.GetLaunch()[0].GetAttempt()}} },
		func(m *api.MasterMessage) { m.Forget = []string{j.id} },
	} {
		l := j.mapLaunch(0)
		l.Program, l.Constants = j.program, j.constants
		msg := &api.MasterMessage{Launch: []*api.Launch{l}}
		f(msg)
		m.send(w.ID(), msg)
		// The next one's end says that the message was read.
		j.ok(j.launch(w, &api.Launch{Attempt: j.attempt("plan", 0)}), &task.PlanResult{})
		w.settled()
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil) // with two
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("wait", "UNTIL="+until)
	j.planned(w)
	var ats []*api.Attempt
	for i := range 4 {
		ats = append(ats, j.launch(w, j.mapLaunch(i)))
	}
	wait(t, "two run", func() bool { return len(within(w.dir)) == 2 })
	wait(t, "the master is told of those that wait", func() bool {
		return m.some(func(m *api.WorkerMessage) bool {
			return slices.ContainsFunc(m.GetProgress(), func(p *api.AttemptProgress) bool { return p.GetPhase() == "map" })
		})
	})
	if n := len(w.attemptFolders()); n != 2 || w.count() != 4 {
		t.Errorf("%d attempts have begun, %d are there", n, w.count())
	}
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range ats {
		j.ok(at, &task.MapResult{})
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	plan := func(how string, change func(*api.Launch)) (*api.FinishRequest, *task.Error) {
		t.Helper()
		j, _ := m.job(how)
		j.blob()
		l := &api.Launch{Attempt: j.attempt("plan", 0)}
		l.Attempt.Job = fmt.Sprintf("%032x", len(m.finished)+1)
		l.Program = j.program
		if change != nil {
			change(l)
		}
		m.send(w.ID(), &api.MasterMessage{Launch: []*api.Launch{l}})
		return j.failed(l.GetAttempt())
	}
	mapping := func(how string, change func(*api.Launch)) (*api.FinishRequest, *task.Error) {
		t.Helper()
		j, _ := m.job(how)
		j.id = fmt.Sprintf("%032x", len(m.finished)+1)
		j.planned(w)
		l := j.mapLaunch(0)
		if change != nil {
			change(l)
		}
		return j.failed(j.launch(w, l))
	}
	elsewhere := m.put([]byte("#!/no/such/thing\n"))
	m.mu.Lock()
	damaged := strings.Repeat("ab", 32)
	m.blobs[damaged] = []byte("something else")
	m.mu.Unlock()
	for _, c := range []struct {
		name           string
		run            func() (*api.FinishRequest, *task.Error)
		permanent, own bool
		message, log   string
	}{
		{"no input", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program.Args[0] = "/no/such/file" })
		}, true, false, "/no/such/file", ""},
		{
			"arguments", func() (*api.FinishRequest, *task.Error) {
				return plan("plain", func(l *api.Launch) { l.Program.Args = nil })
			},
			false, false, "ended with status 2 before it reached its call of Run", "index out of range",
		},
		{"platform", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program.Platform = "plan9/mips" })
		}, true, false, "built for plan9/mips, and worker tester runs " + platform, ""},
		{"no program", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program = &api.Program{} })
		}, true, false, "names no program", ""},
		{"unknown blob", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program.Blob = strings.Repeat("cd", 32) })
		}, true, false, "the master does not have it", ""},
		{"damaged blob", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program.Blob = damaged })
		}, false, true, "does not have the digest", ""},
		{"digest", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program.Blob = "../../etc/passwd" })
		}, true, false, "is no digest", ""},
		{"unfit", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Program.Blob = elsewhere })
		}, true, false, "needs a loader", ""},
		{"stage", func() (*api.FinishRequest, *task.Error) {
			return plan("plain", func(l *api.Launch) { l.Attempt.Stage = "dance" })
		}, true, false, `"dance" is no kind of task`, ""},
		{"panic", func() (*api.FinishRequest, *task.Error) { return mapping("panic", nil) }, false, false, "a word too many", "main_linux_test.go:"},
		{"exit", func() (*api.FinishRequest, *task.Error) { return mapping("exit", nil) }, false, false, "ended with status 4 before it had done its task", ""},
		{"error", func() (*api.FinishRequest, *task.Error) { return mapping("error", nil) }, false, false, "not welcome", ""},
		{"stall", func() (*api.FinishRequest, *task.Error) {
			return mapping("hang", func(l *api.Launch) { l.TimeoutMs = 1500 })
		}, false, false, "no progress for 1.5s", ""},
		{"leak", func() (*api.FinishRequest, *task.Error) {
			return mapping("leak", func(l *api.Launch) { l.Memory = 200 << 20 })
		}, false, false, "its limit is 200 MiB", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, e := c.run()
			if e.Permanent != c.permanent || r.GetInfrastructure() != c.own || !strings.Contains(e.Message, c.message) || !strings.Contains(r.GetLog(), c.log) {
				t.Errorf("permanent %v, infrastructure %v, %q, log %q", e.Permanent, r.GetInfrastructure(), e.Message, r.GetLog())
			}
		})
	}
	w.settled()
}

func TestJobFile(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	// What stands in for the executable is no Quern and says so.
	fake := filepath.Join(t.TempDir(), "quern")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho \"$1\" $#; cat \"$2\"; exit 5\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := m.startWorker(func(o *Options) { o.Quern = fake })
	j, _ := m.job("plain")
	j.program = &api.Program{JobFile: "job: wordcount\n", Dir: "/no/such/folder"}
	r, e := j.failed(j.launch(w, &api.Launch{Attempt: j.attempt("plan", 0)}))
	if r.GetLog() != "run 2\njob: wordcount" || !strings.Contains(e.Message, "status 5") {
		t.Errorf("%q, log %q", e.Message, r.GetLog())
	}
}

func TestUploads(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("plain")
	in := strings.Fields(j.program.GetJobFile())[0]
	up := m.put([]byte("one two two\n"))
	if err := os.Remove(in); err != nil {
		t.Fatal(err)
	}
	uploads := []*api.Upload{{Path: in, Blob: up}}
	j.plan = &task.PlanResult{}
	j.ok(j.launch(w, &api.Launch{Attempt: j.attempt("plan", 0), Uploads: uploads}), j.plan)
	if len(j.plan.Splits) != 1 || j.plan.Bytes != 12 {
		t.Errorf("%d splits of %d bytes", len(j.plan.Splits), j.plan.Bytes)
	}
	if st, err := os.Stat(filepath.Join(w.blobs.dir, up)); err != nil || st.Mode().Perm()&0o222 != 0 {
		t.Errorf("%v %v", st, err)
	}
}

func TestNoRoom(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(func(o *Options) { o.Room = 1 << 60 })
	j, _ := m.job("plain")
	j.planned(w) // which needs none
	r, e := j.failed(j.launch(w, j.mapLaunch(0)))
	if !r.GetInfrastructure() || e.Permanent || !strings.Contains(e.Message, "are free in "+w.dir) {
		t.Errorf("%v %+v", r.GetInfrastructure(), e)
	}
}

// TestDiskFull fills a small file system.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs root, to mount a file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a small file system can't be mounted: %v", err)
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	m := newMaster(t)
	w := m.startWorker(func(o *Options) { o.Dir, o.Room = filepath.Join(dir, "w"), 8<<20 })
	defer w.end()
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("wait", "UNTIL="+until)
	j.planned(w)
	at := j.launch(w, j.mapLaunch(0))
	wait(t, "it runs", func() bool { return len(within(dir)) == 1 })
	f, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, e := j.failed(at)
	if !r.GetInfrastructure() || !strings.Contains(e.Message, "no space left on device") || !strings.Contains(e.Message, "are free in "+filepath.Join(dir, "w")) {
		t.Errorf("%v %+v", r.GetInfrastructure(), e)
	}
	_ = os.Remove(filepath.Join(dir, "fill"))
	j.ok(j.launch(w, j.mapLaunch(0)), &task.MapResult{})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestLogs(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("say")
	j.planned(w)
	at := j.launch(w, j.mapLaunch(1))
	j.ok(at, &task.MapResult{})
	j.program.Environment = []string{"PROGRAM=panic"}
	j.failed(j.launch(w, j.mapLaunch(2)))
	w.settled()
	m.send(w.ID(), &api.MasterMessage{Forget: []string{j.id}}) // logs stay
	conn, err := dial(w.opt.Address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(r *api.LogsRequest) map[uint32]string {
		t.Helper()
		s, err := api.NewPeerClient(conn).Log(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		got := map[uint32]string{}
		for {
			c, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return got
			}
			if err != nil {
				t.Fatal(err)
			}
			got[c.GetAttempt().GetTask()] += string(c.GetText())
		}
	}
	got := ask(&api.LogsRequest{Job: j.id})
	if !strings.Contains(got[1], "a word: question\n") || len(got) > 2 {
		t.Errorf("got %v", got)
	}
	if got := ask(&api.LogsRequest{Job: j.id, Task: "map 1"}); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if got := ask(&api.LogsRequest{Job: j.id, FailedOnly: true}); got[1] != "" {
		t.Errorf("got %v", got)
	}
	if got := ask(&api.LogsRequest{Job: "another"}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestMasterAway has an attempt end while there is no master: it is offered to the next.
func TestMasterAway(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("wait", "UNTIL="+until)
	j.planned(w)
	at, unwanted := j.launch(w, j.mapLaunch(0)), j.launch(w, j.mapLaunch(1))
	wait(t, "both run", func() bool { return len(within(w.dir)) == 2 })
	m.stop()
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wait(t, "both end", func() bool { return len(within(w.dir)) == 0 })
	if w.count() != 2 {
		t.Errorf("%d results are kept", w.count())
	}
	m.mu.Lock()
	m.epoch, m.hellos = 2, nil
	m.unwanted = func(a *api.Attempt) bool { return a.GetTask() == 1 }
	m.mu.Unlock()
	m.start(m.address)
	j.ok(at, &task.MapResult{})
	w.settled()
	m.mu.Lock()
	hello := m.hellos[0].GetHello()
	if hello.GetWorker() != w.ID() || hello.GetCluster() != "one" || len(hello.GetRunning()) != 2 || len(hello.GetOutputs()) != 0 {
		t.Errorf("it says %v", hello)
	}
	for _, r := range m.finished {
		if keyOf(r.GetAttempt()) == keyOf(unwanted) {
			t.Error("what is not wanted was offered")
		}
	}
	m.mu.Unlock()
	// Now its output is among what it has.
	m.stop()
	m.mu.Lock()
	m.hellos = nil
	m.mu.Unlock()
	m.start(m.address)
	wait(t, "it says hello", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.hellos) > 0
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.hellos[0].GetHello().GetOutputs(); len(o) != 1 || keyOf(o[0].GetAttempt()) != keyOf(at) {
		t.Errorf("its outputs are %v", o)
	}
}

func TestFinishIsRepeated(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("plain")
	var asked atomic.Int32
	m.mu.Lock()
	m.finish = func(*api.FinishRequest) (*api.FinishReply, error) {
		if asked.Add(1) < 4 {
			return nil, status.Error(codes.Unavailable, "the journal is busy")
		}
		return &api.FinishReply{Accepted: true}, nil
	}
	m.mu.Unlock()
	j.planned(w)
	if asked.Load() != 4 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// TestFinishTooLarge has the master refuse a message for good: the task fails, and does not hang.
func TestFinishTooLarge(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("plain")
	m.mu.Lock()
	m.finish = func(r *api.FinishRequest) (*api.FinishReply, error) {
		if len(r.GetResult()) > 0 {
			return nil, status.Error(codes.ResourceExhausted, "it is too long")
		}
		return &api.FinishReply{Accepted: true}, nil
	}
	m.mu.Unlock()
	_, e := j.failed(j.launch(w, &api.Launch{Attempt: j.attempt("plan", 0)}))
	if !e.Permanent || !strings.Contains(e.Message, "it is too long") {
		t.Errorf("%+v", e)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("wait", "UNTIL="+until)
	j.planned(w)
	at := j.launch(w, j.mapLaunch(0))
	wait(t, "it runs", func() bool { return len(within(w.dir)) == 1 })
	w.Drain()
	wait(t, "the master is told", func() bool { return m.some((*api.WorkerMessage).GetDraining) })
	m.send(w.ID(), &api.MasterMessage{Drain: true})
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.ok(at, &task.MapResult{}) // what runs is finished first
	w.ended()
	if !m.left[w.ID()] {
		t.Error("it did not say that it leaves")
	}
}

func TestLeave(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("fork")
	j.planned(w)
	j.launch(w, j.mapLaunch(0))
	wait(t, "it works", func() bool { return len(within(w.dir)) == 2 })
	w.end()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.left[w.ID()] || len(m.hellos) != 1 || len(m.finished) != 1 {
		t.Errorf("left %v, %d hellos, %d results", m.left, len(m.hellos), len(m.finished))
	}
}

func TestLeaveWithoutMaster(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	m.stop()
	w := m.startWorker(nil)
	w.end()
	if err := w.Run(t.Context()); err == nil {
		t.Error("it ran twice")
	}
}

func TestOtherCluster(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	w := m.startWorker(nil)
	j, _ := m.job("plain")
	j.planned(w)
	j.ok(j.launch(w, j.mapLaunch(0)), &task.MapResult{})
	j.program.Environment = []string{"PROGRAM=hang"}
	j.launch(w, j.mapLaunch(1))
	wait(t, "an output is kept and an attempt works", func() bool { return len(w.held()) == 1 && len(within(w.dir)) == 1 })
	m.stop()
	m.mu.Lock()
	m.cluster = "two"
	m.mu.Unlock()
	m.start(m.address)
	w.settled()
	wait(t, "the output is dropped", func() bool { return len(w.held()) == 0 })
}

// TestStrangersMaster has another cluster's master listen where one might be, while this worker's is away.
func TestStrangersMaster(t *testing.T) {
	t.Parallel()
	m, stranger := newMaster(t), newMaster(t)
	stranger.cluster = "strangers"
	w := m.startWorker(func(o *Options) {
		o.Masters = func(context.Context) ([]string, error) { return []string{m.address, stranger.address}, nil }
	})
	j, _ := m.job("plain")
	j.planned(w)
	j.ok(j.launch(w, j.mapLaunch(0)), &task.MapResult{})
	wait(t, "an output is kept", func() bool { return len(w.held()) == 1 })
	m.stop()
	wait(t, "the stranger is asked", func() bool {
		stranger.mu.Lock()
		defer stranger.mu.Unlock()
		return len(stranger.hellos) > 1
	})
	m.start(m.address)
	w.settled()
	if len(w.held()) != 1 {
		t.Error("the output is gone")
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	m.lease = 3 * time.Second // a slow machine must not let one pass
	m.startWorker(nil)
	wait(t, "the lease is renewed ten times", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.heard) >= 10
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.hellos) != 1 {
		t.Errorf("%d hellos", len(m.hellos))
	}
}

// TestRelocate has a reduce attempt's input be at a worker that has it not, and then where it is.
func TestRelocate(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	j, _ := m.job("plain")
	j.planned(a)
	j.mapped(a)
	l := j.reduceLaunch(0)
	i := slices.IndexFunc(l.Reduce.Outputs, func(o *api.MapOutput) bool { return o.GetPairs() > 0 })
	right := l.Reduce.Outputs[i]
	wrong := &api.MapOutput{Task: right.GetTask(), Attempt: right.GetAttempt(), Worker: b.ID(), Address: b.opt.Address, Pairs: right.GetPairs(), Digest: right.GetDigest()}
	l.Reduce.Outputs[i] = wrong
	at := j.launch(a, l)
	lost := func(m *api.WorkerMessage) bool {
		return slices.ContainsFunc(m.GetLost(), func(o *api.OutputLost) bool {
			return o.GetGone() && o.GetWorker() == b.ID() && o.GetMapTask() == right.GetTask() && keyOf(o.GetReader()) == keyOf(at)
		})
	}
	wait(t, "the master is told of the lost output", func() bool { return m.some(lost) })
	// It is told again to the next master.
	m.stop()
	m.mu.Lock()
	m.heard = nil
	m.mu.Unlock()
	m.start(m.address)
	wait(t, "the next master is told, too", func() bool { return m.some(lost) })
	m.send(a.ID(), &api.MasterMessage{Relocate: []*api.Relocate{{Reader: at, Output: right}}})
	j.ok(at, &task.ReduceResult{})
	a.settled()
}

// TestOutputOnItsWay asks for an output that the master has accepted before the worker knows.
func TestOutputOnItsWay(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	j, _ := m.job("plain")
	j.planned(a)
	asked, answer := make(chan *api.FinishRequest, 1), make(chan struct{})
	m.mu.Lock()
	m.finish = func(r *api.FinishRequest) (*api.FinishReply, error) {
		if r.GetAttempt().GetStage() == "map" {
			asked <- r
			<-answer
		}
		return &api.FinishReply{Accepted: true}, nil
	}
	m.mu.Unlock()
	j.launch(a, j.mapLaunch(0))
	r := <-asked
	m.mu.Lock()
	m.finish = nil
	m.finished = append(m.finished, r)
	m.mu.Unlock()
	res := &task.MapResult{}
	j.ok(r.GetAttempt(), res)
	j.maps = []*task.MapResult{res}
	j.outputs = []*api.MapOutput{{Attempt: r.GetAttempt(), Worker: a.ID(), Address: a.opt.Address}}
	at, own := j.launch(b, j.reduceLaunch(0)), j.launch(a, j.reduceLaunch(1))
	wait(t, "both gather", func() bool {
		n := 0
		for _, a := range []*api.Attempt{at, own} {
			if m.some(func(m *api.WorkerMessage) bool {
				return slices.ContainsFunc(m.GetProgress(), func(p *api.AttemptProgress) bool {
					return keyOf(p.GetAttempt()) == keyOf(a) && p.GetPhase() == "gathering"
				})
			}) {
				n++
			}
		}
		return n == 2
	})
	close(answer)
	j.ok(at, &task.ReduceResult{})
	j.ok(own, &task.ReduceResult{})
	if m.some(func(m *api.WorkerMessage) bool { return len(m.GetLost()) > 0 }) {
		t.Error("it was taken for lost")
	}
}

// separate starts a worker in a process of its own.
func separate(t *testing.T, m *master, dir string) (cmd *exec.Cmd, id string, out *bufio.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), "WORKER_DIR="+dir, "WORKER_MASTER="+m.address)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	out = bufio.NewReader(pipe)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ = strings.Cut(strings.TrimSpace(line), " ")
	return cmd, id, out
}

// TestStoppedWorker stops a worker for longer than its lease: it says hello again before
// it does anything, and what it was told meanwhile is void.
func TestStoppedWorker(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	m.lease = 2 * time.Second
	dir := t.TempDir()
	cmd, id, out := separate(t, m, dir)
	w := &running{Worker: &Worker{id: id}, t: t, dir: dir}
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("wait", "UNTIL="+until)
	j.planned(w)
	at := j.launch(w, j.mapLaunch(0))
	wait(t, "it works", func() bool { return len(within(dir)) == 1 })
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A signal is only sent by now: what came before it works would be no order that is void.
	wait(t, "it is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "T")
	})
	began := time.Now()
	void := j.launch(w, j.mapLaunch(1))
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wait(t, "the attempt ends", func() bool { return len(within(dir)) == 0 })
	time.Sleep(m.lease + 200*time.Millisecond - time.Since(began))
	m.mu.Lock()
	helloed := false // before anything else
	m.hellos = nil
	m.finish = func(*api.FinishRequest) (*api.FinishReply, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		helloed = len(m.hellos) > 0
		return &api.FinishReply{Reason: "another was first"}, nil
	}
	m.mu.Unlock()
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.result(at)
	m.mu.Lock()
	if !helloed || len(m.hellos) != 1 || len(m.hellos[0].GetHello().GetRunning()) != 1 || keyOf(m.hellos[0].GetHello().GetRunning()[0]) != keyOf(at) {
		t.Errorf("hellos: %v, before the result: %v; %v is void", m.hellos, helloed, keyOf(void))
	}
	m.mu.Unlock()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	if string(rest) != "<nil>\n" {
		t.Errorf("it ended with %q", rest)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// TestKilledWorker has the next worker clean up after one that was killed.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	dir := t.TempDir()
	cmd, id, _ := separate(t, m, dir)
	w := &running{Worker: &Worker{id: id}, t: t, dir: dir}
	j, _ := m.job("fork")
	j.planned(w)
	j.launch(w, j.mapLaunch(0))
	wait(t, "it works", func() bool { return len(within(dir)) == 2 })
	_, err := New(Options{Dir: dir, Listener: closed(t), Masters: func(context.Context) ([]string, error) { return nil, nil }})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to another worker that runs (process %d)", cmd.Process.Pid)) {
		t.Errorf("two workers in a folder: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wait(t, "the child dies with its worker", func() bool { return len(within(dir)) == 1 })
	next := m.startWorker(func(o *Options) { o.Dir = dir })
	if pids := within(dir); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
	next.dir = dir
	next.end()
}

func closed(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestOptions(t *testing.T) {
	l := closed(t)
	masters := func(context.Context) ([]string, error) { return nil, nil }
	for name, o := range map[string]Options{
		"folder":   {Listener: l, Masters: masters},
		"listener": {Dir: t.TempDir(), Masters: masters},
		"masters":  {Dir: t.TempDir(), Listener: l},
		"slots":    {Dir: t.TempDir(), Listener: l, Masters: masters, Slots: -1},
		"a file":   {Dir: "/dev/null", Listener: l, Masters: masters},
	} {
		if w, err := New(o); err == nil || w != nil || !strings.HasPrefix(err.Error(), "worker: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCertificates has all talk by TLS, and a submitter turned away.
func TestCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := identity.Create(dir, identity.Options{}); err != nil {
		t.Fatal(err)
	}
	load := func(role string) (server, client *tls.Config) {
		t.Helper()
		server, client, err := identity.Load(dir, role)
		if err != nil {
			t.Fatal(err)
		}
		return server, client
	}
	mserver, _ := load(identity.Master)
	wserver, wclient := load(identity.Worker)
	_, sclient := load(identity.Client)
	m := newMaster(t)
	m.stop()
	m.creds = credentials.NewTLS(mserver)
	m.start("127.0.0.1:0")
	secure := func(o *Options) {
		o.Server, o.Master, o.Peers = credentials.NewTLS(wserver), credentials.NewTLS(wclient), credentials.NewTLS(identity.To(wclient, identity.Worker))
	}
	a, b := m.startWorker(secure), m.startWorker(secure)
	j, _ := m.job("plain")
	j.planned(a)
	j.mapped(a, b)
	j.ok(j.launch(a, j.reduceLaunch(0)), &task.ReduceResult{})
	m.spread("one", m.put([]byte("a blob")), false, a, b)
	if r := m.spreaded("one"); r.GetReached() != 1 {
		t.Errorf("a broadcast: %v", r)
	}
	for _, c := range []struct {
		client *tls.Config
		code   codes.Code
	}{{sclient, codes.PermissionDenied}, {wclient, codes.OK}} {
		conn, err := dial(a.opt.Address, credentials.NewTLS(identity.To(c.client, identity.Worker)))
		if err != nil {
			t.Fatal(err)
		}
		s, err := api.NewPeerClient(conn).Log(t.Context(), &api.LogsRequest{Job: "none"})
		if err == nil {
			if _, err = s.Recv(); errors.Is(err, io.EOF) {
				err = nil
			}
		}
		if status.Code(err) != c.code {
			t.Errorf("got %v", err)
		}
		if _, err := rpc.NewClient(conn).Endpoint(t.Context()); (err == nil) != (c.code == codes.OK) {
			t.Errorf("the shuffle's control: %v", err)
		}
		if _, err := rpc.NewBroadcastClient(conn).BroadcastEndpoint(t.Context()); (err == nil) != (c.code == codes.OK) {
			t.Errorf("the control of broadcasts: %v", err)
		}
		_ = conn.Close()
	}
}

// TestRandomOrders has a master say anything in any order, answer or not, and be restarted. Whatever is
// not stopped is offered until it is taken, and in the end nothing is left but outputs that were taken.
func TestRandomOrders(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	m := newMaster(t)
	w := m.startWorker(func(o *Options) { o.Slots = 3 })
	until := filepath.Join(t.TempDir(), "go")
	j, _ := m.job("plain", "UNTIL="+until)
	j.planned(w)
	var busy atomic.Uint64
	m.mu.Lock()
	m.finish = func(*api.FinishRequest) (*api.FinishReply, error) {
		switch n := busy.Add(1); n % 4 {
		case 1:
			return nil, status.Error(codes.Unavailable, "busy")
		case 2:
			return &api.FinishReply{Reason: "another was first"}, nil
		}
		return &api.FinishReply{Accepted: true}, nil
	}
	m.mu.Unlock()
	launched := map[key]bool{} // true: it was stopped; under the master's lock
	is := func(at *api.Attempt, stopped bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		launched[keyOf(at)] = stopped
	}
	m.mu.Lock()
	m.unwanted = func(at *api.Attempt) bool { return launched[keyOf(at)] } // that it was told may be lost
	m.mu.Unlock()
	known := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		for k, stopped := range launched {
			if !stopped && w.attempts[k] == nil && !slices.ContainsFunc(m.finished, func(r *api.FinishRequest) bool { return keyOf(r.GetAttempt()) == k }) {
				return false
			}
		}
		return true
	}
	var ats []*api.Attempt
	for range 60 {
		switch n := r.IntN(20); {
		case n < 12:
			how := []string{"plain", "plain", "wait", "exit", "hang"}[r.IntN(5)]
			j.program = &api.Program{JobFile: j.program.GetJobFile(), Environment: []string{"PROGRAM=" + how, "UNTIL=" + until}}
			at := j.launch(w, j.mapLaunch(r.IntN(len(j.plan.Splits))))
			is(at, how == "hang")
			if how == "hang" {
				m.send(w.ID(), &api.MasterMessage{Stop: []*api.Stop{{Attempt: at}}})
			}
			ats = append(ats, at)
		case n < 16 && len(ats) > 0:
			at := ats[r.IntN(len(ats))]
			is(at, true)
			m.send(w.ID(), &api.MasterMessage{Stop: []*api.Stop{{Attempt: at}}})
		case n < 18:
			// What was said may be lost with the stream, and it would have to be found missing.
			wait(t, "all orders have arrived", known)
			m.stop()
			m.start(m.address)
		default:
			time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
		}
	}
	wait(t, "all orders have arrived", known)
	if err := os.WriteFile(until, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.settled()
	if len(w.mapSlots) != 0 || len(w.reduceSlots) != 0 {
		t.Errorf("%d and %d slots are taken", len(w.mapSlots), len(w.reduceSlots))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ended := map[key]bool{}
	for _, f := range m.finished {
		ended[keyOf(f.GetAttempt())] = true
	}
	for k, stopped := range launched {
		if !stopped && !ended[k] {
			t.Errorf("nothing was heard of %v", k)
		}
	}
	for _, h := range w.ex.Held() {
		if !ended[keyOf(h.GetAttempt())] {
			t.Errorf("%v is kept, and was never taken", keyOf(h.GetAttempt()))
		}
	}
}
