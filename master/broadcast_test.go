// SPDX-License-Identifier: Apache-2.0

package master

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/master/journal"
	"github.com/quernmr/quern/master/schedule"
)

// large is content of some size that is like no other of another letter.
func large(letter string, size int) []byte { return bytes.Repeat([]byte(letter), size) }

// band is a cluster whose worker a makes the plan, when all of them are there and plans opens. Map and
// reduce attempts wait for maps and reduces.
type band struct {
	*testMaster
	world               *world
	model               *model
	workers             []*fakeWorker
	plans, maps, reduce *gate
}

func newBand(t *testing.T, d *model, names string, change ...func(*Options)) *band {
	b := &band{testMaster: startMaster(t, change...), world: newWorld(), model: d, plans: newGate(), maps: newGate(), reduce: newGate()}
	for _, name := range names {
		b.add(newWorker(t, b.addr, b.world, d, string(name)))
	}
	t.Cleanup(func() { b.openAll() }) // before the workers wait for their attempts
	return b
}

func (b *band) add(f *fakeWorker) {
	f.pause = func(at schedule.Attempt) error {
		switch at.Stage {
		case schedule.Plan:
			b.plans.wait(at)
		case schedule.Map:
			b.maps.wait(at)
		case schedule.Reduce:
			b.reduce.wait(at)
		}
		return nil
	}
	b.workers = append(b.workers, f)
}

func (b *band) openAll() {
	for _, g := range []*gate{b.plans, b.maps, b.reduce} {
		g.release()
	}
}

// run submits a job and returns when its map stage has begun: some of its attempts run.
func (b *band) run(r *api.SubmitRequest) string {
	b.t.Helper()
	b.workers[0].start()
	until(b.t, "the first worker", func() bool { return b.about().Workers == 1 })
	job := b.submit(r)
	<-b.plans.reached
	for _, f := range b.workers[1:] {
		f.start()
	}
	until(b.t, "all workers", func() bool { return int(b.about().Workers) == len(b.workers) })
	b.plans.release()
	<-b.maps.reached
	return job
}

// ordered are the broadcasts that a worker was told to do.
func (f *fakeWorker) ordered() []*api.Spread {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.spreads)
}

func (f *fakeWorker) launchesOf(stage schedule.Stage) (list []*api.Launch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, l := range f.launched {
		if at.Stage == stage {
			list = append(list, l)
		}
	}
	return list
}

// told are the blobs of which a worker was told that nothing more comes.
func (f *fakeWorker) told(job string) (blobs []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.overs {
		if o.Job == job {
			blobs = append(blobs, o.Blob)
		}
	}
	return blobs
}

func reportOf(o *api.Spread) *api.Spreaded {
	n := uint32(len(o.Members))
	return &api.Spreaded{Id: o.Id, Job: o.Job, Name: "whatever", Size: 1, Reached: n, Kernel: n + 1, Sent: 3 * o.Size, ElapsedUs: 1500}
}

