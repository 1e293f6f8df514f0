// SPDX-License-Identifier: Apache-2.0

package master

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

const (
	maxNotes    = 100
	maxErrorLog = 8 << 10
	// maxHistoryAttempts is how many attempts that did not succeed the history keeps of a job.
	maxHistoryAttempts = 200
)

// job is a job that has not ended, or whose end is not written yet.
type job struct {
	rec    journal.Job
	submit *api.SubmitRequest

	state  api.JobState
	plan   *journal.Plan // nil: not planned yet
	splits *task.Splits
	ledger *ledger // nil: not planned yet

	samples  [][]byte // of map tasks, until there are cuts
	totals   journal.Totals
	next     *journal.Totals   // of a batch that is being written
	reduces  []*journal.Reduce // by part
	reduced  int
	commit   *task.CommitResult
	commitBy schedule.Attempt

	sides      []*api.SideInput // of the plan
	fresh      bool             // the plan was just taken
	spreads    []*spread        // that this master has ordered
	broadcasts []*api.Spreaded  // how they ended
	restored   bool             // it is from the time before this master's start

	// Of iterations.
	kept, keptBefore *journal.State  // what attempts go on from; nil: nothing is kept
	group            *gangGroup      // that this master has ordered and that is not known to be broken
	groups           int             // that were formed, as far as this master knows
	iteration        json.RawMessage // what it came to

	ending  *journal.Ending // it is to end
	history *journal.History
	written bool // history is in the journal
	left    bool // it has ended, but what it left of its output is not removed yet

	running  map[schedule.Attempt]*running
	past     []*past // attempts that are over, oldest first
	dropped  int     // of past
	counts   [5]stageCounts
	launched map[uint32]uint32 // reduce attempts per part in this epoch
	notes    []string
	reruns   int
	resets   int

	changed chan struct{} // closed by touch; nil: nobody waits
}

type stageCounts struct{ failed, lost, speculative int }

// running is an attempt that runs, as far as is known.
type running struct {
	attempt     schedule.Attempt
	worker      string
	speculative bool
	since       time.Duration
	progress    *api.AttemptProgress // nil: none yet
	scale       []uint8              // that a reduce attempt was given; nil: not known
	unsure      bool                 // it may not have been told where all map outputs are when it began
	ready       bool                 // it waits for a group
}

// past is an attempt that is over.
type past struct {
	attempt     schedule.Attempt
	worker      string
	state       string
	err         string
	elapsed     time.Duration
	speculative bool
}

func newJob(rec journal.Job, submit *api.SubmitRequest) *job {
	return &job{
		rec: rec, submit: submit, state: api.JobState_JOB_QUEUED,
		running: map[schedule.Attempt]*running{}, launched: map[uint32]uint32{},
	}
}

