// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// kinds are the hosts that tests of groups go through.
var kinds = map[string]func(i int) bool{
	"user":   func(int) bool { return false },
	"kernel": func(int) bool { return true },
	"mixed":  func(i int) bool { return i%2 == 0 },
}

func openGroup(t testing.TB, source *host, members []Member, spec GroupSpec) *Group {
	t.Helper()
	spec.Job, spec.Secret, spec.Name, spec.Members = job(1), [16]byte{3}, "session", members
	if spec.Size == 0 {
		spec.Size = -1
	}
	g, err := source.Open(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func send(t testing.TB, g *Group, data []byte) *Report {
	t.Helper()
	rep, err := g.Send(testContext(t), int64(len(data)), func(b []byte) error { copy(b, data); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func confirm(t testing.TB, g *Group, rep *Report) {
	t.Helper()
	if err := g.Confirm(testContext(t), rep); err != nil {
		t.Fatal(err)
	}
}

// same checks that a host's last sink has had these messages, and none but these.
func (h *host) same(want [][]byte, ended int) {
	h.t.Helper()
	h.mu.Lock()
	s := h.sinks[len(h.sinks)-1]
	h.mu.Unlock()
	got, n, err := s.state()
	if !slices.EqualFunc(got, want, bytes.Equal) || n != ended || ended > 0 && err != nil {
		h.t.Errorf("%d of %d messages, ended %d times: %v", len(got), len(want), n, err)
	}
}

func TestSession(t *testing.T) {
	for name, kernel := range kinds {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, faults{})
			source := l.host(virtualSetting{kernel: kernel(0)})
			source.tick = time.Minute
			list, members := l.hosts(5, virtualSetting{}, kernel)
			var sent [][]byte
			chunks := 0
			for i := range 20 {
				b := noise(uint64(i), i*i*30)
				sent = append(sent, b)
				chunks += ChunksOf(int64(len(b)))
			}
			g := openGroup(t, source, members, GroupSpec{Chunks: chunks, Chains: 2})
			first := uint32(0)
			for i, b := range sent {
				rep := send(t, g, b)
				if rep.Chains != 2 || rep.Chunks != ChunksOf(int64(len(b))) || rep.part.first != first || rep.Again != 0 {
					t.Errorf("message %d: %+v", i, rep)
				}
				if name == "kernel" && rep.Woken > 1 {
					t.Errorf("message %d: woken %d times", i, rep.Woken)
				}
				first += uint32(rep.Chunks)
				if i%3 == 0 {
					confirm(t, g, rep)
					for _, h := range list {
						h.same(sent[:i+1], 0)
					}
				}
			}
			if _, err := g.Send(testContext(t), 0, nil); !errors.Is(err, ErrFull) {
				t.Errorf("one more: %v", err)
			}
			if err := g.Close(testContext(t)); err != nil {
				t.Error(err)
			}
			for i, h := range list {
				h.same(sent, 1)
				if grants := kernel(i); h.sinks[0].offer.Kernel != grants {
					t.Errorf("member %d: %+v", i, h.sinks[0].offer)
				}
			}
			if n := source.inUse(); n != 0 {
				t.Errorf("%d bytes in use", n)
			}
		})
	}
}

// Each chunk leaves a source with programs once from user space, and the answers send the rest.
func TestPumped(t *testing.T) {
	l := newLab(t, 1, faults{})
	source := l.host(virtualSetting{kernel: true})
	source.tick = time.Minute // a machine that is busy is no loss
	_, members := l.hosts(6, virtualSetting{}, func(int) bool { return true })
	const size = 300_000
	rep := spread(t, source, members, noise(1, size), 3, 0)
	if !rep.Kernel || rep.Woken > 1 || rep.Again > 0 {
		t.Errorf("%+v", rep)
	}
	window := int64(3 * windowFor(3))
	if total := int64(3 * rep.Chunks); rep.Pumped != total-window {
		t.Errorf("programs sent %d of %d chunks, the window has %d", rep.Pumped, total, window)
	}
	for _, m := range rep.Members {
		if !m.Kernel {
			t.Errorf("%+v", m)
		}
	}
}

func TestJoin(t *testing.T) {
	for name, kernel := range kinds {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 2, faults{Lose: 0.05})
			s := virtualSetting{opts: Options{Patience: 5 * time.Second}, kernel: kernel(0)}
			source := l.host(s)
			list, members := l.hosts(2, s, kernel)
			g := openGroup(t, source, members, GroupSpec{Chunks: 1000, Chains: 1})
			var sent [][]byte
			more := func(size int) {
				sent = append(sent, noise(uint64(len(sent)), size))
				confirm(t, g, send(t, g, sent[len(sent)-1]))
			}
			more(100)
			more(20_000)
			s.kernel = kernel(3)
			late := l.host(s)
			if err := g.Join(testContext(t), late.member("late")); err != nil {
				t.Fatal(err)
			}
			if len(g.chains) != 2 || len(g.chains[1].members) != 1 {
				t.Errorf("%d chains", len(g.chains))
			}
			more(5000)
			for _, h := range append(list, late) {
				h.same(sent, 0)
			}
			if err := g.Close(testContext(t)); err != nil {
				t.Error(err)
			}
			for _, h := range append(list, late) {
				h.same(sent, 1)
			}
		})
	}
}

