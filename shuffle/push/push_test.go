// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var job = shuffle.JobSpec{
	ID: shuffle.JobID{1, 2, 3}, Secret: [16]byte{4, 5, 6}, Seed: pairs.Seed{A: 7, B: 8}, Ops: []fold.Op{fold.Sum},
}

var target = shuffle.TargetSpec{ID: shuffle.TargetID{Job: job.ID, Partition: 3}}

// output makes an output of n pairs with keys of all classes, and what it adds up to.
func output(t testing.TB, n, mapTask int) (*commit.Output, map[string]int64) {
	t.Helper()
	b := commit.NewBuilder(&job)
	want := map[string]int64{}
	for i := range n {
		k := fmt.Sprintf("%d", i)
		switch i % 50 {
		case 10, 11, 12:
			k += "/of sixteen"
		case 20, 21:
			k += strings.Repeat("y", 20)
		case 30:
			k += strings.Repeat("z", 50)
		case 40:
			k += strings.Repeat("w", 100)
		case 49:
			if i%5000 == 49 {
				k += strings.Repeat("v", 70_000)
			}
		}
		v := int64(i*31 + mapTask)
		b.Add([]byte(k), []int64{v})
		want[k] = v
	}
	o, err := b.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return o, want
}

func sender(t testing.TB, o Options) *Sender {
	t.Helper()
	if os.Getenv("QUERN_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func request(r *receiver, o *commit.Output, mapTask uint32) Request {
	return Request{Control: r, Dest: r.addr, Output: o, Job: job, Target: target, Map: mapTask}
}

// check compares what a receiver added up with what was sent to it, once each.
func (r *receiver) check(t testing.TB, wants ...map[string]int64) {
	t.Helper()
	want, times := map[string]int64{}, map[string]int{}
	for _, w := range wants {
		for k, v := range w {
			want[k] += v
			times[k]++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !maps.Equal(r.pairs, times) {
		t.Errorf("%d keys came, want %d, or some not as often as they were sent", len(r.pairs), len(times))
	}
	for k, v := range want {
		if got := r.total[k]; len(got) != 1 || got[0] != v {
			t.Errorf("%.40q: %v, want %d", k, got, v)
			break
		}
	}
}

func ctxFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestPushOverPerfectWire(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, single := range []bool{false, true} {
			t.Run(fmt.Sprintf("six=%v,single=%v", six, single), func(t *testing.T) {
				r := newReceiver(t, six, 1)
				s := sender(t, Options{NoSegmentation: single})
				o, want := output(t, 60_000, 1)
				rep, err := s.Push(ctxFor(t), request(r, o, 1))
				t.Logf("%+v", rep)
				if err != nil {
					t.Fatal(err)
				}
				r.check(t, want)
				if rep.Pairs != 60_000 || rep.Frames != o.Frames() || rep.Delivered != 12 {
					t.Errorf("%+v", rep)
				}
			})
		}
	}
}

func TestPushOverBadWire(t *testing.T) {
	for name, f := range map[string]faults{
		"loss":      {Lose: 0.05},
		"much loss": {Lose: 0.2},
		"doubling":  {Double: 0.3},
		"reorder":   {Delay: 0.1, Latency: 3 * time.Millisecond},
		"damage":    {Damage: 0.05},
		"all":       {Lose: 0.05, Double: 0.05, Delay: 0.05, Damage: 0.05, Latency: 2 * time.Millisecond},
	} {
		for _, kernel := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,kernel=%v", name, kernel), func(t *testing.T) {
				r := newReceiver(t, false, 2)
				r.data, r.acks = f, f
				opts := Options{}
				if kernel {
					r.kernel = newFakeKernel(64)
					r.from = wire.FromKernel
					opts.Kernel, opts.Jobs = r.kernel, r.kernel
				}
				s := sender(t, opts)
				o, want := output(t, 30_000, 1)
				rep, err := s.Push(ctxFor(t), request(r, o, 1))
				t.Logf("%+v", rep)
				if err != nil {
					t.Fatal(err)
				}
				r.check(t, want)
			})
		}
	}
}

