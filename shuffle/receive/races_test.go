// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// gate is a kernel whose waits begin with a hook.
type gate struct {
	*fakeKernel
	hook atomic.Pointer[func()]
}

func newGate(t *testing.T) *gate { return &gate{fakeKernel: newFakeKernel(t, 1, nil)} }

func (g *gate) Quiesce() error {
	if f := g.hook.Load(); f != nil {
		(*f)()
	}
	return g.fakeKernel.Quiesce()
}

// holdFirst has the next wait stay until goOn is closed; inside is closed when it is there.
// Waits that come after it go through.
func (g *gate) holdFirst() (inside, goOn chan bool) {
	inside, goOn = make(chan bool), make(chan bool)
	var n atomic.Int32
	f := func() {
		if n.Add(1) == 1 {
			close(inside)
			<-goOn
		}
	}
	g.hook.Store(&f)
	return inside, goOn
}

func (g *gate) stage(t *testing.T, op fold.Op) *stage {
	o := g.options(Options{Readers: 1})
	o.Kernel = g
	s := newStage(t, o, op)
	s.reset(2)
	return s
}

// TestOpenOutlivesTarget begins a target anew while a stream of the old
// generation is being opened: that may not give tables of the old one to the new
// one, whose place it has.
func TestOpenOutlivesTarget(t *testing.T) {
	k := newGate(t)
	s := k.stage(t, fold.Max) // of which the audit sees counts alone
	s.r.mu.Lock()
	s.r.staleSlots, s.r.freeSlots = append(s.r.staleSlots, s.r.freeSlots...), nil
	s.r.mu.Unlock()
	old := s.cut(2, 0, some(5)...)
	inside, goOn := k.holdFirst()
	opened := make(chan error)
	go func() {
		_, err := s.r.Open(s.ctx, []shuffle.StreamSpec{old.spec})
		opened <- err
	}()
	<-inside
	s.reset(3)
	o := s.cut(3, 0, some(5)...)
	g := s.open(o)
	close(goOn)
	if err := <-opened; !errors.Is(err, shuffle.ErrReset) {
		t.Errorf("the old stream: %v", err)
	}
	k.links(t)().send(o.seal(0, g, 1))
	waitFor(t, "the stream", func() bool { return s.complete(o) })
	if res := s.result(3, []*output{o}, some(5)); res.Kernel != 5 {
		t.Errorf("%d pairs were folded in the kernel", res.Kernel)
	}
}

// TestFinishOutlivesTarget begins a target anew while the old generation is being
// finished. That ends with ErrReset, not with books that do not balance, and leaves
// the new one's state alone.
func TestFinishOutlivesTarget(t *testing.T) {
	k := newGate(t)
	s := k.stage(t, fold.Sum)
	l := k.links(t)()
	o := s.cut(2, 0, some(5)...)
	if err := push(s.ctx, s.r, o, nil, l); err != nil {
		t.Fatal(err)
	}
	inside, goOn := k.holdFirst()
	finished := make(chan error)
	go func() {
		_, err := s.r.Finish(s.ctx, s.job.target(0, 2), Expect{Streams: 1, Pairs: 5})
		finished <- err
	}()
	<-inside
	s.reset(3)
	n := s.cut(3, 0, some(7)...)
	g := s.open(n)
	l.send(n.seal(0, g, 1))
	close(goOn)
	if err := <-finished; !errors.Is(err, shuffle.ErrReset) {
		t.Errorf("Finish of a generation that is over: %v", err)
	}
	for i, e := range k.Memory().Targets {
		if e.State != 0 && e.Dirty != 0 {
			t.Errorf("target %d is dirty", i)
		}
	}
	waitFor(t, "the stream", func() bool { return s.complete(n) })
	s.result(3, []*output{n}, some(7))
}