// touch tells those who watch the job that it has changed.
func (j *job) touch() {
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// wait returns a channel that is closed when the job changes.
func (j *job) wait() <-chan struct{} {
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.changed
}

func (j *job) note(text string) {
	if len(j.notes) < maxNotes && !slices.Contains(j.notes, text) {
		j.notes = append(j.notes, text)
		j.touch()
	}
}

func (j *job) name() string {
	if j.plan != nil && j.plan.Result.Name != "" {
		return j.plan.Result.Name
	}
	return j.submit.GetProgram().GetName()
}

// shuffleParts is how many partitions the shuffle has: a total order is cut from one.
func shuffleParts(p *task.PlanResult) int {
	if p.TotalOrder {
		return 1
	}
	return p.Partitions
}

// shufflePart is the partition of the shuffle that a part of the output is made of.
func (j *job) shufflePart(part uint32) int {
	if j.plan.Result.TotalOrder {
		return 0
	}
	return int(part)
}

// pulls says whether reduce attempts fetch sorted pairs, rather than have them pushed.
func (j *job) pulls() bool { return j.plan.Result.Grouped || j.plan.Result.TotalOrder }

// planned is the plan for the scheduler.
func (j *job) planned() *schedule.Planned {
	r := &j.plan.Result
	p := &schedule.Planned{Partitions: r.Partitions, Splits: make([]schedule.Split, len(r.Splits)), Gang: r.Gang != nil}
	if r.TotalOrder {
		p.Shuffle = 1
	}
	for i, s := range r.Splits {
		p.Splits[i] = schedule.Split{Path: s.Path, Bytes: s.Bytes}
	}
	return p
}

// digests are those of a map result for the scheduler.
func digests(r *task.MapResult) []uint64 {
	d := make([]uint64, len(r.Parts))
	for i := range d {
		d[i] = digest(&r.Parts[i])
	}
	return d
}

// reset voids the result of a part.
func (j *job) reset(part uint32) {
	j.resets++
	j.void(part)
	j.touch()
}

func (j *job) void(part uint32) {
	if int(part) < len(j.reduces) && j.reduces[part] != nil {
		j.reduces[part] = nil
		j.reduced--
	}
}

// begin notes that an attempt runs.
func (j *job) begin(a schedule.Attempt, worker string, speculative bool, now time.Duration) *running {
	r := &running{attempt: a, worker: worker, speculative: speculative, since: now}
	if speculative {
		j.counts[a.Stage].speculative++
	}
	j.running[a] = r
	if a.Stage == schedule.Plan {
		j.state = api.JobState_JOB_PLANNING
	}
	j.touch()
	return r
}

// end notes that an attempt is over.
func (j *job) end(a schedule.Attempt, state, why string, m *Master) {
	r := j.running[a]
	if r == nil {
		return
	}
	delete(j.running, a)
	switch state {
	case "failed":
		j.counts[a.Stage].failed++
	case "lost":
		j.counts[a.Stage].lost++
	}
	if len(why) > maxErrorLog {
		why = why[:maxErrorLog]
	}
	j.past = append(j.past, &past{a, r.worker, state, why, m.clock.now() - r.since, r.speculative})
	if over := len(j.past) - m.opts.Limits.Attempts; over > m.opts.Limits.Attempts/8 {
		j.past = slices.Delete(j.past, 0, over)
		j.dropped += over
	}
	j.touch()
}

// lostWith notes that the attempts of a worker are lost.
func (j *job) lostWith(worker, why string, m *Master) {
	for a, r := range j.running {
		if r.worker == worker {
			j.end(a, "lost", why, m)
		}
	}
}

// stage notes that a job has come to a stage.
func (m *Master) stage(j *job, s schedule.Stage) {
	switch s {
	case schedule.Plan: // it is queued until an attempt runs
	case schedule.Map:
		j.state = api.JobState_JOB_MAPPING
		if j.fresh {
			j.fresh = false
			m.broadcast(j)
		}
	case schedule.Reduce:
		j.state = api.JobState_JOB_REDUCING
	case schedule.Commit:
		j.state = api.JobState_JOB_COMMITTING
	case schedule.Abort:
		m.aborting(j)
	}
	m.log.Info("a job has come to a stage", "job", j.rec.ID, "stage", s.String())
	j.touch()
}

// aborting notes why a job's output is being removed, so that a restart goes on with that.
func (m *Master) aborting(j *job) {
	e := journal.Ending{Aborting: true}
	if v, ok := m.state.Job(j.rec.ID); ok {
		e.Reason, e.Cause, e.Cancelled = v.Ending, v.Cause, v.Cancelled
	}
	if was := j.ending; was != nil && (e.Cancelled || !was.Cancelled) {
		e.Reason, e.Cause, e.Cancelled = was.Reason, was.Cause, was.Cancelled
	}
	j.ending = &e
	if err := m.write(journal.Ends{Job: j.rec.ID, Ending: e}); err != nil {
		m.log.Warn("the end of a job is not in the journal", "job", j.rec.ID, "error", err)
	}
}

// launch has a worker run an attempt.
func (m *Master) launch(a schedule.Launch) {
	j, w := m.job(a.Attempt.Job), m.workers[a.Worker]
	if j == nil || w == nil {
		return
	}
	r := j.begin(a.Attempt, a.Worker, a.Speculative, m.clock.now())
	l, err := m.order(j, w, a, r)
	if err != nil {
		// It is the job that is wrong: another attempt would be no better.
		m.log.Error("an attempt can't be ordered", "attempt", describe(a.Attempt), "error", err)
		j.end(a.Attempt, "failed", err.Error(), m)
		m.apply(schedule.Failed{Attempt: a.Attempt, Worker: a.Worker, Error: err.Error(), Permanent: true})
		return
	}
	if w.session != nil {
		w.session.launch(l)
	}
}

// order is what a worker is told of an attempt.
func (m *Master) order(j *job, w *worker, a schedule.Launch, r *running) (*api.Launch, error) {
	s := j.submit
	l := &api.Launch{
		Attempt: toAPI(a.Attempt), Program: s.Program, Uploads: s.Uploads, Memory: a.Memory, TimeoutMs: s.TaskTimeoutMs,
		Constants: j.constants(),
	}
	if l.Memory == 0 {
		l.Memory = s.TaskMemory
	}
	if l.TimeoutMs == 0 {
		l.TimeoutMs = m.opts.Limits.TaskTimeout.Milliseconds()
	}
	switch a.Attempt.Stage {
	case schedule.Plan:
		l.SideInputsLimit = m.opts.Limits.SideInputs
		l.Members = uint32(m.gangSize(j))
		return l, nil
	case schedule.Abort:
		if j.plan != nil {
			l.Ticket = j.plan.Result.Ticket
		}
		return l, nil
	}
	if j.plan == nil {
		return nil, fmt.Errorf("%s has no plan", describe(a.Attempt))
	}
	l.Ticket = j.plan.Result.Ticket
	l.Coming = m.coming(j, w)
	if a.Attempt.Stage != schedule.Commit {
		l.SideInputs = j.sides
	}
	t := a.Attempt.Task
	switch a.Attempt.Stage {
	case schedule.Map:
		first, end := int(t), int(t)+1
		if g := j.plan.Result.Gang; g != nil {
			first, end = g.Share(int(t))
			l.Gang = j.gangLaunch(int(t))
		}
		plan, err := j.splits.Share(first, end)
		if err != nil {
			return nil, err
		}
		l.Plan, l.Split = plan, t
	case schedule.Reduce:
		in := j.ledger.input(j.shufflePart(t), m.locate(j))
		in.Part, in.Pull = t, j.pulls()
		j.launched[t]++
		in.Generation = generation(m.Epoch()-j.rec.Epoch, j.launched[t])
		if j.plan.Result.TotalOrder {
			in.Low, in.High = task.Between(j.totals.Cuts, int(t))
		}
		r.scale = append([]uint8{}, j.ledger.scale...) // not nil, though it may be empty: it is known
		r.unsure = slices.ContainsFunc(in.Outputs, func(o *api.MapOutput) bool { return o.Address == "" })
		l.Reduce = in
	case schedule.Commit:
		if err := j.audit(); err != nil {
			return nil, err
		}
		c := task.CommitRequest{Parts: make([]string, len(j.reduces)), Audit: task.Audit{PairsEmitted: j.ledger.totals.emitted}}
		for i, d := range j.reduces {
			c.Parts[i] = d.Result.Name
			c.Audit.Keys += d.Result.Keys
			c.Audit.Rows += d.Result.Rows
		}
		b, err := json.Marshal(&c)
		if err != nil {
			return nil, err
		}
		l.Commit = b
	}
	return l, nil
}

// generation names the target of the nth reduce attempt of a part since the master was restarted for the
// restarts-th time in the job's life. Attempts of a part must never share a target, not even with those of the
// time before this master. Workers take generations below 2^24, since they begin a target anew by themselves; the
// starts of a master are not bounded, but those in the life of one job are few.
func generation(restarts uint64, nth uint32) uint32 { return uint32(restarts&0xff)<<16 | nth&0xffff }

// constants are what does not change while the job lives.
func (j *job) constants() *api.JobConstants {
	c := &api.JobConstants{
		Id: idBytes(j.rec.ID), Secret: j.rec.Secret, SeedA: j.rec.Seed[0], SeedB: j.rec.Seed[1], Shuffle: j.submit.Shuffle,
	}
	if j.plan != nil {
		r := &j.plan.Result
		c.Ops, c.Partitions, c.Parts = r.Ops, uint32(j.ledger.parts), uint32(r.Partitions)
		c.Grouped, c.Suffix = r.Grouped, uint32(r.Suffix)
	}
	return c
}

// address is where peers reach a worker.
func (m *Master) address(id string) string {
	if w := m.workers[id]; w != nil {
		return w.hello.Address
	}
	return ""
}

// locate says where a job's map outputs are.
func (m *Master) locate(j *job) locator {
	return func(task int) (string, string) {
		_, id, _ := m.state.Output(j.rec.ID, uint32(task))
		return id, m.address(id)
	}
}

// relocate tells a reduce attempt where a map output is now.
func (m *Master) relocate(a schedule.Relocate) {
	j, s := m.jobs[a.Reader.Job], m.sessionOf(a.Worker)
	if j == nil || s == nil || j.ledger == nil || int(a.Output.Task) >= j.ledger.maps {
		return
	}
	at := func(int) (string, string) { return a.At, m.address(a.At) }
	s.relocate(a.Reader, j.ledger.mapOutput(j.shufflePart(a.Reader.Task), int(a.Output.Task), at))
}

// audit compares what the map tasks have with what was folded, of the whole job.
func (j *job) audit() error {
	f := make([]folded, j.ledger.parts)
	for part, r := range j.reduces {
		if r == nil {
			return fmt.Errorf("audit failed: part %d has no result", part)
		}
		f[j.shufflePart(uint32(part))].add(j.ledger, r)
	}
	for p := range f {
		if err := j.ledger.balance(p, &f[p]); err != nil {
			return err
		}
	}
	return nil
}

// result is what the submitter's call of Run returns.
func (j *job) result(now time.Time) *mapreduce.Result {
	r := &mapreduce.Result{Job: j.name(), Notes: j.allNotes(), Elapsed: now.Sub(j.rec.Submitted)}
	if j.plan == nil {
		return r
	}
	for i := range j.plan.Result.SideInputs {
		s := &j.plan.Result.SideInputs[i]
		r.SideInputs = append(r.SideInputs, mapreduce.SideInputInfo{Name: s.Name, Size: s.Size})
	}
	t := &j.ledger.totals
	r.Counters, r.Records, r.Bytes, r.Spills, r.Spilled = maps.Clone(j.ledger.counts), t.records, t.bytes, t.spills, t.spilled
	r.Files, r.Splits, r.Parts = j.plan.Result.Files, j.splits.Len(), j.plan.Result.Partitions
	if j.iteration != nil {
		if err := json.Unmarshal(j.iteration, &r.Iteration); err != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("what the iteration came to can't be read: %v", err))
		}
	}
	r.Audit.PairsEmitted, r.Audit.PairsCombined = t.emitted, t.combined
	r.Audit.SumCombined = j.ledger.checkSum()
	f := folded{}
	for _, d := range j.reduces {
		if d != nil {
			f.add(j.ledger, d)
			r.Audit.Keys += d.Result.Keys
			r.Audit.Rows += d.Result.Rows
		}
	}
	// Pieces of sums beyond 64 bits are one pair; see wide.
	r.Audit.PairsFolded = min(f.pairs, t.combined)
	for _, c := range f.check {
		r.Audit.SumFolded += c
	}
	if mapped := j.totals.Mapped; !mapped.IsZero() {
		r.Map = mapped.Sub(j.rec.Submitted)
		r.Drain = now.Sub(mapped)
	}
	return r
}