// Segments beyond the first are opened ahead, in batches, and few retransmissions
// are needed where nothing is lost.
func TestPushOfSeveralSegments(t *testing.T) {
	b := commit.NewBuilder(&job)
	want := map[string]int64{}
	for i := range 3*wire.Segment + 100 { // a pair fills a frame
		k := fmt.Sprintf("%01300d", i)
		b.Add([]byte(k), []int64{1 << 40})
		want[k] = 1 << 40
	}
	o, err := b.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(o.Manifest().Segments); n != 4 {
		t.Fatalf("%d segments", n)
	}
	for _, tc := range []struct{ most, slots, ahead int }{{0, 64, 0}, {2, 64, 12}, {0, 1, 12}, {0, 64, 2}} {
		for _, kernel := range []bool{false, true} {
			r := newReceiver(t, false, 3)
			r.most = tc.most
			k := newFakeKernel(tc.slots)
			opts := Options{Ahead: tc.ahead, Memory: k.mem}
			if kernel {
				r.kernel, r.from = k, wire.FromKernel
				opts.Kernel, opts.Jobs = k, k
			}
			s := sender(t, opts)
			rep, err := s.Push(ctxFor(t), request(r, o, 1))
			t.Logf("%+v: %+v", tc, rep)
			if err != nil {
				t.Fatal(err)
			}
			r.check(t, want)
			if rep.Segments != 4 || rep.Retransmitted > uint64(rep.Frames/4) {
				t.Errorf("%+v: %+v", tc, rep)
			}
			if kernel {
				if k.held[job.ID] != 0 {
					t.Error("the job's slot is still held")
				}
				if tc.slots == 1 && k.quiesced.Load() < 3 {
					t.Errorf("a slot was used 4 times, and the kernel waited for %d times", k.quiesced.Load())
				}
				for i := range k.mem.Outgoing {
					if k.mem.Outgoing[i].Token != 0 {
						t.Errorf("slot %d is still open", i)
					}
				}
				// Most answers are absorbed without waking anybody.
				if k.passed.Load() > k.took.Load() {
					t.Errorf("%d of %d answers went up", k.passed.Load(), k.took.Load())
				}
			}
		}
	}
}

// Many pushes at once, from several map tasks to several receivers.
func TestPushesAtOnce(t *testing.T) {
	var rs []*receiver
	for i := range 3 {
		r := newReceiver(t, i == 2, uint64(i))
		r.data = faults{Lose: 0.02, Double: 0.02}
		rs = append(rs, r)
	}
	s := sender(t, Options{Memory: shuffle.NewMemory(shuffle.Limits{Outgoing: 5})})
	var g sync.WaitGroup
	wants := make([]map[string]int64, 4)
	for m := range wants {
		o, want := output(t, 5000+m*100, m)
		wants[m] = want
		for _, r := range rs {
			g.Go(func() {
				if rep, err := s.Push(ctxFor(t), request(r, o, uint32(m))); err != nil || rep.Pairs != uint64(5000+m*100) {
					t.Errorf("%+v, %v", rep, err)
				}
			})
		}
	}
	g.Wait()
	for _, r := range rs {
		r.check(t, wants...)
	}
}

// Pushing the same output again finds it done; pushing an empty one does nothing.
func TestPushAgain(t *testing.T) {
	r := newReceiver(t, false, 1)
	s := sender(t, Options{})
	o, want := output(t, 3000, 1)
	for i := range 2 {
		rep, err := s.Push(ctxFor(t), request(r, o, 1))
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 && (rep.Sent != 0 || rep.Known != uint64(o.Frames())) {
			t.Errorf("%+v", rep)
		}
	}
	r.check(t, want)
	empty, _ := output(t, 0, 1)
	if rep, err := s.Push(ctxFor(t), request(r, empty, 2)); err != nil || rep.Sent != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}

func TestPushOfVector(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.data = faults{Lose: 0.1}
	s := sender(t, Options{})
	values := make([]int64, 20_000)
	for i := range values {
		values[i] = int64(i * i)
	}
	o, err := commit.Dense(&job, values)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Push(ctxFor(t), request(r, o, 1)); err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if r.vector[uint32(i)] != v {
			t.Fatalf("value %d is %d, want %d", i, r.vector[uint32(i)], v)
		}
	}
}

