// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/blobs"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// The map tasks of an iteration are a gang: they reduce vectors with each other, worker to worker. The master
// says who belongs together: when all of them are ready it has one of the workers form a group, and when one is lost it has the others leave it.
// A master that is started anew hears from the workers how their members stand. Rounds don't come here, and the state now and then.

// gangGroup is a group that this master has ordered.
type gangGroup struct {
	generation uint64
	members    []schedule.GangMember // by task
	order      *api.GangForm         // its first worker forms it
	formed     bool
	token      uint64
	kernel     bool
}

// workers are those that have members, the one that has the first member first.
func (m *Master) gangWorkers(members []schedule.GangMember) (list []*api.GangWorker) {
	seen := map[string]bool{}
	for _, x := range members {
		w := m.workers[x.Worker]
		if w == nil || seen[w.id] {
			continue
		}
		seen[w.id] = true
		list = append(list, &api.GangWorker{Worker: w.id, Address: w.hello.Address, Name: short(w.hello.Name, maxName)})
	}
	return list
}

// formGang has a group formed.
func (m *Master) formGang(a schedule.GangForm) {
	j := m.jobs[a.Job]
	if j == nil {
		return
	}
	g := &gangGroup{generation: a.Generation, members: a.Members}
	g.order = &api.GangForm{Job: a.Job, Generation: a.Generation, Constants: j.constants(), Workers: m.gangWorkers(a.Members)}
	j.group = g
	for _, x := range a.Members {
		if r := j.running[x.Attempt]; r != nil {
			r.ready = false
		}
	}
	if len(g.order.Workers) == 1 { // who has all members needs nobody
		m.gangFormed(m.workers[g.order.Workers[0].Worker], &api.GangFormed{Job: a.Job, Generation: a.Generation})
		return
	}
	if s := m.sessionOf(g.order.Workers[0].Worker); s != nil {
		s.formGang(g.order)
	}
}

// gangFormed takes how the forming of a group has ended.
func (m *Master) gangFormed(w *worker, r *api.GangFormed) {
	j := m.jobs[r.GetJob()]
	if j == nil || j.group == nil || j.group.generation != r.Generation || j.group.formed || j.group.order.Workers[0].Worker != w.id {
		return
	}
	if r.Error != "" {
		m.log.Warn("a group can't be formed", "job", j.rec.ID, "group", r.Generation, "error", r.Error)
		j.group = nil
		m.apply(schedule.GangFormed{Job: j.rec.ID, Generation: r.Generation, Error: short(r.Error, maxName)})
		return
	}
	g := j.group
	g.formed, g.token, g.kernel = true, r.Token, r.Kernel
	j.groups++
	m.log.Info("a group is formed", "job", j.rec.ID, "group", g.generation, "members", len(g.members), "workers", len(g.order.Workers), "kernel", g.kernel)
	for _, to := range g.order.Workers {
		m.tellGroup(j, to.Worker)
	}
	j.touch()
	m.apply(schedule.GangFormed{Job: j.rec.ID, Generation: r.Generation})
}

// tellGroup tells a worker that its members' group is there.
func (m *Master) tellGroup(j *job, worker string) {
	g, s := j.group, m.sessionOf(worker)
	if s == nil {
		return // it is told when it says hello
	}
	o := &api.GangGroup{Job: j.rec.ID, Generation: g.generation, Token: g.token, Size: uint32(len(g.members))}
	for _, x := range g.members {
		if x.Worker == worker {
			o.Members = append(o.Members, toAPI(x.Attempt))
		}
	}
	s.gangGroup(o)
}

// breakGang has workers leave a group.
func (m *Master) breakGang(a schedule.GangBreak) {
	j := m.jobs[a.Job]
	if j == nil {
		return
	}
	workers := slices.Clone(a.Workers)
	if g := j.group; g != nil && g.generation <= a.Generation {
		j.group = nil
		// Who has lost its members may have formed it.
		for _, w := range g.order.Workers {
			if !slices.Contains(workers, w.Worker) {
				workers = append(workers, w.Worker)
			}
		}
	}
	if j.state == api.JobState_JOB_MAPPING && (j.kept == nil || !j.kept.Final) {
		m.log.Warn("a group is broken", "job", a.Job, "group", a.Generation, "reason", a.Reason)
		j.note("its members came apart, and together again: " + short(a.Reason, maxName))
	}
	for _, id := range workers {
		if s := m.sessionOf(id); s != nil {
			s.breakGang(&api.GangBreak{Job: a.Job, Generation: a.Generation, Reason: short(a.Reason, maxName)})
		}
	}
	j.touch()
}

