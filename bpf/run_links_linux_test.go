// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// links takes the links of a set apart: a frame stops behind pass one, and is
// given to pass two by hand, so that things can happen between the two.
type links struct {
	w       *twins
	flow    *flow
	tables  [2]*twinTable
	find    *ebpf.Program
	apply   *ebpf.Program
	applyAt uint32
	before  [wire.Reasons]uint64
}

// TestRunLinks runs what is to be said about single links with one set of programs.
func TestRunLinks(t *testing.T) {
	w := newTwins(t)
	w.reset()
	for name, fn := range map[string]func(*testing.T, *links){
		"flip between links": flipBetweenLinks,
		"lost claim":         lostClaim,
		"passed up halfway":  passedUpHalfway,
		"torn":               tornFrame,
		"missing":            linksMissing,
		"key lengths":        keyLengths,
		"claim race":         claimRace,
	} {
		w.sub(t, name, func(t *testing.T) { fn(t, newLinks(w)) })
	}
}

func newLinks(w *twins) *links {
	w.reset()
	l := &links{w: w, tables: [2]*twinTable{w.table(damageLayout, 0), w.table(damageLayout, 1)}}
	l.flow = w.open(1, 0, damageShape, wire.PackOps(wire.OpSum, wire.OpMax), l.tables[0], 0)
	id, set := w.rig.set(damageLayout)
	names := setNames(damageLayout)
	l.find, l.apply, l.applyAt = set.programs[names[0]], set.programs[names[1]], uint32(chainSets+4*id+1)
	l.before = l.reasons()
	return l
}

// halfway lets a frame come as far as pass two, and returns it.
func (l *links) halfway(frame []byte) []byte {
	r := l.w.rig
	r.t.Helper()
	r.check(r.maps["chain"].Delete(l.applyAt))
	verdict, out := r.run(packetOf(frame, false).Bytes)
	r.check(r.maps["chain"].Put(l.applyAt, l.apply))
	if verdict != uint32(model.Pass) {
		r.t.Fatalf("verdict %v without a second link", model.Verdict(verdict))
	}
	return bytes.Clone(out)
}

// reasons returns how often programs ended for each reason since newLinks.
func (l *links) reasons() [wire.Reasons]uint64 {
	l.w.rig.t.Helper()
	r, err := l.w.rig.Reasons()
	l.w.rig.check(err)
	for i := range r {
		r[i] -= l.before[i]
	}
	return r
}

// values returns what a table holds.
func (l *links) values(i int) map[string]string {
	all, err := model.Drain(l.tables[i].kernel.Memory, damageLayout.Class, damageLayout.Lanes, l.flow.ops)
	l.w.rig.check(err)
	out := map[string]string{}
	for k, v := range all {
		out[k] = v[0].String() + " " + v[1].String()
	}
	return out
}

// A frame between two links goes on into the table that it began with, though its cell names
// another by then.
func flipBetweenLinks(t *testing.T, l *links) {
	rng := rand.New(rand.NewPCG(1, 1))
	for seq := range uint32(20) {
		l.flow.keys = 1000 * int(seq%2) // each table has keys of its own
		packet := l.halfway(l.flow.frame(rng, seq, 20, 20, 0, false))
		l.w.place(0, 1, l.tables[(seq+1)%2], 0)
		if verdict, _ := l.w.rig.runProgram(l.apply, packet); verdict != uint32(model.Drop) {
			t.Fatalf("verdict %v", model.Verdict(verdict))
		}
	}
	pairs := uint64(0)
	for i, table := range l.tables {
		head := wire.TableOf(table.kernel.Memory)
		if head.Used != 20 || head.Used != uint64(len(l.values(i))) {
			t.Errorf("table %d has %d slots in use, and values in %d: pairs were applied to the other table", i, head.Used, len(l.values(i)))
		}
		pairs += head.Pairs
	}
	if pairs != 400 || l.reasons()[wire.Folded] != 20 {
		t.Errorf("%d pairs, reasons %v", pairs, l.reasons())
	}
}

