// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

var le = binary.LittleEndian

var (
	damageLayout = shuffle.TableLayout{Class: 1, Lanes: 2, Bits: 6}
	damageVector = shuffle.TableLayout{Dense: true, Bits: 6}
	damageShape  = wire.Keyed(1, 2, false)
)

// damageFlows clears all, and opens a keyed stream in slot 1, a dense one in slot 2, and
// an outgoing one in slot 3.
func (w *twins) damageFlows() (keyed, dense *flow) {
	w.reset()
	keyed = w.open(1, 0, damageShape, wire.PackOps(wire.OpSum, wire.OpMax), w.table(damageLayout, 0), 0)
	dense = w.open(2, 1, wire.Dense, wire.PackOps(wire.OpSumBound), w.table(damageVector, 0), 0)
	w.both(func(m *shuffle.Memory) {
		m.Outgoing[3] = wire.Outgoing{Token: 0xfeed, Job: 1, Frames: 300, Wake: 40}
	})
	return keyed, dense
}

// ackFor makes an acknowledgement of the outgoing stream in slot 3.
func (w *twins) ackFor(nonce uint64, base uint16, claimed [wire.AckWords]uint32) []byte {
	return wire.PutAck(make([]byte, wire.AckFrame), wire.Head{
		Magic: wire.Magic, Version: wire.Version, Token: 0xfeed, Stream: 9, Seq: 5, Back: 3,
	}, wire.AckBody{Nonce: nonce, Stamp: 1000 + nonce, Share: 7, Base: base, From: wire.FromKernel, Claimed: claimed}, w.tags[1])
}

// seeds returns one good packet of every kind, over both versions of IP.
func (w *twins) seeds(keyed, dense *flow) map[string][]byte {
	rng := rand.New(rand.NewPCG(7, 7))
	all := map[string][]byte{}
	for version, v6 := range map[string]bool{"4": false, "6": true} {
		all["keyed"+version] = packetOf(keyed.frame(rng, 40, 3, 20, 0, true), v6).Bytes
		all["quiet"+version] = packetOf(keyed.frame(rng, 41, 2, 20, 0, false), v6).Bytes
		all["dense"+version] = packetOf(dense.frame(rng, 42, 20, 0, 3, true), v6).Bytes
		all["ack"+version] = packetOf(w.ackFor(5, 2, [wire.AckWords]uint32{1, 2, 0xff}), v6).Back().Bytes
		all["probe"+version] = packetOf(wire.PutProbe(make([]byte, wire.FrameSize), 99, 3, 96, 5), v6).Bytes
	}
	return all
}

// frameAt returns where the frame is in a packet that a seed was made of.
func frameAt(packet []byte) int {
	if packet[12] == 0x86 {
		return 62
	}
	return 42
}

// reseal gives a damaged frame a tag that fits it, so that it comes past that check.
func (w *twins) reseal(packet []byte) {
	frame := packet[frameAt(packet):]
	if len(frame) < wire.HeadSize {
		return
	}
	h := wire.ReadHead(frame)
	if int(h.Length) > wire.BodySize || h.Length%8 != 0 || len(frame) < wire.HeadSize+int(h.Length) {
		return
	}
	tags, nonce := w.tags[h.Stream%2], wire.Nonce(h.Back, h.Seq)
	if h.Kind == wire.Ack {
		tags, nonce = w.tags[1], le.Uint64(frame[wire.HeadSize:])
	}
	le.PutUint64(frame[32:], tags.Tag(frame, nonce))
}

// resize sets the lengths that IP and UDP tell to what the packet has.
func resize(packet []byte) {
	at := frameAt(packet)
	if len(packet) < at {
		return
	}
	binary.BigEndian.PutUint16(packet[at-4:], uint16(len(packet)-at+8))
	if at == 62 {
		binary.BigEndian.PutUint16(packet[18:], uint16(len(packet)-54))
	} else {
		binary.BigEndian.PutUint16(packet[16:], uint16(len(packet)-14))
	}
}

// TestRunPackets gives single packets to one set of programs.
func TestRunPackets(t *testing.T) {
	w := newTwins(t)
	for name, fn := range map[string]func(*testing.T, *twins){
		"damage": damage, "cases": cases, "answers": answerModes, "forged": forged,
	} {
		w.sub(t, name, func(t *testing.T) { fn(t, w) })
	}
}

