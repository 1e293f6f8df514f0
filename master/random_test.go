// SPDX-License-Identifier: Apache-2.0

package master

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// Workers die, their streams break, attempts fail, and the master crashes at random writes of its
// journal, at random: each job ends well, with the sums of arithmetic. QUERN_SEED names
// the first seed, QUERN_RUNS how many follow each other.
func TestRandomTroubles(t *testing.T) {
	seed, runs := uint64(1), 3
	if os.Getenv("QUERN_LONG") != "" {
		runs = 100
	}
	if s, err := strconv.ParseUint(os.Getenv("QUERN_SEED"), 10, 64); err == nil {
		seed = s
	}
	if n, err := strconv.Atoi(os.Getenv("QUERN_RUNS")); err == nil {
		runs = n
	}
	for i := range runs {
		t.Run(fmt.Sprintf("seed %d", seed+uint64(i)), func(t *testing.T) {
			t.Parallel()
			troubles(t, seed+uint64(i))
		})
	}
}

func troubles(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	m := startMaster(t, func(o *Options) {
		o.Lease = 300 * time.Millisecond
		o.Schedule = schedule.Config{
			Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond, LocalWait: -1, Settle: 50 * time.Millisecond,
			MaxAttempts: 50, MaxLost: 200, AsideFailures: 1000, Speculate: 1.1, SpeculateAfter: 20 * time.Millisecond,
		}
	})
	w := newWorld()
	// Some broadcasts are reported in time, some late, some for the second time.
	many := []side{{"a", large("a", 70_000)}, {"b", large("b", 100)}, {"c", large("c", 90_000)}}
	models := []*model{{splits: 20, parts: 7, scales: true}, {splits: 18, parts: 6, grouped: true}, {splits: 15, parts: 5, total: true}}
	d := models[rng.IntN(len(models))]
	d.sides = many
	if rng.IntN(3) == 0 {
		// Every attempt at map 1 gives other pairs.
		base := *d
		d = &base
		d.mapped = func(l *api.Launch, r *task.MapResult) {
			if l.Attempt.Task == 1 {
				n := int64(l.Attempt.Number) + int64(l.Attempt.Epoch)*100
				r.Parts[0].Pairs += n
				r.Parts[0].Digest = uint64(n) + 1
				r.Emitted += n
				if len(r.Parts[0].Check) > 0 {
					r.Parts[0].Check[0] += uint64(n)
				}
			}
		}
		d.reduced = func(l *api.Launch, r *task.ReduceResult, f *api.FinishRequest) {
			// Outputs that were made again while this attempt waited for them begin it anew, so that
			// what it was told at first is what counts.
			f.KernelPairs, f.UserPairs, f.PulledPairs = 0, l.Reduce.Pairs, 0
			r.Check = l.Reduce.Check
			if l.Reduce.Pull {
				f.UserPairs, f.PulledPairs = 0, l.Reduce.Pairs
			}
			if d.total && l.Reduce.Part != 0 {
				f.PulledPairs, r.Check = 0, nil
			}
		}
	}
	var mu sync.Mutex // of chance, for workers
	chance := rand.New(rand.NewPCG(seed, 5))
	worker := func() *fakeWorker {
		f := newWorker(t, m.addr, w, d, "w")
		f.pause = func(at schedule.Attempt) error {
			mu.Lock()
			slow, fails, infra := time.Duration(chance.IntN(30))*time.Millisecond, chance.IntN(10) == 0, chance.IntN(2) == 0
			mu.Unlock()
			select {
			case <-time.After(slow):
			case <-f.ctx.Done():
			}
			if fails && at.Stage != schedule.Commit && at.Stage != schedule.Abort {
				return &failError{task.Error{Message: "by chance"}, infra}
			}
			return nil
		}
		f.spread = func(o *api.Spread) {
			mu.Lock()
			slow := time.Duration(chance.IntN(100)) * time.Millisecond
			mu.Unlock()
			select {
			case <-time.After(slow):
			case <-f.ctx.Done():
				return
			}
			select {
			case f.send <- &api.WorkerMessage{Spreaded: []*api.Spreaded{reportOf(o)}}:
			case <-f.ctx.Done():
			}
		}
		f.start()
		return f
	}
	workers := []*fakeWorker{worker(), worker(), worker()}
	job := m.submit(jobFile())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.wait(job)
	}()
	crashed := make(chan struct{})
	var log []string
	for n := 0; n < 20; n++ {
		select {
		case <-ended:
			n = 100
			continue
		case <-crashed:
			log = append(log, "the master crashes")
			m.restart()
			crashed = make(chan struct{})
			continue
		case <-time.After(time.Duration(rng.IntN(60)) * time.Millisecond):
		}
		i := rng.IntN(len(workers))
		switch rng.IntN(4) {
		case 0:
			log = append(log, "worker dies")
			workers[i].die()
			workers[i] = worker()
		case 1:
			log = append(log, "stream breaks")
			workers[i].breakStream()
		case 2:
			crashed = m.crash(1+rng.IntN(4), rng.IntN(2) == 0)
		case 3:
			log = append(log, "an output is lost")
			w.mu.Lock()
			for at := range w.held[workers[i].hello.Worker] {
				delete(w.held[workers[i].hello.Worker], at)
				break
			}
			w.mu.Unlock()
		}
	}
	select {
	case <-ended:
	default:
		m.restart() // whether it has crashed or was about to
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the job does not end")
	}
	ids := map[string]bool{}
	for _, b := range m.wantDone(job, d).Broadcasts {
		if ids[b.Id] || b.Reached+b.Failed != 2 && b.Reached+b.Failed != 1 {
			t.Errorf("broadcast %v is doubled, or makes no sense", b)
		}
		ids[b.Id] = true
	}
	if w.published[job] < 1 || len(w.aborted) > 0 {
		t.Errorf("published %d times, aborted %v", w.published[job], w.aborted)
	}
	w.check(t)
	if t.Failed() {
		t.Log(log)
	}
}

// breakStream cuts the worker's stream, and has it say hello again.
func (f *fakeWorker) breakStream() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut != nil {
		f.cut()
	}
}
