// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// gate holds attempts back until it is opened.
type gate struct {
	reached chan schedule.Attempt
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate {
	return &gate{reached: make(chan schedule.Attempt, 10000), open: make(chan struct{})}
}

// release opens the gate, unless it is open.
func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) wait(at schedule.Attempt) {
	g.reached <- at
	<-g.open
}

// The output of a worker that dies is made again where it is needed, and readers are told.
func TestLostWorker(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 6, parts: 2}
	a := newWorker(t, m.addr, w, d, "a")
	b := newWorker(t, m.addr, w, d, "b")
	c := newWorker(t, m.addr, w, d, "c")
	g := newGate()
	for _, f := range []*fakeWorker{a, b, c} {
		f.pause = func(at schedule.Attempt) error {
			if at.Stage == schedule.Reduce {
				g.wait(at)
			}
			return nil
		}
		f.start()
	}
	until(t, "three workers", func() bool { return m.about().Workers == 3 })
	job := m.submit(jobFile())
	<-g.reached
	lost := a.die()
	close(g.open)
	s := m.wantDone(job, d)
	if lost > 0 && s.Reruns == 0 {
		t.Errorf("a worker with %d outputs died, and nothing was run again", lost)
	}
	w.check(t)
}

func (m *testMaster) about() *api.AboutReply {
	m.t.Helper()
	r, err := m.client.About(m.context(), &api.AboutRequest{})
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// A worker whose lease ran out while it was stopped goes on afterwards; what it then offers is refused, and
// changes no sum.
func TestZombie(t *testing.T) {
	for _, stage := range []schedule.Stage{schedule.Map, schedule.Reduce, schedule.Commit} {
		t.Run(stage.String(), func(t *testing.T) {
			m := startMaster(t)
			w := newWorld()
			d := &model{splits: 1, parts: 1}
			a := newWorker(t, m.addr, w, d, "a")
			g := newGate()
			a.pause = func(at schedule.Attempt) error {
				if at.Stage == stage {
					g.wait(at)
				}
				return nil
			}
			a.start()
			job := m.submit(jobFile())
			stopped := <-g.reached
			// It is a process that was stopped, and its lease has run out without its knowing.
			thaw := make(chan struct{})
			a.mu.Lock()
			a.frozen = thaw
			a.mu.Unlock()
			ctx := m.context()
			if err := m.do(ctx, func() { m.workerGone(m.workers[a.hello.Worker], errGone) }); err != nil {
				t.Fatal(err)
			}
			startWorker(t, m.addr, w, d, "b")
			s := m.wantDone(job, d)
			reply, err := m.attendance(t).Finish(ctx, &api.FinishRequest{Attempt: toAPI(stopped), Worker: a.hello.Worker, Result: []byte(`{"parts":[]}`)})
			if err != nil || reply.Accepted || reply.Reason == "" {
				t.Errorf("a zombie's result: %v, %v", reply, err)
			}
			close(thaw)
			close(g.open)
			if again := m.wantDone(job, d); string(again.Result) != string(s.Result) {
				t.Errorf("the result has changed: %s, %s", s.Result, again.Result)
			}
			w.check(t)
		})
	}
}

func (m *testMaster) attendance(t *testing.T) api.AttendanceClient {
	conn := dial(t, m.addr)
	t.Cleanup(func() { _ = conn.Close() })
	return api.NewAttendanceClient(conn)
}

// While its job still runs, too: another attempt's result was taken before.
func TestSecondResultIsRefused(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 2, parts: 1}
	a := newWorker(t, m.addr, w, d, "a")
	g := newGate()
	var first atomic.Pointer[schedule.Attempt]
	a.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Map && at.Task == 0 {
			first.CompareAndSwap(nil, &at)
		}
		if at.Stage == schedule.Reduce {
			g.wait(at)
		}
		return nil
	}
	a.start()
	job := m.submit(jobFile())
	<-g.reached
	at := *first.Load()
	c := m.attendance(t)
	req := &api.FinishRequest{Attempt: toAPI(at), Worker: a.hello.Worker, Result: []byte(`{"parts":[]}`)}
	// The very one that was taken is told so again, whatever it brings.
	if r, err := c.Finish(m.context(), req); err != nil || !r.Accepted {
		t.Errorf("the accepted attempt asks again: %v, %v", r, err)
	}
	for name, change := range map[string]func(*api.FinishRequest){
		"another number": func(r *api.FinishRequest) { r.Attempt.Number++ },
		"another epoch":  func(r *api.FinishRequest) { r.Attempt.Epoch++ },
		"another task":   func(r *api.FinishRequest) { r.Attempt.Task = 1 << 30 },
		"another stage attempt": func(r *api.FinishRequest) {
			r.Attempt.Stage, r.Attempt.StageAttempt = "reduce", 1
		},
		"another stage": func(r *api.FinishRequest) { r.Attempt.Stage = "commit" },
		"another job":   func(r *api.FinishRequest) { r.Attempt.Job = "x" },
	} {
		r := &api.FinishRequest{Attempt: toAPI(at), Worker: a.hello.Worker, Result: []byte(`{"parts":[]}`)}
		change(r)
		if reply, err := c.Finish(m.context(), r); err != nil || reply.Accepted || reply.Reason == "" {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
	}
	req.Worker = "x"
	if r, err := c.Finish(m.context(), req); status.Code(err) != codes.Unavailable {
		t.Errorf("a worker that is not here: %v, %v", r, err)
	}
	close(g.open)
	m.wantDone(job, d)
	w.check(t)
}

func TestFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		stage schedule.Stage
		err   func(try int64) error
		want  string
		fails bool
	}{
		"once":           {schedule.Map, func(n int64) error { return failTimes(n, 1, false, false) }, "", false},
		"too often":      {schedule.Map, func(n int64) error { return failTimes(n, 100, false, false) }, "it broke", true},
		"for good":       {schedule.Map, func(n int64) error { return failTimes(n, 1, true, false) }, "it broke", true},
		"infrastructure": {schedule.Reduce, func(n int64) error { return failTimes(n, 6, false, true) }, "", false},
		"plan":           {schedule.Plan, func(n int64) error { return failTimes(n, 1, true, false) }, "it broke", true},
		"commit":         {schedule.Commit, func(n int64) error { return failTimes(n, 1, true, false) }, "it broke", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Schedule.MaxBackoff = 2 * time.Millisecond })
			w := newWorld()
			d := &model{splits: 2, parts: 1}
			a := newWorker(t, m.addr, w, d, "a")
			var tries atomic.Int64
			a.pause = func(at schedule.Attempt) error {
				if at.Stage == tc.stage && at.Task == 0 {
					return tc.err(tries.Add(1))
				}
				return nil
			}
			a.start()
			job := m.submit(jobFile())
			if !tc.fails {
				s := m.wantDone(job, d)
				if s.Map.FailedAttempts+s.Reduce.LostAttempts == 0 {
					t.Error("no failed attempt is shown")
				}
				return
			}
			s := m.wait(job)
			if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, tc.want) {
				t.Errorf("%v: %s", s.State, s.Error)
			}
			if got, want := w.aborted[job], 1; tc.stage != schedule.Plan && got != want {
				t.Errorf("aborted %d times", got)
			}
			if w.published[job] != 0 {
				t.Error("a failed job was published")
			}
			stream, err := m.client.Tasks(m.context(), &api.TasksRequest{Job: job[:8], FailedOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			page, err := stream.Recv()
			if err != nil || len(page.Attempts) == 0 || !strings.Contains(page.Attempts[0].Error, "it broke") || page.Attempts[0].State != "failed" {
				t.Errorf("failed attempts: %v, %v", page, err)
			}
			w.check(t)
		})
	}
}

func failTimes(n, times int64, permanent, infrastructure bool) error {
	if n > times {
		return nil
	}
	return &failError{task.Error{Message: "it broke", Permanent: permanent}, infrastructure}
}

// Cancel waits until what the job left is removed, and says how it stands.
func TestCancel(t *testing.T) {
	for _, stage := range []schedule.Stage{schedule.Plan, schedule.Map, schedule.Reduce} {
		t.Run(stage.String(), func(t *testing.T) {
			m := startMaster(t)
			w := newWorld()
			d := &model{splits: 3, parts: 1}
			a := newWorker(t, m.addr, w, d, "a")
			g := newGate()
			a.pause = func(at schedule.Attempt) error {
				if at.Stage == stage {
					g.wait(at)
				}
				return nil
			}
			a.start()
			job := m.submit(jobFile())
			<-g.reached
			r, err := m.client.Cancel(m.context(), &api.CancelRequest{Job: job[:10], Reason: "enough"})
			close(g.open)
			if err != nil {
				t.Fatal(err)
			}
			if s := r.Job; s.State != api.JobState_JOB_CANCELLED || !strings.Contains(s.Error, "enough") {
				t.Errorf("%v: %s", s.State, s.Error)
			}
			if w.aborted[job] != 1 {
				t.Errorf("aborted %d times", w.aborted[job])
			}
			// It says the same of a job that has ended.
			r, err = m.client.Cancel(m.context(), &api.CancelRequest{Job: job})
			if err != nil || r.Job.State != api.JobState_JOB_CANCELLED {
				t.Errorf("again: %v, %v", r, err)
			}
			until(t, "what was held is dropped", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.held[a.hello.Worker]) == 0
			})
			w.check(t)
		})
	}
}

