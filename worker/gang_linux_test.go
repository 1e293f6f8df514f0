// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"golang.org/x/sys/unix"
)

// gang is a gang's job as a test drives it.
type gang struct {
	*job
	at      []*api.Attempt // by member
	workers []*running
}

// gang plans an iteration, and launches a member at each of the workers that are given.
func (m *master) gang(workers ...*running) (*gang, string) {
	m.t.Helper()
	j, out := m.job("iterate")
	g := &gang{job: j, workers: workers}
	l := &api.Launch{Attempt: j.attempt("plan", 0), Members: uint32(len(workers))}
	plan := &task.PlanResult{}
	j.ok(j.launch(workers[0], l), plan)
	j.plan = plan
	if plan.Gang == nil || len(plan.Gang.Shares) != len(workers) || len(plan.Splits) != len(workers) {
		m.t.Fatalf("%+v", plan)
	}
	id := []byte{0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	j.constants = &api.JobConstants{
		Id: id, Secret: []byte("0123456789abcdef"), SeedA: 7, SeedB: 8, Partitions: uint32(plan.Partitions), Parts: uint32(plan.Partitions), Grouped: true, Shuffle: "user",
	}
	for i := range workers {
		g.at = append(g.at, g.member(i, nil))
	}
	return g, out
}

// member launches a member.
func (g *gang) member(i int, state *api.GangState) *api.Attempt {
	g.m.t.Helper()
	splits, err := task.ParsePlan(g.plan.Plan)
	if err != nil {
		g.m.t.Fatal(err)
	}
	first, end := g.plan.Gang.Share(i)
	part, err := splits.Share(first, end)
	if err != nil {
		g.m.t.Fatal(err)
	}
	return g.launch(g.workers[i], &api.Launch{
		Attempt: g.attempt("map", i), Plan: part, Split: uint32(i),
		Gang: &api.GangLaunch{Size: uint32(len(g.workers)), First: uint32(first), Splits: uint32(splits.Len()), State: state},
	})
}

// ready waits until all members wait, after a generation.
func (g *gang) ready(generation uint64, least int64) {
	g.m.t.Helper()
	for _, at := range g.at {
		wait(g.m.t, "members are ready", func() bool {
			return g.m.some(func(w *api.WorkerMessage) bool {
				return slices.ContainsFunc(w.GetMembers(), func(x *api.GangMember) bool {
					return keyOf(x.GetAttempt()) == keyOf(at) && x.GetReady() && x.GetGeneration() == generation && x.GetRounds() >= least
				})
			})
		})
	}
}

// form has the first worker form a group.
func (g *gang) form(generation uint64) *api.GangFormed {
	g.m.t.Helper()
	o := &api.GangForm{Job: g.id, Generation: generation, Constants: g.constants}
	for _, w := range g.distinct() {
		o.Workers = append(o.Workers, &api.GangWorker{Worker: w.ID(), Address: w.opt.Address, Name: w.opt.Name})
	}
	g.m.send(g.workers[0].ID(), &api.MasterMessage{GangForm: []*api.GangForm{o}})
	var f *api.GangFormed
	wait(g.m.t, "a group is formed", func() bool {
		return g.m.some(func(w *api.WorkerMessage) bool {
			for _, x := range w.GetFormed() {
				if x.GetJob() == g.id && x.GetGeneration() == generation {
					f = x
				}
			}
			return f != nil
		})
	})
	return f
}

func (g *gang) distinct() (all []*running) {
	for _, w := range g.workers {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// enter tells the workers that the group is there.
func (g *gang) enter(generation, token uint64) {
	g.m.t.Helper()
	for _, w := range g.distinct() {
		o := &api.GangGroup{Job: g.id, Generation: generation, Token: token, Size: uint32(len(g.workers))}
		for i, at := range g.at {
			if g.workers[i] == w {
				o.Members = append(o.Members, at)
			}
		}
		g.m.send(w.ID(), &api.MasterMessage{GangGroup: []*api.GangGroup{o, o}}) // the second one is nothing new
	}
}

// breakUp ends a group.
func (g *gang) breakUp(generation uint64) {
	g.m.t.Helper()
	for _, w := range g.distinct() {
		g.m.send(w.ID(), &api.MasterMessage{GangBreak: []*api.GangBreak{{Job: g.id, Generation: generation, Reason: "the test wants it"}}})
	}
}

// round waits until some member has done so many rounds.
func (g *gang) round(n uint64) {
	g.m.t.Helper()
	wait(g.m.t, "rounds are done", func() bool {
		return g.m.some(func(w *api.WorkerMessage) bool {
			return slices.ContainsFunc(w.GetProgress(), func(p *api.AttemptProgress) bool { return p.GetRound() >= n && p.GetRounds() == 150 })
		})
	})
}

// finish waits for the members' results, reduces and commits, and compares with what the program does alone.
func (g *gang) finish(out string) {
	t := g.m.t
	t.Helper()
	for i, at := range g.at {
		r := &task.MapResult{}
		g.ok(at, r)
		if (r.Iteration != nil) != (i == 0) || (r.Emitted == 3) != (i == 0) {
			t.Errorf("member %d emitted %d, says %s", i, r.Emitted, r.Iteration)
		}
		g.maps = append(g.maps, r)
		g.outputs = append(g.outputs, &api.MapOutput{Task: uint32(i), Attempt: at, Worker: g.workers[i].ID(), Address: g.workers[i].opt.Address})
	}
	var parts []*task.ReduceResult
	for p := range g.plan.Partitions {
		r := &task.ReduceResult{}
		g.ok(g.launch(g.workers[0], g.reduceLaunch(p)), r)
		parts = append(parts, r)
	}
	g.commit(g.workers[0], parts)
	lone := filepath.Join(t.TempDir(), "lone")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, lines([]byte(g.program.GetJobFile()))[0], lone)
	cmd.Env = append(os.Environ(), "PROGRAM=iterate")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	names, err := filepath.Glob(filepath.Join(lone, "*"))
	if err != nil || len(names) != 3 {
		t.Fatalf("%q, %v", names, err)
	}
	for _, name := range names {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(out, filepath.Base(name)))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, want %q; %v", filepath.Base(name), got, want, err)
		}
	}
	for _, w := range g.distinct() {
		g.m.send(w.ID(), &api.MasterMessage{Forget: []string{g.id}})
		wait(t, "it is forgotten", func() bool {
			w.gangs.mu.Lock()
			defer w.gangs.mu.Unlock()
			return len(w.gangs.jobs) == 0
		})
	}
}

