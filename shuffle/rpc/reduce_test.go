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
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
	"github.com/quernmr/quern/shuffle/wire"
)

// reducer is a shuffle.ReduceControl made of functions; the ones that are not set return zero values.
type reducer struct {
	endpoint func(context.Context) (shuffle.Endpoint, error)
	open     func(context.Context, shuffle.GroupSpec) (shuffle.GroupGrant, error)
	status   func(context.Context, uint64) (shuffle.GroupStatus, error)
	breaks   func(context.Context, uint64, string) error
	close    func(context.Context, uint64) error
}

func (r *reducer) ReduceEndpoint(ctx context.Context) (e shuffle.Endpoint, err error) {
	if r.endpoint != nil {
		e, err = r.endpoint(ctx)
	}
	return e, err
}

func (r *reducer) OpenGroup(ctx context.Context, s shuffle.GroupSpec) (g shuffle.GroupGrant, err error) {
	if r.open != nil {
		g, err = r.open(ctx, s)
	}
	return g, err
}

func (r *reducer) GroupStatus(ctx context.Context, token uint64) (s shuffle.GroupStatus, err error) {
	if r.status != nil {
		s, err = r.status(ctx, token)
	}
	return s, err
}

func (r *reducer) BreakGroup(ctx context.Context, token uint64, reason string) error {
	if r.breaks == nil {
		return nil
	}
	return r.breaks(ctx, token, reason)
}

func (r *reducer) CloseGroup(ctx context.Context, token uint64) error {
	if r.close == nil {
		return nil
	}
	return r.close(ctx, token)
}

// reducerConn returns a connection in memory to a member, and what stops its server.
func reducerConn(t *testing.T, r shuffle.ReduceControl) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	NewReduceServer(r).Register(s)
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
	stop = func() {
		s.Stop()
		<-done
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		stop()
	})
	return conn, stop
}

func reducerPair(t *testing.T, r shuffle.ReduceControl) shuffle.ReduceControl {
	conn, _ := reducerConn(t, r)
	return NewReduceClient(conn)
}

// group has a value in every field.
func group() shuffle.GroupSpec {
	return shuffle.GroupSpec{
		Job: shuffle.JobID{1, 15: 2}, Secret: [16]byte{3, 15: 4}, Mode: shuffle.UserOnly, Token: 1<<64 - 1, Name: "round 7", Rank: 1, Bits: 12, Streams: shuffle.StreamsAlways,
		Members: []shuffle.GroupMember{
			{Name: "first", Address: netip.MustParseAddrPort("10.0.0.1:7117")},
			{Name: "second", Address: netip.MustParseAddrPort("[fd00::2]:7118"), Stream: 1<<16 - 1},
		},
	}
}

// TestReduceValues sends a value in every field and looks at both ends.
func TestReduceValues(t *testing.T) {
	endpoint := shuffle.Endpoint{Port: 7117, Kernel: true, Generic: true, Frame: 1440, Window: 200, Stream: 7119}
	standing := shuffle.GroupStatus{Calls: 1<<64 - 1, Waiting: true, Broken: "member 3 is gone", Results: 1<<32 - 1}
	var saw []any
	see := func(v ...any) { saw = append(saw, v...) }
	c := reducerPair(t, &reducer{
		endpoint: func(context.Context) (shuffle.Endpoint, error) { return endpoint, nil },
		open: func(_ context.Context, s shuffle.GroupSpec) (shuffle.GroupGrant, error) {
			see(s)
			return shuffle.GroupGrant{Kernel: s.Rank == 1}, nil
		},
		status: func(_ context.Context, token uint64) (shuffle.GroupStatus, error) {
			see(token)
			if token == 1 {
				return shuffle.GroupStatus{}, nil
			}
			return standing, nil
		},
		breaks: func(_ context.Context, token uint64, reason string) error { see(token, reason); return nil },
		close:  func(_ context.Context, token uint64) error { see(token); return nil },
	})
	other := group()
	other.Rank, other.Bits, other.Name, other.Mode = 0, 2, "", shuffle.Auto
	ctx := t.Context()
	e, e0 := c.ReduceEndpoint(ctx)
	g1, e1 := c.OpenGroup(ctx, group())
	g2, e2 := c.OpenGroup(ctx, other)
	s1, e3 := c.GroupStatus(ctx, 1)
	s2, e4 := c.GroupStatus(ctx, 1<<63)
	e5 := c.BreakGroup(ctx, 7, "no more")
	e6 := c.CloseGroup(ctx, 8)
	if err := errors.Join(e0, e1, e2, e3, e4, e5, e6); err != nil {
		t.Fatal(err)
	}
	for _, cmp := range []struct{ got, want any }{
		{e, endpoint},
		{g1, shuffle.GroupGrant{Kernel: true}},
		{g2, shuffle.GroupGrant{}},
		{s1, shuffle.GroupStatus{}},
		{s2, standing},
		{saw, []any{group(), other, uint64(1), uint64(1 << 63), uint64(7), "no more", uint64(8)}},
	} {
		if !reflect.DeepEqual(cmp.got, cmp.want) {
			t.Errorf("got  %+v\nwant %+v", cmp.got, cmp.want)
		}
	}
}

