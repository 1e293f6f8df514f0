// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"encoding/hex"
	"maps"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

func wantAck(h wire.Head) wire.Head {
	h.Flags = wire.FlagWantAck
	return h
}

// ones says whether a checksummed range adds up.
func ones(sum uint32) bool { return fold16(sum) == 0xffff }

// The whole packet of an answer, byte by byte.
func TestAnswerBytes(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	b.stream.Seen[0] = 0x0000_0001_0000_0005
	b.stream.Seen[1] = 0x80000000
	b.SetAnswers(0, 0x1234)
	frame, _ := keyedFrame(t, narrow, wantAck(head(7)), 0, 40)
	p := NewPacket(frame).Checksum()
	v, out := b.Handle(0, p.Bytes)
	if v != TX || !maps.Equal(b.counted(), reasons{wire.Folded: 1, wire.Answered: 1}) {
		t.Fatal(v)
	}
	want, err := hex.DecodeString("" +
		"020000000001" + "020000000002" + "0800" +
		"4500009c" + "12344000" + "4011" + "0000" + "0a000002" + "0a000001" +
		"1bcd" + "9c40" + "0088" + "0000" +
		"51524e31" + "02000001" + "8877665544332211" + "05000000" + "07000000" + "09000000" + "4000" + "0000" +
		"0000000000000000" + "6655000000000000" + "00000000" + "000000000000000000000000" +
		"3412000000000000" + "6655000000000000" + "11000000" + "0000" + "01" + "00" +
		"85000000" + "00000080" + "000000000000000000000000000000000000000000000000" + "0000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	// 4500 + 009c + 1234 + 4000 + 4011 + 0a00 + 0002 + 0a00 + 0001 = ebe4; its complement is 141b.
	copy(want[24:], []byte{0x14, 0x1b})
	copy(want[42+32:], out[42+32:42+40]) // the tag, checked below
	if !bytes.Equal(out, want) {
		t.Errorf("got  %x\nwant %x", out, want)
	}
	if !testTags.Open(PayloadOf(out), 0x1234) {
		t.Error("the tag of the answer")
	}
	if &out[0] != &p.Bytes[0] {
		t.Error("the answer is not made of the packet")
	}
}

func TestAnswers(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, mode := range []wire.AnswerMode{wire.AnswerTX, wire.AnswerTC, wire.AnswerUser} {
			b := newBench(t, Config{CPUs: 3, Answer: mode}, narrow, 6, wire.OpSum)
			b.cell = &b.Memory().Cells[testTarget*3+2]
			b.cell.SetPlace(0, uint32(b.table.ID)+1, 0)
			frame, _ := keyedFrame(t, narrow, wantAck(head(7)), 0, 1) // the smallest there is
			p := NewPacket(frame)
			if v6 {
				p = NewPacket6(frame)
			}
			p.Checksum()
			verdict, reason := TX, wire.Answered
			switch mode {
			case wire.AnswerTC:
				verdict = Pass
			case wire.AnswerUser:
				verdict, reason = Pass, wire.AnswerUp
			}
			// First the frame, then a duplicate of it: both are answered.
			for i, first := range []wire.Reason{wire.Folded, wire.Duplicate} {
				q := p.Clone()
				v, out := b.Handle(2, q.Bytes)
				if v != verdict || !maps.Equal(b.counted(), reasons{first: 1, reason: 1}) {
					t.Fatalf("mode %d: %v", mode, v)
				}
				turned := mode != wire.AnswerUser
				if turned == bytes.Equal(out[:12], p.Bytes[:12]) {
					t.Errorf("mode %d: addresses %x", mode, out[:12])
				}
				ack := bytes.Clone(PayloadOf(out))
				if got := wire.Kind(ack[4]); turned && got != wire.Ack || !turned && got != wire.Answer {
					t.Errorf("mode %d: kind %d", mode, got)
				}
				wire.AnswerToAck(ack)
				_, a, err := wire.ParseAck(ack)
				if err != nil || !testTags.Open(ack, a.Nonce) {
					t.Fatal(err)
				}
				if a.Nonce != wire.AckNonce(2, uint64(i)) || a.From != wire.FromKernel || a.Share != 17 || a.Claimed[0] != 1<<7 || a.Stamp != 0x5566 {
					t.Errorf("%+v", a)
				}
				udp := len(out) - len(ack) - 8
				if be.Uint16(out[udp+4:]) != 8+128 || be.Uint16(out[udp+6:]) != 0 {
					t.Errorf("UDP header %x", out[udp:udp+8])
				}
				hops := out[22]
				if v6 {
					hops = out[21]
					if be.Uint16(out[18:]) != 8+128 {
						t.Errorf("IP header %x", out[14:54])
					}
				} else if be.Uint16(out[16:]) != 28+128 || !ones(sum16(out[14:34])) {
					t.Errorf("IP header %x", out[14:34])
				}
				if turned && hops != 64 || !turned && hops != 61 {
					t.Errorf("mode %d: %d hops", mode, hops)
				}
			}
		}
	}
}