// TestDirtyBeforeForgotten ends targets in every way. A process that takes the
// memory up must never find one clean whose streams are not all there any more.
func TestDirtyBeforeForgotten(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *stage)
	}{
		{"generation", func(s *stage) { s.reset(3) }},
		{"drop", func(s *stage) { _ = s.r.Drop(s.ctx, s.job.spec.ID) }},
		{"close", func(s *stage) { _ = s.r.Close() }},
		{"finish", func(s *stage) {
			res, err := s.r.Finish(s.ctx, s.job.target(0, 2), Expect{Streams: 1, Pairs: 5})
			if err != nil {
				s.t.Fatal(err)
			}
			_ = res.Close()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newGate(t)
			s := k.stage(t, fold.Sum)
			o := s.cut(2, 0, some(5)...)
			if err := push(s.ctx, s.r, o, nil, k.links(t)()); err != nil {
				t.Fatal(err)
			}
			waits := 0
			look := func() {
				waits++
				for _, e := range k.Memory().Targets {
					if e.State != 0 && atomic.LoadUint32(&e.Dirty) == 0 {
						t.Error("the target is clean, and its streams are forgotten")
					}
				}
			}
			k.hook.Store(&look)
			c.end(s)
			k.hook.Store(nil)
			if waits == 0 {
				t.Error("nobody waited: the test shows nothing")
			}
		})
	}
}

// TestLostTable loses a table of maxima: no sum of values tells, but what was
// drained is less than what was folded.
func TestLostTable(t *testing.T) {
	k := newGate(t)
	s := k.stage(t, fold.Max)
	o := s.cut(2, 0, some(5)...)
	if err := push(s.ctx, s.r, o, nil, k.links(t)()); err != nil {
		t.Fatal(err)
	}
	x := s.r.tables
	x.mu.Lock()
	for _, tg := range s.r.targets {
		for cpu := range tg.tables {
			tg.tables[cpu].table = [wire.Classes]*shuffle.Table{}
		}
	}
	x.mu.Unlock()
	if _, err := s.r.Finish(s.ctx, s.job.target(0, 2), Expect{Streams: 1, Pairs: 5}); !errors.Is(err, ErrAudit) {
		t.Errorf("Finish without the table: %v", err)
	}
}

// TestDroppedTakesNoMemory asks a target that is gone for room, as a delivery does
// that waits while it goes.
func TestDroppedTakesNoMemory(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum)
	tg := s.r.targets[place{s.job.spec.ID, 0}]
	s.target(2)
	was := s.r.folding.Load()
	if err := tg.waitRoom(s.ctx, 100); err != nil { // whoever has it is refused next
		t.Errorf("room in a target that is gone: %v", err)
	}
	tg.mu.Lock()
	defer tg.mu.Unlock()
	if err := tg.waitRoomLocked(s.ctx, 100, true); !errors.Is(err, errDropped) {
		t.Errorf("room for a drain into a target that is gone: %v", err)
	}
	if n := s.r.folding.Load(); n != was {
		t.Errorf("%d combiners are in use, %d were", n, was)
	}
}

