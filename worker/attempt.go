// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/objects"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/shuffle/receive"
	"github.com/quernmr/quern/worker/exchange"
	"github.com/quernmr/quern/worker/process"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// key names an attempt. It is comparable, as the message is not.
type key struct {
	job, stage         string
	stageAttempt, task uint32
	number             uint32
	epoch              uint64
}

func keyOf(a *api.Attempt) key {
	return key{a.GetJob(), a.GetStage(), a.GetStageAttempt(), a.GetTask(), a.GetNumber(), a.GetEpoch()}
}

func (k key) String() string {
	return fmt.Sprintf("%s %s %d, attempt %s", short(k.job), k.stage, k.task, k.name())
}

// name is unique among the attempts of a task.
func (k key) name() string { return fmt.Sprintf("%d-%d-%d", k.epoch, k.stageAttempt, k.number) }

// attempt is one that this worker has: from its launch until the master has taken or refused its result.
type attempt struct {
	w      *Worker
	key    key
	launch *api.Launch
	ctx    context.Context
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when nothing of it is left but what was taken
	moves  *moves        // of map outputs, of reduce attempts

	// Under the worker's lock.
	last   task.Progress
	phase  string // of what is done before there is a child
	counts exchange.Counts
	fresh  bool // there is something new to tell
	lost   map[uint32]*lostOutput
}

// lostOutput is a map output that can't be had, until the master says where it is now.
type lostOutput struct {
	lost *api.OutputLost
	told bool
}

// launch begins an attempt, unless it is here already.
func (w *Worker) launch(l *api.Launch) {
	k := keyOf(l.GetAttempt())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attempts[k] != nil || w.ctx.Err() != nil {
		return
	}
	a := &attempt{w: w, key: k, launch: l, over: make(chan struct{}), moves: newMoves(), phase: "waiting", lost: map[uint32]*lostOutput{}}
	a.ctx, a.cancel = context.WithCancelCause(w.ctx)
	w.attempts[k] = a
	w.wg.Go(a.live)
}

// live is an attempt's whole life.
func (a *attempt) live() {
	w := a.w
	defer func() {
		a.cancel(nil)
		w.mu.Lock()
		delete(w.attempts, a.key)
		w.mu.Unlock()
		close(a.over)
		w.nudgeIdle()
	}()
	log := w.logs.begin(a.launch.GetAttempt())
	r := a.run(log)
	defer r.clean()
	if r.output == nil {
		r.clean() // the master may be away for long
	}
	failed := true
	if a.ctx.Err() == nil {
		failed = r.finish.GetError() != nil
		if failed {
			r.finish.Log = log.Tail(40, 16<<10)
			w.opt.Log.Warn("attempt failed", "attempt", a.key, "error", r.reason, "infrastructure", r.finish.GetInfrastructure())
		}
		switch reply, err := a.offer(r.finish); {
		case err != nil:
			w.opt.Log.Debug("attempt stopped while its result was offered", "attempt", a.key)
		case reply.GetAccepted() && r.output != nil:
			if err := w.ex.Keep(*r.output); err != nil {
				// Whoever asks for it is told that it is gone, and the task is run again.
				w.opt.Log.Error("a map output can't be kept", "attempt", a.key, "error", err)
			}
		case !reply.GetAccepted() && !failed:
			w.opt.Log.Info("result refused", "attempt", a.key, "reason", reply.GetReason())
		}
	}
	w.logs.end(a.launch.GetAttempt(), failed)
}

// result is what an attempt ended with.
type result struct {
	finish *api.FinishRequest
	reason string           // if it failed
	output *exchange.Output // of a map attempt
	dir    string
}

func (r *result) clean() {
	if r.dir != "" {
		_ = removeAll(r.dir) // what stays goes with the worker's folder
	}
}

