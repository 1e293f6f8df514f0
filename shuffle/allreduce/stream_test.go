// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// tiny has small vectors be cut like large ones: 32 int32 a piece, two pieces a segment at least.
var tiny = streamSizes{least: 1 << 10, segment: 256, piece: 128}

// cables are the TCP connections of a lab's hosts, at the loopback interface.
type cables struct {
	l     *lab
	mu    sync.Mutex
	spoil func(from, to *host, c net.Conn) net.Conn // nil: nothing is
	at    map[uint16]*host                          // by port
	ends  map[*host][]net.Conn
}

// streaming adds hosts that take streams.
func streaming(l *lab, n int, s setting, kernel func(int) bool) (*cables, []*host) {
	c := &cables{l: l, at: map[uint16]*host{}, ends: map[*host][]net.Conn{}}
	var hosts []*host
	for i := range n {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			l.t.Skip(err)
		}
		var h *host
		o := s
		o.kernel = kernel(i)
		o.opts.Streams = listener
		o.opts.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			c.mu.Lock()
			from, other, spoil := h, c.at[to.Port()], c.spoil
			c.mu.Unlock()
			if other == nil || other.addr != to.Addr() {
				return nil, fmt.Errorf("nobody is at %s", to)
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", to.Port()))
			if err != nil {
				return nil, err
			}
			if spoil != nil {
				conn = spoil(from, other, conn)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ends[from], c.ends[other] = append(c.ends[from], conn), append(c.ends[other], conn)
			return conn, nil
		}
		h = l.host(o)
		c.mu.Lock()
		c.at[uint16(listener.Addr().(*net.TCPAddr).Port)] = h
		c.mu.Unlock()
		hosts = append(hosts, h)
	}
	return c, hosts
}

// die has a host be gone, with all its connections.
func (c *cables) die(h *host) {
	h.die()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.ends[h] {
		_ = conn.Close()
	}
}

// pieces is how many came to hosts.
func pieces(hosts []*host) (n uint64) {
	for _, h := range hosts {
		n += h.Stats().Pieces
	}
	return n
}

// Lengths around the borders of pieces and segments, all operations, both widths, against what Local makes of them.
func TestStreamBorders(t *testing.T) {
	for _, members := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			l := newLab(t, 1, faults{})
			_, hosts := streaming(l, members, setting{opts: Options{sizes: tiny}}, kinds["mixed"])
			_, ends := l.form(hosts, FormSpec{Streams: map[bool]shuffle.StreamUse{true: shuffle.StreamsAlways}[members > 1], Patience: patient})
			local := Local(members)
			for i, size := range []int{0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 511, 512, 513, 1000, 5003} {
				for op := Sum; op <= Max; op++ {
					wide := (i+int(op))%2 == 0
					c := makeCall(members, size, op, wide, uint64(i)<<8|uint64(op))
					same := makeCall(members, size, op, wide, uint64(i)<<8|uint64(op))
					if err := errors.Join(errors.Join(together(testContext(t), ends, c.vecs)...), errors.Join(together(testContext(t), local, same.vecs)...)); err != nil {
						t.Fatalf("%s: %v", c.vecs[0], err)
					}
					c.check(t)
					for m := range c.vecs {
						if !slices.Equal(c.vecs[m].Int32, same.vecs[m].Int32) || !slices.Equal(c.vecs[m].Int64, same.vecs[m].Int64) {
							t.Fatalf("member %d: %s is not what Local makes of it", m, c.vecs[m])
						}
					}
				}
			}
			if n := pieces(hosts); (n > 0) != (members > 1) {
				t.Errorf("%d pieces came over streams", n)
			}
		})
	}
}

// Vectors of the sizes that streams are for, by the sizes that nodes have by themselves.
func TestStreamLarge(t *testing.T) {
	l := newLab(t, 1, faults{})
	_, hosts := streaming(l, 4, setting{}, kinds["user"])
	_, ends := l.form(hosts, FormSpec{})
	for i, size := range []int{1, 9_999, 16_384, 40_001, 150_000, 1_000_003} {
		before := pieces(hosts)
		reduce(t, ends, size, Sum, i%2 == 0, uint64(i))
		if over := pieces(hosts) > before; over != (size > 9_000) {
			t.Errorf("%d values go over streams: %v", size, over)
		}
	}
}

