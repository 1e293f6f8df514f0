// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it does not come true that %s", what)
		}
	}
}

var nowhere = netip.MustParseAddrPort("127.0.0.1:9")

// region is a spec of a region that only tests send to.
func regionSpec(token uint64, chunks int) shuffle.RegionSpec {
	return shuffle.RegionSpec{
		Job: job(1), Secret: [16]byte{7}, Token: token, Source: nowhere, Chunks: chunks, Chain: 3, Bit: 5, Next: netip.MustParseAddrPort("127.0.0.1:10"),
		Name: "it", Kind: "kind", Offset: 100, Size: 200,
	}
}

// sent is a node whose frames go nowhere but here.
type sentFrame struct {
	frame []byte
	to    netip.AddrPort
}

type lonely struct {
	*Node
	sent []sentFrame
	sink *sink
}

func newLonely(t testing.TB, o Options) *lonely {
	l := &lonely{sink: &sink{}}
	o.Port = 7117
	o.Send = func(b []byte, to netip.AddrPort) error {
		l.sent = append(l.sent, sentFrame{bytes.Clone(b), to})
		return nil
	}
	if o.Incoming == nil {
		o.Incoming = func(of Offer) (Sink, error) { l.sink.offer = of; return l.sink, nil }
	}
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	var err error
	if l.Node, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// chunkOf makes a chunk of a message that fills chunks of a region from first on.
func chunkOf(t testing.TB, spec *shuffle.RegionSpec, whole []byte, first, total, place uint32, chain uint16, seq uint32) []byte {
	t.Helper()
	from := int(place-first) * wire.ChunkSize
	b, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: spec.Token, Seq: seq, Back: 4, Stamp: 77},
		wire.Chunk{Place: place, First: first, Total: total, Chain: chain}, whole[from:min(len(whole), from+wire.ChunkSize)], wire.NewTags(spec.Secret))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func withHead(payload []byte) []byte {
	b := make([]byte, messageHead+len(payload))
	copy(b[messageHead:], payload)
	putMessageHead(b, payload)
	return b
}

var sender = netip.MustParseAddrPort("127.0.0.1:5000")