// Three members at two workers iterate, come apart, together again, and to the end; meanwhile the master is away.
func TestGang(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	g, out := m.gang(a, a, b)
	g.ready(0, -1)
	f := g.form(1)
	if f.GetError() != "" || f.GetToken() == 0 || f.GetKernel() {
		t.Fatal(f)
	}
	g.enter(1, f.GetToken())
	g.round(10)
	g.breakUp(1)
	g.ready(1, 10)
	g.enter(1, f.GetToken()) // it is late
	f = g.form(2)
	g.enter(2, f.GetToken())
	for _, w := range []*running{a, b} {
		wait(t, "its members are in the group", func() bool { // they are not told again here
			w.gangs.mu.Lock()
			defer w.gangs.mu.Unlock()
			j := w.gangs.jobs[g.id]
			for m := range j.members {
				if m.group == nil || m.generation != 2 {
					return false
				}
			}
			return true
		})
	}

	// A master that is started anew hears how they stand.
	m.stop()
	m.mu.Lock()
	m.hellos = nil
	m.mu.Unlock()
	m.start(m.address)
	wait(t, "both say hello", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.hellos) >= 2
	})
	m.mu.Lock()
	seen := map[uint32]bool{}
	for _, h := range m.hellos {
		for _, x := range h.GetMembers() {
			seen[x.GetAttempt().GetTask()] = true
			if x.GetReady() || x.GetGeneration() != 2 {
				t.Errorf("%v", x)
			}
		}
	}
	m.mu.Unlock()
	if len(seen) != 3 {
		t.Errorf("%d members were told", len(seen))
	}
	g.finish(out)
	m.mu.Lock()
	defer m.mu.Unlock()
	finals := 0
	for _, s := range m.states {
		if s.GetFinal() {
			finals++
		}
	}
	if finals != 3 || finals == len(m.states) {
		t.Errorf("%d of %d states that were kept are last ones", finals, len(m.states))
	}
}

