// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// kernelStage has a target whose one table is there before the first frame.
func kernelStage(t *testing.T, o Options) (*stage, *fakeKernel, *target) {
	k := newFakeKernel(t, 1, nil)
	o.Readers = 1
	s := newStage(t, k.options(o), fold.Sum)
	s.reset(2)
	tg, err := s.r.target(s.job.target(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	return s, k, tg
}

// TestFlipWhereProbesFail has frames go up for want of a place while the table is
// nearly empty: some hashes have more keys than their part of the slots. The next table
// is larger, or, where none may be, spreads each part of the hashes over all of it.
func TestFlipWhereProbesFail(t *testing.T) {
	for _, c := range []struct {
		name      string
		tableBits int
		bits      int
		shift     uint8
	}{
		{"larger", 0, 12, 0},
		{"no larger one", 10, 10, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, k, tg := kernelStage(t, Options{TableBits: c.tableBits, usage: func(*shuffle.Table) (used, pairs uint64) { return 3, 3 }})
			o := s.cut(2, 0, some(5)...)
			s.open(o)
			cell := &k.Memory().Cells[tg.slot]
			place := func() (bits int, shift uint8) {
				s.r.tables.mu.Lock()
				defer s.r.tables.mu.Unlock()
				have := &tg.tables[0]
				return have.table[0].Layout.Bits, have.shift[0]
			}
			if bits, shift := place(); bits != 10 || shift != 0 || s.r.tables.flips.Load() != 0 {
				t.Fatalf("the first table has 2^%d slots and shift %d", bits, shift)
			}
			atomic.AddUint64(&cell.Full, fullShare)
			waitFor(t, "a flip", func() bool { return s.r.tables.flips.Load() == 1 })
			if bits, shift := place(); bits != c.bits || shift != c.shift {
				t.Errorf("the next table has 2^%d slots and shift %d, want 2^%d and %d", bits, shift, c.bits, c.shift)
			}
			if got := cell.Shift[0]; got != c.shift {
				t.Errorf("programs shift by %d", got)
			}
		})
	}
}

// TestTornBeginsAnew has a program apply a part of a frame alone, as far as its cell
// tells: the stream never counts as complete.
func TestTornBeginsAnew(t *testing.T) {
	s, k, tg := kernelStage(t, Options{})
	o := s.cut(2, 0, some(5)...)
	g := s.open(o)
	k.links(t)().send(o.seal(0, g, 1))
	atomic.StoreUint32(&k.Memory().Cells[tg.slot].Torn, 1)
	st, err := s.r.Status(s.ctx, []shuffle.StreamID{o.spec.ID})
	if !errors.Is(err, shuffle.ErrReset) {
		t.Fatalf("status %+v, %v", st, err)
	}
}

// TestFinishSoils finishes a target that only the kernel had touched: from then on a
// process that takes the memory up must not take it for whole.
func TestFinishSoils(t *testing.T) {
	s, k, tg := kernelStage(t, Options{})
	o := s.cut(2, 0, some(5)...)
	g := s.open(o)
	k.links(t)().send(o.seal(0, g, 1))
	waitFor(t, "the stream", func() bool { return s.complete(o) })
	dirty := func() uint32 { return atomic.LoadUint32(&k.Memory().Targets[tg.slot].Dirty) }
	if dirty() != 0 {
		t.Fatal("the target is dirty before anything was drained: the test shows nothing")
	}
	if res := s.result(2, []*output{o}, some(5)); res.Kernel != 5 || s.r.Stats().Kernel[wire.Folded] != 1 {
		t.Errorf("%d pairs were folded in the kernel", res.Kernel)
	}
	if dirty() != 1 {
		t.Error("a target whose tables were drained is not dirty")
	}
}

// watched is a kernel that tells when it is asked to wait.
type watched struct {
	*fakeKernel
	see atomic.Pointer[func()]
}

func (w *watched) Quiesce() error {
	if see := w.see.Load(); see != nil {
		(*see)()
	}
	return w.fakeKernel.Quiesce()
}

// TestSlotIsWrittenBetweenWaits uses a slot again: it stays as it was until programs that
// may have seen its old token are through, and has no token until those are that may
// have seen it half written.
func TestSlotIsWrittenBetweenWaits(t *testing.T) {
	w := &watched{fakeKernel: newFakeKernel(t, 1, nil)}
	o := w.options(Options{Readers: 1})
	o.Kernel = w
	s := newStage(t, o, fold.Sum)
	s.reset(2)
	tg, err := s.r.target(s.job.target(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	// Of a clean target, slots are kept for who takes the memory up.
	atomic.StoreUint32(&w.Memory().Targets[tg.slot].Dirty, 1)
	l := w.links(t)()
	streams := w.Memory().Streams
	for i := range streams {
		o := s.cut(2, uint32(i), some(3)...)
		l.send(o.seal(0, s.open(o), 1))
		waitFor(t, "a stream", func() bool { return s.complete(o) })
		if err := s.r.Confirm(s.ctx, []shuffle.StreamID{o.spec.ID}); err != nil {
			t.Fatal(err)
		}
	}
	type slot struct {
		token, seen uint64
		frames      uint32
	}
	var waits [][]slot
	see := func() {
		all := make([]slot, len(streams))
		for i := range streams {
			all[i] = slot{atomic.LoadUint64(&streams[i].Token), atomic.LoadUint64(&streams[i].Seen[0]), streams[i].Frames}
		}
		waits = append(waits, all)
	}
	w.see.Store(&see)
	long := s.cut(2, 1000, some(500)...)
	g := s.open(long)
	w.see.Store(nil)
	if len(waits) != 2 {
		t.Fatalf("%d waits, want two", len(waits))
	}
	if got := waits[0][g.Slot]; got != (slot{0, 1, 1}) {
		t.Errorf("before the first wait the slot is %+v, want what the stream before has left, without its token", got)
	}
	if got := waits[1][g.Slot]; got != (slot{0, 0, uint32(len(long.frames))}) {
		t.Errorf("before the second wait the slot is %+v, want it written, without a token", got)
	}
	if got := atomic.LoadUint64(&streams[g.Slot].Token); got != g.Token || got == 0 {
		t.Errorf("then its token is %#x, want %#x", got, g.Token)
	}
}