// damage breaks good packets in every way that changes one bit, or the
// length, with and without a tag and lengths that fit what came of it.
func damage(t *testing.T, w *twins) {
	keyed, dense := w.damageFlows()
	for name, good := range w.seeds(keyed, dense) {
		w.sub(t, name, func(t *testing.T) {
			for bit := range len(good) * 8 {
				// The headers and the head wholly; of the body a bit here and there.
				if at := bit / 8; at >= frameAt(good)+wire.HeadSize+16 && bit%13 != 0 {
					continue
				}
				for _, seal := range []bool{false, true} {
					if bit%64 == 0 {
						w.damageFlows()
					}
					bad := bytes.Clone(good)
					bad[bit/8] ^= 1 << (bit % 8)
					if seal {
						w.reseal(bad)
					}
					w.step(bad)
				}
			}
			w.damageFlows()
			for n := 14; n < len(good); n++ {
				for _, fix := range []bool{false, true} {
					short := bytes.Clone(good[:n])
					if fix {
						resize(short)
					}
					w.step(short)
				}
			}
			for _, n := range []int{1, 4, 31, 32, 64, len(good)} {
				for _, fix := range []bool{false, true} {
					long := append(bytes.Clone(good), make([]byte, n)...)
					if fix {
						resize(long)
					}
					w.step(long)
				}
			}
		})
	}
}

