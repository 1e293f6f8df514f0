// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/push"
	"github.com/quernmr/quern/shuffle/receive"
)

// TestFewPlaces gathers many parts of several jobs at once where there is room for few: all wait
// for each other, and none for ever.
func TestFewPlaces(t *testing.T) {
	ctx := testContext(t)
	s := settings{
		receive: receive.Options{Limits: shuffle.Limits{Targets: 2, Streams: 4, Outgoing: 4}, FoldMemory: 4 << 20},
		push:    push.Options{Ahead: 2, Memory: shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 3})},
		options: Options{Jobs: 2, Memory: 1 << 20},
	}
	a := start(t, "a", s)
	s.push.Memory = shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 3})
	b := start(t, "b", s)
	ws := []*worker{a, b}
	var wg sync.WaitGroup
	for range 4 {
		j := words(6, 5, 500)
		where := func(m int) *worker { return ws[m%2] }
		var outs []Output
		for m := range j.outputs {
			outs = append(outs, j.keep(t, where(m), m, 0))
		}
		for p := range uint32(6) {
			g := j.gather(t, j.input(p, outs, where))
			wg.Go(func() {
				got, err := ws[p%2].x.Gather(ctx, g)
				if err == nil {
					err = j.checkFolded(got, int(p))
				}
				if err != nil {
					t.Errorf("part %d: %v", p, err)
				}
			})
		}
	}
	wg.Wait()
}

// TestServerGoes has a worker's server go away while it pushes, or is fetched from, and come back:
// that it can't be reached is told, as nothing certain, and the gathering goes on.
func TestServerGoes(t *testing.T) {
	for _, pull := range []bool{false, true} {
		ctx := testContext(t)
		w, v := start(t, "a", settings{push: push.Options{Retry: 300 * time.Millisecond}}), start(t, "b", settings{push: push.Options{Retry: 300 * time.Millisecond}})
		j := words(1, 6, 20_000)
		if pull {
			j = groups(rand.New(rand.NewPCG(9, 8)), 1, 6, 20_000, 100)
		}
		var outs []Output
		for m := range 6 {
			outs = append(outs, j.keep(t, v, m, 0))
		}
		in := j.input(0, outs, func(int) *worker { return v })
		in.Pull = pull
		g := j.gather(t, in)
		lost := make(chan *api.OutputLost, 100)
		g.Lost = func(l *api.OutputLost) { lost <- l }
		begun := make(chan bool, 1)
		v.onPush = func(*api.PushRequest) error {
			select {
			case begun <- true:
			default:
			}
			return nil
		}
		v.onFetch = func(_ *api.FetchRequest, b *api.FetchBlock) (*api.FetchBlock, error) {
			select {
			case begun <- true:
			default:
			}
			return b, nil
		}
		result := make(chan error, 1)
		go func() {
			got, err := w.x.Gather(ctx, g)
			if err == nil && pull {
				err = j.checkGrouped(got, 0, "", "")
			} else if err == nil {
				err = j.checkFolded(got, 0)
			}
			result <- err
		}()
		<-begun
		v.cut()
		select {
		case l := <-lost:
			if l.Gone || l.Damaged || l.Worker != "b" || l.Error == "" {
				t.Errorf("pull %v: %+v", pull, l)
			}
		case err := <-result:
			t.Logf("pull %v: it was done before the server went", pull)
			result <- err
		}
		v.mend()
		if err := <-result; err != nil {
			t.Errorf("pull %v: %v", pull, err)
		}
	}
}