// A member stores, passes on and answers as the programs do.
func TestMember(t *testing.T) {
	l := newLonely(t, Options{})
	ctx := testContext(t)
	spec := regionSpec(9, 6)
	grant, err := l.Control().OpenRegion(ctx, spec)
	if err != nil || grant != (shuffle.RegionGrant{}) {
		t.Fatalf("%+v, %v", grant, err)
	}
	if want := (Offer{Job: job(1), Name: "it", Kind: "kind", Offset: 100, Size: 200}); l.sink.offer != want {
		t.Errorf("offer %+v, want %+v", l.sink.offer, want)
	}
	payload := noise(1, 3000) // three chunks
	whole := withHead(payload)
	tags := wire.NewTags(spec.Secret)
	last := func() sentFrame { return l.sent[len(l.sent)-1] }
	steps := []struct {
		name   string
		frame  func() []byte
		want   wire.Reason
		to     netip.AddrPort
		kind   wire.Kind
		chain  uint16
		before func()
	}{
		{"to the next one", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 1, 3, 1) }, wire.PassedOn, spec.Next, wire.Broadcast, 3, nil},
		{"again", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 1, 3, 2) }, wire.PassedOn, spec.Next, wire.Broadcast, 3, nil},
		{"for all chains", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 0, wire.ChainAll, 3) }, wire.PassedOn, spec.Next, wire.Broadcast, 3, nil},
		{"of another chain", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 2, 4, 4) }, wire.ChunkPlace, netip.AddrPort{}, 0, 0, nil},
		{"beyond", func() []byte { return chunkOf(t, &spec, whole, 4, 3, 6, 3, 5) }, wire.ChunkPlace, netip.AddrPort{}, 0, 0, nil},
		{"damaged", func() []byte {
			b := chunkOf(t, &spec, whole, 0, 3, 2, 3, 6)
			b[200] ^= 1
			return b
		}, wire.ChunkTag, netip.AddrPort{}, 0, 0, nil},
		{"of another token", func() []byte {
			other := spec
			other.Token = 10
			return chunkOf(t, &other, whole, 0, 3, 2, 3, 7)
		}, wire.UpRegion, netip.AddrPort{}, 0, 0, nil},
		{"no frame", func() []byte { return []byte{1} }, wire.Foreign, netip.AddrPort{}, 0, 0, nil},
		{"cut", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 2, 3, 8)[:100] }, wire.Malformed, netip.AddrPort{}, 0, 0, nil},
		{"being written", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 2, 3, 9) }, wire.ChunkBusy, netip.AddrPort{}, 0, 0, func() {
			wire.ClaimMark(&(*l.tokens.Load())[9].marks[2])
		}},
		{"for this one alone", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 2, wire.ChainDirect, 10) }, wire.ChainAnswered, sender, wire.BroadcastAck, wire.ChainDirect, func() {
			wire.SetMark(&(*l.tokens.Load())[9].marks[2], wire.MarkNone)
		}},
		{"at the end of the chain", func() []byte { return chunkOf(t, &spec, whole, 0, 3, 2, 3, 11) }, wire.ChainAnswered, nowhere, wire.BroadcastAck, 3, func() {
			if err := l.Control().Relink(ctx, 9, netip.AddrPort{}); err != nil {
				t.Error(err)
			}
		}},
	}
	for _, s := range steps {
		if s.before != nil {
			s.before()
		}
		n := len(l.sent)
		if got := l.handle(s.frame(), sender); got != s.want {
			t.Fatalf("%s: %v, want %v", s.name, got, s.want)
		}
		if !s.to.IsValid() {
			if len(l.sent) != n {
				t.Errorf("%s: something was sent", s.name)
			}
			continue
		}
		f := last()
		h, c, data, err := wire.ParseChunk(f.frame)
		if err != nil || !tags.OpenChunk(f.frame) || f.to != s.to || h.Kind != s.kind || h.Hop != 1 || h.Back != 4 || h.Stamp != 77 || c.Chain != s.chain || c.Group != 1<<5 {
			t.Errorf("%s: to %v: %+v %+v %v", s.name, f.to, h, c, err)
		}
		if from := int(c.Place) * wire.ChunkSize; s.kind == wire.Broadcast && !bytes.Equal(data, whole[from:min(from+wire.ChunkSize, len(whole))]) {
			t.Errorf("%s: other data", s.name)
		}
	}
	if err := l.Control().ConfirmMessage(ctx, 9, 0); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := l.sink.state(); len(got) != 1 || !bytes.Equal(got[0], payload) {
		t.Errorf("%d messages", len(got))
	}
	// Genuine, and older than what is there: nothing is written again.
	forged := slices.Clone(whole)
	forged[1000] ^= 1
	l.Handle(chunkOf(t, &spec, forged, 0, 3, 0, 3, 20), sender)
	if r := (*l.tokens.Load())[9]; !bytes.Equal(r.data[:len(whole)], whole) {
		t.Error("a chunk that was stored is written again")
	}
	if err := l.Control().CloseRegion(ctx, 9, true); err != nil {
		t.Error(err)
	}
	if _, ended, err := l.sink.state(); ended != 1 || err != nil {
		t.Errorf("ended %d times: %v", ended, err)
	}
	if got := l.handle(chunkOf(t, &spec, whole, 0, 3, 1, 3, 21), sender); got != wire.UpRegion {
		t.Errorf("a chunk of a region that is closed: %v", got)
	}
	if err := l.Control().ConfirmMessage(ctx, 9, 0); err != nil {
		t.Errorf("what was confirmed is not any more: %v", err)
	}
}

