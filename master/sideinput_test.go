// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

func (m *testMaster) blobFiles() []string {
	m.t.Helper()
	list, err := filepath.Glob(filepath.Join(m.opts.Dir, "blobs", "*"))
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}

func TestKeepBlob(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Limits.SideInputs = 1000 })
	worker := m.attendance(t)
	content := large("c", 1000)
	for range 2 { // a second time does no harm
		if err := keep(worker, m.context(), content); err != nil {
			t.Fatal(err)
		}
	}
	if err := keep(worker, m.context(), nil); err != nil {
		t.Errorf("an empty one: %v", err)
	}
	got, err := os.ReadFile(filepath.Join(m.opts.Dir, "blobs", digestOf(content)))
	if err != nil || string(got) != string(content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	other := strings.Repeat("00", 32)
	for name, tc := range map[string]struct {
		digest string
		size   int64
		sent   string
		code   codes.Code
		want   string
	}{
		"another digest": {other, 3, "abc", codes.InvalidArgument, "not the digest"},
		"cut off":        {other, 3, "ab", codes.InvalidArgument, "1 are missing"},
		"too long":       {other, 3, "abcd", codes.InvalidArgument, "has more"},
		"negative":       {other, -1, "", codes.InvalidArgument, "not the size"},
		"a path":         {"../../x", 3, "abc", codes.InvalidArgument, "SHA-256"},
		"too large":      {other, 1001, "abc", codes.OutOfRange, "1001 bytes: the master takes at most 1000 of a job; give quern master a larger --side-inputs"},
	} {
		err := keepAs(worker, m.context(), tc.digest, tc.size, []byte(tc.sent))
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	// One whose worker dies while it sends leaves nothing.
	ctx, cancel := context.WithCancel(m.context())
	stream, err := worker.KeepBlob(ctx)
	if err == nil {
		err = stream.Send(&api.BlobChunk{Digest: other, Size: 3, Data: []byte("ab")})
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, "it is begun", func() bool { return len(m.blobFiles()) == 3 })
	cancel()
	until(t, "it is removed", func() bool { return len(m.blobFiles()) == 2 })
}

// Only workers store side inputs.
func TestKeepBlobOfOthers(t *testing.T) {
	m := startMaster(t, func(o *Options) {
		o.Authorize = func(_ context.Context, role Role) error {
			if role == RoleWorker {
				return errors.New("your certificate is not a worker's")
			}
			return nil
		}
	})
	if err := keep(m.attendance(t), m.context(), []byte("abc")); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not a worker's") {
		t.Errorf("%v", err)
	}
	if list := m.blobFiles(); len(list) > 0 {
		t.Errorf("left: %q", list)
	}
}

// Side inputs beyond the limit end the job at once, and what its plan prepared is removed.
func TestSideInputLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		sizes []int64
		want  string
	}{
		"one":  {[]int64{10, 101}, `side input "b" has 101 bytes: the master takes at most 100 of a job; give quern master a larger --side-inputs`},
		"all":  {[]int64{60, 40, 1}, `side input "c" has 1 bytes, and with those before it they are more than 100`},
		"huge": {[]int64{1, 1<<63 - 1}, `side input "b" has 9223372036854775807 bytes`},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Limits.SideInputs = 100 })
			w := newWorld()
			startWorker(t, m.addr, w, &model{splits: 2, parts: 1, plan: func(r *task.PlanResult) {
				for i, n := range tc.sizes {
					r.SideInputs = append(r.SideInputs, task.SideFile{Name: string(rune('a' + i)), Size: n, Digest: strings.Repeat("0", 64)})
				}
			}}, "a")
			job := m.submit(jobFile())
			s := m.wait(job)
			if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, tc.want) {
				t.Errorf("%v: %s, want %q", s.State, s.Error, tc.want)
			}
			if w.launches[schedule.Plan] != 1 || w.aborted[job] != 1 || w.tickets[job] != "ticket" {
				t.Errorf("%d plans, %d aborts, ticket %q", w.launches[schedule.Plan], w.aborted[job], w.tickets[job])
			}
			w.check(t)
		})
	}
	// As much as the limit is not too much.
	m := startMaster(t, func(o *Options) { o.Limits.SideInputs = 100 })
	d := &model{splits: 1, parts: 1, sides: []side{{"a", large("a", 60)}, {"b", large("b", 40)}, {"c", nil}}}
	f := newWorker(t, m.addr, newWorld(), d, "a")
	f.start()
	m.wantDone(m.submit(jobFile()), d)
	// Who makes the plan knows it, and stops before there is more.
	for stage, want := range map[schedule.Stage]int64{schedule.Plan: 100, schedule.Map: 0} {
		if list := f.launchesOf(stage); len(list) != 1 || list[0].SideInputsLimit != want {
			t.Errorf("%v: %v, want a limit of %d", stage, list, want)
		}
	}
}

