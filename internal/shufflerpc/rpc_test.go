// SPDX-License-Identifier: Apache-2.0

package shufflerpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
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

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func serve(t *testing.T, c shuffle.Control, opt Options) *Server {
	t.Helper()
	s := Serve(listen(t, "127.0.0.1:0"), c, opt)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func client(t *testing.T, address string, opt Options) *Client {
	t.Helper()
	c := NewClient(address, opt)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func pair(t *testing.T, c shuffle.Control, opt Options) (*Server, *Client) {
	t.Helper()
	s := serve(t, c, opt)
	return s, client(t, s.Addr().String(), opt)
}

var (
	target = shuffle.TargetID{Job: shuffle.JobID{1, 15: 2}, Partition: 3, Generation: 4}
	stream = shuffle.StreamID{Target: target, Map: 5, Segment: 6}
)

// TestValues sends a value in every field and looks at both ends.
func TestValues(t *testing.T) {
	job := shuffle.JobSpec{
		ID: target.Job, Secret: [16]byte{9, 15: 8}, Seed: pairs.Seed{A: 1 << 63, B: 7},
		Ops: []fold.Op{fold.Sum, fold.Min, fold.Xor}, Bound: []bool{true, false, false},
	}
	targets := shuffle.TargetSpec{ID: target, Keys: [5]uint64{1, 2, 3, 4, 1 << 60}, Dense: 11}
	specs := []shuffle.StreamSpec{
		{ID: stream, Frames: 4096, Pairs: 1 << 40, Check: []uint64{1<<64 - 1, 0}, Digest: 1 << 63},
		{},
	}
	grants := []shuffle.Grant{
		{Slot: 1<<32 - 1, Token: 1<<64 - 1, Share: 12, Claimed: []uint32{0, 1<<32 - 1}},
		{Done: true},
	}
	ids := []shuffle.StreamID{stream, {}}
	status := []shuffle.StreamStatus{{Complete: true}, {Claimed: []uint32{5, 0}}}
	endpoint := shuffle.Endpoint{Port: 7117, Kernel: true, Generic: true, Frame: 1440, Window: 200}
	frames := [][]byte{[]byte("frame"), {0, 255}}

	var saw []any
	see := func(v ...any) { saw = append(saw, v...) }
	_, c := pair(t, &control{
		endpoint:   func(context.Context) (shuffle.Endpoint, error) { return endpoint, nil },
		openJob:    func(_ context.Context, v shuffle.JobSpec) error { see(v); return nil },
		openTarget: func(_ context.Context, v shuffle.TargetSpec) error { see(v); return nil },
		open: func(_ context.Context, v []shuffle.StreamSpec) ([]shuffle.Grant, error) {
			see(v)
			return grants, nil
		},
		status: func(_ context.Context, v []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
			see(v)
			return status, nil
		},
		deliver: func(_ context.Context, s shuffle.StreamID, f [][]byte) error { see(s, f); return nil },
		confirm: func(_ context.Context, v []shuffle.StreamID) error { see(v); return nil },
	}, Options{})

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
		{gotStatus, status},
		{saw, []any{job, targets, specs, ids, stream, frames, ids}},
	} {
		if !reflect.DeepEqual(cmp.got, cmp.want) {
			t.Errorf("got  %+v\nwant %+v", cmp.got, cmp.want)
		}
	}
}

func TestErrors(t *testing.T) {
	all := []error{shuffle.ErrReset, shuffle.ErrUnknown, context.Canceled, context.DeadlineExceeded}
	tests := []struct {
		err  error
		want []error
	}{
		{shuffle.ErrReset, all[:1]},
		{fmt.Errorf("stream 7: %w", shuffle.ErrUnknown), all[1:2]},
		{context.Canceled, all[2:3]},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), all[3:]},
		{errors.Join(shuffle.ErrReset, context.Canceled), []error{all[0], all[2]}},
		{errors.New("no room for another target"), nil},
		{errors.New(""), nil},
	}
	var now error
	_, c := pair(t, &control{confirm: func(context.Context, []shuffle.StreamID) error { return now }}, Options{})
	for _, tt := range tests {
		now = tt.err
		err := c.Confirm(t.Context(), nil)
		if err == nil {
			t.Fatalf("%v arrived as nil", tt.err)
		}
		if !strings.Contains(err.Error(), tt.err.Error()) || !strings.Contains(err.Error(), "Confirm") {
			t.Errorf("%q does not tell of Confirm and %q", err, tt.err)
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
	// A long text is cut, and does not break the answer.
	now = errors.New(strings.Repeat("x", 10*maxText))
	if err := c.Confirm(t.Context(), nil); err == nil || len(err.Error()) > 2*maxText {
		t.Errorf("long error: %.100v", err)
	}
}

// TestDeadline checks that a deadline reaches the server's context and ends the
// wait at the client.
func TestDeadline(t *testing.T) {
	left := make(chan time.Duration, 1)
	_, c := pair(t, &control{open: func(ctx context.Context, _ []shuffle.StreamSpec) ([]shuffle.Grant, error) {
		d, ok := ctx.Deadline()
		if !ok {
			return nil, errors.New("no deadline")
		}
		left <- time.Until(d)
		<-ctx.Done()
		return nil, ctx.Err()
	}}, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Open(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if d := <-left; d > 100*time.Millisecond {
		t.Errorf("the server's deadline was in %v", d)
	}
	// Without a deadline there is none.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.Open(ctx, nil); err == nil || !strings.Contains(err.Error(), "no deadline") {
		t.Errorf("got %v", err)
	}
}

// TestCancel checks that the end of a context without a deadline reaches the server.
func TestCancel(t *testing.T) {
	began, ended := make(chan bool), make(chan error, 1)
	_, c := pair(t, &control{open: func(ctx context.Context, _ []shuffle.StreamSpec) ([]shuffle.Grant, error) {
		began <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}}, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := c.Open(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the server's context: %v", err)
	}
	// The connection goes on.
	before := c.conn
	if _, err := c.Endpoint(t.Context()); err != nil || before == nil || c.conn != before {
		t.Errorf("afterwards: %v, connection kept: %v", err, c.conn == before)
	}
}

// TestCancelOvertakes checks a cancel that is served before its call.
func TestCancelOvertakes(t *testing.T) {
	s := &Session{ctx: t.Context(), control: &control{}, calls: map[uint64]context.CancelFunc{}}
	if err := s.Cancel(&Request[uint64]{Call: 8, Arg: 7}, new(Reply[bool])); err != nil {
		t.Fatal(err)
	}
	wait := func(ctx context.Context, _ bool) (bool, error) { return false, ctx.Err() }
	for call, want := range map[uint64]bool{7: true, 9: false} {
		var out Reply[bool]
		if err := answer(s, &Request[bool]{Call: call}, &out, wait); err != nil {
			t.Fatal(err)
		}
		if got := errors.Is(out.Err.err(), context.Canceled); got != want {
			t.Errorf("call %d: cancelled: %v", call, got)
		}
	}
}

// TestRestart has calls in progress while the server goes and comes back at the
// same address, several times. Every call gets its answer.
func TestRestart(t *testing.T) {
	c := &control{endpoint: func(ctx context.Context) (shuffle.Endpoint, error) {
		// Some calls are in progress when the connection breaks.
		select {
		case <-time.After(time.Millisecond):
			return shuffle.Endpoint{Port: 1}, nil
		case <-ctx.Done():
			return shuffle.Endpoint{}, ctx.Err()
		}
	}}
	s := Serve(listen(t, "127.0.0.1:0"), c, Options{})
	address := s.Addr().String()
	cl := client(t, address, Options{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if e, err := cl.Endpoint(t.Context()); err != nil || e.Port != 1 {
					t.Errorf("%+v, %v", e, err)
					return
				}
			}
		})
	}
	for range 5 {
		time.Sleep(20 * time.Millisecond)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
		s = Serve(listen(t, address), c, Options{})
	}
	close(stop)
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error("closed twice:", err)
	}
}

