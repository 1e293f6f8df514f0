// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

// scenario is a cluster and its load. Everything that happens follows from it and the seed.
type scenario struct {
	name    string
	seed    uint64
	workers int
	slots   int
	memory  int64
	racks   int // folders that workers are near; 0: none
	jobs    int
	maps    int // per job
	parts   int // per job
	lanes   int // of memory: 0, or what an attempt takes

	death   time.Duration // mean life of a worker; another one comes a minute later
	absence time.Duration // mean time between two absences of 15 s, which outlast the lease
	slow    float64       // share of workers that take five times as long
	failing float64       // share of attempts that fail
	changed float64       // share of map tasks that give another digest when run again
	drain   time.Duration // how often a worker is drained
	every   time.Duration // between two jobs
}

// outcome is what a simulation says.
type outcome struct {
	events, actions, launches, copies int
	deaths, absences, drains          int
	failed, reruns, resets            int
	virtual                           time.Duration
	inApply, longest                  time.Duration
	cpu                               time.Duration
	heap                              uint64
	problems                          []string
}

// simulation runs a scheduler in virtual time.
type simulation struct {
	scenario
	s     *State
	rng   *rand.Rand
	now   time.Duration
	queue happenings
	seq   uint64

	procs map[string]*simWorker
	names int
	jobs  map[string]*simJob
	left  int
	out   outcome
}

type simWorker struct {
	w        Worker
	slow     bool
	away     bool
	draining bool
	dead     bool
	has      map[Attempt]int // and how many map outputs it lacks
	outputs  []Attempt
}

type simJob struct {
	planned *Planned
	ended   bool
}

// happening is something that will happen.
type happening struct {
	at   time.Duration
	seq  uint64
	what func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, k int) bool {
	return h[i].at < h[k].at || h[i].at == h[k].at && h[i].seq < h[k].seq
}
func (h happenings) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	n := len(*h) - 1
	x := (*h)[n]
	(*h)[n] = happening{}
	*h = (*h)[:n]
	return x
}

func (m *simulation) after(d time.Duration, what func()) {
	m.seq++
	heap.Push(&m.queue, happening{m.now + d, m.seq, what})
}

// exp draws from an exponential distribution; 0 means never.
func (m *simulation) exp(mean time.Duration, what func()) {
	if mean > 0 {
		m.after(time.Duration(m.rng.ExpFloat64()*float64(mean)), what)
	}
}

func simulate(sc scenario) outcome {
	m := &simulation{
		scenario: sc, rng: rand.New(rand.NewPCG(sc.seed, 1)), procs: map[string]*simWorker{}, jobs: map[string]*simJob{},
		s: New(Config{Epoch: 1, LocalWait: 3 * time.Second}),
	}
	for range sc.workers {
		m.join()
	}
	m.left = sc.jobs
	for i := range sc.jobs {
		id := fmt.Sprintf("job%d", i)
		m.after(time.Duration(i)*sc.every, func() {
			m.jobs[id] = &simJob{planned: m.plan()}
			j := Job{ID: id, TaskMemory: int64(sc.lanes)}
			if i%2 == 0 {
				j.Platform = "linux/amd64"
			}
			m.tell(JobAdded{j})
		})
	}
	m.exp(sc.drain, m.drainOne)
	for m.left > 0 {
		var at time.Duration = math.MaxInt64
		if len(m.queue) > 0 {
			at = m.queue[0].at
		}
		if tick, ok := m.s.Next(); ok && tick < at {
			m.now = tick
			m.tell(Tick{})
			continue
		}
		if len(m.queue) == 0 {
			m.out.problems = append(m.out.problems, "nothing happens any more")
			break
		}
		h := heap.Pop(&m.queue).(happening)
		m.now = h.at
		h.what()
		if m.now > 1000*time.Hour {
			m.out.problems = append(m.out.problems, "a thousand hours")
			break
		}
	}
	m.out.virtual = m.now
	return m.out
}

func (m *simulation) plan() *Planned {
	p := &Planned{Partitions: m.parts, Splits: make([]Split, m.maps)}
	for i := range p.Splits {
		p.Splits[i].Bytes = 64<<20 + int64(m.rng.IntN(8<<20))
		if m.racks > 0 {
			p.Splits[i].Path = fmt.Sprintf("/rack%d/part", m.rng.IntN(m.racks))
		}
	}
	return p
}

func (m *simulation) join() {
	m.names++
	p := &simWorker{w: Worker{ID: fmt.Sprintf("w%d", m.names), Slots: m.slots, Memory: m.memory, Platform: "linux/amd64"}, has: map[Attempt]int{}}
	if m.racks > 0 {
		p.w.Local = []string{fmt.Sprintf("/rack%d", m.names%m.racks)}
	}
	p.slow = m.rng.Float64() < m.slow
	m.procs[p.w.ID] = p
	m.tell(WorkerUp{p.w})
	m.exp(m.death, func() { m.die(p) })
	m.exp(m.absence, func() { m.leave(p) })
}

