// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"maps"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

const narrow = wire.Shape(0) // 8-byte keys, one lane of 4 bytes: pairs of 16 bytes

type reasons = map[wire.Reason]uint64

// One good packet with one thing broken at a time; the order is that of the package's documentation.
func TestDataIsChecked(t *testing.T) {
	type testCase struct {
		name    string
		packet  func(p *Packet) // breaks the packet
		memory  func(b *bench)  // or the host
		head    func(h *wire.Head)
		verdict Verdict
		counted reasons
		changed bool // the packet may have changed
	}
	one := func(r wire.Reason) reasons { return reasons{r: 1} }
	good := testCase{name: "good", verdict: Drop, counted: one(wire.Folded), changed: true}
	packet := func(name string, v Verdict, r wire.Reason, f func(p *Packet)) testCase {
		return testCase{name: name, packet: f, verdict: v, counted: one(r)}
	}
	memory := func(name string, v Verdict, r wire.Reason, f func(b *bench)) testCase {
		return testCase{name: name, memory: f, verdict: v, counted: one(r)}
	}
	sealed := func(name string, v Verdict, r wire.Reason, f func(h *wire.Head)) testCase {
		return testCase{name: name, head: f, verdict: v, counted: one(r)}
	}
	cases := []testCase{
		good,
		packet("no type of IP", Pass, wire.Foreign, func(p *Packet) { p.Set(12, 0x08, 0x06) }),
		packet("vlan", Pass, wire.Foreign, func(p *Packet) { p.Set(12, 0x81, 0x00) }),
		packet("not UDP", Pass, wire.Foreign, func(p *Packet) { p.SetIP(9, 6) }),
		packet("options", Pass, wire.Foreign, func(p *Packet) { p.SetIP(0, 0x46) }),
		packet("more fragments", Pass, wire.Foreign, func(p *Packet) { p.SetIP(6, 0x20) }),
		packet("a later fragment", Pass, wire.Foreign, func(p *Packet) { p.SetIP(7, 1) }),
		packet("don't fragment is fine", Drop, wire.Folded, func(p *Packet) { p.SetIP(6, 0x40) }),
		packet("another port", Pass, wire.Foreign, func(p *Packet) { p.SetUDP(2, 0x1b, 0xce) }),
		packet("our port at the other end", Pass, wire.Foreign, func(p *Packet) { p.Ports(7117, 40000) }),
		packet("another magic", Pass, wire.Foreign, func(p *Packet) { p.SetFrame(0, 0x52) }),
		packet("cut within the head", Pass, wire.Foreign, func(p *Packet) { p.Cut(14 + 20 + 8 + 63) }),
		packet("cut within IP", Pass, wire.Foreign, func(p *Packet) { p.Cut(20) }),
		packet("cut within Ethernet", Pass, wire.Foreign, func(p *Packet) { p.Cut(13) }),
		packet("nothing", Pass, wire.Foreign, func(p *Packet) { p.Cut(0) }),

		packet("cut within the body", Drop, wire.Malformed, func(p *Packet) { p.Cut(len(p.Bytes) - 1) }),
		packet("bytes behind it", Drop, wire.Malformed, func(p *Packet) { p.Append(0) }),
		packet("IP says less", Drop, wire.Malformed, func(p *Packet) { p.SetIP(3, p.Bytes[17]-1) }),
		packet("UDP says less", Drop, wire.Malformed, func(p *Packet) { p.SetUDP(5, p.Bytes[39]-1) }),
		packet("UDP says more", Drop, wire.Malformed, func(p *Packet) { p.SetUDP(5, p.Bytes[39]+1) }),
		packet("version", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(7, 2) }),
		packet("zero", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(30, 1) }),
		packet("kind 0", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(4, 0) }),
		packet("kind 10", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(4, 10) }),
		packet("an answer from the wire", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(4, byte(wire.Answer)) }),
		packet("a broadcast", Pass, wire.UpChain, func(p *Packet) { p.SetFrame(4, byte(wire.Broadcast)) }),
		packet("flags", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(48, 2) }),
		packet("hop", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(49, 1) }),
		packet("zero2", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(51, 1) }),
		packet("shape 0x21", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(5, 0x21) }),
		packet("shape 0x41", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(5, 0x41, 0) }),
		packet("shape 0x80", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(5, 0x80) }),
		packet("dense with a count", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(5, 0x40) }),
		packet("no pairs", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(6, 0) }),
		packet("length 32", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 32) }),
		packet("length 65", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 65) }),
		packet("length beyond the packet", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 128) }),
		packet("length beyond all", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(28, 0x80, 0x05) }),
		packet("two frames in one packet", Pass, wire.UpShape, func(p *Packet) {
			p.Frame(append(bytes.Clone(p.Payload()), p.Payload()...))
		}),
		packet("a frame and a byte", Pass, wire.UpShape, func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), 0)) }),

		sealed("slot beyond all", Drop, wire.BadToken, func(h *wire.Head) { h.Stream = 16 }),
		sealed("slot far beyond all", Drop, wire.BadToken, func(h *wire.Head) { h.Stream = 1<<32 - 1 }),
		sealed("another slot", Drop, wire.BadToken, func(h *wire.Head) { h.Stream = 4 }),
		sealed("another token", Drop, wire.BadToken, func(h *wire.Head) { h.Token++ }),
		{
			name: "token 0 of a closed slot", verdict: Drop, counted: one(wire.BadToken), head: func(h *wire.Head) { h.Token = 0 },
			memory: func(b *bench) { b.stream.Token = 0 },
		},
		memory("closed", Drop, wire.BadToken, func(b *bench) { b.stream.Token = 0 }),
		memory("job beyond all", Drop, wire.BadToken, func(b *bench) { b.stream.Job = 8 }),
		sealed("the frame behind the last", Drop, wire.BadSeq, func(h *wire.Head) { h.Seq = 40 }),
		sealed("the last frame", Drop, wire.Folded, func(h *wire.Head) { h.Seq = 39 }),
		{
			name: "frame 4096", verdict: Drop, counted: one(wire.BadSeq), head: func(h *wire.Head) { h.Seq = 4096 },
			memory: func(b *bench) { b.stream.Frames = 1 << 20 },
		},
		memory("the kernel may not fold it", Pass, wire.UpShape, func(b *bench) { b.stream.Flags = 0 }),
		memory("operation 7", Pass, wire.UpShape, func(b *bench) { b.stream.Ops = 0x7 }),
		memory("operation 8 of a lane that isn't there", Pass, wire.UpShape, func(b *bench) { b.stream.Ops |= 0x8000 }),
		memory("other lanes", Drop, wire.Malformed, func(b *bench) { b.stream.Lanes = 2 }),
		memory("lanes of a vector", Drop, wire.Malformed, func(b *bench) { b.stream.Lanes = 0 }),
		packet("a count of which the length is another", Drop, wire.Malformed, func(p *Packet) { p.SetFrame(6, 5) }),
		packet("tag", Drop, wire.BadTag, func(p *Packet) { p.SetFrame(32, p.Payload()[32]^1) }),
		packet("body", Drop, wire.BadTag, func(p *Packet) { p.SetFrame(127, 1) }),
		packet("back", Drop, wire.BadTag, func(p *Packet) { p.SetFrame(24, 8) }),
		packet("another count of the same length", Drop, wire.BadTag, func(p *Packet) { p.SetFrame(6, 4) }),
		packet("another class of the same length", Drop, wire.BadTag, func(p *Packet) { p.SetFrame(5, 0x10) }), // 3 x 20 is 64 too
		packet("stamp and scratch are free", Drop, wire.Folded, func(p *Packet) {
			p.SetFrame(40, 9, 9, 9, 9, 9, 9, 9, 9).SetFrame(52, bytes.Repeat([]byte{0xff}, 12)...)
		}),
		memory("claimed by a program", Drop, wire.Duplicate, func(b *bench) { b.stream.Seen[0] = 1 << 7 }),
		memory("claimed by user space", Drop, wire.Duplicate, func(b *bench) { b.stream.Seen[0] = 1<<7 | 1<<39 }),
		memory("others claimed", Drop, wire.Folded, func(b *bench) { b.stream.Seen[0] = ^uint64(1<<7 | 1<<39) }),
		memory("no table", Pass, wire.UpTable, func(b *bench) { b.cell.SetPlace(0, 0, 0) }),
		memory("target beyond all", Pass, wire.UpTable, func(b *bench) { b.stream.Target = 8 }),
	}
	for i := range cases {
		cases[i].changed = cases[i].counted[wire.Folded] != 0
	}
	cases = append(cases,
		testCase{
			name: "a table that isn't there", verdict: Pass, counted: one(wire.UpChain), changed: true,
			memory: func(b *bench) { b.cell.SetPlace(0, uint32(b.table.ID)+2, 0) },
		},
		testCase{
			name: "a table of another class", verdict: Pass, counted: one(wire.UpChain), changed: true,
			memory: func(b *bench) { b.table.Layout.Class = 1 },
		},
	)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Config{}, narrow, 6, wire.OpSum)
			h := head(7)
			if c.head != nil {
				c.head(&h)
			}
			frame, _ := keyedFrame(t, narrow, h, 0, 3)
			p := NewPacket(frame).Checksum()
			if c.packet != nil {
				c.packet(p)
			}
			if c.memory != nil {
				c.memory(b)
			}
			state, before := b.state(), clone(p)
			v, out := b.Handle(0, p.Bytes)
			counted := b.counted()
			if v != c.verdict || !maps.Equal(counted, c.counted) {
				t.Errorf("%v, counted %v, not %v and %v", v, counted, c.verdict, c.counted)
			}
			if v == Drop && out != nil || v == Pass && len(out) != len(before) {
				t.Errorf("%v, and %d of %d bytes are left", v, len(out), len(before))
			}
			if !c.changed {
				if !bytes.Equal(before, p.Bytes) {
					t.Errorf("the packet was changed:\n%x\n%x", before, p.Bytes)
				}
			}
			if c.counted[wire.Folded] == 0 && b.state() != state {
				t.Error("something was changed by a packet that was not folded")
			}
			if c.counted[wire.Folded] != 0 && b.state() == state {
				t.Error("nothing was changed by a packet that was folded")
			}
		})
	}
}