// run does the attempt's work. Whatever happens, there is something to tell.
func (a *attempt) run(log *process.Log) *result {
	r := &result{finish: &api.FinishRequest{Attempt: a.launch.GetAttempt(), Worker: a.w.id}}
	fail := func(e *task.Error, infrastructure bool) *result {
		r.output = nil
		r.reason = e.Message
		r.finish.Result, r.finish.Infrastructure = nil, infrastructure
		r.finish.Error, _ = json.Marshal(e) // of strings and flags
		return r
	}
	defer func() { _ = log.Close() }() // if it is not complete, its reader is told
	slots := a.w.mapSlots
	if a.launch.GetGang() != nil {
		slots = nil // the others wait for it, and the master knows what runs here
	}
	switch a.key.stage {
	case stageReduce:
		slots = a.w.reduceSlots
	case stageCommit, stageAbort:
		slots = nil // few, short, and many wait for them
	}
	if slots != nil {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-a.ctx.Done():
			return r
		}
	}
	reply, err := a.work(r, log)
	if a.ctx.Err() != nil && reply == nil {
		return r
	}
	if err != nil {
		e, infrastructure := a.explain(err)
		return fail(e, infrastructure)
	}
	if reply.Error != nil {
		if noSpace(reply.Error.Message) && a.w.full() != nil {
			return fail(&task.Error{Message: fmt.Sprintf("%v: %s", a.w.full(), reply.Error.Message)}, true)
		}
		// A run that is damaged was so by this worker's disk.
		return fail(reply.Error, reply.Error.Input != "")
	}
	var what any
	switch {
	case a.key.stage == stagePlan && reply.Plan != nil:
		what = reply.Plan
	case a.key.stage == stageMap && reply.Map != nil:
		what = reply.Map
		if r.output, err = a.output(reply.Map, r.dir); err != nil {
			return fail(&task.Error{Message: err.Error()}, false)
		}
	case a.key.stage == stageReduce && reply.Reduce != nil:
		what = reply.Reduce
	case (a.key.stage == stageCommit || a.key.stage == stageAbort) && reply.Commit != nil:
		what = reply.Commit
	default:
		return fail(&task.Error{Message: "the program answered with the result of another kind of task: build it anew with the workers' version of the library", Permanent: true}, false)
	}
	if r.finish.Result, err = json.Marshal(what); err != nil {
		return fail(&task.Error{Message: "its result can't be sent: " + err.Error()}, false)
	}
	return r
}

// The stages, as attempts name them.
const (
	stagePlan   = "plan"
	stageMap    = "map"
	stageReduce = "reduce"
	stageCommit = "commit"
	stageAbort  = "abort"
)

// own is an error of this worker, not of the job's.
type own struct{ err error }

func (e *own) Error() string { return e.err.Error() }
func (e *own) Unwrap() error { return e.err }

// explain says what an error means for the task.
func (a *attempt) explain(err error) (e *task.Error, infrastructure bool) {
	if full := a.w.full(); full != nil && (errors.Is(err, syscall.ENOSPC) || noSpace(err.Error())) {
		return &task.Error{Message: fmt.Sprintf("%v: %v", full, err)}, true
	}
	if errors.As(err, &e) {
		return e, false
	}
	var p *process.Error
	if errors.As(err, &p) {
		e := &task.Error{Message: p.Message, Permanent: p.Kind == process.Unfit}
		if p.Kind != process.System {
			e.Cause = &task.Cause{Kind: task.KindProgram}
		}
		return e, p.Kind == process.System
	}
	if errors.Is(err, exchange.ErrPermanent) {
		e := &task.Error{Message: err.Error(), Permanent: true}
		if errors.Is(err, receive.ErrOverflow) {
			e.Cause = mapreduce.CauseOf(mapreduce.ErrOverflow) // the same sum overflows in any process
		}
		return e, false
	}
	return &task.Error{Message: err.Error()}, true
}

func noSpace(text string) bool {
	return strings.Contains(text, syscall.ENOSPC.Error()) || strings.Contains(text, syscall.EDQUOT.Error())
}

