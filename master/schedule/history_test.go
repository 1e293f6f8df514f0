// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is what surrounds a scheduler: workers that have attempts and outputs, links that break,
// a journal. It knows what must never happen.
type world struct {
	t   *rapid.T
	s   *State
	cfg Config
	now time.Duration

	procs map[string]*proc // workers as they are
	ids   []string
	jobs  map[string]*modelJob
	names []string

	// What the scheduler believes, by its own words.
	runs  map[Attempt]string // attempt -> worker
	state map[string]*belief

	claims  []claim
	mayFail bool // limits are low: jobs may fail
}

// claim is a result on its way to the journal.
type claim struct {
	p *proc
	f Finished
}

// proc is a worker's process.
type proc struct {
	w       Worker
	has     map[Attempt]bool // attempts it runs, in its own opinion
	over    map[Attempt]bool // those that have ended and wait for their answer: they take nothing
	outputs map[Attempt]bool
	linked  bool // the scheduler's messages reach it
}

// belief is what a scheduler was told of a worker.
type belief struct {
	up, suspect, draining, left bool
	aside                       time.Duration
}

type modelJob struct {
	job     Job
	planned *Planned
	splits  int
	parts   int
	width   int
	// journal holds accepted results in their order.
	journal []Finished
	// outputs are the accepted map outputs, reads what a reduce attempt was to read when it was launched.
	outputs map[uint32]Finished
	reads   map[Attempt][]uint64
	reduced map[uint32]Attempt
	sa      map[uint32]uint32
	base    []uint64 // digests of a deterministic run

	loose  map[uint32]bool // outputs that may be made again
	ended  bool
	left   bool // it has ended but for stage Abort
	stage  Stage
	commit bool
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, procs: map[string]*proc{}, jobs: map[string]*modelJob{}, runs: map[Attempt]string{}, state: map[string]*belief{},
		cfg: Config{
			Epoch: 1, MaxLost: 1000, MaxAttempts: 1000, Backoff: time.Second, MaxBackoff: 4 * time.Second, SpeculateAfter: time.Second,
			NoWorkers: time.Hour, AsideFailures: 3, LocalWait: 2 * time.Second, Settle: 2 * time.Second,
		},
	}
	if w.mayFail = rapid.IntRange(0, 4).Draw(t, "low limits") == 0; w.mayFail {
		w.cfg.MaxLost, w.cfg.MaxAttempts, w.cfg.NoWorkers = 2, 2, 10*time.Second
	}
	w.s = New(w.cfg)
	return w
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format, args...)
}

// apply tells the scheduler of events and follows its actions.
func (w *world) apply(events ...Event) []Action {
	actions := w.s.Apply(w.now, events...)
	w.follow(actions)
	return actions
}

func (w *world) follow(actions []Action) {
	for _, a := range actions {
		w.act(a)
	}
	w.check()
}

func (w *world) act(a Action) {
	w.t.Logf("%v %T%+v", w.now, a, a)
	switch a := a.(type) {
	case Launch:
		w.launched(a)
	case Adopted:
		if !w.procs[a.Worker].has[a.Attempt] {
			w.fatalf("%v is adopted by a worker that has it not", a)
		}
		w.begins(a.Worker, a.Attempt)
	case Stop:
		if w.runs[a.Attempt] == a.Worker {
			delete(w.runs, a.Attempt)
		}
		if p := w.procs[a.Worker]; p.linked {
			delete(p.has, a.Attempt)
		}
	case Relocate:
		j := w.live(a.Reader.Job)
		if w.runs[a.Reader] != a.Worker {
			w.fatalf("%+v: the reader does not run there", a)
		}
		if j.outputs[a.Output.Task].Attempt != a.Output {
			w.fatalf("%+v: not the output that counts", a)
		}
	case Reset:
		j := w.live(a.Job)
		j.sa[a.Task]++
		if j.sa[a.Task] != a.StageAttempt {
			w.fatalf("%+v: stage attempt should be %d", a, j.sa[a.Task])
		}
		delete(j.reduced, a.Task)
	case JobStage:
		w.live(a.Job).stage = a.Stage
	case JobEnded:
		j := w.live(a.Job)
		if j.left || a.Left && j.stage != Abort {
			w.fatalf("%+v at stage %s", a, j.stage)
		}
		j.ended, j.left = true, a.Left
		w.ended(j, a)
	case JobCleared:
		j := w.live(a.Job)
		if !j.left {
			w.fatalf("%+v: there is nothing to clear", a)
		}
		j.left = false
		for n := range w.runs {
			if n.Job == a.Job {
				w.fatalf("%+v, but %v runs", a, n)
			}
		}
	case Left:
		b := w.state[a.Worker]
		if !b.draining || b.left {
			w.fatalf("%+v: it was not to leave", a)
		}
		for n, at := range w.runs {
			if at == a.Worker {
				w.fatalf("%+v: it runs %v", a, n)
			}
		}
		b.left = true
	case Forget:
		if b := w.state[a.Worker]; b == nil || !b.up {
			w.fatalf("%+v: there is no such worker", a)
		}
		p := w.procs[a.Worker]
		if p.linked {
			for o := range p.outputs {
				if o.Job == a.Job {
					delete(p.outputs, o)
				}
			}
		}
	case SetAside:
		w.state[a.Worker].aside = a.Until
	}
}