func TestControl(t *testing.T) {
	l := newLonely(t, Options{})
	c, ctx := l.Control(), testContext(t)
	spec := regionSpec(9, 6)
	for name, bad := range map[string]func(s *shuffle.RegionSpec){
		"token": func(s *shuffle.RegionSpec) { s.Token = 0 }, "chunks": func(s *shuffle.RegionSpec) { s.Chunks = 0 },
		"chain": func(s *shuffle.RegionSpec) { s.Chain = wire.MaxChains }, "bit": func(s *shuffle.RegionSpec) { s.Bit = 64 },
		"source": func(s *shuffle.RegionSpec) { s.Source = netip.AddrPort{} }, "mode": func(s *shuffle.RegionSpec) { s.Mode = shuffle.KernelOnly },
		"size": func(s *shuffle.RegionSpec) { s.Chunks = 1 << 20 },
	} {
		s := spec
		bad(&s)
		if _, err := c.OpenRegion(ctx, s); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		if _, err := c.OpenRegion(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	other := spec
	other.Bit++
	if _, err := c.OpenRegion(ctx, other); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("another region under the same token: %v", err)
	}
	if e, err := c.BroadcastEndpoint(ctx); err != nil || e.Port != 7117 || e.Kernel {
		t.Errorf("%+v, %v", e, err)
	}
	if gaps, err := c.Missing(ctx, 9, 2, 4); err != nil || !slices.Equal(gaps, []shuffle.Gap{{Place: 2, Count: 4}}) {
		t.Errorf("%v, %v", gaps, err)
	}
	if _, err := c.Missing(ctx, 9, 5, 2); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("chunks beyond the region: %v", err)
	}
	soon, cancel := context.WithCancel(ctx)
	cancel()
	if err := c.ConfirmMessage(soon, 9, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing came, and it is confirmed: %v", err)
	}
	if err := c.CloseRegion(ctx, 9, false); err != nil {
		t.Error(err)
	}
	if _, ended, err := l.sink.state(); ended != 1 || !errors.Is(err, ErrEnded) {
		t.Errorf("ended %d times: %v", ended, err)
	}
	if err := c.CloseRegion(ctx, 9, false); err != nil {
		t.Errorf("ended again: %v", err)
	}
	for name, err := range map[string]error{
		"relink":  c.Relink(ctx, 9, nowhere),
		"confirm": c.ConfirmMessage(ctx, 9, 0),
		"close":   c.CloseRegion(ctx, 8, true),
		"missing": func() error { _, err := c.Missing(ctx, 9, 0, 1); return err }(),
	} {
		if !errors.Is(err, shuffle.ErrUnknown) {
			t.Errorf("%s of what is not open: %v", name, err)
		}
	}
	eventually(t, "memory is given back", func() bool {
		l.budget.mu.Lock()
		defer l.budget.mu.Unlock()
		return l.budget.used == 0
	})
}

// Missing tells just what is missing, in as few gaps as there are.
func TestMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "chunks")
		r := &region{marks: make([]uint64, n), kick: make(chan struct{}, 1), gate: newGate()}
		there := make([]bool, n)
		for i := range n {
			if there[i] = rapid.Bool().Draw(t, "there"); there[i] {
				wire.SetMark(&r.marks[i], wire.MarkStored)
			} else if rapid.Bool().Draw(t, "writing") {
				wire.SetMark(&r.marks[i], wire.MarkWriting)
			}
		}
		node := &Node{}
		node.tokens.Store(&map[uint64]*region{1: r})
		first := rapid.IntRange(0, n).Draw(t, "first")
		total := rapid.IntRange(0, n-first).Draw(t, "total")
		gaps, err := node.Control().Missing(context.Background(), 1, uint32(first), uint32(total))
		if err != nil {
			t.Fatal(err)
		}
		told := make([]bool, n)
		for i, g := range gaps {
			if g.Count == 0 || i > 0 && g.Place <= gaps[i-1].Place+gaps[i-1].Count {
				t.Fatalf("gaps %v", gaps)
			}
			for p := g.Place; p < g.Place+g.Count; p++ {
				told[p] = true
			}
		}
		for i := first; i < first+total; i++ {
			if told[i] == there[i] {
				t.Fatalf("chunk %d is there: %v, missing: %v", i, there[i], told[i])
			}
			told[i] = false
		}
		if slices.Contains(told, true) {
			t.Fatalf("gaps %v beyond %d from %d", gaps, total, first)
		}
	})
}