// Beyond as many chains as there can be, who joins is the last one of the shortest.
func TestJoinFullStar(t *testing.T) {
	l := newLab(t, 3, faults{})
	source := l.host(virtualSetting{})
	source.tick = time.Minute
	list, members := l.hosts(wire.MaxChains, virtualSetting{}, kinds["user"])
	g := openGroup(t, source, members, GroupSpec{Chunks: 10})
	if len(g.chains) != wire.MaxChains {
		t.Fatalf("%d chains", len(g.chains))
	}
	first, second := []byte("first"), noise(1, 2000)
	confirm(t, g, send(t, g, first))
	for i := range 2 {
		late := l.host(virtualSetting{})
		list = append(list, late)
		if err := g.Join(testContext(t), late.member(fmt.Sprint("late ", i))); err != nil {
			t.Fatal(err)
		}
		if c := g.chains[i]; len(c.members) != 2 || c.members[1].bit != 1 {
			t.Errorf("chain %d has %d members", i, len(c.members))
		}
	}
	rep := send(t, g, second)
	if rep.Again != 0 || rep.Timers != 0 {
		t.Errorf("it does not go by chains: %+v", rep)
	}
	confirm(t, g, rep)
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, h := range list {
		h.same([][]byte{first, second}, 1)
	}
}

// A chain closes around a member that dies, at each place, with and without a word.
func TestMemberDies(t *testing.T) {
	for name, kernel := range kinds {
		t.Run(name, func(t *testing.T) {
			atOnce(8, func(i int) { memberDies(t, kernel, i/2, i%2 == 1) })
		})
	}
}

func memberDies(t *testing.T, kernel func(int) bool, place int, mute bool) {
	l := newLab(t, 4, faults{})
	s := virtualSetting{opts: Options{Patience: 3 * time.Second}, kernel: kernel(0)} // those that live must not seem dead on a slow machine
	source := l.host(s)
	list, members := l.hosts(4, s, kernel)
	g := openGroup(t, source, members, GroupSpec{Chunks: 1000, Chains: 1})
	sent := [][]byte{noise(1, 3000), noise(2, 200_000), noise(3, 4000)}
	confirm(t, g, send(t, g, sent[0]))
	list[place].mute = mute
	list[place].die()
	rep := send(t, g, sent[1])
	for i, m := range rep.Members {
		if dead := i == place; (m.Err != nil) != dead {
			t.Errorf("%d is dead, mute %v: member %d: %v", place, mute, i, m.Err)
		}
	}
	confirm(t, g, rep)
	rep = send(t, g, sent[2])
	if c := g.chains[0]; len(c.members) != 3 || c.head != c.members[0].Address || g.cast.shared.Want[0] != 0xf&^(1<<place) {
		t.Errorf("%d is dead, mute %v: the chain has %d members, and waits for %b", place, mute, len(c.members), g.cast.shared.Want[0])
	}
	// One that lives, and took its time to answer, may have gone to the chain's end meanwhile.
	for i, m := range g.chains[0].members {
		want := netip.AddrPortFrom(source.virtual.addr, g.port.number())
		if i+1 < len(g.chains[0].members) {
			want = g.chains[0].members[i+1].Address
		}
		h := list[slices.IndexFunc(list, func(h *host) bool { return h.addr == m.Address })]
		eventually(t, fmt.Sprintf("%d is dead, mute %v: %s, which is number %d, is told who is next", place, mute, m.Name, i), func() bool { return (*h.tokens.Load())[g.token].next.Load().to == want })
	}
	if rep.Again != 0 && rep.Timers == 0 {
		t.Errorf("%d is dead, mute %v: the chain is not closed: %+v", place, mute, rep)
	}
	confirm(t, g, rep)
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for i, h := range list {
		if i != place {
			h.same(sent, 1)
		}
	}
}

