// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// bench is a receiver with one job, one target and a socket to it.
type stage struct {
	ctx  context.Context
	r    *Receiver
	job  *testJob
	link socketLink
	t    testing.TB
}

func newStage(t testing.TB, opts Options, ops ...fold.Op) *stage {
	s := &stage{ctx: testContext(t), r: testReceiver(t, opts), job: newJob(rand.New(rand.NewPCG(9, 9)), ops...), t: t}
	if err := s.r.OpenJob(s.ctx, s.job.spec); err != nil {
		t.Fatal(err)
	}
	s.target(1)
	var err error
	if s.link, err = dial(s.r.Port()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.link.Close() })
	return s
}

func (s *stage) target(gen uint32) {
	s.t.Helper()
	if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(0, gen)}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) cut(gen, task uint32, list ...pair) *output {
	return s.job.cut(shuffle.StreamID{Target: s.job.target(0, gen), Map: task}, list)
}

func (s *stage) open(o *output) shuffle.Grant {
	s.t.Helper()
	g, err := s.r.Open(s.ctx, []shuffle.StreamSpec{o.spec})
	if err != nil {
		s.t.Fatal(err)
	}
	return g[0]
}

func (s *stage) complete(o *output) bool {
	s.t.Helper()
	st, err := s.r.Status(s.ctx, []shuffle.StreamID{o.spec.ID})
	if err != nil {
		s.t.Fatal(err)
	}
	return st[0].Complete
}

// counted waits until n frames have ended for a reason.
func (s *stage) counted(reason wire.Reason, n uint64) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got := s.r.Stats().Reasons[reason]
		if got == n {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d frames ended for %q, want %d; all: %v", got, reasonName(reason), n, s.r.Stats().Reasons)
		}
	}
}

// user returns the pairs folded in user space.
func (s *stage) user(gen uint32) uint64 {
	s.t.Helper()
	b, err := s.r.Totals(s.job.target(0, gen))
	if err != nil {
		s.t.Fatal(err)
	}
	return b.User
}

func some(n int) (list []pair) {
	for i := range n {
		list = append(list, pair{fmt.Sprintf("key%d", i), []int64{int64(i)}})
	}
	return list
}