func TestReduceErrors(t *testing.T) {
	all := []error{shuffle.ErrUnknown, shuffle.ErrBusy, shuffle.ErrRefused, context.Canceled, context.DeadlineExceeded}
	var now error
	c := reducerPair(t, &reducer{
		endpoint: func(context.Context) (shuffle.Endpoint, error) { return shuffle.Endpoint{}, now },
		open:     func(context.Context, shuffle.GroupSpec) (shuffle.GroupGrant, error) { return shuffle.GroupGrant{}, now },
		status:   func(context.Context, uint64) (shuffle.GroupStatus, error) { return shuffle.GroupStatus{Calls: 3}, now },
		breaks:   func(context.Context, uint64, string) error { return now },
		close:    func(context.Context, uint64) error { return now },
	})
	for i, kind := range append(all, errors.New("the disk is full")) {
		now = fmt.Errorf("group 7: %w", kind)
		_, e1 := c.ReduceEndpoint(t.Context())
		_, e2 := c.OpenGroup(t.Context(), group())
		s, e3 := c.GroupStatus(t.Context(), 1)
		if s != (shuffle.GroupStatus{}) {
			t.Errorf("status %+v beside an error", s)
		}
		for what, err := range map[string]error{
			"ReduceEndpoint": e1, "OpenGroup": e2, "GroupStatus": e3,
			"BreakGroup": c.BreakGroup(t.Context(), 1, "x"), "CloseGroup": c.CloseGroup(t.Context(), 1),
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

// TestReduceDeadline has a member that does not answer: whoever's clock is first, the deadline has passed. One that is gone
// is neither that nor canceled.
func TestReduceDeadline(t *testing.T) {
	var waits atomic.Bool
	waits.Store(true)
	conn, stop := reducerConn(t, &reducer{status: func(ctx context.Context, _ uint64) (shuffle.GroupStatus, error) {
		if waits.Load() {
			<-ctx.Done()
		}
		return shuffle.GroupStatus{}, ctx.Err()
	}})
	c := NewReduceClient(conn)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if _, err := c.GroupStatus(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			t.Errorf("late: %v", err)
		}
		cancel()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.GroupStatus(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	waits.Store(false)
	if _, err := c.GroupStatus(t.Context(), 1); err != nil {
		t.Errorf("answers again: %v", err)
	}
	stop()
	if _, err := c.GroupStatus(t.Context(), 1); err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, shuffle.ErrUnknown) {
		t.Errorf("gone: %v", err)
	}
}

// TestReduceLongReason has reasons be cut, not calls fail.
func TestReduceLongReason(t *testing.T) {
	long := strings.Repeat("é", 10<<10)
	var reason string
	c := reducerPair(t, &reducer{
		breaks: func(_ context.Context, _ uint64, r string) error { reason = r; return nil },
		status: func(context.Context, uint64) (shuffle.GroupStatus, error) {
			return shuffle.GroupStatus{Broken: long}, nil
		},
	})
	if err := c.BreakGroup(t.Context(), 1, long); err != nil {
		t.Fatal(err)
	}
	s, err := c.GroupStatus(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{reason, s.Broken} {
		if !strings.HasPrefix(got, long[:maxText-2]) || len(got) > maxText+10 || !strings.HasSuffix(got, "...") {
			t.Errorf("%d bytes came as %d: %.40q", len(long), len(got), got)
		}
	}
}

// TestReduceMalformed sends messages that no client does.
func TestReduceMalformed(t *testing.T) {
	var reached atomic.Int32
	conn, _ := reducerConn(t, &reducer{open: func(context.Context, shuffle.GroupSpec) (shuffle.GroupGrant, error) {
		reached.Add(1)
		return shuffle.GroupGrant{}, nil
	}})
	raw := shufflepb.NewReduceControlClient(conn)
	spec := group()
	if _, err := raw.OpenGroup(t.Context(), packGroup(&spec)); err != nil || reached.Load() != 1 {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*shufflepb.GroupSpec){
		"short id":      func(s *shufflepb.GroupSpec) { s.Job = s.Job[:15] },
		"no secret":     func(s *shufflepb.GroupSpec) { s.Secret = nil },
		"mode":          func(s *shufflepb.GroupSpec) { s.Mode = 3 },
		"token":         func(s *shufflepb.GroupSpec) { s.Token = 0 },
		"no members":    func(s *shufflepb.GroupSpec) { s.Members, s.Rank = nil, 0 },
		"rank":          func(s *shufflepb.GroupSpec) { s.Rank = 2 },
		"large rank":    func(s *shufflepb.GroupSpec) { s.Rank = 1<<32 - 1 },
		"few bits":      func(s *shufflepb.GroupSpec) { s.Bits = 1 },
		"many bits":     func(s *shufflepb.GroupSpec) { s.Bits = 13 },
		"name":          func(s *shufflepb.GroupSpec) { s.Name = strings.Repeat("x", maxName+1) },
		"member's name": func(s *shufflepb.GroupSpec) { s.Members[1].Name = strings.Repeat("x", maxName+1) },
		"no address":    func(s *shufflepb.GroupSpec) { s.Members[1].Address = "" },
		"address":       func(s *shufflepb.GroupSpec) { s.Members[1].Address = "host:1" },
		"port":          func(s *shufflepb.GroupSpec) { s.Members[0].Address = "10.0.0.1:0" },
		"streams":       func(s *shufflepb.GroupSpec) { s.Streams = 3 },
		"stream's port": func(s *shufflepb.GroupSpec) { s.Members[1].Stream = 1 << 16 },
		"empty member":  func(s *shufflepb.GroupSpec) { s.Members[0] = &shufflepb.GroupMember{} },
		"too many":      func(s *shufflepb.GroupSpec) { s.Members = make33(s.Members[0]) },
	} {
		p := packGroup(&spec)
		change(p)
		_, err := raw.OpenGroup(t.Context(), p)
		if err = unpack("x", "y", err); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if reached.Load() != 1 {
		t.Errorf("%d groups were opened", reached.Load())
	}
	most := packGroup(&spec)
	most.Members = make33(most.Members[0])[1:]
	if _, err := raw.OpenGroup(t.Context(), most); err != nil {
		t.Errorf("%d members: %v", len(most.Members), err)
	}
}

func make33(m *shufflepb.GroupMember) (list []*shufflepb.GroupMember) {
	for range wire.MaxMembers + 1 {
		list = append(list, m)
	}
	return list
}

// TestGroupsTravel converts all that is valid there and back.
func TestGroupsTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shuffle.GroupSpec{
			Mode: shuffle.Mode(rapid.IntRange(0, 2).Draw(t, "mode")), Token: rapid.Uint64Min(1).Draw(t, "token"),
			Name: rapid.StringN(0, 20, maxName).Draw(t, "name"), Bits: rapid.IntRange(minBits, maxBits).Draw(t, "bits"),
		}
		n := rapid.IntRange(1, wire.MaxMembers).Draw(t, "members")
		s.Rank = rapid.IntRange(0, n-1).Draw(t, "rank")
		valid := true
		for range n {
			a := drawAddress(t, "address")
			valid = valid && a.IsValid()
			s.Members = append(s.Members, shuffle.GroupMember{Name: rapid.StringN(0, 5, maxName).Draw(t, "member"), Address: a})
		}
		copy(s.Job[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "job"))
		copy(s.Secret[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret"))
		b, err := proto.Marshal(packGroup(&s))
		p := &shufflepb.GroupSpec{}
		if err == nil {
			err = proto.Unmarshal(b, p)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := unpackGroup(p)
		if !valid {
			if err == nil {
				t.Fatal("a member without an address is taken")
			}
			return
		}
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("%+v came as %+v: %v", s, got, err)
		}
	})
}

// FuzzReduceMessages decodes messages: whatever comes is answered, and what is taken is
// the same after it has travelled once more.
func FuzzReduceMessages(f *testing.F) {
	spec := group()
	for i, m := range []proto.Message{packGroup(&spec), &shufflepb.GroupRequest{Token: 1}, &shufflepb.BreakRequest{Token: 1, Reason: "x"}} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	s := NewReduceServer(&reducer{})
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		switch kind % 3 {
		case 0:
			m := &shufflepb.GroupSpec{}
			if proto.Unmarshal(data, m) != nil {
				return
			}
			_, _ = s.OpenGroup(t.Context(), m) // either is fine
			if spec, err := unpackGroup(m); err == nil {
				if again, err := unpackGroup(packGroup(&spec)); err != nil || !reflect.DeepEqual(again, spec) {
					t.Errorf("%+v came as %+v: %v", spec, again, err)
				}
				if len(spec.Members) == 0 || spec.Rank >= len(spec.Members) || spec.Token == 0 {
					t.Errorf("%+v is taken", spec)
				}
			}
		case 1:
			m := &shufflepb.GroupRequest{}
			if proto.Unmarshal(data, m) == nil {
				_, _ = s.GroupStatus(t.Context(), m)
				_, _ = s.CloseGroup(t.Context(), m)
			}
		case 2:
			m := &shufflepb.BreakRequest{}
			if proto.Unmarshal(data, m) == nil {
				_, _ = s.BreakGroup(t.Context(), m)
			}
		}
	})
}
