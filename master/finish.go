// SPDX-License-Identifier: Apache-2.0

package master

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// finish is an attempt's end that a worker reports.
type finish struct {
	req     *api.FinishRequest
	attempt schedule.Attempt
	plan    *task.PlanResult
	splits  *task.Splits
	mapped  *task.MapResult
	reduced *task.ReduceResult
	commit  *task.CommitResult
	failure *task.Error
	lacks   error // a side input that the master has not

	answer chan finished // has room for one

	// Of the loop, while its batch is written.
	job    *job
	err    error // of the journal
	reply  *api.FinishReply
	events []schedule.Event
	claim  bool
	old    *journal.Map // the result that the map task has
	undo   []func()
}

type finished struct {
	reply *api.FinishReply
	err   error
}

// Finish implements api.AttendanceServer.
func (a attendance) Finish(ctx context.Context, req *api.FinishRequest) (*api.FinishReply, error) {
	m := a.m
	f := &finish{req: req, answer: make(chan finished, 1)}
	var ok bool
	if f.attempt, ok = fromAPI(req.Attempt); !ok {
		return nil, status.Error(codes.InvalidArgument, "a result of no attempt")
	}
	f.decode()
	if f.plan != nil && f.failure == nil && checkSideInputs(f.plan.SideInputs) == nil && m.tooLarge(f.plan.SideInputs) == "" {
		f.lacks = m.lacks(f.plan.SideInputs)
	}
	select {
	case m.finishes <- f:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-m.stopping:
		return nil, errStopping
	}
	select {
	case a := <-f.answer:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-m.stopped:
		return nil, errStopping
	}
}

// decode reads the result. One that can't be read is a failure of the attempt.
func (f *finish) decode() {
	if len(f.req.Error) > 0 {
		f.failure = &task.Error{}
		if err := json.Unmarshal(f.req.Error, f.failure); err != nil {
			f.failure = &task.Error{Message: fmt.Sprintf("it failed, and its error can't be read: %v", err)}
		}
		return
	}
	var into any
	switch f.attempt.Stage {
	case schedule.Plan:
		f.plan = &task.PlanResult{}
		into = f.plan
	case schedule.Map:
		f.mapped = &task.MapResult{}
		into = f.mapped
	case schedule.Reduce:
		f.reduced = &task.ReduceResult{}
		into = f.reduced
	default:
		f.commit = &task.CommitResult{}
		if len(f.req.Result) == 0 {
			return // an abort has none
		}
		into = f.commit
	}
	err := json.Unmarshal(f.req.Result, into)
	if err == nil && f.plan != nil {
		f.splits, err = task.ParsePlan(f.plan.Plan)
	}
	if err != nil {
		f.failure = &task.Error{Message: fmt.Sprintf("its result can't be read: %v", err)}
	}
}

// finish takes a batch of results: what the scheduler would take is written to the
// journal, all at once, and then told to the scheduler and to who waits.
func (m *Master) finish(batch []*finish) {
	slices.SortStableFunc(batch, func(a, b *finish) int { return cmp.Compare(m.rank(a.attempt), m.rank(b.attempt)) })
	var entries []journal.Entry
	touched := map[*job]bool{}
	for _, f := range batch {
		entries = append(entries, m.take(f)...)
		if f.claim {
			touched[f.job] = true
		}
	}
	for j := range touched {
		entries = append(entries, m.settle(j)...)
	}
	if len(entries) > 0 {
		if err := m.write(entries...); err != nil {
			m.untake(batch, err)
			return
		}
	}
	for j := range touched {
		if j.next != nil {
			j.totals, j.next = *j.next, nil
		}
	}
	for _, f := range batch {
		if f.claim {
			f.job.end(f.attempt, "done", "", m)
			f.job.fresh = f.job.fresh || f.attempt.Stage == schedule.Plan
			f.job.touch()
		}
		m.events = append(m.events, f.events...)
	}
	m.apply()
	for _, f := range batch {
		f.answer <- finished{f.reply, f.err}
	}
}

// rank is the order in which results of a batch are taken, so that none of them changes what the journal is to have of
// a later one: a result that takes the place of another one may void a part, of which the same batch may hold the result
// that ends the stage. And whether it does depends on the stage, which the last of the first results ends.
func (m *Master) rank(a schedule.Attempt) int {
	if j := m.jobs[a.Job]; a.Stage == schedule.Map && j != nil && j.ledger != nil && int64(a.Task) < int64(len(j.ledger.outputs)) && j.ledger.outputs[a.Task].done {
		return 2*int(a.Stage) - 1
	}
	return 2 * int(a.Stage)
}