// A member that answers questions, and gets nothing, does not hold up the others for long.
func TestDeafMember(t *testing.T) {
	l := newLab(t, 5, faults{})
	s := virtualSetting{opts: Options{Patience: 300 * time.Millisecond}}
	source := l.host(s)
	list, members := l.hosts(3, s, kinds["user"])
	g := openGroup(t, source, members, GroupSpec{Chunks: 100, Chains: 1})
	v := list[1].virtual
	v.mu.Lock()
	v.node = newLonely(t, Options{}).Node // frames end elsewhere
	v.mu.Unlock()
	data := noise(1, 50_000)
	rep := send(t, g, data)
	if rep.Members[0].Err != nil || rep.Members[1].Err == nil || rep.Members[2].Err != nil {
		t.Errorf("%+v", rep.Members)
	}
	confirm(t, g, rep)
	list[0].same([][]byte{data}, 0)
	list[2].same([][]byte{data}, 0)
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}

// slow is a control plane that is held up at times.
type slow struct {
	shuffle.BroadcastControl
	hold chan struct{} // nil: it is not
	on   atomic.Bool
}

func (s *slow) Missing(ctx context.Context, token uint64, first, total uint32) ([]shuffle.Gap, error) {
	if s.on.Load() && total > 0 {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.BroadcastControl.Missing(ctx, token, first, total)
}

// relinked tells when a member is told of another one behind it.
type relinked struct {
	shuffle.BroadcastControl
	once sync.Once
	told chan struct{}
}

func (r *relinked) Relink(ctx context.Context, token uint64, next netip.AddrPort) error {
	err := r.BroadcastControl.Relink(ctx, token, next)
	r.once.Do(func() { close(r.told) })
	return err
}

// A member that is slow to answer is taken out of its chain, gets what it lacks by itself, and is taken back.
func TestSlowMember(t *testing.T) {
	l := newLab(t, 6, faults{})
	s := virtualSetting{opts: Options{Patience: 8 * time.Second}}
	source := l.host(s)
	list, members := l.hosts(3, s, kinds["user"])
	held := &slow{BroadcastControl: members[1].Control, hold: make(chan struct{})}
	before := &relinked{BroadcastControl: members[0].Control, told: make(chan struct{})}
	members[1].Control, members[0].Control = held, before
	g := openGroup(t, source, members, GroupSpec{Chunks: 1000, Chains: 1})
	sent := [][]byte{noise(1, 100_000), noise(2, 3000)}
	held.on.Store(true)
	list[1].remoteLives = true
	list[1].die() // its frames are lost for a while
	go func() {
		<-before.told
		list[1].revive()
		held.on.Store(false)
		close(held.hold)
	}()
	rep := send(t, g, sent[0])
	confirm(t, g, rep)
	for _, m := range rep.Members {
		if m.Err != nil {
			t.Errorf("%+v", m)
		}
	}
	rep = send(t, g, sent[1])
	confirm(t, g, rep)
	if rep.Again != 0 || len(g.chains[0].members) != 3 {
		t.Errorf("it is not taken back: %+v", rep)
	}
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, h := range list {
		h.same(sent, 1)
	}
}

// A member that restarts has lost its region, and can join anew.
func TestMemberRestarts(t *testing.T) {
	l := newLab(t, 7, faults{})
	s := virtualSetting{opts: Options{Patience: 2 * time.Second}}
	source := l.host(s)
	list, members := l.hosts(3, s, kinds["user"])
	g := openGroup(t, source, members, GroupSpec{Chunks: 1000, Chains: 1})
	sent := [][]byte{noise(1, 3000)}
	confirm(t, g, send(t, g, sent[0]))
	old := list[1].Node
	o := old.opts
	fresh, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	list[1].virtual.mu.Lock()
	list[1].virtual.node = fresh
	list[1].virtual.mu.Unlock()
	list[1].mu.Lock()
	list[1].sinks = nil
	list[1].mu.Unlock()
	list[1].restarted.Store(fresh)
	sent = append(sent, noise(2, 30_000))
	rep := send(t, g, sent[1])
	if rep.Members[1].Err == nil || !errors.Is(rep.Members[1].Err, shuffle.ErrUnknown) {
		t.Errorf("%+v", rep.Members)
	}
	confirm(t, g, rep)
	if err := g.Join(testContext(t), list[1].member("the same")); err != nil {
		t.Fatal(err)
	}
	sent = append(sent, noise(3, 2000))
	confirm(t, g, send(t, g, sent[2]))
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, h := range list {
		h.same(sent, 1)
	}
}

// forger gives a member chunks that are genuine, and not the source's, when it opens a region.
type forger struct {
	shuffle.BroadcastControl
	h     *host
	times int
}

func (f *forger) OpenRegion(ctx context.Context, s shuffle.RegionSpec) (shuffle.RegionGrant, error) {
	g, err := f.BroadcastControl.OpenRegion(ctx, s)
	if f.times > 0 && err == nil {
		f.times--
		wrong := make([]byte, wire.ChunkSize)
		b, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: s.Token, Seq: 1 << 31}, wire.Chunk{Place: 1, First: 0, Total: 4, Chain: wire.ChainDirect}, wrong, wire.NewTags(s.Secret))
		if err != nil {
			return g, err
		}
		f.h.Handle(b, nowhere)
	}
	return g, err
}