func (w *world) live(id string) *modelJob {
	j := w.jobs[id]
	if j == nil || j.ended && !j.left {
		w.fatalf("an action for job %s, which has ended or never was", id)
	}
	return j
}

func (w *world) begins(worker string, n Attempt) {
	j := w.live(n.Job)
	if at, ok := w.runs[n]; ok {
		w.fatalf("%v begins at %s and runs at %s", n, worker, at)
	}
	others := 0
	for o := range w.runs {
		if o.Job == n.Job && o.Stage == n.Stage && o.Task == n.Task {
			if w.runs[o] == worker {
				w.fatalf("%v begins at %s beside %v", n, worker, o)
			}
			if o.StageAttempt != n.StageAttempt {
				w.fatalf("%v begins beside %v", n, o)
			}
			others++
		}
	}
	if others > 1 {
		w.fatalf("%v is the third of its task", n)
	}
	w.runs[n] = worker
	if n.Stage == Reduce && n.StageAttempt != j.sa[n.Task] {
		w.fatalf("%v begins, but %d is the stage attempt", n, j.sa[n.Task])
	}
	used, taken, ofJob := 0, int64(0), 0
	p := w.procs[worker]
	for o, at := range w.runs {
		if at == worker && !p.over[o] {
			if kindOf(o.Stage) == kindOf(n.Stage) {
				used++
			}
			m := w.jobs[o.Job].job.TaskMemory
			if m == 0 && p.w.Memory > 0 {
				m = p.w.Memory / int64(2*p.w.Slots)
			}
			taken += m
		}
		if o.Job == n.Job {
			ofJob++
		}
	}
	if used > p.w.Slots {
		w.fatalf("%v begins at %s: %d of %d slots", n, worker, used, p.w.Slots)
	}
	if p.w.Memory > 0 && taken > p.w.Memory {
		w.fatalf("%v begins at %s: %d of %d bytes", n, worker, taken, p.w.Memory)
	}
	if j.job.Platform != "" && j.job.Platform != p.w.Platform {
		w.fatalf("%v of a job for %s begins at %s, which runs %q", n, j.job.Platform, worker, p.w.Platform)
	}
	if j.job.MaxSlots > 0 && ofJob > j.job.MaxSlots {
		w.fatalf("%v begins as number %d of %d", n, ofJob, j.job.MaxSlots)
	}
}

func (w *world) launched(a Launch) {
	b, n := w.state[a.Worker], a.Attempt
	if b == nil || !b.up || b.suspect || b.draining || b.aside > w.now {
		w.fatalf("%+v: the worker is not to be given anything: %+v", a, b)
	}
	j := w.live(n.Job)
	if n.Epoch != w.cfg.Epoch {
		w.fatalf("%+v: wrong epoch", a)
	}
	w.begins(a.Worker, n)
	switch n.Stage {
	case Map:
		if _, done := j.outputs[n.Task]; done && !j.loose[n.Task] {
			w.fatalf("%+v: its output is there", a)
		}
	case Reduce:
		if _, done := j.reduced[n.Task]; done {
			w.fatalf("%+v: it is committed", a)
		}
		if len(j.outputs) != j.splits {
			w.fatalf("%+v: %d of %d map tasks are done", a, len(j.outputs), j.splits)
		}
		if j.reads[n] != nil {
			w.fatalf("%+v: the name was used before", a)
		}
		j.reads[n] = w.column(j, n.Task)
	case Commit:
		if len(j.reduced) != j.parts {
			w.fatalf("%+v: %d of %d parts are done", a, len(j.reduced), j.parts)
		}
	}
	if p := w.procs[a.Worker]; p.linked {
		p.has[n] = true
	}
}