// allNotes are what the user is to be told.
func (j *job) allNotes() []string {
	var notes []string
	if j.plan != nil {
		notes = append(notes, j.plan.Result.Notes...)
		if n := j.ledger.totals.skipped; n > 0 {
			notes = append(notes, fmt.Sprintf("%d records longer than the limit were skipped", n))
		}
		if n := j.ledger.totals.cut; n > 0 {
			notes = append(notes, fmt.Sprintf("%d records longer than the limit were truncated", n))
		}
	}
	notes = append(notes, j.notes...)
	if j.commit != nil {
		notes = append(notes, j.commit.Notes...)
	}
	return notes
}

// why says what was chosen for the job.
func (j *job) why() []string {
	if j.plan == nil {
		return nil
	}
	r := &j.plan.Result
	why := slices.Clone(r.Why)
	if r.Gang != nil {
		why = append(why, fmt.Sprintf("an iteration: its %d members keep their share of the splits in memory and add vectors up with each other, worker to worker", len(r.Gang.Shares)))
	}
	switch {
	case r.Grouped:
		why = append(why, "grouped: reduce attempts pull sorted runs of the map outputs over TCP and merge them")
	case r.TotalOrder:
		why = append(why, fmt.Sprintf("total order: reduce attempts pull their range of the sorted map outputs over TCP; %d parts are cut by a sample of the keys", r.Partitions))
	default:
		how := "by the kernel where it can, else in user space"
		switch j.submit.Shuffle {
		case "kernel":
			how = "by the kernel alone, as --shuffle asks"
		case "user":
			how = "in user space alone, as --shuffle asks"
		}
		why = append(why, "a fold: pairs travel as frames and are folded on arrival, "+how)
	}
	return why
}

