// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/rpc/shufflepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// control is a shuffle.Control made of functions; the ones that are not set
// return zero values.
type control struct {
	endpoint   func(context.Context) (shuffle.Endpoint, error)
	openJob    func(context.Context, shuffle.JobSpec) error
	openTarget func(context.Context, shuffle.TargetSpec) error
	open       func(context.Context, []shuffle.StreamSpec) ([]shuffle.Grant, error)
	status     func(context.Context, []shuffle.StreamID) ([]shuffle.StreamStatus, error)
	deliver    func(context.Context, shuffle.StreamID, [][]byte) error
	confirm    func(context.Context, []shuffle.StreamID) error
}

func (c *control) Endpoint(ctx context.Context) (shuffle.Endpoint, error) {
	if c.endpoint == nil {
		return shuffle.Endpoint{}, nil
	}
	return c.endpoint(ctx)
}

func (c *control) OpenJob(ctx context.Context, j shuffle.JobSpec) error {
	if c.openJob == nil {
		return nil
	}
	return c.openJob(ctx, j)
}

func (c *control) OpenTarget(ctx context.Context, t shuffle.TargetSpec) error {
	if c.openTarget == nil {
		return nil
	}
	return c.openTarget(ctx, t)
}

func (c *control) Open(ctx context.Context, s []shuffle.StreamSpec) ([]shuffle.Grant, error) {
	if c.open == nil {
		return make([]shuffle.Grant, len(s)), nil
	}
	return c.open(ctx, s)
}

func (c *control) Status(ctx context.Context, s []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
	if c.status == nil {
		return make([]shuffle.StreamStatus, len(s)), nil
	}
	return c.status(ctx, s)
}

func (c *control) Deliver(ctx context.Context, s shuffle.StreamID, f [][]byte) error {
	if c.deliver == nil {
		return nil
	}
	return c.deliver(ctx, s, f)
}

func (c *control) Confirm(ctx context.Context, s []shuffle.StreamID) error {
	if c.confirm == nil {
		return nil
	}
	return c.confirm(ctx, s)
}