// hears has the master hear a report now.
func (b *band) hears(f *fakeWorker, r *api.Spreaded) {
	b.t.Helper()
	if err := b.do(b.context(), func() {
		b.hear(b.sessionOf(f.hello.Worker), &api.WorkerMessage{Spreaded: []*api.Spreaded{r}})
	}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *band) broadcasts(job string) []*api.Spreaded {
	b.t.Helper()
	stream, err := b.client.Watch(b.context(), &api.WatchRequest{Job: job})
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := stream.Recv()
	if err != nil {
		b.t.Fatal(err)
	}
	return s.Broadcasts
}

// sent is a job with a program, uploads and side inputs of all kinds, and the blobs worth a broadcast in their order.
func (b *band) sent() (*api.SubmitRequest, []string) {
	program, up, small, sideBytes := large("p", 100_000), large("u", 70_000), large("s", 10), b.model.sides[0].content
	r := jobFile()
	r.Program = &api.Program{Blob: b.put(b.t, program), Platform: "linux/amd64", Name: "p"}
	for i, content := range [][]byte{up, small, up, program, sideBytes[:spreadFrom-1]} {
		r.Uploads = append(r.Uploads, &api.Upload{Path: fmt.Sprintf("in%d", i), Blob: b.put(b.t, content), Size: int64(len(content))})
	}
	return r, []string{digestOf(program), digestOf(sideBytes), digestOf(up)}
}

func sides() []side {
	return []side{{"stations", large("x", 80_000)}, {"stops", large("y", 5)}, {"the upload again", large("u", 70_000)}}
}

// Who made the plan gives what all need to the others, which are told that it comes until it has.
func TestBroadcast(t *testing.T) {
	b := newBand(t, &model{splits: 8, parts: 6, sides: sides()}, "abcd")
	r, want := b.sent()
	job := b.run(r)
	a := b.workers[0]
	for range 7 {
		<-b.maps.reached // two for each worker
	}
	orders := a.ordered()
	if len(orders) != 3 {
		t.Fatalf("%d broadcasts: %v", len(orders), orders)
	}
	names := []string{"program", "side input stations", "upload in0"}
	var ids []string
	for _, f := range b.workers[1:] {
		ids = append(ids, f.hello.Worker)
	}
	slices.Sort(ids)
	for i, o := range orders {
		if o.Id == "" || o.Job != job || o.Blob != want[i] || o.Name != names[i] || o.Size != []int64{100_000, 80_000, 70_000}[i] || o.Mapped != (i == 1) {
			t.Errorf("broadcast %d: %v", i, o)
		}
		var members []string
		for _, s := range o.Members {
			members = append(members, s.Worker)
			at := slices.IndexFunc(b.workers, func(f *fakeWorker) bool { return f.hello.Worker == s.Worker })
			if at < 0 || b.workers[at].hello.Address != s.Address {
				t.Errorf("broadcast %d: member %v", i, s)
			}
		}
		if !slices.Equal(members, ids) {
			t.Errorf("broadcast %d: members %q, want %q", i, members, ids)
		}
	}
	if orders[0].Id == orders[1].Id {
		t.Error("two broadcasts have one id")
	}
	check := func(stage schedule.Stage, coming []string) {
		t.Helper()
		for i, f := range b.workers {
			list := f.launchesOf(stage)
			for _, l := range list {
				want := coming
				if i == 0 {
					want = nil
				}
				if !slices.Equal(l.Coming, want) {
					t.Errorf("%v of %s: coming %q, want %q", l.Attempt, f.hello.Name, l.Coming, want)
				}
				if len(l.SideInputs) != 3 || l.SideInputs[0].Name != "stations" || l.SideInputs[0].Blob != want0(b.model) || l.SideInputs[1].Size != 5 {
					t.Errorf("%v: side inputs %v", l.Attempt, l.SideInputs)
				}
				if !proto.Equal(l.Constants, orders[0].Constants) {
					t.Errorf("%v: constants %v, of the broadcast %v", l.Attempt, l.Constants, orders[0].Constants)
				}
			}
			if i > 0 && len(f.ordered()) > 0 {
				t.Errorf("%s was told to send, too", f.hello.Name)
			}
			if len(list) == 0 {
				t.Errorf("%s has no %v attempt", f.hello.Name, stage)
			}
		}
	}
	check(schedule.Map, want)
	// Reports of others, of nothing that was ordered, and doubled ones count for nothing.
	lie := reportOf(orders[0])
	lie.Reached = 99
	b.hears(b.workers[1], lie)
	unknown := reportOf(orders[0])
	unknown.Id = "unknown"
	second := reportOf(orders[2])
	second.Failed, second.Had, second.Error = 1, 1, "no room"
	a.send <- &api.WorkerMessage{Spreaded: []*api.Spreaded{unknown, second, second, reportOf(orders[0]), second}}
	until(t, "the reports", func() bool { return len(b.broadcasts(job)) == 2 })
	checkReports := func(list []*api.Spreaded) {
		t.Helper()
		if len(list) != 2 || list[0].Id != orders[2].Id || list[0].Name != "upload in0" || list[0].Size != 70_000 || list[0].Error != "no room" || list[0].Had != 1 || list[0].Failed != 1 ||
			list[1].Id != orders[0].Id || list[1].Name != "program" || list[1].Reached != 3 || list[1].Kernel != 3 || list[1].Sent != 300_000 || list[1].ElapsedUs != 1500 || list[1].Job != job {
			t.Errorf("reports: %v", list)
		}
	}
	checkReports(b.broadcasts(job))
	b.maps.release()
	for range 6 {
		<-b.reduce.reached
	}
	check(schedule.Reduce, want[1:2])
	b.reduce.release()
	s := b.wantDone(job, b.model)
	checkReports(s.Broadcasts)
	list, err := b.client.Jobs(b.context(), &api.JobsRequest{})
	if err != nil || len(list.Jobs) != 1 {
		t.Fatal(list, err)
	}
	checkReports(list.Jobs[0].Broadcasts)
	b.restart()
	checkReports(b.wantDone(job, b.model).Broadcasts)
	if n := len(a.ordered()); n != 3 {
		t.Errorf("%d broadcasts in the end", n)
	}
	b.world.check(t)
}

func want0(d *model) string { return digestOf(d.sides[0].content) }

// Nobody waits for a broadcast whose source is gone, and nobody else does it again; the job ends well.
func TestSourceDies(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 4, sides: sides()}, "ab")
	r, want := b.sent()
	r.Key = "one"
	job := b.run(r)
	a, other := b.workers[0], b.workers[1]
	until(t, "the orders", func() bool { return len(a.ordered()) == 3 })
	a.send <- &api.WorkerMessage{Spreaded: []*api.Spreaded{reportOf(a.ordered()[1])}}
	until(t, "a report", func() bool { return len(b.broadcasts(job)) == 1 })
	until(t, "attempts of the other", func() bool { return len(other.launchesOf(schedule.Map)) == 2 })
	a.die()
	until(t, "the others are given up", func() bool { return len(b.broadcasts(job)) == 3 })
	for _, s := range b.broadcasts(job)[1:] {
		if s.Failed != 1 || s.Reached != 0 || !strings.Contains(s.Error, "worker a, which was to send it, is gone") || s.Size == 0 || s.Name == "" {
			t.Errorf("report %v", s)
		}
	}
	// Members know it as soon as the master does.
	until(t, "the member is told", func() bool { return len(other.told(job)) == 2 })
	if got, want := other.told(job), []string{want[0], want[2]}; !slices.Equal(got, want) {
		t.Errorf("told of %q, want %q", got, want)
	}
	early := other.launchesOf(schedule.Map)
	// A worker that joins now fetches all by itself.
	late := newWorker(t, b.addr, b.world, b.model, "c")
	b.add(late)
	late.start()
	until(t, "attempts of the newcomer", func() bool { return len(late.launchesOf(schedule.Map)) == 2 })
	b.openAll()
	b.wantDone(job, b.model)
	for _, l := range early {
		if !slices.Equal(l.Coming, want) {
			t.Errorf("%v: coming %q, want %q", l.Attempt, l.Coming, want)
		}
	}
	for _, f := range []*fakeWorker{other, late} {
		for _, stage := range []schedule.Stage{schedule.Map, schedule.Reduce, schedule.Commit} {
			for _, l := range f.launchesOf(stage) {
				if len(l.Coming) > 0 && !slices.Contains(early, l) {
					t.Errorf("%v at %s: coming %q", l.Attempt, f.hello.Name, l.Coming)
				}
			}
		}
		if len(f.ordered()) > 0 {
			t.Errorf("%s was told to send", f.hello.Name)
		}
	}
	if got := late.told(job); len(got) > 0 {
		t.Errorf("a worker that joined later is told of %q", got)
	}
	if again := b.submit(r); again != job {
		t.Errorf("the same key is another job")
	}
	b.world.check(t)
}