// ended notes that a job is over, and writes it down. Nobody is told before that.
func (m *Master) ended(j *job, a schedule.JobEnded) {
	if j.history != nil {
		return
	}
	state := api.JobState_JOB_DONE
	why, cause := a.Error, a.Cause
	switch e := j.ending; {
	case j.commit != nil:
		why, cause = "", ""
	case a.Cancelled && (e == nil || e.Cancelled):
		state = api.JobState_JOB_CANCELLED
		if e != nil {
			why = e.Reason
		}
	default:
		state = api.JobState_JOB_FAILED
		if e != nil && !e.Cancelled {
			why, cause = e.Reason, e.Cause
		}
	}
	if j.left = a.Left; !j.left {
		m.forgetAll(j)
	}
	now := time.Now()
	for at := range j.running {
		j.end(at, "stopped", "the job is over", m)
	}
	s := m.status(j)
	s.State, s.Error, s.Waiting = state, why, ""
	s.Failure = failureOf(state, cause)
	s.ElapsedMs = now.Sub(j.rec.Submitted).Milliseconds()
	if state == api.JobState_JOB_DONE {
		b, err := json.Marshal(j.result(now))
		if err != nil {
			m.log.Error("a result can't be written as JSON", "job", j.rec.ID, "error", err)
		}
		s.Result = b
	}
	b, err := proto.Marshal(s)
	if err != nil {
		m.log.Error("a status can't be encoded", "job", j.rec.ID, "error", err)
	}
	h := &journal.History{ID: j.rec.ID, Seq: j.rec.Seq, Key: j.rec.Key, User: j.rec.User, Ended: now, Status: b}
	for i := len(j.past) - 1; i >= 0 && len(h.Attempts) < maxHistoryAttempts; i-- {
		if p := j.past[i]; p.state != "done" {
			h.Attempts = append(h.Attempts, journal.Attempt{Attempt: p.attempt, Worker: p.worker, State: p.state, Error: p.err, Elapsed: p.elapsed})
		}
	}
	slices.Reverse(h.Attempts)
	j.history = h
	m.writeEnd(j)
}

