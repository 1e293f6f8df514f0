// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

func eachKind(t *testing.T, f func(t *testing.T, kernel func(int) bool)) {
	for kind, kernel := range kinds {
		t.Run(kind, func(t *testing.T) { f(t, kernel) })
	}
}

// reduce has all members call once, and holds what they get against plain arithmetic.
func reduce(t *testing.T, ends []Group, size int, op Op, wide bool, seed uint64) {
	t.Helper()
	c := makeCall(len(ends), size, op, wide, seed)
	for m, err := range together(testContext(t), ends, c.vecs) {
		if err != nil {
			t.Fatalf("%d members, %s, member %d: %v", len(ends), c.vecs[0], m, err)
		}
	}
	c.check(t)
}

// Vectors of all sizes around what a block, a window and a batch hold come out as by plain addition.
func TestReduce(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		for _, n := range []int{1, 2, 3, 5, 8} {
			l := newLab(t, 1, faults{})
			_, ends := l.form(l.hosts(n, setting{}, kernel), FormSpec{})
			for i, size := range []int{1, 0, 336, 337, 336 * n, 336*n + 1, 3, 20_000, 2} {
				reduce(t, ends, size, Op(i%3), i%2 == 1, uint64(i))
			}
		}
	})
}

// As many members as a group may have.
func TestReduceMost(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 1, faults{})
		_, ends := l.form(l.hosts(wire.MaxMembers, setting{}, kernel), FormSpec{})
		reduce(t, ends, 1, Sum, false, 1)
		reduce(t, ends, 8_000, Max, true, 2)
	})
}

// Frames that are lost, doubled, late and damaged change nothing, and none but genuine ones counts.
func TestReduceFaults(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 7, faults{Lose: 0.1, Double: 0.1, Damage: 0.05, Delay: 0.2, Latency: 2 * time.Millisecond})
		hosts := l.hosts(4, setting{}, kernel)
		_, ends := l.form(hosts, FormSpec{})
		for i, size := range []int{1, 336, 5000, 20, 20_000} {
			reduce(t, ends, size, Op(i%3), i%2 == 1, uint64(i))
		}
		var all Stats
		for _, h := range hosts {
			s := h.reasons()
			for i, n := range s.Reasons {
				all.Reasons[i] += n
			}
			all.Again += s.Again
		}
		if all.Again == 0 || all.Reasons[wire.PartTag] == 0 {
			t.Errorf("this was no trouble: %+v", all)
		}
	})
}

// reasons returns the node's counts with those of its programs.
func (h *host) reasons() Stats {
	s := h.Stats()
	if h.kernel != nil {
		r, _ := h.kernel.Reasons()
		for i, n := range r {
			s.Reasons[i] += n
		}
	}
	return s
}

// Any group, any calls, any faults: what comes out is what plain arithmetic says.
func TestReduceRandom(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		rapid.Check(t, func(r *rapid.T) {
			n := rapid.IntRange(2, 6).Draw(r, "members")
			f := faults{}
			if rapid.Bool().Draw(r, "faulty") {
				f = faults{
					Lose: rapid.Float64Range(0, 0.1).Draw(r, "lose"), Double: rapid.Float64Range(0, 0.2).Draw(r, "double"), Damage: rapid.Float64Range(0, 0.05).Draw(r, "damage"),
					Delay: rapid.Float64Range(0, 0.3).Draw(r, "delay"), Latency: time.Duration(rapid.IntRange(0, 3000).Draw(r, "latency")) * time.Microsecond,
				}
			}
			inner(t, func(l *lab) {
				_, ends := l.form(l.hosts(n, setting{}, kernel), FormSpec{Bits: rapid.IntRange(0, 1).Draw(r, "small") * 2})
				for range rapid.IntRange(1, 5).Draw(r, "calls") {
					c := drawCall(r, n)
					for m, err := range together(testContext(t), ends, c.vecs) {
						if err != nil {
							r.Fatalf("member %d: %v", m, err)
						}
					}
					c.check(r)
				}
			}, rapid.Uint64().Draw(r, "seed"), f)
		})
	})
}