// Random calls by either way, one after the other, while frames suffer.
func TestStreamRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		inner(t, func(l *lab) {
			n := rapid.IntRange(2, 8).Draw(r, "members")
			kernel := kinds[rapid.SampledFrom([]string{"user", "kernel", "mixed"}).Draw(r, "kind")]
			sizes := streamSizes{
				least: rapid.SampledFrom([]int{1, 64, 4 << 10}).Draw(r, "least"), segment: 64 << rapid.IntRange(0, 8).Draw(r, "segment"),
				piece: 128 << rapid.IntRange(0, 9).Draw(r, "piece"),
			}
			_, hosts := streaming(l, n, setting{opts: Options{sizes: sizes}}, kernel)
			_, ends := l.form(hosts, FormSpec{})
			for range rapid.IntRange(1, 8).Draw(r, "calls") {
				c := drawCall(r, n)
				for m, err := range together(testContext(t), ends, c.vecs) {
					if err != nil {
						r.Fatalf("member %d: %v", m, err)
					}
				}
				c.check(r)
			}
		}, rapid.Uint64().Draw(r, "seed"), faults{Lose: 0.02, Double: 0.02})
	})
}

// spoiled is a connection on which something befalls one message, by its number.
type spoiled struct {
	net.Conn
	how   string
	which int
	bit   int

	mu   sync.Mutex
	seen int
	kept []byte // the message before
	held []byte // one that is held back
}

// Write is given a head, values and what pads them, one after the other: it waits for all of a message.
func (s *spoiled) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, b...)
	for {
		h, err := wire.ParseStreamHead(s.held)
		size := wire.StreamHeadSize + wire.PaddedPiece(int(h.Bytes))
		if err != nil || len(s.held) < size {
			return len(b), nil
		}
		m := slices.Clone(s.held[:size])
		s.held = s.held[size:]
		out := [][]byte{m}
		if h.Kind >= wire.StreamPart {
			if s.seen == s.which {
				switch s.how {
				case "damaged":
					// Zeros behind values are not looked at.
					at := s.bit % (8 * (wire.StreamHeadSize + int(h.Bytes)))
					m[at/8] ^= 1 << (at % 8)
				case "twice":
					out = [][]byte{m, m}
				case "left out":
					out = nil
				case "replayed":
					if s.kept != nil {
						out = [][]byte{s.kept}
					}
				case "cut":
					_, _ = s.Conn.Write(m[:s.bit%len(m)])
					_ = s.Conn.Close()
					return len(b), nil
				}
			}
			s.seen++
			s.kept = m
		}
		for _, m := range out {
			if _, err := s.Conn.Write(m); err != nil {
				return len(b), err
			}
		}
	}
}

// What befalls messages on their way never makes a wrong sum, and all learn of it.
func TestStreamSpoiled(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		how := rapid.SampledFrom([]string{"damaged", "twice", "left out", "replayed", "cut"}).Draw(r, "how")
		which, bit := rapid.IntRange(0, 30).Draw(r, "message"), rapid.IntRange(0, 1<<16).Draw(r, "bit")
		n := rapid.IntRange(2, 5).Draw(r, "members")
		inner(t, func(l *lab) {
			c, hosts := streaming(l, n, setting{opts: Options{sizes: tiny}}, kinds["user"])
			c.spoil = func(from, to *host, conn net.Conn) net.Conn {
				if from == hosts[0] && to == hosts[n-1] {
					return &spoiled{Conn: conn, how: how, which: which, bit: bit}
				}
				return conn
			}
			_, ends := l.form(hosts, FormSpec{Streams: shuffle.StreamsAlways, Patience: patient})
			failed := 0
			for i := range 8 {
				k := makeCall(n, 700+i, Sum, i%2 == 0, uint64(i))
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				errs := together(ctx, ends, k.vecs)
				cancel()
				for m, err := range errs {
					if err == nil {
						// Others may have failed, but this is right.
						one := call{vecs: k.vecs[m : m+1], want32: k.want32, want64: k.want64}
						one.check(r)
						continue
					}
					failed++
					if !errors.Is(err, ErrBroken) || errors.Is(err, context.DeadlineExceeded) {
						r.Fatalf("%s: call %d, member %d: %v", how, i, m, err)
					}
				}
				if failed > 0 {
					break
				}
			}
			if first := n == 2; failed == 0 && first && which < 20 && how != "replayed" {
				r.Fatalf("%s: message %d is of no call", how, which)
			}
		}, 1, faults{})
	})
}