// full says what to do if there is no room in the worker's folder, nil if there is.
func (w *Worker) full() error {
	if w.opt.Room < 0 {
		return nil
	}
	if free := room(w.folder.path); free < w.opt.Room {
		return fmt.Errorf("worker %s: only %s are free in %s, attempts are begun with %s: make room there",
			w.opt.Name, humanize.IBytes(uint64(free)), w.opt.Dir, humanize.IBytes(uint64(w.opt.Room)))
	}
	return nil
}

// work prepares and runs the child.
func (a *attempt) work(r *result, log *process.Log) (*task.Reply, error) {
	w, l := a.w, a.launch
	if a.key.stage == stageMap || a.key.stage == stageReduce {
		if err := w.full(); err != nil {
			return nil, &own{err}
		}
	}
	kind := task.Kind(a.key.stage)
	switch kind {
	case task.Plan, task.Map, task.Reduce, task.Commit, task.Abort:
	default:
		return nil, &task.Error{Message: fmt.Sprintf("%q is no kind of task that this worker (version %s) knows", kind, w.opt.Version), Permanent: true}
	}
	p := l.GetProgram()
	if p.GetBlob() != "" && p.GetPlatform() != "" && p.GetPlatform() != platform {
		return nil, &task.Error{Message: fmt.Sprintf("the program was built for %s, and worker %s runs %s: build it with GOOS=%s GOARCH=%s", p.GetPlatform(), w.opt.Name, platform, runtime.GOOS, runtime.GOARCH), Permanent: true}
	}
	w.mu.Lock()
	w.folders++
	n := w.folders
	w.mu.Unlock()
	r.dir = filepath.Join(w.folder.path, "attempts", strconv.Itoa(n))
	home, dir, in := filepath.Join(r.dir, "home"), filepath.Join(r.dir, "work"), filepath.Join(r.dir, "in")
	for _, d := range []string{r.dir, home, dir, in} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, &own{fmt.Errorf("the attempt's folder: %w", err)}
		}
	}
	req, err := a.request(dir)
	if err != nil {
		return nil, err
	}
	a.enter("fetching the program")
	spec := process.Spec{
		Binary: w.opt.Quern, WorkDir: p.GetDir(), Dir: home, Log: log,
		Environment: p.GetEnvironment(), Inherit: w.inherited(p), Files: w.opt.Files, Umask: umask,
		Memory: a.memory(), Workers: req.Workers, StallTimeout: stall(kind, time.Duration(l.GetTimeoutMs())*time.Millisecond),
		Request: req, Progress: a.report,
	}
	switch {
	case p.GetBlob() != "":
		path, release, err := w.blobs.get(a.ctx, p.GetBlob(), a.coming(p.GetBlob()))
		if err != nil {
			return nil, fmt.Errorf("the program: %w", err)
		}
		defer release()
		spec.Binary, spec.Args = path, p.GetArgs()
	case p.GetJobFile() != "":
		file := filepath.Join(in, "job.yaml")
		if err := os.WriteFile(file, []byte(p.GetJobFile()), 0o400); err != nil {
			return nil, &own{fmt.Errorf("the job file: %w", err)}
		}
		spec.Args = []string{"run", file}
	default:
		return nil, &task.Error{Message: "the job names no program", Permanent: true}
	}
	for _, u := range l.GetUploads() {
		path, release, err := w.blobs.get(a.ctx, u.GetBlob(), a.coming(u.GetBlob()))
		if err != nil {
			return nil, fmt.Errorf("uploaded file %s: %w", u.GetPath(), err)
		}
		defer release()
		if req.Uploads == nil {
			req.Uploads = map[string]string{}
		}
		req.Uploads[u.GetPath()] = path
	}
	for _, in := range l.GetSideInputs() {
		if in.GetSize() == 0 {
			spec.SideInputs = append(spec.SideInputs, process.SideInput{Name: in.GetName()})
			continue
		}
		c, err := w.blobs.open(a.ctx, in.GetBlob(), a.key.job, a.coming(in.GetBlob()) != "")
		if err != nil {
			return nil, fmt.Errorf("side input %s: %w", in.GetName(), err)
		}
		defer c.release()
		if c.size != in.GetSize() {
			return nil, &own{fmt.Errorf("side input %s has %d bytes, the plan says %d", in.GetName(), c.size, in.GetSize())}
		}
		spec.SideInputs = append(spec.SideInputs, process.SideInput{Name: in.GetName(), File: c.file, Offset: c.offset, Size: c.size})
	}
	if kind == task.Reduce {
		if err := a.gather(req, in); err != nil {
			return nil, err
		}
	}
	if g := l.GetGang(); g != nil && req.Gang != nil {
		m, release, err := a.member(req.Gang, dir)
		if err != nil {
			return nil, err
		}
		well := false
		defer func() { release(well) }()
		spec.Vector, spec.Member = m.file, m.hear
		a.enter("")
		reply, err := process.Run(a.ctx, spec)
		well = err == nil && reply.Map != nil
		return reply, err
	}
	a.enter("")
	reply, err := process.Run(a.ctx, spec)
	if kind == task.Reduce {
		a.w.mu.Lock()
		r.finish.KernelPairs, r.finish.UserPairs, r.finish.PulledPairs = a.counts.Kernel, a.counts.User, a.counts.Pulled
		a.w.mu.Unlock()
	}
	if err == nil && reply.Plan != nil && len(reply.Plan.SideInputs) > 0 {
		if err := a.keepSideInputs(reply.Plan.SideInputs, dir); err != nil {
			return nil, err
		}
	}
	return reply, err
}