// inner runs with a lab that is gone afterwards.
func inner(t *testing.T, f func(*lab), seed uint64, fs faults) {
	s := &scope{T: t}
	defer s.end()
	f(newLab(s, seed, fs))
}

// scope is a test's part with clean-ups of its own.
type scope struct {
	*testing.T
	todo []func()
}

func (s *scope) Cleanup(f func()) { s.todo = append(s.todo, f) }

func (s *scope) end() {
	for i := len(s.todo) - 1; i >= 0; i-- {
		s.todo[i]()
	}
}

// With the smallest window the numbers go round many times, and still each frame of an earlier turn is known as such: all
// that was ever sent is sent again all the time.
func TestReplay(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 3, faults{})
		hosts := l.hosts(3, setting{}, kernel)
		_, ends := l.form(hosts, FormSpec{Bits: minBits})
		var mu sync.Mutex
		type seen struct {
			packet []byte
			to     *host
		}
		var all []seen
		l.mu.Lock()
		l.see = func(packet []byte, to *host) {
			mu.Lock()
			defer mu.Unlock()
			if len(all) < 3000 {
				all = append(all, seen{packet, to})
			}
		}
		l.mu.Unlock()
		stop := make(chan struct{})
		var replays sync.WaitGroup
		replays.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				var s seen
				if len(all) > 0 {
					s = all[(i*7919)%len(all)]
				}
				mu.Unlock()
				if s.to != nil {
					s.to.arrive(s.packet, 1)
				}
				time.Sleep(10 * time.Microsecond)
			}
		})
		for i := range 60 {
			reduce(t, ends, 1+i*97%3000, Op(i%3), i%2 == 0, uint64(i))
		}
		close(stop)
		replays.Wait()
		var stray, before uint64
		for _, h := range hosts {
			s := h.reasons()
			stray += s.Reasons[wire.PartStray]
			before += s.Reasons[wire.ResultBefore]
		}
		if stray == 0 || before == 0 {
			t.Errorf("%d old parts and %d old results were known as such", stray, before)
		}
	})
}

// patient is a group's patience in tests where it is to run out.
const patient = 200 * time.Millisecond

// Members that call with different vectors: all learn that they do.
func TestReduceDiffers(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		for name, other := range map[string]Vector{
			"length": {Int32: make([]int32, 11)}, "width": {Int64: make([]int64, 10)}, "operation": {Op: Min, Int32: make([]int32, 10)}, "more blocks": {Int32: make([]int32, 3000)},
		} {
			l := newLab(t, 1, faults{})
			f, ends := l.form(l.hosts(3, setting{}, kernel), FormSpec{Patience: patient})
			reduce(t, ends, 700, Sum, false, 1)
			vecs := []Vector{{Int32: make([]int32, 10)}, {Int32: make([]int32, 10)}, other}
			said := 0
			for m, err := range together(testContext(t), ends, vecs) {
				if !errors.Is(err, ErrBroken) {
					t.Errorf("%s: member %d: %v", name, m, err)
				}
				if err != nil && strings.Contains(err.Error(), errDiffers.Error()) {
					said++
				}
			}
			if said != 3 {
				t.Errorf("%s: %d members are told why", name, said)
			}
			waitFor(t, func() bool { return f.Err() != nil })
			for _, g := range ends {
				if err := AllReduce(testContext(t), g, Sum, []int32{1}); !errors.Is(err, ErrBroken) {
					t.Errorf("%s, later: %v", name, err)
				}
			}
		}
	})
}

// An empty vector is a call like others: who has it where others have values is a call ahead, and no sum is of two calls.
func TestEmptyCounts(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 1, faults{})
		_, ends := l.form(l.hosts(3, setting{}, kernel), FormSpec{Patience: patient})
		reduce(t, ends, 0, Sum, false, 1)
		reduce(t, ends, 700, Sum, false, 1)
		if err := AllReduce(testContext(t), ends[2], Sum, []int32{}); err != nil {
			t.Error(err)
		}
		vecs := []Vector{{Int32: make([]int32, 10)}, {Int32: make([]int32, 10)}, {Int32: make([]int32, 10)}}
		for m, err := range together(testContext(t), ends, vecs) {
			if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), errDiffers.Error()) {
				t.Errorf("member %d: %v", m, err)
			}
		}
	})
}

