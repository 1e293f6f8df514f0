// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

// member is a shuffle.BroadcastControl made of functions; the ones that are not set
// return zero values.
type member struct {
	endpoint func(context.Context) (shuffle.Endpoint, error)
	open     func(context.Context, shuffle.RegionSpec) (shuffle.RegionGrant, error)
	relink   func(context.Context, uint64, netip.AddrPort) error
	missing  func(context.Context, uint64, uint32, uint32) ([]shuffle.Gap, error)
	confirm  func(context.Context, uint64, uint32) error
	close    func(context.Context, uint64, bool) error
}

func (m *member) BroadcastEndpoint(ctx context.Context) (e shuffle.Endpoint, err error) {
	if m.endpoint != nil {
		e, err = m.endpoint(ctx)
	}
	return e, err
}

func (m *member) OpenRegion(ctx context.Context, s shuffle.RegionSpec) (g shuffle.RegionGrant, err error) {
	if m.open != nil {
		g, err = m.open(ctx, s)
	}
	return g, err
}

func (m *member) Relink(ctx context.Context, token uint64, next netip.AddrPort) error {
	if m.relink == nil {
		return nil
	}
	return m.relink(ctx, token, next)
}

func (m *member) Missing(ctx context.Context, token uint64, first, total uint32) (g []shuffle.Gap, err error) {
	if m.missing != nil {
		g, err = m.missing(ctx, token, first, total)
	}
	return g, err
}

func (m *member) ConfirmMessage(ctx context.Context, token uint64, first uint32) error {
	if m.confirm == nil {
		return nil
	}
	return m.confirm(ctx, token, first)
}

func (m *member) CloseRegion(ctx context.Context, token uint64, whole bool) error {
	if m.close == nil {
		return nil
	}
	return m.close(ctx, token, whole)
}

// memberConn returns a connection in memory to a member.
func memberConn(t *testing.T, m shuffle.BroadcastControl) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	NewBroadcastServer(m).Register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		<-done
	})
	return conn
}

func memberPair(t *testing.T, m shuffle.BroadcastControl) *broadcastClient {
	return NewBroadcastClient(memberConn(t, m)).(*broadcastClient)
}

// region has a value in every field.
func region() shuffle.RegionSpec {
	return shuffle.RegionSpec{
		Job: shuffle.JobID{1, 15: 2}, Secret: [16]byte{3, 15: 4}, Mode: shuffle.UserOnly, Token: 1<<64 - 1,
		Source: netip.MustParseAddrPort("10.0.0.1:7117"), Chunks: 1<<31 - 1, Chain: 63, Bit: 62,
		Next: netip.MustParseAddrPort("[fd00::2]:7118"), Name: "a name", Kind: "mapped", Offset: 1 << 40, Size: 1 << 41,
		Eager: true,
	}
}

// TestBroadcastValues sends a value in every field and looks at both ends.
func TestBroadcastValues(t *testing.T) {
	endless := region()
	endless.Size, endless.Offset, endless.Next = -1, 5, netip.AddrPort{}
	gaps := []shuffle.Gap{{Place: 7, Count: 1<<32 - 10}, {Place: 1<<32 - 3, Count: 1}}
	endpoint := shuffle.Endpoint{Port: 7117, Kernel: true, Generic: true, Frame: 1440, Window: 200}
	var saw []any
	see := func(v ...any) { saw = append(saw, v...) }
	c := memberPair(t, &member{
		endpoint: func(context.Context) (shuffle.Endpoint, error) { return endpoint, nil },
		open: func(_ context.Context, s shuffle.RegionSpec) (shuffle.RegionGrant, error) {
			see(s)
			return shuffle.RegionGrant{Have: s.Size < 0, Kernel: s.Size >= 0}, nil
		},
		relink: func(_ context.Context, token uint64, next netip.AddrPort) error { see(token, next); return nil },
		missing: func(_ context.Context, token uint64, first, total uint32) ([]shuffle.Gap, error) {
			see(token, first, total)
			if first == 1 {
				return nil, nil
			}
			return gaps, nil
		},
		confirm: func(_ context.Context, token uint64, first uint32) error { see(token, first); return nil },
		close:   func(_ context.Context, token uint64, whole bool) error { see(token, whole); return nil },
	})
	ctx := t.Context()
	e, e0 := c.BroadcastEndpoint(ctx)
	g1, e1 := c.OpenRegion(ctx, region())
	g2, e2 := c.OpenRegion(ctx, endless)
	e3 := c.Relink(ctx, 5, netip.AddrPort{})
	e4 := c.Relink(ctx, 6, netip.MustParseAddrPort("[::ffff:10.0.0.9]:1"))
	m1, e5 := c.Missing(ctx, 7, 0, 1<<32-1)
	m2, e6 := c.Missing(ctx, 8, 1, 2)
	e7 := c.ConfirmMessage(ctx, 1<<63, 1<<32-1)
	e8 := c.CloseRegion(ctx, 9, true)
	e9 := c.CloseRegion(ctx, 10, false)
	if err := errors.Join(e0, e1, e2, e3, e4, e5, e6, e7, e8, e9); err != nil {
		t.Fatal(err)
	}
	for _, cmp := range []struct{ got, want any }{
		{e, endpoint},
		{g1, shuffle.RegionGrant{Kernel: true}},
		{g2, shuffle.RegionGrant{Have: true}},
		{m1, gaps},
		{len(m2), 0},
		{saw, []any{
			region(), endless, uint64(5),
			netip.AddrPort{},
			uint64(6), netip.MustParseAddrPort("[::ffff:10.0.0.9]:1"),
			uint64(7), uint32(0), uint32(1<<32 - 1), uint64(8), uint32(1), uint32(2), uint64(1 << 63), uint32(1<<32 - 1),
			uint64(9), true, uint64(10), false,
		}},
	} {
		if !reflect.DeepEqual(cmp.got, cmp.want) {
			t.Errorf("got  %+v\nwant %+v", cmp.got, cmp.want)
		}
	}
}