// coming returns the attempt's job if a broadcast brings a blob, else "".
func (a *attempt) coming(digest string) string {
	if slices.Contains(a.launch.GetComing(), digest) {
		return a.key.job
	}
	return ""
}

// quiet is how many times as long as others those tasks may take that can't say how far they are: a plan that looks
// through a large input, a commit of thousands of objects.
const quiet = 12

// stall is how long the progress of a child may stand still.
func stall(kind task.Kind, timeout time.Duration) time.Duration {
	if kind == task.Map || kind == task.Reduce || timeout > math.MaxInt64/quiet {
		return timeout
	}
	return quiet * timeout
}

// inherited names the variables of this process that an attempt may see. A ready-made job runs our own code, which reads
// and writes the store with this worker's rights. Somebody's program has those only if the worker's operator says so.
func (w *Worker) inherited(p *api.Program) []string {
	if p.GetBlob() != "" {
		return slices.Concat(objects.Places(), w.opt.Inherit)
	}
	return slices.Concat(objects.Environment(), w.opt.Inherit)
}

// umask of children: what they make for others to read can be read.
const umask = 0o022

// memory is how many bytes the attempt's processes may take.
func (a *attempt) memory() int64 {
	if m := a.launch.GetMemory(); m > 0 {
		return m
	}
	return a.w.opt.Memory / int64(2*a.w.opt.Slots) // as many map attempts as reduce attempts
}

// request is what the child is asked to do.
func (a *attempt) request(dir string) (*task.Request, error) {
	l := a.launch
	c := l.GetConstants()
	req := &task.Request{
		Protocol: task.Protocol, Kind: task.Kind(a.key.stage), Job: a.key.job, Call: int(l.GetProgram().GetCall()), Dir: dir,
		Memory: task.Budget(a.memory()), Workers: max(1, runtime.GOMAXPROCS(0)/a.w.opt.Slots),
		Plan: l.GetPlan(), Ticket: l.GetTicket(),
		Constants: task.Constants{Seed: [2]uint64{c.GetSeedA(), c.GetSeedB()}, Partitions: int(c.GetPartitions()), Parts: int(c.GetParts())},
	}
	for i, b := range l.GetProgram().GetEarlier() {
		var r task.CallResult
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, &task.Error{Message: fmt.Sprintf("the result of call %d of Run can't be read: %v", i, err), Permanent: true}
		}
		req.Earlier = append(req.Earlier, r)
	}
	switch req.Kind {
	case task.Plan:
		req.SideInputsLimit, req.Members = l.GetSideInputsLimit(), int(l.GetMembers())
	case task.Map:
		req.Map = &task.MapRequest{Split: int(l.GetSplit())}
		if g := l.GetGang(); g != nil {
			req.Gang = &task.GangRequest{Size: int(g.GetSize()), First: int(g.GetFirst()), Splits: int(g.GetSplits())}
			req.Workers = runtime.GOMAXPROCS(0) // one member a worker, as a rule
		}
	case task.Reduce:
		in := l.GetReduce()
		req.Reduce = &task.ReduceRequest{
			Part: int(in.GetPart()), Attempt: a.key.name(), NoKeys: in.GetNoKeys(),
			Pairs: in.GetPairs(), Check: in.GetCheck(), Scale: in.GetScale(),
		}
	case task.Commit:
		req.Commit = &task.CommitRequest{}
		if err := json.Unmarshal(l.GetCommit(), req.Commit); err != nil {
			return nil, &task.Error{Message: "what is to be committed can't be read: " + err.Error(), Permanent: true}
		}
	}
	return req, nil
}

