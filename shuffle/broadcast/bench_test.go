// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"context"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// handling returns a node with a region, and chunks for it.
func handling(t testing.TB, next netip.AddrPort) (n *Node, frames [][]byte) {
	const chunks = 1024
	n, err := New(Options{
		Port: 7117, Memory: 64 << 20, Send: func([]byte, netip.AddrPort) error { return nil },
		Incoming: func(Offer) (Sink, error) { return &sink{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := regionSpec(9, chunks)
	spec.Next = next
	if _, err := n.Control().OpenRegion(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	whole := make([]byte, chunks*wire.ChunkSize)
	for p := range uint32(chunks) {
		frames = append(frames, chunkOf(t, &spec, whole, 0, chunks+1-1, p, 3, p))
	}
	return n, frames
}

var waysOn = map[string]netip.AddrPort{"next": netip.MustParseAddrPort("10.0.0.3:7117"), "tail": {}}

// BenchmarkHandle is what user space does with a chunk at a member: check, store, send on or answer; without the socket.
func BenchmarkHandle(b *testing.B) {
	for name, next := range waysOn {
		b.Run(name, func(b *testing.B) {
			n, frames := handling(b, next)
			defer n.Close()
			r := (*n.tokens.Load())[9]
			buf := make([]byte, wire.FrameSize)
			b.SetBytes(wire.ChunkSize)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := i % (len(frames) - 1) // the message is never whole
				wire.SetMark(&r.marks[p], wire.MarkNone)
				copy(buf, frames[p])
				n.Handle(buf[:len(frames[p])], sender)
			}
			if n.counts[wire.Stored].Load() == 0 {
				b.Fatal("nothing was stored")
			}
		})
	}
}

func TestHandleAllocatesNothing(t *testing.T) {
	for name, next := range waysOn {
		n, frames := handling(t, next)
		i := 0
		if a := testing.AllocsPerRun(500, func() {
			n.Handle(frames[i], sender)
			i++
		}); a != 0 {
			t.Errorf("%s: %v allocations for a chunk", name, a)
		}
		if got := n.counts[wire.Stored].Load(); got != uint64(i) {
			t.Errorf("%s: %d of %d stored", name, got, i)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// marking is a port at which frames get lost, and are answered as programs do that.
type marking struct {
	port
	g *Group
}

func (p *marking) send(b []byte, size int, _ netip.AddrPort) error {
	for ; len(b) > 0; b = b[min(size, len(b)):] {
		c := wire.ReadChunk(b[wire.HeadSize:])
		atomic.OrUint64(&p.g.cast.marks[c.Place], 1)
		atomic.AddUint32(&p.g.cast.shared.Done, 1)
	}
	return nil
}

// BenchmarkSend is what a source's user space does with a message to 8 members, without what the system does.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{1400, 64 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			source := newHost(b, setting{})
			_, members := hosts(b, 8, setting{})
			ctx := context.Background()
			g := openGroup(b, source, members, GroupSpec{Chunks: 100, Size: -1, Chains: 1})
			p := &marking{g.port, g}
			g.port = p
			data := noise(1, size)
			fill := func(b []byte) error { copy(b, data); return nil }
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				g.used, g.sent = 0, g.sent[:0]
				clear(g.cast.marks)
				if _, err := g.Send(ctx, int64(size), fill); err != nil {
					b.Fatal(err)
				}
			}
			g.port = p.port
			g.fail()
			if err := g.Close(ctx); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkCollect is what user space does with an answer at a source.
func BenchmarkCollect(b *testing.B) {
	n, err := New(Options{Memory: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	g, err := n.Open(context.Background(), GroupSpec{Chunks: 1, Members: nil})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close(context.Background())
	s := g.cast.shared
	s.Total, s.Chains, s.Want[0], s.Wake = 1, 1, 1, 9
	spec := shuffle.RegionSpec{Token: g.token}
	tags := wire.NewTags(spec.Secret)
	f := chunkOf(b, &spec, []byte{1}, 0, 1, 0, 0, 1)
	wire.SetStamp(f, 0, false)
	h := wire.ReadHead(f)
	h.Back = uint32(g.cast.slot)
	h.Put(f)
	wire.PassChunk(f, 0, 0, tags)
	f = wire.AnswerChunk(f, tags)
	b.ReportAllocs()
	for b.Loop() {
		g.cast.marks[0] = 0
		n.Handle(f, sender)
	}
	if n.counts[wire.Collected].Load() == 0 {
		b.Fatal("nothing was collected")
	}
}