// untake puts everything back as it was, since it could not be written.
func (m *Master) untake(batch []*finish, why error) {
	for _, f := range slices.Backward(batch) {
		for _, undo := range slices.Backward(f.undo) {
			undo()
		}
		if f.claim {
			m.state.Release(f.attempt)
			f.job.next = nil
		} else {
			m.events = append(m.events, f.events...)
		}
	}
	m.apply()
	err := status.Errorf(codes.Unavailable, "%v; the result is not taken yet: offer it again", why)
	for _, f := range batch {
		if f.err == nil {
			f.err = err
		}
		f.answer <- finished{err: f.err}
	}
}

func refuse(reason string) *api.FinishReply { return &api.FinishReply{Reason: reason} }

// take looks at one result and returns what the journal is to have of it. What it
// changes can be undone.
func (m *Master) take(f *finish) []journal.Entry {
	a := f.attempt
	j := m.job(a.Job)
	if j == nil || j.history != nil && !j.left {
		f.reply = refuse("the job has ended, or was never here")
		return nil
	}
	f.job = j
	if j.hasTaken(a, f.req.Worker) {
		f.reply = &api.FinishReply{Accepted: true}
		return nil
	}
	if w := m.workers[f.req.Worker]; w == nil || w.session == nil {
		// What it reports as running when it says hello would else be at odds with what it is told now.
		f.err = status.Error(codes.Unavailable, "the worker has no stream to this master: say hello, and offer the result again")
		return nil
	}
	if f.failure != nil {
		m.failed(f)
		return nil
	}
	if err := m.state.Offer(a, f.req.Worker); err != nil {
		m.refused(f, err)
		return nil
	}
	if err := j.check(f); err != nil {
		f.failure = &task.Error{Message: "its result makes no sense: " + err.Error()}
		m.failed(f)
		return nil
	}
	if f.lacks != nil {
		f.failure, f.req.Infrastructure = &task.Error{Message: f.lacks.Error() + ": its worker is to store it before the plan is offered"}, true
		m.failed(f)
		f.reply = refuse(f.failure.Message)
		return nil
	}
	if a.Stage == schedule.Map && j.ledger.outputs[a.Task].done {
		var err error
		if f.old, err = m.oldMap(j, a.Task); err != nil {
			// The sums could not be corrected without it.
			m.log.Error("a map result can't be read from the journal", "error", err)
			f.reply = refuse(err.Error())
			f.events = append(f.events, m.fail(j, fmt.Sprintf("the master can't read its journal: %v", err)))
			return nil
		}
	}
	if err := m.state.Claim(a, f.req.Worker); err != nil {
		m.refused(f, err)
		return nil
	}
	f.claim = true
	f.reply = &api.FinishReply{Accepted: true}
	done := schedule.Finished{Attempt: a, Worker: f.req.Worker}
	var entries []journal.Entry
	switch a.Stage {
	case schedule.Plan:
		entries, done.Planned = m.takePlan(f)
	case schedule.Map:
		entries = m.takeMap(f)
		done.Digests = digests(f.mapped)
	case schedule.Reduce:
		entries = m.takeReduce(f)
	case schedule.Commit:
		entries = []journal.Entry{journal.Committed{Job: a.Job, Attempt: a, Result: *f.commit}}
		j.commit, j.commitBy = f.commit, a
		f.undo = append(f.undo, func() { j.commit, j.commitBy = nil, schedule.Attempt{} })
	}
	f.events = append(f.events, done)
	return entries
}

func (m *Master) refused(f *finish, err error) {
	m.over(f.attempt)
	f.reply = refuse(err.Error())
	m.log.Info("a result is refused", "attempt", describe(f.attempt), "epoch", f.attempt.Epoch, "worker", f.req.Worker, "reason", err)
	f.job.end(f.attempt, "stopped", err.Error(), m)
}

// rememberOver is how many attempts are remembered whose end was heard of.
const rememberOver = 1 << 14

// over remembers that an attempt has ended without a result that was taken. Its worker may have said
// hello at the same time and still have listed it.
func (m *Master) over(a schedule.Attempt) {
	if m.ends[a] {
		return
	}
	if len(m.endList) == rememberOver {
		delete(m.ends, m.endList[0])
		m.endList = m.endList[1:]
	}
	m.ends[a] = true
	m.endList = append(m.endList, a)
}

// failed notes that an attempt failed.
func (m *Master) failed(f *finish) {
	e := f.failure
	text := e.Message
	if e.Panic && e.Stack != "" && !strings.Contains(f.req.Log, e.Stack) {
		text += "\n" + e.Stack
	}
	state := "failed"
	if f.req.Infrastructure {
		state = "lost"
	}
	m.over(f.attempt)
	long := text
	if f.req.Log != "" {
		long += "\n" + f.req.Log
	}
	m.log.Warn("an attempt failed", "attempt", describe(f.attempt), "worker", f.req.Worker, "error", e.Message, "permanent", e.Permanent, "infrastructure", f.req.Infrastructure)
	f.job.end(f.attempt, state, long, m)
	f.reply = &api.FinishReply{Accepted: true}
	f.events = append(f.events, schedule.Failed{
		Attempt: f.attempt, Worker: f.req.Worker, Error: e.Message, Cause: causeText(e), Permanent: e.Permanent, Infrastructure: f.req.Infrastructure,
	})
}

