// SPDX-License-Identifier: Apache-2.0

package master

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/schedule"
)

var errCrash = errors.New("the master has crashed")

// crash has writes fail from the nth on; that one is stored if after is set. When it
// comes, crashed is closed. A master that is dead already stays so.
func (m *testMaster) crash(n int, after bool) (crashed chan struct{}) {
	crashed = make(chan struct{})
	var once sync.Once
	var writes atomic.Int64
	dead := m.dead
	now := func() error {
		dead.Store(true)
		once.Do(func() { close(crashed) })
		return errCrash
	}
	m.journal.Watch(func() error {
		if w := writes.Add(1); dead.Load() || w == int64(n) && !after {
			return now()
		}
		return nil
	}, func() error {
		if after && writes.Load() == int64(n) {
			return now()
		}
		return nil
	})
	if dead.Load() {
		once.Do(func() { close(crashed) })
	}
	return crashed
}

// A master that ends before or after any write of its journal is started again, and the job
// ends well, published once, with all pairs.
func TestRestartAtEveryWrite(t *testing.T) {
	step := 3
	if os.Getenv("QUERN_LONG") != "" {
		step = 1
	}
	for _, d := range []*model{{splits: 3, parts: 2}, {splits: 2, parts: 3, total: true}} {
		// Hello, submission, plan, maps, reduces, commit and end are at most that many writes.
		for n := 1; n <= 10; n++ {
			if !d.total && n%step != 0 && n > 4 {
				continue
			}
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d splits, write %d, after %v", d.splits, n, after), func(t *testing.T) {
					t.Parallel()
					m := startMaster(t)
					w := newWorld()
					crashed := m.crash(n, after)
					a := newWorker(t, m.addr, w, d, "a")
					a.hello.Slots = 1 // so that results come one by one
					a.start()
					r := jobFile()
					r.Key = "one job"
					submitted := make(chan string, 1)
					go func() {
						for {
							reply, err := m.client.Submit(m.context(), r)
							if err == nil {
								submitted <- reply.Job
								return
							}
						}
					}()
					select {
					case <-crashed:
						m.restart()
					case job := <-submitted:
						submitted <- job
						done := make(chan struct{})
						go func() {
							defer close(done)
							m.wait(job)
						}()
						select {
						case <-crashed:
							m.restart()
							<-done
						case <-done:
						}
					}
					job := <-submitted
					m.wantDone(job, d)
					if w.published[job] < 1 {
						t.Errorf("published %d times", w.published[job])
					}
					if len(w.aborted) != 0 {
						t.Errorf("aborted: %v", w.aborted)
					}
					// It is history for the next master, too.
					m.restart()
					m.wantDone(job, d)
					list, err := m.client.Jobs(m.context(), &api.JobsRequest{})
					if err != nil || len(list.Jobs) != 1 || list.Jobs[0].Job != job {
						t.Errorf("jobs: %v, %v", list, err)
					}
					w.check(t)
				})
			}
		}
	}
}

// Attempts that run while the master is away are taken over by the next one, and not run again.
func TestAdoption(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 2, parts: 1}
	release := make(chan struct{})
	a := newWorker(t, m.addr, w, d, "a")
	var mapping sync.WaitGroup
	mapping.Add(2)
	a.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Map {
			mapping.Done()
			<-release
		}
		return nil
	}
	a.start()
	job := m.submit(jobFile())
	mapping.Wait()
	m.restart()
	until(t, "the worker says hello again", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.welcomes > 1
	})
	close(release)
	m.wantDone(job, d)
	if n := w.launches[schedule.Map]; n != 2 {
		t.Errorf("%d map attempts were launched", n)
	}
	w.check(t)
}

// Results that nobody could take while the master was away are taken afterwards; a worker that dies
// meanwhile is missed.
func TestWorkerDiesWhileMasterIsAway(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 4, parts: 2}
	a := startWorker(t, m.addr, w, d, "a")
	b := newWorker(t, m.addr, w, d, "b")
	reached := make(chan struct{})
	var once sync.Once
	hold := make(chan struct{})
	stop := func(at schedule.Attempt) error {
		if at.Stage == schedule.Reduce {
			once.Do(func() { close(reached) })
			<-hold
		}
		return nil
	}
	a.pause, b.pause = stop, stop
	b.start()
	job := m.submit(jobFile())
	<-reached
	m.halt()
	close(hold)
	b.stop()
	m.begin()
	m.wantDone(job, d)
	w.check(t)
}

// However often the master crashes, each of its lives brings the job on.
func TestCrashesAgainAndAgain(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 3, parts: 2, scales: true}
	job := m.submit(jobFile())
	// The hello of a worker is a write, so that one more gets through in each life.
	crashed := m.crash(3, false)
	startWorker(t, m.addr, w, d, "a")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.wait(job)
	}()
	lives := 1
	for done := false; !done; {
		select {
		case <-crashed:
			m.halt()
			lives++
			m.open()
			crashed = m.crash(3, lives%2 == 0)
			m.serve()
		case <-ended:
			done = true
		}
		if lives > 50 {
			t.Fatal("the job does not come to an end")
		}
	}
	if lives < 3 {
		t.Errorf("the master had only %d lives", lives)
	}
	m.journal.Watch(nil, nil)
	m.wantDone(job, d)
	w.check(t)
}