// column is what a reduce task reads now.
func (w *world) column(j *modelJob, part uint32) []uint64 {
	if j.width == 1 {
		part = 0
	}
	c := make([]uint64, j.splits+1) // so that it is never nil
	for i := range j.splits {
		c[i] = j.outputs[uint32(i)].Digests[part]
	}
	return c
}

func (w *world) ended(j *modelJob, a JobEnded) {
	for n := range w.runs {
		if n.Job == j.job.ID {
			w.fatalf("%+v, but %v runs", a, n)
		}
	}
	if a.Error != "" {
		if !a.Cancelled && !w.mayFail {
			w.fatalf("%+v: nothing that happened should end it so", a)
		}
		return
	}
	if !j.commit {
		w.fatalf("%+v without a commit", a)
	}
	for p := range uint32(j.parts) {
		n, ok := j.reduced[p]
		if !ok {
			w.fatalf("%+v: part %d is not there", a, p)
		}
		if got, want := j.reads[n], w.column(j, p); !slices.Equal(got, want) {
			w.fatalf("%+v: part %d is made of %v, and %v counts", a, p, got, want)
		}
	}
}

func (w *world) claimed(n Attempt) bool {
	return slices.ContainsFunc(w.claims, func(c claim) bool { return c.f.Attempt == n })
}

// settle ends a claim.
func (w *world) settle(i int, written bool) {
	c := w.claims[i]
	w.claims = slices.Delete(w.claims, i, i+1)
	n, j := c.f.Attempt, w.jobs[c.f.Attempt.Job]
	if !written {
		w.s.Release(n)
		w.apply(Tick{})
		if w.runs[n] != c.p.w.ID {
			delete(c.p.has, n) // offered again, it is refused
		}
		return
	}
	if _, err := w.s.find(n); err != nil {
		w.t.Logf("%v: too late: %v", n, err)
		delete(c.p.has, n)
		w.apply(c.f)
		if w.s.Won(n) {
			w.fatalf("%v was too late, and has won", n)
		}
		return
	}
	w.accepted(j, c.p, c.f)
	w.apply(c.f)
}

// offer has a worker offer the result of an attempt that it has, or had.
func (w *world) offer(p *proc, n Attempt, twice, later bool) {
	j := w.jobs[n.Job]
	f := Finished{Attempt: n, Worker: p.w.ID}
	switch n.Stage {
	case Plan:
		f.Planned = j.planned
	case Map:
		f.Digests = w.digests(j, n)
	}
	err := w.s.Claim(n, p.w.ID)
	if err != nil {
		w.t.Logf("%v offers %v: %v", p.w.ID, n, err)
		rival := slices.ContainsFunc(w.claims, func(c claim) bool {
			a := c.f.Attempt
			return a.Job == n.Job && a.Stage == n.Stage && a.Task == n.Task
		})
		if w.runs[n] == p.w.ID && !rival {
			w.fatalf("%v is refused, though it runs: %v", n, err)
		}
		before, ok := w.s.Job(n.Job)
		w.apply(f) // as if nobody had asked
		if after, ok2 := w.s.Job(n.Job); ok != ok2 || before.Map.Done != after.Map.Done || before.Reduce.Done != after.Reduce.Done || before.Stage != after.Stage {
			w.fatalf("%v was refused (%v) and has changed something: %+v %+v", n, err, before, after)
		}
		delete(p.has, n)
		return
	}
	if w.runs[n] != p.w.ID {
		w.fatalf("%v is taken, though it does not run at %s", n, p.w.ID)
	}
	if later {
		w.claims = append(w.claims, claim{p, f})
		p.over[n] = true
		return
	}
	w.accepted(j, p, f)
	w.apply(f)
	if !j.ended && n.Stage != Plan && n.Stage != Abort && n.Stage != Commit && !w.s.Won(n) {
		w.fatalf("%v was taken, and has not won", n)
	}
	if twice {
		if err := w.s.Offer(n, p.w.ID); err == nil {
			w.fatalf("%v is taken twice", n)
		}
		w.apply(f)
	}
}