// TestResultOutlivesReceiver closes a result after the memory was left to another process.
func TestResultOutlivesReceiver(t *testing.T) {
	k := newGate(t)
	s := k.stage(t, fold.Sum)
	o := s.cut(2, 0, some(5)...)
	if err := push(s.ctx, s.r, o, nil, k.links(t)()); err != nil {
		t.Fatal(err)
	}
	res, err := s.r.Finish(s.ctx, s.job.target(0, 2), Expect{Streams: 1, Pairs: 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.r.Release(); err != nil {
		t.Fatal(err)
	}
	*k.Memory() = shuffle.Memory{} // as its owner does
	if err := res.Close(); err != nil {
		t.Error(err)
	}
}

// TestCloseWaitsForCalls closes a receiver while a call looks at the memory, which
// its owner unmaps next.
func TestCloseWaitsForCalls(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(r *Receiver) error
	}{{"close", (*Receiver).Close}, {"release", (*Receiver).Release}} {
		t.Run(c.name, func(t *testing.T) {
			k := newGate(t)
			s := k.stage(t, fold.Sum)
			o := s.cut(2, 0, some(5)...)
			g := s.open(o)
			k.links(t)().send(o.seal(0, g, 1))
			inside, goOn := k.holdFirst()
			asked := make(chan error)
			go func() {
				_, err := s.r.Status(s.ctx, []shuffle.StreamID{o.spec.ID})
				asked <- err
			}()
			<-inside
			ended := make(chan error)
			go func() { ended <- c.end(s.r) }()
			select {
			case err := <-ended:
				t.Errorf("it ended (%v) while a call was under way", err)
				close(goOn)
				<-asked
				return
			case <-time.After(30 * time.Millisecond):
			}
			close(goOn)
			<-asked
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestConfirmAfterReset confirms a stream whose target has begun anew in the same
// generation since its sender was told that it is complete: what was folded is gone, and
// the sender must hear of it.
func TestConfirmAfterReset(t *testing.T) {
	for _, again := range []bool{false, true} {
		k := newGate(t)
		s := k.stage(t, fold.Sum)
		l := k.links(t)()
		a := s.cut(2, 0, some(5)...)
		l.send(a.seal(0, s.open(a), 1))
		if !s.complete(a) {
			t.Fatal("the stream is not complete")
		}
		if err := s.r.reset(s.r.targets[place{s.job.spec.ID, 0}], "a test"); err != nil {
			t.Fatal(err)
		}
		if again {
			s.open(a)
		}
		if err := s.r.Confirm(s.ctx, []shuffle.StreamID{a.spec.ID}); !errors.Is(err, shuffle.ErrReset) {
			t.Errorf("confirmed after a reset (opened again: %v): %v", again, err)
		}
	}
}

// TestFinishFindsRoom has a target that is being finished hold the memory that its drain
// waits for, beside results that keep theirs.
func TestFinishFindsRoom(t *testing.T) {
	s := newStage(t, Options{Readers: 1, FoldMemory: 2 << 20}, fold.Sum)
	tg := s.r.targets[place{s.job.spec.ID, 0}]
	fill := func(c *fold.Combiner, bytes int64) {
		var key [16]byte
		for i := uint64(0); c.Bytes() < bytes; i++ {
			le.PutUint64(key[:], i)
			c.Add(bytesAt(key[:]), len(key), []int64{1})
		}
	}
	other := fold.NewCombiner(tg.config)
	defer other.Reset()
	tg.mu.Lock()
	if !tg.hasRoom(1) {
		t.Fatal("no room at first")
	}
	fill(tg.active, 700<<10)
	fill(other, 900<<10)
	for i := byte(0); s.r.arena.Used()+needs(1000) <= s.r.opts.FoldMemory; i++ {
		fill(other, other.Bytes()+1<<10)
	}
	tg.shut = true
	tg.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		tg.mu.Lock()
		defer tg.mu.Unlock()
		done <- tg.waitRoomLocked(s.ctx, 1000, true)
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for memory that it holds itself")
	}
}

// TestBeyondVector has the programs, who do not know how long a vector is, fold a value
// behind its end: that is not lost in silence.
func TestBeyondVector(t *testing.T) {
	for _, at := range []uint32{4, 5, 500} {
		k := newGate(t)
		s := k.stage(t, fold.Max)
		id := s.job.target(1, 1)
		if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: id, Dense: 5}); err != nil {
			t.Fatal(err)
		}
		var b wire.Builder
		b.Reset(make([]byte, wire.FrameSize), wire.Dense)
		b.AddValue(at, 7)
		o := &output{
			job: s.job, frames: [][]byte{b.Finish(wire.Head{}, nil)},
			spec: shuffle.StreamSpec{ID: shuffle.StreamID{Target: id}, Frames: 1, Pairs: 1, Check: []uint64{0}},
		}
		k.links(t)().send(o.seal(0, s.open(o), 1))
		waitFor(t, "the stream", func() bool { return s.complete(o) })
		res, err := s.r.Finish(s.ctx, id, Expect{Streams: 1, Pairs: 1})
		if at < 5 {
			if err != nil || res.Kernel != 1 {
				t.Fatalf("value %d: %v", at, err)
			}
			v, err := res.Values()
			if err != nil || v[4] != 7 {
				t.Errorf("%v, %v", v, err)
			}
			_ = res.Close()
		} else if !errors.Is(err, wire.ErrTable) {
			t.Errorf("value %d of a vector of 5: %v", at, err)
		}
	}
}

// TestChangedOutput opens a stream that was folded with another map output, of as many pairs
// of a job without sums: neither counts nor sums would tell, and its other segments would not fit.
func TestChangedOutput(t *testing.T) {
	for _, restart := range []bool{false, true} {
		k := newGate(t)
		s := k.stage(t, fold.Max)
		a := s.cut(2, 0, some(5)...)
		a.spec.Digest = 1
		if err := push(s.ctx, s.r, a, nil, k.links(t)()); err != nil {
			t.Fatal(err)
		}
		r := s.r
		if restart {
			if err := r.Release(); err != nil {
				t.Fatal(err)
			}
			k.resumed = true
			o := k.options(Options{Readers: 1})
			o.Kernel = k
			r = testReceiver(t, o)
			if err := r.OpenJob(s.ctx, s.job.spec); err != nil {
				t.Fatal(err)
			}
		}
		if g, err := r.Open(s.ctx, []shuffle.StreamSpec{a.spec}); err != nil || !g[0].Done {
			t.Errorf("restarted %v: the same output: %+v, %v", restart, g, err)
		}
		b := a.spec
		b.Digest = 2
		if g, err := r.Open(s.ctx, []shuffle.StreamSpec{b}); err == nil {
			t.Errorf("restarted %v: another output: %+v", restart, g)
		}
	}
}

// TestAnswersAreOfPrograms sends the frame by which a program asks for an
// acknowledgement to a receiver that has none: it turns nothing around for strangers.
func TestAnswersAreOfPrograms(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum)
	b := make([]byte, wire.AckFrame)
	wire.PutAck(b, wire.Head{Magic: wire.Magic, Version: wire.Version, Token: 1}, wire.AckBody{From: wire.FromKernel}, s.job.tags)
	b[4] = byte(wire.Answer)
	s.link.send(b)
	s.counted(wire.AckStray, 1)
}

// TestFinishGivenUp ends the contexts of Finish at various times. What it had taken of the memory
// for records is there again when the job was dropped.
func TestFinishGivenUp(t *testing.T) {
	r := testReceiver(t, Options{Readers: 1})
	ctx := testContext(t)
	failed := 0
	for n := range 8 {
		job := newJob(rand.New(rand.NewPCG(uint64(n), 9)), fold.Sum)
		if err := r.OpenJob(ctx, job.spec); err != nil {
			t.Fatal(err)
		}
		if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: job.target(0, 1), Keys: [5]uint64{0, 200_000}}); err != nil {
			t.Fatal(err)
		}
		tg := r.targets[place{job.spec.ID, 0}]
		tg.mu.Lock()
		if !tg.hasRoom(1) {
			t.Fatal("no room at first")
		}
		var key [16]byte
		for i := range uint64(100_000) {
			le.PutUint64(key[:], i)
			tg.active.Add(bytesAt(key[:]), len(key), []int64{0})
		}
		tg.mu.Unlock()
		short, cancel := context.WithTimeout(ctx, time.Duration(n)*2*time.Millisecond)
		res, err := r.Finish(short, job.target(0, 1), Expect{})
		cancel()
		if err != nil {
			failed++
		} else if err := res.Close(); err != nil {
			t.Error(err)
		}
		if err := r.Drop(ctx, job.spec.ID); err != nil {
			t.Error(err)
		}
		if used := r.arena.Used(); used != 0 {
			t.Fatalf("after %d ms (%v) %d bytes are in use", 2*n, err, used)
		}
	}
	t.Logf("%d of 8 were given up", failed)
}

