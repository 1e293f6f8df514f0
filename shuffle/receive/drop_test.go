// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
)

// TestDropTarget frees a target's place while its job goes on.
func TestDropTarget(t *testing.T) {
	s := newStage(t, Options{Readers: 1, Limits: shuffle.Limits{Targets: 1}}, fold.Sum)
	other := s.job.target(1, 5)
	if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: other}); !errors.Is(err, shuffle.ErrBusy) {
		t.Fatalf("a second target: %v", err)
	}
	o := s.cut(1, 0, some(500)...)
	if err := push(s.ctx, s.r, o, nil, s.link); err != nil {
		t.Fatal(err)
	}
	if err := s.r.DropTarget(s.ctx, s.job.target(0, 0)); err != nil || !s.complete(o) {
		t.Errorf("an earlier generation was dropped: %v", err)
	}
	for range 2 { // again does nothing
		if err := s.r.DropTarget(s.ctx, s.job.target(0, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.r.Status(s.ctx, []shuffle.StreamID{o.spec.ID}); !errors.Is(err, shuffle.ErrUnknown) {
		t.Errorf("a stream of a target that was dropped: %v", err)
	}
	if err := s.r.OpenTarget(s.ctx, shuffle.TargetSpec{ID: other}); err != nil {
		t.Fatal(err)
	}
	if err := s.r.DropTarget(s.ctx, s.job.target(1, 6)); err != nil {
		t.Fatal(err)
	}
	s.target(1)
	if n := s.user(1); n != 0 {
		t.Errorf("the new target holds %d pairs", n)
	}
}

// TestEachCarried reads sums beyond 64 bits.
func TestEachCarried(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum, fold.Max)
	pairs := uint64(0)
	want := new(big.Int)
	for i := range 5 {
		o := s.cut(1, uint32(i), pair{"k", []int64{math.MaxInt64, int64(i)}}, pair{"l", []int64{1, 7}})
		pairs += o.spec.Pairs
		want.Add(want, big.NewInt(math.MaxInt64))
		if err := push(s.ctx, s.r, o, nil, s.link); err != nil {
			t.Fatal(err)
		}
	}
	res, err := s.r.Finish(s.ctx, s.job.target(0, 1), Expect{Streams: 5, Pairs: pairs})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	got := map[string]string{}
	for rng := range res.Ranges() {
		err := res.EachCarried(s.ctx, rng, func(key []byte, lanes, carry []int64) error {
			v := big.NewInt(lanes[0])
			if carry != nil {
				v.Add(v, new(big.Int).Lsh(big.NewInt(carry[0]), 64))
			}
			got[string(key)] = fmt.Sprint(v, lanes[1])
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || got["k"] != fmt.Sprint(want, 4) || got["l"] != "5 7" {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRefusals are what a sender must not repeat for ever, TestControl has others.
func TestRefusals(t *testing.T) {
	s := newStage(t, Options{Readers: 1}, fold.Sum)
	o := s.cut(1, 0, some(10)...)
	g := s.open(o)
	bad := append([]byte(nil), o.seal(0, g, 7)...)
	bad[len(bad)-1] ^= 1
	changed := s.cut(1, 0, some(11)...)
	spec := s.job.spec
	spec.Mode = shuffle.UserOnly
	lanes := s.cut(1, 1, some(10)...)
	lanes.spec.Check = []uint64{1, 2}
	none := newJob(rand.New(rand.NewPCG(1, 1)))
	for name, err := range map[string]error{
		"damaged frame":   s.r.Deliver(s.ctx, o.spec.ID, [][]byte{bad}),
		"no frame":        s.r.Deliver(s.ctx, o.spec.ID, [][]byte{{1, 2, 3}}),
		"other frames":    second(s.r.Open(s.ctx, []shuffle.StreamSpec{changed.spec})),
		"other mode":      s.r.OpenJob(s.ctx, spec),
		"other lanes":     second(s.r.Open(s.ctx, []shuffle.StreamSpec{lanes.spec})),
		"job of no lanes": s.r.OpenJob(s.ctx, none.spec),
	} {
		if !errors.Is(err, shuffle.ErrRefused) || errors.Is(err, shuffle.ErrReset) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is over is no refusal: it may be asked for again, in another way.
	s.target(2)
	if _, err := s.r.Open(s.ctx, []shuffle.StreamSpec{o.spec}); !errors.Is(err, shuffle.ErrReset) || errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("an earlier generation: %v", err)
	}
	// A target whose fold has failed is refused until it is begun anew.
	o = s.cut(2, 0, some(10)...)
	s.open(o)
	s.r.mu.Lock()
	tg, err := s.r.target(s.job.target(0, 2))
	s.r.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	tg.mu.Lock()
	tg.fail(errors.New("disk full"))
	tg.mu.Unlock()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if err := s.r.Deliver(ctx, o.spec.ID, [][]byte{o.seal(0, g, 7)}); !errors.Is(err, shuffle.ErrRefused) {
		t.Errorf("a fold that failed: %v", err)
	}
}

// TestUserMode has the kernel fold one job and leave another to user space.
func TestUserMode(t *testing.T) {
	ctx := testContext(t)
	k := newFakeKernel(t, 2, nil)
	r := testReceiver(t, k.options(Options{Readers: 1}))
	links := k.links(t)
	for _, mode := range []shuffle.Mode{shuffle.Auto, shuffle.UserOnly} {
		ops := []fold.Op{fold.Sum}
		j := newJob(rand.New(rand.NewPCG(3, uint64(mode))), ops...)
		j.spec.Mode = mode
		o := j.cut(shuffle.StreamID{Target: j.target(0, 1)}, some(2000))
		if err := r.OpenJob(ctx, j.spec); err != nil {
			t.Fatal(err)
		}
		if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: j.target(0, 1), Keys: [5]uint64{2000}}); err != nil {
			t.Fatal(err)
		}
		if err := push(ctx, r, o, nil, links()); err != nil {
			t.Fatal(err)
		}
		res, err := r.Finish(ctx, j.target(0, 1), Expect{Streams: 1, Pairs: o.spec.Pairs})
		if err != nil {
			t.Fatal(err)
		}
		if (res.Kernel > 0) != (mode == shuffle.Auto) {
			t.Errorf("mode %s: %d pairs folded in the kernel, %d in user space", mode, res.Kernel, res.User)
		}
		w := newOracle(ops)
		w.add(some(2000))
		if err := w.check(ctx, res); err != nil {
			t.Error(err)
		}
		if err := res.Close(); err != nil {
			t.Error(err)
		}
	}
}