func TestMissingIsBounded(t *testing.T) {
	l := newLonely(t, Options{Memory: 256 << 20})
	spec := regionSpec(9, 3*maxGaps)
	if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	r := (*l.tokens.Load())[9]
	for i := 1; i < len(r.marks); i += 2 {
		wire.SetMark(&r.marks[i], wire.MarkStored)
	}
	gaps, err := l.Control().Missing(testContext(t), 9, 0, uint32(len(r.marks)))
	if err != nil || len(gaps) != maxGaps || gaps[maxGaps-1] != (shuffle.Gap{Place: 2*maxGaps - 2, Count: 1}) {
		t.Errorf("%d gaps, %v", len(gaps), err)
	}
}

// A region whose source is silent ends; one that it speaks of does not.
func TestIdle(t *testing.T) {
	l := newLonely(t, Options{Idle: 150 * time.Millisecond})
	ctx := testContext(t)
	spec := regionSpec(9, 6)
	if _, err := l.Control().OpenRegion(ctx, spec); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(600 * time.Millisecond); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if _, err := l.Control().Missing(ctx, 9, 0, 0); err != nil {
			t.Fatalf("its source speaks of it, and it ended: %v", err)
		}
	}
	eventually(t, "it ends", func() bool { _, ended, _ := l.sink.state(); return ended == 1 })
	if _, _, err := l.sink.state(); !errors.Is(err, ErrSilent) {
		t.Error(err)
	}
}

// A region that is whole ends well without a word of its source, and says so later.
func TestIdleWhole(t *testing.T) {
	l := newLonely(t, Options{Idle: 100 * time.Millisecond})
	ctx := testContext(t)
	spec := regionSpec(9, 1)
	if _, err := l.Control().OpenRegion(ctx, spec); err != nil {
		t.Fatal(err)
	}
	l.Handle(chunkOf(t, &spec, withHead([]byte("all")), 0, 1, 0, 3, 1), sender)
	eventually(t, "it ends", func() bool { _, ended, _ := l.sink.state(); return ended == 1 })
	if got, _, err := l.sink.state(); err != nil || len(got) != 1 || string(got[0]) != "all" {
		t.Errorf("%q, %v", got, err)
	}
	if err := l.Control().ConfirmMessage(ctx, 9, 0); err != nil {
		t.Error(err)
	}
	if err := l.Control().CloseRegion(ctx, 9, true); err != nil {
		t.Error(err)
	}
}

// What is genuine and wrong is given to nobody.
func TestWrongMessages(t *testing.T) {
	good := withHead(noise(2, 2000))
	for name, bad := range map[string]func(b []byte){
		"payload": func(b []byte) { b[500] ^= 4 }, "digest": func(b []byte) { b[8] ^= 1 },
		"huge": func(b []byte) { b[5] = 1 }, "smaller": func(b []byte) { b[0]-- }, "larger": func(b []byte) { b[1]++ },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLonely(t, Options{})
			spec := regionSpec(9, 4)
			if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
				t.Fatal(err)
			}
			b := slices.Clone(good)
			bad(b)
			for p := range uint32(2) {
				l.Handle(chunkOf(t, &spec, b, 0, 2, p, 3, p), sender)
			}
			for range 2 { // the second time the region is gone
				if err := l.Control().ConfirmMessage(testContext(t), 9, 0); !errors.Is(err, shuffle.ErrDigest) {
					t.Errorf("confirmed: %v", err)
				}
				eventually(t, "it ends", func() bool { _, ended, _ := l.sink.state(); return ended == 1 })
			}
			if got, _, err := l.sink.state(); len(got) != 0 || !errors.Is(err, shuffle.ErrDigest) {
				t.Errorf("%d messages, %v", len(got), err)
			}
		})
	}
}

func TestSinkFails(t *testing.T) {
	l := newLonely(t, Options{})
	mine := errors.New("the disk is full")
	l.sink.fail = mine
	spec := regionSpec(9, 4)
	if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	l.Handle(chunkOf(t, &spec, withHead(nil), 0, 1, 0, 3, 1), sender)
	if err := l.Control().ConfirmMessage(testContext(t), 9, 0); !errors.Is(err, mine) {
		t.Error(err)
	}
	eventually(t, "it ends", func() bool { _, ended, err := l.sink.state(); return ended == 1 && errors.Is(err, mine) })
}

