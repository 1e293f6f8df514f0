// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// halfway is a kernel whose programs can be held between finding slots and
// claiming, and whose tables can be made to look full.
type halfway struct {
	*fakeKernel
	hold   atomic.Bool
	inside chan bool // a program is held
	goOn   chan bool
	looks  atomic.Bool // tables look full
}

func newHalfway(t *testing.T) *halfway {
	h := &halfway{inside: make(chan bool), goOn: make(chan bool)}
	h.fakeKernel = newFakeKernel(t, 1, func(uint32, uint32) {
		if h.hold.Load() {
			h.inside <- true
			<-h.goOn
		}
	})
	return h
}

// usage does not wait for the model, which may be held.
func (h *halfway) usage(tab *shuffle.Table) (used, pairs uint64) {
	if h.looks.Load() {
		return 1 << 30, 1
	}
	return 0, 0
}

func (h *halfway) stage(t *testing.T) *stage {
	// No room for a spare table: making one would wait for the held program.
	o := h.options(Options{Readers: 1, TableMemory: 80 << 10})
	o.usage = h.usage
	s := newStage(t, o, fold.Sum)
	s.reset(2)
	return s
}

// reset begins generation gen with an estimate of keys, so that tables are
// there when frames come.
func (s *stage) reset(gen uint32) {
	s.t.Helper()
	if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(0, gen), Keys: [5]uint64{500, 500}}); err != nil {
		s.t.Fatal(err)
	}
}

// result finishes a generation and compares it with what was sent.
func (s *stage) result(gen uint32, outputs []*output, lists ...[]pair) *Result {
	s.t.Helper()
	want := newOracle(s.job.spec.Ops)
	e := Expect{Streams: len(outputs)}
	for _, o := range outputs {
		e.Pairs += o.spec.Pairs
	}
	for _, l := range lists {
		want.add(l)
	}
	res, err := s.r.Finish(s.ctx, s.job.target(0, gen), e)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { res.Close() })
	if err := want.check(s.ctx, res); err != nil {
		s.t.Fatal(err)
	}
	return res
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestFlipWaits flips a table while a program has found its slots in it and not
// applied its values: they are drained with the rest.
func TestFlipWaits(t *testing.T) {
	k := newHalfway(t)
	s := k.stage(t)
	l := k.links(t)()
	a, b := s.cut(2, 0, some(5)...), s.cut(2, 1, some(5)...)
	ga, gb := s.open(a), s.open(b)
	l.send(a.seal(0, ga, 1))
	k.hold.Store(true)
	go l.send(b.seal(0, gb, 1))
	<-k.inside
	k.looks.Store(true)
	waitFor(t, "the flip", func() bool { return s.r.tables.flips.Load() > 0 })
	time.Sleep(20 * time.Millisecond) // time enough to drain, for who does not wait
	k.looks.Store(false)
	k.hold.Store(false)
	k.goOn <- true
	waitFor(t, "both streams", func() bool { return s.complete(a) && s.complete(b) })
	if res := s.result(2, []*output{a, b}, some(5), some(5)); res.Kernel != 10 {
		t.Errorf("%d pairs were folded in the kernel", res.Kernel)
	}
}

// TestResetWaits begins a target anew while a program is at work on a frame of
// the old generation: the table is not used again before that is through.
func TestResetWaits(t *testing.T) {
	k := newHalfway(t)
	s := k.stage(t)
	l := k.links(t)()
	a := s.cut(2, 0, some(5)...)
	ga := s.open(a)
	k.hold.Store(true)
	go l.send(a.seal(0, ga, 1))
	<-k.inside
	over := make(chan bool)
	go func() { s.reset(3); close(over) }()
	select {
	case <-over:
		t.Fatal("a target was begun anew while a program worked on a frame of it")
	case <-time.After(30 * time.Millisecond):
	}
	k.hold.Store(false)
	k.goOn <- true
	<-over
	b := s.cut(3, 0, some(7)...)
	l.send(b.seal(0, s.open(b), 1))
	waitFor(t, "the stream", func() bool { return s.complete(b) })
	if res := s.result(3, []*output{b}, some(7)); res.Kernel != 7 {
		t.Errorf("%d pairs were folded in the kernel", res.Kernel)
	}
}

