// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// deafKernel is one whose events get lost.
type deafKernel struct {
	*model.Host
	lost atomic.Int64
	lose bool
}

func (d *deafKernel) OnEvent(f func(wire.Event)) error {
	return d.Host.OnEvent(func(e wire.Event) {
		d.lost.Add(1)
		if !d.lose {
			f(e)
		}
	})
}

// Programs tell of messages only where that is asked for, and what they tell may be lost: messages are found even so.
func TestQuiet(t *testing.T) {
	for _, tc := range []struct{ eager, lose bool }{{false, false}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("eager %v, lost %v", tc.eager, tc.lose), func(t *testing.T) {
			k := &deafKernel{Host: model.NewHost(model.Config{Limits: shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Chunks: 100}, Broadcasts: true}), lose: tc.lose}
			l := newLonely(t, Options{Kernel: k})
			spec := regionSpec(9, 10)
			spec.Eager = tc.eager
			if grant, err := l.Control().OpenRegion(testContext(t), spec); err != nil || !grant.Kernel {
				t.Fatal(grant, err)
			}
			data := noise(3, 3000)
			whole := withHead(data)
			first := uint32(0)
			message := func() {
				for p := range uint32(3) {
					b := chunkOf(t, &spec, whole, first, 3, first+p, 3, p)
					k.Handle(0, model.NewPacket(b).Addresses(sender, netip.MustParseAddrPort("10.0.0.1:7117")).Bytes)
				}
				first += 3
			}
			got := func(n int) func() bool {
				return func() bool {
					g, _, _ := l.sink.state()
					return len(g) == n
				}
			}
			message()
			eventually(t, "a message is found that nobody asks for", got(1))
			time.Sleep(3 * slowLook) // nothing has come for a while
			message()
			eventually(t, "another one is found", got(2))
			message()
			if err := l.Control().ConfirmMessage(testContext(t), 9, 6); err != nil || !got(3)() {
				t.Error(err)
			}
			if told := k.lost.Load(); told != map[bool]int64{true: 3}[tc.eager] {
				t.Errorf("programs told of %d messages", told)
			}
		})
	}
}

// Looks are the rarer the longer nothing comes, and end when nothing can come.
func TestLooks(t *testing.T) {
	r := &region{shared: &wire.Region{}, marks: make([]uint64, 4)}
	l := r.looks()
	defer l.stop()
	pause := func(want time.Duration) {
		t.Helper()
		if l.pause != want {
			t.Errorf("the next look is after %v, want %v", l.pause, want)
		}
	}
	pause(5 * time.Millisecond)
	for _, want := range []time.Duration{10, 20, 40, 80, 100, 100} {
		l.past()
		pause(want * time.Millisecond)
	}
	l.asked() // and nothing came
	pause(100 * time.Millisecond)
	r.shared.Stored = 1
	l.asked()
	pause(5 * time.Millisecond)
	l.past()
	pause(10 * time.Millisecond)
	r.shared.Stored = 2
	l.past()
	pause(5 * time.Millisecond)
	<-l.due()
	r.at = 4
	l.past()
	if l.timer.Stop() {
		t.Error("there is another look at what is whole")
	}
	eager := &region{shared: &wire.Region{}, spec: shuffle.RegionSpec{Eager: true}, marks: make([]uint64, 4)}
	l = eager.looks()
	defer l.stop()
	eager.shared.Stored = 5
	pause(100 * time.Millisecond)
	l.past()
	pause(100 * time.Millisecond)
	l = (&region{}).looks()
	defer l.stop()
	if l.asked(); l.due() != nil {
		t.Error("looks where Handle tells")
	}
}

// A message whose last chunk is stored and not yet counted when the region is closed is a message.
func TestStoredAndNotCounted(t *testing.T) {
	l := newLonely(t, Options{})
	spec := regionSpec(9, 3)
	if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
		t.Fatal(err)
	}
	r := (*l.tokens.Load())[9]
	data := noise(4, 3000)
	copy(r.data, withHead(data))
	for p := range r.marks {
		if p > 0 {
			wire.CountMark(&r.marks[0])
		}
		wire.SetMark(&r.marks[p], wire.MarkStored)
	}
	if err := l.Control().CloseRegion(testContext(t), 9, true); err != nil {
		t.Error(err)
	}
	if got, ended, err := l.sink.state(); len(got) != 1 || !bytes.Equal(got[0], data) || ended != 1 || err != nil {
		t.Errorf("%d messages, ended %d times: %v", len(got), ended, err)
	}
}

// Whoever asks about a message while its region ends hears that it was taken, and of another one how the region ended.
func TestConfirmWhileItEnds(t *testing.T) {
	l := newLonely(t, Options{Incoming: func(Offer) (Sink, error) { return &sink{}, nil }})
	data := withHead([]byte("it"))
	for i := range 300 {
		spec := regionSpec(uint64(i)+1, 2)
		if _, err := l.Control().OpenRegion(testContext(t), spec); err != nil {
			t.Fatal(err)
		}
		l.Handle(chunkOf(t, &spec, data, 0, 1, 0, 3, 1), sender)
		if i%2 == 0 {
			if err := l.Control().ConfirmMessage(testContext(t), spec.Token, 0); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for j := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				switch j {
				case 0:
					if err := l.Control().CloseRegion(testContext(t), spec.Token, true); err != nil {
						t.Errorf("close: %v", err)
					}
				case 1:
					if err := l.Control().ConfirmMessage(testContext(t), spec.Token, 0); err != nil {
						t.Errorf("the message that came: %v", err)
					}
				case 2:
					err := l.Control().ConfirmMessage(testContext(t), spec.Token, 1)
					if !errors.Is(err, shuffle.ErrUnknown) || !strings.Contains(err.Error(), "it ended whole") {
						t.Errorf("the message that never came: %v", err)
					}
				case 3:
					for {
						if _, err := l.Control().Missing(testContext(t), spec.Token, 0, 2); err != nil {
							if !errors.Is(err, shuffle.ErrUnknown) || !strings.Contains(err.Error(), "it ended whole") {
								t.Errorf("what is missing: %v", err)
							}
							return
						}
					}
				}
			}()
		}
		wg.Wait()
	}
}

