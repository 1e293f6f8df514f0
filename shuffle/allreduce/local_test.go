// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// together calls at all ends at once and returns their errors.
func together(ctx context.Context, ends []Group, vecs []Vector) []error {
	errs := make([]error, len(ends))
	var wg sync.WaitGroup
	for i, g := range ends {
		wg.Go(func() { errs[i] = g.Reduce(ctx, vecs[i]) })
	}
	wg.Wait()
	return errs
}

func TestLocalSmall(t *testing.T) {
	ends := Local(3)
	a, b, c := []int32{1, -5, 1 << 30}, []int32{2, 7, 1 << 30}, []int32{3, 0, 1 << 30}
	for _, tc := range []struct {
		op   Op
		want []int32
	}{
		{Sum, []int32{6, 2, -1 << 30}}, // 3 x 2^30 wraps to -2^30
		{Min, []int32{1, -5, 1 << 30}},
		{Max, []int32{3, 7, 1 << 30}},
	} {
		got := [][]int32{slices.Clone(a), slices.Clone(b), slices.Clone(c)}
		errs := together(t.Context(), ends, []Vector{{Op: tc.op, Int32: got[0]}, {Op: tc.op, Int32: got[1]}, {Op: tc.op, Int32: got[2]}})
		for i := range got {
			if errs[i] != nil || !slices.Equal(got[i], tc.want) {
				t.Errorf("%s at member %d: %v, want %v: %v", tc.op, i, got[i], tc.want, errs[i])
			}
		}
	}
	if len(Local(0)) != 0 || len(Local(-1)) != 0 {
		t.Error("a group of nobody")
	}
}

// Any vectors, in any number of calls one after the other, come out as they do by plain addition.
func TestLocalRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "members")
		ends := Local(n)
		for range rapid.IntRange(1, 4).Draw(t, "calls") {
			c := drawCall(t, n)
			for i, err := range together(context.Background(), ends, c.vecs) {
				if err != nil {
					t.Fatalf("member %d: %v", i, err)
				}
			}
			c.check(t)
		}
	})
}