// Whoever connects and is no member is dropped, and calls go on: also one who repeats what a member said.
func TestStreamStrangers(t *testing.T) {
	l := newLab(t, 1, faults{})
	c, hosts := streaming(l, 3, setting{opts: Options{sizes: tiny}}, kinds["user"])
	var mu sync.Mutex
	var said []*recorded
	c.spoil = func(_, to *host, conn net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		r := &recorded{Conn: conn, to: to}
		said = append(said, r)
		return r
	}
	f, ends := l.form(hosts, FormSpec{Streams: shuffle.StreamsAlways, Patience: patient})
	reduce(t, ends, 500, Sum, false, 1)
	ports := map[*host]uint16{}
	for p, h := range c.at {
		ports[h] = p
	}
	dial := func(h *host) net.Conn {
		conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", ports[h]))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	head := func(change func(*wire.StreamHead), tags *wire.StreamTags) []byte {
		b := make([]byte, wire.StreamHeadSize)
		h := wire.StreamHead{Kind: wire.StreamHello, From: 0, To: 1, Token: f.Token, Dialled: 5}
		change(&h)
		tags.Seal(b, &h, nil, h.Dialled, h.Answered)
		return b
	}
	right, wrong := wire.NewStreamTags([16]byte{}), wire.NewStreamTags([16]byte{1})
	none := func(*wire.StreamHead) {}
	want := uint64(0)
	for name, b := range map[string][]byte{
		"nothing": nil, "garbage": []byte(strings.Repeat("x", 200)), "wrong key": head(none, wrong), "ends early": head(none, right)[:40],
		"another group": head(func(h *wire.StreamHead) { h.Token++ }, right), "another member": head(func(h *wire.StreamHead) { h.To = 2 }, right),
		"no member": head(func(h *wire.StreamHead) { h.From = 3 }, right), "a piece": head(func(h *wire.StreamHead) { h.Kind, h.Dialled, h.Bytes = wire.StreamPart, 0, 4 }, right),
		"no confirmation": head(none, right),
	} {
		conn := dial(hosts[1])
		if _, err := conn.Write(b); err != nil {
			t.Error(name, err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		want++
		waitFor(t, func() bool { return hosts[1].Stats().Strangers == want })
		_ = conn.Close()
	}
	mu.Lock()
	for _, r := range said {
		conn := dial(r.to)
		before := r.to.Stats().Strangers
		r.mu.Lock()
		_, _ = conn.Write(r.sent) // up to where the other end drops it
		r.mu.Unlock()
		_ = conn.(*net.TCPConn).CloseWrite()
		waitFor(t, func() bool { return r.to.Stats().Strangers > before })
		_ = conn.Close()
	}
	mu.Unlock()
	// More than there is room for, that say nothing.
	for range mostStrangers + 20 {
		conn := dial(hosts[2])
		defer conn.Close()
	}
	reduce(t, ends, 5000, Max, true, 2)
	if _, more := l.form(hosts, FormSpec{Streams: shuffle.StreamsAlways, Patience: patient}); true {
		reduce(t, more, 700, Sum, false, 3)
	}
}

// recorded keeps what was sent.
type recorded struct {
	net.Conn
	to   *host
	mu   sync.Mutex
	sent []byte
}

func (r *recorded) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.sent = append(r.sent, b...)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

// Members whose calls differ so that they go different ways, or are of different numbers, learn so.
func TestStreamDiffers(t *testing.T) {
	large, other, small, empty := Vector{Int32: make([]int32, 2000)}, Vector{Int32: make([]int32, 2001)}, Vector{Int32: make([]int32, 10)}, Vector{}
	for name, odd := range map[string][]Vector{
		"another length": {other}, "small": {small}, "empty": {empty, large}, "small behind empty": {empty, small}, "another operation": {{Op: Max, Int32: large.Int32}},
		"wide": {{Int64: make([]int64, 1000)}},
	} {
		for _, connected := range []bool{false, true} {
			for _, usual := range []Vector{large, small} {
				if len(usual.Int32) == 10 && name == "small" {
					continue // that is the same
				}
				for rank := range 3 {
					t.Run(fmt.Sprintf("%s, connected %v, others %d, member %d", name, connected, usual.Len(), rank), func(t *testing.T) {
						t.Parallel()
						l := newLab(t, 1, faults{})
						_, hosts := streaming(l, 3, setting{opts: Options{sizes: tiny}}, kinds["user"])
						_, ends := l.form(hosts, FormSpec{Patience: patient})
						if connected {
							reduce(t, ends, 2000, Sum, false, 1)
						}
						ctx := testContext(t)
						errs := make(chan error, 3)
						for m, g := range ends {
							go func() {
								mine := []Vector{usual}
								if m == rank {
									mine = odd
								}
								for _, v := range mine {
									own := Vector{Op: v.Op, Int32: slices.Clone(v.Int32), Int64: slices.Clone(v.Int64)}
									if err := g.Reduce(ctx, own); err != nil {
										errs <- err
										return
									}
								}
								errs <- nil
							}()
						}
						for range 3 {
							if err := <-errs; !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), errDiffers.Error()) {
								t.Errorf("%v", err)
							}
						}
					})
				}
			}
		}
	}
}

