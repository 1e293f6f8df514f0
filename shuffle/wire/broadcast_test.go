// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dchest/siphash"
	"pgregory.net/rapid"
)

var (
	chunkHead = Head{Token: 0x0807060504030201, Seq: 0x24232221, Back: 0x34333231, Stamp: 0x5857565554535251, Hop: 2}
	chunkBody = Chunk{Place: 0x0605, First: 0x0603, Total: 3, Chain: 0x3f, Group: 0x8000000000000011}
)

// A last chunk of 33 bytes, what a member makes of it, and the answer, byte by byte.
func TestChunkBytes(t *testing.T) {
	data := bytes.Repeat([]byte{0xd1}, 33)
	got, err := PutChunk(bytes.Repeat([]byte{0xff}, FrameSize), chunkHead, chunkBody, data, testTags)
	if err != nil {
		t.Fatal(err)
	}
	// 32 + 33 bytes are 96 in a body.
	want := unhex(t, `
		51524e31 05 00 00 01 0102030405060708 00000000 21222324 31323334 6000 0000
		0000000000000000 5152535455565758 00 02 0000 00000000 00000000 0000 00 00
		05060000 03060000 03000000 2100 3f00 1100000000000080 0000000000000000
		d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1 d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1
		d100000000000000000000000000000000000000000000000000000000000000`)
	copy(want[offTag:], got[offTag:offTag+8])
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if !testTags.OpenChunk(got) {
		t.Error("tag")
	}

	PassChunk(got, 0x3e, 5, testTags)
	want[offHop], want[offChain], want[offGroup] = 3, 0x3e, 0x31
	copy(want[offTag:], got[offTag:offTag+8])
	if !bytes.Equal(got, want) || !testTags.OpenChunk(got) {
		t.Errorf("got  %x\nwant %x", got, want)
	}

	got = AnswerChunk(got, testTags)
	want = unhex(t, `
		51524e31 06 00 00 01 0102030405060708 00000000 21222324 31323334 4000 0000
		0000000000000000 5152535455565758 00 03 0000 00000000 00000000 0000 00 00
		05060000 03060000 03000000 0000 3e00 3100000000000080 0000000000000000
		0000000000000000000000000000000000000000000000000000000000000000`)
	copy(want[offTag:], got[offTag:offTag+8])
	if !bytes.Equal(got, want) || !testTags.OpenChunk(got) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	h, c, none, err := ParseChunk(got)
	if err != nil || h.Kind != BroadcastAck || h.Hop != 3 || none != nil ||
		c != (Chunk{Place: 0x0605, First: 0x0603, Total: 3, Chain: 0x3e, Group: 0x8000000000000031}) {
		t.Errorf("%+v %+v %v", h, c, err)
	}
}

// The tag is NH as of every frame, and a pad of 24 bytes.
func TestChunkTag(t *testing.T) {
	b, err := PutChunk(make([]byte, FrameSize), chunkHead, chunkBody, []byte("data"), testTags)
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	words := append(bytes.Clone(b[:TaggedHead]), b[HeadSize:]...)
	for i := 0; i < len(words); i += 8 {
		k := testTags.Job().NH[i/8]
		sum += uint64(le.Uint32(words[i:])+uint32(k)) * uint64(le.Uint32(words[i+4:])+uint32(k>>32))
	}
	pad := unhex(t, `0102030405060708 21222324 3f00 02 05 1100000000000080`)
	sum += siphash.Hash(testTags.Job().Sip0, testTags.Job().Sip1, pad)
	if got := le.Uint64(b[offTag:]); got != sum {
		t.Errorf("%#x, not %#x", got, sum)
	}
	// Stamp and what is behind hop are free; the rest is not.
	for i := range b {
		free := i >= offStamp && i <= offFlags || i > offHop && i < HeadSize
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if i >= offLength && i < offLength+2 {
			continue // ParseChunk sees that
		}
		if testTags.OpenChunk(bad) != free {
			t.Errorf("byte %d", i)
		}
	}
}

func TestChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint32Range(1, 1<<32-1).Draw(t, "total")
		first := rapid.Uint32Range(0, 1<<32-1-total).Draw(t, "first")
		c := Chunk{
			Place: first + rapid.Uint32Range(0, total-1).Draw(t, "place"), First: first, Total: total,
			Chain: rapid.OneOf(rapid.Uint16Range(0, MaxChains-1), rapid.SampledFrom([]uint16{ChainDirect, ChainAll})).Draw(t, "chain"),
			Group: rapid.Uint64().Draw(t, "group"),
		}
		n := ChunkSize
		if c.Place == first+(total-1) {
			n = rapid.IntRange(1, ChunkSize).Draw(t, "bytes")
		}
		data := rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")
		h := Head{Token: rapid.Uint64().Draw(t, "token"), Stream: 4, Seq: rapid.Uint32().Draw(t, "transmission"), Back: 5, Hop: rapid.Uint8Range(0, MaxChains-2).Draw(t, "hop")}
		b, err := PutChunk(bytes.Repeat([]byte{0xff}, FrameSize), h, c, data, testTags)
		if err != nil {
			t.Fatal(err)
		}
		c.Bytes = uint16(n)
		head, got, out, err := ParseChunk(b)
		if err != nil || got != c || !bytes.Equal(out, data) || head.Hop != h.Hop || head.Seq != h.Seq || head.Stream != 0 || head.Kind != Broadcast || !testTags.OpenChunk(b) {
			t.Fatal(head, got, err)
		}
		if n%32 != 0 {
			b[len(b)-1] = 1
			if _, _, _, err := ParseChunk(b); !errors.Is(err, ErrBody) {
				t.Fatalf("padding: %v", err)
			}
			b[len(b)-1] = 0
		}

		chain, bit := rapid.Uint16Range(0, MaxChains-1).Draw(t, "chain of the member"), rapid.Uint8Range(0, 63).Draw(t, "bit")
		before := bytes.Clone(b)
		PassChunk(b, chain, bit, testTags)
		c.Chain, c.Group = chain, c.Group|1<<bit
		head, got, out, err = ParseChunk(b)
		if err != nil || got != c || !bytes.Equal(out, data) || head.Hop != h.Hop+1 || !testTags.OpenChunk(b) {
			t.Fatal(head, got, err)
		}
		// It is another message: the old tag is not that of the new one.
		if copy(before[offTag:], b[offTag:offTag+8]); testTags.OpenChunk(before) {
			t.Fatal("hop, chain and group are not under the tag")
		}

		ack := AnswerChunk(b, testTags)
		head, got, out, err = ParseChunk(ack)
		c.Bytes = 0
		if err != nil || got != c || out != nil || head.Kind != BroadcastAck || head.Hop != h.Hop+1 || len(ack) != AnswerFrame || !testTags.OpenChunk(ack) {
			t.Fatal(head, got, err)
		}
		ack[HeadSize+ChunkHead] = 1
		if _, _, _, err := ParseChunk(ack); !errors.Is(err, ErrBody) {
			t.Fatalf("an answer with data: %v", err)
		}
	})
}