func TestBroadcastErrors(t *testing.T) {
	all := []error{shuffle.ErrUnknown, shuffle.ErrBusy, shuffle.ErrRefused, shuffle.ErrDigest, context.Canceled}
	var now error
	c := memberPair(t, &member{
		endpoint: func(context.Context) (shuffle.Endpoint, error) { return shuffle.Endpoint{}, now },
		open: func(context.Context, shuffle.RegionSpec) (shuffle.RegionGrant, error) {
			return shuffle.RegionGrant{}, now
		},
		relink:  func(context.Context, uint64, netip.AddrPort) error { return now },
		missing: func(context.Context, uint64, uint32, uint32) ([]shuffle.Gap, error) { return nil, now },
		confirm: func(context.Context, uint64, uint32) error { return now },
		close:   func(context.Context, uint64, bool) error { return now },
	})
	for i, kind := range append(all, errors.New("the disk is full")) {
		now = fmt.Errorf("region 7: %w", kind)
		_, e1 := c.BroadcastEndpoint(t.Context())
		_, e2 := c.OpenRegion(t.Context(), region())
		_, e5 := c.Missing(t.Context(), 1, 2, 3)
		for what, err := range map[string]error{
			"BroadcastEndpoint": e1, "OpenRegion": e2, "Relink": c.Relink(t.Context(), 1, netip.AddrPort{}), "Missing": e5,
			"ConfirmMessage": c.ConfirmMessage(t.Context(), 1, 2), "CloseRegion": c.CloseRegion(t.Context(), 1, true),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "shuffle control at memory: "+what+": "+now.Error()) {
				t.Errorf("%v arrived as %v", now, err)
			}
			for k := range all {
				if errors.Is(err, all[k]) != (k == i) {
					t.Errorf("%s: %v arrived as %v: Is(%v) is %v", what, now, err, all[k], k != i)
				}
			}
		}
	}
}

// TestConfirmIsAskedAgain has a member that takes longer than a question may.
func TestConfirmIsAskedAgain(t *testing.T) {
	var asked atomic.Int32
	c := memberPair(t, &member{confirm: func(ctx context.Context, _ uint64, _ uint32) error {
		if asked.Add(1) >= 3 { // the answer to the third may be late, too
			return shuffle.ErrDigest
		}
		<-ctx.Done()
		return fmt.Errorf("confirm: %w", ctx.Err())
	}})
	c.wait = 20 * time.Millisecond
	if err := c.ConfirmMessage(t.Context(), 1, 2); !errors.Is(err, shuffle.ErrDigest) || asked.Load() < 3 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}