func TestLocalBreaks(t *testing.T) {
	gone, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("the user went home")
	cancel(cause)
	for name, tc := range map[string]struct {
		do    func(g Group) error // what member 1 does while member 0 waits
		other string              // is told to member 0
		own   error
	}{
		"length":       {func(g Group) error { return AllReduce(t.Context(), g, Sum, make([]int32, 4)) }, "called with 4 int32 to sum, member 0 with 3 int32 to sum", nil},
		"width":        {func(g Group) error { return AllReduce(t.Context(), g, Sum, make([]int64, 3)) }, "3 int64 to sum", nil},
		"operation":    {func(g Group) error { return AllReduce(t.Context(), g, Max, make([]int32, 3)) }, "3 int32 to max", nil},
		"no operation": {func(g Group) error { return AllReduce(t.Context(), g, 3, make([]int32, 3)) }, "operation 3", nil},
		"both": {func(g Group) error {
			return g.Reduce(t.Context(), Vector{Int32: make([]int32, 3), Int64: make([]int64, 1)})
		}, "both", nil},
		"context": {func(g Group) error { return AllReduce(gone, g, Sum, make([]int32, 3)) }, "gave up: context canceled: the user went home", cause},
		"an empty one more": {func(g Group) error {
			return errors.Join(AllReduce(t.Context(), g, Sum, []int32{}), AllReduce(t.Context(), g, Sum, make([]int32, 3)))
		}, "is in its call 2, member 0 in call 1", nil},
		"close": {func(g Group) error {
			err := g.Close()
			return errors.Join(err, AllReduce(t.Context(), g, Sum, make([]int32, 3)))
		}, "has left", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ends := Local(3)
			told := make(chan error)
			for _, i := range []int{0, 2} {
				if i == 2 {
					waitFor(t, func() bool { l := ends[0].(*localMember); l.group.mu.Lock(); defer l.group.mu.Unlock(); return l.waits })
				}
				go func() { told <- AllReduce(context.Background(), ends[i], Sum, make([]int32, 3)) }()
			}
			waitFor(t, func() bool { l := ends[2].(*localMember); l.group.mu.Lock(); defer l.group.mu.Unlock(); return l.waits })
			own := tc.do(ends[1])
			if !errors.Is(own, ErrBroken) || tc.own != nil && !(errors.Is(own, tc.own) && errors.Is(own, context.Canceled)) {
				t.Errorf("member 1 is told %v", own)
			}
			for range 2 {
				err := <-told
				var m *MemberError
				if !errors.As(err, &m) || m.Rank != 1 || !errors.Is(err, ErrBroken) || errors.Is(err, cause) || !strings.Contains(err.Error(), tc.other) {
					t.Errorf("the others are told %v, want %q", err, tc.other)
				}
			}
			for i, g := range ends {
				if err := AllReduce(t.Context(), g, Sum, make([]int32, 3)); !errors.Is(err, ErrBroken) {
					t.Errorf("member %d, later: %v", i, err)
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A second call at one end breaks the group, and the first one learns.
func TestLocalTwice(t *testing.T) {
	ends := Local(2)
	first := make(chan error)
	go func() { first <- AllReduce(context.Background(), ends[0], Sum, []int32{1}) }()
	waitFor(t, func() bool { l := ends[0].(*localMember); l.group.mu.Lock(); defer l.group.mu.Unlock(); return l.waits })
	if err := AllReduce(t.Context(), ends[0], Sum, []int32{1}); !errors.Is(err, ErrBroken) {
		t.Error(err)
	}
	if err := <-first; !errors.Is(err, ErrBroken) {
		t.Error(err)
	}
}

// Contexts that end and ends that are closed while calls are under way: every call either succeeds and is right or is an
// error, and none stays.
func TestLocalRaces(t *testing.T) {
	for round := range 200 {
		n, size := 2+round%4, 1+round%3*4000
		ends := Local(n)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i, g := range ends {
			wg.Go(func() {
				for call := range 50 {
					v := make([]int64, size)
					for k := range v {
						v[k] = int64(call + k + i)
					}
					if err := AllReduce(ctx, g, Sum, v); err != nil {
						if !errors.Is(err, ErrBroken) {
							t.Error(err)
						}
						return
					}
					for k := range v {
						if want := int64(n*(call+k) + n*(n-1)/2); v[k] != want {
							t.Errorf("call %d: value %d is %d, want %d", call, k, v[k], want)
							return
						}
					}
				}
			})
		}
		time.Sleep(time.Duration(round) * time.Microsecond)
		if round%2 == 0 {
			cancel()
		} else {
			_ = ends[round%n].Close()
		}
		wg.Wait()
		cancel()
	}
}

// Nothing is allocated but at the start.
func TestLocalAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, size := range []int{10, 20000} {
		ends := Local(2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			v := make([]int32, size)
			for ends[1].Reduce(ctx, Vector{Int32: v}) == nil {
			}
		}()
		v := make([]int32, size)
		if got := testing.AllocsPerRun(100, func() {
			if err := ends[0].Reduce(ctx, Vector{Int32: v}); err != nil {
				t.Error(err)
			}
		}); got != 0 {
			t.Errorf("%v allocations a call of %d values", got, size)
		}
		cancel()
		<-done
	}
}

func BenchmarkLocal(b *testing.B) {
	for name, size := range map[string]int{"16": 16, "64Ki": 1 << 16} {
		b.Run(name, func(b *testing.B) {
			ends := Local(2)
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.SetBytes(int64(8 * size))
			for _, g := range ends {
				wg.Go(func() {
					v := make([]int64, size)
					for range b.N {
						if err := AllReduce(context.Background(), g, Sum, v); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