// started waits until members wait in a call.
func started(t *testing.T, ends ...Group) {
	t.Helper()
	for _, g := range ends {
		waitFor(t, g.(*end).waiting.Load)
	}
}

// What one member does to a call that the others wait in.
func TestReduceBreaks(t *testing.T) {
	cause := errors.New("the user went home")
	for name, tc := range map[string]struct {
		do   func(t *testing.T, h *host, f *Formed, g Group)
		why  string
		rank int  // who is the reason; -1: nobody
		late bool // member 2 does not call, so that nothing gets done
	}{
		"context": {func(t *testing.T, _ *host, _ *Formed, g Group) {
			ctx, cancel := context.WithCancelCause(testContext(t))
			time.AfterFunc(5*time.Millisecond, func() { cancel(cause) })
			if err := AllReduce(ctx, g, Sum, make([]int32, 10_000)); !errors.Is(err, cause) || !errors.Is(err, context.Canceled) || !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
		}, "went home", 1, true},
		"closed": {func(t *testing.T, _ *host, _ *Formed, g Group) {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if err := AllReduce(testContext(t), g, Sum, make([]int32, 1)); !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
		}, left, 1, false},
		"closed in a call": {func(t *testing.T, _ *host, _ *Formed, g Group) {
			done := make(chan error)
			go func() { done <- AllReduce(testContext(t), g, Sum, make([]int32, 10_000)) }()
			started(t, g)
			_ = g.Close()
			if err := <-done; !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
		}, "in the middle", 1, true},
		"twice": {func(t *testing.T, _ *host, _ *Formed, g Group) {
			done := make(chan error)
			go func() { done <- AllReduce(testContext(t), g, Sum, make([]int32, 10_000)) }()
			started(t, g)
			if err := AllReduce(testContext(t), g, Sum, make([]int32, 10_000)); !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
			if err := <-done; !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
		}, "another call", 1, true},
		"dead":   {func(_ *testing.T, h *host, _ *Formed, _ Group) { h.die() }, "not answered", 1, false},
		"forgot": {func(_ *testing.T, h *host, _ *Formed, _ Group) { h.Drop(shuffle.JobID{}) }, "lost the group", 1, false},
		"broken from outside": {func(t *testing.T, _ *host, f *Formed, _ Group) {
			if err := f.Break(testContext(t), "enough of it"); err != nil {
				t.Error(err)
			}
		}, "enough of it", -1, false},
		"lost from outside": {func(t *testing.T, h *host, f *Formed, _ Group) {
			h.die()
			if err := f.BreakMember(testContext(t), 1, errors.New("its worker is lost")); err != nil {
				t.Error(err)
			}
		}, "worker is lost", 1, false},
		"closed by who formed it": {func(t *testing.T, _ *host, f *Formed, _ Group) {
			if err := f.Close(testContext(t)); err != nil {
				t.Error(err)
			}
		}, "was closed", -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, kernel func(int) bool) {
				l := newLab(t, 1, faults{})
				hosts := l.hosts(3, setting{}, kernel)
				f, ends := l.form(hosts, FormSpec{Patience: patient})
				reduce(t, ends, 500, Sum, false, 1)
				others := []Group{ends[0], ends[2]}
				if tc.late {
					others = others[:1]
				}
				told := make(chan error)
				for _, g := range others {
					go func() { told <- AllReduce(testContext(t), g, Sum, make([]int32, 10_000)) }()
				}
				started(t, others...)
				tc.do(t, hosts[1], f, ends[1])
				for range others {
					err := <-told
					var m *MemberError
					if !errors.Is(err, ErrBroken) || errors.Is(err, cause) || !strings.Contains(err.Error(), tc.why) {
						t.Errorf("others are told %v", err)
					}
					if is := errors.As(err, &m); is != (tc.rank >= 0) || is && (m.Rank != tc.rank || m.Name != "host 1") {
						t.Errorf("others are told %v, of %+v", err, m)
					}
				}
			})
		})
	}
}