// A member that was away when the source of a broadcast went is told when it comes back.
func TestMemberAwayWhileSourceDies(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 2, sides: sides()[:1]}, "abc")
	job := b.run(jobFile())
	a, away, other := b.workers[0], b.workers[1], b.workers[2]
	until(t, "the order", func() bool { return len(a.ordered()) == 1 })
	want := []string{a.ordered()[0].Blob}
	back := make(chan struct{})
	away.mu.Lock()
	away.frozen = back
	away.cut()
	away.mu.Unlock()
	until(t, "it is away", func() bool { return b.about().Workers == 2 })
	a.die()
	until(t, "the other is told", func() bool { return slices.Equal(other.told(job), want) })
	if got := away.told(job); len(got) > 0 {
		t.Errorf("told of %q without a stream", got)
	}
	away.mu.Lock()
	away.frozen = nil
	away.mu.Unlock()
	close(back)
	until(t, "it is told", func() bool { return slices.Equal(away.told(job), want) })
	b.openAll()
	b.wantDone(job, b.model)
	b.world.check(t)
}

// A worker that joins while a broadcast is under way is none of its members.
func TestJoinsDuringBroadcast(t *testing.T) {
	b := newBand(t, &model{splits: 8, parts: 2, sides: sides()}, "ab")
	r, want := b.sent()
	job := b.run(r)
	late := newWorker(t, b.addr, b.world, b.model, "c")
	b.add(late)
	late.start()
	until(t, "attempts of the newcomer", func() bool { return len(late.launchesOf(schedule.Map)) == 2 })
	for _, l := range late.launchesOf(schedule.Map) {
		if len(l.Coming) > 0 || len(l.SideInputs) != 3 {
			t.Errorf("coming %q, side inputs %v", l.Coming, l.SideInputs)
		}
	}
	until(t, "attempts of a member", func() bool { return len(b.workers[1].launchesOf(schedule.Map)) == 2 })
	if got := b.workers[1].launchesOf(schedule.Map)[0].Coming; !slices.Equal(got, want) {
		t.Errorf("coming %q", got)
	}
	b.openAll()
	b.wantDone(job, b.model)
	b.world.check(t)
}