// TestBadFrames sends frames that must change nothing, one for each reason.
func TestBadFrames(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum)
	o := s.cut(1, 0, some(200)...)
	g := s.open(o)
	good := func(i int) []byte { return o.seal(i, g, 3) }
	other := g
	other.Token++
	elsewhere := g
	elsewhere.Slot += 1 << 20
	reseal := func(f []byte) []byte { s.job.tags.SealData(f); return f }
	bad := []struct {
		name   string
		frame  []byte
		reason wire.Reason
	}{
		{"empty", []byte{}, wire.Foreign},
		{"foreign", []byte("GET / HTTP/1.1 and a lot more than sixty-four bytes of something else altogether"), wire.Foreign},
		{"truncated head", good(0)[:40], wire.Foreign},
		{"truncated body", good(0)[:200], wire.Malformed},
		{"trailer", append(good(0), 0), wire.Malformed},
		{"wrong token", o.seal(0, other, 3), wire.BadToken},
		{"no such slot", o.seal(0, elsewhere, 3), wire.BadToken},
		{"closed slot", o.seal(0, shuffle.Grant{Slot: g.Slot ^ 1, Token: g.Token}, 3), wire.BadToken},
		{"token 0", o.seal(0, shuffle.Grant{Slot: g.Slot ^ 1}, 3), wire.BadToken},
		{"wrong tag", func() []byte { f := good(0); f[32] ^= 1; return f }(), wire.BadTag},
		{"damaged key", func() []byte { f := good(0); f[wire.HeadSize+10] ^= 1; return f }(), wire.BadTag},
		{"other number", func() []byte { f := good(0); f[20] ^= 1; return f }(), wire.BadTag},
		{"other sender's slot", func() []byte { f := good(0); f[24] ^= 1; return f }(), wire.BadTag},
		{"beyond the end", func() []byte { f := good(0); le.PutUint32(f[20:], uint32(len(o.frames))); return reseal(f) }(), wire.BadSeq},
		{"other lanes", func() []byte {
			var b wire.Builder
			b.Reset(make([]byte, wire.FrameSize), wire.Keyed(0, 2, false))
			b.Add(1, []byte("x"), []int64{1, 2})
			return b.Finish(wire.Head{Token: g.Token, Stream: g.Slot, Back: 3}, s.job.tags)
		}(), wire.Malformed},
		{"vector", func() []byte {
			var b wire.Builder
			b.Reset(make([]byte, wire.FrameSize), wire.Dense)
			b.AddValue(0, 1)
			return b.Finish(wire.Head{Token: g.Token, Stream: g.Slot, Back: 3}, s.job.tags)
		}(), wire.Malformed},
		{"key too long for its class", func() []byte {
			f := good(0)
			f[wire.HeadSize] |= 0x7f
			return reseal(f)
		}(), wire.Malformed},
		{"acknowledgement", wire.PutAck(make([]byte, wire.AckFrame), wire.ReadHead(good(0)), wire.AckBody{From: 1}, s.job.tags), wire.AckStray},
	}
	counts := map[wire.Reason]uint64{}
	for _, b := range bad {
		s.link.send(b.frame)
		counts[b.reason]++
		if len(b.frame) == 0 {
			counts[b.reason]-- // an empty packet holds no frame
		}
		for reason, n := range counts {
			if n > 0 {
				s.counted(reason, n)
			}
		}
	}
	if n := s.user(1); n != 0 {
		t.Fatalf("%d pairs were folded", n)
	}
	if st, _ := s.r.Status(s.ctx, []shuffle.StreamID{o.spec.ID}); st[0].Claimed[0] != 0 {
		t.Fatalf("frames were claimed: %x", st[0].Claimed)
	}
	if used := s.r.arena.Used(); used != 0 {
		t.Errorf("%d bytes of records", used)
	}
	// All of them, then what is right, twice.
	for range 2 {
		for i := range o.frames {
			s.link.send(good(i))
		}
	}
	s.counted(wire.Folded, uint64(len(o.frames)))
	s.counted(wire.Duplicate, uint64(len(o.frames)))
	if n := s.user(1); n != 200 || !s.complete(o) {
		t.Errorf("%d pairs were folded", n)
	}
}

// TestRandomDamage flips bits and bytes of frames at random: none of them is folded.
func TestRandomDamage(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum)
	o := s.cut(1, 0, some(40)...)
	g := s.open(o)
	h := newHand(s.r, nil)
	rapid.Check(t, func(rt *rapid.T) {
		f := o.seal(0, g, 3)
		n := rapid.IntRange(1, 4).Draw(rt, "n")
		changed := false
		for range n {
			// Not stamp, flags and scratch, which are not under the tag.
			at := rapid.OneOf(rapid.IntRange(0, 39), rapid.IntRange(64, len(f)-1)).Draw(rt, "at")
			x := rapid.Byte().Draw(rt, "x")
			changed = changed || x != 0
			f[at] ^= x
		}
		if !changed {
			return
		}
		before := s.user(1)
		h.frame(f, nil, nil)
		h.letGo()
		if after := s.user(1); after != before {
			// Two changes of one byte may cancel each other out.
			if string(f) != string(o.seal(0, g, 3)) {
				rt.Fatalf("a damaged frame was folded")
			}
			rt.Skip()
		}
	})
}