// A frame that user space claims while it is between two links is counted by user
// space alone, and leaves no result behind.
func lostClaim(t *testing.T, l *links) {
	rng := rand.New(rand.NewPCG(1, 2))
	for seq := range uint32(4) {
		ack := seq%2 == 1
		packet := l.halfway(l.flow.frame(rng, seq, 20, 60, 0, ack))
		if !l.w.rig.memory.Streams[1].ClaimUser(seq) {
			t.Fatal("the frame was claimed before pass two")
		}
		verdict, out := l.w.rig.runProgram(l.apply, packet)
		if want := map[bool]model.Verdict{false: model.Drop, true: model.TX}[ack]; verdict != uint32(want) {
			t.Fatalf("verdict %v, not %v", model.Verdict(verdict), want)
		}
		if ack {
			if _, body, err := wire.ParseAck(model.PayloadOf(out)); err != nil || body.Claimed[0] != 1<<(seq+1)-1 {
				t.Fatalf("answer %+v, %v", body, err)
			}
		}
	}
	head := wire.TableOf(l.tables[0].kernel.Memory)
	if n := len(l.values(0)); n != 0 || head.Used == 0 || head.Pairs != 0 {
		t.Errorf("%d results, %d slots in use, %d pairs", n, head.Used, head.Pairs)
	}
	if r := l.reasons(); r[wire.LostClaim] != 4 || r[wire.Folded] != 0 || r[wire.Answered] != 2 {
		t.Errorf("reasons %v", r)
	}
}

// A frame that is passed up between two links is whole: user space makes its hashes anew,
// and finds the tag right.
func passedUpHalfway(t *testing.T, l *links) {
	rng := rand.New(rand.NewPCG(1, 3))
	frame := l.flow.frame(rng, 3, 20, 60, 0, false)
	packet := l.halfway(frame)
	if packet[40] != 0 || packet[41] != 0 {
		t.Error("the packet was rewritten and has a UDP checksum")
	}
	got := bytes.Clone(model.PayloadOf(packet))
	if bytes.Equal(got[wire.HeadSize:], frame[wire.HeadSize:]) {
		t.Fatal("pass one has rewritten nothing")
	}
	for i := range int(frame[6]) {
		p := got[wire.HeadSize+i*damageShape.PairSize():][:damageShape.PairSize()]
		n := int(le.Uint32(p)&127) - 1
		le.PutUint32(p, wire.Meta(twinSeed.HashBytes(p[4+8:][:n]), n))
	}
	if !l.flow.tags.OpenData(got) || !bytes.Equal(got[wire.HeadSize:], frame[wire.HeadSize:]) {
		t.Error("the frame is another than that which was sent")
	}
	if r := l.reasons(); r[wire.UpChain] != 1 || l.w.rig.memory.Streams[1].Seen != ([wire.SeenWords]uint64{}) {
		t.Errorf("reasons %v, or the frame is claimed", r)
	}
}

// What can't be applied once it is claimed marks the cell: its target is to begin anew.
func tornFrame(t *testing.T, l *links) {
	rng := rand.New(rand.NewPCG(1, 4))
	packet := l.halfway(l.flow.frame(rng, 3, 20, 60, 0, true))
	// Nobody but pass one writes slot numbers; this one is beyond the table.
	le.PutUint32(packet[42+wire.HeadSize+7*damageShape.PairSize():], (1<<damageLayout.Bits+wire.Probes)<<7|10)
	verdict, _ := l.w.rig.runProgram(l.apply, packet)
	cell := l.w.rig.memory.Cells[0]
	if r := l.reasons(); verdict != uint32(model.Drop) || cell.Torn != 1 || r[wire.Torn] != 1 || r[wire.Folded] != 0 || cell.Frames != 0 {
		t.Errorf("verdict %v, cell %+v, reasons %v", model.Verdict(verdict), cell, r)
	}
	if !l.w.rig.memory.Streams[1].Claimed(3) {
		t.Error("the frame is not claimed")
	}
}

// A table that a cell names, and that is not there, or whose set has no programs for this shape, lets frames go up.
func linksMissing(t *testing.T, l *links) {
	rng := rand.New(rand.NewPCG(1, 5))
	for name, id := range map[string]shuffle.TableID{
		"no such table":        60,
		"no such set":          9 << 24,
		"set beyond the chain": 255 << 24,
	} {
		l.w.rig.memory.Cells[0].SetPlace(1, uint32(id)+1, 0)
		before := l.reasons()
		verdict, out := l.w.rig.run(packetOf(l.flow.frame(rng, 3, 20, 60, 0, true), false).Bytes)
		if after := l.reasons(); verdict != uint32(model.Pass) || after[wire.UpChain] != before[wire.UpChain]+1 {
			t.Errorf("%s: verdict %v, reasons %v", name, model.Verdict(verdict), after)
		}
		if !l.flow.tags.OpenData(model.PayloadOf(out)) {
			t.Errorf("%s: the frame was changed", name)
		}
	}
	// A set of another shape than the frame's: a bug of user space, which must not mix up tables.
	other := shuffle.TableLayout{Class: 0, Lanes: 1, Bits: 6}
	l.w.place(0, 1, l.w.table(other, 0), 0)
	if verdict, _ := l.w.rig.run(packetOf(l.flow.frame(rng, 4, 20, 60, 0, true), false).Bytes); verdict != uint32(model.Pass) {
		t.Errorf("verdict %v of a frame whose cell names a table of another shape", model.Verdict(verdict))
	}
	if table := l.w.table(other, 0).kernel.Memory; !bytes.Equal(table, make([]byte, len(table))) {
		t.Error("pairs of one shape were put into a table of another")
	}
}