// instant is a port whose frames are answered while they are sent, as where hosts are of one machine.
type instant struct {
	port
	n            *Node
	tags         *wire.Tags
	hold         int // answers that come only when they are waited for
	held         [][]byte
	pokes, waits int
}

func (p *instant) send(b []byte, size int, _ netip.AddrPort) error {
	for len(b) > 0 {
		n := min(size, len(b))
		f := bytes.Clone(b[:n])
		b = b[n:]
		wire.PassChunk(f, 0, 0, p.tags)
		f = wire.AnswerChunk(f, p.tags)
		if len(p.held) < p.hold {
			p.held = append(p.held, f)
			continue
		}
		p.n.Handle(f, sender)
	}
	return nil
}

func (p *instant) wait(_ time.Time, f func([]byte)) (bool, error) {
	p.waits++
	for _, b := range p.held {
		f(b)
	}
	came := len(p.held) > 0
	p.held, p.hold = nil, 0
	return came, nil
}

func (p *instant) poke() { p.pokes++ }

// What is answered before Send looks wakes nobody. What is not does, once.
func TestAtOnce(t *testing.T) {
	for hold, want := range map[int]instant{0: {}, 1: {waits: 1, pokes: 1}, 3: {waits: 1, pokes: 1}} {
		source := newHost(t, setting{})
		_, members := hosts(t, 1, setting{})
		g := openGroup(t, source, members, GroupSpec{Chunks: 3, Size: -1, Chains: 1})
		p := &instant{port: g.port, n: source.Node, tags: g.cast.tags, hold: hold}
		g.port, g.cast.poke = p, p.poke
		rep := send(t, g, noise(1, 3000))
		if p.waits != want.waits || p.pokes != want.pokes || rep.Again != 0 || rep.Timers != 0 {
			t.Errorf("%d answers late: it slept %d times and was woken %d times, %+v", hold, p.waits, p.pokes, rep)
		}
		g.port = p.port
		g.fail()
		if err := g.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestSendAllocates bounds what a small message takes from the heap: a report, and what Send looks at members with.
func TestSendAllocates(t *testing.T) {
	source := newHost(t, setting{})
	_, members := hosts(t, 1, setting{})
	g := openGroup(t, source, members, GroupSpec{Chunks: 1000, Size: -1, Chains: 1})
	p := &instant{port: g.port, n: source.Node, tags: g.cast.tags}
	g.port, g.cast.poke = p, p.poke
	data := noise(1, 1400)
	ctx := testContext(t)
	fill := func(b []byte) error { copy(b, data); return nil }
	if a := testing.AllocsPerRun(200, func() {
		if _, err := g.Send(ctx, int64(len(data)), fill); err != nil {
			t.Fatal(err)
		}
	}); a > 12 {
		t.Errorf("%v allocations a message", a)
	}
	g.port = p.port
	g.fail()
	if err := g.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A group that is being opened ends with its job and its node, whatever its members are at.
func TestOpenEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(h *host)
		want error
	}{
		"job":  {func(h *host) { h.Drop(job(1)) }, ErrDropped},
		"node": {func(h *host) { _ = h.Close() }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			source := newHost(t, setting{opts: Options{Patience: time.Hour}})
			list, members := hosts(t, 1, setting{})
			asked := make(chan struct{})
			hanging := hangs{members[0].Control, asked}
			members = append(members, Member{Name: "hangs", Address: netip.AddrPortFrom(list[0].addr.Addr(), 0), Control: hanging})
			failed := make(chan error, 1)
			go func() {
				_, err := source.Open(testContext(t), GroupSpec{Job: job(1), Members: members, Chunks: 1})
				failed <- err
			}()
			<-asked
			source.Drop(job(2))
			tc.end(source)
			if err := <-failed; !errors.Is(err, tc.want) {
				t.Error(err)
			}
			if n := source.inUse(); n != 0 {
				t.Errorf("%d bytes in use", n)
			}
			eventually(t, "the member's region is gone", func() bool { return list[0].inUse() == 0 })
		})
	}
}

// hangs is a member that does not answer.
type hangs struct {
	shuffle.BroadcastControl
	asked chan struct{}
}

func (h hangs) BroadcastEndpoint(context.Context) (shuffle.Endpoint, error) {
	return shuffle.Endpoint{Port: 9}, nil
}

func (h hangs) OpenRegion(ctx context.Context, _ shuffle.RegionSpec) (shuffle.RegionGrant, error) {
	close(h.asked)
	<-ctx.Done()
	return shuffle.RegionGrant{}, ctx.Err()
}

func (h hangs) CloseRegion(context.Context, uint64, bool) error { return nil }