// A member whose message is wrong gets all again, once.
func TestWrongDigest(t *testing.T) {
	for times := 1; times <= 2; times++ {
		l := newLab(t, 8, faults{})
		source := l.host(virtualSetting{})
		list, members := l.hosts(3, virtualSetting{}, kinds["user"])
		members[1].Control = &forger{members[1].Control, list[1], times}
		g := openGroup(t, source, members, GroupSpec{Chunks: 100, Chains: 1})
		sent := [][]byte{noise(1, 5000), noise(2, 100)}
		for i, b := range sent {
			rep := send(t, g, b)
			confirm(t, g, rep)
			if err := rep.Members[1].Err; (err != nil) != (times == 2) || times == 2 && !errors.Is(err, shuffle.ErrDigest) {
				t.Errorf("forged %d times, message %d: %v", times, i, err)
			}
		}
		if err := g.Close(testContext(t)); err != nil {
			t.Error(err)
		}
		list[0].same(sent, 1)
		list[2].same(sent, 1)
		if times == 1 {
			list[1].same(sent, 1)
		}
		for _, s := range list[1].sinks {
			if got, _, _ := s.state(); len(got) > 0 && !bytes.Equal(got[0], sent[0]) {
				t.Error("a sink has got something wrong")
			}
		}
	}
}

func TestSpreadSomeHave(t *testing.T) {
	source := newHost(t, setting{})
	list, members := hosts(t, 4, setting{})
	list[1].take = func(Offer) (Sink, error) { return nil, ErrHave }
	list[2].take = func(Offer) (Sink, error) { return nil, errors.New("no") }
	data := noise(1, 100_000)
	rep := spread(t, source, members, data, 1, 30_000)
	if !rep.Members[1].Have || rep.Members[2].Err == nil || rep.Members[0].Err != nil || rep.Members[3].Err != nil || rep.Members[0].Have {
		t.Errorf("%+v", rep.Members)
	}
	for _, i := range []int{0, 3} {
		if !bytes.Equal(list[i].whole("whole"), data) {
			t.Errorf("member %d has not all", i)
		}
	}
	// All have it, or nobody is asked: that is well. All refuse: it is not.
	rep = spread(t, source, members[1:2], data, 1, 0)
	if !rep.Members[0].Have || rep.Sent != 0 {
		t.Errorf("%+v", rep)
	}
	spread(t, source, nil, data, 1, 0)
	_, err := source.Spread(testContext(t), SpreadSpec{Name: "whole", Members: members[2:3], Source: bytes.NewReader(data), Size: 10})
	if !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
}

// failing is a source that can't be read from somewhere on.
type failing struct {
	data []byte
	at   int64
	err  error
}

func (f *failing) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > f.at {
		return 0, f.err
	}
	return copy(b, f.data[off:]), nil
}