// TestRestartTells checks that the new server answers for itself.
func TestRestartTells(t *testing.T) {
	s := Serve(listen(t, "127.0.0.1:0"), &control{}, Options{})
	address := s.Addr().String()
	c := client(t, address, Options{})
	if err := c.Confirm(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = Serve(listen(t, address), &control{confirm: func(context.Context, []shuffle.StreamID) error { return shuffle.ErrReset }}, Options{})
	defer s.Close()
	if err := c.Confirm(t.Context(), nil); !errors.Is(err, shuffle.ErrReset) {
		t.Errorf("got %v", err)
	}
}

// TestUnreachable checks that nobody waits for ever for a server that is not there.
func TestUnreachable(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	l.Close()
	c := client(t, l.Addr().String(), Options{Patience: 30 * time.Millisecond})
	_, err := c.Endpoint(t.Context())
	if err == nil || !strings.Contains(err.Error(), "refused") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a deadline: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err = c.Endpoint(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("with a deadline: %v", err)
	}
}

// TestBreaksAlways has a server that takes every call and then hangs up.
func TestBreaksAlways(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if greet(conn) == nil {
				_, _ = readMessage(conn, 1<<20)
			}
			conn.Close()
		}
	})
	defer wg.Wait()
	defer l.Close()
	c := client(t, l.Addr().String(), Options{Patience: 30 * time.Millisecond})
	if _, err := c.Endpoint(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

// TestSilence has servers that fall silent, before the hello and after it.
func TestSilence(t *testing.T) {
	for _, greets := range []bool{false, true} {
		l := listen(t, "127.0.0.1:0")
		gone := make(chan bool, 2)
		var wg sync.WaitGroup
		wg.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if greets {
				_ = greet(conn)
			}
			_, _ = io.Copy(io.Discard, conn) // until the client gives up
			gone <- true
		})
		c := client(t, l.Addr().String(), Options{})
		c.silence = 10 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := c.Endpoint(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("greets %v: %v", greets, err)
		}
		cancel()
		<-gone
		l.Close()
		wg.Wait()
	}
}