func TestPutChunkRefuses(t *testing.T) {
	full := make([]byte, ChunkSize)
	for name, c := range map[string]struct {
		body Chunk
		data []byte
	}{
		"beyond the last":      {Chunk{Place: 2, Total: 2}, full},
		"before the first":     {Chunk{Place: 1, First: 2, Total: 2}, full},
		"no message":           {Chunk{}, full},
		"a chain that isn't":   {Chunk{Total: 1, Chain: MaxChains}, full},
		"another":              {Chunk{Total: 1, Chain: ChainDirect - 1}, full},
		"beyond all numbers":   {Chunk{Place: 1<<32 - 2, First: 1<<32 - 2, Total: 2}, full},
		"empty":                {Chunk{Total: 1}, nil},
		"short":                {Chunk{Total: 2}, full[1:]},
		"short, further on":    {Chunk{Place: 8, First: 8, Total: 2}, full[1:]},
		"large":                {Chunk{Total: 1}, make([]byte, ChunkSize+1)},
		"large, not the last ": {Chunk{Total: 2}, make([]byte, ChunkSize+1)},
	} {
		if _, err := PutChunk(make([]byte, FrameSize), Head{}, c.body, c.data, testTags); !errors.Is(err, ErrMisuse) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := PutChunk(make([]byte, FrameSize), Head{}, Chunk{Place: 1<<32 - 2, First: 1<<32 - 2, Total: 1}, full, testTags); err != nil {
		t.Errorf("the last place there is: %v", err)
	}
}

func TestParseChunkRefuses(t *testing.T) {
	// Place 8 of message 7 to 8, with 40 bytes: 72, so 96 in the body.
	good, err := PutChunk(make([]byte, FrameSize), Head{Token: 1}, Chunk{Place: 8, First: 7, Total: 2}, make([]byte, 40), testTags)
	if err != nil {
		t.Fatal(err)
	}
	answer := AnswerChunk(bytes.Clone(good), testTags)
	const body = HeadSize
	for _, c := range []struct {
		name string
		of   []byte
		at   int
		b    byte
		want error
	}{
		{"as it is", good, 0, 0x51, nil},
		{"answer as it is", answer, 0, 0x51, nil},
		{"stream", good, 16, 1, ErrFormat},
		{"flag", good, offFlags, 1, ErrFormat},
		{"hop 63", good, offHop, 63, nil},
		{"hop 64", good, offHop, 64, ErrFormat},
		{"answer of 64 members", answer, offHop, 64, nil},
		{"answer of 65", answer, offHop, 65, ErrFormat},
		{"shape", good, 5, 1, ErrFormat},
		{"count", good, 6, 1, ErrFormat},
		{"place behind", good, body, 9, ErrBody},
		{"place before", good, body, 6, ErrBody},
		{"first", good, body + 4, 9, ErrBody},
		{"no total", good, body + 8, 0, ErrBody},
		{"zero", good, body + 24, 1, ErrBody},
		{"chain", good, body + 14, 64, ErrBody},
		{"chain 63", good, body + 14, 63, nil},
		{"no bytes", good, body + 12, 0, ErrLength},
		{"other bytes", good, body + 12, 65, ErrLength}, // 32 + 65 would be 128
		{"fewer bytes of the same length", good, body + 12, 33, nil},
		{"many bytes", good, body + 13, 6, ErrLength},
		{"not the last", good, body + 8, 3, ErrLength},
		{"answer with bytes", answer, body + 12, 1, ErrBody},
		{"answer with data", answer, body + 63, 1, ErrBody},
		{"answer, zero", answer, body + 31, 1, ErrBody},
	} {
		b := bytes.Clone(c.of)
		b[c.at] = c.b
		if _, _, _, err := ParseChunk(b); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, _, _, err := ParseChunk(good[:len(good)-1]); !errors.Is(err, ErrShort) {
		t.Errorf("cut: %v", err)
	}
	longer := append(bytes.Clone(answer), make([]byte, 32)...)
	longer[offLength] = 96
	if _, _, _, err := ParseChunk(longer); !errors.Is(err, ErrBody) {
		t.Errorf("a long answer: %v", err)
	}
	if _, _, _, err := ParseChunk(PutProbe(make([]byte, 64), 1, 1, 0, 0)); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if n := ChunkNonce(0x3f, 0x24232221); n != 0x3f24232221 {
		t.Errorf("nonce %#x", n)
	}
}

// A chunk is claimed once, by whomever, and counted with the message that begins at the mark.
func TestMarks(t *testing.T) {
	marks := make([]uint64, 2)
	if MarkState(&marks[1]) != MarkNone || !ClaimMark(&marks[1]) || ClaimMark(&marks[1]) || MarkState(&marks[1]) != MarkWriting {
		t.Fatalf("%#x", marks)
	}
	SetMark(&marks[1], MarkNone)
	if !ClaimMark(&marks[1]) {
		t.Fatal("it was given back")
	}
	SetMark(&marks[1], MarkStored)
	if ClaimMark(&marks[1]) || MarkState(&marks[1]) != MarkStored || CountMark(&marks[0]) != 1 || CountMark(&marks[0]) != 2 || MarkCount(&marks[0]) != 2 {
		t.Fatalf("%#x", marks)
	}
	if marks[0] != 2<<32 || marks[1] != MarkStored { // programs see the same halves
		t.Fatalf("%#x", marks)
	}
	if !ClaimMark(&marks[0]) || MarkCount(&marks[0]) != 2 {
		t.Fatalf("%#x", marks)
	}

	all := make([]uint64, 1000)
	var claimed atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range all {
				if ClaimMark(&all[i]) {
					claimed.Add(1)
					SetMark(&all[i], MarkStored)
					CountMark(&all[0])
				}
			}
		})
	}
	wg.Wait()
	if claimed.Load() != 1000 || MarkCount(&all[0]) != 1000 {
		t.Errorf("%d claims, %d counted", claimed.Load(), MarkCount(&all[0]))
	}
}