// A master that is started anew expects no broadcast and orders none, but takes reports of those that were under way.
func TestBroadcastOverRestart(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 4, sides: sides()}, "ab")
	r, _ := b.sent()
	job := b.run(r)
	a, other := b.workers[0], b.workers[1]
	until(t, "the orders", func() bool { return len(a.ordered()) == 3 })
	orders := a.ordered()
	a.send <- &api.WorkerMessage{Spreaded: []*api.Spreaded{reportOf(orders[0])}}
	until(t, "a report", func() bool { return len(b.broadcasts(job)) == 1 })
	for range 3 {
		<-b.maps.reached
	}
	b.restart()
	until(t, "both are back", func() bool { return b.about().Workers == 2 })
	if list := b.broadcasts(job); len(list) != 1 || list[0].Id != orders[0].Id || list[0].Name != "program" {
		t.Errorf("reports after the restart: %v", list)
	}
	lie := reportOf(orders[1])
	b.hears(other, lie) // it is not the source
	late := reportOf(orders[1])
	late.Name, late.Size = orders[1].Name, orders[1].Size
	a.send <- &api.WorkerMessage{Spreaded: []*api.Spreaded{late, reportOf(orders[0])}}
	until(t, "another report", func() bool { return len(b.broadcasts(job)) == 2 })
	b.maps.release()
	<-b.reduce.reached
	b.reduce.release()
	s := b.wantDone(job, b.model)
	if len(s.Broadcasts) != 2 || s.Broadcasts[1].Name != "side input stations" || s.Broadcasts[1].Reached != 1 {
		t.Errorf("reports: %v", s.Broadcasts)
	}
	for _, f := range b.workers {
		for _, l := range f.launchesOf(schedule.Reduce) {
			if len(l.Coming) > 0 || len(l.SideInputs) != 3 || l.SideInputs[0].Blob != want0(b.model) {
				t.Errorf("%v: coming %q, side inputs %v", l.Attempt, l.Coming, l.SideInputs)
			}
		}
		// Nobody knows any more who has something of the job.
		until(t, f.hello.Name+" forgets", func() bool { return f.forgets(job) })
	}
	if n := len(a.ordered()) + len(other.ordered()); n != 3 {
		t.Errorf("%d broadcasts were ordered", n)
	}
	b.world.check(t)
}

func (f *fakeWorker) forgets(job string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.forgot[job]
}