// Where all wait in one call and nothing comes anywhere, frames do not get through, and nobody waits for good.
func TestStuck(t *testing.T) {
	f := &Formed{spec: FormSpec{Patience: 10 * time.Second}}
	begin := time.Now()
	for name, tc := range map[string]struct {
		status func(member, asked int) (shuffle.GroupStatus, error)
		stuck  bool
	}{
		"nothing comes": {func(int, int) (shuffle.GroupStatus, error) {
			return shuffle.GroupStatus{Calls: 3, Waiting: true, Results: 7}, nil
		}, true},
		"a result now and then": {func(member, asked int) (shuffle.GroupStatus, error) {
			return shuffle.GroupStatus{Calls: 3, Waiting: true, Results: uint32(member * asked / 100)}, nil
		}, false},
		"call after call": {func(_, asked int) (shuffle.GroupStatus, error) {
			return shuffle.GroupStatus{Calls: uint64(asked / 100), Waiting: true}, nil
		}, false},
		"one computes": {func(member, _ int) (shuffle.GroupStatus, error) {
			return shuffle.GroupStatus{Calls: 3, Waiting: member != 1}, nil
		}, false},
		"one is behind": {func(member, _ int) (shuffle.GroupStatus, error) {
			return shuffle.GroupStatus{Calls: 3 + uint64(member), Waiting: true}, nil
		}, false},
		"one is silent at times": {func(member, asked int) (shuffle.GroupStatus, error) {
			if member == 1 && asked%15 == 0 {
				return shuffle.GroupStatus{}, errDeaf
			}
			return shuffle.GroupStatus{Calls: 3, Waiting: true}, nil
		}, false},
	} {
		known := []heard{{at: begin}, {at: begin}}
		at, stuck := time.Duration(0), time.Duration(0)
		for asked := range 300 {
			for i := range known {
				status, err := tc.status(i, asked)
				known[i].hear(status, err, begin.Add(at))
			}
			if rank, why := f.judge(known, begin.Add(at)); why != nil && stuck == 0 {
				if stuck = at; rank != -1 {
					t.Errorf("%s: member %d: %v", name, rank, why)
				}
			}
			at += askEvery
		}
		if tc.stuck && stuck != time.Minute || !tc.stuck && stuck != 0 {
			t.Errorf("%s: stuck after %v", name, stuck)
		}
	}
	// A host that stood still has heard of nothing meanwhile.
	known := make([]heard, 2)
	for _, at := range []time.Duration{0, time.Second, time.Hour} {
		for i := range known {
			known[i].hear(shuffle.GroupStatus{Calls: 3, Waiting: true}, nil, begin.Add(at))
		}
		if _, why := f.judge(known, begin.Add(at)); why != nil {
			t.Error(why)
		}
	}
}

// All of it, which takes 10 s: no frame gets through, and control planes answer.
func TestStuckBreaks(t *testing.T) {
	if os.Getenv("QUERN_LONG") == "" {
		t.Skip("it waits 10 s; QUERN_LONG=1 has it run")
	}
	l := newLab(t, 1, faults{Lose: 1})
	f, ends := l.form(l.hosts(3, setting{}, kinds["mixed"]), FormSpec{Patience: patient})
	c := makeCall(3, 700, Sum, false, 1)
	for i, err := range together(testContext(t), ends, c.vecs) {
		var m *MemberError
		if !errors.Is(err, ErrBroken) || errors.As(err, &m) || !strings.Contains(err.Error(), "frames do not get through") {
			t.Errorf("member %d: %v", i, err)
		}
	}
	if err := f.Err(); !errors.Is(err, ErrBroken) {
		t.Error(err)
	}
}