// What one member does to a call over streams that the others wait in.
func TestStreamBreaks(t *testing.T) {
	cause := errors.New("the user went home")
	const size = 300_000
	for name, tc := range map[string]struct {
		do   func(t *testing.T, c *cables, h *host, f *Formed, g Group)
		why  string
		rank int // who is the reason; -1: nobody
	}{
		"context": {func(t *testing.T, _ *cables, _ *host, _ *Formed, g Group) {
			ctx, cancel := context.WithCancelCause(testContext(t))
			time.AfterFunc(5*time.Millisecond, func() { cancel(cause) })
			if err := AllReduce(ctx, g, Sum, make([]int32, size)); !errors.Is(err, cause) || !errors.Is(err, context.Canceled) || !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
		}, "went home", 1},
		"closed": {func(_ *testing.T, _ *cables, _ *host, _ *Formed, g Group) { _ = g.Close() }, left, 1},
		"closed in a call": {func(t *testing.T, _ *cables, _ *host, _ *Formed, g Group) {
			done := make(chan error)
			go func() { done <- AllReduce(testContext(t), g, Sum, make([]int32, size)) }()
			started(t, g)
			_ = g.Close()
			if err := <-done; !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
		}, "in the middle", 1},
		"dead":    {func(_ *testing.T, c *cables, h *host, _ *Formed, _ Group) { c.die(h) }, "stream has ended", 1},
		"silent":  {func(_ *testing.T, _ *cables, h *host, _ *Formed, _ Group) { h.die() }, "not answered", 1},
		"shut":    {func(_ *testing.T, _ *cables, h *host, _ *Formed, _ Group) { _ = h.Close() }, ErrClosed.Error(), 1},
		"dropped": {func(_ *testing.T, _ *cables, h *host, _ *Formed, _ Group) { h.Drop(shuffle.JobID{}) }, ErrDropped.Error(), 1},
		"enough": {func(t *testing.T, _ *cables, _ *host, f *Formed, _ Group) {
			_ = f.Break(testContext(t), "enough of it")
		}, "enough of it", -1},
		"finished": {func(t *testing.T, _ *cables, _ *host, f *Formed, _ Group) { _ = f.Close(testContext(t)) }, "was closed", -1},
	} {
		for _, warm := range []int{0, 10, size} {
			t.Run(fmt.Sprintf("%s after %d", name, warm), func(t *testing.T) {
				l := newLab(t, 1, faults{})
				c, hosts := streaming(l, 3, setting{opts: Options{Patience: patient}}, kinds["mixed"])
				f, ends := l.form(hosts, FormSpec{Patience: patient})
				if warm > 0 {
					reduce(t, ends, warm, Sum, false, 1)
				}
				others := []Group{ends[0], ends[2]}
				if name == "closed in a call" || name == "context" {
					others = others[:1] // so that nothing gets done
				}
				told := make(chan error)
				for _, g := range others {
					go func() { told <- AllReduce(testContext(t), g, Sum, make([]int32, size)) }()
				}
				started(t, others...)
				tc.do(t, c, hosts[1], f, ends[1])
				for range others {
					err := <-told
					var m *MemberError
					// Where nothing was connected yet, that can't be done any more, or who formed the group is first to know.
					odd := warm != size && tc.rank >= 0 || name == "dropped" || name == "dead"
					if !errors.Is(err, ErrBroken) || errors.Is(err, cause) || !odd && !strings.Contains(err.Error(), tc.why) {
						t.Errorf("others are told %v", err)
					}
					if is := errors.As(err, &m); is != (tc.rank >= 0) || is && (m.Rank != tc.rank || m.Name != "host 1") {
						t.Errorf("others are told %v, of %+v", err, m)
					}
				}
			})
		}
	}
}