// cases are packets of which is said what becomes of them: the model is not
// asked alone.
func cases(t *testing.T, w *twins) {
	rng := rand.New(rand.NewPCG(1, 1))
	set := func(frame []byte, at int, b ...byte) []byte { copy(frame[at:], b); return frame }
	sealed := func(f *flow, frame []byte) []byte { f.tags.SealData(frame); return frame }
	for _, c := range []struct {
		name    string
		packet  func(keyed, dense *flow) []byte
		verdict model.Verdict
		reasons []wire.Reason
	}{
		{"data", func(f, _ *flow) []byte {
			return packetOf(f.frame(rng, 0, 49, 30, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Folded}},
		{"data that wants an answer", func(f, _ *flow) []byte {
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), true).Bytes
		}, model.TX, []wire.Reason{wire.Folded, wire.Answered}},
		{"vector", func(_, f *flow) []byte {
			return packetOf(f.frame(rng, 9, 64, 0, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Folded}},
		{"vector that begins too late", func(_, f *flow) []byte {
			return packetOf(f.frame(rng, 9, 32, 0, 33, false), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpFull}},
		{"vector that begins at the end of numbers", func(_, f *flow) []byte {
			return packetOf(sealed(f, set(f.frame(rng, 9, 32, 0, 0, false), wire.HeadSize, 0xf0, 0xff, 0xff, 0xff)), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpFull}},
		{"vector of no values", func(_, f *flow) []byte {
			return packetOf(sealed(f, set(f.frame(rng, 9, 14, 0, 0, false), wire.HeadSize+4, 0)), false).Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"vector of more values than there are", func(_, f *flow) []byte {
			return packetOf(sealed(f, set(f.frame(rng, 9, 14, 0, 0, false), wire.HeadSize+4, 14, 0, 0, 0x40)), false).Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"keyed frame in a stream of vectors", func(f, d *flow) []byte {
			f.head, f.tags = d.head, d.tags
			return packetOf(f.frame(rng, 0, 3, 30, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"vector in a stream of pairs", func(f, d *flow) []byte {
			d.head, d.tags = f.head, f.tags
			w.both(func(m *shuffle.Memory) { m.Streams[1].Ops = wire.OpMax })
			return packetOf(d.frame(rng, 0, 3, 0, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"other lanes", func(f, _ *flow) []byte {
			f.shape = wire.Keyed(1, 3, false)
			return packetOf(f.frame(rng, 0, 3, 30, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"class without a table", func(f, _ *flow) []byte {
			f.shape = wire.Keyed(2, 2, true)
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpTable}},
		{"long keys", func(f, _ *flow) []byte {
			var b wire.Builder
			b.Reset(make([]byte, wire.FrameSize), wire.Long)
			b.Add(0, make([]byte, 100), []int64{1, 2})
			return packetOf(b.Finish(f.head, f.tags), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpShape}},
		{"stream that the kernel must not fold", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Flags = 0 })
			return packetOf(f.frame(rng, 0, 3, 30, 0, false), false).Checksum().Bytes
		}, model.Pass, []wire.Reason{wire.UpShape}},
		{"vector with a sum that may overflow", func(_, f *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[2].Ops = wire.OpSum })
			return packetOf(f.frame(rng, 9, 14, 0, 0, false), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpShape}},
		{"closed stream", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Token = 0 })
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadToken}},
		{"token 0 of a closed stream", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Token = 0 })
			f.head.Token = 0
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadToken}},
		{"token of another slot", func(f, d *flow) []byte {
			f.head.Token = d.head.Token
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadToken}},
		{"slot that is not there", func(f, _ *flow) []byte {
			f.head.Stream = twinStreams
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadToken}},
		{"stream of a job slot that is not there", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Job = 2 })
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadToken}},
		{"last frame of a stream", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Frames = 12 })
			return packetOf(f.frame(rng, 11, 3, 30, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Folded}},
		{"frame behind the last", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Frames = 12 })
			return packetOf(f.frame(rng, 12, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadSeq}},
		{"frame behind the bitmap of a stream that says it is longer", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Frames = 1 << 31 })
			return packetOf(f.frame(rng, wire.Segment, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadSeq}},
		{"wrong tag", func(f, _ *flow) []byte {
			return packetOf(set(f.frame(rng, 0, 3, 30, 0, true), 32, 1, 2, 3), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadTag}},
		{"tag of another job", func(f, d *flow) []byte {
			f.tags = d.tags
			return packetOf(f.frame(rng, 0, 3, 30, 0, true), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadTag}},
		{"frame of another sender's slot", func(f, _ *flow) []byte {
			return packetOf(set(f.frame(rng, 0, 3, 30, 0, true), 24, 0xaa), false).Bytes
		}, model.Drop, []wire.Reason{wire.BadTag}},
		{"scratch that was sent", func(f, _ *flow) []byte {
			return packetOf(set(f.frame(rng, 0, 3, 30, 0, false), 52, bytes.Repeat([]byte{0xff}, 12)...), false).Bytes
		}, model.Drop, []wire.Reason{wire.Folded}},
		{"claimed by user space", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].ClaimUser(77) })
			return packetOf(f.frame(rng, 77, 3, 30, 0, false), false).Bytes
		}, model.Drop, []wire.Reason{wire.Duplicate}},
		{"claimed by user space, answer wanted", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].ClaimUser(4095) })
			return packetOf(f.frame(rng, 4095, 3, 30, 0, true), true).Bytes
		}, model.TX, []wire.Reason{wire.Duplicate, wire.Answered}},
		{"no cell", func(f, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Streams[1].Target = twinTargets })
			return packetOf(f.frame(rng, 1, 3, 30, 0, true), true).Bytes
		}, model.Pass, []wire.Reason{wire.UpTable}},
		{"answer that someone sends us", func(_, _ *flow) []byte {
			return packetOf(set(w.ackFor(1, 0, [8]uint32{}), 4, byte(wire.Answer)), false).Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"broadcast", func(_, _ *flow) []byte {
			return packetOf(set(w.ackFor(1, 0, [8]uint32{}), 4, byte(wire.Broadcast)), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpChain}},
		{"answer to a probe", func(_, _ *flow) []byte {
			p := wire.PutProbe(make([]byte, wire.FrameSize), 1, 2, 1376, 0)
			wire.AnswerProbe(p)
			return packetOf(p, true).Back().Bytes
		}, model.Pass, []wire.Reason{wire.UpShape}},
		{"probe", func(_, _ *flow) []byte {
			return packetOf(wire.PutProbe(make([]byte, wire.FrameSize), 1, 2, 1376, 0), true).Bytes
		}, model.TX, []wire.Reason{wire.Probed}},
		{"probe of another port", func(_, _ *flow) []byte {
			return packetOf(wire.PutProbe(make([]byte, wire.FrameSize), 1, 2, 0, 0), true).Ports(shuffle.Port, 9).Bytes
		}, model.Pass, []wire.Reason{wire.Foreign}},
		{"acknowledgement", func(_, _ *flow) []byte {
			return packetOf(w.ackFor(9, 5, [8]uint32{0: 0xff, 7: 1}), true).Back().Bytes
		}, model.Drop, []wire.Reason{wire.Absorbed}},
		{"acknowledgement that wakes", func(_, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Outgoing[3].Count, m.Outgoing[3].Acked[2] = 38, 1<<32-1 })
			return packetOf(w.ackFor(9, 5, [8]uint32{0: 3}), true).Back().Bytes
		}, model.Pass, []wire.Reason{wire.AbsorbedUp}},
		{"acknowledgement behind the wake", func(_, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Outgoing[3].Count = 40 })
			return packetOf(w.ackFor(9, 5, [8]uint32{0: 3}), true).Back().Bytes
		}, model.Drop, []wire.Reason{wire.Absorbed}},
		{"acknowledgement of a closed slot", func(_, _ *flow) []byte {
			w.both(func(m *shuffle.Memory) { m.Outgoing[3].Token = 0 })
			return packetOf(w.ackFor(9, 5, [8]uint32{0: 3}), true).Back().Bytes
		}, model.Drop, []wire.Reason{wire.AckStray}},
		{"damaged acknowledgement", func(_, _ *flow) []byte {
			return packetOf(set(w.ackFor(9, 5, [8]uint32{0: 3}), wire.HeadSize+24, 0x83), true).Back().Bytes
		}, model.Drop, []wire.Reason{wire.AckTag}},
		{"acknowledgement beyond the last word", func(_, _ *flow) []byte {
			return packetOf(w.ackFor(9, 121, [8]uint32{0: 3}), true).Back().Bytes
		}, model.Drop, []wire.Reason{wire.Malformed}},
		{"fragment", func(f, _ *flow) []byte {
			return packetOf(f.frame(rng, 0, 3, 30, 0, false), false).SetIP(6, 0x20, 0).Bytes
		}, model.Pass, []wire.Reason{wire.Foreign}},
		{"options of IPv4", func(f, _ *flow) []byte {
			return packetOf(f.frame(rng, 0, 3, 30, 0, false), false).SetIP(0, 0x46).Bytes
		}, model.Pass, []wire.Reason{wire.Foreign}},
		{"two frames in one packet", func(f, _ *flow) []byte {
			one := f.frame(rng, 0, 3, 30, 0, false)
			return packetOf(append(one, f.frame(rng, 1, 3, 30, 0, false)...), false).Bytes
		}, model.Pass, []wire.Reason{wire.UpShape}},
		{"addresses that need every byte", func(f, _ *flow) []byte {
			return model.NewPacket(f.frame(rng, 0, 3, 30, 0, true)).Addresses(
				netip.MustParseAddrPort("[2001:db8:1:2:3:4:5:6]:1025"), netip.MustParseAddrPort("[2001:db8:f:e:d:c:b:a]:7117")).
				MACs([6]byte{2, 1, 2, 3, 4, 5}, [6]byte{6, 7, 8, 9, 10, 11}).Bytes
		}, model.TX, []wire.Reason{wire.Folded, wire.Answered}},
	} {
		w.sub(t, c.name, func(t *testing.T) {
			keyed, dense := w.damageFlows()
			before, err := w.rig.Reasons()
			if err != nil {
				t.Fatal(err)
			}
			packet := c.packet(keyed, dense)
			verdict, out := w.step(packet)
			if verdict != c.verdict {
				t.Errorf("%v, not %v", verdict, c.verdict)
			}
			after, err := w.rig.Reasons()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.reasons {
				after[r]--
			}
			if after != before {
				t.Errorf("reasons went from %v to %v, beside %v", before, after, c.reasons)
			}
			if verdict == model.Pass && c.reasons[0] != wire.UpFull && !bytes.Equal(out, packet) {
				t.Error("the packet was passed up, and not as it was")
			}
		})
	}
}