// What a member says of its results is what has come.
func TestStatusResults(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 1, faults{})
		hosts := l.hosts(3, setting{}, kernel)
		f, ends := l.form(hosts, FormSpec{})
		reduce(t, ends, 700, Sum, false, 1) // three blocks
		reduce(t, ends, 1, Sum, false, 1)
		for i, h := range hosts {
			if s, err := h.Control().GroupStatus(testContext(t), f.Token); err != nil || s != (shuffle.GroupStatus{Calls: 2, Results: 4}) {
				t.Errorf("member %d: %+v, %v", i, s, err)
			}
		}
	})
}

// A member that was out of reach when the group broke is told as soon as it can be.
func TestToldLater(t *testing.T) {
	l := newLab(t, 1, faults{})
	hosts := l.hosts(3, setting{}, kinds["user"])
	f, ends := l.form(hosts, FormSpec{Patience: patient})
	told := make(chan error)
	go func() { told <- AllReduce(testContext(t), ends[0], Sum, make([]int32, 10)) }()
	started(t, ends[0])
	deaf := func(is bool) {
		hosts[0].mu.Lock()
		hosts[0].deaf = is
		hosts[0].mu.Unlock()
	}
	deaf(true)
	if err := f.Break(testContext(t), "enough of it"); !errors.Is(err, errDeaf) || !strings.Contains(err.Error(), "member 0 (host 0)") {
		t.Error(err)
	}
	time.Sleep(patient)
	select {
	case err := <-told:
		t.Errorf("it was told %v", err)
	default:
	}
	deaf(false)
	if err := <-told; !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "enough of it") {
		t.Error(err)
	}
}

// A member that takes its time and answers is waited for, for longer than patience lasts; the log says for whom.
func TestReduceSlow(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 1, faults{})
		var log logged
		f, ends := l.form(l.hosts(3, setting{opts: Options{Patience: 50 * time.Millisecond, Log: slog.New(&log)}}, kernel), FormSpec{Patience: 50 * time.Millisecond})
		c := makeCall(3, 2000, Sum, false, 1)
		errs := make(chan error)
		for _, i := range []int{0, 2} {
			go func() { errs <- ends[i].Reduce(testContext(t), c.vecs[i]) }()
		}
		waitFor(t, func() bool { return strings.Contains(log.all(), "1 (host 1)") })
		if err := ends[1].Reduce(testContext(t), c.vecs[1]); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		c.check(t)
		if err := f.Err(); err != nil {
			t.Error(err)
		}
	})
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprint(&l.text, r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprint(&l.text, " ", a); return true })
	fmt.Fprintln(&l.text)
	return nil
}

func (l *logged) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logged) WithGroup(string) slog.Handler      { return l }

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A member that has left after its last call goes on serving those that have not got all results yet.
func TestLeftServes(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 1, faults{})
		hosts := l.hosts(3, setting{}, kernel)
		f, ends := l.form(hosts, FormSpec{Patience: patient})
		// No result reaches host 2 at first.
		var open atomic.Bool
		drop := func(packet []byte, to *host) bool {
			return to == hosts[2] && packet[len(packet)-len(payload(packet))+4] == byte(wire.Reduced) && !open.Load()
		}
		l.mu.Lock()
		l.drop = drop
		l.mu.Unlock()
		c := makeCall(3, 5000, Sum, true, 1)
		late := make(chan error)
		go func() { late <- ends[2].Reduce(testContext(t), c.vecs[2]) }()
		for i, err := range together(testContext(t), ends[:2], c.vecs[:2]) {
			if err != nil {
				t.Fatal(i, err)
			}
			if err := ends[i].Close(); err != nil {
				t.Fatal(err)
			}
		}
		// Who formed it has seen that they left, and that host 2 waits.
		time.Sleep(patient)
		open.Store(true)
		if err := <-late; err != nil {
			t.Fatal(err)
		}
		c.check(t)
		if err := AllReduce(testContext(t), ends[2], Sum, []int32{1}); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), left) {
			t.Error(err)
		}
		if f.Err() == nil {
			t.Error("who formed it does not know")
		}
	})
}

