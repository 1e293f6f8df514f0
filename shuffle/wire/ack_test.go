// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestAckBytes(t *testing.T) {
	h := headExample // a data frame with everything set
	a := AckBody{
		Nonce: AckNonce(3, 0x123456789), Stamp: h.Stamp, Share: 0x0a0b0c0d, Base: 0x78, From: FromKernel,
		Claimed: [AckWords]uint32{1, 2, 3, 4, 5, 6, 7, 0x80000000},
	}
	got := PutAck(bytes.Repeat([]byte{0xff}, 200), h, a, testTags)
	tag := testTags.Tag(got, a.Nonce)
	want := unhex(t, `
		51524e31 02 00 00 01 0807060504030201 14131211 24232221 34333231 4000 0000
		0000000000000000 5857565554535251 00 00 0000 00000000 00000000 0000 00 00
		8967452331000000 5857565554535251 0d0c0b0a 7800 01 00
		01000000 02000000 03000000 04000000 05000000 06000000 07000000 00000080 0000000000000000`)
	le.PutUint64(want[32:], tag)
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if !testTags.Open(got, a.Nonce) || testTags.Open(got, a.Nonce+1) {
		t.Error("tag")
	}
	head, body, err := ParseAck(got)
	if err != nil || body != a || head.Kind != Ack || head.Token != h.Token || head.Seq != h.Seq || head.Back != h.Back {
		t.Errorf("%+v %+v %v", head, body, err)
	}
	// A program passes it up as an answer, and tags it as what it is to become.
	got[4] = byte(Answer)
	if _, _, err := ParseAck(got); err != nil || testTags.Open(got, a.Nonce) {
		t.Errorf("an answer: %v", err)
	}
	AnswerToAck(got)
	if !bytes.Equal(got, want) {
		t.Error("an answer does not become the acknowledgement")
	}
}

func TestAckNonce(t *testing.T) {
	for _, c := range []struct {
		cpu   int
		count uint64
		want  uint64
	}{
		{0, 0, 0},
		{0, 1<<36 - 1, 1<<36 - 1},
		{0, 1 << 36, 0},
		{1, 5, 1<<36 | 5},
		{UserCPU, 1<<36 - 1, 1<<48 - 1},
	} {
		if got := AckNonce(c.cpu, c.count); got != c.want {
			t.Errorf("%d, %d: %#x", c.cpu, c.count, got)
		}
	}
}

func TestAckBase(t *testing.T) {
	for seq, want := range map[uint32]uint16{
		0: 0, 31: 0, 223: 0, // word 6
		224:  1,              // word 7 is the first that leaves word 0 behind
		256:  2,              // word 8
		4064: 120,            // word 127 would be 121
		4095: 120, 4031: 119, // word 125
		4032: 120, // word 126
	} {
		got := AckBase(seq)
		if got != want {
			t.Errorf("frame %d: %d, not %d", seq, got, want)
		}
		if w := seq / 32; w < uint32(got) || w >= uint32(got)+AckWords {
			t.Errorf("frame %d is not in its own window", seq)
		}
	}
}

func TestParseAckRefuses(t *testing.T) {
	good := AckBody{Nonce: 1<<48 - 1, From: FromUser, Base: 120}
	put := func(a AckBody) []byte {
		return PutAck(make([]byte, AckFrame), Head{Magic: Magic, Version: 1}, a, testTags)
	}
	if _, _, err := ParseAck(put(good)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*AckBody){
		"nonce":   func(a *AckBody) { a.Nonce = 1 << 48 },
		"base":    func(a *AckBody) { a.Base = 121 },
		"from 0":  func(a *AckBody) { a.From = 0 },
		"from 3":  func(a *AckBody) { a.From = 3 },
		"zero":    func(a *AckBody) { a.Zero = 1 },
		"zero2":   func(a *AckBody) { a.Zero2[0] = 1 },
		"zero2 1": func(a *AckBody) { a.Zero2[1] = 1 },
	} {
		a := good
		change(&a)
		if _, _, err := ParseAck(put(a)); !errors.Is(err, ErrBody) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := ParseAck(put(good)[:127]); !errors.Is(err, ErrShort) {
		t.Errorf("cut: %v", err)
	}
	if _, err := ParseAckBody(make([]byte, 63)); !errors.Is(err, ErrShort) {
		t.Errorf("cut body: %v", err)
	}
	probe := PutProbe(make([]byte, 128), 1, 1, 64, 1)
	if _, _, err := ParseAck(probe); !errors.Is(err, ErrKind) {
		t.Errorf("a probe: %v", err)
	}
}

// Windows that come in in any order, and more than once, add up to what was claimed in them.
func TestWindowsAreAbsorbed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Stream
		var acked [AckedWords]uint64
		var model [Segment]bool
		count := 0
		for range rapid.IntRange(1, 20).Draw(t, "answers") {
			for _, seq := range rapid.SliceOfN(rapid.Uint32Range(0, Segment-1), 0, 40).Draw(t, "claimed") {
				if seq%2 == 0 {
					s.ClaimKernel(seq)
				} else {
					s.ClaimUser(seq) // its other bit does not show
				}
			}
			seq := rapid.Uint32Range(0, Segment-1).Draw(t, "answered")
			var a AckBody
			a.Window(&s.Seen, seq)
			fresh := 0
			for i := range 32 * AckWords {
				f := uint32(a.Base)*32 + uint32(i)
				if s.Claimed(f) && !model[f] {
					model[f] = true
					fresh++
				}
			}
			if got := a.Absorb(&acked); got != fresh {
				t.Fatalf("%d new frames, not %d", got, fresh)
			}
			count += fresh
			if got := a.Absorb(&acked); got != 0 {
				t.Fatalf("%d new frames of the same answer", got)
			}
		}
		for f, want := range model {
			if got := acked[f/64]>>(f%64)&1 != 0; got != want {
				t.Fatalf("frame %d: %v, not %v", f, got, want)
			}
			if want {
				count--
			}
		}
		if count != 0 {
			t.Fatalf("%d frames counted and not there", count)
		}
	})
}

func TestProbes(t *testing.T) {
	b := PutProbe(bytes.Repeat([]byte{0xff}, FrameSize), 0x1122, 3, 1376, 99)
	if len(b) != FrameSize {
		t.Fatal(len(b))
	}
	h, err := ParseProbe(b)
	if want := (Head{Magic: Magic, Version: 1, Kind: Probe, Token: 0x1122, Seq: 3, Length: 1376, Stamp: 99}); err != nil || h != want {
		t.Errorf("%+v %v", h, err)
	}
	if !zero(b[HeadSize:]) {
		t.Error("the body is not zero")
	}
	AnswerProbe(b)
	if h, err = ParseProbe(b); err != nil || h.Kind != ProbeReply || h.Count != FromUser || h.Token != 0x1122 {
		t.Errorf("%+v %v", h, err)
	}
	if _, err := ParseProbe(PutAck(make([]byte, AckFrame), Head{Magic: Magic, Version: 1}, AckBody{}, testTags)); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if _, err := ParseProbe(b[:100]); !errors.Is(err, ErrShort) {
		t.Error(err)
	}
}
