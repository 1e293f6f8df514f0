// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// twins are the programs and the reference model, which are given the same
// packets and must do the same with them, byte for byte.
type twins struct {
	t      reporter
	rig    *rig
	model  *model.Host
	tables map[shuffle.TableLayout][2]*twinTable
	tags   [2]*wire.Tags
	answer wire.AnswerMode
	ahead  [wire.Reasons]uint64 // reasons that programs had counted beyond the model's at the last reset
}

type twinTable struct{ kernel, model *shuffle.Table }

const (
	twinStreams  = 6
	twinTargets  = 3
	twinOutgoing = 4
	twinCPU      = 0
)

var twinSeed = pairs.Seed{A: 0x9e3779b97f4a7c15, B: 0xd1b54a32d192ed03}

func newTwins(t testing.TB) *twins {
	t.Helper()
	limits := shuffle.Limits{Streams: twinStreams, Targets: twinTargets, Outgoing: twinOutgoing, Jobs: 2}
	r := newRig(t, limits)
	onCPU(t, twinCPU)
	w := &twins{
		t: t, rig: r,
		model:  model.NewHost(model.Config{Limits: limits, CPUs: r.cpus}),
		tables: map[shuffle.TableLayout][2]*twinTable{},
	}
	for i := range w.tags {
		w.tags[i] = wire.NewTags([16]byte{byte(i + 1)})
		r.check(r.SetJob(i, w.tags[i].Job()))
		r.check(w.model.SetJob(i, w.tags[i].Job()))
	}
	return w
}

// sub runs a part of a test, which has a goroutine of its own, on the CPU that cells are for.
func (w *twins) sub(t *testing.T, name string, fn func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		onCPU(t, twinCPU)
		before := w.t
		w.t, w.rig.t = t, t
		defer func() { w.t, w.rig.t = before, before }()
		fn(t)
	})
}

// table returns one of a layout's two tables.
func (w *twins) table(layout shuffle.TableLayout, i int) *twinTable {
	w.t.Helper()
	if _, ok := w.tables[layout]; !ok {
		k, err := w.rig.NewTables(layout, 2)
		w.rig.check(err)
		m, err := w.model.NewTables(layout, 2)
		w.rig.check(err)
		for i := range k {
			if k[i].ID != m[i].ID {
				w.t.Fatalf("table %#x is %#x to the model", k[i].ID, m[i].ID)
			}
		}
		w.tables[layout] = [2]*twinTable{{k[0], m[0]}, {k[1], m[1]}}
	}
	return w.tables[layout][i]
}

// both calls fn for the memory of programs and model.
func (w *twins) both(fn func(m *shuffle.Memory)) {
	fn(w.rig.memory)
	fn(w.model.Memory())
}

// reset clears all memory. Reasons and the count of answers go on.
func (w *twins) reset() {
	got, err := w.rig.Reasons()
	w.rig.check(err)
	want, err := w.model.Reasons()
	w.rig.check(err)
	for i := range got {
		w.ahead[i] = got[i] - want[i]
	}
	w.both(func(m *shuffle.Memory) {
		clear(m.Streams)
		clear(m.Cells)
		clear(m.Outgoing)
	})
	for _, two := range w.tables {
		for _, t := range two {
			clear(t.kernel.Memory)
			clear(t.model.Memory)
		}
	}
	w.setAnswer(wire.AnswerTX)
}

func (w *twins) setAnswer(m wire.AnswerMode) {
	w.answer = m
	w.rig.settings.Answer = m
	w.model.SetAnswer(m)
}

// stream opens a stream on both sides.
func (w *twins) stream(slot int, s wire.Stream) {
	w.both(func(m *shuffle.Memory) { m.Streams[slot] = s })
}

// place lets a target's pairs of a class go to a table.
func (w *twins) place(target, class int, t *twinTable, shift uint8) {
	w.both(func(m *shuffle.Memory) {
		m.Cells[target*m.CPUs+twinCPU].SetPlace(class, uint32(t.kernel.ID)+1, shift)
	})
}

func asBytes[T any](s []T) []byte {
	var e T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(e)))
}