func TestSpreadReadFails(t *testing.T) {
	source := newHost(t, setting{})
	list, members := hosts(t, 2, setting{})
	mine := errors.New("the disk is gone")
	data := noise(1, 100_000)
	for name, r := range map[string]io.ReaderAt{"fails": &failing{data, 60_000, mine}, "ends": bytes.NewReader(data[:60_000])} {
		_, err := source.Spread(testContext(t), SpreadSpec{Job: job(1), Name: name, Members: members, Source: r, Size: 100_000, Window: 25_000})
		if name == "fails" && !errors.Is(err, mine) || name == "ends" && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
		for _, h := range list {
			for _, s := range h.sinks {
				_, ended, err := s.state()
				if want := s.offer.Offset == 50_000; ended != 1 || (err != nil) != want {
					t.Errorf("%s: region at %d ended %d times: %v", name, s.offer.Offset, ended, err)
				}
			}
		}
	}
}

// Parts are as large as members have room for.
func TestSpreadLimits(t *testing.T) {
	source := newHost(t, setting{})
	small := setting{}
	small.opts.Memory, small.opts.PerJob = 3<<20, 3<<20
	list, members := hosts(t, 1, small)
	more, others := hosts(t, 2, setting{})
	list, members = append(list, more...), append(members, others...)
	data := noise(1, 5<<20)
	rep := spread(t, source, members, data, 1, 0)
	for i, h := range list {
		if rep.Members[i].Err != nil || !bytes.Equal(h.whole("whole"), data) {
			t.Errorf("member %d: %+v", i, rep.Members[i])
		}
	}
}