func TestWrongHello(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n")
			conn.Close()
		}
	})
	defer wg.Wait()
	defer l.Close()
	c := client(t, l.Addr().String(), Options{Patience: 10 * time.Millisecond})
	if _, err := c.Endpoint(t.Context()); err == nil || !strings.Contains(err.Error(), "no Quern") {
		t.Errorf("got %v", err)
	}
	// And a client that says something else is hung up on.
	s := serve(t, &control{}, Options{})
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
	if b, err := io.ReadAll(conn); string(b) != hello && err == nil {
		t.Errorf("the server said %q", b)
	}
}

// TestDeliver checks how frames are spread over messages.
func TestDeliver(t *testing.T) {
	var messages [][]int
	var bytesSeen []byte
	_, c := pair(t, &control{deliver: func(_ context.Context, _ shuffle.StreamID, frames [][]byte) error {
		var sizes []int
		for _, f := range frames {
			sizes = append(sizes, len(f))
			bytesSeen = append(bytesSeen, f...)
		}
		messages = append(messages, sizes)
		return nil
	}}, Options{})
	const M = 1 << 20
	tests := []struct {
		sizes []int
		want  [][]int
	}{
		{nil, [][]int{nil}},
		{[]int{5}, [][]int{{5}}},
		{[]int{M / 2, M / 2, 1}, [][]int{{M / 2, M / 2}, {1}}},
		{[]int{1, 3 * M, 2, M, 0}, [][]int{{1}, {3 * M}, {2}, {M, 0}}},
	}
	for _, tt := range tests {
		messages, bytesSeen = nil, nil
		var frames [][]byte
		var all []byte
		for i, n := range tt.sizes {
			f := bytes.Repeat([]byte{byte(i + 1)}, n)
			frames, all = append(frames, f), append(all, f...)
		}
		if err := c.Deliver(t.Context(), stream, frames); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(messages, tt.want) || !bytes.Equal(bytesSeen, all) {
			t.Errorf("%v came as %v, bytes equal: %v", tt.sizes, messages, bytes.Equal(bytesSeen, all))
		}
	}
}

// TestLimits checks that messages beyond the limit cost their call, and not
// the connection.
func TestLimits(t *testing.T) {
	opt := Options{MaxMessage: 1 << 16}
	calls := 0
	_, c := pair(t, &control{
		deliver: func(context.Context, shuffle.StreamID, [][]byte) error { calls++; return nil },
		status: func(_ context.Context, s []shuffle.StreamID) ([]shuffle.StreamStatus, error) {
			st := make([]shuffle.StreamStatus, len(s))
			st[0].Claimed = bytes2words(1 << 16)
			return st, nil
		},
	}, opt)
	if _, err := c.Endpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := c.conn
	err := c.Deliver(t.Context(), stream, [][]byte{make([]byte, 1<<16)})
	if !errors.Is(err, errTooLarge) || calls != 0 {
		t.Errorf("request: %v, %d calls", err, calls)
	}
	if err = c.Deliver(t.Context(), stream, [][]byte{make([]byte, 1<<16-2*headRoom)}); err != nil || calls != 1 {
		t.Errorf("request within the limit: %v, %d calls", err, calls)
	}
	if _, err = c.Status(t.Context(), []shuffle.StreamID{stream}); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("answer: %v", err)
	}
	if c.conn != before {
		t.Error("the connection was given up")
	}
}