// A source that may not have heard is told again, by the same name; while it has no stream nobody waits for it.
func TestSourceComesBack(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 2, sides: sides()[:1]}, "ab")
	r := jobFile()
	job := b.run(r)
	a := b.workers[0]
	until(t, "the order", func() bool { return len(a.ordered()) == 1 })
	coming := func() (list []string) {
		if err := b.do(b.context(), func() { list = b.coming(b.jobs[job], b.Master.workers[b.workers[1].hello.Worker]) }); err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := coming(); len(got) != 1 {
		t.Errorf("coming: %q", got)
	}
	back := make(chan struct{})
	a.mu.Lock()
	a.frozen = back
	a.cut()
	a.mu.Unlock()
	until(t, "the stream ends", func() bool { return b.about().Workers == 1 })
	if got := coming(); len(got) != 0 {
		t.Errorf("coming while the source has no stream: %q", got)
	}
	a.mu.Lock()
	a.frozen = nil
	a.mu.Unlock()
	close(back)
	until(t, "the order comes again", func() bool { return len(a.ordered()) == 2 })
	if o := a.ordered(); !proto.Equal(o[0], o[1]) {
		t.Errorf("it is another one: %v", o)
	}
	if got := coming(); len(got) != 1 {
		t.Errorf("coming: %q", got)
	}
	// A member that has moved is not where the broadcast goes to.
	other := b.workers[1]
	other.mu.Lock()
	other.hello.Address = "127.0.0.1:9"
	other.cut()
	other.mu.Unlock()
	until(t, "it has moved", func() (moved bool) {
		if err := b.do(b.context(), func() {
			w := b.Master.workers[other.hello.Worker]
			moved = w.hello.Address == "127.0.0.1:9" && w.session != nil
		}); err != nil {
			t.Fatal(err)
		}
		return moved
	})
	if got := coming(); len(got) != 0 {
		t.Errorf("coming to where a worker is no more: %q", got)
	}
	if err := b.do(b.context(), func() { b.jobs[job].spreads[0].members[other.hello.Worker] = true }); err != nil {
		t.Fatal(err)
	}
	if got := coming(); len(got) != 1 {
		t.Errorf("coming: %q", got)
	}
	// Nobody is told to wait for what takes too long.
	if err := b.do(b.context(), func() { b.jobs[job].spreads[0].until = b.clock.now() }); err != nil {
		t.Fatal(err)
	}
	if got := coming(); len(got) != 0 {
		t.Errorf("coming long after: %q", got)
	}
	b.openAll()
	b.wantDone(job, b.model)
	b.world.check(t)
}