// If no packet arrives, everything goes over the control connection.
func TestPushToTheDeaf(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.deaf = true
	s := sender(t, Options{Stall: 4 * time.Second})
	o, want := output(t, 10_000, 1)
	rep, err := s.Push(ctxFor(t), request(r, o, 1))
	t.Logf("%+v", rep)
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
	if rep.Delivered != uint64(o.Frames()) || rep.Reopened == 0 {
		t.Errorf("%+v", rep)
	}
	// While nothing is heard, it does not go on sending as if there were.
	if rep.Sent > 400 {
		t.Errorf("%d frames were sent to nobody", rep.Sent)
	}
}

// If answers alone are lost, frames arrive, and the status tells.
func TestPushWithoutAnswers(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.acks.Lose = 1
	s := sender(t, Options{Stall: 4 * time.Second})
	o, want := output(t, 60_000, 1)
	rep, err := s.Push(ctxFor(t), request(r, o, 1))
	if err != nil || rep.Delivered == 0 || rep.Time > time.Minute {
		t.Errorf("%+v, %v", rep, err)
	}
	r.check(t, want)
}

func TestPushToTheDead(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.deaf = true
	r.reset = func(call string) error {
		if call == "Deliver" {
			return errors.New("connection refused")
		}
		return nil
	}
	s := sender(t, Options{Stall: 200 * time.Millisecond})
	o, _ := output(t, 10_000, 1)
	begin := time.Now()
	_, err := s.Push(ctxFor(t), request(r, o, 1))
	if !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "UDP port") {
		t.Errorf("got %v", err)
	}
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("it took %v", d)
	}
}

// Frames that no packet holds go over the control connection, others do not.
func TestPushOverSmallPath(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.end.Frame = 1000
	s := sender(t, Options{})
	o, want := output(t, 10_000, 1)
	large := uint64(0)
	for i := range o.Frames() {
		if o.Size(i) > 1000 {
			large++
		}
	}
	rep, err := s.Push(ctxFor(t), request(r, o, 1))
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
	if rep.Delivered != large || rep.Sent-rep.Retransmitted != uint64(o.Frames())-large {
		t.Errorf("%d large frames: %+v", large, rep)
	}
}

// Where programs see packets as a socket would, frames come one by one.
func TestPushToGeneric(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.end.Generic = true
	s := sender(t, Options{})
	o, want := output(t, 10_000, 1)
	if _, err := s.Push(ctxFor(t), request(r, o, 1)); err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
	for _, p := range s.paths {
		if p.segment {
			t.Error("frames were sent together")
		}
	}
}

// A receiver that is restarted in the midst of it gets everything again.
func TestPushToTheRestarted(t *testing.T) {
	for _, call := range []string{"OpenTarget", "Open", "Status", "Confirm", "Deliver"} {
		t.Run(call, func(t *testing.T) {
			r := newReceiver(t, false, 1)
			r.data.Lose = 0.02
			times := 0
			r.reset = func(c string) error {
				if c != call {
					return nil
				}
				if times++; times > 2 {
					return nil
				}
				r.restart()
				return fmt.Errorf("restarted: %w", shuffle.ErrReset)
			}
			s := sender(t, Options{})
			o, want := output(t, 20_000, 1)
			rep, err := s.Push(ctxFor(t), request(r, o, 1))
			if err != nil {
				t.Fatal(err)
			}
			if rep.Resets != 2 {
				t.Errorf("%+v", rep)
			}
			if call == "Confirm" {
				return // what was complete when it was forgotten came twice, and was forgotten
			}
			r.check(t, want)
		})
	}
}