// The end of a source in the middle of a message is no good end.
func TestClosedHalfway(t *testing.T) {
	l := newLonely(t, Options{})
	spec := regionSpec(9, 4)
	if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	l.Handle(chunkOf(t, &spec, withHead(noise(1, 2000)), 0, 2, 1, 3, 1), sender)
	_ = l.Control().CloseRegion(testContext(t), 9, true)
	if _, ended, err := l.sink.state(); ended != 1 || !errors.Is(err, ErrEnded) {
		t.Errorf("ended %d times: %v", ended, err)
	}
}

func TestIncomingSaysNo(t *testing.T) {
	ctx := testContext(t)
	mine := errors.New("no thanks")
	for name, tc := range map[string]struct {
		incoming func(Offer) (Sink, error)
		have     bool
		want     error
	}{
		"have":   {func(Offer) (Sink, error) { return nil, fmt.Errorf("see: %w", ErrHave) }, true, nil},
		"no":     {func(Offer) (Sink, error) { return nil, mine }, false, mine},
		"nobody": {func(Offer) (Sink, error) { return nil, nil }, false, shuffle.ErrRefused},
	} {
		l := newLonely(t, Options{Incoming: tc.incoming})
		for range 2 {
			grant, err := l.Control().OpenRegion(ctx, regionSpec(9, 4))
			if grant.Have != tc.have || !errors.Is(err, tc.want) {
				t.Errorf("%s: %+v, %v", name, grant, err)
			}
		}
		if l.budget.used != 0 {
			t.Errorf("%s: %d bytes in use", name, l.budget.used)
		}
	}
	n, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Control().OpenRegion(ctx, regionSpec(9, 4)); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("a host that takes nothing: %v", err)
	}
}

// Dropping a job ends its regions, and no others.
func TestDrop(t *testing.T) {
	sinks := map[shuffle.JobID]*sink{}
	l := newLonely(t, Options{Incoming: func(o Offer) (Sink, error) {
		sinks[o.Job] = &sink{}
		return sinks[o.Job], nil
	}})
	for i := range byte(3) {
		spec := regionSpec(uint64(i)+1, 4)
		spec.Job = job(i)
		if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
			t.Fatal(err)
		}
	}
	l.Drop(job(1))
	for i := range byte(3) {
		_, ended, err := sinks[job(i)].state()
		if want := i == 1; ended == 1 != want || errors.Is(err, ErrDropped) != want {
			t.Errorf("job %d: ended %d times, %v", i, ended, err)
		}
	}
	if got := len(*l.tokens.Load()); got != 2 {
		t.Errorf("%d regions", got)
	}
}

// FuzzHandle has any bytes as frames: nothing is stored of them, and nothing sent.
func FuzzHandle(f *testing.F) {
	spec := regionSpec(9, 6)
	whole := withHead(noise(1, 3000))
	f.Add(chunkOf(f, &spec, whole, 0, 3, 0, 3, 1), -1, byte(0))
	f.Add(chunkOf(f, &spec, whole, 0, 3, 2, wire.ChainAll, 1), 70, byte(3))
	f.Add(wire.AnswerChunk(chunkOf(f, &spec, whole, 0, 3, 2, 3, 1), wire.NewTags(spec.Secret)), 64, byte(1))
	f.Fuzz(func(t *testing.T, b []byte, at int, flip byte) {
		l := newLonely(t, Options{})
		if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
			t.Fatal(err)
		}
		genuine := false
		if at >= 0 && at < len(b) {
			b[at] ^= flip
		}
		if h, _, _, err := wire.ParseChunk(b); err == nil && h.Token == spec.Token {
			genuine = wire.NewTags(spec.Secret).OpenChunk(b)
		}
		l.Handle(b, sender)
		if genuine {
			return
		}
		r := (*l.tokens.Load())[9]
		for i := range r.marks {
			if r.marks[i] != 0 {
				t.Fatal("what is not genuine was stored")
			}
		}
		if len(l.sent) != 0 {
			t.Fatal("what is not genuine was answered")
		}
	})
}