// hasTaken says whether an attempt's result was accepted before: its worker may not have heard of it.
func (j *job) hasTaken(a schedule.Attempt, worker string) bool {
	switch a.Stage {
	case schedule.Plan:
		return j.plan != nil && j.plan.Attempt == a && j.plan.Worker == worker
	case schedule.Map:
		if j.ledger == nil || int64(a.Task) >= int64(len(j.ledger.outputs)) {
			return false
		}
		o := &j.ledger.outputs[a.Task]
		return o.done && o.attempt == a && o.worker == worker
	case schedule.Reduce:
		if int64(a.Task) >= int64(len(j.reduces)) {
			return false
		}
		r := j.reduces[a.Task]
		return r != nil && r.Attempt == a && r.Worker == worker
	case schedule.Commit:
		return j.commit != nil && j.commitBy == a
	}
	return false
}

// maxLanes bounds the lanes of a fold.
const maxLanes = 64

// check says what is wrong with a result. What the scheduler refuses is not looked at.
func (j *job) check(f *finish) error {
	switch f.attempt.Stage {
	case schedule.Plan:
		p := f.plan
		if err := checkGang(p, f.splits.Len()); err != nil {
			return err
		}
		if len(p.Ops) > maxLanes || !p.Grouped && len(p.Ops) == 0 {
			return fmt.Errorf("a plan with %d lanes", len(p.Ops))
		}
		return checkSideInputs(p.SideInputs)
	case schedule.Map:
		if j.plan.Result.Gang != nil && (j.kept == nil || !j.kept.Final) {
			return errors.New("a member of a gang has ended, and what it came to is not kept")
		}
		return j.ledger.check(f.mapped)
	case schedule.Reduce:
		r := f.reduced
		if n := len(r.Check); n != 0 && n != len(j.ledger.ops) {
			return fmt.Errorf("%d checks in a job of %d lanes", n, len(j.ledger.ops))
		}
		if r.Rows < 0 || r.Keys < 0 || f.req.KernelPairs < 0 || f.req.UserPairs < 0 || f.req.PulledPairs < 0 {
			return errors.New("negative counts")
		}
	}
	return nil
}

func (m *Master) takePlan(f *finish) ([]journal.Entry, *schedule.Planned) {
	j := f.job
	p := &journal.Plan{Attempt: f.attempt, Worker: f.req.Worker, Result: *f.plan}
	f.undo = append(f.undo, func() { j.plan, j.splits, j.ledger, j.reduces = nil, nil, nil, nil })
	entries := []journal.Entry{journal.Planned{Job: j.rec.ID, Plan: *p}}
	why := m.tooLarge(f.plan.SideInputs)
	if n := f.plan.Partitions; n > mapreduce.MaxPartitions {
		why = fmt.Sprintf("%d partitions: 1 to %d are possible", n, mapreduce.MaxPartitions)
	}
	if why != "" {
		// The plan is taken all the same: its output was prepared, and is to be removed.
		was := j.ending
		j.ending = &journal.Ending{Reason: why, Cause: schedule.Refused}
		f.undo = append(f.undo, func() { j.ending = was })
		entries = append(entries, journal.Ends{Job: j.rec.ID, Ending: *j.ending})
	}
	m.setPlan(j, p, f.splits)
	if j.ending != nil && !j.ending.Cancelled {
		return entries, nil
	}
	return entries, j.planned()
}

// setPlan gives a job its plan. Sizes that the scheduler will refuse get no room.
func (m *Master) setPlan(j *job, p *journal.Plan, splits *task.Splits) {
	j.plan, j.splits, j.sides = p, splits, sideInputs(p.Result.SideInputs)
	n, parts := len(p.Result.Splits), p.Result.Partitions
	shuffled := shuffleParts(&p.Result)
	outputs := uint64(m.opts.Schedule.MaxOutputs)
	if outputs == 0 {
		outputs = 1 << 22
	}
	if parts < 1 || parts > mapreduce.MaxPartitions || !mulFits(n, shuffled, outputs) {
		n, parts, shuffled = 0, 0, 0
	}
	j.ledger = newLedger(n, shuffled, p.Result.Ops)
	j.reduces = make([]*journal.Reduce, parts)
}