// A member that has left between two calls has done its share of the call before.
func TestStreamLeft(t *testing.T) {
	l := newLab(t, 1, faults{})
	_, hosts := streaming(l, 3, setting{opts: Options{sizes: tiny}}, kinds["user"])
	_, ends := l.form(hosts, FormSpec{Patience: patient})
	for i := range 20 {
		reduce(t, ends, 2000+i, Sum, false, uint64(i))
	}
	if err := ends[2].Close(); err != nil {
		t.Error(err)
	}
	for m, err := range together(testContext(t), ends[:2], []Vector{{Int32: make([]int32, 3000)}, {Int32: make([]int32, 3000)}}) {
		var who *MemberError
		if !errors.As(err, &who) || who.Rank != 2 || !strings.Contains(err.Error(), left) {
			t.Errorf("member %d: %v", m, err)
		}
	}
}

// Streams are used where all members take them, and the spec does not say otherwise.
func TestStreamsFormed(t *testing.T) {
	l := newLab(t, 1, faults{})
	_, hosts := streaming(l, 2, setting{opts: Options{sizes: tiny}}, kinds["user"])
	_, ends := l.form(append(slices.Clone(hosts), l.host(setting{opts: Options{sizes: tiny}})), FormSpec{})
	reduce(t, ends, 5000, Sum, false, 1)
	_, ends = l.form(hosts, FormSpec{Streams: shuffle.StreamsNever})
	reduce(t, ends, 5000, Sum, false, 2)
	if n := pieces(hosts); n > 0 {
		t.Errorf("%d pieces came over streams", n)
	}
	plain := l.host(setting{})
	spec := FormSpec{Name: "x", Streams: shuffle.StreamsAlways}
	for _, h := range []*host{hosts[0], plain} {
		spec.Members = append(spec.Members, Member{Name: "m", Address: netip.AddrPortFrom(h.addr, 0), Control: remote{h}})
	}
	if _, err := Form(testContext(t), spec); err == nil || !strings.Contains(err.Error(), "takes none") {
		t.Error(err)
	}
	members := []shuffle.GroupMember{{Name: "a", Address: hostAddress(hosts[0]), Stream: 1}, {Name: "b", Address: hostAddress(plain), Stream: 2}}
	for name, s := range map[string]shuffle.GroupSpec{
		"a use that there is not": {Streams: 3, Members: members},
		"a member without a port": {Streams: shuffle.StreamsAlways, Members: []shuffle.GroupMember{members[0], {Name: "b", Address: members[1].Address}}},
		"a port too large":        {Streams: shuffle.StreamsNever, Members: []shuffle.GroupMember{members[0], {Name: "b", Address: members[1].Address, Stream: 1 << 16}}},
		"none taken here":         {Members: members},
	} {
		s.Token, s.Bits = 1, 2
		if _, err := plain.Control().OpenGroup(testContext(t), s); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing is allocated by calls over streams but at the start.
func TestStreamAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, size := range []int{10_000, 40_000, 300_000} {
		l := newLab(t, 1, faults{})
		_, hosts := streaming(l, 3, setting{}, kinds["user"])
		f, ends := l.form(hosts, FormSpec{})
		f.stop()
		<-f.ended
		v := make([]int32, size)
		stop := others(t, ends, size)
		once := func() {
			if err := AllReduce(context.Background(), ends[0], Sum, v); err != nil {
				t.Error(err)
			}
		}
		for range 10 {
			once()
		}
		// By the clock, every now and then, a limit of time passes that is set anew, which allocates.
		if got := testing.AllocsPerRun(50, once); got >= float64(1+size/100_000) {
			t.Errorf("%v allocations a call of %d values", got, size)
		}
		stop()
	}
}