// serve offers a control at an address and returns it, and what ends it.
func serve(t *testing.T, address string, c shuffle.Control) (string, func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	NewServer(c).Register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop := func() {
		s.Stop()
		<-done
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), Reconnect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func pair(t *testing.T, c shuffle.Control) shuffle.Control {
	t.Helper()
	address, _ := serve(t, "127.0.0.1:0", c)
	return NewClient(dial(t, address))
}

var (
	target = shuffle.TargetID{Job: shuffle.JobID{1, 15: 2}, Partition: 3, Generation: 4}
	stream = shuffle.StreamID{Target: target, Map: 5, Segment: 6}
)

// TestValues sends a value in every field and looks at both ends.
func TestValues(t *testing.T) {
	job := shuffle.JobSpec{
		ID: target.Job, Secret: [16]byte{9, 15: 8}, Seed: pairs.Seed{A: 1 << 63, B: 7},
		Ops: []fold.Op{fold.Sum, fold.Min, fold.Xor}, Bound: []bool{true, false, false}, Mode: shuffle.UserOnly,
	}
	targets := shuffle.TargetSpec{ID: target, Keys: [5]uint64{1, 2, 3, 4, 1 << 60}, Dense: 11}
	specs := []shuffle.StreamSpec{
		{ID: stream, Frames: 4096, Pairs: 1 << 40, Check: []uint64{1<<64 - 1, 0}, Digest: 1 << 63},
		{Check: []uint64{}},
		{},
	}
	grants := []shuffle.Grant{
		{Slot: 1<<32 - 1, Token: 1<<64 - 1, Share: 12, Claimed: []uint32{0, 1<<32 - 1}},
		{Done: true},
		{},
	}
	ids := []shuffle.StreamID{stream, {}}
	state := []shuffle.StreamStatus{{Complete: true}, {Claimed: []uint32{5, 0}}}
	endpoint := shuffle.Endpoint{Port: 7117, Kernel: true, Generic: true, Frame: 1440, Window: 200}
	frames := [][]byte{[]byte("frame"), {0, 255}}

	var saw []any
	see := func(v ...any) { saw = append(saw, v...) }
	c := pair(t, &control{
		endpoint:   func(context.Context) (shuffle.Endpoint, error) { return endpoint, nil },
		openJob:    func(_ context.Context, v shuffle.JobSpec) error { see(v); return nil },
		openTarget: func(_ context.Context, v shuffle.TargetSpec) error { see(v); return nil },
		open: func(_ context.Context, v []shuffle.StreamSpec) ([]shuffle.Grant, error) {
			see(v)
			return grants, nil
		},
		status: func(_ context.Context, v []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
			see(v)
			return state, nil
		},
		deliver: func(_ context.Context, s shuffle.StreamID, f [][]byte) error { see(s, f); return nil },
		confirm: func(_ context.Context, v []shuffle.StreamID) error { see(v); return nil },
	})

	ctx := t.Context()
	gotEndpoint, e0 := c.Endpoint(ctx)
	e1 := c.OpenJob(ctx, job)
	e2 := c.OpenTarget(ctx, targets)
	gotGrants, e3 := c.Open(ctx, specs)
	gotStatus, e4 := c.Status(ctx, ids)
	e5 := c.Deliver(ctx, stream, frames)
	e6 := c.Confirm(ctx, ids)
	if err := errors.Join(e0, e1, e2, e3, e4, e5, e6); err != nil {
		t.Fatal(err)
	}
	for _, cmp := range []struct{ got, want any }{
		{gotEndpoint, endpoint},
		{gotGrants, grants},
		{gotStatus, state},
		{saw, []any{job, targets, specs, ids, stream, frames, ids}},
	} {
		if !reflect.DeepEqual(cmp.got, cmp.want) {
			t.Errorf("got  %+v\nwant %+v", cmp.got, cmp.want)
		}
	}
}

func TestErrors(t *testing.T) {
	all := []error{shuffle.ErrReset, shuffle.ErrUnknown, shuffle.ErrRefused, shuffle.ErrBusy, context.Canceled, context.DeadlineExceeded}
	tests := []struct {
		err  error
		want []error
	}{
		{shuffle.ErrReset, all[:1]},
		{fmt.Errorf("stream 7: %w", shuffle.ErrUnknown), all[1:2]},
		{fmt.Errorf("other frames: %w", shuffle.ErrRefused), all[2:3]},
		{shuffle.ErrNoSlot, all[3:4]},
		{context.Canceled, all[4:5]},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), all[5:]},
		{errors.Join(shuffle.ErrReset, context.Canceled), []error{all[0], all[4]}},
		{errors.New("the disk is full"), nil},
		{errors.New("\xff is no text"), nil},
	}
	var now error
	c := pair(t, &control{
		confirm: func(context.Context, []shuffle.StreamID) error { return now },
		deliver: func(context.Context, shuffle.StreamID, [][]byte) error { return now },
	})
	for _, tt := range tests {
		now = tt.err
		for what, err := range map[string]error{
			"Confirm": c.Confirm(t.Context(), nil),
			"Deliver": c.Deliver(t.Context(), stream, [][]byte{make([]byte, 5<<20), {1}}),
		} {
			if err == nil {
				t.Fatalf("%v arrived as nil", tt.err)
			}
			if text := strings.ToValidUTF8(tt.err.Error(), "?"); !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), what) {
				t.Errorf("%q does not tell of %s and %q", err, what, tt.err)
			}
			for _, k := range all {
				want := false
				for _, w := range tt.want {
					want = want || w == k
				}
				if errors.Is(err, k) != want {
					t.Errorf("%v arrived as %v: Is(%v) is not %v", tt.err, err, k, want)
				}
			}
		}
	}
	// A long text is cut, and does not break the answer.
	now = fmt.Errorf("%s: %w", strings.Repeat("x", 10*maxText), shuffle.ErrReset)
	if err := c.Confirm(t.Context(), nil); !errors.Is(err, shuffle.ErrReset) || len(err.Error()) > 2*maxText {
		t.Errorf("long error: %.100v", err)
	}
}