func (w *world) accepted(j *modelJob, p *proc, f Finished) {
	n := f.Attempt
	if j.ended && (!j.left || n.Stage != Abort) {
		w.fatalf("%v is taken after the end", n)
	}
	delete(w.runs, n)
	delete(p.has, n)
	switch n.Stage {
	case Map:
		if _, done := j.outputs[n.Task]; done && !j.loose[n.Task] {
			w.fatalf("%v is taken, and so was another", n)
		}
		j.outputs[n.Task] = f
		b := w.state[p.w.ID]
		j.loose[n.Task] = b == nil || !b.up || b.draining
		p.outputs[n] = true
	case Reduce:
		if o, done := j.reduced[n.Task]; done {
			w.fatalf("%v is taken, and so was %v", n, o)
		}
		if n.StageAttempt != j.sa[n.Task] {
			w.fatalf("%v is taken, but %d is the stage attempt", n, j.sa[n.Task])
		}
		j.reduced[n.Task] = n
	case Commit:
		j.commit = true
	}
	j.journal = append(j.journal, f)
}

func (w *world) digests(j *modelJob, n Attempt) []uint64 {
	d := slices.Clone(j.base[int(n.Task)*j.width : int(n.Task+1)*j.width])
	if len(d) > 0 && rapid.IntRange(0, 5).Draw(w.t, "deterministic") == 0 {
		d[rapid.IntRange(0, len(d)-1).Draw(w.t, "changed")] = uint64(rapid.IntRange(0, 2).Draw(w.t, "to"))
	}
	return d
}

// missing returns a map output that an attempt can't read now, and where it should be.
func (w *world) missing(n Attempt) (output Attempt, worker string, is bool) {
	j := w.jobs[n.Job]
	c := w.column(j, n.Task)
	for i := range j.splits {
		if c[i] == 0 {
			continue
		}
		o, at, ok := w.s.Output(n.Job, uint32(i))
		if !ok {
			w.fatalf("%v: map task %d has no output", n, i)
		}
		if p := w.procs[at]; p == nil || !p.linked || !p.outputs[o] {
			return o, at, true
		}
	}
	return Attempt{}, "", false
}