// TestSilentWorker has a worker that says nothing: it is given up, and its output
// had from where it was made again.
func TestSilentWorker(t *testing.T) {
	for _, pull := range []bool{false, true} {
		ctx := testContext(t)
		w := start(t, "a", settings{options: Options{Stall: 200 * time.Millisecond}})
		v := start(t, "b", settings{})
		u := start(t, "c", settings{})
		j := words(1, 2, 1000)
		if pull {
			j = groups(rand.New(rand.NewPCG(9, 8)), 1, 2, 1000, 100)
		}
		outs := []Output{j.keep(t, v, 0, 0), j.keep(t, v, 1, 0)}
		stop := make(chan struct{})
		v.onPush = func(*api.PushRequest) error { <-stop; return nil }
		v.onFetch = func(_ *api.FetchRequest, b *api.FetchBlock) (*api.FetchBlock, error) { <-stop; return b, nil }
		in := j.input(0, outs, func(int) *worker { return v })
		in.Pull = pull
		g := j.gather(t, in)
		moved := make(chan *api.MapOutput, 2)
		g.Moved = moved
		again := map[uint32]bool{}
		g.Lost = func(l *api.OutputLost) {
			if l.Gone || l.Damaged || !strings.Contains(l.Error, "said nothing") {
				t.Errorf("%+v", l)
			}
			if !again[l.MapTask] {
				again[l.MapTask] = true
				moved <- u.has(j.keep(t, u, int(l.MapTask), 1), 0)
			}
		}
		got, err := w.x.Gather(ctx, g)
		close(stop)
		if err == nil && pull {
			err = j.checkGrouped(got, 0, "", "")
		} else if err == nil {
			err = j.checkFolded(got, 0)
		}
		if err != nil {
			t.Errorf("pull %v: %v", pull, err)
		}
	}
}

// TestMovedFirst has an output that is nowhere until it is said to be somewhere, and one
// that moves while its worker hangs.
func TestMovedFirst(t *testing.T) {
	for _, pull := range []bool{false, true} {
		ctx := testContext(t)
		w, v := start(t, "a", settings{}), start(t, "b", settings{})
		j := words(1, 3, 1000)
		if pull {
			j = groups(rand.New(rand.NewPCG(9, 8)), 1, 3, 1000, 100)
		}
		var outs []Output
		for m := range 3 {
			o, err := j.write(t.TempDir(), m, 0)
			if err != nil {
				t.Fatal(err)
			}
			outs = append(outs, o)
		}
		in := j.input(0, outs, func(int) *worker { return v })
		in.Pull = pull
		stop, hangs := make(chan struct{}), make(chan bool, 10)
		v.onPush = func(*api.PushRequest) error { hangs <- true; <-stop; return nil }
		v.onFetch = func(_ *api.FetchRequest, b *api.FetchBlock) (*api.FetchBlock, error) {
			hangs <- true
			<-stop
			return b, nil
		}
		in.Outputs[0].Worker, in.Outputs[0].Address = "", ""
		if err := v.x.Keep(outs[1]); err != nil {
			t.Fatal(err)
		}
		if err := w.x.Keep(outs[2]); err != nil {
			t.Fatal(err)
		}
		in.Outputs[2] = w.has(outs[2], 0)
		g := j.gather(t, in)
		moved := make(chan *api.MapOutput)
		g.Moved = moved
		g.Lost = func(l *api.OutputLost) { t.Errorf("nothing is lost: %+v", l) }
		go func() {
			<-hangs
			for _, m := range []int{0, 1} {
				moved <- w.has(j.keep(t, w, m, 1), 0)
			}
			moved <- &api.MapOutput{Task: 77} // none of this part's
			close(moved)
		}()
		got, err := w.x.Gather(ctx, g)
		close(stop)
		if err == nil && pull {
			err = j.checkGrouped(got, 0, "", "")
		} else if err == nil {
			err = j.checkFolded(got, 0)
		}
		if err != nil {
			t.Errorf("pull %v: %v", pull, err)
		}
	}
}

