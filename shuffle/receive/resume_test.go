// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// firstUp sends its first frame, which finds no table, and the rest once user space has folded it: a frame that is sent again
// before may find a table, so that programs fold all of a stream.
type firstUp struct {
	link
	r *Receiver
}

func (l *firstUp) send(frame []byte) {
	l.link.send(frame)
	for end := time.Now().Add(time.Minute); l.r != nil && l.r.Stats().Reasons[wire.Folded] == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	l.r = nil
}

// TestResume ends a receiver in mid-stream and has another one take its memory
// up. What only the kernel had touched goes on; all else is sent again. Nothing
// is lost or counted twice.
func TestResume(t *testing.T) {
	for _, c := range []struct {
		name    string
		ops     []fold.Op
		longest int
		keys    uint64
		confirm bool                // the first stream is confirmed before the end
		damage  func(k *fakeKernel) // of the memory, between the two
		opts    func(o *Options)    // of both
		kept    bool                // the target goes on
		before  func(k *fakeKernel) // before anything is sent
	}{
		{name: "clean", longest: 16, keys: 4000, kept: true},
		{name: "confirmed", longest: 16, keys: 4000, confirm: true, kept: true},
		{name: "lanes", ops: mixed, longest: 64, keys: 4000, confirm: true, kept: true},
		{name: "userHadSome", longest: 100, keys: 4000, confirm: true},
		{name: "noTableAtFirst", longest: 16, confirm: true},
		{name: "flipped", longest: 8, keys: 600, opts: func(o *Options) { o.TableBits = 10 }, confirm: true},
		{name: "torn", longest: 16, keys: 4000, confirm: true, damage: func(k *fakeKernel) {
			for i := range k.Memory().Cells {
				if k.Memory().Cells[i].Frames > 0 {
					atomic.StoreUint32(&k.Memory().Cells[i].Torn, 1)
					return
				}
			}
		}},
		{name: "tableLost", longest: 16, keys: 4000, confirm: true, damage: func(k *fakeKernel) {
			for _, tab := range k.list {
				if headOf(tab).Pairs > 0 {
					k.list = slices.DeleteFunc(k.list, func(o *shuffle.Table) bool { return o == tab })
					return
				}
			}
		}},
		{name: "endedWhileOpening", longest: 16, keys: 4000, kept: true, damage: func(k *fakeKernel) {
			// A slot that was being written: no token, no state, rubbish in it.
			s := &k.Memory().Streams[40]
			for i := range s.Seen {
				s.Seen[i] = ^uint64(0)
			}
			s.Frames, s.Target, s.Generation = 5, 15, 1
		}},
		{name: "anothersStream", longest: 16, keys: 4000, kept: true, damage: func(k *fakeKernel) {
			// A stream of a target that had the same place before, and was not forgotten in time.
			m := k.Memory()
			for i := range m.Streams {
				if m.Streams[i].Spare[0] == slotOpen {
					m.Streams[40] = m.Streams[i]
					m.Streams[40].ID[1]++
					m.Streams[40].ID[2] = 2 << 32
					return
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 6))
			ctx := testContext(t)
			k := newFakeKernel(t, 2, nil)
			opts := Options{TempDir: t.TempDir()}
			if c.opts != nil {
				c.opts(&opts)
			}
			first, err := New(k.options(opts))
			if err != nil {
				t.Fatal(err)
			}
			ops := c.ops
			if ops == nil {
				ops = []fold.Op{fold.Sum}
			}
			w := newWork(rng, ops, amounts{maps: 3, parts: 1, pairs: 1500, keySpace: 4000, longest: c.longest})
			for i := range w.keys {
				w.keys[i] = c.keys
			}
			w.open(ctx, t, first)
			links := k.links(t)
			// One stream whole, one in half, one not at all.
			one, two := w.outputs[0][0], w.outputs[0][1]
			if c.confirm {
				l := links()
				if c.keys == 0 {
					l = &firstUp{l, first}
				}
				if err := push(ctx, first, one, nil, l); err != nil {
					t.Fatal(err)
				}
			}
			grants, err := first.Open(ctx, []shuffle.StreamSpec{two.spec})
			if err != nil {
				t.Fatal(err)
			}
			half := len(two.frames) / 2
			skip := make([]uint32, (len(two.frames)+31)/32)
			for i := half; i < len(two.frames); i++ {
				skip[i/32] |= 1 << (i % 32)
			}
			two.sendAll(grants[0], skip, nil, links())
			if err := first.Release(); err != nil {
				t.Fatal(err)
			}
			// The programs go on without user space.
			late := two.seal(half, grants[0], 7)
			links().send(late)
			if c.damage != nil {
				c.damage(k)
			}
			k.resumed = true
			dirty := false
			for i := range k.Memory().Targets {
				dirty = dirty || k.Memory().Targets[i].Dirty != 0
			}

			second := testReceiver(t, k.options(opts))
			links().send(two.seal(half+1, grants[0], 7)) // its token is over
			if kept := len(second.targets) == 1; kept != c.kept {
				t.Fatalf("the target was kept: %v (dirty: %v)", kept, dirty)
			}
			if up := second.TakenUp(); (len(up) == 1) != c.kept {
				t.Errorf("jobs taken up: %v", up)
			}
			if _, err := second.Open(ctx, []shuffle.StreamSpec{two.spec}); err == nil {
				t.Error("a stream of a job that is not open again was opened")
			}
			w.open(ctx, t, second)
			grants, err = second.Open(ctx, []shuffle.StreamSpec{one.spec, two.spec})
			if err != nil {
				t.Fatal(err)
			}
			if done := c.kept && c.confirm; grants[0].Done != done {
				t.Errorf("the first stream is done: %v, want %v", grants[0].Done, done)
			}
			claimed := 0
			for i := range two.frames {
				if grants[1].Claimed != nil && grants[1].Claimed[i/32]>>(i%32)&1 != 0 {
					claimed++
				}
			}
			want := 0
			if c.kept {
				want = half + 1
			}
			if claimed != want {
				t.Errorf("%d frames of the second stream are claimed, want %d", claimed, want)
			}
			w.pushAll(ctx, t, rng, second, faults{double: .2, reorder: 1}, links)
			all := w.finish(ctx, t, second)
			t.Logf("%+v", all)
		})
	}
}

// TestResumeReclaims has slots of confirmed streams run short: they are used
// again, and the target begins anew after a restart instead of losing them.
func TestResumeReclaims(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	ctx := testContext(t)
	k := newFakeKernel(t, 1, nil)
	opts := Options{TempDir: t.TempDir()}
	first, err := New(k.options(opts))
	if err != nil {
		t.Fatal(err)
	}
	// 64 slots; 70 streams one after the other.
	w := newWork(rng, []fold.Op{fold.Sum}, amounts{maps: 70, parts: 1, pairs: 20, keySpace: 500, longest: 8})
	w.keys[0] = 500
	w.open(ctx, t, first)
	l := k.links(t)()
	for i, o := range w.outputs[0] {
		if err := push(ctx, first, o, nil, l); err != nil {
			t.Fatal(err)
		}
		if dirty := k.Memory().Targets; i == 60 && slices.ContainsFunc(dirty, func(t wire.Target) bool { return t.Dirty != 0 }) {
			t.Fatal("the target is dirty before slots are short: the test shows nothing")
		}
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	k.resumed = true
	second := testReceiver(t, k.options(opts))
	w.open(ctx, t, second)
	w.pushAll(ctx, t, rng, second, faults{}, k.links(t))
	if all := w.finish(ctx, t, second); all.Sent == 0 {
		t.Error("nothing was sent")
	}
}