const lease = 10 * time.Second

func (m *simulation) die(p *simWorker) {
	if p.dead {
		return
	}
	m.out.deaths++
	p.dead, p.away = true, true
	m.notice(p)
	m.after(lease, func() {
		delete(m.procs, p.w.ID)
		m.tell(WorkerDown{p.w.ID})
	})
	m.after(time.Minute, m.join)
}

// notice has a few readers complain of a worker before its lease runs out.
func (m *simulation) notice(p *simWorker) {
	if len(p.outputs) == 0 {
		return
	}
	o := p.outputs[m.rng.IntN(len(p.outputs))]
	if v, ok := m.s.Job(o.Job); !ok || v.Stage != Reduce {
		return
	}
	for _, v := range m.s.Attempts(o.Job) {
		if v.State == "running" && v.Attempt.Stage == Reduce {
			m.after(time.Second, func() { m.tell(OutputLost{Reader: v.Attempt, Output: o, Worker: p.w.ID, Error: "connection refused"}) })
			return
		}
	}
}

func (m *simulation) leave(p *simWorker) {
	if p.dead || p.away {
		return
	}
	m.out.absences++
	p.away = true
	m.notice(p)
	m.after(lease, func() {
		if !p.dead {
			m.tell(WorkerDown{p.w.ID})
		}
	})
	m.after(lease+lease/2, func() {
		if p.dead {
			return
		}
		p.away = false
		up := p.w
		for a := range p.has {
			up.Running = append(up.Running, a)
		}
		slices.SortFunc(up.Running, func(a, b Attempt) int {
			if a.Job != b.Job {
				if a.Job < b.Job {
					return -1
				}
				return 1
			}
			if a.Stage != b.Stage {
				return int(a.Stage) - int(b.Stage)
			}
			return int(int64(a.Task)<<8+int64(a.Number)) - int(int64(b.Task)<<8+int64(b.Number))
		})
		p.outputs = slices.DeleteFunc(p.outputs, func(a Attempt) bool { return m.jobs[a.Job].ended })
		up.Outputs = p.outputs
		m.tell(WorkerUp{up})
		m.exp(m.absence, func() { m.leave(p) })
	})
}

func (m *simulation) drainOne() {
	m.exp(m.drain, m.drainOne)
	p := m.procs[fmt.Sprintf("w%d", 1+m.rng.IntN(m.names))]
	if p == nil || p.away || p.draining {
		return
	}
	p.draining = true
	m.out.drains++
	m.tell(WorkerDrain{p.w.ID})
}

func (m *simulation) tell(e Event) {
	m.out.events++
	begin := time.Now()
	actions := m.s.Apply(m.now, e)
	took := time.Since(begin)
	m.out.inApply += took
	m.out.longest = max(m.out.longest, took)
	m.out.actions += len(actions)
	if m.out.events%100_000 == 0 {
		m.measure()
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Launch:
			m.launch(a)
		case Stop:
			if p := m.procs[a.Worker]; p != nil && !p.away {
				delete(p.has, a.Attempt)
			}
		case Relocate:
			if p := m.procs[a.Worker]; p != nil && !p.away && p.has[a.Reader] > 0 {
				p.has[a.Reader]--
			}
		case Left:
			if p := m.procs[a.Worker]; p != nil && !p.dead {
				p.dead = true
				delete(m.procs, a.Worker)
				m.after(time.Second, func() { m.tell(WorkerDown{a.Worker}) })
				m.after(time.Minute, m.join)
			}
		case JobEnded:
			m.left--
			m.jobs[a.Job].ended = true
			if a.Error != "" {
				m.out.problems = append(m.out.problems, a.Error)
			}
		case JobStage:
			if a.Stage == Commit {
				v, _ := m.s.Job(a.Job)
				m.out.reruns += v.Reruns
				m.out.resets += v.Resets
				m.out.failed += v.Map.Failed + v.Reduce.Failed
			}
		}
	}
}

func (m *simulation) measure() {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m.out.heap = max(m.out.heap, mem.HeapInuse)
}

func (m *simulation) launch(l Launch) {
	m.out.launches++
	if l.Speculative {
		m.out.copies++
	}
	p := m.procs[l.Worker]
	if p == nil || p.away {
		return // nobody hears it
	}
	p.has[l.Attempt] = 0
	if l.Attempt.Stage == Reduce {
		v, _ := m.s.Job(l.Attempt.Job)
		p.has[l.Attempt] = v.Map.Tasks - v.Map.Done
	}
	mean := 20 * time.Second
	if l.Attempt.Stage == Reduce {
		mean = 60 * time.Second
	}
	d := time.Duration(float64(mean) * (0.7 + 0.6*m.rng.Float64()))
	if p.slow {
		d *= 5
	}
	fails := m.rng.Float64() < m.failing
	if fails {
		d /= 2
	}
	m.after(d, func() { m.finish(p, l.Attempt, fails) })
}