func bytes2words(n int) []uint32 {
	w := make([]uint32, n)
	for i := range w {
		w[i] = 1<<32 - 1
	}
	return w
}

// TestCount checks that a server that answers for fewer streams is found out.
func TestCount(t *testing.T) {
	_, c := pair(t, &control{
		open:   func(context.Context, []shuffle.StreamSpec) ([]shuffle.Grant, error) { return nil, nil },
		status: func(context.Context, []shuffle.StreamID) ([]shuffle.StreamStatus, error) { return nil, nil },
	}, Options{})
	if _, err := c.Open(t.Context(), make([]shuffle.StreamSpec, 2)); err == nil {
		t.Error("Open: no error")
	}
	if _, err := c.Status(t.Context(), make([]shuffle.StreamID, 2)); err == nil {
		t.Error("Status: no error")
	}
}

// TestClose ends calls that wait.
func TestClose(t *testing.T) {
	began := make(chan bool)
	_, c := pair(t, &control{open: func(ctx context.Context, _ []shuffle.StreamSpec) ([]shuffle.Grant, error) {
		began <- true
		<-ctx.Done()
		return nil, ctx.Err()
	}}, Options{})
	result := make(chan error, 1)
	go func() {
		_, err := c.Open(t.Context(), nil)
		result <- err
	}()
	<-began
	c.Close()
	if err := <-result; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the call: %v", err)
	}
	if _, err := c.Endpoint(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a later call: %v", err)
	}
}

// TestBuffersAreFree changes what was handed over as soon as a call returns;
// the race detector sees it if it is still read.
func TestBuffersAreFree(t *testing.T) {
	hold := make(chan bool)
	_, c := pair(t, &control{deliver: func(ctx context.Context, _ shuffle.StreamID, f [][]byte) error {
		<-hold
		for _, b := range f[0] {
			if b != 1 {
				return errors.New("changed")
			}
		}
		return nil
	}}, Options{})
	frame := bytes.Repeat([]byte{1}, 1<<20)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_ = c.Deliver(ctx, stream, [][]byte{frame})
		cancel()
		frame[0]++
		frame[0]--
	}
	close(hold)
}

// TestDial counts dials: one for many callers at once.
func TestDial(t *testing.T) {
	s := serve(t, &control{}, Options{})
	var mu sync.Mutex
	dials := 0
	c := client(t, "somewhere", Options{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		mu.Lock()
		dials++
		mu.Unlock()
		if address != "somewhere" {
			return nil, fmt.Errorf("dialled %s", address)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", s.Addr().String())
	}})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := c.Endpoint(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if dials != 1 {
		t.Errorf("%d dials", dials)
	}
}

func message(head, body []byte) []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, uint32(4+len(head)+len(body)))
	_ = binary.Write(&b, binary.LittleEndian, uint32(len(head)))
	b.Write(head)
	b.Write(body)
	return b.Bytes()
}

// FuzzServer sends bytes to a server and then makes a call over another
// connection: whatever comes, the server lives.
func FuzzServer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{255, 255, 255, 255})
	f.Add(message(nil, nil))
	f.Add([]byte{4, 0, 0, 0, 255, 255, 255, 255})
	type header struct { // as rpc.Request, which has an unexported field
		ServiceMethod string
		Seq           uint64
	}
	for _, m := range []string{"Control.Open", "Control.Nothing", "Cancel", ""} {
		h, err := encode(&header{ServiceMethod: m, Seq: 1})
		if err != nil {
			f.Fatal(err)
		}
		b, err := encode(&Request[[]shuffle.StreamSpec]{Call: 1, Arg: []shuffle.StreamSpec{{ID: stream, Check: []uint64{1}}}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message(h, b))
		f.Add(append(message(h, b), message(h, b[:len(b)/2])...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := net.Pipe()
		s := &Server{control: &control{}, opt: Options{MaxMessage: 1 << 16}.ensureDefaults()}
		s.ctx, s.cancel = context.WithCancel(t.Context())
		defer s.cancel()
		served := make(chan bool)
		go func() { s.serve(far); close(served) }()
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_, _ = io.WriteString(near, hello)
		_, _ = near.Write(data)
		near.Close()
		<-served
	})
}