// writeEnd writes a job's end; if it can't, it will be tried again.
func (m *Master) writeEnd(j *job) {
	e := journal.Ended{History: *j.history}
	if j.left {
		e.Left = j.leftover()
	}
	if err := m.write(e); err != nil {
		m.unwritten = append(m.unwritten, j)
		m.retryAt = m.clock.now() + retryFull
		return
	}
	j.written = true
	s := &api.JobStatus{}
	if err := proto.Unmarshal(j.history.Status, s); err == nil {
		m.log.Info("a job has ended", "job", j.rec.ID, "name", s.Name, "user", j.rec.User, "state", s.State.String(), "error", s.Error)
	}
	delete(m.jobs, j.rec.ID)
	m.dropStates(j)
	if j.left {
		m.keepLeft(j, e.Left)
	}
	m.remember(j.history)
	j.touch()
}

// remember puts a job into the history, and drops what is too old.
func (m *Master) remember(h *journal.History) {
	at, _ := slices.BinarySearchFunc(m.history, h.Seq, func(h *journal.History, seq uint64) int { return cmp.Compare(h.Seq, seq) })
	m.history = slices.Insert(m.history, at, h)
	m.byID[h.ID] = h
	if len(m.history) > m.opts.Limits.History+m.opts.Limits.History/16 {
		m.prune()
	}
}