// Who gets a broadcast: those that may be given tasks of the job, and are there.
func TestAudience(t *testing.T) {
	hints := make(chan Suspicion)
	m := startMaster(t, func(o *Options) { o.Suspects, o.Lease = hints, time.Hour })
	w, d := newWorld(), &model{splits: 3, parts: 2, sides: sides()[:1]}
	g := newGate()
	defer g.release()
	a := newWorker(t, m.addr, w, d, "a")
	a.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Plan {
			g.wait(at)
		}
		return nil
	}
	a.start()
	until(t, "the source", func() bool { return m.about().Workers == 1 })
	r := jobFile()
	r.TaskMemory = 1 << 20
	r.Program = &api.Program{Blob: m.put(t, []byte("small")), Platform: "linux/amd64", Name: "p"}
	job := m.submit(r)
	<-g.reached
	others := map[string]*fakeWorker{}
	for name, change := range map[string]func(f *fakeWorker){
		"good": nil, "memory": func(f *fakeWorker) { f.hello.Memory = 2 << 20 },
		"little": func(f *fakeWorker) { f.hello.Memory = 1<<20 - 1 }, "platform": func(f *fakeWorker) { f.hello.Platform = "linux/arm64" },
		"draining": nil, "suspect": nil, "cut": nil, "aside": nil,
	} {
		f := newWorker(t, m.addr, w, d, name)
		if change != nil {
			change(f)
		}
		f.start()
		others[name] = f
	}
	until(t, "the others", func() bool { return m.about().Workers == 9 })
	if err := m.do(m.context(), func() {
		for name, f := range others {
			one := m.workers[f.hello.Worker]
			switch name {
			case "draining":
				one.draining = true // it has not been told Left
			case "aside":
				one.aside = m.clock.now() + time.Hour
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	hints <- Suspicion{"suspect", true}
	back := make(chan struct{})
	defer close(back)
	others["cut"].mu.Lock()
	others["cut"].frozen = back
	others["cut"].cut()
	others["cut"].mu.Unlock()
	until(t, "one has no stream", func() bool { return m.about().Workers == 8 })
	g.release()
	until(t, "the order", func() bool { return len(a.ordered()) == 1 })
	var got []string
	for _, s := range a.ordered()[0].Members {
		got = append(got, s.Worker[:strings.LastIndex(s.Worker, "-")])
	}
	if want := []string{"good", "memory"}; !slices.Equal(got, want) {
		t.Errorf("members %q, want %q", got, want)
	}
	m.wantDone(job, d)
	w.check(t)
}

// No broadcast where nobody would gain by it.
func TestNoBroadcast(t *testing.T) {
	for name, tc := range map[string]struct {
		d      *model
		names  string
		change func(b *band, r *api.SubmitRequest)
		drain  bool
	}{
		"alone":         {d: &model{splits: 2, parts: 2, sides: sides()}, names: "a"},
		"small":         {d: &model{splits: 2, parts: 2, sides: []side{{"x", large("x", spreadFrom-1)}}}, names: "ab"},
		"nothing":       {d: &model{splits: 2, parts: 2}, names: "ab"},
		"few tasks":     {d: &model{splits: 1, parts: 1, sides: sides()}, names: "abcdefghij"}, // 9 others, 2 tasks
		"source leaves": {d: &model{splits: 2, parts: 2, sides: sides()}, names: "ab", drain: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBand(t, tc.d, tc.names)
			if tc.drain {
				b.workers[0].pause = func(at schedule.Attempt) error {
					b.plans.wait(at)
					return b.do(b.context(), func() { b.Master.workers[b.workers[0].hello.Worker].draining = true })
				}
			}
			job := b.run(jobFile())
			b.openAll()
			b.wantDone(job, tc.d)
			for _, f := range b.workers {
				if o := f.ordered(); len(o) > 0 {
					t.Errorf("%s was told %v", f.hello.Name, o)
				}
			}
			b.world.check(t)
		})
	}
}

// A job that is cancelled in the middle of its broadcasts is forgotten by all that may have got something of them,
// also by those that ran nothing, or could not hear at that time.
func TestCancelDuringBroadcast(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 2, sides: sides()[:1]}, "abc")
	r := jobFile()
	r.MaxSlots = 1 // one of the three has something to do
	job := b.run(r)
	a := b.workers[0]
	until(t, "the order", func() bool { return len(a.ordered()) == 1 })
	idle := b.workers[1:]
	idle = slices.DeleteFunc(slices.Clone(idle), func(f *fakeWorker) bool { return len(f.launchesOf(schedule.Map)) > 0 })
	if len(idle) == 0 {
		t.Fatal("all have something to do")
	}
	deaf := idle[0]
	back := make(chan struct{})
	deaf.mu.Lock()
	deaf.frozen = back
	deaf.cut()
	deaf.mu.Unlock()
	until(t, "one has no stream", func() bool { return b.about().Workers == 2 })
	reply, err := b.client.Cancel(b.context(), &api.CancelRequest{Job: job})
	if err != nil || reply.Job.State != api.JobState_JOB_CANCELLED {
		t.Fatal(reply, err)
	}
	b.openAll() // not before: the job would be done by then now and then
	deaf.mu.Lock()
	deaf.frozen = nil
	deaf.mu.Unlock()
	close(back)
	for _, f := range b.workers {
		until(t, f.hello.Name+" forgets", func() bool { return f.forgets(job) })
		for _, l := range f.launchesOf(schedule.Abort) {
			if len(l.Coming) > 0 {
				t.Errorf("what removes the output waits for %q", l.Coming)
			}
		}
	}
	// The report comes too late.
	a.send <- &api.WorkerMessage{Spreaded: []*api.Spreaded{reportOf(a.ordered()[0])}}
	b.wantDone(b.submit(jobFile()), b.model)
	if list := b.broadcasts(job); len(list) != 0 {
		t.Errorf("reports: %v", list)
	}
	b.world.check(t)
}