// step gives both a packet and compares all that came of it.
func (w *twins) step(packet []byte) (model.Verdict, []byte) {
	w.t.Helper()
	ours := bytes.Clone(packet)
	wantVerdict, want := w.model.Handle(twinCPU, ours)
	verdict, got := w.rig.run(packet)
	if w.answer == wire.AnswerTC && verdict == uint32(model.Pass) && len(got) == len(want)+4 {
		// The mark for the tc program stands before the packet.
		if binary.LittleEndian.Uint32(got) != wire.Magic {
			w.t.Fatalf("mark is %x", got[:4])
		}
		got = got[4:]
	}
	if verdict != uint32(wantVerdict) {
		w.t.Fatalf("verdict %v, not %v\n%s\n%x", model.Verdict(verdict), wantVerdict, w.compare(), packet)
	}
	if wantVerdict != model.Drop && !bytes.Equal(got, want) {
		w.t.Fatalf("packet\n%x\nbecame\n%x\nnot\n%x", packet, got, want)
	}
	if d := w.compare(); d != "" {
		w.t.Fatalf("%s\npacket %x", d, packet)
	}
	return wantVerdict, want
}

// compare says what differs between the memory of programs and model.
func (w *twins) compare() string {
	k, m := w.rig.memory, w.model.Memory()
	for i := range k.Outgoing {
		if (k.Outgoing[i].Answers == 0) != (k.Outgoing[i].Arrived == 0) {
			return fmt.Sprintf("outgoing %d: %d answers, the last at %d", i, k.Outgoing[i].Answers, k.Outgoing[i].Arrived)
		}
		m.Outgoing[i].Arrived = k.Outgoing[i].Arrived
	}
	if !bytes.Equal(asBytes(k.Streams), asBytes(m.Streams)) {
		for i := range k.Streams {
			if k.Streams[i] != m.Streams[i] {
				return fmt.Sprintf("stream %d is %+v\nnot %+v", i, k.Streams[i], m.Streams[i])
			}
		}
	}
	for i := range k.Cells {
		if k.Cells[i] != m.Cells[i] {
			return fmt.Sprintf("cell %d is %+v\nnot %+v", i, k.Cells[i], m.Cells[i])
		}
	}
	for i := range k.Outgoing {
		if k.Outgoing[i] != m.Outgoing[i] {
			return fmt.Sprintf("outgoing %d is %+v\nnot %+v", i, k.Outgoing[i], m.Outgoing[i])
		}
	}
	for layout, two := range w.tables {
		for i, t := range two {
			if bytes.Equal(t.kernel.Memory, t.model.Memory) {
				continue
			}
			at := 0
			for t.kernel.Memory[at] == t.model.Memory[at] {
				at++
			}
			from := at / 8 * 8
			return fmt.Sprintf("table %d of %v differs at %d (slot size %d):\n%x\nnot\n%x", i, layout, at,
				wire.SlotSize(layout.Class, layout.Lanes), t.kernel.Memory[from:][:32], t.model.Memory[from:][:32])
		}
	}
	got, err := w.rig.Reasons()
	if err != nil {
		return err.Error()
	}
	want, err := w.model.Reasons()
	if err != nil {
		return err.Error()
	}
	for i := range got {
		if got[i] -= w.ahead[i]; got[i] != want[i] {
			return fmt.Sprintf("%d packets ended for reason %d, not %d", got[i], i, want[i])
		}
	}
	return ""
}

// flow is a stream that frames are made for.
type flow struct {
	slot   int
	job    int
	target int
	shape  wire.Shape
	ops    uint16
	head   wire.Head
	tags   *wire.Tags
	keys   int // number of the first key
}

// open opens a stream of a shape on both sides, whose pairs go to the table.
func (w *twins) open(slot, target int, shape wire.Shape, ops uint16, t *twinTable, shift uint8) *flow {
	f := &flow{
		slot: slot, job: slot % len(w.tags), target: target, shape: shape, ops: ops,
		tags: w.tags[slot%len(w.tags)],
		head: wire.Head{Token: 0x1122334455667788 + uint64(slot), Stream: uint32(slot), Back: uint32(slot * 77), Stamp: 123456789},
	}
	lanes, class := shape.Lanes(), shape.Class()
	if !shape.Keyed() {
		lanes, class = 0, 0
	}
	w.stream(slot, wire.Stream{
		Token: f.head.Token, Job: uint32(f.job), Target: uint32(target), Frames: wire.Segment, Ops: ops,
		Lanes: uint8(lanes), Flags: wire.FlagFold, Share: uint32(100 + slot),
	})
	if t != nil {
		w.place(target, class, t, shift)
	}
	return f
}