// prune drops what is too old, or too much, of the history.
func (m *Master) prune() {
	var drop []journal.History
	over := len(m.history) - m.opts.Limits.History
	oldest := time.Now().Add(-m.opts.Limits.HistoryAge)
	for i, h := range m.history {
		if i < over || h.Ended.Before(oldest) {
			drop = append(drop, journal.History{ID: h.ID, Seq: h.Seq, Key: h.Key, User: h.User})
		}
	}
	if len(drop) == 0 || m.write(journal.Forgotten{Jobs: drop}) != nil {
		return
	}
	for _, h := range drop {
		delete(m.byID, h.ID)
		if m.left[h.ID] != nil {
			m.log.Warn("what a job left of its output is not removed: no worker came that could", "job", h.ID)
			m.forgetAll(m.left[h.ID])
			delete(m.left, h.ID)
			m.apply(schedule.JobForgotten{ID: h.ID})
		}
		if h.Key != "" {
			delete(m.keys, submitKey(h.User, h.Key))
		}
	}
	m.history = slices.DeleteFunc(m.history, func(h *journal.History) bool { return m.byID[h.ID] == nil })
}

// needed lists the blobs that jobs need.
func (m *Master) needed() map[string]bool {
	keep := map[string]bool{}
	for j := range m.allJobs() {
		keep[j.submit.Program.GetBlob()] = true
		for _, u := range j.submit.Uploads {
			keep[u.Blob] = true
		}
		if j.plan != nil {
			for _, s := range j.plan.Result.SideInputs {
				keep[s.Digest] = true
			}
		}
		for _, s := range []*journal.State{j.kept, j.keptBefore} {
			if s != nil {
				keep[s.Digest] = true
			}
		}
	}
	return keep
}

// clean removes what is not needed any more.
func (m *Master) clean() {
	m.prune()
	keep := m.needed()
	since := time.Now().Add(-m.opts.Limits.BlobAge)
	m.work.Go(func() {
		n, err := m.blobs.Collect(since, func(digest string) bool { return keep[digest] })
		if err != nil {
			m.log.Error("old blobs can't be removed", "error", err)
		}
		if n > 0 {
			m.log.Info("old blobs were removed", "blobs", n)
		}
	})
}

// sortedRunning lists the attempts that run, in order.
func (j *job) sortedRunning() []*running {
	return slices.SortedFunc(maps.Values(j.running), func(a, b *running) int {
		return cmp.Or(cmp.Compare(a.attempt.Stage, b.attempt.Stage), cmp.Compare(a.attempt.Task, b.attempt.Task),
			cmp.Compare(a.attempt.Epoch, b.attempt.Epoch), cmp.Compare(a.attempt.Number, b.attempt.Number))
	})
}
