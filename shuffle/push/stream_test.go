// SPDX-License-Identifier: Apache-2.0

package push

import (
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/wire"
)

// bare returns a sender's stream of n frames without sockets or control plane.
func bare(o *commit.Output, mem *shuffle.Memory, claimed []uint32) *stream {
	s := &Sender{opts: Options{}.EnsureDefaults(), mem: mem, owners: make([]atomic.Pointer[stream], len(mem.Outgoing))}
	u := &push{
		sender: s, out: o, tags: wire.NewTags(job.Secret), frame: wire.FrameSize, window: 192, began: 1,
		report: &Report{}, req: &Request{Job: job, Target: target}, parcels: map[*stream][]int{}, notify: make(chan struct{}, 1),
		path: &path{signal: make(chan struct{}, 1)},
	}
	st := newStream(u, 0, u.spec(0), shuffle.Grant{Slot: 1, Token: 9, Share: 192, Claimed: claimed}, 0)
	st.publish(0)
	return st
}

// consistent checks what must hold between all steps.
func consistent(t interface{ Fatalf(string, ...any) }, s *stream, w *window) {
	for f := range s.n {
		k, fl, lo, tcp := s.known.has(f), s.flight.has(f), s.lost.has(f), s.tcp.has(f)
		n := 0
		for _, b := range []bool{k, fl, lo, tcp} {
			if b {
				n++
			}
		}
		if n > 1 || n == 0 && f < s.next {
			t.Fatalf("frame %d of %d: known %v, in flight %v, lost %v, left %v", f, s.next, k, fl, lo, tcp)
		}
		if f >= s.next && (fl || lo) {
			t.Fatalf("frame %d is in flight, and all from %d on were not sent", f, s.next)
		}
		if f < s.base && !k {
			t.Fatalf("frame %d is below %d and not known", f, s.base)
		}
	}
	if s.known.count() != s.nKnown || s.flight.count() != s.nFlight || s.lost.count() != s.nLost {
		t.Fatalf("counts %d %d %d", s.nKnown, s.nFlight, s.nLost)
	}
	if w.flight != s.nFlight {
		t.Fatalf("%d in flight on the way, %d of the stream", w.flight, s.nFlight)
	}
	if s.nFlight > 0 {
		first := s.flight.first()
		last := first
		for f := first; f < s.n; f++ {
			if s.flight.has(f) {
				last = f
			}
		}
		// An answer to the last must tell of the first.
		if int(wire.AckBase(uint32(last)))*32 > first {
			t.Fatalf("frames %d and %d are in flight together", first, last)
		}
	}
	if w.size < 1 || w.limit() > w.ceiling {
		t.Fatalf("window %+v", w)
	}
}

// Whatever is lost, doubled, late or wrong, in whatever order, a stream's books are in
// order, and it comes to its end once frames get through.
func TestStreamBooks(t *testing.T) {
	o, _ := output(t, 9000, 1)
	small := []int{}
	for i := range o.Frames() {
		if o.Size(i) > wire.FrameSize {
			small = append(small, i)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		var claimed []uint32
		if rapid.Bool().Draw(rt, "claimed") {
			claimed = rapid.SliceOfN(rapid.Uint32(), 0, 8).Draw(rt, "words")
		}
		mem := shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1})
		s := bare(o, mem, claimed)
		s.grant.Share = 192
		w := newWindow(s.push.sender.opts)
		at := int64(1000)
		for _, f := range small {
			if !s.known.has(f) {
				s.leave(f, &w)
			}
		}
		var seen [wire.SeenWords]uint64 // at the receiver
		for i, c := range claimed {
			seen[i] = uint64(c)
		}
		type sent struct {
			f     int
			stamp int64
		}
		var wire_ []sent
		nonce := uint64(0)
		send := func(n int) {
			for ; n > 0 && w.room() > 0 && s.waiting(); n-- {
				f, _ := s.pick()
				if f >= s.n {
					rt.Fatalf("frame %d of %d is to be sent", f, s.n)
				}
				s.took(f, at, &w)
				wire_ = append(wire_, sent{f, at})
			}
		}
		arrive := func(i int, answer bool) {
			x := wire_[i]
			seen[x.f/32] |= 1 << (x.f % 32)
			if answer {
				nonce++
				a := wire.AckBody{Nonce: nonce, Stamp: uint64(x.stamp), From: wire.FromUser}
				a.Window(&seen, uint32(x.f))
				s.absorb(&a, at)
			}
		}
		for range rapid.IntRange(0, 150).Draw(rt, "steps") {
			at += rapid.Int64Range(1, int64(3*time.Millisecond)).Draw(rt, "time")
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0, 1:
				send(rapid.IntRange(1, 70).Draw(rt, "n"))
			case 2, 3:
				for range rapid.IntRange(1, 40).Draw(rt, "arrivals") {
					if len(wire_) > 0 {
						arrive(rapid.IntRange(0, len(wire_)-1).Draw(rt, "which"), rapid.IntRange(0, 7).Draw(rt, "answer") == 0)
					}
				}
			case 4:
				if s.nFlight > 0 {
					s.lose(s.flight.first(), &w)
				}
			case 5:
				s.loseAll(&w)
				w.silent(at)
			}
			s.harvest(at, &w, rapid.Bool().Draw(rt, "full"))
			s.judge(at, &w)
			consistent(rt, s, &w)
		}
		s.deliver(small)
		for turns := 0; s.nKnown < s.n; turns++ {
			if turns > 2000 {
				rt.Fatalf("no end: %d of %d, %d in flight, %d lost, window %+v", s.nKnown, s.n, s.nFlight, s.nLost, w)
			}
			at += int64(time.Millisecond)
			from := len(wire_)
			send(64)
			for i := from; i < len(wire_); i++ {
				arrive(i, true)
			}
			s.harvest(at, &w, true)
			s.judge(at, &w)
			if s.nFlight > 0 && s.spoke+w.probe(s.tries) <= at {
				s.loseAll(&w)
				s.spoke = at
			}
			consistent(rt, s, &w)
		}
	})
}