func sortedAttempts[V any](m map[Attempt]V) []Attempt {
	return slices.SortedFunc(maps.Keys(m), func(a, b Attempt) int {
		x, y := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b)
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}

// down has the scheduler believe that a worker is gone.
func (w *world) down(id string) {
	delete(w.state, id)
	w.forgetRuns(id, nil)
	for _, j := range w.jobs {
		for i, f := range j.outputs {
			if o, at, ok := w.s.Output(j.job.ID, i); ok && o == f.Attempt && at == id {
				j.loose[i] = true
			}
		}
	}
	w.apply(WorkerDown{ID: id})
}

func (w *world) forgetRuns(id string, but map[Attempt]bool) {
	for n, at := range w.runs {
		if at == id && !but[n] {
			delete(w.runs, n)
		}
	}
}

// hello has a worker say what it has.
func (w *world) hello(p *proc) {
	p.linked = true
	up := p.w
	up.Running, up.Outputs = sortedAttempts(p.has), sortedAttempts(p.outputs)
	b := w.state[p.w.ID]
	if b == nil {
		b = &belief{}
		w.state[p.w.ID] = b
	}
	b.up, b.suspect = true, false
	w.forgetRuns(p.w.ID, p.has)
	for _, j := range w.jobs {
		for i, f := range j.outputs {
			if _, at, ok := w.s.Output(j.job.ID, i); ok && at == p.w.ID && !p.outputs[f.Attempt] {
				j.loose[i] = true
			}
		}
	}
	w.apply(WorkerUp{Worker: up})
	// An output that was taken again is not loose.
	for _, j := range w.jobs {
		for i := range j.outputs {
			if _, at, ok := w.s.Output(j.job.ID, i); ok && at == p.w.ID && !b.draining {
				j.loose[i] = false
			}
		}
	}
}

// again replaces the scheduler by one that knows the journal.
func (w *world) again() {
	w.cfg.Epoch++
	w.s = New(w.cfg)
	w.runs = map[Attempt]string{}
	w.state = map[string]*belief{}
	w.claims = nil
	var list []RestoredJob
	for _, id := range w.names {
		j := w.jobs[id]
		if j.ended && !j.left {
			continue
		}
		r := RestoredJob{Job: j.job, StageAttempts: j.sa}
		if j.stage == Abort {
			r.Aborting, r.Cancelled, r.Ending = true, true, "cancelled"
		}
		if r.Left = j.left; r.Left {
			list = append(list, r)
			continue
		}
		whole := rapid.Bool().Draw(w.t, "whole journal")
		for _, f := range j.journal {
			switch {
			case f.Attempt.Stage == Plan:
				r.Planned = f.Planned
			case whole:
				r.Commits = append(r.Commits, f)
			case f.Attempt.Stage == Map && j.outputs[f.Attempt.Task].Attempt == f.Attempt,
				f.Attempt.Stage == Reduce && j.reduced[f.Attempt.Task] == f.Attempt:
				r.Commits = append(r.Commits, f)
			}
		}
		list = append(list, r)
	}
	for _, id := range w.ids {
		w.apply(WorkerExpected{ID: id})
		w.procs[id].linked = false
	}
	w.follow(w.s.Restore(w.now, list))
}

// platform is one of two, or none.
func (w *world) platform() string {
	return rapid.SampledFrom([]string{"", "linux/amd64", "linux/arm64"}).Draw(w.t, "platform")
}

func (w *world) addProc(id, platform string) {
	p := &proc{has: map[Attempt]bool{}, over: map[Attempt]bool{}, outputs: map[Attempt]bool{}}
	p.w = Worker{ID: id, Slots: rapid.IntRange(1, 3).Draw(w.t, "slots"), Platform: platform}
	if rapid.Bool().Draw(w.t, "limited") {
		p.w.Memory = 60
	}
	for _, l := range []string{"/a", "/a/b", "/c/"} {
		if rapid.IntRange(0, 3).Draw(w.t, "local") == 0 {
			p.w.Local = append(p.w.Local, l)
		}
	}
	w.procs[id] = p
	w.ids = append(w.ids, id)
	w.hello(p)
}

func (w *world) addJob() {
	t := w.t
	id := fmt.Sprintf("j%d", len(w.names))
	j := &modelJob{
		job: Job{
			ID: id, Priority: rapid.IntRange(0, 1).Draw(t, "priority"), MaxSlots: rapid.IntRange(0, 2).Draw(t, "max slots"),
			TaskMemory: int64(rapid.SampledFrom([]int{0, 0, 20, 30}).Draw(t, "memory")), Platform: w.platform(),
		},
		splits:  rapid.SampledFrom([]int{0, 1, 2, 3, 5, 25}).Draw(t, "splits"),
		parts:   rapid.IntRange(1, 4).Draw(t, "parts"),
		outputs: map[uint32]Finished{}, reads: map[Attempt][]uint64{}, reduced: map[uint32]Attempt{}, sa: map[uint32]uint32{}, loose: map[uint32]bool{},
	}
	p := &Planned{Partitions: j.parts}
	j.width = j.parts
	if rapid.IntRange(0, 3).Draw(t, "total order") == 0 {
		p.Shuffle, j.width = 1, 1
	}
	for range j.splits {
		p.Splits = append(p.Splits, Split{
			Bytes: int64(rapid.IntRange(0, 9).Draw(t, "bytes")), Path: rapid.SampledFrom([]string{"", "/a/x", "/a/b/x", "/a/b", "/ab", "/c/d/e", "/z"}).Draw(t, "path"),
		})
	}
	for range j.splits * j.width {
		j.base = append(j.base, uint64(rapid.IntRange(0, 2).Draw(t, "digest")))
	}
	j.planned = p
	w.jobs[id] = j
	w.names = append(w.names, id)
	w.apply(JobAdded{Job: j.job})
}

// all returns attempts that workers have, and some that they had.
func (w *world) all() (list []Attempt, at []*proc) {
	for _, id := range w.ids {
		p := w.procs[id]
		for _, n := range sortedAttempts(p.has) {
			list, at = append(list, n), append(at, p)
		}
	}
	return list, at
}

func (w *world) step() {
	t := w.t
	id := rapid.SampledFrom(w.ids).Draw(t, "worker")
	p, b := w.procs[id], w.state[id]
	what := rapid.SampledFrom([]string{
		"finish", "finish", "finish", "finish", "finish", "finish", "fail", "infrastructure", "zombie", "time", "time", "job", "worker",
		"down", "down", "back", "back", "cut", "suspect", "drain", "lost", "damaged", "forgets", "cancel", "restart", "rejoin", "progress",
		"claim", "claim", "written", "written", "not written",
	}).Draw(t, "what")
	t.Logf("%v -- %s %s", w.now, what, id)
	switch what {
	case "written", "not written":
		if n := len(w.claims); n > 0 {
			w.settle(rapid.IntRange(0, n-1).Draw(t, "claim"), what == "written")
		}
	case "finish", "claim", "fail", "infrastructure", "progress":
		list, at := w.all()
		if len(list) == 0 {
			return
		}
		i := rapid.IntRange(0, len(list)-1).Draw(t, "attempt")
		n, p := list[i], at[i]
		if !p.linked {
			return
		}
		if w.claimed(n) {
			return // it waits for its answer
		}
		switch what {
		case "finish":
			if w.finishable(n) {
				w.offer(p, n, rapid.Bool().Draw(t, "twice"), false)
			}
		case "claim":
			if w.finishable(n) {
				w.offer(p, n, false, true)
			}
		case "progress":
			w.apply(Progressed{Attempt: n, Done: 0.5})
		default:
			if n.Stage == Abort || n.Stage == Commit {
				return // three of them would end a job as it should
			}
			delete(p.has, n)
			if w.runs[n] == p.w.ID {
				delete(w.runs, n)
			}
			w.apply(Failed{
				Attempt: n, Worker: p.w.ID, Error: "x", Infrastructure: what == "infrastructure",
				Permanent: w.mayFail && rapid.IntRange(0, 5).Draw(t, "permanent") == 0,
			})
		}
	case "zombie": // somebody offers something that he never had, or has no more
		if len(w.names) == 0 {
			return
		}
		n := Attempt{
			Job: rapid.SampledFrom(w.names).Draw(t, "job"), Stage: Stage(rapid.IntRange(0, int(Abort)).Draw(t, "stage")), Task: uint32(rapid.IntRange(0, 3).Draw(t, "task")),
			StageAttempt: uint32(rapid.IntRange(0, 1).Draw(t, "sa")), Number: uint32(rapid.IntRange(0, 3).Draw(t, "number")), Epoch: uint64(rapid.IntRange(1, int(w.cfg.Epoch)).Draw(t, "epoch")),
		}
		j := w.jobs[n.Job]
		if w.claimed(n) || w.runs[n] == id || n.Stage == Map && int(n.Task) >= j.splits {
			return
		}
		w.offer(p, n, false, false)
	case "time":
		w.pass(time.Duration(rapid.IntRange(1, 20_000).Draw(t, "ms")) * time.Millisecond)
	case "job":
		if len(w.names) < 4 {
			w.addJob()
		}
	case "worker":
		if len(w.ids) < 6 {
			w.addProc(fmt.Sprintf("w%d", len(w.ids)), w.platform())
		}
	case "down": // its lease runs out; the process may live on
		p.linked = false
		w.down(id)
	case "rejoin": // another process
		w.down(id)
		p.has, p.outputs = map[Attempt]bool{}, map[Attempt]bool{}
		w.hello(p)
	case "back":
		w.hello(p)
	case "cut":
		p.linked = false
	case "suspect":
		if b != nil && b.up {
			b.suspect = !b.suspect
			w.apply(WorkerSuspect{ID: id, Suspect: b.suspect})
		}
	case "drain":
		if b != nil && b.up && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
			b.draining = true
			for _, j := range w.jobs {
				for i := range j.outputs {
					if _, at, ok := w.s.Output(j.job.ID, i); ok && at == id {
						j.loose[i] = true
					}
				}
			}
			w.apply(WorkerDrain{ID: id})
		}
	case "forgets":
		for _, o := range sortedAttempts(p.outputs) {
			if rapid.Bool().Draw(t, "this") {
				delete(p.outputs, o)
			}
		}
	case "lost", "damaged":
		list, _ := w.all()
		list = slices.DeleteFunc(list, func(n Attempt) bool { return n.Stage != Reduce || w.runs[n] == "" })
		if len(list) == 0 {
			return
		}
		n := rapid.SampledFrom(list).Draw(t, "reader")
		j := w.jobs[n.Job]
		if j.splits == 0 {
			return
		}
		i := uint32(rapid.IntRange(0, j.splits-1).Draw(t, "output"))
		o, at, _ := w.s.Output(n.Job, i)
		j.loose[i] = true
		w.apply(OutputLost{Reader: n, Output: o, Worker: at, Certain: what == "damaged"})
	case "cancel":
		if len(w.names) > 0 && rapid.IntRange(0, 5).Draw(t, "really") == 0 {
			w.apply(JobCancelled{ID: rapid.SampledFrom(w.names).Draw(t, "job")})
		}
	case "restart":
		if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
			w.again()
		}
	}
}