// TestDelayedFrame uses a slot again while a frame of the stream before is
// still under way.
func TestDelayedFrame(t *testing.T) {
	s := newStage(t, Options{Readers: 1, Limits: shuffle.Limits{Streams: 1}}, fold.Sum)
	a, b := s.cut(1, 0, some(3)...), s.cut(1, 1, some(3)...)
	ga := s.open(a)
	delayed := a.seal(0, ga, 3)
	s.link.send(delayed)
	s.counted(wire.Folded, 1)
	if !s.complete(a) {
		t.Fatal("not complete")
	}
	// There is no slot for the next one until this one is confirmed.
	opened := make(chan shuffle.Grant)
	go func() { opened <- s.open(b) }()
	select {
	case <-opened:
		t.Fatal("a slot in use was given away")
	case <-time.After(20 * time.Millisecond):
	}
	if err := s.r.Confirm(s.ctx, []shuffle.StreamID{a.spec.ID}); err != nil {
		t.Fatal(err)
	}
	gb := <-opened
	if gb.Slot != ga.Slot {
		t.Fatalf("slot %d, not %d", gb.Slot, ga.Slot)
	}
	if gb.Token == ga.Token || gb.Token == 0 || gb.Claimed != nil {
		t.Fatalf("grants %+v, %+v", ga, gb)
	}
	s.link.send(delayed)
	s.counted(wire.BadToken, 1)
	if n := s.user(1); n != 3 || s.complete(b) {
		t.Errorf("the delayed frame was folded: %d pairs", n)
	}
	s.link.send(b.seal(0, gb, 3))
	s.counted(wire.Folded, 2)
	if n := s.user(1); n != 6 || !s.complete(b) {
		t.Errorf("%d pairs", n)
	}
}

// TestClaimedIsNotFolded has a frame's bit set while its folder is still at it:
// the stream is not complete before that is through.
func TestClaimedIsNotFolded(t *testing.T) {
	t.Run("user", func(t *testing.T) {
		s := newStage(t, Options{Readers: 1}, fold.Sum)
		o := s.cut(1, 0, some(3)...)
		s.open(o)
		st := s.r.streamAt(&wire.Head{Stream: s.open(o).Slot, Token: s.open(o).Token})
		st.target.mu.Lock() // a folder at work
		if !st.shared.ClaimUser(0) {
			t.Fatal("no claim")
		}
		done := make(chan bool)
		go func() { done <- s.complete(o) }()
		select {
		case <-done:
			t.Fatal("complete while a folder works on a frame")
		case <-time.After(30 * time.Millisecond):
		}
		st.target.userPairs += 3
		st.target.mu.Unlock()
		if !<-done {
			t.Error("not complete in the end")
		}
	})
	t.Run("kernel", func(t *testing.T) {
		claimed, goOn := make(chan bool), make(chan bool)
		var k *fakeKernel
		k = newFakeKernel(t, 1, func(stream, seq uint32) {
			// The program has found its slots. It claims, and takes its time to apply.
			st := &k.Memory().Streams[stream]
			if !st.ClaimKernel(seq) {
				t.Error("no claim")
			}
			claimed <- true
			<-goOn
			for i := range st.Seen { // so that the model claims it itself, and applies
				atomic.StoreUint64(&st.Seen[i], 0)
			}
		})
		s := newStage(t, k.options(Options{Readers: 1}), fold.Sum)
		if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(1, 1), Keys: [5]uint64{100}}); err != nil {
			t.Fatal(err)
		}
		o := s.job.cut(shuffle.StreamID{Target: s.job.target(1, 1)}, some(3))
		g := s.open(o)
		l := k.links(t)()
		go l.send(o.seal(0, g, 3))
		<-claimed
		done := make(chan bool)
		go func() { done <- s.complete(o) }()
		select {
		case <-done:
			t.Fatal("complete while a program works on a frame")
		case <-time.After(30 * time.Millisecond):
		}
		goOn <- true
		if !<-done {
			t.Error("not complete in the end")
		}
		b, err := s.r.Totals(s.job.target(1, 1))
		if err != nil || b.Kernel != 3 {
			t.Errorf("books %+v, %v", b, err)
		}
	})
}