// answerModes asks for answers in all modes, of first frames and of doubled ones,
// at both ends of the bitmap.
func answerModes(t *testing.T, w *twins) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, mode := range []wire.AnswerMode{wire.AnswerTX, wire.AnswerTC, wire.AnswerUser} {
		keyed, dense := w.damageFlows()
		w.setAnswer(mode)
		for _, v6 := range []bool{false, true} {
			for i, seq := range []uint32{0, 31, 32, 191, 192, 223, 224, 1000, 3839, 3840, 4063, 4095} {
				word, seen := rng.IntN(wire.SeenWords), rng.Uint64()&^(1<<(seq%32))
				w.both(func(m *shuffle.Memory) { m.Streams[1].Seen[word] |= seen })
				frame := keyed.frame(rng, seq, 1+i*3, 20, 0, true)
				w.step(packetOf(frame, v6).Bytes)
				verdict, out := w.step(packetOf(frame, v6).Bytes)
				if want := [...]model.Verdict{model.TX, model.Pass, model.Pass}[mode]; verdict != want {
					t.Fatalf("mode %d: %v, not %v", mode, verdict, want)
				}
				payload := model.PayloadOf(out)
				if mode == wire.AnswerUser {
					wire.AnswerToAck(payload)
				}
				_, body, err := wire.ParseAck(payload)
				if err != nil || !keyed.tags.Open(payload, body.Nonce) {
					t.Fatalf("mode %d: %v, %x", mode, err, payload)
				}
				if word := int(seq/32) - int(body.Base); word < 0 || word >= wire.AckWords || body.Claimed[word]>>(seq%32)&1 == 0 {
					t.Fatalf("mode %d: the answer to frame %d does not tell of it: %+v", mode, seq, body)
				}
				w.step(packetOf(dense.frame(rng, seq, 14, 0, 0, true), v6).Bytes)
			}
			w.step(packetOf(wire.PutProbe(make([]byte, wire.FrameSize), 99, 3, 320, 5), v6).Bytes)
			w.damageFlows()
			w.setAnswer(mode)
		}
	}
}