// After the receiver has said what is missing, exactly that is sent again.
func TestMissing(t *testing.T) {
	o, _ := output(t, 9000, 1)
	rapid.Check(t, func(rt *rapid.T) {
		mem := shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1})
		s := bare(o, mem, nil)
		w := newWindow(s.push.sender.opts)
		s.deliver(rangeOf(s.n))
		s.harvest(5, &w, true)
		if s.nKnown != s.n {
			rt.Fatal("not all is known")
		}
		words := rapid.SliceOfN(rapid.Uint32(), 0, 8).Draw(rt, "claimed")
		have := claims(words, s.n)
		if got := s.miss(words); got != (have.count() < s.n) {
			rt.Fatalf("missing: %v", got)
		}
		if have.count() == s.n {
			return
		}
		w.size, w.ceiling = 1e6, 1e6
		got := map[int]bool{}
		for s.waiting() {
			f, again := s.pick()
			if have.has(f) || got[f] || !again {
				rt.Fatalf("frame %d is sent, have it: %v", f, have.has(f))
			}
			got[f] = true
			s.took(f, 6, &w)
		}
		if len(got) != s.n-have.count() {
			rt.Fatalf("%d frames, want %d", len(got), s.n-have.count())
		}
		if n := atomic.LoadUint64(&s.out.Count); n != uint64(have.count()) {
			rt.Fatalf("count %d", n)
		}
		s.deliver(rangeOf(s.n))
		s.harvest(7, &w, true)
		if s.nKnown != s.n || w.flight != 0 || s.nLost != 0 {
			rt.Fatalf("%d known, %d in flight, %d lost", s.nKnown, w.flight, s.nLost)
		}
	})
}

// However wide the window, frames in flight are no further apart than an answer reaches.
func TestSpan(t *testing.T) {
	o, _ := output(t, 30_000, 1)
	s := bare(o, shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1}), nil)
	w := newWindow(s.push.sender.opts)
	w.size, w.ceiling = 1e6, 1e6
	for s.waiting() {
		f, _ := s.pick()
		s.took(f, 5, &w)
	}
	if s.nFlight != 192 {
		t.Errorf("%d frames are in flight, want 192", s.nFlight)
	}
	consistent(t, s, &w)
	// When all but the first have arrived, it is still waited for.
	s.deliver(rangeOf(192)[1:])
	s.harvest(6, &w, true)
	if s.waiting() {
		t.Error("frames are sent that answers to would not tell of the first")
	}
}

// A frame that was sent again, and had arrived the first time, makes for patience. The
// echoed stamp tells which of the two was answered.
func TestSpurious(t *testing.T) {
	for _, first := range []bool{true, false} {
		o, _ := output(t, 3000, 1)
		s := bare(o, shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1}), nil)
		w := newWindow(s.push.sender.opts)
		const ms = int64(time.Millisecond)
		s.took(0, 1*ms, &w)
		s.took(1, 1*ms, &w)
		s.lose(0, &w)
		w.lost(3*ms, 1*ms)
		s.took(0, 5*ms, &w)
		before := w.limit()
		stamp := uint64(5 * ms)
		if first {
			stamp = uint64(ms)
		}
		a := wire.AckBody{Stamp: stamp, From: wire.FromUser}
		a.Claimed[0] = 3
		s.absorb(&a, 6*ms)
		s.harvest(6*ms, &w, false)
		want := uint64(0)
		if first {
			want = 1
		}
		if s.push.stats.spurious != want || (w.reo > 1) != first || (w.limit() > before) != first {
			t.Errorf("first: %v, spurious: %d, patience x %d, window %d after %d", first, s.push.stats.spurious, w.reo, w.limit(), before)
		}
	}
}

func rangeOf(n int) []int {
	l := make([]int, n)
	for i := range l {
		l[i] = i
	}
	return l
}

