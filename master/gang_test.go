// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
	"github.com/quernmr/quern/master/schedule"
)

// gangs are the groups of a world: a round of one ends when all of its members have come to it.
type gangs struct {
	mu     sync.Mutex
	groups map[string]*fakeGroup // job and generation
}

type fakeGroup struct {
	size    int
	now     *fakeRound
	broken  chan struct{}
	isBroke bool
}

type fakeRound struct {
	come int
	best int64         // of those that have come
	over chan struct{} // closed when all have
}

func (g *gangs) group(job string, generation uint64, size int) *fakeGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := fmt.Sprint(job, generation)
	f := g.groups[k]
	if f == nil {
		f = &fakeGroup{size: size, broken: make(chan struct{})}
		g.groups[k] = f
	}
	f.size = max(f.size, size)
	return f
}

// breakUp ends a group, and those before it that are given by name.
func (g *gangs) breakUp(f *fakeGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f != nil && !f.isBroke {
		f.isBroke = true
		close(f.broken)
	}
}

var errGroup = errors.New("the group is broken")

// round waits until all members are at it, and returns the largest of their values.
func (g *gangs) round(ctx context.Context, f *fakeGroup, v int64) (int64, error) {
	g.mu.Lock()
	if f.isBroke {
		g.mu.Unlock()
		return 0, errGroup
	}
	if f.now == nil {
		f.now = &fakeRound{best: v, over: make(chan struct{})}
	}
	r := f.now
	r.best = max(r.best, v)
	if r.come++; r.come == f.size {
		f.now = nil
		close(r.over)
	}
	g.mu.Unlock()
	select {
	case <-r.over:
		return r.best, nil
	case <-f.broken:
		return 0, errGroup
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// fakeGang is what a worker has of gangs.
type fakeGang struct {
	*gangs
	rounds  int64
	pace    time.Duration
	failing func(o *api.GangForm) string // why a group can't be formed
	refused func(at schedule.Attempt) error

	mu      sync.Mutex
	members map[schedule.Attempt]*fakeMember
	formed  map[string]*api.GangFormed // by job, the last one
	broken  map[string]uint64
}

type fakeMember struct {
	ready      bool
	rounds     int64
	generation uint64
	broken     string
	group      *fakeGroup
	coming     *api.GangGroup      // that it was told of before it had left the last one
	news       chan *api.GangState // nil: a group
}

func (f *fakeWorker) joinGangs(g *gangs, rounds int64) *fakeGang {
	f.gang = &fakeGang{
		gangs: g, rounds: rounds, members: map[schedule.Attempt]*fakeMember{}, formed: map[string]*api.GangFormed{}, broken: map[string]uint64{},
		pace: time.Millisecond,
	}
	return f.gang
}

// stands is what the worker says of its members.
func (g *fakeGang) stands(m *api.WorkerMessage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for at, x := range g.members {
		if x.ready || x.group != nil {
			m.Members = append(m.Members, &api.GangMember{Attempt: toAPI(at), Generation: x.generation, Ready: x.ready, Rounds: x.rounds, Broken: x.broken})
		}
	}
	for _, r := range g.formed {
		m.Formed = append(m.Formed, r)
	}
}

func (f *fakeWorker) hearGang(m *api.MasterMessage) {
	g := f.gang
	if g == nil {
		if len(m.GangForm)+len(m.GangGroup)+len(m.GangOver) > 0 {
			f.world.problem("%s has no gang, and hears %v", f.hello.Worker, m)
		}
		return
	}
	for _, o := range m.GangBreak {
		g.mu.Lock()
		g.broken[o.Job] = max(g.broken[o.Job], o.Generation)
		for at, x := range g.members {
			if at.Job == o.Job && x.group != nil && x.generation <= o.Generation {
				g.breakUp(x.group)
			}
		}
		g.mu.Unlock()
	}
	for _, o := range m.GangForm {
		g.mu.Lock()
		r := g.formed[o.Job]
		if r == nil || r.Generation < o.Generation {
			r = &api.GangFormed{Job: o.Job, Generation: o.Generation, Token: 1 + rand.Uint64N(1<<60), Kernel: true}
			if g.failing != nil {
				r.Error = g.failing(o)
			}
			g.formed[o.Job] = r
		}
		if o.Workers[0].Worker != f.hello.Worker || len(o.Workers) < 2 {
			f.world.problem("%s is to form a group of %v", f.hello.Worker, o.Workers)
		}
		g.mu.Unlock()
		f.send <- &api.WorkerMessage{Formed: []*api.GangFormed{r}}
	}
	for _, o := range m.GangGroup {
		g.mu.Lock()
		if o.Generation <= g.broken[o.Job] {
			g.mu.Unlock()
			continue
		}
		for _, a := range o.Members {
			at, _ := fromAPI(a)
			x := g.members[at]
			if x != nil {
				x.coming = o
				g.attach(x)
			}
		}
		g.mu.Unlock()
	}
	for _, o := range m.GangOver {
		g.mu.Lock()
		for at, x := range g.members {
			if at.Job == o.Job && x.ready {
				x.ready = false
				x.news <- o.State
			}
		}
		g.mu.Unlock()
	}
}

// attach has a member that waits be in the group that is there.
func (g *fakeGang) attach(x *fakeMember) {
	o := x.coming
	if o == nil || !x.ready || x.generation >= o.Generation || o.Generation <= g.broken[o.Job] {
		return
	}
	x.ready, x.broken, x.generation = false, "", o.Generation
	x.group = g.group(o.Job, o.Generation, int(o.Size))
	x.news <- nil
}

// stateOf is the state after so many rounds.
func stateOf(rounds int64) []byte {
	return binary.BigEndian.AppendUint64([]byte("state "), uint64(rounds))
}

// keepState has the master keep a state; errors of a master that is away are tried again.
func (f *fakeWorker) keepState(ctx context.Context, at schedule.Attempt, rounds int64, final bool) error {
	b := stateOf(rounds)
	for {
		r, err := f.client.KeepState(ctx, &api.KeepStateRequest{
			Attempt: toAPI(at), Worker: f.hello.Worker, Rounds: uint64(rounds), Final: final, Digest: digestOf(b), Size: int64(len(b)),
		})
		if err == nil && r.Refused != "" {
			return errors.New(r.Refused)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if status.Code(err) == codes.FailedPrecondition {
			_ = keep(f.client, ctx, b)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// iterate is a member's life. It returns the state that it ends with.
func (f *fakeWorker) iterate(ctx context.Context, at schedule.Attempt, l *api.Launch) error {
	g := f.gang
	if g == nil {
		return errors.New("a member, and this worker knows no gangs")
	}
	members, first := f.model.splits, int(at.Task)*3
	if l.Gang.Size != uint32(members) || l.Gang.First != uint32(first) || l.Gang.Splits != uint32(3*members) {
		f.world.problem("%v: %v", at, l.Gang)
	}
	if share, err := task.ParsePlan(l.Plan); err == nil && share.Len() != 3 {
		f.world.problem("%v has %d splits", at, share.Len())
	}
	x := &fakeMember{rounds: -1, news: make(chan *api.GangState, 1)}
	if s := l.Gang.State; s != nil {
		if s.Final {
			if int64(s.Rounds) != g.rounds {
				f.world.problem("%v ends with %v", at, s)
			}
			return nil
		}
		x.rounds = int64(s.Rounds)
	}
	g.mu.Lock()
	g.members[at] = x
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.members, at)
		g.mu.Unlock()
		if ctx.Err() != nil {
			g.breakUp(x.group)
		}
	}()
	for {
		g.mu.Lock()
		x.ready = true
		said := &api.GangMember{Attempt: l.Attempt, Generation: x.generation, Ready: true, Rounds: x.rounds, Broken: x.broken}
		x.group = nil
		g.attach(x)
		g.mu.Unlock()
		select {
		case f.send <- &api.WorkerMessage{Members: []*api.GangMember{said}}:
		case <-ctx.Done():
			return ctx.Err()
		}
		var over *api.GangState
		select {
		case over = <-x.news:
		case <-ctx.Done():
			return ctx.Err()
		}
		if over != nil {
			if int64(over.Rounds) != g.rounds || !over.Final {
				f.world.problem("%v: it is over with %v", at, over)
			}
			return nil
		}
		err := f.rounds(ctx, at, x)
		if ctx.Err() != nil {
			g.breakUp(x.group)
			return ctx.Err()
		}
		if err == nil {
			return f.keepState(ctx, at, x.rounds, true)
		}
		if !errors.Is(err, errGroup) {
			g.breakUp(x.group)
			return err
		}
		g.mu.Lock()
		x.broken = err.Error()
		g.mu.Unlock()
	}
}

// rounds does rounds in a group.
func (f *fakeWorker) rounds(ctx context.Context, at schedule.Attempt, x *fakeMember) error {
	g := f.gang
	best, err := g.gangs.round(ctx, x.group, x.rounds)
	if err != nil {
		return err
	}
	x.rounds = max(best, 0)
	for x.rounds < g.rounds {
		time.Sleep(g.pace)
		if g.refused != nil {
			if err := g.refused(at); err != nil {
				return err
			}
		}
		if best, err = g.gangs.round(ctx, x.group, x.rounds); err != nil {
			return err
		}
		if best != x.rounds {
			f.world.problem("%v is at round %d, another member at %d", at, x.rounds, best)
		}
		g.mu.Lock()
		x.rounds++
		g.mu.Unlock()
		if x.rounds%5 == 0 && at.Task == 0 && x.rounds < g.rounds {
			if err := f.keepState(ctx, at, x.rounds, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// gangModel is a job whose map tasks are a gang of so many members.
func gangModel(members, parts int) *model {
	d := &model{splits: members, parts: parts, grouped: true}
	d.plan = func(r *task.PlanResult) {
		type split struct {
			Files []int `json:"files"`
		}
		plan := struct {
			Total  int      `json:"total"`
			Files  []string `json:"files"`
			Splits []split  `json:"splits"`
		}{1, []string{"input"}, make([]split, 3*members)}
		for i := range plan.Splits {
			plan.Splits[i].Files = []int{0}
		}
		r.Plan, _ = json.Marshal(plan)
		r.Gang = &task.Gang{Rounds: 100}
		for range members {
			r.Gang.Shares = append(r.Gang.Shares, 3)
		}
	}
	return d
}

// wantIterated fails the test unless a job has ended well.
func (m *testMaster) wantIterated(job string, rounds int64) *api.JobStatus {
	m.t.Helper()
	s := m.wait(job)
	if s.State != api.JobState_JOB_DONE || s.Error != "" {
		m.t.Fatalf("job %s is %v: %s", job, s.State, s.Error)
	}
	if i := s.Iteration; i == nil || int64(i.Round) != rounds || !i.Final {
		m.t.Errorf("iteration %v, want %d rounds", i, rounds)
	}
	var r mapreduce.Result
	if err := json.Unmarshal(s.Result, &r); err != nil {
		m.t.Fatal(err)
	}
	if r.Iteration == nil || int64(r.Iteration.Rounds) != rounds || r.Splits != 3*int(s.Iteration.Members) {
		m.t.Errorf("result %s", s.Result)
	}
	return s
}

// wantBlobs waits until the master has so many blobs.
func (m *testMaster) wantBlobs(n int) {
	m.t.Helper()
	var list []string
	defer func() {
		if m.t.Failed() {
			m.t.Logf("blobs: %v", list)
		}
	}()
	until(m.t, fmt.Sprintf("the master has %d blobs", n), func() bool {
		var err error
		list, err = filepath.Glob(filepath.Join(m.opts.Dir, "blobs", "*"))
		return err == nil && len(list) == n
	})
}

func TestGang(t *testing.T) {
	m := startMaster(t)
	w, g := newWorld(), &gangs{groups: map[string]*fakeGroup{}}
	d := gangModel(3, 2)
	for range 3 {
		f := newWorker(t, m.addr, w, d, "w")
		f.joinGangs(g, 12)
		f.start()
	}
	until(t, "three workers", func() bool {
		r, err := m.client.Workers(m.context(), &api.WorkersRequest{})
		return err == nil && len(r.Workers) == 3
	})
	s := m.wantIterated(m.submit(jobFile()), 12)
	m.wantBlobs(0)
	if i := s.Iteration; i.Members != 3 || i.Groups != 1 || i.Rounds != 100 {
		t.Errorf("%v", i)
	}
	if !slices.ContainsFunc(s.Why, func(why string) bool { return strings.Contains(why, "3 members") }) {
		t.Errorf("why: %q", s.Why)
	}
	w.check(t)
}

// The plan is told how many workers could take a member.
func TestGangSize(t *testing.T) {
	m := startMaster(t)
	w, d := newWorld(), &model{splits: 1, parts: 1}
	sizes := make(chan uint32, 1)
	for i := range 3 {
		f := newWorker(t, m.addr, w, d, "w")
		f.hello.Memory = int64(i+1) << 30
		f.pause = func(at schedule.Attempt) error {
			if at.Stage == schedule.Plan {
				f.mu.Lock()
				defer f.mu.Unlock()
				sizes <- f.launched[at].Members
			}
			return nil
		}
		f.start()
	}
	until(t, "three workers", func() bool {
		r, err := m.client.Workers(m.context(), &api.WorkersRequest{})
		return err == nil && len(r.Workers) == 3
	})
	for _, c := range []struct {
		change func(*api.SubmitRequest)
		want   uint32
	}{
		{func(*api.SubmitRequest) {}, 3},
		{func(r *api.SubmitRequest) { r.MaxSlots = 2 }, 2},
		{func(r *api.SubmitRequest) { r.TaskMemory = 3 << 29 }, 2},
	} {
		r := jobFile()
		c.change(r)
		job := m.submit(r)
		if got := <-sizes; got != c.want {
			t.Errorf("%v: %d members, want %d", r, got, c.want)
		}
		m.wantDone(job, d)
	}
}

// What a plan says of a gang must make sense, and members end with a state that is kept.
func TestGangRefused(t *testing.T) {
	m := startMaster(t, func(o *Options) { o.Schedule.MaxAttempts = 1 })
	for what, says := range map[string]string{
		"shares": "the members of a gang have 5 of 6 splits", "tasks": "a plan of 2 members that lists 3", "state": "what it came to is not kept",
	} {
		w, g := newWorld(), &gangs{groups: map[string]*fakeGroup{}}
		d := gangModel(2, 1)
		plan := d.plan
		d.plan = func(r *task.PlanResult) {
			plan(r)
			switch what {
			case "shares":
				r.Gang.Shares[1] = 2
			case "tasks":
				r.Splits = append(r.Splits, r.Splits[0])
			}
		}
		f := newWorker(t, m.addr, w, d, "w")
		if what != "state" {
			f.joinGangs(g, 3)
		} else {
			f.gang = &fakeGang{gangs: g, rounds: -1, members: map[schedule.Attempt]*fakeMember{}}
			f.careless = true
		}
		f.start()
		s := m.wait(m.submit(jobFile()))
		if s.State != api.JobState_JOB_FAILED || !strings.Contains(s.Error, says) {
			t.Errorf("%s: %v, %s", what, s.State, s.Error)
		}
		f.stop()
		until(t, "the worker is gone", func() bool {
			r, err := m.client.Workers(m.context(), &api.WorkersRequest{})
			return err == nil && !slices.ContainsFunc(r.Workers, func(w *api.WorkerStatus) bool { return w.State == "live" })
		})
	}
}

// A state is kept if it is newer, of an attempt that runs, and there.
func TestKeepState(t *testing.T) {
	m := startMaster(t)
	w, g := newWorld(), &gangs{groups: map[string]*fakeGroup{}}
	d := gangModel(1, 1)
	f := newWorker(t, m.addr, w, d, "w")
	f.joinGangs(g, 12)
	held := make(chan struct{})
	begun := make(chan schedule.Attempt, 1)
	f.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Map {
			begun <- at
			<-held
		}
		return nil
	}
	f.start()
	job := m.submit(jobFile())
	at := <-begun
	ask := func(n int64, change func(*api.KeepStateRequest)) (*api.KeepStateReply, error) {
		b := stateOf(n)
		r := &api.KeepStateRequest{Attempt: toAPI(at), Worker: f.hello.Worker, Rounds: uint64(n), Digest: digestOf(b), Size: int64(len(b))}
		if change != nil {
			change(r)
		}
		return m.attendance(t).KeepState(m.context(), r)
	}
	store := func(n int64) {
		t.Helper()
		if err := keep(m.attendance(t), m.context(), stateOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask(5, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("one that is not there: %v", err)
	}
	store(5)
	for what, change := range map[string]func(*api.KeepStateRequest){
		"another worker's":  func(r *api.KeepStateRequest) { r.Worker = "x" },
		"another attempt's": func(r *api.KeepStateRequest) { r.Attempt.Number = 7 },
		"another job's":     func(r *api.KeepStateRequest) { r.Attempt.Job = "x" },
	} {
		if r, err := ask(5, change); err != nil || r.Refused == "" {
			t.Errorf("%s: %v, %v", what, r, err)
		}
	}
	for what, change := range map[string]func(*api.KeepStateRequest){
		"no digest": func(r *api.KeepStateRequest) { r.Digest = "x" }, "no attempt": func(r *api.KeepStateRequest) { r.Attempt = nil },
	} {
		if _, err := ask(5, change); status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}
	good := func(n int64, final bool, kept uint64, blobs int) {
		t.Helper()
		if r, err := ask(n, func(r *api.KeepStateRequest) { r.Final = final }); err != nil || r.Refused != "" {
			t.Fatal(r, err)
		}
		if s, err := m.client.Watch(m.context(), &api.WatchRequest{Job: job}); err != nil {
			t.Fatal(err)
		} else if got, err := s.Recv(); err != nil || got.Iteration.GetKept() != kept {
			t.Errorf("%v, %v: want %d", got.GetIteration(), err, kept)
		}
		m.wantBlobs(blobs)
	}
	good(5, false, 5, 1)
	good(4, false, 5, 1) // an older one need not even be there
	for n := int64(6); n < 10; n++ {
		store(n)
		good(n, false, uint64(n), 2) // somebody may be fetching the one before
	}
	m.restart()
	until(t, "the attempt is known again", func() bool {
		r, err := ask(9, nil)
		return err == nil && r.Refused == ""
	})
	// Another job that had the same state has had it removed since it was looked for.
	if err := m.do(m.context(), func() {
		r := &api.KeepStateRequest{Worker: f.hello.Worker, Rounds: 11, Digest: digestOf(stateOf(11)), Size: int64(len(stateOf(11)))}
		if _, err := m.keepState(at, r, nil); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("one that is there no more: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	store(12)
	good(12, true, 12, 2)
	store(8)
	good(8, true, 12, 2) // what nobody wants is not kept
	close(held)
	m.wait(job)
	m.wantBlobs(0)
	w.check(t)
}

// Members fail, workers die, their streams break, groups can't be formed, and the master crashes: the job ends well, all of its
// members in the same state.
func TestGangTroubles(t *testing.T) {
	runs := 4
	if os.Getenv("QUERN_LONG") != "" {
		runs = 60
	}
	for seed := range runs {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			gangTroubles(t, uint64(seed))
		})
	}
}

func gangTroubles(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 6))
	m := startMaster(t, func(o *Options) {
		o.Lease = 400 * time.Millisecond
		o.Schedule = schedule.Config{
			Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond, LocalWait: -1, Settle: 50 * time.Millisecond,
			MaxAttempts: 100, MaxLost: 300, AsideFailures: 1000,
		}
	})
	w, g := newWorld(), &gangs{groups: map[string]*fakeGroup{}}
	d := gangModel(3, 2)
	var mu sync.Mutex
	chance := rand.New(rand.NewPCG(seed, 7))
	luck := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return chance.IntN(n) == 0
	}
	const rounds = 300
	worker := func() *fakeWorker {
		f := newWorker(t, m.addr, w, d, "w")
		x := f.joinGangs(g, rounds)
		x.failing = func(*api.GangForm) string {
			if luck(5) {
				return "by chance"
			}
			return ""
		}
		x.refused = func(schedule.Attempt) error {
			switch {
			case luck(700):
				return &failError{task.Error{Message: "by chance"}, luck(2)}
			case luck(700):
				return errGroup // as if nobody answered
			}
			return nil
		}
		f.start()
		return f
	}
	workers := []*fakeWorker{worker(), worker(), worker()}
	until(t, "three workers", func() bool {
		r, err := m.client.Workers(m.context(), &api.WorkersRequest{})
		return err == nil && len(r.Workers) == 3
	})
	job := m.submit(jobFile())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.wait(job)
	}()
	defer func() {
		if t.Failed() {
			for _, f := range workers {
				f.gang.mu.Lock()
				for at, x := range f.gang.members {
					t.Logf("%s: %v: %+v", f.hello.Worker, at, *x)
				}
				f.gang.mu.Unlock()
			}
			_ = m.do(context.Background(), func() {
				j := m.jobs[job]
				if j == nil {
					return
				}
				v, _ := m.state.Job(job)
				t.Logf("%+v, group %+v, kept %+v", v.Gang, j.group, j.kept)
			})
		}
	}()
	for troubles := 0; ; troubles++ {
		select {
		case <-ended:
		case <-time.After(time.Duration(20+rng.IntN(150)) * time.Millisecond):
			if troubles > 12 {
				continue
			}
			switch i := rng.IntN(len(workers)); rng.IntN(4) {
			case 0:
				workers[i].die()
				workers[i] = worker()
			case 1:
				workers[i].mu.Lock()
				if cut := workers[i].cut; cut != nil {
					cut()
				}
				workers[i].mu.Unlock()
			case 2:
				m.restart()
			}
			continue
		}
		break
	}
	m.wantIterated(job, rounds)
	w.check(t)
}