// TestGenerations begins a target anew in mid-stream.
func TestGenerations(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum)
	a, b := s.cut(1, 0, some(100)...), s.cut(1, 1, some(100)...)
	ga, gb := s.open(a), s.open(b)
	for i := range a.frames {
		s.link.send(a.seal(i, ga, 3))
	}
	s.counted(wire.Folded, uint64(len(a.frames)))
	if !s.complete(a) {
		t.Fatal("not complete")
	}
	// Opening it again is fine and changes nothing.
	s.target(1)
	if s.user(1) != 100 {
		t.Fatal("the target was reset by being opened again")
	}
	s.target(2)
	if n := s.user(2); n != 0 {
		t.Errorf("%d pairs are left of the old generation", n)
	}
	s.link.send(b.seal(0, gb, 3))
	s.counted(wire.BadToken, 1)
	for _, o := range []*output{a, b} {
		if _, err := s.r.Status(s.ctx, []shuffle.StreamID{o.spec.ID}); !errors.Is(err, shuffle.ErrReset) {
			t.Errorf("status: %v", err)
		}
		if _, err := s.r.Open(s.ctx, []shuffle.StreamSpec{o.spec}); !errors.Is(err, shuffle.ErrReset) {
			t.Errorf("open: %v", err)
		}
		if err := s.r.Deliver(s.ctx, o.spec.ID, [][]byte{o.seal(0, ga, 3)}); !errors.Is(err, shuffle.ErrReset) {
			t.Errorf("deliver: %v", err)
		}
		if err := s.r.Confirm(s.ctx, []shuffle.StreamID{o.spec.ID}); err != nil {
			t.Errorf("confirm: %v", err)
		}
	}
	if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(0, 1)}); !errors.Is(err, shuffle.ErrReset) {
		t.Errorf("open the old target: %v", err)
	}
	if _, err := s.r.Finish(s.ctx, s.job.target(0, 1), Expect{}); !errors.Is(err, shuffle.ErrReset) {
		t.Errorf("finish the old target: %v", err)
	}
	if _, err := s.r.Open(s.ctx, []shuffle.StreamSpec{s.cut(3, 0, some(1)...).spec}); !errors.Is(err, shuffle.ErrUnknown) {
		t.Errorf("open a stream of a generation to come: %v", err)
	}
	c := s.cut(2, 0, some(5)...)
	gc := s.open(c)
	s.link.send(c.seal(0, gc, 3))
	s.counted(wire.Folded, uint64(len(a.frames))+1)
	if !s.complete(c) || s.user(2) != 5 {
		t.Error("the new generation does not work")
	}
	res, err := s.r.Finish(s.ctx, s.job.target(0, 2), Expect{Streams: 1, Pairs: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	// A finished target still answers.
	if !s.complete(c) || !s.open(c).Done {
		t.Error("a finished target has forgotten its stream")
	}
}

// TestOverflow folds sums that wrap on their way. Only what does not fit in
// the end is an error, whatever the order, and whoever folded.
func TestOverflow(t *testing.T) {
	const big = math.MaxInt64
	for _, c := range []struct {
		name   string
		values []int64
		fits   bool
	}{
		{"there and back", []int64{big, big, -big, -big, 5}, true},
		{"down and up", []int64{-big, -big, -big, big, big, big}, true},
		{"just fits", []int64{big, -1, 1}, true},
		{"smallest", []int64{math.MinInt64, -1, 1}, true},
		{"one too many", []int64{big, 1}, false},
		{"one too few", []int64{math.MinInt64, -1}, false},
		{"thrice", []int64{big, big, big}, false},
		{"whole rounds", []int64{math.MinInt64, math.MinInt64}, false},
	} {
		for _, kernel := range []bool{false, true} {
			for seed := range uint64(4) {
				t.Run(fmt.Sprintf("%s/kernel=%v/%d", c.name, kernel, seed), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 1))
					ctx := testContext(t)
					opts := Options{Readers: 1}
					var links func() link
					if kernel {
						k := newFakeKernel(t, 2, nil)
						opts = k.options(opts)
						links = k.links(t)
					}
					r := testReceiver(t, opts)
					if !kernel {
						links = socketLinks(t, r)
					}
					ops := []fold.Op{fold.Sum, fold.Sum}
					w := &work{job: newJob(rng, ops...), ops: ops, parts: 1, outputs: make([][]*output, 1), oracles: []*oracle{newOracle(ops)}, expect: []Expect{{}}}
					w.keys = [5]uint64{10, 0, 0, 0, 0}
					values := append([]int64(nil), c.values...)
					rng.Shuffle(len(values), func(a, b int) { values[a], values[b] = values[b], values[a] })
					for i, v := range values {
						list := []pair{{"k", []int64{v, 1}}, {"lane two", []int64{1, v}}, {"fine", []int64{1, 2}}, {strings.Repeat("long", 30), []int64{v, v}}}
						w.oracles[0].add(list)
						o := w.job.cut(shuffle.StreamID{Target: w.job.target(0, 1), Map: uint32(i)}, list)
						w.outputs[0] = append(w.outputs[0], o)
						w.expect[0].Streams++
						w.expect[0].Pairs += o.spec.Pairs
					}
					w.open(ctx, t, r)
					l := links()
					for _, o := range w.outputs[0] { // in this order
						if err := push(ctx, r, o, nil, l); err != nil {
							t.Fatal(err)
						}
						if seed == 3 { // with runs on disk
							tg, _ := r.target(w.job.target(0, 1))
							tg.mu.Lock()
							if tg.active != nil && tg.active.Records() > 0 {
								tg.spillActive()
							}
							tg.mu.Unlock()
						}
					}
					res, err := r.Finish(ctx, w.job.target(0, 1), w.expect[0])
					if err != nil {
						t.Fatal(err)
					}
					defer res.Close()
					if kernel == (res.Kernel == 0) {
						t.Errorf("%d pairs were folded in the kernel", res.Kernel)
					}
					err = w.oracles[0].check(ctx, res)
					switch {
					case c.fits && err != nil:
						t.Error(err)
					case !c.fits && (!errors.Is(err, ErrOverflow) || !strings.Contains(err.Error(), `"k"`)):
						t.Errorf("the error is %v", err)
					}
				})
			}
		}
	}
}