// frame makes frame seq with n random pairs (or values from offset on) of at most keys keys.
func (f *flow) frame(rng *rand.Rand, seq uint32, n, keys int, offset uint32, ack bool) []byte {
	var b wire.Builder
	b.Reset(make([]byte, wire.FrameSize), f.shape)
	h := f.head
	h.Seq = seq
	if ack {
		h.Flags = wire.FlagWantAck
	}
	if !f.shape.Keyed() {
		for i := range n {
			if !b.AddValue(offset+uint32(i), randomValue(rng, f.shape&wire.Wide != 0)) {
				break
			}
		}
		return b.Finish(h, f.tags)
	}
	var lanes [wire.MaxLanes]int64
	for range n {
		key := makeKey(f.keys+rng.IntN(keys), f.shape.Class())
		for l := range lanes {
			lanes[l] = randomValue(rng, f.shape&wire.Wide != 0)
		}
		if !b.Add(twinSeed.HashBytes(key), key, lanes[:f.shape.Lanes()]) {
			break
		}
	}
	return b.Finish(h, f.tags)
}

// makeKey returns key n of a class.
func makeKey(n, class int) []byte {
	low, high := 0, 8
	if class > 0 {
		low, high = 4<<class+1, 8<<class
	}
	key := make([]byte, low+n%(high-low+1))
	x := uint64(n) * 0x9e3779b97f4a7c15
	for i := range key {
		key[i] = byte(x >> (i % 8 * 8))
	}
	return key
}

// randomValue returns values among which the extremes are common, so that sums overflow.
func randomValue(rng *rand.Rand, wide bool) int64 {
	v := int64(rng.Uint64())
	switch rng.IntN(6) {
	case 0:
		v = 1<<63 - 1
	case 1:
		v = -1 << 63
	case 2:
		v = int64(rng.IntN(5)) - 2
	}
	if !wide {
		v = int64(int32(v >> 32))
	}
	return v
}

// packetOf returns a packet with a UDP checksum, as sockets send it.
func packetOf(frame []byte, v6 bool) *model.Packet {
	if v6 {
		return model.NewPacket6(frame).Checksum()
	}
	return model.NewPacket(frame).Checksum()
}

var allOps = []uint8{wire.OpSum, wire.OpMin, wire.OpMax, wire.OpAnd, wire.OpOr, wire.OpXor, wire.OpSumBound}

// TestRunShapes folds some frames of every shape, with every operation in every
// lane, over both versions of IP. Since it loads all programs, their cost is checked too.
func TestRunShapes(t *testing.T) {
	w := newTwins(t)
	shapes := []wire.Shape{wire.Dense, wire.Dense | wire.Wide}
	for shape := range wire.Shape(wire.KeyedShapes) {
		shapes = append(shapes, shape)
	}
	folded := 0
	for _, shape := range shapes {
		layout, most, keys := layoutOf(shape, 9), 170, 0
		if shape.Keyed() {
			layout, most, keys = layoutOf(shape, 6), shape.PairsPerFrame(), 40
		}
		for first := range allOps {
			w.reset()
			var ops []uint8
			for l := range shape.Lanes() {
				ops = append(ops, allOps[(first+3*l)%len(allOps)])
			}
			if !shape.Keyed() {
				ops = []uint8{max(1, allOps[first])} // a vector counts no carries
			}
			rng := rand.New(rand.NewPCG(uint64(shape), uint64(first)))
			f := w.open(1+first%4, first%twinTargets, shape, wire.PackOps(ops...), w.table(layout, 0), uint8(first))
			for seq := range uint32(4) {
				n := 1 + rng.IntN(most)
				if seq == 1 {
					n = most
				}
				w.step(packetOf(f.frame(rng, seq*31, n, keys, uint32(rng.IntN(200)), seq%2 == 0), seq&2 != 0).Bytes)
				folded++
			}
		}
	}
	if r, _ := w.rig.Reasons(); r[wire.Folded] < uint64(folded/2) {
		t.Fatalf("only %d of %d frames were folded", r[wire.Folded], folded)
	}
	t.Run("largest", func(t *testing.T) {
		w.rig.t = t
		w.rig.set(shuffle.TableLayout{Class: 3, Lanes: 4, Bits: wire.MaxBits})
	})
	t.Run("verifier", func(t *testing.T) { checkBudget(t, w.rig) })
}