// TestFlipSoils ends a receiver after a flip, when user space has seen no frame:
// what was drained is gone, so all is to be sent again.
func TestFlipSoils(t *testing.T) {
	k := newHalfway(t)
	o := k.options(Options{Readers: 1, TempDir: t.TempDir()})
	o.usage = k.usage
	first, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{ctx: testContext(t), r: first, job: newJob(rand.New(rand.NewPCG(9, 9)), fold.Sum), t: t}
	if err := first.OpenJob(s.ctx, s.job.spec); err != nil {
		t.Fatal(err)
	}
	s.reset(2)
	l := k.links(t)()
	a, b := s.cut(2, 0, some(5)...), s.cut(2, 1, some(5)...)
	l.send(a.seal(0, s.open(a), 1))
	k.looks.Store(true)
	waitFor(t, "a flip", func() bool { return first.tables.flips.Load() > 0 })
	k.looks.Store(false)
	if n := s.user(2); n != 0 {
		t.Fatalf("%d pairs were folded in user space: the test shows nothing", n)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	k.resumed = true
	s.r = testReceiver(t, o)
	if err := s.r.OpenJob(s.ctx, s.job.spec); err != nil {
		t.Fatal(err)
	}
	s.reset(2)
	if g := s.open(a); g.Claimed != nil || g.Done {
		t.Fatalf("grant after the restart: %+v", g)
	}
	for _, o := range []*output{a, b} {
		l.send(o.seal(0, s.open(o), 1))
		waitFor(t, "the stream", func() bool { return s.complete(o) })
	}
	s.result(2, []*output{a, b}, some(5), some(5))
}

// TestOpenMeetsReset opens streams while their target begins anew again and
// again, with few slots: none is lost, none is used by two.
func TestOpenMeetsReset(t *testing.T) {
	for _, kernel := range []bool{false, true} {
		t.Run(fmt.Sprint(kernel), func(t *testing.T) {
			o := Options{Readers: 2, Limits: shuffle.Limits{Streams: 64}}
			var links func() link
			if kernel {
				k := newFakeKernel(t, 2, nil)
				k.slow = 2 * time.Millisecond
				o, links = k.options(o), k.links(t)
			}
			s := newStage(t, o, fold.Sum)
			if !kernel {
				links = socketLinks(t, s.r)
			}
			var gen atomic.Uint32
			gen.Store(1)
			stop := make(chan struct{})
			var g errgroup.Group
			for i := range uint32(6) {
				l := links()
				g.Go(func() error {
					for n := uint32(0); ; n++ {
						select {
						case <-stop:
							return nil
						default:
						}
						// Errors are as they come: the generation is over at any time.
						_ = pushOnce(s.ctx, s.r, s.cut(gen.Load(), i+100*n, some(100)...), nil, l)
					}
				})
			}
			for range 20 {
				time.Sleep(5 * time.Millisecond)
				s.reset(gen.Add(1))
			}
			close(stop)
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			s.reset(gen.Add(1))
			last := gen.Load()
			// All slots are there: as many streams as there are can be open at once.
			var outputs []*output
			var specs []shuffle.StreamSpec
			var lists [][]pair
			for i := range s.r.mem.Streams {
				lists = append(lists, some(3))
				outputs = append(outputs, s.cut(last, uint32(i), some(3)...))
				specs = append(specs, outputs[i].spec)
			}
			grants, err := s.r.Open(s.ctx, specs)
			if err != nil {
				t.Fatal(err)
			}
			taken := map[uint32]bool{}
			l := links()
			for i, gr := range grants {
				if taken[gr.Slot] || gr.Claimed != nil {
					t.Errorf("grant %+v", gr)
				}
				taken[gr.Slot] = true
				l.send(outputs[i].seal(0, gr, 1))
			}
			for _, o := range outputs {
				waitFor(t, "a stream", func() bool { return s.complete(o) })
			}
			s.result(last, outputs, lists...)
			if n := s.r.Stats().Reasons[wire.BadTag]; n != 0 {
				t.Errorf("%d frames had a wrong tag", n)
			}
		})
	}
}