// A worker that was given up when its job ended, and is back, is told to forget what it got of that job by a broadcast,
// though it ran nothing of it. What it has of a job that goes on, it keeps.
func TestForgottenByWhoWasGone(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 2, sides: sides()[:1]}, "abc")
	r := jobFile()
	r.MaxSlots = 1
	job, other := b.run(r), b.submit(jobFile())
	until(t, "the order", func() bool { return len(b.workers[0].ordered()) == 1 })
	idle := b.workers[slices.IndexFunc(b.workers[1:], func(f *fakeWorker) bool {
		return !slices.ContainsFunc(f.launchesOf(schedule.Map), func(l *api.Launch) bool { return l.Attempt.Job == job })
	})+1]
	back := make(chan struct{})
	idle.mu.Lock()
	idle.frozen = back
	idle.cut()
	idle.mu.Unlock()
	if err := b.do(b.context(), func() { b.workerGone(b.Master.workers[idle.hello.Worker], errGone) }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Cancel(b.context(), &api.CancelRequest{Job: job}); err != nil {
		t.Fatal(err)
	}
	until(t, "a forgets", func() bool { return b.workers[0].forgets(job) })
	if idle.forgets(job) {
		t.Fatal("who is gone was told")
	}
	idle.mu.Lock()
	idle.frozen = nil
	idle.hello.Jobs = []string{job, other}
	idle.mu.Unlock()
	close(back)
	until(t, "it forgets", func() bool { return idle.forgets(job) })
	if idle.forgets(other) {
		t.Error("it was told to forget a job that goes on")
	}
	b.openAll()
	b.wantDone(other, b.model)
	b.world.check(t)
}

// What is too long of a report is cut where a letter ends: nothing else could be sent to whoever asks.
func TestLongReports(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 2, sides: sides()[:1]}, "ab")
	job := b.run(jobFile())
	a := b.workers[0]
	until(t, "the order", func() bool { return len(a.ordered()) == 1 })
	r := reportOf(a.ordered()[0])
	r.Error = "x" + strings.Repeat("ü", maxName)
	b.hears(a, r)
	if got, want := b.broadcasts(job), "x"+strings.Repeat("ü", maxName/2-1); len(got) != 1 || got[0].Error != want {
		t.Errorf("%v", got)
	}
	list, err := b.client.Jobs(b.context(), &api.JobsRequest{})
	if err != nil || len(list.Jobs) != 1 || len(list.Jobs[0].Broadcasts) != 1 {
		t.Fatal(list, err)
	}
	// In a list there may be many of them.
	if got, want := list.Jobs[0].Broadcasts[0], "x"+strings.Repeat("ü", maxBrief/2-1); got.Error != want || got.Reached != 1 {
		t.Errorf("in a list: %v", got)
	}
	b.restart()
	if got := b.broadcasts(job); len(got) != 1 || len(got[0].Error) < maxName-1 {
		t.Errorf("after a restart: %v", got)
	}
	b.openAll()
	b.wantDone(job, b.model)
	b.world.check(t)
}

// What a job left behind is removed before workers are told that they may drop what they have of it.
func TestBroadcastOfLeftJob(t *testing.T) {
	b := newBand(t, &model{splits: 4, parts: 2, sides: sides()[:1]}, "abc", func(o *Options) { o.Schedule.NoWorkers = 200 * time.Millisecond })
	idle := b.workers[2]
	idle.hello.Platform = "linux/arm64"
	r := jobFile()
	r.Program = &api.Program{Blob: b.put(t, []byte("program")), Platform: "linux/amd64", Name: "p"}
	job := b.run(r)
	until(t, "the order", func() bool { return len(b.workers[0].ordered()) == 1 })
	b.workers[0].die()
	b.workers[1].die()
	if s := b.wait(job); s.State != api.JobState_JOB_FAILED || len(s.Broadcasts) != 1 {
		t.Errorf("%v: %s; broadcasts %v", s.State, s.Error, s.Broadcasts)
	}
	if idle.forgets(job) {
		t.Error("it is forgotten, and what it left is not removed")
	}
	last := newWorker(t, b.addr, b.world, b.model, "d")
	last.pause = func(at schedule.Attempt) error {
		if at.Stage == schedule.Abort && (last.forgets(job) || idle.forgets(job)) {
			b.world.problem("it is forgotten before what it left is removed")
		}
		return nil
	}
	last.start()
	until(t, "all forget", func() bool { return last.forgets(job) && idle.forgets(job) })
	if n := len(last.launchesOf(schedule.Abort)); n != 1 {
		t.Errorf("%d attempts to remove what it left", n)
	}
	b.openAll()
	b.world.check(t)
}

