// SPDX-License-Identifier: Apache-2.0

package master

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWholeJobs(t *testing.T) {
	for name, d := range map[string]*model{
		"fold":           {splits: 7, parts: 3},
		"scales":         {splits: 7, parts: 3, scales: true},
		"grouped":        {splits: 5, parts: 4, grouped: true},
		"total order":    {splits: 5, parts: 4, total: true},
		"one":            {splits: 1, parts: 1},
		"nothing at all": {splits: 0, parts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMaster(t)
			w := newWorld()
			startWorker(t, m.addr, w, d, "a")
			startWorker(t, m.addr, w, d, "b")
			job := m.submit(jobFile())
			s := m.wantDone(job, d)
			if w.published[job] != 1 {
				t.Errorf("published %d times", w.published[job])
			}
			if len(s.Why) != 2 || len(s.Notes) != 2 || s.Name != "model" {
				t.Errorf("why %q, notes %q, name %q", s.Why, s.Notes, s.Name)
			}
			w.check(t)
		})
	}
}

// Told to stop, a master with workers and watchers does so at once; workers are told that it was no fault.
func TestStop(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 1, parts: 1}
	f := newWorker(t, m.addr, w, d, "a")
	g := newGate()
	f.pause = func(at schedule.Attempt) error {
		g.wait(at)
		return nil
	}
	f.start()
	job := m.submit(jobFile())
	<-g.reached
	stream, err := m.client.Watch(m.context(), &api.WatchRequest{Job: job})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	m.cancel()
	if err := <-m.served; err != nil {
		t.Error(err)
	}
	m.served <- nil
	t.Log(time.Since(begun))
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("who watches: %v", err)
	}
	close(g.open)
}