// A member's process that is killed has the others wait anew; the next one goes on from what is kept. One that waits when
// all is over gets what it came to.
func TestGangLosesMember(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	g, out := m.gang(a, b)
	g.ready(0, -1)
	g.enter(1, g.form(1).GetToken())
	wait(t, "a state is kept", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.states) > 0
	})
	b.Worker.stop(g.at[1], "the test wants it")
	wait(t, "the other one waits", func() bool {
		return m.some(func(w *api.WorkerMessage) bool {
			return slices.ContainsFunc(w.GetMembers(), func(x *api.GangMember) bool {
				return keyOf(x.GetAttempt()) == keyOf(g.at[0]) && x.GetReady() && x.GetGeneration() == 1 && x.GetBroken() != ""
			})
		})
	})
	g.breakUp(1)
	m.mu.Lock()
	s := m.states[0]
	m.mu.Unlock()
	g.at[1] = g.member(1, &api.GangState{Rounds: s.GetRounds(), Blob: s.GetDigest(), Size: s.GetSize()})
	wait(t, "it is ready with the state", func() bool {
		return m.some(func(w *api.WorkerMessage) bool {
			return slices.ContainsFunc(w.GetMembers(), func(x *api.GangMember) bool {
				return keyOf(x.GetAttempt()) == keyOf(g.at[1]) && x.GetReady() && x.GetRounds() == int64(s.GetRounds())
			})
		})
	})
	g.enter(2, g.form(2).GetToken())
	g.finishOne(0)
	wait(t, "the last state is kept", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return slices.ContainsFunc(m.states, (*api.KeepStateRequest).GetFinal)
	})
	g.finish(out)
}

// finishOne waits for a member's result.
func (g *gang) finishOne(i int) {
	g.m.t.Helper()
	g.ok(g.at[i], &task.MapResult{})
}

// Who waits when another one has come to the end is given that.
func TestGangIsOver(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	g, out := m.gang(a, b)
	g.ready(0, -1)
	g.enter(1, g.form(1).GetToken())
	g.finishOne(0)
	g.finishOne(1)
	m.mu.Lock()
	i := slices.IndexFunc(m.states, (*api.KeepStateRequest).GetFinal)
	s := m.states[i]
	m.mu.Unlock()
	state := &api.GangState{Rounds: s.GetRounds(), Final: true, Blob: s.GetDigest(), Size: s.GetSize()}
	// One that begins, and one that waits.
	g.at[0] = g.member(0, state)
	g.at[1] = g.member(1, nil)
	wait(t, "it waits", func() bool {
		return m.some(func(w *api.WorkerMessage) bool {
			return slices.ContainsFunc(w.GetMembers(), func(x *api.GangMember) bool { return keyOf(x.GetAttempt()) == keyOf(g.at[1]) && x.GetReady() })
		})
	})
	m.send(b.ID(), &api.MasterMessage{GangOver: []*api.GangOver{{Job: g.id, State: state}}})
	g.finish(out)
}