// member prepares an attempt that is a member of a gang. release is to be told whether it came to its end.
func (a *attempt) member(req *task.GangRequest, dir string) (m *gangMember, release func(well bool), err error) {
	m, err = a.w.gangs.join(a, dir)
	if err != nil {
		return nil, nil, err
	}
	release = func(well bool) { a.w.gangs.leave(m, well) }
	if s := a.launch.GetGang().GetState(); s != nil {
		path, done, err := a.w.blobs.get(a.ctx, s.GetBlob(), "")
		if err != nil {
			release(false)
			return nil, nil, fmt.Errorf("the state that was kept: %w", err)
		}
		m.releases = append(m.releases, done)
		req.State = &task.State{Rounds: int(s.GetRounds()), Final: s.GetFinal(), Path: path}
	}
	return m, release, nil
}

// gather gets the input of a reduce attempt here.
func (a *attempt) gather(req *task.Request, dir string) error {
	a.enter("gathering")
	a.w.settle(a.ctx, attemptsOf(a.launch.GetReduce().GetOutputs())...)
	moved := make(chan *api.MapOutput)
	ctx, done := context.WithCancel(a.ctx)
	defer done()
	go a.moves.pump(ctx, func(o *api.MapOutput) bool {
		a.w.settle(ctx, o.GetAttempt())
		select {
		case moved <- o:
			return true
		case <-ctx.Done():
			return false
		}
	})
	g, err := a.w.ex.Gather(a.ctx, exchange.Gather{
		Attempt: a.launch.GetAttempt(), Constants: a.launch.GetConstants(), Input: a.launch.GetReduce(),
		Dir: dir, Memory: req.Memory, Moved: moved, Lost: a.missing, Progress: a.count,
	})
	if err != nil {
		return fmt.Errorf("getting its input: %w", err)
	}
	a.count(g.Counts)
	a.w.mu.Lock()
	clear(a.lost)
	a.w.mu.Unlock()
	req.Reduce.Runs, req.Reduce.Folded = g.Runs, g.Folded
	if in := a.launch.GetReduce(); len(in.GetLow()) > 0 || len(in.GetHigh()) > 0 {
		// How much of a partition lies between two keys is known from here on; the master
		// holds all its parts together to what the map tasks said.
		req.Reduce.Pairs, req.Reduce.Check = g.Pairs, nil
	}
	return nil
}

// output is what a map attempt left.
func (a *attempt) output(m *task.MapResult, dir string) (*exchange.Output, error) {
	o := &exchange.Output{Attempt: a.launch.GetAttempt(), Constants: a.launch.GetConstants(), Scale: m.Scale, Parts: m.Parts}
	if want := int(a.launch.GetConstants().GetPartitions()); len(m.Parts) != want {
		return nil, fmt.Errorf("the program described %d partitions, the job has %d: build it anew with the workers' version of the library", len(m.Parts), want)
	}
	if m.Run == "" {
		return o, nil
	}
	if m.Run != filepath.Base(m.Run) || m.Run == "." || m.Run == ".." {
		return nil, fmt.Errorf("the program left its pairs in %q, which is no file of its folder", m.Run)
	}
	o.Path = filepath.Join(dir, "work", m.Run)
	if st, err := os.Lstat(o.Path); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("the program says that it left its pairs in file %q, which is not there", m.Run)
	}
	return o, nil
}