// Of two faults the earlier one in the order is counted.
func TestOrderOfChecks(t *testing.T) {
	type fault struct {
		name   string
		reason wire.Reason
		apply  func(b *bench, h *wire.Head)
		packet func(p *Packet)
	}
	// From the last check to the first: each is added to all before.
	faults := []fault{
		{"table", wire.UpTable, func(b *bench, _ *wire.Head) { b.cell.SetPlace(0, 0, 0) }, nil},
		{"duplicate", wire.Duplicate, func(b *bench, _ *wire.Head) { b.stream.Seen[0] = 1<<32 - 1 }, nil},
		{"tag", wire.BadTag, nil, func(p *Packet) { p.SetFrame(39, p.Payload()[39]^1) }},
		{"length", wire.Malformed, nil, func(p *Packet) { p.SetFrame(6, 9) }},
		{"stream", wire.UpShape, func(b *bench, _ *wire.Head) { b.stream.Flags = 0 }, nil},
		{"seq", wire.BadSeq, func(b *bench, _ *wire.Head) { b.stream.Frames = 2 }, nil},
		{"token", wire.BadToken, func(_ *bench, h *wire.Head) { h.Token ^= 1 }, nil},
		{"several", wire.UpShape, nil, func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), 1)) }},
		{"fields", wire.Malformed, nil, func(p *Packet) { p.SetFrame(48, 4) }},
		{"kind", wire.UpChain, nil, func(p *Packet) { p.SetFrame(4, byte(wire.Broadcast)) }},
		{"version", wire.Malformed, nil, func(p *Packet) { p.SetFrame(7, 9) }},
		{"port", wire.Foreign, nil, func(p *Packet) { p.SetUDP(3, 0) }},
	}
	for n := 1; n <= len(faults); n++ {
		b := newBench(t, Config{}, narrow, 6, wire.OpSum)
		h := head(7)
		for _, f := range faults[:n] {
			if f.apply != nil {
				f.apply(b, &h)
			}
		}
		frame, _ := keyedFrame(t, narrow, h, 0, 3)
		p := NewPacket(frame)
		for _, f := range faults[:n] {
			if f.packet != nil {
				f.packet(p)
			}
		}
		b.Handle(0, p.Bytes)
		want := faults[n-1]
		if got := b.counted(); !maps.Equal(got, reasons{want.reason: 1}) {
			t.Errorf("with %s and all later ones: counted %v, not %d", want.name, got, want.reason)
		}
	}
}