// A receiver that never stops to begin anew is given up.
func TestPushToTheForgetful(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.reset = func(c string) error {
		if c == "Open" {
			return shuffle.ErrReset
		}
		return nil
	}
	s := sender(t, Options{Resets: 2})
	o, _ := output(t, 100, 1)
	rep, err := s.Push(ctxFor(t), request(r, o, 1))
	if !errors.Is(err, shuffle.ErrReset) || rep.Resets != 2 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// Calls that fail are repeated, for a while.
func TestCallsAreRepeated(t *testing.T) {
	r := newReceiver(t, false, 1)
	failed := map[string]int{}
	r.reset = func(c string) error {
		if failed[c]++; failed[c] < 3 {
			return errors.New("connection refused")
		}
		return nil
	}
	s := sender(t, Options{})
	o, want := output(t, 6000, 1)
	if _, err := s.Push(ctxFor(t), request(r, o, 1)); err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
	for _, c := range []string{"Endpoint", "OpenJob", "OpenTarget", "Open", "Status", "Confirm", "Deliver"} {
		if failed[c] < 3 {
			t.Errorf("%s was called %d times", c, failed[c])
		}
	}
	r.reset = func(string) error { return errors.New("connection refused") }
	s = sender(t, Options{Retry: 50 * time.Millisecond})
	if _, err := s.Push(ctxFor(t), request(r, o, 2)); err == nil || !strings.Contains(err.Error(), "ask where frames go: connection refused") {
		t.Errorf("got %v", err)
	}
}

// Only the status ends a stream: answers may lie.
func TestAnswersAreHints(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.data.Lose = 0.3
	s := sender(t, Options{})
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			// All frames of all streams have arrived, says somebody who knows the key.
			for i := range s.owners {
				st := s.owners[i].Load()
				if st == nil {
					continue
				}
				for base := 0; base <= wire.MaxAckBase; base += wire.AckWords {
					a := wire.AckBody{Nonce: 1, Stamp: uint64(now()), Base: uint16(base), From: wire.FromUser}
					for k := range a.Claimed {
						a.Claimed[k] = ^uint32(0)
					}
					s.absorb(wire.PutAck(make([]byte, wire.AckFrame), wire.Head{
						Magic: wire.Magic, Version: wire.Version, Token: st.grant.Token, Stream: st.grant.Slot, Back: st.slot,
					}, a, st.tags))
				}
			}
		}
	})
	o, want := output(t, 30_000, 1)
	rep, err := s.Push(ctxFor(t), request(r, o, 1))
	close(stop)
	g.Wait()
	t.Logf("%+v", rep)
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
	if rep.StatusCalls < 2 {
		t.Error("nobody lied")
	}
}

// Whatever is wrong with an answer, it changes nothing.
func TestForgedAnswers(t *testing.T) {
	s := sender(t, Options{})
	tags := wire.NewTags(job.Secret)
	st := &stream{grant: shuffle.Grant{Token: 99}, tags: tags, out: &s.mem.Outgoing[7], slot: 7, push: &push{path: &path{signal: make(chan struct{}, 1)}}}
	s.owners[7].Store(st)
	s.mem.Outgoing[7].Token = 99
	good := func() []byte {
		a := wire.AckBody{Nonce: 5, Stamp: uint64(now()), Base: 2, From: wire.FromKernel, Share: 9}
		a.Claimed[1] = 0xf0f
		return wire.PutAck(make([]byte, wire.AckFrame), wire.Head{Magic: wire.Magic, Version: wire.Version, Token: 99, Back: 7}, a, tags)
	}
	untouched := *st.out
	for bit := range 8 * wire.AckFrame {
		b := good()
		b[bit/8] ^= 1 << (bit % 8)
		s.absorb(b)
		if *st.out != untouched {
			// Stamp, flags and scratch of the head are not under the tag.
			if at := bit / 8; at >= 40 && at < 64 {
				*st.out = untouched
				continue
			}
			t.Fatalf("bit %d was turned, and the answer was taken", bit)
		}
	}
	for n := range wire.AckFrame {
		s.absorb(good()[:n])
	}
	s.absorb(append(good(), 0))
	if *st.out != untouched || s.Strays() == 0 {
		t.Error("a short or long answer was taken")
	}
	s.absorb(good())
	if st.out.Count != 8 || st.out.Acked[1] != 0xf0f<<32 || st.out.From != wire.FromKernel || st.out.Share != 9 || st.out.Answers != 1 {
		t.Errorf("%+v", st.out)
	}
	s.absorb(good())
	if st.out.Count != 8 {
		t.Error("frames were counted twice")
	}
	s.owners[7].Store(nil)
	s.absorb(good())
}