// TestConfirmEnds has the caller's context end, its deadline pass, and a member that does not keep
// to what it was asked.
func TestConfirmEnds(t *testing.T) {
	began, late := make(chan bool, 10), make(chan bool)
	defer close(late)
	c := memberPair(t, &member{confirm: func(ctx context.Context, _ uint64, first uint32) error {
		began <- true
		<-ctx.Done()
		if first == 1 {
			<-late
		}
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if err := c.ConfirmMessage(ctx, 1, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.ConfirmMessage(ctx, 1, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	c.wait, c.grace = time.Millisecond, 50*time.Millisecond
	if err := c.ConfirmMessage(t.Context(), 1, 1); status.Code(err) != codes.Unavailable || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 51ms") {
		t.Errorf("no answer: %v", err)
	}
}

// TestBroadcastMalformed sends messages that no client does.
func TestBroadcastMalformed(t *testing.T) {
	var mu sync.Mutex
	reached := 0
	conn := memberConn(t, &member{
		open: func(context.Context, shuffle.RegionSpec) (shuffle.RegionGrant, error) {
			mu.Lock()
			defer mu.Unlock()
			reached++
			return shuffle.RegionGrant{}, nil
		},
		relink: func(context.Context, uint64, netip.AddrPort) error { t.Error("relink"); return nil },
	})
	raw := shufflepb.NewBroadcastControlClient(conn)
	spec := region()
	if _, err := raw.OpenRegion(t.Context(), packRegion(&spec)); err != nil || reached != 1 {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*shufflepb.RegionSpec){
		"short id":      func(s *shufflepb.RegionSpec) { s.Job = s.Job[:15] },
		"no secret":     func(s *shufflepb.RegionSpec) { s.Secret = nil },
		"mode":          func(s *shufflepb.RegionSpec) { s.Mode = 3 },
		"token":         func(s *shufflepb.RegionSpec) { s.Token = 0 },
		"no source":     func(s *shufflepb.RegionSpec) { s.Source = "" },
		"source":        func(s *shufflepb.RegionSpec) { s.Source = "host:1" },
		"source's port": func(s *shufflepb.RegionSpec) { s.Source = "10.0.0.1:0" },
		"next":          func(s *shufflepb.RegionSpec) { s.Next = "10.0.0.1" },
		"no chunks":     func(s *shufflepb.RegionSpec) { s.Chunks = 0 },
		"chunks":        func(s *shufflepb.RegionSpec) { s.Chunks = 1 << 31 },
		"chain":         func(s *shufflepb.RegionSpec) { s.Chain = 64 },
		"bit":           func(s *shufflepb.RegionSpec) { s.Bit = 64 },
		"name":          func(s *shufflepb.RegionSpec) { s.Name = strings.Repeat("x", maxName+1) },
		"kind":          func(s *shufflepb.RegionSpec) { s.Kind = strings.Repeat("x", maxName+1) },
		"offset":        func(s *shufflepb.RegionSpec) { s.Offset = -1 },
		"size":          func(s *shufflepb.RegionSpec) { s.Size = -2 },
		"beyond":        func(s *shufflepb.RegionSpec) { s.Offset = s.Size + 1 },
	} {
		p := packRegion(&spec)
		change(p)
		_, err := raw.OpenRegion(t.Context(), p)
		if err = unpack("x", "y", err); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := raw.Relink(t.Context(), &shufflepb.RelinkRequest{Next: "nowhere"}); !errors.Is(unpack("x", "y", err), shuffle.ErrRefused) {
		t.Errorf("relink: %v", err)
	}
	if reached != 1 {
		t.Errorf("%d regions were opened", reached)
	}
}

// TestGapsElsewhere has a member miss what it was not asked for, or the same more than once.
func TestGapsElsewhere(t *testing.T) {
	var now []shuffle.Gap
	c := memberPair(t, &member{missing: func(context.Context, uint64, uint32, uint32) ([]shuffle.Gap, error) { return now, nil }})
	for _, tt := range []struct {
		gap shuffle.Gap
		ok  bool
	}{
		{shuffle.Gap{Place: 12, Count: 3}, true},
		{shuffle.Gap{Place: 14, Count: 1}, true},
		{shuffle.Gap{Place: 12, Count: 0}, false},
		{shuffle.Gap{Place: 11, Count: 1}, false},
		{shuffle.Gap{Place: 10, Count: 1}, false},
		{shuffle.Gap{Place: 10, Count: 5}, false},
		{shuffle.Gap{Place: 9, Count: 1}, false},
		{shuffle.Gap{Place: 14, Count: 2}, false},
		{shuffle.Gap{Place: 1<<32 - 1, Count: 1<<32 - 1}, false},
	} {
		now = []shuffle.Gap{{Place: 11, Count: 1}, tt.gap}
		if got, err := c.Missing(t.Context(), 1, 10, 5); (err == nil) != tt.ok || tt.ok && !reflect.DeepEqual(got, now) {
			t.Errorf("%v: %v %v", tt.gap, got, err)
		}
	}
	if _, err := unpackGaps(&shufflepb.GapList{Places: []uint32{1, 2}, Counts: []uint32{1}}, 0, 10); err == nil {
		t.Error("two gaps with one size are taken")
	}
}

// addresses are drawn as they occur: IPv4, IPv6, IPv4 in IPv6, none.
func drawAddress(t *rapid.T, label string) netip.AddrPort {
	b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
	var a netip.Addr
	switch rapid.IntRange(0, 3).Draw(t, label+" is") {
	case 0:
		return netip.AddrPort{}
	case 1:
		a = netip.AddrFrom4([4]byte(b))
	case 2:
		a = netip.AddrFrom16([16]byte(b))
	case 3:
		a = netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
	}
	return netip.AddrPortFrom(a, rapid.Uint16Range(1, 1<<16-1).Draw(t, label+"'s port"))
}

// TestRegionsAndGapsTravel converts all that is valid there and back.
func TestRegionsAndGapsTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shuffle.RegionSpec{
			Mode: shuffle.Mode(rapid.IntRange(0, 2).Draw(t, "mode")), Token: rapid.Uint64Min(1).Draw(t, "token"),
			Source: drawAddress(t, "source"), Chunks: rapid.IntRange(1, 1<<31-1).Draw(t, "chunks"),
			Chain: rapid.Uint16Range(0, 63).Draw(t, "chain"), Bit: rapid.Uint8Range(0, 63).Draw(t, "bit"), Next: drawAddress(t, "next"),
			Name: rapid.StringN(0, 20, maxName).Draw(t, "name"), Kind: rapid.StringN(0, 20, maxName).Draw(t, "kind"),
			Size: rapid.Int64Min(-1).Draw(t, "size"), Eager: rapid.Bool().Draw(t, "eager"),
		}
		if s.Size != 0 {
			s.Offset = rapid.Int64Range(0, max(s.Size, 1)).Draw(t, "offset")
		}
		copy(s.Job[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "job"))
		copy(s.Secret[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret"))
		b, err := proto.Marshal(packRegion(&s))
		p := &shufflepb.RegionSpec{}
		if err == nil {
			err = proto.Unmarshal(b, p)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := unpackRegion(p)
		if !s.Source.IsValid() {
			if err == nil {
				t.Fatal("a region without a source is taken")
			}
			return
		}
		if err != nil || got != s {
			t.Fatalf("%+v came as %+v: %v", s, got, err)
		}
		first, total := rapid.Uint32().Draw(t, "first"), rapid.Uint32().Draw(t, "total")
		total = min(total, 1<<32-1-first)
		var gaps []shuffle.Gap
		for at, n := uint32(0), rapid.IntRange(0, 5).Draw(t, "gaps"); n > 0 && at < total; n-- {
			at = rapid.Uint32Range(at, total-1).Draw(t, "at")
			count := rapid.Uint32Range(1, total-at).Draw(t, "count")
			gaps = append(gaps, shuffle.Gap{Place: first + at, Count: count})
			at += count
		}
		if back, err := unpackGaps(packGaps(gaps), first, total); err != nil || !reflect.DeepEqual(back, gaps) {
			t.Fatalf("%v came as %v: %v", gaps, back, err)
		}
	})
}

// FuzzBroadcastMessages decodes messages: whatever comes is answered, and what is taken is
// the same after it has travelled once more.
func FuzzBroadcastMessages(f *testing.F) {
	spec := region()
	for i, m := range []proto.Message{
		packRegion(&spec), &shufflepb.RelinkRequest{Token: 1, Next: "10.0.0.1:1"}, packGaps([]shuffle.Gap{{Place: 1, Count: 2}}),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	s := NewBroadcastServer(&member{})
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		switch kind % 3 {
		case 0:
			m := &shufflepb.RegionSpec{}
			if proto.Unmarshal(data, m) != nil {
				return
			}
			_, _ = s.OpenRegion(t.Context(), m) // either is fine
			if spec, err := unpackRegion(m); err == nil {
				if again, err := unpackRegion(packRegion(&spec)); err != nil || again != spec {
					t.Errorf("%+v came as %+v: %v", spec, again, err)
				}
			}
		case 1:
			m := &shufflepb.RelinkRequest{}
			if proto.Unmarshal(data, m) == nil {
				_, _ = s.Relink(t.Context(), m)
			}
		case 2:
			m := &shufflepb.GapList{}
			if proto.Unmarshal(data, m) != nil {
				return
			}
			gaps, err := unpackGaps(m, 10, 1000)
			sum := uint64(0)
			for _, g := range gaps {
				sum += uint64(g.Count)
				if g.Place < 10 || g.Place >= 1010 || g.Count == 0 || sum > 1000 {
					t.Errorf("gap %v of %v is taken (%v)", g, gaps, err)
				}
			}
		}
	})
}
