// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(programVariable); name != "" {
		os.Exit(runProgram(name))
	}
	goleak.VerifyTestMain(m)
}

func TestCompleteAddress(t *testing.T) {
	for text, want := range map[string]string{
		"master": "master:7119", "10.0.0.1": "10.0.0.1:7119", "::1": "[::1]:7119", "[::1]": "[::1]:7119",
		"[fe80::1%eth0]:5": "[fe80::1%eth0]:5", "m:80": "m:80", ":80": "localhost:80", "a.b:7": "a.b:7",
	} {
		if got, err := completeAddress(text); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a:b:c", "http://m", "m:0", "m:70000", "m:x", "a b", "/run/x"} {
		if got, err := completeAddress(text); err == nil {
			t.Errorf("%s: %s, want an error", text, got)
		}
	}
}

func TestDialErrors(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(f *fake) { f.token = "secret" })
	for _, c := range []struct {
		name, address string
		options       DialOptions
		is            error
		says          string
	}{
		{"no token", f.address, DialOptions{}, ErrRefused, "token refused"},
		{"another token", f.address, DialOptions{Token: "x"}, ErrRefused, "token refused"},
		{"nobody there", "127.0.0.1:1", DialOptions{Patience: soon}, ErrUnreachable, "127.0.0.1:1"},
		{"another machine without certificates", "192.0.2.1", DialOptions{}, ErrRefused, "192.0.2.1:7119 is another machine"},
		{"certificates that are not there", f.address, DialOptions{Certs: t.TempDir()}, os.ErrNotExist, "ca.pem"},
		{"no address", "", DialOptions{}, nil, "no address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Dial(t.Context(), c.address, c.options)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %v with %q in it", err, c.is, c.says)
			}
		})
	}
	other := newFake(t, func(f *fake) { f.protocol = 99 })
	if _, err := Dial(t.Context(), other.address, DialOptions{}); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "99") {
		t.Errorf("another version: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, "127.0.0.1:1", DialOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSubmitJobFile(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(f *fake) { f.token, f.drop = "secret", 1 })
	c := f.dial(t, DialOptions{Token: "secret"})
	h, err := c.SubmitProgram(t.Context(), Program{JobFile: "job: x"}, SubmitOptions{Priority: -2, MaxSlots: 3, TaskMemory: 5, TaskTimeout: time.Second, MaxAttempts: 7, Name: "n"})
	if err != nil || h.ID() != "job-1" {
		t.Fatalf("%v, %v", h, err)
	}
	// The first answer was lost; the second request was the same job.
	if f.submits != 2 || len(f.jobs) != 1 {
		t.Errorf("%d submissions of %d jobs", f.submits, len(f.jobs))
	}
	for key, r := range f.jobs {
		if len(key) != 32 || r.GetPriority() != -2 || r.GetMaxSlots() != 3 || r.GetTaskMemory() != 5 || r.GetTaskTimeoutMs() != 1000 || r.GetMaxAttempts() != 7 ||
			r.GetProgram().GetJobFile() != "job: x" || r.GetProgram().GetName() != "n" || r.GetShuffle() != "auto" || r.GetProtocol() != api.Protocol || !filepath.IsAbs(r.GetProgram().GetDir()) {
			t.Errorf("request %v", r)
		}
	}
	if _, err := c.SubmitProgram(t.Context(), Program{JobFile: "job: x"}, SubmitOptions{Name: "exists"}); err == nil || err.Error() != "no such thing" {
		t.Errorf("refused: %v", err)
	}
	for _, bad := range []SubmitOptions{{MaxSlots: -1}, {TaskMemory: -1}, {Priority: 1 << 40}, {MaxAttempts: 1 << 31}} {
		if _, err := c.SubmitProgram(t.Context(), Program{JobFile: "x"}, bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	for _, bad := range []Program{{}, {JobFile: "x", Path: "y"}} {
		if _, err := c.SubmitProgram(t.Context(), bad, SubmitOptions{}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// A job file is run by the workers' own quern, a program by itself.
func TestSubmitToAnotherVersion(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(f *fake) { f.version = "1.2.3" })
	c := f.dial(t, DialOptions{Version: "1.2.4"})
	_, err := c.SubmitProgram(t.Context(), Program{JobFile: "x"}, SubmitOptions{Uploads: []Upload{{Local: "nowhere"}}})
	if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "1.2.3") || !strings.Contains(err.Error(), "1.2.4") {
		t.Errorf("a job file: %v", err)
	}
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, executable(elf.EM_X86_64, elf.ET_EXEC, binary.LittleEndian, elf.PT_LOAD), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SubmitProgram(t.Context(), Program{Path: path}, SubmitOptions{}); err != nil {
		t.Errorf("a program: %v", err)
	}
	if f.submits != 1 {
		t.Errorf("%d submissions, want 1", f.submits)
	}
}

func TestJobErrorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state     api.JobState
		why, want string
	}{
		{api.JobState_JOB_FAILED, "", "the job failed (job 1)"},
		{api.JobState_JOB_FAILED, "cancelled: x", "the job failed: cancelled: x (job 1)"},
		{api.JobState_JOB_CANCELLED, "", "the job was cancelled (job 1)"},
		{api.JobState_JOB_CANCELLED, "cancelled", "the job was cancelled (job 1)"},
		{api.JobState_JOB_CANCELLED, "cancelled: enough", "the job was cancelled: enough (job 1)"},
		{api.JobState_JOB_CANCELLED, "cancelled by ann: enough", "the job was cancelled by ann: enough (job 1)"},
		{api.JobState_JOB_CANCELLED, "enough", "the job was cancelled: enough (job 1)"},
	} {
		err := &JobError{&api.JobStatus{Job: "1", State: c.state, Error: c.why}}
		if got := err.Error(); got != c.want {
			t.Errorf("%v, %q: %q, want %q", c.state, c.why, got, c.want)
		}
	}
}

func TestUploads(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	c := f.dial(t, DialOptions{})
	dir := t.TempDir()
	large := strings.Repeat("0123456789abcdef", 2*chunk/16) // a whole number of messages
	for name, text := range map[string]string{"a": "aaa", "b": large, "c": "aaa", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.SubmitProgram(t.Context(), Program{JobFile: "x"}, SubmitOptions{Uploads: []Upload{
		{Local: filepath.Join(dir, "a"), Name: "/in/a"}, {Local: filepath.Join(dir, "b")}, {Local: filepath.Join(dir, "c"), Name: "/in/c"}, {Local: filepath.Join(dir, "empty"), Name: "/in/e"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range f.jobs {
		for _, u := range r.GetUploads() {
			names = append(names, u.GetPath())
			if got := f.blobs[u.GetBlob()]; int64(len(got)) != u.GetSize() {
				t.Errorf("%s: %d bytes, want %d", u.GetPath(), len(got), u.GetSize())
			}
		}
	}
	if want := []string{"/in/a", filepath.Join(dir, "b"), "/in/c", "/in/e"}; !slices.Equal(names, want) {
		t.Errorf("uploads %q, want %q", names, want)
	}
	if len(f.blobs) != 3 {
		t.Errorf("%d blobs, want 3: equal files are one", len(f.blobs))
	}
	if _, err := c.SubmitProgram(t.Context(), Program{JobFile: "x"}, SubmitOptions{Uploads: []Upload{{Local: dir}}}); err == nil || !strings.Contains(err.Error(), "plain files") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := c.SubmitProgram(t.Context(), Program{JobFile: "x"}, SubmitOptions{Uploads: []Upload{{Local: filepath.Join(dir, "none")}}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	calls := 0 // one after the other
	f.watched(func(_ string, send func(*api.JobStatus) error) error {
		calls++
		switch calls {
		case 1:
			if err := send(&api.JobStatus{Job: "job-1", State: api.JobState_JOB_MAPPING}); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "restarting")
		case 2:
			return nil // ended without a last status
		}
		return send(&api.JobStatus{Job: "job-1", State: api.JobState_JOB_DONE, Result: []byte(`{"Job":"wc","Records":7,"Audit":{"rows":3}}`)})
	})
	lost := 0
	c := f.dial(t, DialOptions{Lost: func(error) { lost++ }})
	var states []api.JobState
	result, err := c.Job("job-1").Wait(t.Context(), func(s *api.JobStatus) { states = append(states, s.GetState()) })
	if err != nil || result.Job != "wc" || result.Records != 7 || result.Audit.Rows != 3 {
		t.Errorf("%+v, %v", result, err)
	}
	if want := []api.JobState{api.JobState_JOB_MAPPING, api.JobState_JOB_DONE}; !slices.Equal(states, want) {
		t.Errorf("states %v, want %v", states, want)
	}
	if lost != 1 {
		t.Errorf("told %d times that the master is lost, want once", lost)
	}
}

// A master that has answered once may be away for a while, at whatever call of a submission. One that has
// not is not waited for.
func TestSubmitOverRestart(t *testing.T) {
	t.Parallel()
	local := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(local, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, call := range []string{"HasBlobs", "PutBlob", "Submit"} {
		f := newFake(t, func(f *fake) { f.dies = call })
		away := 0
		c := f.dial(t, DialOptions{Patience: 1, Away: func(err error) {
			if away++; !errors.Is(err, ErrUnreachable) {
				t.Errorf("%s: told %v", call, err)
			}
			f.server.Stop()
			f.listen(t, f.address)
		}})
		h, err := c.SubmitProgram(t.Context(), Program{JobFile: "x"}, SubmitOptions{Uploads: []Upload{{Local: local}}})
		if err != nil || h.ID() != "job-1" || len(f.blobs) != 1 {
			t.Errorf("%s: %v", call, err)
		}
		if away != 1 {
			t.Errorf("%s: told %d times that the master is away, want once", call, away)
		}
	}
	f := newFake(t, nil)
	told := false
	c := f.dial(t, DialOptions{Absence: soon, Away: func(error) { told = true }})
	f.server.Stop()
	if _, err := c.Jobs(t.Context(), 1, true, ""); !errors.Is(err, ErrUnreachable) || !told {
		t.Errorf("it stays away: %v, told %v", err, told)
	}
	_, err := Dial(t.Context(), f.address, DialOptions{Patience: soon, Away: func(error) { t.Error("one that never was is said to be away") }})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("never there: %v", err)
	}
}

// The master goes away for good, and comes back at the same address.
func TestWaitOverRestart(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	begun := make(chan struct{})
	stop := make(chan struct{})
	f.watched(func(_ string, send func(*api.JobStatus) error) error {
		err := send(&api.JobStatus{Job: "job-1", State: api.JobState_JOB_MAPPING})
		close(begun)
		<-stop
		return err
	})
	lost := make(chan struct{})
	c := f.dial(t, DialOptions{Lost: func(error) { close(lost) }})
	done := make(chan error, 1)
	go func() {
		_, err := c.Job("job-1").Wait(t.Context(), nil)
		done <- err
	}()
	<-begun
	close(stop)
	f.server.Stop()
	<-lost
	f.watched(func(_ string, send func(*api.JobStatus) error) error {
		return send(&api.JobStatus{Job: "job-1", State: api.JobState_JOB_CANCELLED, Error: "by ann"})
	})
	f.listen(t, f.address)
	err := <-done
	var failed *JobError
	if !errors.Is(err, ErrCancelled) || !errors.As(err, &failed) || err.Error() != "the job was cancelled: by ann (job job-1)" {
		t.Errorf("%v", err)
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	c := f.dial(t, DialOptions{})
	if _, err := c.Job("nope").Wait(t.Context(), nil); !errors.Is(err, ErrUnknownJob) {
		t.Errorf("no job: %v", err)
	}
	f.watched(func(_ string, send func(*api.JobStatus) error) error {
		return send(&api.JobStatus{Job: "job-1", State: api.JobState_JOB_FAILED, Error: "bad line"})
	})
	if _, err := c.Job("job-1").Wait(t.Context(), nil); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "bad line") {
		t.Errorf("failed: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	f.watched(func(string, func(*api.JobStatus) error) error {
		cancel(why)
		return status.Error(codes.Unavailable, "away")
	})
	if _, err := c.Job("job-1").Wait(ctx, nil); !errors.Is(err, why) {
		t.Errorf("ended: %v", err)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.watched(func(_ string, send func(*api.JobStatus) error) error {
		return send(&api.JobStatus{Job: "job-1", State: api.JobState_JOB_MAPPING})
	})
	c := f.dial(t, DialOptions{})
	ctx := t.Context()
	if jobs, err := c.Jobs(ctx, 10, false, ""); err != nil || len(jobs) != 1 || len(jobs[0].GetError()) != 5<<20 {
		t.Errorf("jobs: %v", err)
	}
	if workers, err := c.Workers(ctx); err != nil || len(workers) != 1 {
		t.Errorf("workers: %v, %v", workers, err)
	}
	if err := c.Drain(ctx, "w"); err != nil {
		t.Error(err)
	}
	if err := c.Drain(ctx, "v"); !errors.Is(err, ErrUnknownWorker) {
		t.Errorf("drain: %v", err)
	}
	if s, err := c.Job("job").Status(ctx); err != nil || s.GetState() != api.JobState_JOB_MAPPING {
		t.Errorf("status: %v, %v", s, err)
	}
	if _, err := c.Job("x").Status(ctx); !errors.Is(err, ErrUnknownJob) {
		t.Errorf("status: %v", err)
	}
	if _, err := c.Job("").Status(ctx); !errors.Is(err, ErrAmbiguous) || !strings.Contains(err.Error(), "2 jobs") {
		t.Errorf("status: %v", err)
	}
	if s, err := c.Job("job-1").Cancel(ctx, "r"); err != nil || s.GetError() != "r" {
		t.Errorf("cancel: %v, %v", s, err)
	}
	if _, err := c.Job("x").Cancel(ctx, "r"); !errors.Is(err, ErrUnknownJob) {
		t.Errorf("cancel: %v", err)
	}
	var text string
	show := func(l *api.LogChunk) error { text += string(l.GetText()); return nil }
	if err := c.Job("job-1").Logs(ctx, "", false, show); err != nil || text != "one\ntwo\n" {
		t.Errorf("logs: %q, %v", text, err)
	}
	if err := c.Job("x").Logs(ctx, "", false, show); !errors.Is(err, ErrUnknownJob) {
		t.Errorf("logs: %v", err)
	}
	full := errors.New("full")
	if err := c.Job("job-1").Logs(ctx, "", false, func(*api.LogChunk) error { return full }); !errors.Is(err, full) {
		t.Errorf("logs: %v", err)
	}
	if err := c.Job("job-1").Tasks(ctx, false, func(*api.TasksPage) error { return nil }); !errors.Is(err, ErrVersion) {
		t.Errorf("a master that does not know the call: %v", err)
	}
}