// A cancel is not forgotten by a restart, nor what was being removed.
func TestRestartWhileCancelled(t *testing.T) {
	for _, stage := range []schedule.Stage{schedule.Plan, schedule.Map} {
		t.Run(stage.String(), func(t *testing.T) { restartWhileCancelled(t, stage) })
	}
}

func restartWhileCancelled(t *testing.T, stage schedule.Stage) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 3, parts: 1}
	a := newWorker(t, m.addr, w, d, "a")
	begun, aborts := newGate(), newGate()
	a.pause = func(at schedule.Attempt) error {
		switch at.Stage {
		case stage:
			begun.wait(at)
		case schedule.Abort:
			aborts.wait(at)
		}
		return nil
	}
	a.start()
	job := m.submit(jobFile())
	<-begun.reached
	// The master answers before the deadline, if it has a processor then: else it is asked again.
	var r *api.CancelReply
	var err error
	for tries := 0; tries == 0 || status.Code(err) == codes.DeadlineExceeded && tries < 10; tries++ {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		r, err = m.client.Cancel(ctx, &api.CancelRequest{Job: job, Reason: "enough"})
		cancel()
	}
	if err != nil || over(r.Job.State) || !strings.Contains(r.Job.Waiting, "enough") {
		t.Errorf("cancel, while what was left is being removed: %v, %v", r, err)
	}
	<-aborts.reached
	m.restart()
	close(begun.open)
	close(aborts.open)
	if s := m.wait(job); s.State != api.JobState_JOB_CANCELLED || !strings.Contains(s.Error, "enough") {
		t.Errorf("%v: %s", s.State, s.Error)
	}
	w.mu.Lock()
	if w.aborted[job] == 0 {
		t.Error("nothing was removed")
	}
	w.mu.Unlock()
	w.check(t)
}