// Many and large orders go in messages of bearable size, before launches; those of a job that is forgotten do not go.
func TestSpreadsInSession(t *testing.T) {
	s := newSession("w")
	s.welcome = &api.Welcome{}
	members := make([]*api.SpreadMember, 4096)
	for i := range members {
		members[i] = &api.SpreadMember{Worker: strings.Repeat("w", 50), Address: "address"}
	}
	for i := range 30 {
		s.spread(&api.Spread{Id: fmt.Sprint(i), Job: []string{"a", "b"}[i%2], Members: members})
	}
	s.launch(&api.Launch{Split: 7})
	for _, job := range []string{"a", "b", "c"} {
		s.spreadOver(&api.Spread{Job: job, Blob: "of " + job})
	}
	s.forgetJob("b")
	if m := s.take(); m.Welcome == nil {
		t.Error("the welcome is not the first")
	}
	var ids, overs []string
	for {
		m := s.take()
		if m == nil {
			t.Fatal("there is no launch")
		}
		if n := proto.Size(m); n > messageSize+(1<<19) {
			t.Errorf("a message of %d bytes", n)
		}
		for _, o := range m.Spread {
			ids = append(ids, o.Id)
		}
		for _, o := range m.SpreadOver {
			overs = append(overs, o.Job+" "+o.Blob)
		}
		if len(m.Launch) > 0 {
			if len(m.Forget) != 1 {
				t.Errorf("forget: %q", m.Forget)
			}
			break
		}
		if len(m.Forget) > 0 {
			t.Error("forget goes before what was ordered")
		}
	}
	var want []string
	for i := range 15 {
		want = append(want, fmt.Sprint(2*i))
	}
	if !slices.Equal(ids, want) {
		t.Errorf("ids %q, want %q", ids, want)
	}
	if want := []string{"a of a", "c of c"}; !slices.Equal(overs, want) {
		t.Errorf("over: %q, want %q", overs, want)
	}
	if m := s.take(); m != nil {
		t.Errorf("there is more: %v", m)
	}
	// Orders alone, too, go before what is to be forgotten.
	for range 20 {
		s.spread(&api.Spread{Job: "a", Members: members})
	}
	s.forgetJob("c")
	for left := 20; left > 0; {
		m := s.take()
		if left -= len(m.Spread); len(m.Spread) == 0 || left > 0 && len(m.Forget) > 0 {
			t.Fatalf("%d orders are left, and %q is to be forgotten", left, m.Forget)
		}
	}
}

// A job with thousands of uploads gets broadcasts of the largest ones alone.
func TestPartsAreBounded(t *testing.T) {
	m := startMaster(t)
	j := newJob(journal.Job{ID: "x"}, jobFile())
	j.plan = &journal.Plan{}
	for i := range 200 {
		j.submit.Uploads = append(j.submit.Uploads, &api.Upload{Path: fmt.Sprint(i), Blob: fmt.Sprintf("%064x", i), Size: spreadFrom + int64(i)})
	}
	program := large("p", spreadFrom)
	j.submit.Program.Blob = m.put(t, program)
	list := m.parts(j)
	if len(list) != maxSpreads || list[0].digest != digestOf(program) || list[1].size != spreadFrom+199 || list[63].size != spreadFrom+137 {
		t.Errorf("%d parts: %v", len(list), list)
	}
}