// finishable says whether an attempt could have come to its end. If a reduce attempt can't, it says so.
func (w *world) finishable(n Attempt) bool {
	j := w.jobs[n.Job]
	if n.Stage != Reduce || j.ended || w.runs[n] == "" {
		return true
	}
	o, at, is := w.missing(n)
	if !is {
		return true
	}
	if at != "" {
		j.loose[o.Task] = true
	}
	w.apply(OutputLost{Reader: n, Output: o, Worker: at, Error: "not there"})
	return false
}

func (w *world) pass(d time.Duration) {
	until := w.now + d
	for range 1000 {
		at, ok := w.s.Next()
		if !ok || at > until {
			w.now = until
			return
		}
		if at < w.now {
			w.fatalf("Next is in the past: %v, now %v", at, w.now)
		}
		w.now = at
		w.apply(Tick{})
	}
	w.fatalf("a thousand ticks in %v", d)
}

// calm lets everything go well from now on, and expects all jobs to end.
func (w *world) calm() {
	w.t.Logf("-- calm")
	for len(w.claims) > 0 {
		w.settle(0, true)
	}
	for _, id := range w.ids {
		p := w.procs[id]
		if b := w.state[id]; b != nil && b.draining {
			p.linked = false
			w.down(id)
		}
		w.hello(p)
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64"} { // there may be none of it
		w.addProc(platform, platform)
	}
	for round := range 3000 {
		busy := false
		for _, id := range w.names {
			busy = busy || !w.jobs[id].ended || w.jobs[id].left
		}
		if !busy {
			return
		}
		list, at := w.all()
		did := false
		for i, n := range list {
			if !at[i].has[n] {
				continue // it was stopped meanwhile
			}
			if w.finishable(n) {
				did = true
				w.offer(at[i], n, false, false)
			}
		}
		if !did {
			if at, ok := w.s.Next(); ok {
				w.pass(at - w.now)
			} else if len(list) == 0 {
				for _, id := range w.names {
					v, _ := w.s.Job(id)
					w.t.Logf("%s %+v", id, v)
				}
				w.fatalf("round %d: nothing runs and nothing is waited for", round)
			}
		}
	}
	for _, id := range w.names {
		v, _ := w.s.Job(id)
		w.t.Logf("%s %+v", id, v)
	}
	w.fatalf("not done after many rounds")
}