// forged sends frames that know a stream's token, and more than that, but no key. None
// changes anything but counters. QUERN_LONG=1 sends a million.
func forged(t *testing.T, w *twins) {
	keyed, dense := w.damageFlows()
	n := 20_000
	if os.Getenv("QUERN_LONG") != "" {
		n = 1_000_000
	}
	rng := rand.New(rand.NewPCG(3, 3))
	var seeds [][]byte
	for _, p := range w.seeds(keyed, dense) {
		if wire.Kind(p[frameAt(p)+4]) == wire.Data || wire.Kind(p[frameAt(p)+4]) == wire.Ack {
			seeds = append(seeds, p)
		}
	}
	before, err := w.rig.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		p := bytes.Clone(seeds[i%len(seeds)])
		frame := p[frameAt(p):]
		switch i / len(seeds) % 4 {
		case 0: // a guessed tag
			le.PutUint64(frame[32:], rng.Uint64())
		case 1: // other pairs, or another bitmap, under a tag that was seen
			frame[wire.HeadSize+24+rng.IntN(8)] ^= byte(1 + rng.IntN(255))
		case 2: // another number
			le.PutUint32(frame[20:], (le.Uint32(frame[20:])+1+rng.Uint32N(wire.Segment-1))%wire.Segment)
		default: // a guessed token
			le.PutUint64(frame[8:], rng.Uint64()|1)
		}
		if verdict, _ := w.rig.run(p); verdict != uint32(model.Drop) {
			t.Fatalf("verdict %v of %x", model.Verdict(verdict), p)
		}
	}
	after, err := w.rig.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	for r := range after {
		sum += after[r] - before[r]
	}
	refused := uint64(0)
	for _, r := range []wire.Reason{wire.BadTag, wire.BadToken, wire.AckTag, wire.AckStray} {
		refused += after[r] - before[r]
		if after[r] == before[r] {
			t.Errorf("none was refused for reason %d", r)
		}
	}
	if sum != uint64(n) || refused != uint64(n) {
		t.Errorf("%d frames, %d reasons, %d refused", n, sum, refused)
	}
	// The model has seen none of them: the memory must be as it was, reasons apart.
	for layout, two := range w.tables {
		for _, table := range two {
			if !bytes.Equal(table.kernel.Memory, make([]byte, len(table.kernel.Memory))) {
				t.Errorf("a table of %v was written to", layout)
			}
		}
	}
	for i := range w.rig.memory.Streams {
		if w.rig.memory.Streams[i] != w.model.Memory().Streams[i] {
			t.Errorf("stream %d was written to", i)
		}
	}
	for i := range w.rig.memory.Cells {
		if w.rig.memory.Cells[i] != w.model.Memory().Cells[i] {
			t.Errorf("cell %d was written to", i)
		}
	}
	for i := range w.rig.memory.Outgoing {
		if w.rig.memory.Outgoing[i] != w.model.Memory().Outgoing[i] {
			t.Errorf("outgoing %d was written to", i)
		}
	}
}
