// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/dchest/siphash"
	"pgregory.net/rapid"
)

var partBody = Part{What: 0xa4a3a2a1, Op: OpMax, Wide: 1, Reducer: 0x1f, Member: 0x1e}

const partTestToken = 0x0807060504030201

// A last block of 40 bytes, and a result of it, byte by byte.
func TestPartBytes(t *testing.T) {
	values := bytes.Repeat([]byte{0xd1}, 40)
	got, err := PutPart(bytes.Repeat([]byte{0xff}, FrameSize), Reduce, partTestToken, 0x24232221, partBody, values, testTags)
	if err != nil {
		t.Fatal(err)
	}
	// 32 + 40 bytes are 96 in a body.
	want := unhex(t, `
		51524e31 08 00 00 01 0102030405060708 00000000 21222324 00000000 6000 0000
		0000000000000000 0000000000000000 00 00 0000 00000000 00000000 0000 00 00
		a1a2a3a4 2800 02 01 1f 1e 0000 00000000 0000000000000000 0000000000000000
		d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1 d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1
		d1d1d1d1d1d1d1d1 000000000000000000000000000000000000000000000000`)
	copy(want[offTag:], got[offTag:offTag+8])
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if !testTags.OpenPart(got) || len(got) != PartFrameSize(40) {
		t.Errorf("tag, or %d bytes", len(got))
	}

	result := partBody
	result.Member = 0
	got, err = PutPart(make([]byte, FrameSize), Reduced, partTestToken, 0x24232221, result, values, testTags)
	if err != nil {
		t.Fatal(err)
	}
	want[offKind], want[HeadSize+9] = 9, 0
	copy(want[offTag:], got[offTag:offTag+8])
	if !bytes.Equal(got, want) || !testTags.OpenPart(got) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	h, p, out, err := ParsePart(got)
	if result.Bytes = 40; err != nil || h.Kind != Reduced || h.Token != partTestToken || h.Seq != 0x24232221 || p != result || !bytes.Equal(out, values) {
		t.Errorf("%+v %+v %v", h, p, err)
	}
}

// The tag is NH as of every frame, and a pad that names reducer, member and block.
func TestPartTag(t *testing.T) {
	b, err := PutPart(make([]byte, FrameSize), Reduce, partTestToken, 0x24232221, partBody, make([]byte, 8), testTags)
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	words := append(bytes.Clone(b[:TaggedHead]), b[HeadSize:]...)
	for i := 0; i < len(words); i += 8 {
		k := testTags.Job().NH[i/8]
		sum += uint64(le.Uint32(words[i:])+uint32(k)) * uint64(le.Uint32(words[i+4:])+uint32(k>>32))
	}
	pad := unhex(t, `0102030405060708 21222324 1e 1f 00 08`)
	sum += siphash.Hash(testTags.Job().Sip0, testTags.Job().Sip1, pad)
	if got := le.Uint64(b[offTag:]); got != sum {
		t.Errorf("%#x, not %#x", got, sum)
	}
	// Stamp and what is behind hop are free; the rest is not.
	for i := range b {
		free := i >= offStamp && i <= offFlags || i > offHop && i < HeadSize
		if i >= offLength && i < offLength+2 {
			continue // ParsePart sees that
		}
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if testTags.OpenPart(bad) != free {
			t.Errorf("byte %d", i)
		}
	}
	if n := PartNonce(0x1f, 0x1e, 0x24232221); n != 0x1f1e24232221 {
		t.Errorf("nonce %#x", n)
	}
}

func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]Kind{Reduce, Reduced}).Draw(t, "kind")
		p := Part{
			What: rapid.Uint32().Draw(t, "what"), Op: rapid.Uint8Range(OpSum, OpMax).Draw(t, "operation"), Wide: rapid.Uint8Range(0, 1).Draw(t, "wide"),
			Reducer: rapid.Uint8Range(0, MaxMembers-1).Draw(t, "reducer"), Member: rapid.Uint8Range(0, MaxMembers-1).Draw(t, "member"),
		}
		if kind == Reduced {
			p.Member = 0
		}
		n := 4 << p.Wide * rapid.IntRange(1, ChunkSize>>(2+p.Wide)).Draw(t, "values")
		values := make([]byte, n)
		for i, v := 0, rapid.Uint8().Draw(t, "first byte"); i < n; i++ {
			values[i] = v + byte(i*i)
		}
		token, block := rapid.Uint64().Draw(t, "token"), rapid.Uint32().Draw(t, "block")
		b, err := PutPart(bytes.Repeat([]byte{0xff}, FrameSize), kind, token, block, p, values, testTags)
		if err != nil {
			t.Fatal(err)
		}
		p.Bytes = uint16(n)
		h, got, out, err := ParsePart(b)
		if err != nil || got != p || !bytes.Equal(out, values) || h.Kind != kind || h.Token != token || h.Seq != block || len(b) != PartFrameSize(n) || !testTags.OpenPart(b) {
			t.Fatal(h, got, err)
		}
		if n%32 != 0 {
			b[len(b)-1] = 1
			if _, _, _, err := ParsePart(b); !errors.Is(err, ErrBody) {
				t.Fatalf("padding: %v", err)
			}
			b[len(b)-1] = 0
		}
		// A part is not its block's result, nor another member's.
		for _, at := range []int{offKind, HeadSize + 8, HeadSize + 9} {
			b[at] ^= 1
			if testTags.OpenPart(b) {
				t.Fatalf("byte %d is not under the tag", at)
			}
			b[at] ^= 1
		}
	})
}