// An answer speaks of the frames around the one answered.
func TestAnswerCoversAGroup(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	b.stream.Frames = 4096
	for i := range b.stream.Seen {
		b.stream.Seen[i] = uint64(i) << 8
	}
	frame, _ := keyedFrame(t, narrow, wantAck(head(50*32)), 0, 1)
	_, out := b.Handle(0, NewPacket(frame).Bytes)
	_, a, err := wire.ParseAck(PayloadOf(out))
	if err != nil || a.Base != 44 {
		t.Fatal(a, err)
	}
	for i, c := range a.Claimed {
		want := uint32(44+i) << 8
		if i == 6 {
			want |= 1
		}
		if c != want {
			t.Errorf("word %d: %#x, not %#x", i, c, want)
		}
	}
}

func TestLostClaim(t *testing.T) {
	for _, ask := range []bool{false, true} {
		var b *bench
		cfg := Config{BeforeClaim: func(_, seq uint32) { b.stream.ClaimUser(seq) }}
		b = newBench(t, cfg, narrow, 6, wire.OpSum)
		h := head(7)
		if ask {
			h = wantAck(h)
		}
		frame, _ := keyedFrame(t, narrow, h, 0, 3)
		v, _ := b.Handle(0, NewPacket(frame).Bytes)
		want, verdict := reasons{wire.LostClaim: 1}, Drop
		if ask {
			want[wire.Answered], verdict = 1, TX
		}
		if v != verdict || !maps.Equal(b.counted(), want) {
			t.Error(v)
		}
		// Its keys have slots, which are no results.
		if b.drain(t) != "map[]" || wire.TableOf(b.table.Memory).Used != 3 || b.cell.Pairs != 0 {
			t.Error("a frame that was lost was applied")
		}
	}
}

func TestProbesAreTurned(t *testing.T) {
	for _, size := range []int{0, 32, 1376} {
		for mode, want := range map[wire.AnswerMode]struct {
			verdict Verdict
			reason  wire.Reason
		}{
			wire.AnswerTX:   {TX, wire.Probed},
			wire.AnswerTC:   {Pass, wire.Probed},
			wire.AnswerUser: {Pass, wire.AnswerUp},
		} {
			b := newBench(t, Config{Answer: mode}, narrow, 6, wire.OpSum)
			state := b.state()
			p := NewPacket(wire.PutProbe(make([]byte, wire.FrameSize), 0xabc, 4, size, 99)).Checksum()
			before := clone(p)
			v, out := b.Handle(0, p.Bytes)
			if v != want.verdict || !maps.Equal(b.counted(), reasons{want.reason: 1}) || b.state() != state {
				t.Errorf("mode %d: %v", mode, v)
			}
			if mode == wire.AnswerUser {
				if !bytes.Equal(out, before) {
					t.Error("a probe for user space was changed")
				}
				continue
			}
			h, err := wire.ParseProbe(PayloadOf(out))
			if err != nil || h.Kind != wire.ProbeReply || h.Count != wire.FromKernel || h.Token != 0xabc || h.Stamp != 99 || int(h.Length) != size {
				t.Errorf("%+v %v", h, err)
			}
			if !bytes.Equal(out[0:6], before[6:12]) || !bytes.Equal(out[26:30], before[30:34]) || !bytes.Equal(out[34:36], before[36:38]) ||
				!ones(sum16(out[14:34])) || be.Uint16(out[40:]) != 0 {
				t.Errorf("headers %x", out[:42])
			}
			// Its answer, at the prober, is the socket's.
			back := newBench(t, Config{}, narrow, 6, wire.OpSum)
			if v, again := back.Handle(0, out); v != Pass || !bytes.Equal(again, out) || !maps.Equal(back.counted(), reasons{wire.UpShape: 1}) {
				t.Error("an answer to a probe did not come through")
			}
		}
	}
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	for name, f := range map[string]func(p *Packet){
		"count": func(p *Packet) { p.SetFrame(6, 1) },
		"shape": func(p *Packet) { p.SetFrame(5, 1) },
		"cut":   func(p *Packet) { p.Frame(p.Payload()[:64]) },
	} {
		p := NewPacket(wire.PutProbe(make([]byte, wire.FrameSize), 0xabc, 4, 96, 99))
		f(p)
		if v, _ := b.Handle(0, p.Bytes); v != Drop || !maps.Equal(b.counted(), reasons{wire.Malformed: 1}) {
			t.Errorf("%s: %v", name, v)
		}
	}
}