// A plan whose side inputs make no sense is a failed attempt of the program's.
func TestSideInputsChecked(t *testing.T) {
	good := task.SideFile{Name: "a", Size: 1, Digest: digestOf([]byte("a"))}
	with := func(change func(s *task.SideFile)) []task.SideFile {
		s := good
		change(&s)
		return []task.SideFile{s}
	}
	for name, tc := range map[string]struct {
		list []task.SideFile
		want string
	}{
		"no name":    {with(func(s *task.SideFile) { s.Name = "" }), "it has no name"},
		"long name":  {with(func(s *task.SideFile) { s.Name = strings.Repeat("x", 65) }), "name has 65 bytes"},
		"odd name":   {with(func(s *task.SideFile) { s.Name = "a\n" }), "byte 0xa at 1"},
		"negative":   {with(func(s *task.SideFile) { s.Size = -1 }), "-1 bytes"},
		"digest":     {with(func(s *task.SideFile) { s.Digest = "../x" }), "SHA-256"},
		"twice":      {[]task.SideFile{good, good}, `two side inputs are called "a"`},
		"many":       {make([]task.SideFile, task.MaxSideInputs+1), "65 side inputs"},
		"other size": {with(func(s *task.SideFile) { s.Size = 2 }), "its blob has 1"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Schedule.MaxAttempts, o.Schedule.MaxLost = 1, 1 })
			if err := keep(m.attendance(t), m.context(), []byte("a")); err != nil {
				t.Fatal(err)
			}
			startWorker(t, m.addr, newWorld(), &model{splits: 1, parts: 1, plan: func(r *task.PlanResult) { r.SideInputs = tc.list }}, "a")
			if s := m.wait(m.submit(jobFile())); s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, tc.want) {
				t.Errorf("%v: %s, want %q", s.State, s.Error, tc.want)
			}
		})
	}
}

// A plan that names a side input which never came is refused, and made again: nobody but its worker is to blame.
func TestSideInputMissing(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Schedule.MaxAttempts = 1 })
	w := newWorld()
	content := large("x", 100)
	var plans atomic.Int64
	d := &model{splits: 2, parts: 1}
	d.plan = func(r *task.PlanResult) {
		r.SideInputs = []task.SideFile{side{"stations", content}.file()}
		if plans.Add(1) == 2 {
			if err := keep(m.attendance(t), m.context(), content); err != nil {
				t.Error(err)
			}
		}
	}
	a := startWorker(t, m.addr, w, d, "a")
	job := m.submit(jobFile())
	m.wantDone(job, d)
	tasks, err := m.client.Tasks(m.context(), &api.TasksRequest{Job: job, FailedOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	page, err := tasks.Recv()
	if err != nil || len(page.Attempts) != 1 || page.Attempts[0].State != "lost" || !strings.Contains(page.Attempts[0].Error, `side input "stations" is not at the master`) {
		t.Errorf("attempts: %v, %v", page, err)
	}
	a.mu.Lock()
	if len(a.refusals) != 1 || !strings.Contains(a.refusals[0], "stations") {
		t.Errorf("refusals: %q", a.refusals)
	}
	a.mu.Unlock()
	if n := plans.Load(); n != 2 {
		t.Errorf("%d plans", n)
	}
	w.check(t)
}

// Side inputs stay as long as their job, over restarts, and go then.
func TestSideInputsAreKept(t *testing.T) {
	d := &model{splits: 2, parts: 1, sides: sides()}
	b := newBand(t, d, "a")
	job := b.run(jobFile())
	b.opts.Limits.BlobAge = time.Nanosecond
	b.restart()
	idle := b.put(t, []byte("idle"))
	clean := func() {
		if err := b.do(b.context(), b.clean); err != nil {
			t.Fatal(err)
		}
	}
	has := func(d string) bool {
		_, err := os.Stat(filepath.Join(b.opts.Dir, "blobs", d))
		return err == nil
	}
	clean()
	until(t, "the idle one goes", func() bool { return !has(idle) })
	for _, s := range d.sides {
		if !has(digestOf(s.content)) {
			t.Errorf("%s is gone", s.name)
		}
	}
	b.openAll()
	b.wantDone(job, d)
	for _, l := range b.workers[0].launchesOf(schedule.Reduce) {
		if len(l.SideInputs) != 3 || l.SideInputs[2].Name != "the upload again" || l.SideInputs[2].Size != 70_000 || l.SideInputs[2].Blob != digestOf(d.sides[2].content) {
			t.Errorf("side inputs after the restart: %v", l.SideInputs)
		}
	}
	clean()
	until(t, "they go", func() bool { return len(b.blobFiles()) == 0 })
}