func TestPutPartRefuses(t *testing.T) {
	full := make([]byte, ChunkSize)
	for name, c := range map[string]struct {
		kind   Kind
		part   Part
		values []byte
	}{
		"another kind":       {Data, Part{}, full},
		"an operation":       {Reduce, Part{Op: OpAnd}, full},
		"a width":            {Reduce, Part{Wide: 2}, full},
		"half a value":       {Reduce, Part{}, full[:6]},
		"half a wide value":  {Reduce, Part{Wide: 1}, full[:12]},
		"no values":          {Reduce, Part{}, nil},
		"too many":           {Reduce, Part{}, make([]byte, ChunkSize+4)},
		"a reducer":          {Reduce, Part{Reducer: MaxMembers}, full},
		"a member":           {Reduce, Part{Member: MaxMembers}, full},
		"a result of one":    {Reduced, Part{Member: 1}, full},
		"what must be zero":  {Reduce, Part{Zero: 1}, full},
		"the same":           {Reduce, Part{Zero2: 1}, full},
		"the same, at last ": {Reduce, Part{Zero3: [2]uint64{0, 1}}, full},
	} {
		if _, err := PutPart(make([]byte, FrameSize), c.kind, 1, 1, c.part, c.values, testTags); !errors.Is(err, ErrMisuse) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParsePartRefuses(t *testing.T) {
	// 40 bytes of values: 72, so 96 in the body.
	good, err := PutPart(make([]byte, FrameSize), Reduce, 1, 7, Part{Wide: 1, Member: 3, Reducer: 2}, make([]byte, 40), testTags)
	if err != nil {
		t.Fatal(err)
	}
	result, err := PutPart(make([]byte, FrameSize), Reduced, 1, 7, Part{Reducer: 2}, make([]byte, 40), testTags)
	if err != nil {
		t.Fatal(err)
	}
	const body = HeadSize
	for _, c := range []struct {
		name string
		of   []byte
		at   int
		b    byte
		want error
	}{
		{"as it is", good, 0, 0x51, nil},
		{"a result as it is", result, 0, 0x51, nil},
		{"stamp", good, offStamp, 1, nil},
		{"scratch", good, 63, 1, nil},
		{"stream", good, 16, 1, ErrFormat},
		{"back", good, offBack, 1, ErrFormat},
		{"flag", good, offFlags, 1, ErrFormat},
		{"hop", good, offHop, 1, ErrFormat},
		{"zero2", good, 50, 1, ErrFormat},
		{"shape", good, 5, 1, ErrFormat},
		{"count", good, 6, 1, ErrFormat},
		{"a chunk", good, offKind, byte(Broadcast), ErrKind},
		{"unknown", good, offKind, 10, ErrKind},
		{"no bytes", good, body + 4, 0, ErrBody},
		{"bytes of half a value", good, body + 4, 36, ErrBody},
		{"half a value", result, body + 4, 38, ErrBody},
		{"fewer of the same length", good, body + 4, 64, nil},
		{"fewer", good, body + 4, 32, ErrLength},
		{"more", good, body + 4, 72, ErrLength},
		{"many", good, body + 5, 6, ErrBody},
		{"operation", good, body + 6, 3, ErrBody},
		{"width", good, body + 7, 2, ErrBody},
		{"the last reducer", good, body + 8, 31, nil},
		{"reducer", good, body + 8, 32, ErrBody},
		{"the last member", good, body + 9, 31, nil},
		{"member", good, body + 9, 32, ErrBody},
		{"a result of a member", result, body + 9, 1, ErrBody},
		{"zero", good, body + 10, 1, ErrBody},
		{"zero 2", good, body + 15, 1, ErrBody},
		{"zero 3", good, body + 16, 1, ErrBody},
		{"the last zero", good, body + 31, 1, ErrBody},
		{"padding", good, body + 72, 1, ErrBody},
		{"the last of it", good, body + 95, 1, ErrBody},
	} {
		b := bytes.Clone(c.of)
		b[c.at] = c.b
		if _, _, _, err := ParsePart(b); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, _, _, err := ParsePart(good[:len(good)-1]); !errors.Is(err, ErrShort) {
		t.Errorf("cut: %v", err)
	}
	short := bytes.Clone(good[:HeadSize+32])
	short[offLength] = 32
	if _, _, _, err := ParsePart(short); !errors.Is(err, ErrLength) {
		t.Errorf("no values: %v", err)
	}
}

func FuzzPart(f *testing.F) {
	seeds(f)
	for _, n := range []int{4, 32, 40, ChunkSize} {
		for _, kind := range []Kind{Reduce, Reduced} {
			b, err := PutPart(make([]byte, FrameSize), kind, 1, 7, Part{What: 9, Op: OpMin, Reducer: 2}, make([]byte, n), testTags)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, p, values, err := ParsePart(b)
		if err != nil {
			return
		}
		if len(values) == 0 || len(values) > ChunkSize || len(values)%(4<<p.Wide) != 0 || h.Kind != Reduce && h.Kind != Reduced {
			t.Fatal(h, p, len(values))
		}
		again, err := PutPart(make([]byte, FrameSize), h.Kind, h.Token, h.Seq, p, values, testTags)
		if err != nil {
			t.Fatal(err)
		}
		// Tag, stamp and scratch are the sender's own.
		copy(again[offTag:offFlags], b[offTag:offFlags])
		copy(again[52:HeadSize], b[52:HeadSize])
		if !bytes.Equal(again, b) {
			t.Fatalf("got  %x\nwant %x", again, b)
		}
	})
}