// ackPacket returns an acknowledgement as it comes to the sender.
func ackPacket(a wire.AckBody, change func(h *wire.Head)) *Packet {
	h := wire.Head{Magic: wire.Magic, Version: 1, Token: testToken, Stream: 1, Seq: 40, Back: 4}
	if change != nil {
		change(&h)
	}
	return NewPacket(wire.PutAck(make([]byte, wire.AckFrame), h, a, testTags)).Back()
}

func TestAcksAreAbsorbed(t *testing.T) {
	now := uint64(1000)
	b := newBench(t, Config{Now: func() uint64 { return now }}, narrow, 6, wire.OpSum)
	out := &b.Memory().Outgoing[4]
	*out = wire.Outgoing{Token: testToken, Job: testJob, Frames: 300, Wake: 5}
	send := func(a wire.AckBody) (Verdict, reasons) {
		p := ackPacket(a, nil).Checksum()
		before := clone(p)
		v, rest := b.Handle(0, p.Bytes)
		if v == Pass && !bytes.Equal(rest, before) {
			t.Error("an acknowledgement that goes up was changed")
		}
		return v, b.counted()
	}
	a := wire.AckBody{Nonce: 1, Stamp: 50, Share: 8, Base: 1, From: wire.FromKernel, Claimed: [8]uint32{1, 0, 0x80000000}}
	if v, r := send(a); v != Drop || !maps.Equal(r, reasons{wire.Absorbed: 1}) {
		t.Error(v, r)
	}
	// Word 1 is the upper half of the first 64; word 3 that of the second.
	if out.Count != 2 || out.Acked[0] != 1<<32 || out.Acked[1] != 1<<63 || out.Stamp != 50 || out.Share != 8 || out.From != 1 || out.Answers != 1 || out.Arrived != 1000 {
		t.Errorf("%+v", out)
	}
	// The same again: nothing is new, it is counted as an answer. Its stamp counts though it is older: the larger may have been damaged.
	a.Stamp, now = 40, 2000
	a.Share, a.From = 9, wire.FromUser
	if v, r := send(a); v != Drop || !maps.Equal(r, reasons{wire.Absorbed: 1}) {
		t.Error(v, r)
	}
	if out.Count != 2 || out.Stamp != 40 || out.Share != 9 || out.From != 2 || out.Answers != 2 || out.Arrived != 2000 {
		t.Errorf("%+v", out)
	}
	// Two more: one short of the wake.
	a.Claimed[0] = 7
	if v, r := send(a); v != Drop || !maps.Equal(r, reasons{wire.Absorbed: 1}) || out.Count != 4 {
		t.Error(v, r)
	}
	// Two more pass it: this one goes up.
	a.Claimed[1] = 3
	if v, r := send(a); v != Pass || !maps.Equal(r, reasons{wire.AbsorbedUp: 1}) || out.Count != 6 {
		t.Error(v, r)
	}
	// The next ones do not.
	a.Claimed[1] = 7
	if v, r := send(a); v != Drop || !maps.Equal(r, reasons{wire.Absorbed: 1}) || out.Count != 7 {
		t.Error(v, r)
	}
	// Exactly at the mark.
	out.Wake = 8
	a.Claimed[1] = 15
	if v, r := send(a); v != Pass || !maps.Equal(r, reasons{wire.AbsorbedUp: 1}) {
		t.Error(v, r)
	}
}