// Whatever happens: no two results of a task are taken, no task is lost, limits are kept, what is committed
// is made of what counts; and when all goes well from some moment on, all jobs end.
func TestHistories(t *testing.T) {
	rounds := 4
	if os.Getenv("QUERN_LONG") != "" {
		rounds = 1000
	}
	for range rounds { // of a hundred histories each, if -rapid.checks does not say otherwise
		rapid.Check(t, func(t *rapid.T) {
			w := newWorld(t)
			for i := range rapid.IntRange(1, 4).Draw(t, "workers") {
				w.addProc(fmt.Sprintf("w%d", i), w.platform())
			}
			w.addJob()
			for range rapid.IntRange(0, 120).Draw(t, "steps") {
				w.step()
			}
			w.calm()
		})
	}
}

// check compares what is kept for speed with what it is made of.
func (w *world) check() {
	s := w.s
	fleets := map[*fleet][2]int{} // members, and those of them that are usable
	defer func() {
		for _, f := range s.fleets {
			if f.members == 0 || fleets[f] != [2]int{f.members, f.usable} {
				w.fatalf("a fleet for %s counts %d members, %d usable: %v", f.platform, f.members, f.usable, fleets[f])
			}
		}
		if len(fleets) != len(s.fleets) {
			w.fatalf("%d fleets, workers are in %d", len(s.fleets), len(fleets))
		}
	}()
	for _, id := range w.ids {
		x := s.workers[id]
		if x == nil {
			continue
		}
		if x.fleet != nil {
			c := fleets[x.fleet]
			c[0]++
			if x.usable() {
				c[1]++
			}
			fleets[x.fleet] = c
		}
		held := 0
		var used [kinds]int
		var mem int64
		n := 0
		for _, j := range s.jobList {
			if j.ended {
				continue
			}
			for _, st := range j.stages {
				if st == nil {
					continue
				}
				for i := range st.tasks {
					if st.tasks[i].home == x {
						held++
					}
				}
				for a := st.running.first; a != nil; a = st.running.next(a) {
					if a.w == x {
						used[kindOf(st.kind)]++
						mem += a.mem
						n++
					}
				}
			}
		}
		if held != x.nheld || used != x.used || mem != x.usedMem || n != x.attempts.n {
			w.fatalf("worker %s: held %d %d, used %v %v, memory %d %d, attempts %d %d", id, held, x.nheld, used, x.used, mem, x.usedMem, n, x.attempts.n)
		}
		for k := range x.seats {
			for _, seat := range x.seats[k] {
				if got, want := seat.pool.tree[seat.pool.size+seat.leaf], x.room(k); got != want {
					w.fatalf("worker %s has %+v and a pool says %+v", id, want, got)
				}
			}
		}
	}
	for _, j := range s.jobList {
		if j.ended {
			continue
		}
		w.checkJob(j)
	}
}

