// SPDX-License-Identifier: Apache-2.0

package master

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// A master may be started as often as it likes: workers take generations below 2^24, of
// which no two attempts of a part in the life of a job have the same.
func TestGenerations(t *testing.T) {
	m := startMaster(t)
	m.about() // it serves
	m.halt()
	for epoch := uint64(0); epoch < 260; {
		j, err := journal.Open(m.opts.Dir)
		if err != nil {
			t.Fatal(err)
		}
		epoch = j.Epoch()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m.begin()
	w := newWorld()
	d := &model{splits: 2, parts: 2}
	var seen atomic.Int64
	d.reduced = func(l *api.Launch, _ *task.ReduceResult, _ *api.FinishRequest) {
		seen.Add(1)
		if l.Reduce.Generation >= 1<<24 {
			w.problem("generation %#x", l.Reduce.Generation)
		}
	}
	startWorker(t, m.addr, w, d, "a")
	m.wantDone(m.submit(jobFile()), d)
	if seen.Load() == 0 {
		t.Error("no reduce attempt was seen")
	}
	w.check(t)
	last := uint32(0)
	for restarts := range uint64(256) {
		for _, nth := range []uint32{1, 2, 1<<16 - 1} {
			g := generation(restarts, nth)
			if g <= last || g >= 1<<24 {
				t.Fatalf("generation %#x after %d restarts follows %#x", g, restarts, last)
			}
			last = g
		}
	}
}

// A reduce attempt that goes on over a restart of the master is told where all map outputs are: what it was
// told last may never have reached it.
func TestReadersAreToldAgain(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 6, parts: 1}
	g := newGate()
	release := sync.OnceFunc(func() { close(g.open) })
	defer release()
	workers := []*fakeWorker{newWorker(t, m.addr, w, d, "a"), newWorker(t, m.addr, w, d, "b")}
	for _, f := range workers {
		f.pause = func(at schedule.Attempt) error {
			if at.Stage == schedule.Reduce {
				g.wait(at)
			}
			return nil
		}
		f.start()
	}
	until(t, "the workers", func() bool { return m.about().Workers == 2 })
	job := m.submit(jobFile())
	reader := <-g.reached
	var moved chan *api.MapOutput
	want := map[uint32]string{}
	for _, f := range workers {
		f.mu.Lock()
		if f.running[reader] != nil {
			moved = f.moved[reader]
		}
		f.mu.Unlock()
		w.mu.Lock()
		for a := range w.held[f.hello.Worker] {
			if pairsOf(int(a.Task), 0) > 0 {
				want[a.Task] = f.hello.Address
			}
		}
		w.mu.Unlock()
		// The next master does not know the addresses of workers before they say hello.
		if err := m.do(m.context(), func() {
			if err := m.journal.Write(journal.WorkerGone{ID: f.hello.Worker}); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(want) < 3 {
		t.Fatalf("the test needs more outputs with pairs than %d", len(want))
	}
	m.restart()
	told := map[uint32]string{}
	until(t, "all outputs are told", func() bool {
		select {
		case o := <-moved:
			told[o.Task] = o.Address
		default:
		}
		for n, address := range want {
			if told[n] != address {
				return false
			}
		}
		return true
	})
	release()
	m.wantDone(job, d)
	w.check(t)
}

// finishing is a result that a worker reports.
func finishing(t *testing.T, w *fakeWorker, at schedule.Attempt, result any) *finish {
	t.Helper()
	b, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	f := &finish{req: &api.FinishRequest{Attempt: toAPI(at), Worker: w.hello.Worker, Result: b}, attempt: at, answer: make(chan finished, 1)}
	f.decode()
	return f
}

// The result of a map task that was run again, and is another one, comes with the last one of the map
// stage: no reduce attempt has read the old one, so no part begins anew, as the journal has it.
func TestChangedBeforeAnyReader(t *testing.T) {
	m := startMaster(t)
	// Beyond 20 tasks the next stage may begin while an output is being made again.
	w := newWorld()
	d := &model{splits: 20, parts: 1, mapped: func(l *api.Launch, r *task.MapResult) {
		if at, _ := fromAPI(l.Attempt); at.Task == 1 && at.Number > 0 {
			r.Parts[0].Digest = 77
		}
	}}
	a := newWorker(t, m.addr, w, d, "a")
	last, again := newGate(), newGate()
	release := sync.OnceFunc(func() {
		close(last.open)
		close(again.open)
	})
	defer release()
	a.pause = func(at schedule.Attempt) error {
		switch {
		case at.Stage != schedule.Map:
		case at.Task == 0:
			last.wait(at)
		case at.Number > 0:
			again.wait(at)
		}
		return nil
	}
	a.start()
	job := m.submit(jobFile())
	first := <-last.reached
	until(t, "the other ones are committed", func() (done bool) {
		_ = m.do(m.context(), func() { done = m.jobs[job].ledger.done == 19 })
		return done
	})
	w.mu.Lock()
	for at := range w.held[a.hello.Worker] {
		if at.Task == 1 {
			delete(w.held[a.hello.Worker], at)
		}
	}
	w.mu.Unlock()
	a.mu.Lock()
	a.cut()
	a.mu.Unlock()
	rerun := <-again.reached
	until(t, "the worker is there again", func() bool { return m.about().Workers == 1 })
	w.mu.Lock()
	w.held[a.hello.Worker][rerun], w.held[a.hello.Worker][first] = 77, 0
	w.mu.Unlock()
	changed := d.mapResult(1)
	changed.Parts[0].Digest = 77
	batch := []*finish{finishing(t, a, first, d.mapResult(0)), finishing(t, a, rerun, changed)}
	if err := m.do(m.context(), func() {
		m.finish(batch)
		for _, f := range batch {
			if f.reply == nil || !f.reply.Accepted {
				t.Errorf("%s: %v, %v", describe(f.attempt), f.reply, f.err)
			}
		}
		if n := m.jobs[job].resets; n != 0 {
			t.Errorf("%d parts have begun anew, and the journal knows of none", n)
		}
	}); err != nil {
		t.Fatal(err)
	}
	release()
	if s := m.wait(job); s.State != api.JobState_JOB_DONE {
		t.Errorf("%v: %s", s.State, s.Error)
	}
	w.check(t)
}

// The last reduce result, and that of a map task which voids it, come at the same moment.
func TestVoidedInOneBatch(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 2, parts: 1, mapped: func(l *api.Launch, r *task.MapResult) {
		if at, _ := fromAPI(l.Attempt); at.Task == 1 && at.Number > 0 {
			r.Parts[0].Digest = 77
		}
	}}
	a := newWorker(t, m.addr, w, d, "a")
	reduces, again := newGate(), newGate()
	release := sync.OnceFunc(func() {
		close(reduces.open)
		close(again.open)
	})
	defer release()
	a.pause = func(at schedule.Attempt) error {
		switch {
		case at.Stage == schedule.Reduce:
			reduces.wait(at)
		case at.Stage == schedule.Map && at.Number > 0:
			again.wait(at)
		}
		return nil
	}
	a.start()
	job := m.submit(jobFile())
	reduce := <-reduces.reached
	output := schedule.Attempt{}
	w.mu.Lock()
	for held := range w.held[a.hello.Worker] {
		if held.Task == 1 {
			output = held
		}
	}
	delete(w.held[a.hello.Worker], output)
	w.mu.Unlock()
	a.send <- &api.WorkerMessage{Lost: []*api.OutputLost{{
		Reader: toAPI(reduce), MapTask: 1, Output: toAPI(output), Worker: a.hello.Worker, Error: "it is gone", Gone: true,
	}}}
	mapping := <-again.reached
	w.mu.Lock()
	w.held[a.hello.Worker][mapping] = 77
	w.mu.Unlock()
	changed := d.mapResult(1)
	changed.Parts[0].Digest = 77
	old := finishing(t, a, reduce, &task.ReduceResult{Name: "old", Rows: 1, Keys: 1, Check: []uint64{checkOf(0, 0) + checkOf(1, 0), 0}})
	old.req.UserPairs = pairsOf(0, 0) + pairsOf(1, 0)
	if err := m.do(m.context(), func() { m.finish([]*finish{old, finishing(t, a, mapping, changed)}) }); err != nil {
		t.Fatal(err)
	}
	void := func(when string) {
		if err := m.do(m.context(), func() {
			if j := m.jobs[job]; j == nil || j.reduces[0] != nil || j.reduced != 0 || j.resets != 1 {
				t.Errorf("%s the part has not begun anew: %+v", when, j)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	void("at once")
	m.restart()
	void("after a restart")
	release()
	if s := m.wait(job); s.State != api.JobState_JOB_DONE || !slices.Equal([]int{w.published[job], w.aborted[job]}, []int{1, 0}) {
		t.Errorf("%v: %s", s.State, s.Error)
	}
	w.check(t)
}

// Gossip that doubts a worker for ever, or whose last word was lost, keeps no work from a worker that is heard.
func TestSuspicionFades(t *testing.T) {
	hints := make(chan Suspicion)
	m := startMaster(t, func(o *Options) { o.Suspects = hints })
	w := newWorld()
	d := &model{splits: 2, parts: 1}
	startWorker(t, m.addr, w, d, "a")
	until(t, "the worker", func() bool { return m.about().Workers == 1 })
	hints <- Suspicion{"a", true}
	m.wantDone(m.submit(jobFile()), d)
	w.check(t)
}

// A worker that somebody wants to leave leaves, also if the master is restarted meanwhile.
func TestDrainOutlivesMaster(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	d := &model{splits: 1, parts: 1}
	a := newWorker(t, m.addr, w, d, "a")
	g := newGate()
	release := sync.OnceFunc(func() { close(g.open) })
	defer release()
	a.pause = func(at schedule.Attempt) error {
		g.wait(at)
		return nil
	}
	a.start()
	m.submit(jobFile())
	<-g.reached
	if _, err := m.client.Drain(m.context(), &api.DrainRequest{Worker: "a"}); err != nil {
		t.Fatal(err)
	}
	m.restart()
	release()
	select {
	case <-a.done:
	case <-time.After(patience):
		t.Error("the worker does not leave")
	}
	w.check(t)
}

// A worker that was heard of since a stopped master runs again has a whole lease from then, and no longer one.
func TestLateLease(t *testing.T) {
	c := newFakeClock()
	m := startMaster(t, func(o *Options) { o.clock, o.Lease = c, 10*time.Second })
	w := &worker{id: "w", hello: &api.Hello{Worker: "w", Name: "w"}}
	if err := m.do(m.context(), func() {
		m.workers["w"] = w
		c.mu.Lock()
		c.at += time.Hour
		c.mu.Unlock()
		w.heard.Store(int64(c.now()))
		m.tick()
		if heard := time.Duration(w.heard.Load()); heard > c.now() {
			t.Errorf("its lease begins %v from now", heard-c.now())
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A map task that is run again brings decimals where no result had any. A part that it has no pairs for
// does not begin anew, and its sums count as what they are.
func TestDecimalsComeLate(t *testing.T) {
	m := startMaster(t)
	w := newWorld()
	const quietPart = 3
	if pairsOf(1, quietPart) != 0 || pairsOf(0, quietPart) == 0 {
		t.Fatal("the test needs a part that map 1 has no pairs for, and map 0 has")
	}
	d := &model{splits: 2, parts: 4, mapped: func(l *api.Launch, r *task.MapResult) {
		if at, _ := fromAPI(l.Attempt); at.Task == 1 && at.Number > 0 {
			r.Scale = []uint8{2, 0}
			for p := range r.Parts {
				if r.Parts[p].Pairs > 0 {
					r.Parts[p].Digest++
					r.Parts[p].Check[0] *= 100
				}
			}
		}
	}}
	a := newWorker(t, m.addr, w, d, "a")
	a.hello.Slots = 4
	readers, late := newGate(), newGate()
	releaseReaders, releaseLate := sync.OnceFunc(func() { close(readers.open) }), sync.OnceFunc(func() { close(late.open) })
	defer releaseReaders()
	defer releaseLate()
	a.pause = func(at schedule.Attempt) error {
		switch {
		case at.Stage != schedule.Reduce || at.StageAttempt > 0:
		case at.Task == quietPart:
			late.wait(at)
		default:
			readers.wait(at)
		}
		return nil
	}
	a.start()
	job := m.submit(jobFile())
	<-late.reached
	for range 3 {
		<-readers.reached
	}
	w.mu.Lock()
	for at := range w.held[a.hello.Worker] {
		if at.Task == 1 {
			delete(w.held[a.hello.Worker], at)
		}
	}
	w.mu.Unlock()
	releaseReaders()
	until(t, "map 1 is run again", func() (again bool) {
		_ = m.do(m.context(), func() { again = m.jobs[job].reruns == 1 })
		return again
	})
	releaseLate()
	if s := m.wait(job); s.State != api.JobState_JOB_DONE || s.Resets != 3 {
		t.Errorf("%v: %s; %d resets", s.State, s.Error, s.Resets)
	}
	w.check(t)
}

// Who tells a worker to leave by its name means what runs under it: also where the master still believes in a process that
// was killed, and the one in its place says hello a moment later.
func TestDrainMeansTheNewProcess(t *testing.T) {
	for _, when := range []string{"before", "before a restart", "behind", "at its address"} {
		t.Run(when, func(t *testing.T) {
			m := startMaster(t, func(o *Options) { o.Lease = time.Hour })
			w, d := newWorld(), &model{splits: 1, parts: 1}
			old := startWorker(t, m.addr, w, d, "a")
			until(t, "it is there", func() bool { return m.about().Workers == 1 })
			old.stop()
			until(t, "its stream ends", func() bool { return m.about().Workers == 0 })
			drain := func() {
				if _, err := m.client.Drain(m.context(), &api.DrainRequest{Worker: "a"}); err != nil {
					t.Fatal(err)
				}
			}
			next := newWorker(t, m.addr, w, d, "a")
			switch when {
			case "behind":
				next.start()
				until(t, "the next is there", func() bool { return m.about().Workers == 1 })
				drain()
			case "before a restart":
				drain()
				m.restart()
				next.start()
			case "at its address":
				next.hello.Address = old.hello.Address
				fallthrough
			default:
				drain()
				next.start()
			}
			select {
			case <-next.done:
			case <-time.After(patience):
				t.Fatal("it does not leave")
			}
			// One alone is meant, and nobody who comes when it has left.
			third := startWorker(t, m.addr, w, d, "a")
			m.wantDone(m.submit(jobFile()), d)
			third.mu.Lock()
			defer third.mu.Unlock()
			if third.drained {
				t.Error("a third one is told to leave, too")
			}
			w.check(t)
		})
	}
}

// By its id, only the process itself is meant; and one that comes back by itself takes the order with it, also when its lease has run out meanwhile.
func TestDrainMeansTheProcess(t *testing.T) {
	for name, lease := range map[string]time.Duration{"away": time.Hour, "gone": time.Second} {
		t.Run(name, func(t *testing.T) { testDrainMeansTheProcess(t, lease) })
	}
}

func testDrainMeansTheProcess(t *testing.T, lease time.Duration) {
	m := startMaster(t, func(o *Options) { o.Lease = lease })
	w, d := newWorld(), &model{splits: 1, parts: 1}
	a := startWorker(t, m.addr, w, d, "a")
	until(t, "it is there", func() bool { return m.about().Workers == 1 })
	back := make(chan struct{})
	a.mu.Lock()
	a.frozen = back
	a.cut()
	a.mu.Unlock()
	until(t, "its stream ends", func() bool { return m.about().Workers == 0 })
	if _, err := m.client.Drain(m.context(), &api.DrainRequest{Worker: a.hello.Worker}); err != nil {
		t.Fatal(err)
	}
	if lease < time.Hour {
		until(t, "its lease runs out", func() bool {
			list, err := m.client.Workers(m.context(), &api.WorkersRequest{})
			return err == nil && len(list.Workers) == 1 && list.Workers[0].State == "gone"
		})
	}
	other := startWorker(t, m.addr, w, d, "a")
	m.wantDone(m.submit(jobFile()), d)
	if _, err := m.client.Drain(m.context(), &api.DrainRequest{Worker: "nosuch"}); status.Code(err) != codes.NotFound {
		t.Errorf("drain of nobody: %v", err)
	}
	a.mu.Lock()
	a.frozen = nil
	a.mu.Unlock()
	close(back)
	select {
	case <-a.done:
	case <-time.After(patience):
		t.Fatal("it does not leave")
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	if other.drained {
		t.Error("another of its name is told to leave")
	}
	w.check(t)
}