// TestAudit shows that the books are looked at: whatever is off by one is found.
func TestAudit(t *testing.T) {
	for _, c := range []struct {
		name string
		what string
		spec func(*shuffle.StreamSpec)
		to   func(*target)
		e    func(*Expect)
		want error
	}{
		{name: "balanced"},
		{name: "a stream too few", e: func(e *Expect) { e.Streams++ }, want: ErrIncomplete, what: "1 of 2"},
		{name: "sender's count", spec: func(s *shuffle.StreamSpec) { s.Pairs++ }, e: func(e *Expect) { e.Pairs++ }, want: ErrAudit, what: "101 pairs were sent"},
		{name: "manifests", e: func(e *Expect) { e.Pairs++ }, want: ErrAudit, what: "the manifests say 101"},
		{name: "user's count", to: func(t *target) { t.userPairs-- }, want: ErrAudit, what: "99 were folded"},
		{name: "sender's check", spec: func(s *shuffle.StreamSpec) { s.Check = []uint64{s.Check[0] + 1} }, want: ErrAudit, what: "lane 0"},
		{name: "values", to: func(t *target) {
			k := []byte("key7")
			t.active.Add1(bytesAt(k), len(k), 1)
			t.active.Flush()
		}, want: ErrAudit, what: "lane 0"},
		{name: "manifests' check", e: func(e *Expect) { e.Check = []uint64{1} }, want: ErrAudit, what: "in the manifests"},
		{name: "kernel's count", to: func(t *target) { t.r.cells(t.slot)[0].Pairs++ }, want: ErrAudit, what: "1 in the kernel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, Options{Readers: 1}, fold.Sum)
			o := s.cut(1, 0, some(100)...)
			if c.spec != nil {
				c.spec(&o.spec)
			}
			if err := push(s.ctx, s.r, o, nil, s.link); err != nil {
				t.Fatal(err)
			}
			tg, err := s.r.target(s.job.target(0, 1))
			if err != nil {
				t.Fatal(err)
			}
			if c.to != nil {
				tg.mu.Lock()
				c.to(tg)
				tg.mu.Unlock()
			}
			e := Expect{Streams: 1, Pairs: 100}
			if c.e != nil {
				c.e(&e)
			}
			res, err := s.r.Finish(s.ctx, s.job.target(0, 1), e)
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if err := res.Walk(s.ctx, func([]byte, []int64) error { return nil }); err != nil {
					t.Error(err)
				}
				res.Close()
				return
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.what) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestAnswers reads what comes back for a frame.
func TestAnswers(t *testing.T) {
	s := newStage(t, Options{Readers: 1, InFlight: 100}, fold.Sum)
	o := s.cut(1, 0, some(30000)...)
	g := s.open(o)
	if g.Share != 100 {
		t.Errorf("share %d", g.Share)
	}
	seen := map[uint64]bool{}
	for _, seq := range []int{0, 5, 5, 300} {
		f := o.seal(seq, g, 77)
		wire.SetStamp(f, 12345+uint64(seq), true)
		s.link.send(f)
		b := make([]byte, 2000)
		s.link.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := s.link.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		h, a, err := wire.ParseAck(b[:n])
		if err != nil {
			t.Fatal(err)
		}
		if !s.job.tags.Open(b[:n], a.Nonce) || seen[a.Nonce] || a.Nonce>>wire.NonceCPU != wire.UserCPU {
			t.Errorf("tag or nonce %#x", a.Nonce)
		}
		seen[a.Nonce] = true
		if h.Kind != wire.Ack || h.Token != g.Token || h.Back != 77 || h.Seq != uint32(seq) ||
			a.From != wire.FromUser || a.Stamp != 12345+uint64(seq) || a.Share != 100 {
			t.Errorf("answer %+v %+v", h, a)
		}
		word := seq/32 - int(a.Base)
		if word < 0 || word >= wire.AckWords || a.Claimed[word]>>(seq%32)&1 == 0 {
			t.Errorf("frame %d is not in its answer: base %d, %x", seq, a.Base, a.Claimed)
		}
	}
	// Without the flag nobody answers; a probe is.
	f := o.seal(9, g, 77)
	wire.SetStamp(f, 1, false)
	s.link.send(f)
	s.link.send(wire.PutProbe(make([]byte, wire.FrameSize), 42, 1, 64, 9))
	b := make([]byte, 2000)
	n, err := s.link.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := wire.ParseProbe(b[:n]); err != nil || h.Kind != wire.ProbeReply || h.Count != wire.FromUser || h.Token != 42 {
		t.Errorf("answer to a probe: %+v, %v", h, err)
	}
	// What a program left to user space is sent on.
	s = newGate(t).stage(t, fold.Sum)
	ack := wire.PutAck(make([]byte, wire.AckFrame), wire.ReadHead(f), wire.AckBody{Nonce: 5, From: wire.FromKernel}, s.job.tags)
	sent := append([]byte(nil), ack...)
	sent[4] = byte(wire.Answer)
	s.link.send(sent)
	if n, err = s.link.Read(b); err != nil || string(b[:n]) != string(ack) {
		t.Errorf("answer sent on: %x, %v", b[:n], err)
	}
}

// TestShares has the share follow the number of open streams.
func TestShares(t *testing.T) {
	s := newStage(t, Options{Readers: 1, InFlight: 100}, fold.Sum)
	var ids []shuffle.StreamID
	for i := range uint32(50) {
		o := s.cut(1, i, some(1)...)
		g := s.open(o)
		if want := max(4, 100/int(i+1)); g.Share != want {
			t.Errorf("share %d with %d streams, want %d", g.Share, i+1, want)
		}
		s.link.send(o.seal(0, g, 1))
		ids = append(ids, o.spec.ID)
	}
	s.counted(wire.Folded, 50)
	if _, err := s.r.Status(s.ctx, ids); err != nil {
		t.Fatal(err)
	}
	if err := s.r.Confirm(s.ctx, ids[:49]); err != nil {
		t.Fatal(err)
	}
	for i := range s.r.mem.Streams {
		if st := &s.r.mem.Streams[i]; st.Token != 0 && st.Share != 100 {
			t.Errorf("share %d of the last one", st.Share)
		}
	}
}

// TestControl holds errors of use to what they say.
func TestControl(t *testing.T) {
	s := newStage(t, Options{Readers: 1, Limits: shuffle.Limits{Streams: 4, Targets: 2}}, fold.Sum)
	o := s.cut(1, 0, some(3)...)
	s.open(o)
	changed := o.spec
	changed.Pairs++
	other := s.job.spec
	other.Seed.A++
	unknown := newJob(rand.New(rand.NewPCG(8, 8)), fold.Sum)
	unopened := s.cut(1, 9, some(1)...)
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"job", s.r.OpenJob(s.ctx, other), "another seed"},
		{"lanes", s.r.OpenJob(s.ctx, shuffle.JobSpec{}), "0 lanes"},
		{"target of no job", s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: unknown.target(0, 1)}), "not open here"},
		{"too many targets", errors.Join(s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(1, 1)}), s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(2, 1)})), "all 2 targets"},
		{"too long a vector", s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(7, 1), Dense: 1 << 40}), "more partitions"},
		{"other frames", second(s.r.Open(s.ctx, []shuffle.StreamSpec{changed})), "other frames"},
		{"twice", second(s.r.Open(s.ctx, []shuffle.StreamSpec{o.spec, o.spec})), "twice"},
		{"too many", second(s.r.Open(s.ctx, make([]shuffle.StreamSpec, 5))), "room for 4"},
		{"too long", second(s.r.Open(s.ctx, []shuffle.StreamSpec{{ID: unopened.spec.ID, Frames: 4097}})), "at most 4096"},
		{"confirmed too early", s.r.Confirm(s.ctx, []shuffle.StreamID{o.spec.ID}), "not complete"},
		{"status of none", second(s.r.Status(s.ctx, []shuffle.StreamID{unopened.spec.ID})), "open its streams again"},
		{"incomplete", second(s.r.Finish(s.ctx, s.job.target(0, 1), Expect{Streams: 1})), "0 of 1 frames"},
		{"kernel only", second(New(Options{Mode: shuffle.KernelOnly})), "quern doctor"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, c.err)
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Millisecond)
	defer cancel()
	var many []shuffle.StreamSpec
	for i := range uint32(4) {
		many = append(many, s.cut(1, 20+i, some(1)...).spec)
	}
	if _, err := s.r.Open(ctx, many); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for slots: %v", err)
	}
	if err := s.r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: s.job.target(0, 1)}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestVector folds vectors, in the kernel where nothing can wrap.