// What ends a context, a job or a node ends what is under way, and leaves nothing.
func TestEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(source *host, cancel func())
		want error
	}{
		"context": {func(_ *host, cancel func()) { cancel() }, context.Canceled},
		"job":     {func(h *host, _ func()) { h.Drop(job(1)) }, ErrDropped},
		"node":    {func(h *host, _ func()) { _ = h.Close() }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 9, faults{})
			source := l.host(virtualSetting{})
			list, members := l.hosts(2, virtualSetting{}, kinds["user"])
			g := openGroup(t, source, members, GroupSpec{Chunks: 100, Chains: 1})
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			list[0].virtual.mu.Lock()
			list[0].virtual.node = newLonely(t, Options{}).Node // nothing gets there
			list[0].virtual.mu.Unlock()
			began := make(chan struct{})
			go func() {
				<-began
				tc.end(source, cancel)
			}()
			_, err := g.Send(ctx, 9000, func([]byte) error { close(began); return nil })
			if !errors.Is(err, tc.want) {
				t.Error(err)
			}
			if err := g.Close(testContext(t)); err != nil {
				t.Error(err)
			}
			for _, h := range list {
				eventually(t, "regions end", func() bool { _, ended, err := h.sinks[0].state(); return ended == 1 && errors.Is(err, ErrEnded) })
			}
			if _, err := g.Send(testContext(t), 1, nil); err == nil {
				t.Error("a group that is closed sends")
			}
			if n := source.inUse(); n != 0 {
				t.Errorf("%d bytes in use", n)
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	ctx := testContext(t)
	source := newHost(t, setting{opts: Options{Memory: 1 << 20, PerJob: 1 << 20}})
	_, members := hosts(t, 1, setting{})
	dead := Member{Name: "dead", Address: netip.MustParseAddrPort("127.0.0.1:9"), Control: remote{&host{dead: true}}}
	for name, tc := range map[string]struct {
		spec GroupSpec
		want error
	}{
		"no chunks": {GroupSpec{Members: members}, nil},
		"too large": {GroupSpec{Members: members, Chunks: 1000}, shuffle.ErrRefused},
		"kernel":    {GroupSpec{Members: members, Chunks: 1, Mode: shuffle.KernelOnly}, nil},
		"dead":      {GroupSpec{Members: []Member{dead}, Chunks: 1}, ErrNobody},
	} {
		if g, err := source.Open(ctx, tc.spec); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v", name, g, err)
		}
	}
	if n := source.inUse(); n != 0 {
		t.Errorf("%d bytes in use", n)
	}
	// As many as there can be, and one more.
	var open []*Group
	for {
		g, err := source.Open(ctx, GroupSpec{Members: members, Chunks: 1})
		if err != nil {
			if !errors.Is(err, shuffle.ErrBusy) {
				t.Error(err)
			}
			break
		}
		open = append(open, g)
	}
	if len(open) != userCasts {
		t.Errorf("%d groups at once", len(open))
	}
	for _, g := range open {
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := New(Options{Mode: shuffle.KernelOnly}); err == nil {
		t.Error("a node with a kernel alone, without one")
	}
	if err := source.Close(); err != nil {
		t.Error(err)
	}
	if _, err := source.Open(ctx, GroupSpec{Members: members, Chunks: 1}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// An error of fill sends nothing, and leaves nothing behind that the next message would have in its padding.
func TestFillFails(t *testing.T) {
	l := newLab(t, 10, faults{})
	source := l.host(virtualSetting{kernel: true})
	list, members := l.hosts(2, virtualSetting{}, kinds["kernel"])
	g := openGroup(t, source, members, GroupSpec{Chunks: 100, Chains: 1, Window: 2})
	mine := errors.New("no more")
	_, err := g.Send(testContext(t), 20_000, func(b []byte) error {
		for i := range b {
			b[i] = 0xff
		}
		return mine
	})
	if !errors.Is(err, mine) {
		t.Error(err)
	}
	if i := bytes.IndexFunc(g.cast.data, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d is not zero", i)
	}
	data := noise(1, 10_001)
	confirm(t, g, send(t, g, data))
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, h := range list {
		h.same([][]byte{data}, 1)
	}
}

// Answers that are forged, or were given before, make nothing done.
func TestForgedAnswers(t *testing.T) {
	l := newLab(t, 11, faults{})
	source := l.host(virtualSetting{})
	list, members := l.hosts(2, virtualSetting{}, kinds["user"])
	var seen [][]byte
	source.virtual.up = func(b []byte) { seen = append(seen, bytes.Clone(b)) }
	g := openGroup(t, source, members, GroupSpec{Chunks: 100, Chains: 1})
	confirm(t, g, send(t, g, noise(1, 5000)))
	source.virtual.mu.Lock()
	p := source.virtual.ports[g.port.number()]
	source.virtual.mu.Unlock()
	if len(seen) == 0 {
		t.Fatal("no answers")
	}
	forge := slices.Clone(seen[0])
	forge[wire.HeadSize] = 4 // its place: the first chunk of the next message
	forge[wire.HeadSize+4] = 4
	forge[wire.HeadSize+8] = 2
	for range 20 {
		for _, b := range append(seen, forge) {
			p.arrived(b)
			source.Handle(bytes.Clone(b), nowhere)
		}
	}
	data := noise(2, 2000)
	rep := send(t, g, data)
	if rep.Again != 0 {
		t.Errorf("%+v", rep)
	}
	for _, h := range list {
		r := (*h.tokens.Load())[g.token]
		for p := rep.part.first; p < rep.part.limit(); p++ {
			if wire.MarkState(&r.marks[p]) != wire.MarkStored {
				t.Errorf("chunk %d was said to be there, and is not", p)
			}
		}
	}
	if forged, old := source.counts[wire.AckTag].Load(), source.counts[wire.AckStray].Load(); forged < 20 || old == 0 {
		t.Errorf("%d forged answers were found out, and %d that are old", forged, old)
	}
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}

// A group that has nothing to send is still there for its members.
func TestReminded(t *testing.T) {
	t.Parallel() // it mostly waits
	l := newLab(t, 12, faults{})
	s := virtualSetting{opts: Options{Idle: 3 * time.Second}}
	source := l.host(s)
	list, members := l.hosts(2, s, kinds["mixed"])
	g := openGroup(t, source, members, GroupSpec{Chunks: 100})
	data := noise(1, 100)
	time.Sleep(7 * time.Second) // more than twice as long as members take silence
	confirm(t, g, send(t, g, data))
	if err := g.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, h := range list {
		h.same([][]byte{data}, 1)
	}
}

// Members of another family than those before them get all, by user space.
func TestBothFamilies(t *testing.T) {
	source := newHost(t, setting{})
	four, members := hosts(t, 2, setting{})
	six, others := hosts(t, 2, setting{six: true})
	for _, h := range append(four, six...) {
		h.both()
	}
	mixed := []Member{members[0], others[0], members[1], others[1]}
	data := noise(1, 100_000)
	for chains := 1; chains <= 4; chains += 3 {
		rep := spread(t, source, mixed, data, chains, 0)
		for i, m := range rep.Members {
			if m.Err != nil {
				t.Errorf("member %d: %v", i, m.Err)
			}
		}
		if rep.Again != 0 && rep.Timers == 0 {
			t.Errorf("%+v", rep)
		}
	}
	for _, h := range append(four, six...) {
		if !bytes.Equal(h.whole("whole"), data) {
			t.Error("it has not all")
		}
	}
}