func (w *world) checkJob(j *job) {
	s := w.s
	var running [kinds]int
	for _, st := range j.stages {
		if st == nil {
			continue
		}
		done, nears, open, retries, runs, spec := 0, 0, 0, 0, 0, 0
		for i := range st.tasks {
			t := &st.tasks[i]
			if t.have || t.idle {
				done++
			}
			switch t.queue {
			case near:
				nears++
			case queued:
				open++
			case shy:
				retries++
			}
			if t.run != nil && t.queue != unqueued {
				w.fatalf("%s %s runs and waits", j.ID, st.label(uint32(i)))
			}
			if st.active() && t.wanted() && t.run == nil && t.queue == unqueued {
				w.fatalf("%s %s is wanted, and nobody sees to it", j.ID, st.label(uint32(i)))
			}
			for a := t.run; a != nil; a = a.sibling {
				runs++
				if a.spec {
					spec++
				}
			}
			if st.kind == Map && j.stage <= Reduce && t.have && t.home == nil && t.ran && s.needed(j, uint32(i)) {
				w.fatalf("%s %s is needed and nowhere", j.ID, st.label(uint32(i)))
			}
		}
		if done != st.done || nears != st.nears || open != st.open.count || retries != st.retries.count || runs != st.running.n || spec != int(st.speculative) {
			w.fatalf("%s %s: done %d %d, near %d %d, open %d %d, retries %d %d, running %d %d, copies %d %d", j.ID, st.kind, done, st.done, nears, st.nears, open, st.open.count, retries, st.retries.count, runs, st.running.n, spec, st.speculative)
		}
		running[kindOf(st.kind)] += runs
		if st.kind == Map && j.paths != nil && j.paths.order != nil {
			for at, i := range j.paths.order {
				want := uint32(none)
				if q := st.tasks[i].queue; q != unqueued && q != backoff {
					want = uint32(st.rankOf(i))
				}
				if got := j.paths.tree[j.paths.size+at]; got != want {
					w.fatalf("%s: paths say %d of map task %d, and it is %d", j.ID, got, i, want)
				}
			}
		}
	}
	if running != j.running {
		w.fatalf("%s: running %v, counted %v", j.ID, running, j.running)
	}
	for k := range s.queues {
		if in := j.place[k] > 0; in != j.runnable(k) {
			w.fatalf("%s: in queue %d: %v", j.ID, k, in)
		}
		st := j.candidate(k)
		if st == nil || j.restored && s.settles || j.full() {
			continue
		}
		if st.open.count > 0 && s.fleetOf(j).pools[k].best(j.TaskMemory, nil, nil) != nil {
			w.fatalf("%s: there is a slot and a task for it", j.ID)
		}
	}
}