func TestVector(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     fold.Op
		bound  bool
		kernel bool
		folds  bool // in the kernel
		wraps  bool
	}{
		{name: "user", op: fold.Sum},
		{name: "wraps", op: fold.Sum, wraps: true},
		{name: "max", op: fold.Max},
		{name: "kernel", op: fold.Sum, bound: true, kernel: true, folds: true},
		{name: "kernel and", op: fold.And, kernel: true, folds: true},
		{name: "kernel min", op: fold.Min, kernel: true, folds: true},
		{name: "unbounded", op: fold.Sum, kernel: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := testContext(t)
			rng := rand.New(rand.NewPCG(4, 4))
			opts := Options{Readers: 1}
			var links func() link
			if c.kernel {
				k := newFakeKernel(t, 2, nil)
				opts, links = k.options(opts), k.links(t)
			}
			r := testReceiver(t, opts)
			if !c.kernel {
				links = socketLinks(t, r)
			}
			j := newJob(rng, c.op)
			j.spec.Bound = []bool{c.bound}
			const n = 3000
			if err := r.OpenJob(ctx, j.spec); err != nil {
				t.Fatal(err)
			}
			if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: j.target(0, 1), Dense: n}); err != nil {
				t.Fatal(err)
			}
			want := make([]int64, n)
			for i := range want {
				want[i] = c.op.Identity()
			}
			e := Expect{Check: []uint64{0}}
			l := links()
			for m := range uint32(4) {
				o := &output{job: j, spec: shuffle.StreamSpec{ID: shuffle.StreamID{Target: j.target(0, 1), Map: m}, Check: []uint64{0}}}
				var b wire.Builder
				start := func() { b.Reset(make([]byte, wire.FrameSize), wire.Dense|wire.Wide) }
				end := func() { o.frames = append(o.frames, b.Finish(wire.Head{Seq: uint32(len(o.frames))}, nil)) }
				start()
				for i := range uint32(n) {
					v := int64(rng.Uint64()) >> (2 + rng.IntN(60))
					if c.wraps && i == 2500 {
						v = math.MaxInt64
					}
					want[i] = c.op.Apply(want[i], v)
					if c.op == fold.Sum {
						o.spec.Check[0] += uint64(v) * j.spec.Seed.HashShort(uint64(i), 0, 8)
					}
					if !b.AddValue(i, v) {
						end()
						start()
						b.AddValue(i, v)
					}
				}
				end()
				o.spec.Frames, o.spec.Pairs = len(o.frames), n
				e.Streams++
				e.Pairs += n
				e.Check[0] += o.spec.Check[0]
				if err := push(ctx, r, o, nil, l); err != nil {
					t.Fatal(err)
				}
			}
			res, err := r.Finish(ctx, j.target(0, 1), e)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Close()
			if c.folds != (res.Kernel > 0) {
				t.Errorf("%d values were folded in the kernel, %d in user space", res.Kernel, res.User)
			}
			got, err := res.Values()
			if c.wraps {
				if !errors.Is(err, ErrOverflow) || !strings.Contains(err.Error(), "value 2500") {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("value %d: %d, not %d", i, got[i], want[i])
				}
			}
		})
	}
}

// TestOneAddress listens on an address of one family.
func TestOneAddress(t *testing.T) {
	r := testReceiver(t, Options{Listen: "127.0.0.1"})
	if ip := r.sockets[0].conn.LocalAddr().(*net.UDPAddr).IP; !ip.Equal(net.IPv4(127, 0, 0, 1)) {
		t.Errorf("listens on %s", ip)
	}
}

// TestAnswerSource has answers come from the address that frames went to, also where the
// host has several.
func TestAnswerSource(t *testing.T) {
	for _, listen := range []string{"", "0.0.0.0"} {
		r := testReceiver(t, Options{Listen: listen, Readers: 1})
		for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
			if host == "::1" && listen != "" {
				continue
			}
			// A connected socket takes nothing from elsewhere.
			c, err := net.Dial("udp", net.JoinHostPort(host, fmt.Sprint(r.Port())))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(wire.PutProbe(make([]byte, wire.FrameSize), 42, 1, 64, 9)); err != nil {
				t.Fatal(err)
			}
			c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := c.Read(make([]byte, 2000)); err != nil {
				t.Errorf("no answer from %s, listening on %q: %v", host, listen, err)
			}
		}
	}
}