// A group whose end is not at the worker is reported as broken, and so is one that can't be formed.
func TestGangWithoutGroup(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	g, out := m.gang(a, b)
	g.ready(0, -1)
	g.enter(1, 12345)
	g.ready(1, -1)
	o := &api.GangForm{Job: g.id, Generation: 2, Constants: g.constants, Workers: []*api.GangWorker{
		{Worker: a.ID(), Address: a.opt.Address, Name: "a"}, {Worker: "x", Address: "127.0.0.1:1", Name: "nobody"},
	}}
	m.send(a.ID(), &api.MasterMessage{GangForm: []*api.GangForm{o}})
	wait(t, "it is said", func() bool {
		return m.some(func(w *api.WorkerMessage) bool {
			return slices.ContainsFunc(w.GetFormed(), func(x *api.GangFormed) bool { return x.GetGeneration() == 2 && x.GetError() != "" })
		})
	})
	g.enter(3, g.form(3).GetToken())
	g.finish(out)
}

// Who hears of a group when it is broken already says so: the master takes its members to be in it.
func TestGangBrokenBefore(t *testing.T) {
	t.Parallel()
	m := newMaster(t)
	a, b := m.startWorker(nil), m.startWorker(nil)
	g, out := m.gang(a, b)
	g.ready(0, -1)
	token := g.form(1).GetToken()
	for i, w := range g.workers {
		m.send(w.ID(), &api.MasterMessage{
			GangGroup: []*api.GangGroup{{Job: g.id, Generation: 1, Token: token, Size: 2, Members: g.at[i : i+1]}},
			GangBreak: []*api.GangBreak{{Job: g.id, Generation: 1, Reason: "the test wants it"}},
		})
	}
	g.ready(1, -1)
	g.enter(2, g.form(2).GetToken())
	g.finish(out)
}

// A program that does not wait for the answer to its vector breaks its group: its memory is mapped anew for a longer one, and may be
// in use.
func TestGangCallsTwice(t *testing.T) {
	s := newGangs(&Worker{})
	g := &gangGroup{local: 2}
	g.ctx, g.cancel = context.WithCancelCause(t.Context())
	x := &gangMember{group: g, rank: 1}
	var said []string
	answer := func(a *task.Answer) { said = append(said, a.Reduced.Error) }
	sum := &task.AllReduce{Width: 8, Count: 1}
	s.call(&gangCall{x, sum, answer})
	if len(said) != 0 {
		t.Fatal(said)
	}
	s.call(&gangCall{x, sum, answer})
	const want = "member 1 called a second time before it was answered"
	if !slices.Equal(said, []string{want, want}) || g.err == nil || len(g.calls) != 0 {
		t.Errorf("%q, %v, %d calls", said, g.err, len(g.calls))
	}
	s.call(&gangCall{x, sum, answer})
	if len(said) != 3 || said[2] != want {
		t.Errorf("%q", said)
	}
}

// A member can't take the memory away that it shares with the worker.
func TestSharedMemory(t *testing.T) {
	f, err := sharedMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v := task.OpenVector(int(f.Fd()))
	defer v.Close()
	if _, err := v.Int64(10, false); err == nil {
		t.Error("there are values in an empty file")
	}
	list, err := v.Int64(10, true)
	if err != nil || len(list) != 10 {
		t.Fatal(list, err)
	}
	list[9] = 7
	for _, size := range []int64{0, 79} {
		if err := unix.Ftruncate(int(f.Fd()), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("made smaller: %v", err)
		}
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err == nil {
		t.Error("what it can be is changed")
	}
	other := task.OpenVector(int(f.Fd()))
	defer other.Close()
	if again, err := other.Int64(10, false); err != nil || again[9] != 7 {
		t.Errorf("%v, %v", again, err)
	}
	if big, err := v.Int32(1<<20, true); err != nil || big[18] != 7 {
		t.Errorf("%d, %v", len(big), err)
	}
	if _, err := v.Int64(1<<30, true); err == nil {
		t.Error("a vector of 8 GiB")
	}
}