// gangMember takes how a member stands.
func (m *Master) gangMember(w *worker, g *api.GangMember) schedule.Event {
	at, ok := fromAPI(g.Attempt)
	j := m.jobs[at.Job]
	if !ok || j == nil {
		return nil
	}
	r := j.running[at]
	if r == nil || r.worker != w.id || j.plan == nil || j.plan.Result.Gang == nil || at.Stage != schedule.Map {
		return nil
	}
	j.touch()
	if !g.Ready {
		return schedule.GangJoined{Attempt: at, Worker: w.id, Generation: g.Generation}
	}
	r.ready = true
	m.tellOver(j, r)
	return schedule.GangReady{Attempt: at, Worker: w.id, Generation: g.Generation, Rounds: g.Rounds, Broken: short(g.Broken, maxName)}
}

// tellOver tells a member that waits for a group that there is nothing left to be done.
func (m *Master) tellOver(j *job, r *running) {
	if s := m.sessionOf(r.worker); s != nil && r.ready && j.kept != nil && j.kept.Final {
		s.gangOver(&api.GangOver{Job: j.rec.ID, State: apiState(j.kept)})
	}
}

// gangAgain tells a worker that has come back what it may not have heard of groups.
func (m *Master) gangAgain(w *worker) {
	for _, j := range m.jobs {
		g := j.group
		switch {
		case g == nil:
		case g.formed && slices.ContainsFunc(g.members, func(x schedule.GangMember) bool { return x.Worker == w.id }):
			m.tellGroup(j, w.id)
		case !g.formed && g.order.Workers[0].Worker == w.id && w.session != nil:
			w.session.formGang(g.order)
		}
	}
}

// gangSize is how many members a job's gang may have: as many as there are workers that could each take one.
func (m *Master) gangSize(j *job) int {
	n := max(1, min(len(m.audience(j, nil)), task.MaxMembers))
	if most := int(j.submit.MaxSlots); most > 0 {
		n = min(n, most)
	}
	return n
}

// gangLaunch is what a member is told.
func (j *job) gangLaunch(member int) *api.GangLaunch {
	first, _ := j.plan.Result.Gang.Share(member)
	l := &api.GangLaunch{Size: uint32(len(j.plan.Result.Gang.Shares)), First: uint32(first), Splits: uint32(j.splits.Len())}
	if j.kept != nil {
		l.State = apiState(j.kept)
	}
	return l
}

func apiState(s *journal.State) *api.GangState {
	return &api.GangState{Rounds: s.Rounds, Final: s.Final, Blob: s.Digest, Size: s.Size}
}

// KeepState implements api.AttendanceServer.
func (a attendance) KeepState(ctx context.Context, r *api.KeepStateRequest) (*api.KeepStateReply, error) {
	m := a.m
	at, ok := fromAPI(r.Attempt)
	if !ok {
		return nil, status.Error(codes.InvalidArgument, "a state of no attempt")
	}
	if err := blobs.Check(r.Digest); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "a state: %v", err)
	}
	size, missing := m.blobs.Size(r.Digest)
	if missing == nil && size != r.Size {
		missing = fmt.Errorf("%w: it has %d bytes, not %d", blobs.ErrMissing, size, r.Size)
	}
	reply := &api.KeepStateReply{}
	var err error
	if e := m.do(ctx, func() { reply.Refused, err = m.keepState(at, r, missing) }); e != nil {
		return nil, e
	}
	return reply, err
}