// A map function that is not deterministic: parts that read the old output begin anew, also
// if they were committed, and the books balance.
func TestChangedOutput(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	var round atomic.Int64
	d := &model{splits: 3, parts: 3}
	first := map[uint32]uint32{}
	d.mapped = func(l *api.Launch, r *task.MapResult) {
		at, _ := fromAPI(l.Attempt)
		w.mu.Lock()
		if _, ok := first[at.Task]; !ok {
			first[at.Task] = at.Number
		}
		w.mu.Unlock()
		if at.Task == 1 && at.Number != first[at.Task] {
			// Partition 0 is the same, 1 has a pair more, 2 has decimals.
			r.Parts[1].Pairs++
			r.Parts[1].Digest = 77
			r.Parts[1].Check[0] += 5
			r.Emitted++
			round.Add(1)
		}
	}
	var checks sync.Map
	d.reduced = func(l *api.Launch, r *task.ReduceResult, f *api.FinishRequest) {
		// Reduce by what the master says; the audit compares it with its own sums at the end.
		pairs := int64(0)
		for _, o := range l.Reduce.Outputs {
			pairs += o.Pairs
		}
		if pairs != l.Reduce.Pairs {
			w.problem("part %d: outputs have %d pairs, all have %d", l.Reduce.Part, pairs, l.Reduce.Pairs)
		}
		r.Check, r.Pairs = l.Reduce.Check, pairs
		f.KernelPairs, f.UserPairs = pairs, 0
		checks.Store(l.Reduce.Part, pairs)
	}
	workers := []*fakeWorker{newWorker(t, m.addr, w, d, "a"), newWorker(t, m.addr, w, d, "b")}
	g := newGate()
	var parts sync.Map
	for _, f := range workers {
		f.pause = func(at schedule.Attempt) error {
			// Part 2 waits, so that the map outputs are needed for longer.
			if at.Stage == schedule.Reduce && at.Task == 2 && at.StageAttempt == 0 {
				g.wait(at)
			}
			return nil
		}
		f.outcome = func(at schedule.Attempt, r *api.FinishReply) {
			if at.Stage == schedule.Reduce && r.Accepted {
				n, _ := parts.LoadOrStore(at.Task, new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
			}
		}
		f.start()
	}
	job := m.submit(jobFile())
	taken := func(p uint32) int64 {
		if n, ok := parts.Load(p); ok {
			return n.(*atomic.Int64).Load()
		}
		return 0
	}
	<-g.reached
	until(t, "parts 0 and 1 are committed", func() bool { return taken(0) == 1 && taken(1) == 1 })
	// The output of map 1 is lost.
	w.mu.Lock()
	for _, held := range w.held {
		for at := range held {
			if at.Task == 1 && at.Stage == schedule.Map {
				delete(held, at)
			}
		}
	}
	w.mu.Unlock()
	close(g.open)
	s := m.wait(job)
	if s.State != api.JobState_JOB_DONE {
		t.Fatalf("%v: %s", s.State, s.Error)
	}
	if pairsOf(1, 2) == 0 {
		t.Fatal("the test needs pairs of map 1 for part 2")
	}
	if taken(0) != 1 || taken(1) != 2 || taken(2) != 1 || s.Resets != 1 || s.Reruns != 1 {
		t.Errorf("results taken: %d, %d, %d; %d resets, %d reruns", taken(0), taken(1), taken(2), s.Resets, s.Reruns)
	}
	if !strings.Contains(strings.Join(s.Notes, "\n"), "not deterministic") {
		t.Errorf("notes: %q", s.Notes)
	}
	w.check(t)
}

// Sums that do not balance fail the job before anything is published.
func TestAudit(t *testing.T) {
	for name, reduced := range map[string]func(l *api.Launch, r *task.ReduceResult, f *api.FinishRequest){
		"a pair is missing": func(_ *api.Launch, _ *task.ReduceResult, f *api.FinishRequest) { f.UserPairs-- },
		"a value is wrong":  func(_ *api.Launch, r *task.ReduceResult, _ *api.FinishRequest) { r.Check[0]++ },
		"no check":          func(_ *api.Launch, r *task.ReduceResult, _ *api.FinishRequest) { r.Check = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t)
			w := newWorld()
			d := &model{splits: 3, parts: 2}
			d.reduced = func(l *api.Launch, r *task.ReduceResult, f *api.FinishRequest) {
				if l.Reduce.Part == 1 {
					reduced(l, r, f)
				}
			}
			startWorker(t, m.addr, w, d, "a")
			job := m.submit(jobFile())
			s := m.wait(job)
			if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, "audit failed: partition 1") {
				t.Errorf("%v: %s", s.State, s.Error)
			}
			if w.published[job] != 0 || w.aborted[job] != 1 {
				t.Errorf("published %d times, aborted %d times", w.published[job], w.aborted[job])
			}
			w.check(t)
		})
	}
}

// A result that makes no sense fails its attempt, and not the master.
func TestSenselessResults(t *testing.T) {
	for name, mapped := range map[string]func(l *api.Launch, r *task.MapResult){
		"too few parts":   func(_ *api.Launch, r *task.MapResult) { r.Parts = r.Parts[:1] },
		"lanes":           func(_ *api.Launch, r *task.MapResult) { r.Parts[0].Check = make([]uint64, 5) },
		"sums":            func(_ *api.Launch, r *task.MapResult) { r.Parts[0].SumAbs = make([][2]uint64, 5) },
		"scale":           func(_ *api.Launch, r *task.MapResult) { r.Scale = []uint8{200, 0} },
		"scales":          func(_ *api.Launch, r *task.MapResult) { r.Scale = []uint8{1} },
		"negative":        func(_ *api.Launch, r *task.MapResult) { r.Parts[0].Pairs = -1 },
		"negative totals": func(_ *api.Launch, r *task.MapResult) { r.Records = -1 },
		"huge":            func(_ *api.Launch, r *task.MapResult) { r.Parts[0].Pairs = 1<<63 - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Schedule.MaxAttempts = 1 })
			w := newWorld()
			startWorker(t, m.addr, w, &model{splits: 2, parts: 2, mapped: mapped}, "a")
			s := m.wait(m.submit(jobFile()))
			if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, "makes no sense") {
				t.Errorf("%v: %s", s.State, s.Error)
			}
		})
	}
}