// TestUnknownOps opens jobs with operations that do not exist, one of which would be read as
// another lane's.
func TestUnknownOps(t *testing.T) {
	r := testReceiver(t, Options{Readers: 1})
	for _, op := range []fold.Op{fold.Xor + 1, 0x1f, 255} {
		if err := r.OpenJob(t.Context(), newJob(rand.New(rand.NewPCG(1, uint64(op))), fold.Sum, op).spec); err == nil {
			t.Errorf("a job with operation %d was opened", op)
		}
	}
}

// TestLateDelivery asks for room in a target that is being finished: what is in it
// belongs to that, and may not be written elsewhere any more.
func TestLateDelivery(t *testing.T) {
	s := newStage(t, Options{Readers: 1, FoldMemory: 2 << 20}, fold.Sum)
	tg := s.r.targets[place{s.job.spec.ID, 0}]
	tg.mu.Lock()
	if !tg.hasRoom(1) {
		t.Fatal("no room at first")
	}
	var key [16]byte
	for i := uint64(0); tg.active.Bytes() < tg.limit(); i++ {
		le.PutUint64(key[:], i)
		tg.active.Add(bytesAt(key[:]), len(key), []int64{1})
	}
	was := tg.active
	tg.shut = true
	tg.mu.Unlock()
	if err := tg.waitRoom(s.ctx, 1000); err != nil {
		t.Error(err)
	}
	tg.mu.Lock()
	defer tg.mu.Unlock()
	if tg.active != was || tg.spills != 0 {
		t.Errorf("records are being written: %d spills", tg.spills)
	}
}
