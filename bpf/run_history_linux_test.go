// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// historyShapes are the shapes that histories are made of, with tables so small that they
// overflow. All shapes are in TestRunShapes; every layout takes time to load.
var historyShapes = []struct {
	shape wire.Shape
	bits  int
}{
	{wire.Keyed(0, 1, false), 5},
	{wire.Keyed(0, 1, true), 5},
	{wire.Keyed(1, 2, false), 6},
	{wire.Keyed(1, 2, true), 6},
	{wire.Keyed(2, 3, false), 4},
	{wire.Keyed(3, 4, true), 5},
	{wire.Dense, 6},
	{wire.Dense | wire.Wide, 6},
}

func layoutOf(shape wire.Shape, bits int) shuffle.TableLayout {
	if !shape.Keyed() {
		return shuffle.TableLayout{Dense: true, Bits: bits}
	}
	return shuffle.TableLayout{Class: shape.Class(), Lanes: shape.Lanes(), Bits: bits}
}

// history gives both some packets and lets user space do things in between. choose returns a number below n.
func (w *twins) history(steps int, choose func(n int) int) {
	w.reset()
	w.setAnswer(wire.AnswerMode(choose(3)))
	rng := rand.New(rand.NewPCG(uint64(choose(1<<16)), 1))
	var flows []*flow
	var tables [][2]*twinTable
	for slot := 1; slot <= 2; slot++ {
		h := historyShapes[choose(len(historyShapes))]
		layout := layoutOf(h.shape, h.bits)
		var ops []uint8
		for range wire.MaxLanes {
			op := allOps[choose(len(allOps))]
			if !h.shape.Keyed() && op == wire.OpSum {
				op = wire.OpSumBound
			}
			ops = append(ops, op)
		}
		if h.shape.Keyed() {
			ops = ops[:h.shape.Lanes()]
		} else {
			ops = ops[:1]
		}
		tables = append(tables, [2]*twinTable{w.table(layout, 0), w.table(layout, 1)})
		flows = append(flows, w.open(slot, slot-1, h.shape, wire.PackOps(ops...), tables[slot-1][0], 0))
	}
	w.both(func(m *shuffle.Memory) {
		m.Outgoing[3] = wire.Outgoing{Token: 0xfeed, Job: 1, Frames: 300, Wake: 20}
	})
	var sent [][]byte
	earlier := func() []byte {
		if len(sent) == 0 {
			sent = append(sent, packetOf(w.ackFor(0, 0, [wire.AckWords]uint32{1}), false).Back().Bytes)
		}
		return bytes.Clone(sent[choose(len(sent))])
	}
	seqs := []uint32{0, 0}
	for range steps {
		i := choose(2)
		f := flows[i]
		switch choose(16) {
		default:
			seqs[i]++
			n := 1 + choose(90)
			offset := uint32(choose(50))
			sent = append(sent, packetOf(f.frame(rng, seqs[i]*uint32(1+choose(40)), n, []int{3, 40, 300}[choose(3)], offset, choose(2) == 0), choose(2) == 0).Bytes)
			w.step(sent[len(sent)-1])
		case 6, 7: // comes again
			w.step(earlier())
		case 8, 9: // damaged
			p := earlier()
			for range 1 + choose(2) {
				at := choose(len(p))
				if choose(2) == 0 {
					at = choose(min(len(p), frameAt(p)+wire.HeadSize+16))
				}
				p[at] ^= byte(1 << choose(8))
			}
			if choose(2) == 0 {
				w.reseal(p)
			}
			w.step(p)
		case 10: // cut, or with something behind
			p := earlier()
			if choose(2) == 0 {
				p = p[:14+choose(len(p)-13)]
			} else {
				p = append(p, make([]byte, 1+choose(100))...)
			}
			if choose(2) == 0 && len(p) > 62 {
				resize(p)
			}
			w.step(p)
		case 11:
			seq := uint32(choose(300))
			w.both(func(m *shuffle.Memory) { m.Streams[i+1].ClaimUser(seq) })
		case 12: // another table, another part of the hash; or none
			class := 0
			if f.shape.Keyed() {
				class = f.shape.Class()
			}
			if t := choose(3); t < 2 {
				w.place(i, class, tables[i][t], uint8(choose(8)))
			} else {
				w.both(func(m *shuffle.Memory) { m.Cells[i*m.CPUs+twinCPU].SetPlace(class, 0, 0) })
			}
		case 13:
			w.setAnswer(wire.AnswerMode(choose(3)))
		case 14: // the slot is used for another stream, frames of the old one are on their way
			f.head.Token += 1 << 32
			w.both(func(m *shuffle.Memory) {
				s := &m.Streams[i+1]
				s.Token, s.Seen, s.Frames = f.head.Token, [wire.SeenWords]uint64{}, uint32(100+seqs[i])
			})
		case 15:
			var claimed [wire.AckWords]uint32
			for k := range choose(wire.AckWords + 1) {
				claimed[k] = uint32(choose(1 << 16))
			}
			sent = append(sent, packetOf(w.ackFor(uint64(choose(1<<16)), uint16(choose(wire.MaxAckBase+2)), claimed), choose(2) == 0).Back().Bytes)
			w.step(sent[len(sent)-1])
		}
	}
}

// TestRunHistories gives random histories to programs and model.
func TestRunHistories(t *testing.T) {
	w := newTwins(t)
	w.reset()
	rapid.Check(t, func(rt *rapid.T) {
		w.t, w.rig.t = rt, rt
		defer func() { w.t, w.rig.t = t, t }()
		steps := rapid.IntRange(1, 60).Draw(rt, "steps")
		w.history(steps, func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "choice") })
	})
	r, err := w.rig.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reasons %v", r)
	if testing.Short() {
		return // too few rounds to see each reason
	}
	for _, reason := range []wire.Reason{
		wire.Foreign, wire.Malformed, wire.BadToken, wire.BadSeq, wire.BadTag, wire.Duplicate, wire.UpShape, wire.UpTable,
		wire.UpFull, wire.Folded, wire.Answered, wire.AnswerUp, wire.Absorbed, wire.AckTag,
	} {
		if r[reason] == 0 {
			t.Errorf("no packet ended for reason %d: %v", reason, r)
		}
	}
}

// FuzzKernelAgainstModel reads a history from bytes: a byte a choice, two where there
// are more than 256.
func FuzzKernelAgainstModel(f *testing.F) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 8 {
		seed := make([]byte, 400)
		for i := range seed {
			seed[i] = byte(rng.Uint32())
		}
		f.Add(seed)
	}
	w := newTwins(f)
	f.Fuzz(func(t *testing.T, choices []byte) {
		onCPU(t, twinCPU)
		w.t, w.rig.t = t, t
		steps := min(len(choices)/8, 200)
		w.history(steps, func(n int) int {
			c := 0
			for m := n; m > 1 && len(choices) > 0; m >>= 8 {
				c, choices = c<<8|int(choices[0]), choices[1:]
			}
			return c % n
		})
	})
}
