// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// got is what a receiver handed on.
type got struct {
	mu     sync.Mutex
	frames [][]byte
	from   []netip.AddrPort
}

func (g *got) take(frame []byte, from netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frames, g.from = append(g.frames, bytes.Clone(frame)), append(g.from, from)
	clear(frame) // it may be changed
}

func (g *got) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.frames)
}

// chunks makes n chunks of a message, the last one short, and the answer of a chain to the first.
func chunks(t *testing.T, n int) (frames [][]byte, answer []byte) {
	t.Helper()
	tags := wire.NewTags([16]byte{1})
	for i := range n {
		data := bytes.Repeat([]byte{byte(i + 1)}, wire.ChunkSize)
		if i == n-1 {
			data = data[:100]
		}
		f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: 9, Seq: uint32(i)}, wire.Chunk{Place: uint32(i), Total: uint32(n), Chain: 1}, data, tags)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	return frames, wire.AnswerChunk(bytes.Clone(frames[0]), tags)
}

// parts makes a part of a block of an all-reduce and a result.
func parts(t *testing.T) (frames [][]byte) {
	t.Helper()
	tags := wire.NewTags([16]byte{1})
	for _, kind := range []wire.Kind{wire.Reduce, wire.Reduced} {
		f, err := wire.PutPart(make([]byte, wire.FrameSize), kind, 9, 1<<5, wire.Part{What: 3, Reducer: 1}, bytes.Repeat([]byte{byte(kind)}, 400), tags)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	return frames
}

// TestOther has chunks and parts come between frames of a stream: each goes its way.
func TestOther(t *testing.T) {
	g := &got{}
	s := newStage(t, Options{Listen: "127.0.0.1", Readers: 2, Other: g.take}, fold.Sum)
	o := s.cut(1, 0, some(200)...)
	grant := s.open(o)
	conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.r.Port()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	all, answer := chunks(t, 5)
	all = append(append(all, answer), parts(t)...)
	damaged := bytes.Clone(all[0])
	damaged[1] ^= 1 // no frame
	short := all[1][:len(all[1])-8]
	for i := range max(len(all), o.spec.Frames) {
		if i < len(all) {
			_, err = conn.Write(all[i])
		}
		if i < o.spec.Frames && err == nil {
			_, err = conn.Write(o.seal(i, grant, 7))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range [][]byte{damaged, short} {
		if _, err := conn.Write(bad); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the stream is complete", func() bool { return s.complete(o) })
	waitFor(t, "all chunks have come", func() bool { return g.count() == len(all) })
	s.counted(wire.Foreign, 1)
	s.counted(wire.Malformed, 1)
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range all {
		if !bytes.Equal(g.frames[i], all[i]) || g.from[i] != conn.LocalAddr().(*net.UDPAddr).AddrPort() {
			t.Errorf("frame %d came from %v, %v, as %x", i, g.from[i], conn.LocalAddr(), g.frames[i])
		}
	}
	if n := s.r.Stats().Reasons[wire.AckStray]; n != 0 {
		t.Errorf("%d strays", n)
	}
}

// TestNoOther counts what nobody wants.
func TestNoOther(t *testing.T) {
	s := newStage(t, Options{Listen: "127.0.0.1"}, fold.Sum)
	l, err := dial(s.r.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all, answer := chunks(t, 2)
	for _, f := range append(append(all, answer), parts(t)...) {
		l.send(f)
	}
	s.counted(wire.AckStray, 5)
}

// TestSendFrame sends frames between receivers that are bound in all the ways there are. They
// come from the port that frames go to, and from an address that can be answered.
func TestSendFrame(t *testing.T) {
	six := true
	if c, err := net.ListenPacket("udp", "[::1]:0"); err != nil {
		six = false
		t.Log("without IPv6:", err)
	} else {
		_ = c.Close()
	}
	one, _ := chunks(t, 1)
	frame := one[0]
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		from, to, address string // from and to: Listen
		source            string // where it comes from
		ok, six           bool
	}{
		{"127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1", true, false},
		{"", "", "127.0.0.1", "127.0.0.1", true, false},
		{"", "127.0.0.3", "127.0.0.3", "127.0.0.1", true, false},
		{"127.0.0.2", "", "127.0.0.1", "127.0.0.2", true, false},
		{"127.0.0.2", "", "::ffff:127.0.0.1", "127.0.0.2", true, false},
		{"", "", "::ffff:127.0.0.1", "127.0.0.1", true, false},
		{"", "", "::1", "::1", true, true},
		{"::1", "", "::1", "::1", true, true},
		{"127.0.0.1", "", "::1", "", false, true},
	} {
		if c.six && !six {
			continue
		}
		name := fmt.Sprintf("from %q to %q at %s", c.from, c.to, c.address)
		g := &got{}
		a := testReceiver(t, Options{Listen: c.from, Readers: 1 + rng.IntN(2)})
		b := testReceiver(t, Options{Listen: c.to, Readers: 2, Other: g.take})
		err := a.SendFrame(frame, netip.AddrPortFrom(netip.MustParseAddr(c.address), uint16(b.Port())))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		waitFor(t, name, func() bool { return g.count() == 1 })
		if want := netip.AddrPortFrom(netip.MustParseAddr(c.source), uint16(a.Port())); g.from[0] != want || !bytes.Equal(g.frames[0], frame) {
			t.Errorf("%s: it came from %v, not %v, as %x", name, g.from[0], want, g.frames[0])
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := a.SendFrame(frame, g.from[0]); !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
}

// TestSendFrames sends many frames at once: all come whole, as if each had been sent alone.
func TestSendFrames(t *testing.T) {
	tags := wire.NewTags([16]byte{2})
	for _, c := range []struct {
		name     string
		n, size  int // of frames, and bytes of values in each
		last     int // bytes of values in the last one
		fails    bool
		step     int    // 0: that of the frames
		from, to string // Options.Listen
	}{
		{name: "one", n: 1, size: 1344, last: 1344},
		{name: "a small one", n: 1, size: 1344, last: 4},
		{name: "equal", n: 32, size: 1344, last: 1344},
		{name: "smaller last", n: 33, size: 1344, last: 8},
		{name: "many", n: 100, size: 1344, last: 1000},
		{name: "many small", n: 200, size: 64, last: 64},
		{name: "from all addresses", n: 40, size: 1344, last: 1344, from: "all", to: "all"},
		{name: "no size", n: 3, size: 1344, last: 1344, step: -1, fails: true},
	} {
		g := &got{}
		listen := func(s string) string {
			if s == "all" {
				return ""
			}
			return "127.0.0.1"
		}
		a := testReceiver(t, Options{Listen: listen(c.from)})
		b := testReceiver(t, Options{Listen: listen(c.to), Other: g.take})
		var all []byte
		var want [][]byte
		for i := range c.n {
			bytesOf := c.size
			if i == c.n-1 {
				bytesOf = c.last
			}
			values := bytes.Repeat([]byte{byte(i)}, bytesOf)
			f, err := wire.PutPart(make([]byte, wire.FrameSize), wire.Reduced, 5, uint32(i), wire.Part{What: 3}, values, tags)
			if err != nil {
				t.Fatal(err)
			}
			want, all = append(want, f), append(all, f...)
		}
		step := len(want[0])
		if c.step != 0 {
			step = c.step
		}
		err := a.SendFrames(all, step, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(b.Port())))
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.fails {
			continue
		}
		waitFor(t, c.name, func() bool { return g.count() >= c.n })
		seen := map[uint32]bool{}
		for i, f := range g.frames {
			h, _, _, err := wire.ParsePart(f)
			if err != nil || int(h.Seq) >= c.n || !bytes.Equal(f, want[h.Seq]) || seen[h.Seq] {
				t.Errorf("%s: frame %d came as %x (%v)", c.name, i, f, err)
				continue
			}
			seen[h.Seq] = true
		}
		if err := a.SendFrames(nil, 0, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9)); err != nil {
			t.Errorf("%s: nothing: %v", c.name, err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := a.SendFrames(all, step, netip.MustParseAddrPort("127.0.0.1:9")); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: closed: %v", c.name, err)
		}
	}
}