// Frames that are no part of anything are dropped, and counted.
func TestHandleStrays(t *testing.T) {
	l := newLab(t, 1, faults{})
	hosts := l.hosts(2, setting{}, kinds["user"])
	f, ends := l.form(hosts, FormSpec{})
	reduce(t, ends, 1, Sum, false, 1)
	tags, other := wire.NewTags([16]byte{}), wire.NewTags([16]byte{1})
	room := uint32(1) << bitsFor(2)
	part := func(kind wire.Kind, token uint64, number uint32, p wire.Part, tags *wire.Tags) []byte {
		b, err := wire.PutPart(make([]byte, wire.FrameSize), kind, token, number, p, []byte{1, 2, 3, 4}, tags)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := part(wire.Reduce, f.Token, room+7, wire.Part{Member: 1}, tags)
	damaged := append([]byte(nil), good...)
	damaged[len(damaged)-1] = 1
	for name, tc := range map[string]struct {
		frame []byte
		want  wire.Reason
	}{
		"nothing":        {nil, wire.Foreign},
		"other protocol": {make([]byte, 200), wire.Foreign},
		"cut":            {good[:len(good)-1], wire.Malformed},
		"padding":        {damaged, wire.Malformed},
		"token":          {part(wire.Reduce, f.Token+1, room+7, wire.Part{Member: 1}, tags), wire.UpGroup},
		"tag":            {part(wire.Reduce, f.Token, room+7, wire.Part{Member: 1}, other), wire.PartTag},
		"result's tag":   {part(wire.Reduced, f.Token, room+7, wire.Part{Reducer: 1}, other), wire.PartTag},
		"own":            {part(wire.Reduce, f.Token, room+7, wire.Part{Member: 0}, tags), wire.PartStray},
		"no member":      {part(wire.Reduce, f.Token, room+7, wire.Part{Member: 2}, tags), wire.PartStray},
		"reducer":        {part(wire.Reduce, f.Token, room+7, wire.Part{Reducer: 1, Member: 1}, tags), wire.PartStray},
		"no reducer":     {part(wire.Reduced, f.Token, room+7, wire.Part{Reducer: 2}, tags), wire.PartStray},
		"own result":     {part(wire.Reduced, f.Token, room+7, wire.Part{}, tags), wire.PartStray},
		"generation 0":   {part(wire.Reduce, f.Token, room-1, wire.Part{Member: 1}, tags), wire.PartStray},
	} {
		before := hosts[0].Stats().Reasons[tc.want]
		hosts[0].Handle(tc.frame, netip.AddrPort{})
		if hosts[0].Stats().Reasons[tc.want] != before+1 {
			t.Errorf("%s: %+v", name, hosts[0].Stats().Reasons)
		}
	}
	reduce(t, ends, 700, Sum, false, 2)
}

// What OpenGroup takes, and what it does not.
func TestOpenGroup(t *testing.T) {
	n, err := New(Options{Send: func([]byte, int, netip.AddrPort) error { return nil }, Port: 7, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ctx, c := t.Context(), n.Control()
	at := netip.MustParseAddrPort("10.0.0.1:7")
	good := func() shuffle.GroupSpec {
		return shuffle.GroupSpec{Token: 5, Name: "x", Rank: 1, Members: []shuffle.GroupMember{{Name: "a", Address: at}, {Name: "b", Address: at}}, Bits: 6}
	}
	for name, spoil := range map[string]func(*shuffle.GroupSpec){
		"token": func(s *shuffle.GroupSpec) { s.Token = 0 }, "rank": func(s *shuffle.GroupSpec) { s.Rank = 2 }, "negative": func(s *shuffle.GroupSpec) { s.Rank = -1 },
		"nobody": func(s *shuffle.GroupSpec) { s.Members, s.Rank = nil, 0 }, "bits": func(s *shuffle.GroupSpec) { s.Bits = 1 }, "more bits": func(s *shuffle.GroupSpec) { s.Bits = 13 },
		"address": func(s *shuffle.GroupSpec) { s.Members[0].Address = netip.AddrPort{} }, "port": func(s *shuffle.GroupSpec) { s.Members[0].Address = netip.MustParseAddrPort("10.0.0.1:0") },
		"many": func(s *shuffle.GroupSpec) {
			for len(s.Members) <= wire.MaxMembers {
				s.Members = append(s.Members, s.Members[0])
			}
		},
		"kernel": func(s *shuffle.GroupSpec) { s.Mode = shuffle.KernelOnly }, "memory": func(s *shuffle.GroupSpec) { s.Bits = 12 },
	} {
		s := good()
		spoil(&s)
		if _, err := c.OpenGroup(ctx, s); !errors.Is(err, shuffle.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		if grant, err := c.OpenGroup(ctx, good()); err != nil || grant.Kernel {
			t.Error(grant, err)
		}
	}
	other := good()
	other.Rank = 0
	if _, err := c.OpenGroup(ctx, other); !errors.Is(err, shuffle.ErrRefused) {
		t.Error(err)
	}
	// 2^6 slots of five and twice 2^6 results, each of 1344 + 8 bytes, are 605,696: two do not fit into 1 MiB.
	if s := n.Stats(); s.Memory != 605_696 || s.Open != 1 {
		t.Errorf("%+v", s)
	}
	other.Token = 6
	if _, err := c.OpenGroup(ctx, other); !errors.Is(err, shuffle.ErrBusy) {
		t.Error(err)
	}
	if err := c.CloseGroup(ctx, 5); err != nil {
		t.Error(err)
	}
	if s := n.Stats(); s.Memory != 0 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
	if err := c.CloseGroup(ctx, 5); !errors.Is(err, shuffle.ErrUnknown) {
		t.Error(err)
	}
	if err := c.BreakGroup(ctx, 5, "x"); !errors.Is(err, shuffle.ErrUnknown) {
		t.Error(err)
	}
	if _, err := c.GroupStatus(ctx, 5); !errors.Is(err, shuffle.ErrUnknown) {
		t.Error(err)
	}
	if _, err := n.Group(5); !errors.Is(err, shuffle.ErrUnknown) {
		t.Error(err)
	}
	if _, err := c.OpenGroup(ctx, other); err != nil {
		t.Error(err)
	}
	g, err := n.Group(6)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := AllReduce(ctx, g, Sum, []int32{1}); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrBroken) {
		t.Error(err)
	}
	if _, err := c.OpenGroup(ctx, good()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a node that can't send")
	}
	if _, err := New(Options{Send: n.opts.Send, Mode: shuffle.KernelOnly}); err == nil {
		t.Error("a kernel that is not there")
	}
}

// Who opened a group may have given up before it was open, and closes it: it does not stay.
func TestCloseWhileItOpens(t *testing.T) {
	l := newLab(t, 1, faults{})
	h := l.hosts(1, setting{}, kinds["kernel"])[0]
	c, members := h.Control(), make([]shuffle.GroupMember, 2)
	for i := range members {
		members[i].Address = hostAddress(h)
	}
	h.strict.mu.Lock() // NewContent waits
	opened, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := c.OpenGroup(testContext(t), shuffle.GroupSpec{Token: 5, Members: members, Bits: 4})
		opened <- err
	}()
	waitFor(t, func() bool {
		h.Node.mu.Lock()
		defer h.Node.mu.Unlock()
		return len(h.ends) == 1
	})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.CloseGroup(gone, 5); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() { closed <- c.CloseGroup(testContext(t), 5) }()
	time.Sleep(10 * time.Millisecond)
	h.strict.mu.Unlock()
	if err := <-opened; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if s := h.Stats(); s.Open != 0 || s.Memory != 0 || h.strict.used() != 0 {
		t.Errorf("%+v, %d contents", s, h.strict.used())
	}
}

// All members or none.
func TestFormFails(t *testing.T) {
	l := newLab(t, 1, faults{})
	hosts := l.hosts(3, setting{}, kinds["user"])
	hosts[1].opts.Memory = 1000
	spec := FormSpec{Name: "x", Patience: patient}
	for i, h := range hosts {
		spec.Members = append(spec.Members, Member{Name: fmt.Sprintf("host %d", i), Address: netip.AddrPortFrom(h.addr, shuffle.Port), Control: remote{h}})
	}
	if _, err := Form(testContext(t), spec); !errors.Is(err, shuffle.ErrRefused) || !strings.Contains(err.Error(), "member 1 (host 1)") {
		t.Error(err)
	}
	hosts[2].die()
	if _, err := Form(testContext(t), spec); !errors.Is(err, errDeaf) || !strings.Contains(err.Error(), "member 2 (host 2)") {
		t.Error(err)
	}
	for _, h := range hosts {
		if s := h.Stats(); s.Open != 0 || s.Memory != 0 {
			t.Errorf("%+v", s)
		}
	}
	spec.Patience = 1 // however little there is
	one := spec
	one.Members = one.Members[:1]
	if f, err := Form(testContext(t), one); err != nil {
		t.Error(err)
	} else if err := f.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	spec.Members[0].Control = nil
	if _, err := Form(testContext(t), spec); err == nil {
		t.Error("nobody to ask")
	}
	for _, n := range []int{0, wire.MaxMembers + 1} {
		if _, err := Form(testContext(t), FormSpec{Members: make([]Member, n)}); err == nil {
			t.Errorf("a group of %d", n)
		}
	}
}

// Windows by members: room for 500 parts at one reducer at most, and 256 of each member.
func TestBitsFor(t *testing.T) {
	for n, window := range map[int]int{1: 256, 2: 256, 3: 128, 4: 128, 5: 64, 8: 64, 9: 32, 16: 32, 17: 16, 32: 16} {
		if got := 1 << bitsFor(n) / 2; got != window {
			t.Errorf("%d members: %d, want %d", n, got, window)
		}
	}
}

// A group whose numbers are used up says so, and no number comes twice.
func TestUsedUp(t *testing.T) {
	l := newLab(t, 1, faults{})
	_, ends := l.form(l.hosts(2, setting{}, kinds["user"]), FormSpec{Patience: patient})
	for _, g := range ends {
		c := &g.(*end).call
		c.next[0], c.next[1] = lastBlock-3, lastBlock-3
	}
	reduce(t, ends, 1000, Sum, false, 1) // three blocks, all of the first member
	reduce(t, ends, 1, Sum, false, 2)
	for _, err := range together(testContext(t), ends, []Vector{{Int32: []int32{1}}, {Int32: []int32{1}}}) {
		if !errors.Is(err, errUsedUp) && !strings.Contains(err.Error(), errUsedUp.Error()) {
			t.Error(err)
		}
	}
}

// Several groups at once, of the same nodes, and calls of one while another is closed.
func TestGroupsApart(t *testing.T) {
	eachKind(t, func(t *testing.T, kernel func(int) bool) {
		l := newLab(t, 1, faults{Lose: 0.02})
		hosts := l.hosts(3, setting{}, kernel)
		var wg sync.WaitGroup
		for i := range 4 {
			f, ends := l.form(hosts, FormSpec{Job: shuffle.JobID{byte(i)}, Secret: [16]byte{byte(i)}})
			wg.Go(func() {
				for k := range 10 {
					c := makeCall(3, 10+700*i, Sum, k%2 == 0, uint64(k))
					for m, err := range together(testContext(t), ends, c.vecs) {
						if err != nil {
							t.Errorf("group %d, member %d: %v", i, m, err)
							return
						}
					}
					c.check(failer{t})
				}
				if err := f.Close(testContext(t)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, h := range hosts {
			if s := h.Stats(); s.Open != 0 || s.Memory != 0 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// failer fails from any goroutine.
type failer struct{ *testing.T }

func (f failer) Fatalf(format string, args ...any) { f.Errorf(format, args...) }