func (a *attempt) enter(phase string) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.phase, a.fresh = phase, true
}

// report takes the child's progress.
func (a *attempt) report(p task.Progress) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.fresh = a.fresh || p != a.last
	a.last = p
}

// count takes how many pairs have come.
func (a *attempt) count(c exchange.Counts) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.fresh = a.fresh || c != a.counts
	a.counts = c
}

// missing takes that a map output can't be had.
func (a *attempt) missing(o *api.OutputLost) {
	a.w.mu.Lock()
	a.lost[o.GetMapTask()] = &lostOutput{lost: o}
	a.w.mu.Unlock()
	a.w.nudge()
}

// repeat has all be told once more that a new master may not know. The caller holds the lock.
func (a *attempt) repeat() {
	a.fresh = true
	for _, o := range a.lost {
		o.told = false
	}
}

// progress is what the master is told. The caller holds the lock.
func (a *attempt) progress() *api.AttemptProgress {
	phase, done := a.phase, a.last.Done
	if phase == "" {
		phase = a.last.Phase
	}
	if a.key.stage == stageReduce {
		// Half of the work is to get the input here.
		done /= 2
		if n := a.launch.GetReduce().GetPairs(); n > 0 {
			done += min(1, float64(a.counts.Kernel+a.counts.User+a.counts.Pulled)/float64(n)) / 2
		}
	}
	return &api.AttemptProgress{
		Attempt: a.launch.GetAttempt(), Done: done, Bytes: a.last.Bytes, Records: a.last.Records, Rows: a.last.Rows,
		Phase: phase, KernelPairs: a.counts.Kernel, UserPairs: a.counts.User,
		Round: uint64(max(0, a.last.Round)), Rounds: uint64(max(0, a.last.Rounds)),
	}
}

const (
	// finishWait is how long a master may take to take a result: it writes its journal.
	finishWait = time.Minute
	// maxOffer is the longest wait until a result is offered again.
	maxOffer = 5 * time.Second
)

// offer asks the master to take the result, for as long as it takes. The error is that of
// an attempt that was stopped.
func (a *attempt) offer(req *api.FinishRequest) (*api.FinishReply, error) {
	w := a.w
	pause := w.opt.pause
	for {
		l, err := w.current(a.ctx)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(l.ctx, finishWait)
		stop := context.AfterFunc(a.ctx, cancel)
		reply, err := l.client.Finish(ctx, req)
		stop()
		cancel()
		if err == nil {
			return reply, nil
		}
		if a.ctx.Err() != nil {
			return nil, context.Cause(a.ctx)
		}
		w.opt.Log.Warn("a result could not be offered, it is kept", "attempt", a.key, "error", err)
		switch status.Code(err) {
		case codes.InvalidArgument, codes.ResourceExhausted, codes.OutOfRange:
			// No master will ever take this.
			if req.GetError() == nil {
				e, _ := json.Marshal(&task.Error{Message: fmt.Sprintf("its result of %s is not taken by the master: %s", humanize.IBytes(uint64(len(req.GetResult()))), status.Convert(err).Message()), Permanent: true})
				req = &api.FinishRequest{Attempt: req.GetAttempt(), Worker: req.GetWorker(), Error: e}
			} else {
				req.Log = ""
			}
		}
		select {
		case <-time.After(pause):
		case <-a.ctx.Done():
			return nil, context.Cause(a.ctx)
		}
		pause = min(2*pause, maxOffer)
	}
}

// blobError says whether a failed transfer is to be gone on with.
func blobError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	switch status.Code(err) {
	case codes.NotFound, codes.InvalidArgument:
		return &task.Error{Message: "the master does not have it: " + status.Convert(err).Message(), Permanent: true}
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unknown:
		return errBroken
	}
	return err
}