func TestLongFramesGoUpUntouched(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	var f wire.Builder
	f.Reset(make([]byte, wire.FrameSize), wire.Long)
	f.Add(0, bytes.Repeat([]byte{'k'}, 100), []int64{1})
	p := NewPacket(f.Finish(head(7), testTags)).Checksum()
	before := clone(p)
	v, out := b.Handle(0, p.Bytes)
	if v != Pass || !bytes.Equal(out, before) || !maps.Equal(b.counted(), reasons{wire.UpShape: 1}) {
		t.Error(v)
	}
}

func TestFirstPacketOverIPv6(t *testing.T) {
	for name, c := range map[string]struct {
		broken  func(p *Packet)
		verdict Verdict
		reason  wire.Reason
	}{
		"good":             {func(*Packet) {}, Drop, wire.Folded},
		"traffic class":    {func(p *Packet) { p.SetIP(0, 0x6f, 0xff) }, Drop, wire.Folded},
		"version":          {func(p *Packet) { p.SetIP(0, 0x40) }, Pass, wire.Foreign},
		"extension header": {func(p *Packet) { p.SetIP(6, 0) }, Pass, wire.Foreign},
		"IP says less":     {func(p *Packet) { p.SetIP(5, p.Bytes[19]-1) }, Drop, wire.Malformed},
		"cut":              {func(p *Packet) { p.Cut(14 + 40 + 8 + 63) }, Pass, wire.Foreign},
		"cut in the body":  {func(p *Packet) { p.Cut(len(p.Bytes) - 1) }, Drop, wire.Malformed},
		"port":             {func(p *Packet) { p.Ports(1, 2) }, Pass, wire.Foreign},
	} {
		b := newBench(t, Config{}, narrow, 6, wire.OpSum)
		frame, _ := keyedFrame(t, narrow, head(7), 0, 3)
		p := NewPacket6(frame)
		c.broken(p)
		if v, _ := b.Handle(0, p.Bytes); v != c.verdict || !maps.Equal(b.counted(), reasons{c.reason: 1}) {
			t.Errorf("%s: %v", name, v)
		}
	}
}