// keepState has a state be what attempts go on from. It is refused if they can't. missing is what is wrong with its
// blob: nobody need store it before it is known to be wanted.
func (m *Master) keepState(at schedule.Attempt, r *api.KeepStateRequest, missing error) (refused string, err error) {
	j := m.jobs[at.Job]
	if j == nil || j.history != nil || j.plan == nil || j.plan.Result.Gang == nil {
		return "the job has ended, or is no iteration", nil
	}
	if run := j.running[at]; run == nil || run.worker != r.Worker || at.Stage != schedule.Map {
		return "the attempt was stopped, or is held to be lost", nil
	}
	s := &journal.State{Rounds: r.Rounds, Final: r.Final, Digest: r.Digest, Size: r.Size}
	if old := j.kept; old != nil && (old.Final || !r.Final && old.Rounds >= r.Rounds) {
		if missing == nil {
			m.dropState(s)
		}
		return "", nil
	}
	if missing == nil {
		_, missing = m.blobs.Size(r.Digest) // another job with the same state may just have had it removed
	}
	if errors.Is(missing, blobs.ErrMissing) {
		return "", status.Errorf(codes.FailedPrecondition, "the state (blob %s) is not at the master: store it, and offer it again", r.Digest)
	} else if missing != nil {
		return "", blobError(missing)
	}
	if j.kept != nil {
		s.Before = j.kept.Digest
	}
	if err := m.write(journal.Kept{Job: at.Job, State: *s}); err != nil {
		return "", status.Errorf(codes.Unavailable, "%v; the state is not kept: offer it again", err)
	}
	// Somebody may just be told to fetch the one before.
	older := j.keptBefore
	j.kept, j.keptBefore = s, j.kept
	m.dropState(older)
	j.touch()
	if s.Final {
		m.log.Info("an iteration has come to its end", "job", at.Job, "rounds", s.Rounds, "bytes", s.Size)
		for _, run := range j.running {
			m.tellOver(j, run)
		}
		m.apply(schedule.GangDone{Job: at.Job})
	}
	return "", nil
}

// dropState removes the blob of a state, unless somebody needs it. It would be collected in time; but there may be a large one a
// second.
func (m *Master) dropState(s *journal.State) {
	if s == nil || m.needed()[s.Digest] {
		return
	}
	if err := m.blobs.Remove(s.Digest); err != nil {
		m.log.Warn("the state of an iteration stays for a while", "blob", s.Digest, "error", err)
	}
}

// dropStates removes those of a job that has ended.
func (m *Master) dropStates(j *job) {
	states := []*journal.State{j.kept, j.keptBefore}
	j.kept, j.keptBefore = nil, nil
	for _, s := range states {
		m.dropState(s)
	}
}

// iterationStatus is how far an iteration is; nil if the job is none.
func (m *Master) iterationStatus(j *job) *api.IterationStatus {
	if j.plan == nil || j.plan.Result.Gang == nil {
		return nil
	}
	s := &api.IterationStatus{Members: uint32(len(j.plan.Result.Gang.Shares)), Rounds: uint64(max(0, j.plan.Result.Gang.Rounds))}
	for at, r := range j.running {
		if p := r.progress; p != nil && at.Stage == schedule.Map {
			s.Round = max(s.Round, p.Round)
		}
	}
	if k := j.kept; k != nil {
		s.Kept, s.Final = k.Rounds, k.Final
		s.Round = max(s.Round, k.Rounds)
	}
	if v, ok := m.state.Job(j.rec.ID); ok && v.Gang != nil {
		s.Together, s.Waiting = v.Gang.Together, uint32(v.Gang.Ready)
		j.groups = max(j.groups, v.Gang.Groups)
	}
	s.Groups = uint32(j.groups)
	return s
}

// checkGang says what is wrong with a plan whose map tasks are a gang, or with its splits if they are none.
func checkGang(p *task.PlanResult, splits int) error {
	if p.Gang == nil {
		if splits != len(p.Splits) {
			return fmt.Errorf("a plan of %d splits that lists %d", splits, len(p.Splits))
		}
		return nil
	}
	if err := p.Gang.Check(splits); err != nil {
		return err
	}
	if len(p.Gang.Shares) != len(p.Splits) {
		return fmt.Errorf("a plan of %d members that lists %d", len(p.Gang.Shares), len(p.Splits))
	}
	return nil
}