func TestBitmap(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 4095, 4096} {
		var m bitmap
		m.fill(n)
		if m.count() != n || len(m.list()) != n || n > 0 && (!m.has(n-1) || m.list()[n-1] != n-1) || n < 4096 && m.has(n) {
			t.Errorf("%d: %d bits", n, m.count())
		}
	}
	words := make([]uint32, 200) // more than there can be
	words[0], words[1], words[127], words[128] = 1, 1<<31, 1<<31, 1
	m := claims(words, wire.Segment)
	if l := m.list(); len(l) != 3 || l[0] != 0 || l[1] != 63 || l[2] != 4095 {
		t.Errorf("%v", l)
	}
	if m := claims(words, 63); m.count() != 1 {
		t.Errorf("%v", m.list())
	}
}

// The window doubles until something is lost, grows by one a round trip then, and
// shrinks once per event.
func TestWindow(t *testing.T) {
	o := Options{Window: 1000}.EnsureDefaults()
	w := newWindow(o)
	w.setCeiling(1000)
	w.begin(20)
	if w.limit() != 20 {
		t.Errorf("begins with %d", w.limit())
	}
	turn := func() {
		n := w.limit()
		w.flight = n
		w.flight -= n
		w.acked(n)
	}
	for _, want := range []int{40, 80, 160} {
		if turn(); w.limit() != want {
			t.Fatalf("%d, want %d", w.limit(), want)
		}
	}
	w.lost(100, 50)
	if w.limit() != 112 {
		t.Errorf("%d after a loss", w.limit())
	}
	w.lost(110, 99) // sent before the window shrank
	if w.limit() != 112 {
		t.Errorf("%d after another loss of the same event", w.limit())
	}
	turn()
	if w.limit() != 113 && w.limit() != 112 {
		t.Errorf("%d after a round trip", w.limit())
	}
	w.spurious(120)
	if w.limit() != 160 {
		t.Errorf("%d after it was found that nothing was lost", w.limit())
	}
	for i := range 50 {
		w.lost(int64(200+i), int64(200+i))
	}
	if w.limit() != floorFrames {
		t.Errorf("%d after many losses", w.limit())
	}
	w.setCeiling(5)
	if w.limit() != 5 {
		t.Errorf("%d with a share of 5", w.limit())
	}
	w.flight = 9
	if w.room() != 0 {
		t.Errorf("room %d", w.room())
	}
	// Few frames in flight do not widen a window.
	w = newWindow(o)
	w.setCeiling(1000)
	w.acked(3)
	if w.limit() != firstFrames {
		t.Errorf("%d", w.limit())
	}
}

// Delay counts per kind of answer: processes are slow to answer, programs are not.
func TestWindowDelay(t *testing.T) {
	const us = int64(time.Microsecond)
	for _, tc := range []struct {
		from    uint32
		rtt     int64
		shrinks bool
	}{
		{wire.FromKernel, 900 * us, false},
		{wire.FromKernel, 4000 * us, true},
		{wire.FromUser, 4000 * us, false},
		{wire.FromUser, 9000 * us, true},
	} {
		w := newWindow(Options{}.EnsureDefaults())
		at := int64(1e9)
		for range 20 {
			at += 100 * us
			w.sample(at, 20*us, wire.FromKernel)
			w.sample(at, 200*us, wire.FromUser)
		}
		before := w.limit()
		w.sample(at+10_000*us, tc.rtt, tc.from)
		if got := w.limit() < before; got != tc.shrinks {
			t.Errorf("%+v: %d, then %d", tc, before, w.limit())
		}
	}
}

func TestProbesBackOff(t *testing.T) {
	w := newWindow(Options{}.EnsureDefaults())
	w.sample(1e9, 50_000, wire.FromKernel)
	last := int64(0)
	for i := range 20 {
		p := w.probe(i)
		if p < last || i < 8 && i > 0 && p != 2*last {
			t.Errorf("%d tries: %v after %v", i, time.Duration(p), time.Duration(last))
		}
		last = p
	}
	if last > int64(500*time.Millisecond) || w.probe(0) != int64(time.Millisecond) {
		t.Errorf("from %v to %v", time.Duration(w.probe(0)), time.Duration(last))
	}
}

func TestHistogram(t *testing.T) {
	var h, all histogram
	for i := range 1000 {
		h.add(int64(i+1) * 1000)
	}
	all.merge(&h)
	r := all.report()
	near := func(got time.Duration, want float64) bool {
		return float64(got) > want*0.93 && float64(got) < want*1.07
	}
	if r.Samples != 1000 || !near(r.P50, 500e3) || !near(r.P99, 990e3) {
		t.Errorf("%+v", r)
	}
	for _, ns := range []uint64{0, 1, 15, 16, 17, 31, 32, 33, 1000, 1 << 40, 1<<63 - 1} {
		if v := float64(valueOf(bucketOf(ns))); v < float64(ns)*0.93 || v > float64(ns)*1.07 {
			t.Errorf("%d counts as %v", ns, v)
		}
	}
}
