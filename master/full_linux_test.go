// SPDX-License-Identifier: Apache-2.0

package master

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// smallDisk is a folder on a file system of its own.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("quern-test", dir, "tmpfs", 0, "size="+size); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("a small file system can't be mounted here: ", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all the room there is, and returns what gives it back.
func fill(t *testing.T, dir string) (release func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(chunk)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	_ = f.Close()
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A journal whose disk is full refuses new jobs and has results wait; when there is room again,
// all goes on by itself.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, "2m")
	m := startMaster(t, func(o *Options) { o.Dir = dir })
	w := newWorld()
	d := &model{splits: 3, parts: 2}
	// What is written is large, so that free pages within the journal don't do.
	long := strings.Repeat("x", 100_000)
	d.reduced = func(_ *api.Launch, r *task.ReduceResult, _ *api.FinishRequest) { r.Name += long }
	large := jobFile()
	large.Program.JobFile += "# " + long
	f := newWorker(t, m.addr, w, d, "a")
	g := newGate()
	f.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Reduce {
			g.wait(at)
		}
		return nil
	}
	f.start()
	job := m.submit(jobFile())
	other := m.submit(jobFile())
	<-g.reached
	until(t, "the other job reduces, too", func() bool {
		s, _, err := m.snapshot(other)
		return err == nil && s.State == api.JobState_JOB_REDUCING
	})
	release := fill(t, dir)
	close(g.open)
	until(t, "the job says why it waits", func() bool {
		s, _, err := m.snapshot(job)
		return err == nil && strings.Contains(s.Waiting, "disk is full")
	})
	if _, err := m.client.Submit(m.context(), large); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "journal's disk is full") {
		t.Errorf("a new job: %v", err)
	}
	if s, _, err := m.snapshot(job); err != nil || over(s.State) {
		t.Errorf("meanwhile: %v, %v", s, err)
	}
	if err := m.putAs(strings.Repeat("00", 32), 3, []byte("abc")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a blob: %v", err)
	}
	release()
	m.wantDone(job, d)
	m.wantDone(other, d)
	m.wantDone(m.submit(jobFile()), d)
	w.check(t)
}

func (m *testMaster) snapshot(job string) (s *api.JobStatus, changed <-chan struct{}, err error) {
	if e := m.do(m.context(), func() { s, changed, err = m.look(job) }); e != nil {
		return nil, nil, e
	}
	return s, changed, err
}

// A journal can't be begun on a disk that is full, and says so.
func TestStartOnFullDisk(t *testing.T) {
	dir := smallDisk(t, "64k")
	release := fill(t, dir)
	if _, err := New(Options{Dir: filepath.Join(dir)}); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v", err)
	}
	release()
}