func (m *Master) takeMap(f *finish) []journal.Entry {
	j, l := f.job, f.job.ledger
	rec := journal.Map{Attempt: f.attempt, Worker: f.req.Worker, Result: *f.mapped}
	var reset []uint32
	if old := f.old; old != nil {
		rec.Moved = true
		// What the scheduler is going to begin anew is void in the same write.
		reset = m.state.Changes(schedule.Finished{Attempt: f.attempt, Worker: f.req.Worker, Digests: digests(f.mapped)})
		j.reruns++
		l.remove(old)
		f.undo = append(f.undo, func() { l.add(old); j.reruns-- })
	}
	l.add(&rec)
	if rec.Result.Iteration != nil {
		j.iteration = rec.Result.Iteration
	}
	f.undo = append(f.undo, func() { l.remove(&rec) })
	if j.plan.Result.TotalOrder && !j.totals.Cut && len(f.mapped.Sample) > 0 {
		j.sample(f.mapped.Sample)
	}
	for _, p := range reset {
		if was := j.reduces[p]; was != nil {
			j.void(p)
			f.undo = append(f.undo, func() { j.reduces[p] = was; j.reduced++ })
		}
	}
	return []journal.Entry{journal.Mapped{Job: j.rec.ID, Map: rec, Reset: reset}}
}

// fail has a job end as failed, for a reason that only the master knows.
func (m *Master) fail(j *job, reason string) schedule.Event {
	if j.ending == nil {
		j.ending = &journal.Ending{Reason: reason}
		// Should this not be written, it fails again after a restart.
		if err := m.write(journal.Ends{Job: j.rec.ID, Ending: *j.ending}); err != nil {
			m.log.Warn("the reason of a failure is not in the journal", "job", j.rec.ID, "error", err)
		}
	}
	return schedule.JobCancelled{ID: j.rec.ID, Reason: reason}
}

// oldMap reads the result that a map task has.
func (m *Master) oldMap(j *job, n uint32) (*journal.Map, error) {
	old, err := m.journal.Map(j.rec.ID, n)
	if err != nil {
		return nil, err
	}
	if old.Attempt != j.ledger.outputs[n].attempt {
		return nil, fmt.Errorf("map %d of job %s: the journal has another attempt's result", n, j.rec.ID)
	}
	return old, nil
}

func (m *Master) takeReduce(f *finish) []journal.Entry {
	j, t := f.job, f.attempt.Task
	rec := &journal.Reduce{
		Attempt: f.attempt, Worker: f.req.Worker, Result: *f.reduced,
		Kernel: f.req.KernelPairs, User: f.req.UserPairs, Pulled: f.req.PulledPairs, Scale: slices.Clone(j.ledger.scale),
	}
	if r := j.running[f.attempt]; r != nil && r.scale != nil {
		rec.Scale = r.scale
	}
	was := j.reduces[t]
	j.reduces[t] = rec
	if was == nil {
		j.reduced++
	}
	f.undo = append(f.undo, func() {
		if was == nil {
			j.reduced--
		}
		j.reduces[t] = was
	})
	return []journal.Entry{journal.Reduced{Job: j.rec.ID, Reduce: *rec}}
}

// sample takes in a map task's share of the sample. A share that is taken in twice,
// or of a result that is not written in the end, does no harm: borders are for balance.
func (j *job) sample(b []byte) {
	j.samples = append(j.samples, b)
	if len(j.samples) >= 64 {
		j.mergeSamples()
	}
}

func (j *job) mergeSamples() {
	all, err := task.MergeSamples(j.samples...)
	if err != nil {
		j.note("the sample of keys can't be used, parts are of unequal size: " + err.Error())
		j.samples = nil
		return
	}
	j.samples = [][]byte{all}
}

// settle notes what the map stage as a whole decides, if a batch has changed it.
func (m *Master) settle(j *job) []journal.Entry {
	if j.ledger == nil || j.left {
		return nil
	}
	done := j.ledger.done == j.ledger.maps
	if slices.Equal(j.ledger.scale, j.totals.Scale) && (j.totals.Cut || !done) {
		return nil
	}
	t := j.totals
	t.Scale = slices.Clone(j.ledger.scale)
	if done && !t.Cut {
		t.Cut, t.Mapped = true, time.Now()
		if r := &j.plan.Result; r.TotalOrder && r.Partitions > 1 {
			t.Cuts = j.cuts()
		}
	}
	j.next = &t
	return []journal.Entry{journal.Settled{Job: j.rec.ID, Totals: t}}
}

// cuts are the borders of a total order.
func (j *job) cuts() [][]byte {
	j.mergeSamples()
	var all []byte
	if len(j.samples) > 0 {
		all = j.samples[0]
	}
	cuts, err := task.Cuts(all, j.plan.Result.Partitions)
	if err != nil {
		j.note("the sample of keys can't be used, all keys are in the first part: " + err.Error())
		return make([][]byte, j.plan.Result.Partitions-1)
	}
	return cuts
}
