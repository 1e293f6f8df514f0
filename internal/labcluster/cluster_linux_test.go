// SPDX-License-Identifier: Apache-2.0

package labcluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

// TestProcess starts processes on a host, and ends them kindly and otherwise.
func TestProcess(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New(netlab.Options{Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	logs := t.TempDir()
	start := func(script string) *Process {
		t.Helper()
		p, err := run(lab.Host(1), "p", logs, []string{"PATH=" + os.Getenv("PATH")}, "/bin/sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); !strings.HasSuffix(p.Tail(), "ready"); time.Sleep(5 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatal(p.Tail())
			}
		}
		return p
	}
	c := &Cluster{workers: map[int]*Process{1: nil}, options: Options{Workers: []int{1}}}

	c.workers[1] = start("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
	if err := c.Stop(time.Minute); err != nil || !strings.HasSuffix(c.workers[1].Tail(), "bye") {
		t.Errorf("%v, %s", err, c.workers[1].Tail())
	}
	if err := c.Stop(time.Minute); err != nil {
		t.Errorf("a second time: %v", err)
	}
	c.workers[1] = start("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done")
	if err := c.Stop(time.Minute); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("one that fails when it is stopped: %v", err)
	}
	c.workers[1] = start("trap '' TERM; echo ready; while :; do sleep 0.01; done")
	if err := c.Stop(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("one that does not stop: %v", err)
	}
	if _, ended := c.workers[1].Ended(); !ended {
		t.Error("it is still there")
	}
	if len(c.Troubles()) != 1 {
		t.Errorf("%q", c.Troubles())
	}

	if err := c.Crashes(); err != nil {
		t.Error(err)
	}
	c.workers[1] = start("echo 'time=x msg=\"a panic: in words\"'; echo 'panic: boo'; echo ready; exit 2")
	<-c.workers[1].Done()
	if err := c.Crashes(); err == nil || !strings.Contains(err.Error(), "p: panic: boo") {
		t.Errorf("%v", err)
	}
	if !strings.Contains(c.Logs(), filepath.Base(c.workers[1].Log)) {
		t.Errorf("%s", c.Logs())
	}
}