func TestAcksAreChecked(t *testing.T) {
	good := wire.AckBody{Nonce: 1, From: wire.FromKernel, Claimed: [8]uint32{1}}
	for name, c := range map[string]struct {
		verdict Verdict
		reason  wire.Reason
		body    func(a *wire.AckBody)
		head    func(h *wire.Head)
		packet  func(p *Packet)
		memory  func(o *wire.Outgoing)
	}{
		"good":                  {Drop, wire.Absorbed, nil, nil, nil, nil},
		"to our port":           {Pass, wire.Foreign, nil, nil, func(p *Packet) { p.Back() }, nil},
		"cut":                   {Drop, wire.Malformed, nil, nil, func(p *Packet) { p.Frame(p.Payload()[:127]) }, nil},
		"two in one":            {Pass, wire.UpShape, nil, nil, func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), p.Payload()...)) }, nil},
		"shape":                 {Drop, wire.Malformed, nil, nil, func(p *Packet) { p.SetFrame(5, 1) }, nil},
		"count":                 {Drop, wire.Malformed, nil, nil, func(p *Packet) { p.SetFrame(6, 1) }, nil},
		"length 32":             {Drop, wire.Malformed, nil, nil, func(p *Packet) { p.SetFrame(28, 32) }, nil},
		"base":                  {Drop, wire.Malformed, func(a *wire.AckBody) { a.Base = 121 }, nil, nil, nil},
		"nonce":                 {Drop, wire.Malformed, func(a *wire.AckBody) { a.Nonce = 1 << 48 }, nil, nil, nil},
		"from":                  {Drop, wire.Malformed, func(a *wire.AckBody) { a.From = 3 }, nil, nil, nil},
		"zero":                  {Drop, wire.Malformed, func(a *wire.AckBody) { a.Zero2[1] = 3 }, nil, nil, nil},
		"malformed and a stray": {Drop, wire.Malformed, func(a *wire.AckBody) { a.Zero = 3 }, func(h *wire.Head) { h.Back = 77 }, nil, nil},
		"slot beyond all":       {Drop, wire.AckStray, nil, func(h *wire.Head) { h.Back = 16 }, nil, nil},
		"another slot":          {Drop, wire.AckStray, nil, func(h *wire.Head) { h.Back = 5 }, nil, nil},
		"another token":         {Drop, wire.AckStray, nil, func(h *wire.Head) { h.Token-- }, nil, nil},
		"closed":                {Drop, wire.AckStray, nil, func(h *wire.Head) { h.Token = 0 }, nil, func(o *wire.Outgoing) { o.Token = 0 }},
		"no job":                {Drop, wire.AckStray, nil, nil, nil, func(o *wire.Outgoing) { o.Job = 8 }},
		"stray, and no tag":     {Drop, wire.AckStray, nil, func(h *wire.Head) { h.Back = 5 }, func(p *Packet) { p.SetFrame(32, 0, 0) }, nil},
		"tag":                   {Drop, wire.AckTag, nil, nil, func(p *Packet) { p.SetFrame(32, p.Payload()[32]^4) }, nil},
		"damaged window":        {Drop, wire.AckTag, nil, nil, func(p *Packet) { p.SetFrame(64+24, 3) }, nil},
		"another nonce":         {Drop, wire.AckTag, nil, nil, func(p *Packet) { p.SetFrame(64, 2) }, nil},
		"a chain's answer":      {Pass, wire.UpChain, nil, nil, func(p *Packet) { p.SetFrame(4, byte(wire.BroadcastAck)) }, nil},
	} {
		b := newBench(t, Config{}, narrow, 6, wire.OpSum)
		out := &b.Memory().Outgoing[4]
		*out = wire.Outgoing{Token: testToken, Job: testJob, Frames: 300}
		if c.memory != nil {
			c.memory(out)
		}
		a := good
		if c.body != nil {
			c.body(&a)
		}
		p := ackPacket(a, c.head)
		if c.packet != nil {
			c.packet(p)
		}
		state := b.state()
		v, _ := b.Handle(0, p.Bytes)
		if r := b.counted(); v != c.verdict || !maps.Equal(r, reasons{c.reason: 1}) {
			t.Errorf("%s: %v, counted %v", name, v, r)
		}
		if (b.state() == state) != (c.reason != wire.Absorbed) {
			t.Errorf("%s: what was changed", name)
		}
	}
}