// TestDeadline checks that a deadline reaches the receiver's context and ends the
// wait at the client, and that the end of a context without one does.
func TestDeadline(t *testing.T) {
	left := make(chan time.Duration, 10)
	ended := make(chan error, 10)
	began := make(chan bool, 10)
	c := pair(t, &control{open: func(ctx context.Context, _ []shuffle.StreamSpec) ([]shuffle.Grant, error) {
		if d, ok := ctx.Deadline(); ok {
			left <- time.Until(d)
		} else {
			left <- 0
		}
		began <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	// On a slow machine a call may be late before it gets to the receiver: then another has more time.
	for wait, there := 200*time.Millisecond, false; !there; wait *= 4 {
		if wait > time.Minute {
			t.Fatal("no call gets to the receiver")
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if _, err := c.Open(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		cancel()
		select {
		case d := <-left:
			there = d > 0
			if d > wait {
				t.Errorf("the receiver's deadline was in %v", d)
			}
			<-began
			<-ended
		default:
		}
	}
	c = pair(t, &control{open: func(ctx context.Context, _ []shuffle.StreamSpec) ([]shuffle.Grant, error) {
		d, ok := ctx.Deadline()
		if ok {
			t.Errorf("the receiver had a deadline, in %v", time.Until(d))
		}
		began <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	for len(began)+len(ended) > 0 { // calls that were late
		select {
		case <-began:
		case <-ended:
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := c.Open(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the receiver's context: %v", err)
	}
}

// TestUnreachable checks that a call fails while nobody is there, and works when
// somebody is there again.
func TestUnreachable(t *testing.T) {
	address, stop := serve(t, "127.0.0.1:0", &control{})
	c := NewClient(dial(t, address))
	if err := c.Confirm(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	stop()
	err := c.Confirm(t.Context(), nil)
	if status.Code(err) != codes.Unavailable || errors.Is(err, shuffle.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	serve(t, address, &control{confirm: func(context.Context, []shuffle.StreamID) error { return shuffle.ErrReset }})
	for deadline := time.Now().Add(30 * time.Second); !errors.Is(err, shuffle.ErrReset); {
		if time.Now().After(deadline) {
			t.Fatalf("the new server does not answer for itself: %v", err)
		}
		time.Sleep(time.Millisecond)
		err = c.Confirm(t.Context(), nil)
	}
}

// TestDeliver checks how frames are spread over messages, and that they come whole.
func TestDeliver(t *testing.T) {
	var calls [][]int
	var all []byte
	c := pair(t, &control{deliver: func(_ context.Context, s shuffle.StreamID, frames [][]byte) error {
		if s != stream {
			return fmt.Errorf("frames of %v", s)
		}
		var sizes []int
		for _, f := range frames {
			sizes = append(sizes, len(f))
			all = append(all, f...)
		}
		calls = append(calls, sizes)
		return nil
	}})
	const M = 1 << 20
	tests := []struct {
		sizes []int
		want  [][]int
	}{
		{nil, [][]int{nil}},
		{[]int{5}, [][]int{{5}}},
		{[]int{M / 2, M / 2, 1}, [][]int{{M / 2, M / 2}, {1}}},
		{[]int{M}, [][]int{{M}}},
		{[]int{M + 1}, [][]int{nil, {M + 1}}},
		{[]int{1, 6*M + 5, 2, M, 0}, [][]int{{1}, {6*M + 5}, {2}, {M, 0}}},
		{[]int{3 * M}, [][]int{nil, {3 * M}}},
	}
	for _, tt := range tests {
		calls, all = nil, nil
		var frames [][]byte
		var sent []byte
		for i, n := range tt.sizes {
			f := bytes.Repeat([]byte{byte(i + 1)}, n)
			frames, sent = append(frames, f), append(sent, f...)
		}
		if err := c.Deliver(t.Context(), stream, frames); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(calls, tt.want) || !bytes.Equal(all, sent) {
			t.Errorf("%v came as %v, bytes equal: %v", tt.sizes, calls, bytes.Equal(all, sent))
		}
	}
}

// TestMalformed sends messages that no client does.
func TestMalformed(t *testing.T) {
	address, _ := serve(t, "127.0.0.1:0", &control{})
	raw := shufflepb.NewControlClient(dial(t, address))
	ctx := t.Context()
	good := packTarget(&target)
	refused := map[string]error{}
	add := func(name string, _ any, err error) { refused[name] = err }
	done, err := raw.OpenJob(ctx, &shufflepb.JobSpec{Id: make([]byte, 15), Secret: make([]byte, 16)})
	add("short id", done, err)
	done, err = raw.OpenJob(ctx, &shufflepb.JobSpec{Id: make([]byte, 16)})
	add("no secret", done, err)
	done, err = raw.OpenJob(ctx, &shufflepb.JobSpec{Id: make([]byte, 16), Secret: make([]byte, 16), Mode: 3})
	add("mode", done, err)
	done, err = raw.OpenTarget(ctx, &shufflepb.TargetSpec{})
	add("no target", done, err)
	done, err = raw.OpenTarget(ctx, &shufflepb.TargetSpec{Id: good, Keys: make([]uint64, 6)})
	add("keys", done, err)
	open, err := raw.Open(ctx, &shufflepb.OpenRequest{Streams: []*shufflepb.StreamSpec{{}}})
	add("no stream", open, err)
	open, err = raw.Open(ctx, &shufflepb.OpenRequest{Streams: []*shufflepb.StreamSpec{{Id: &shufflepb.StreamID{Target: good}, Frames: 1<<30 + 1}}})
	add("frames", open, err)
	state, err := raw.Status(ctx, &shufflepb.StreamList{Streams: []*shufflepb.StreamID{{}}})
	add("status", state, err)
	done, err = raw.Confirm(ctx, &shufflepb.StreamList{Streams: []*shufflepb.StreamID{{}}})
	add("confirm", done, err)
	deliver := func(name string, ms ...*shufflepb.Delivery) {
		s, err := raw.Deliver(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			_ = s.Send(m)
		}
		done, err := s.CloseAndRecv()
		add(name, done, err)
	}
	deliver("nothing")
	deliver("no name", &shufflepb.Delivery{Frames: [][]byte{{1}}})
	deliver("cut short", &shufflepb.Delivery{Stream: packStream(&stream), Piece: []byte{1}})
	for name, err := range refused {
		if err = unpack("x", "y", err); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCount checks that a receiver that answers for fewer streams is found out.
func TestCount(t *testing.T) {
	c := pair(t, &control{
		open:   func(context.Context, []shuffle.StreamSpec) ([]shuffle.Grant, error) { return nil, nil },
		status: func(context.Context, []shuffle.StreamID) ([]shuffle.StreamStatus, error) { return nil, nil },
	})
	if _, err := c.Open(t.Context(), make([]shuffle.StreamSpec, 2)); err == nil {
		t.Error("Open: no error")
	}
	if _, err := c.Status(t.Context(), make([]shuffle.StreamID, 2)); err == nil {
		t.Error("Status: no error")
	}
}

// TestOnce counts what gets through.
func TestOnce(t *testing.T) {
	var endpoints, jobs, targets int
	fail := error(nil)
	c := Once(&control{
		endpoint:   func(context.Context) (shuffle.Endpoint, error) { endpoints++; return shuffle.Endpoint{Port: 1}, fail },
		openJob:    func(context.Context, shuffle.JobSpec) error { jobs++; return fail },
		openTarget: func(context.Context, shuffle.TargetSpec) error { targets++; return fail },
		status: func(context.Context, []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
			return nil, shuffle.ErrUnknown
		},
	})
	ctx := t.Context()
	all := func() (failed bool) {
		e, err := c.Endpoint(ctx)
		err = errors.Join(err, c.OpenJob(ctx, shuffle.JobSpec{ID: shuffle.JobID{1}}), c.OpenTarget(ctx, shuffle.TargetSpec{ID: target}))
		return err != nil || e.Port != 1
	}
	steps := []struct {
		fail error
		want [3]int
	}{
		{errors.New("away"), [3]int{1, 1, 1}},
		{nil, [3]int{2, 2, 2}},
		{nil, [3]int{2, 2, 2}},
	}
	for i, s := range steps {
		fail = s.fail
		if failed := all(); failed != (s.fail != nil) || [3]int{endpoints, jobs, targets} != s.want {
			t.Errorf("step %d: failed %v, calls %d %d %d, want %v", i, failed, endpoints, jobs, targets, s.want)
		}
	}
	if err := c.OpenTarget(ctx, shuffle.TargetSpec{}); err != nil || targets != 3 {
		t.Errorf("another target: %v, %d calls", err, targets)
	}
	if _, err := c.Status(ctx, nil); !errors.Is(err, shuffle.ErrUnknown) {
		t.Error(err)
	}
	if all() || jobs != 3 || targets != 4 || endpoints != 3 {
		t.Errorf("after the receiver has begun anew: calls %d %d %d", endpoints, jobs, targets)
	}
}

// FuzzMessages decodes messages and hands them to a server: whatever comes, it answers.
func FuzzMessages(f *testing.F) {
	for i, m := range []proto.Message{
		packJob(&shuffle.JobSpec{Ops: []fold.Op{fold.Sum}}), packTargetSpec(&shuffle.TargetSpec{ID: target}),
		packSpecs([]shuffle.StreamSpec{{ID: stream, Check: []uint64{1}}}), packStreams([]shuffle.StreamID{stream}),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	s := NewServer(&control{})
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		var err error
		switch kind % 4 {
		case 0:
			m := &shufflepb.JobSpec{}
			if err = proto.Unmarshal(data, m); err == nil {
				_, err = s.OpenJob(t.Context(), m)
			}
		case 1:
			m := &shufflepb.TargetSpec{}
			if err = proto.Unmarshal(data, m); err == nil {
				_, err = s.OpenTarget(t.Context(), m)
			}
		case 2:
			m := &shufflepb.OpenRequest{}
			if err = proto.Unmarshal(data, m); err == nil {
				_, err = s.Open(t.Context(), m)
			}
		case 3:
			m := &shufflepb.StreamList{}
			if err = proto.Unmarshal(data, m); err == nil {
				_, err = s.Status(t.Context(), m)
			}
		}
		_ = err // either is fine
	})
}

// hasty is a connection whose far end notices that a call's time is up before this one does.
type hasty struct{ grpc.ClientConnInterface }

func (hasty) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL")
}

// TestDeadlineOfTheOtherClock has a receiver's clock end calls.
func TestDeadlineOfTheOtherClock(t *testing.T) {
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := (timely{hasty{}}).Invoke(soon, "", nil, nil); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("at the deadline: %v", err)
	}
	late, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for name, ctx := range map[string]context.Context{"no deadline": t.Context(), "an hour left": late} {
		if err := (timely{hasty{}}).Invoke(ctx, "", nil, nil); status.Code(err) != codes.Canceled {
			t.Errorf("%s: %v", name, err)
		}
	}
	gone, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	cancel()
	if err := (timely{hasty{}}).Invoke(gone, "", nil, nil); status.Code(err) != codes.Canceled {
		t.Errorf("canceled: %v", err)
	}
}