func (m *simulation) finish(p *simWorker, n Attempt, fails bool) {
	lacks, has := p.has[n]
	if !has || p.dead {
		return
	}
	if p.away {
		m.after(time.Second, func() { m.finish(p, n, fails) })
		return
	}
	if fails {
		delete(p.has, n)
		m.tell(Failed{Attempt: n, Worker: p.w.ID, Error: "it failed", Infrastructure: m.rng.IntN(4) == 0})
		return
	}
	if lacks > 0 {
		m.after(time.Second, func() { m.finish(p, n, fails) })
		return
	}
	delete(p.has, n)
	if m.s.Offer(n, p.w.ID) != nil {
		return
	}
	f := Finished{Attempt: n, Worker: p.w.ID}
	switch n.Stage {
	case Plan:
		f.Planned = m.jobs[n.Job].planned
		m.jobs[n.Job].planned = nil
	case Map:
		f.Digests = make([]uint64, m.parts)
		for i := range f.Digests {
			f.Digests[i] = uint64(n.Task) + 1
		}
		if n.Number > 0 && m.rng.Float64() < m.changed {
			f.Digests[m.rng.IntN(m.parts)] += uint64(n.Number) << 32
		}
		p.outputs = append(p.outputs, n)
	}
	m.tell(f)
}

var scenarios = []scenario{
	{
		name: "one job", seed: 1, workers: 10_000, slots: 4, jobs: 1, maps: 1_000_000, parts: 4,
	},
	{
		name: "one job, failures", seed: 1, workers: 10_000, slots: 4, jobs: 1, maps: 1_000_000, parts: 4,
		death: 10 * time.Hour, absence: 10 * time.Hour, slow: 0.02, failing: 0.01, changed: 0.00001, drain: time.Minute,
	},
	{
		name: "100 jobs, failures", seed: 1, workers: 10_000, slots: 4, jobs: 100, maps: 10_000, parts: 20,
		death: 10 * time.Hour, absence: 10 * time.Hour, slow: 0.02, failing: 0.01, changed: 0.001, drain: time.Minute, every: time.Second,
	},
	{
		name: "100 jobs, failures, memory, racks", seed: 1, workers: 10_000, slots: 4, memory: 64, lanes: 9, racks: 200, jobs: 100, maps: 10_000, parts: 20,
		death: 10 * time.Hour, absence: 10 * time.Hour, slow: 0.02, failing: 0.01, changed: 0.001, drain: time.Minute, every: time.Second,
	},
}

func report(t *testing.T, sc scenario, o outcome, wall time.Duration) {
	t.Logf("%s: %d workers, %d map and %d reduce tasks; wall %.1f s, processor %.1f s; in the scheduler %.2f s, %d events, %.2f us each, longest %v, %d actions, %d launches, %d copies; "+
		"%d deaths, %d absences, %d drains, %d attempts failed, %d reruns, %d resets; virtual %v; heap %d MiB",
		sc.name, sc.workers, sc.jobs*sc.maps, sc.jobs*sc.parts, wall.Seconds(), o.cpu.Seconds(), o.inApply.Seconds(), o.events, float64(o.inApply.Microseconds())/float64(o.events), o.longest, o.actions, o.launches, o.copies,
		o.deaths, o.absences, o.drains, o.failed, o.reruns, o.resets, o.virtual.Round(time.Second), o.heap>>20)
	for _, p := range o.problems {
		t.Error(p)
	}
}

// A hundredth of the cluster and of the load, with more failures.
func TestSimulation(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			sc.workers /= 100
			if sc.jobs == 1 {
				sc.maps /= 100
			} else {
				sc.jobs /= 5
				sc.maps /= 20
			}
			sc.death /= 15
			sc.absence /= 15
			sc.changed *= 100
			begin := time.Now()
			o := simulate(sc)
			report(t, sc, o, time.Since(begin))
			if sc.death > 0 && (o.deaths == 0 || o.absences == 0 || o.reruns == 0 || o.copies == 0) {
				t.Errorf("nothing went wrong: %+v", o)
			}
			again := simulate(sc)
			o.inApply, o.longest, o.heap, again.inApply, again.longest, again.heap = 0, 0, 0, 0, 0, 0
			if fmt.Sprint(o) != fmt.Sprint(again) {
				t.Errorf("the same history gave\n%+v and\n%+v", o, again)
			}
		})
	}
}

// The figures of docs/benchmarks.md.
func TestScale(t *testing.T) {
	if os.Getenv("QUERN_LONG") == "" {
		t.Skip("a million tasks take a minute: QUERN_LONG=1")
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			runtime.GC()
			begin, used := time.Now(), processorTime()
			o := simulate(sc)
			o.cpu = processorTime() - used
			report(t, sc, o, time.Since(begin))
		})
	}
}