// TestBegunAnew takes a target, or its whole job, away from under a gathering, at different
// times: it is begun anew, and every pair counts once.
func TestBegunAnew(t *testing.T) {
	for _, what := range []string{"job in push", "target in push", "target before finish"} {
		ctx := testContext(t)
		w, v := start(t, "a", settings{}), start(t, "b", settings{})
		j := words(1, 4, 5000)
		var outs []Output
		for m := range 4 {
			outs = append(outs, j.keep(t, v, m, 0))
		}
		in := j.input(0, outs, func(int) *worker { return v })
		spec, err := jobSpec(j.constants, in.Bound)
		if err != nil {
			t.Fatal(err)
		}
		var generations []uint32
		var once sync.Once
		v.onPush = func(r *api.PushRequest) error {
			generations = append(generations, r.Generation)
			switch what {
			case "job in push":
				once.Do(func() { err = w.receiver.Drop(ctx, spec.ID) })
			case "target in push":
				once.Do(func() {
					go func() {
						// In the midst of it, or before it, or behind it.
						_ = w.receiver.DropTarget(ctx, shuffle.TargetID{Job: spec.ID, Generation: r.Generation})
					}()
				})
			case "target before finish":
				once.Do(func() {
					// One of four outputs is complete, and forgotten.
					r := &api.PushRequest{Constants: r.Constants, Partition: r.Partition, Generation: r.Generation, Scale: r.Scale, Bound: r.Bound, Outputs: r.Outputs[:1], Receiver: r.Receiver}
					err = v.x.push(ctx, r, w.x.guard, mustHost(t, w.address), func(*api.PushReply) error { return nil })
					err = errors.Join(err, w.receiver.DropTarget(ctx, shuffle.TargetID{Job: spec.ID, Generation: r.Generation}))
				})
			}
			return nil
		}
		got, e := w.x.Gather(ctx, j.gather(t, in))
		if e == nil {
			e = j.checkFolded(got, 0)
		}
		if err := errors.Join(err, e); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if generations[0] != 1<<8 {
			t.Errorf("%s: generations %v", what, generations)
		}
	}
}