// A key's length that does not belong to the class takes no slot, whatever the tag says.
func keyLengths(t *testing.T, l *links) {
	rng := rand.New(rand.NewPCG(1, 6))
	for length := range uint32(128) {
		frame := l.flow.frame(rng, length, 1, 5, 0, false)
		meta := le.Uint32(frame[wire.HeadSize:])
		le.PutUint32(frame[wire.HeadSize:], meta&^127|length)
		l.flow.tags.SealData(frame)
		used := wire.TableOf(l.tables[0].kernel.Memory).Used
		verdict, _ := l.w.rig.run(packetOf(frame, false).Bytes)
		// Class 1 holds keys of 9 to 16 bytes.
		fits := length >= 9+1 && length <= 16+1
		if want := map[bool]model.Verdict{true: model.Drop, false: model.Pass}[fits]; verdict != uint32(want) {
			t.Errorf("a key of %d bytes: verdict %v, not %v", int(length)-1, model.Verdict(verdict), want)
		}
		if now := wire.TableOf(l.tables[0].kernel.Memory).Used; !fits && now != used {
			t.Errorf("a key of %d bytes took a slot", int(length)-1)
		}
	}
	// No hash, no length and no key look like a free slot.
	frame := l.flow.frame(rng, 200, 1, 5, 0, false)
	clear(frame[wire.HeadSize:])
	l.flow.tags.SealData(frame)
	if verdict, _ := l.w.rig.run(packetOf(frame, false).Bytes); verdict != uint32(model.Pass) {
		t.Errorf("a pair of zeros: verdict %v", model.Verdict(verdict))
	}
	if n := wire.TableOf(l.tables[0].kernel.Memory).Pairs; n != 8 {
		t.Errorf("%d pairs were applied", n)
	}
	if r := l.reasons(); r[wire.UpFull] != 121 || r[wire.Folded] != 8 {
		t.Errorf("reasons %v", r)
	}
}

// Programs and user space claim the same frames at the same time: each frame is
// claimed by one of them. Pass two runs on two CPUs here, which share no table.
func claimRace(t *testing.T, l *links) {
	w := l.w
	cpus := min(2, w.rig.cpus)
	for cpu := range cpus {
		w.rig.memory.Cells[cpu].SetPlace(1, uint32(l.tables[cpu].kernel.ID)+1, 0)
	}
	rng := rand.New(rand.NewPCG(1, 7))
	const frames = 2000
	var packets [][]byte
	for seq := range uint32(frames) {
		packets = append(packets, packetOf(l.flow.frame(rng, seq, 1, 5, 0, false), false).Bytes)
	}
	stream := &w.rig.memory.Streams[1]
	folded := make([]int, cpus)
	user := 0
	var at atomic.Uint32
	var wg sync.WaitGroup
	for cpu := range cpus {
		wg.Go(func() {
			runtime.LockOSThread() // not unlocked: the thread ends with its affinity
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				t.Error(err)
				return
			}
			for i, packet := range packets {
				at.Store(uint32(i))
				if _, err := w.rig.programs["quern_dispatch"].Run(&ebpf.RunOptions{Data: packet}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		// Always a little ahead of the programs.
		for seq := uint32(0); seq+8 < frames; seq = at.Load() {
			if stream.ClaimUser(seq + 1 + uint32(user%7)) {
				user++
			}
		}
	})
	wg.Wait()
	for cpu := range cpus {
		folded[cpu] = int(w.rig.memory.Cells[cpu].Frames)
	}
	sum := user
	for _, n := range folded {
		sum += n
	}
	high := 0
	for seq := range uint32(frames) {
		if !stream.Claimed(seq) {
			t.Fatalf("frame %d is not claimed", seq)
		}
		if stream.Seen[seq/32]>>(32+seq%32)&1 != 0 {
			high++
		}
	}
	if sum != frames || high != user {
		t.Errorf("%d frames were folded %d times: by CPUs %v, by user space %d (%d marked)", frames, sum, folded, user, high)
	}
	t.Logf("CPUs %v, user space %d", folded, user)
}