// More than the window is never in flight, whoever says what.
func TestWindowIsKept(t *testing.T) {
	for _, tc := range []struct{ window, share, want int }{{0, 40, 40}, {50, 0, 50}, {20, 100, 20}, {0, 7, 7}, {0, 0, 64}} {
		r := newReceiver(t, false, 1)
		r.acks.Lose = 1
		r.share = tc.share
		r.end.Window = tc.window
		s := sender(t, Options{})
		o, _ := output(t, 20_000, 1)
		// Probes and what is sent again are the same frames.
		frames := func() int { return int(r.packets.Load() - r.duplicates.Load()) }
		ctx, cancel := context.WithCancel(ctxFor(t))
		go func() {
			defer cancel()
			for ctx.Err() == nil && frames() < min(tc.want, 16) {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond) // time enough for more
		}()
		_, err := s.Push(ctx, request(r, o, 1))
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := frames(); n > tc.want || n < min(tc.want, 16) {
			t.Errorf("window %d, share %d: %d frames were sent without an answer, want %d", tc.window, tc.share, n, tc.want)
		}
	}
}

// A context that ends ends everything, wherever it stands.
func TestCancel(t *testing.T) {
	o, _ := output(t, 30_000, 1)
	for i := range 20 {
		r := newReceiver(t, false, uint64(i))
		r.deaf = i%3 == 0
		r.data.Lose = 0.3
		if i%4 == 1 {
			r.reset = func(string) error { return errors.New("not now") }
		}
		s := sender(t, Options{})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(i*i)*200*time.Microsecond, errors.New("enough"))
		begin := time.Now()
		_, err := s.Push(ctx, request(r, o, 1))
		if err != nil && err.Error() != "" && !strings.HasSuffix(err.Error(), "enough") {
			t.Error(err)
		}
		cancel()
		if d := time.Since(begin); d > time.Duration(i*i)*200*time.Microsecond+time.Minute {
			t.Errorf("ended %v after it began", d)
		}
		s.mu.Lock()
		if len(s.free) != len(s.mem.Outgoing) {
			t.Errorf("%d of %d slots are free", len(s.free), len(s.mem.Outgoing))
		}
		s.mu.Unlock()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range s.paths {
			if p.window.flight != 0 || len(p.pushes) != 0 {
				t.Errorf("%d frames count as in flight, %d pushes are left", p.window.flight, len(p.pushes))
			}
		}
		if _, err := s.Push(t.Context(), request(r, o, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}

// A receiver that takes its time to complete is asked again.
func TestNotYetComplete(t *testing.T) {
	r := newReceiver(t, false, 1)
	r.incomplete = 5
	s := sender(t, Options{})
	o, want := output(t, 3000, 1)
	rep, err := s.Push(ctxFor(t), request(r, o, 1))
	if err != nil || rep.StatusCalls != 6 {
		t.Errorf("%+v, %v", rep, err)
	}
	r.check(t, want)
	r.incomplete = 1 << 30
	s = sender(t, Options{Stall: 50 * time.Millisecond})
	if _, err := s.Push(ctxFor(t), request(r, o, 2)); !errors.Is(err, ErrStalled) {
		t.Errorf("got %v", err)
	}
}

// Whatever comes to a sender's sockets, only answers with the right tag change anything.
func FuzzAbsorb(f *testing.F) {
	tags := wire.NewTags(job.Secret)
	a := wire.AckBody{Nonce: 5, Stamp: 1, Base: 2, From: wire.FromKernel, Share: 9}
	a.Claimed[1] = 0xf0f
	good := wire.PutAck(make([]byte, wire.AckFrame), wire.Head{Magic: wire.Magic, Version: wire.Version, Token: 99, Back: 1}, a, tags)
	f.Add(good)
	f.Add(good[:70])
	f.Add([]byte{})
	s, err := New(Options{Memory: shuffle.NewMemory(shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 2})})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	st := &stream{grant: shuffle.Grant{Token: 99}, tags: tags, out: &s.mem.Outgoing[1], slot: 1, push: &push{path: &path{signal: make(chan struct{}, 1)}}}
	s.owners[1].Store(st)
	f.Fuzz(func(t *testing.T, b []byte) {
		*st.out = wire.Outgoing{Token: 99}
		s.absorb(b)
		if *st.out == (wire.Outgoing{Token: 99}) {
			return
		}
		if h, a, err := wire.ParseAck(b); err != nil || h.Token != 99 || !tags.Open(b, a.Nonce) {
			t.Errorf("%x was taken", b)
		}
	})
}