func mustHost(t *testing.T, address string) netip.Addr {
	t.Helper()
	a, err := HostOf(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestReset has a worker tell that the target was reset: all is pushed again under a
// higher generation, and what is pushed under the old one is refused.
func TestReset(t *testing.T) {
	ctx := testContext(t)
	w, v := start(t, "a", settings{}), start(t, "b", settings{})
	j := words(1, 2, 1000)
	outs := []Output{j.keep(t, v, 0, 0), j.keep(t, w, 1, 0)}
	in := j.input(0, outs, func(m int) *worker { return []*worker{v, w}[m] })
	in.Generation = 5
	var first *api.PushRequest
	var stale error
	var generations []uint32
	v.onPush = func(r *api.PushRequest) error {
		generations = append(generations, r.Generation)
		if first == nil {
			first = r
			spec, err := jobSpec(r.Constants, r.Bound)
			if err != nil {
				return err
			}
			// Another generation than the gathering's: as if it was over.
			id := shuffle.TargetID{Job: spec.ID, Generation: r.Generation + 1}
			return w.receiver.OpenTarget(ctx, shuffle.TargetSpec{ID: id})
		}
		if stale == nil {
			spec, err := jobSpec(first.Constants, first.Bound)
			if err != nil {
				return err
			}
			stale = v.x.pushOutput(ctx, first, &spec, first.Outputs[0], w.x.guard, mustHost(t, w.address), &api.PushReply{})
		}
		return nil
	}
	got, err := w.x.Gather(ctx, j.gather(t, in))
	if err == nil {
		err = j.checkFolded(got, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(generations) < 2 || generations[0] != 5<<8 || generations[len(generations)-1] <= generations[0] {
		t.Errorf("generations %v", generations)
	}
	if !errors.Is(stale, shuffle.ErrRefused) {
		t.Errorf("a push of an earlier generation: %v", stale)
	}
}

// TestLateSender pushes when nobody gathers any more: it is refused, and opens nothing.
func TestLateSender(t *testing.T) {
	ctx := testContext(t)
	w, v := start(t, "a", settings{}), start(t, "b", settings{})
	j := words(1, 1, 1000)
	outs := []Output{j.keep(t, v, 0, 0)}
	in := j.input(0, outs, func(int) *worker { return v })
	var last *api.PushRequest
	v.onPush = func(r *api.PushRequest) error { last = r; return nil }
	if _, err := w.x.Gather(ctx, j.gather(t, in)); err != nil {
		t.Fatal(err)
	}
	spec, err := jobSpec(j.constants, in.Bound)
	if err != nil {
		t.Fatal(err)
	}
	reply := v.x.pushOne(ctx, last, &spec, last.Outputs[0], w.x.guard, mustHost(t, w.address))
	if !reply.Reset_ || reply.Error == "" || reply.Streams != 0 {
		t.Errorf("%+v", reply)
	}
	if err := w.x.guard.OpenJob(ctx, spec); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("a job that is over: %v", err)
	}
	if _, err := w.receiver.Totals(shuffle.TargetID{Job: spec.ID, Generation: last.Generation}); !errors.Is(err, shuffle.ErrUnknown) {
		t.Errorf("the target is still there: %v", err)
	}
}

// TestCancel ends a gathering while it waits for what never comes. Nothing of it is
// left: with one target, the next one works.
func TestCancel(t *testing.T) {
	for _, pull := range []bool{false, true} {
		w := start(t, "a", settings{receive: receive.Options{Limits: shuffle.Limits{Targets: 1}}})
		v := start(t, "b", settings{})
		j := words(1, 2, 1000)
		if pull {
			j = groups(rand.New(rand.NewPCG(9, 8)), 1, 2, 1000, 100)
		}
		outs := []Output{j.keep(t, v, 0, 0), j.keep(t, v, 1, 0)}
		in := j.input(0, outs, func(int) *worker { return v })
		in.Pull = pull
		in.Outputs[1].Address = ""
		ctx, cancel := context.WithCancelCause(testContext(t))
		why := errors.New("somebody else was faster")
		g := j.gather(t, in)
		var told atomic.Int64
		g.Progress = func(c Counts) {
			if told.Store(max(c.User, c.Pulled)); c.User+c.Pulled >= 1000 {
				cancel(why) // the first output has come
			}
		}
		_, err := w.x.Gather(ctx, g)
		if !errors.Is(err, why) || told.Load() != 1000 {
			t.Errorf("pull %v: %v, %d pairs", pull, err, told.Load())
		}
		if files, _ := os.ReadDir(g.Dir); len(files) > 0 {
			t.Errorf("pull %v: %d files are left", pull, len(files))
		}
		in.Outputs[1] = v.has(outs[1], 0)
		in.Generation++
		g = j.gather(t, in)
		got, err := w.x.Gather(testContext(t), g)
		if err == nil && pull {
			err = j.checkGrouped(got, 0, "", "")
		} else if err == nil {
			err = j.checkFolded(got, 0)
		}
		if err != nil {
			t.Errorf("pull %v: %v", pull, err)
		}
	}
}

// TestCancelFreesTarget ends a gathering that has the only target, while another part of the same
// job waits for it.
func TestCancelFreesTarget(t *testing.T) {
	w := start(t, "a", settings{receive: receive.Options{Limits: shuffle.Limits{Targets: 1}}})
	j := words(2, 1, 1000)
	outs := []Output{j.keep(t, w, 0, 0)}
	here := func(int) *worker { return w }
	first := j.input(0, outs, here)
	first.Outputs[0].Worker, first.Outputs[0].Address = "", "" // it never comes
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 2)
	go func() {
		_, err := w.x.Gather(ctx, j.gather(t, first))
		ended <- err
	}()
	spec, err := jobSpec(j.constants, first.Bound)
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	wait("the first part has no target", func() bool {
		_, err := w.receiver.Totals(shuffle.TargetID{Job: spec.ID, Generation: first.Generation << 8})
		return err == nil
	})
	second := j.gather(t, j.input(1, outs, here))
	go func() {
		got, err := w.x.Gather(testContext(t), second)
		if err == nil {
			err = j.checkFolded(got, 1)
		}
		ended <- err
	}()
	wait("the second part does not wait", func() bool {
		w.x.mu.Lock()
		defer w.x.mu.Unlock()
		return w.x.jobs[spec.ID].refs == 2
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first part: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the second part: %v", err)
	}
}

// TestClose ends what is under way.
func TestClose(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	j := words(1, 1, 10)
	o, err := j.write(t.TempDir(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := j.gather(t, j.input(0, []Output{o}, func(int) *worker { return w }))
	g.Lost = func(*api.OutputLost) { go func() { _ = w.x.Close() }() }
	if _, err := w.x.Gather(ctx, g); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := w.x.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.x.Gather(ctx, g); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
	if err := w.x.Keep(o); !errors.Is(err, ErrClosed) {
		t.Errorf("Keep: %v", err)
	}
}

// TestNeverFits has values that do not fit 64 bits at the scale of others.
func TestNeverFits(t *testing.T) {
	for _, self := range []bool{false, true} {
		for _, pull := range []bool{false, true} {
			ctx := testContext(t)
			w, v := start(t, "a", settings{}), start(t, "b", settings{})
			from := v
			if self {
				from = w
			}
			j := newJob(1, fold.Max)
			j.outputs = [][]map[string]value{{{"large": {big.NewInt(1 << 62)}}}, {{"small": {big.NewInt(5)}}}}
			j.scales = [][]uint8{nil, {1}}
			outs := []Output{j.keep(t, from, 0, 0), j.keep(t, from, 1, 0)}
			in := j.input(0, outs, func(int) *worker { return from })
			in.Pull = pull
			if _, err := w.x.Gather(ctx, j.gather(t, in)); !errors.Is(err, ErrPermanent) || !strings.Contains(err.Error(), "out of range") || !strings.Contains(err.Error(), "large") {
				t.Errorf("self %v, pull %v: %v", self, pull, err)
			}
		}
	}
}

// TestBrokenPromise has a job whose bounds are not kept.
func TestBrokenPromise(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	j := newJob(1, fold.Sum)
	j.outputs = [][]map[string]value{{{"k": {big.NewInt(1 << 62)}}}, {{"l": {big.NewInt(1 << 62)}}}}
	outs := []Output{j.keep(t, w, 0, 0), j.keep(t, w, 1, 0)}
	in := j.input(0, outs, func(int) *worker { return w })
	if in.Bound[0] {
		t.Fatal("2^63 is no bound")
	}
	in.Bound[0] = true
	if _, err := w.x.Gather(ctx, j.gather(t, in)); !errors.Is(err, ErrPermanent) || !errors.Is(err, receive.ErrOverflow) {
		t.Errorf("got %v", err)
	}
}

// TestWrongSums has a master whose sums are others than the outputs'.
func TestWrongSums(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	j := words(1, 2, 10)
	outs := []Output{j.keep(t, w, 0, 0), j.keep(t, w, 1, 0)}
	where := func(int) *worker { return w }
	in := j.input(0, outs, where)
	in.Check[0]++
	if _, err := w.x.Gather(ctx, j.gather(t, in)); !errors.Is(err, receive.ErrAudit) || errors.Is(err, ErrPermanent) {
		t.Errorf("check: %v", err)
	}
	for _, pull := range []bool{false, true} {
		in = j.input(0, outs, where)
		in.Pairs++
		in.Pull = pull
		if _, err := w.x.Gather(ctx, j.gather(t, in)); err == nil || !strings.Contains(err.Error(), "20 pairs, 21") {
			t.Errorf("pairs: %v", err)
		}
	}
}

// TestMode wants the kernel where there is none, and user space.
func TestMode(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	j := words(1, 1, 10)
	outs := []Output{j.keep(t, w, 0, 0)}
	in := j.input(0, outs, func(int) *worker { return w })
	j.constants.Shuffle = "kernel"
	if _, err := w.x.Gather(ctx, j.gather(t, in)); !errors.Is(err, ErrPermanent) || !strings.Contains(err.Error(), "in the kernel") {
		t.Errorf("got %v", err)
	}
	j.constants.Shuffle = "user"
	if _, err := w.x.Gather(ctx, j.gather(t, in)); err != nil {
		t.Error(err)
	}
	j.constants.Shuffle = "abacus"
	if _, err := w.x.Gather(ctx, j.gather(t, in)); err == nil || !strings.Contains(err.Error(), "abacus") {
		t.Errorf("got %v", err)
	}
}

// TestNothing gathers a part that nobody has anything for.
func TestNothing(t *testing.T) {
	ctx := testContext(t)
	w := start(t, "a", settings{})
	j := newJob(2, fold.Sum)
	j.outputs = [][]map[string]value{{{"k": {big.NewInt(1)}}, {}}, {{}, {}}}
	outs := []Output{j.keep(t, w, 0, 0), j.keep(t, w, 1, 0)}
	for _, pull := range []bool{false, true} {
		in := j.input(1, outs, func(int) *worker { return w })
		in.Pull = pull
		got, err := w.x.Gather(ctx, j.gather(t, in))
		if err != nil || len(got.Runs) != 0 || got.Folded == pull || got.Pairs != 0 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := w.x.Gather(ctx, Gather{}); err == nil {
		t.Error("nothing to gather, and no error")
	}
}

// TestReady cuts outputs into calls, and says when there is more to ask for.
func TestReady(t *testing.T) {
	x := &Exchange{opts: Options{Worker: "self"}}
	in := &api.ReduceInput{}
	state := map[uint32]*pushing{}
	var tasks []uint32
	for i := range uint32(maxOutputs + 40) {
		o := &api.MapOutput{Task: i, Worker: "w", Address: "w:1", Pairs: 1}
		switch i {
		case 0, 1:
			o.Worker, o.Address = "self", ""
		case 2:
			o.Address = "" // nowhere
		case 3:
			o.Worker, o.Address = "v", "v:1"
		}
		in.Outputs = append(in.Outputs, o)
		state[i] = &pushing{}
		tasks = append(tasks, i)
	}
	s := &gathering{x: x, in: in, where: newLocations(in.Outputs)}
	sizes := func(most int) (list []int, wake time.Duration) {
		calls, wake := s.ready(state, tasks, most)
		for _, c := range calls {
			list = append(list, len(c))
			for _, o := range c {
				if o.Worker != c[0].Worker || o.Task == 2 {
					t.Errorf("%v in a call to %s", o, c[0].Worker)
				}
			}
		}
		return list, wake
	}
	if got, wake := sizes(9); fmt.Sprint(got) != fmt.Sprint([]int{2, 1, maxOutputs, 36}) || wake >= 0 {
		t.Errorf("%v, wake %v", got, wake)
	}
	if got, _ := sizes(3); fmt.Sprint(got) != fmt.Sprint([]int{2, 1, maxOutputs}) {
		t.Errorf("with three calls: %v", got)
	}
	for i := range tasks[4:] {
		state[uint32(i+4)].call = 7
	}
	state[0].done = true
	state[1].after = time.Now().Add(time.Hour)
	state[3].after = time.Now().Add(time.Minute)
	if got, wake := sizes(9); len(got) != 0 || wake <= 0 || wake > time.Minute {
		t.Errorf("while all is under way: %v, wake %v", got, wake)
	}
	// What has moved is asked for at once, although a call for it is under way.
	for _, i := range []uint32{1, 5} {
		if err := s.where.move(&api.MapOutput{Task: i, Worker: "u", Address: "u:1", Pairs: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := sizes(9); fmt.Sprint(got) != "[2]" {
		t.Errorf("after two have moved: %v", got)
	}
}
