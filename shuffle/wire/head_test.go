// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var headExample = Head{
	Magic: Magic, Kind: Data, Shape: 0x15, Count: 7, Version: 1,
	Token: 0x0102030405060708, Stream: 0x11121314, Seq: 0x21222324, Back: 0x31323334, Length: 0x0140, Zero: 0,
	Tag: 0x4142434445464748, Stamp: 0x5152535455565758, Flags: 1, Hop: 0x0a, Zero2: 0,
	SCell: 0x61626364, STable: 0x71727374, SOps: 0x8182, SShift: 0x91, SSet: 0xa1,
}

const headExampleHex = `
	51524e31 01 15 07 01 0807060504030201 14131211 24232221 34333231 4001 0000
	4847464544434241 5857565554535251 01 0a 0000 64636261 74737271 8281 91 a1`

func TestHeadBytes(t *testing.T) {
	b := make([]byte, HeadSize)
	h := headExample
	h.Put(b)
	if want := unhex(t, headExampleHex); !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
	if got := ReadHead(b); got != headExample {
		t.Errorf("got %+v", got)
	}
}

// Programs see structs in memory; the codecs must agree with them.
func TestLayoutsAreTheStructs(t *testing.T) {
	if le.Uint16([]byte{1, 0}) != *(*uint16)(unsafe.Pointer(&[]byte{1, 0}[0])) {
		t.Skip("structs in memory are only those of programs on little-endian machines")
	}
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), HeadSize, HeadSize).Draw(t, "head")
		var h Head
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&h)), HeadSize), raw)
		got := make([]byte, HeadSize)
		h.Put(got)
		if !bytes.Equal(got, raw) || ReadHead(raw) != h {
			t.Fatalf("head %x came out as %x", raw, got)
		}
		var a AckBody
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&a)), AckSize), raw)
		a.Put(got)
		if !bytes.Equal(got, raw) {
			t.Fatalf("body %x came out as %x", raw, got)
		}
		var c Chunk
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), ChunkHead), raw)
		c.Put(got)
		if !bytes.Equal(got[:ChunkHead], raw[:ChunkHead]) || ReadChunk(raw) != c {
			t.Fatalf("chunk %x came out as %x", raw[:ChunkHead], got[:ChunkHead])
		}
	})
	for _, s := range []struct {
		what      string
		got, want uintptr
	}{
		{"Head", unsafe.Sizeof(Head{}), HeadSize},
		{"AckBody", unsafe.Sizeof(AckBody{}), AckSize},
		{"Table", unsafe.Sizeof(Table{}), TableHead},
		{"Cell", unsafe.Sizeof(Cell{}), 128},
		{"Target", unsafe.Sizeof(Target{}), 64},
		{"Settings", unsafe.Sizeof(Settings{}), 64},
		{"Job", unsafe.Sizeof(Job{}), 16 + 8*176},
		{"Stream", unsafe.Sizeof(Stream{}), 128 + 1024},
		{"Outgoing", unsafe.Sizeof(Outgoing{}), 128 + 512},
		{"Cell.Shift", unsafe.Offsetof(Cell{}.Shift), 16},
		{"Stream.Seen", unsafe.Offsetof(Stream{}.Seen), 128},
		{"Chunk", unsafe.Sizeof(Chunk{}), ChunkHead},
		{"Hop", unsafe.Sizeof(Hop{}), 64},
		{"Region", unsafe.Sizeof(Region{}), 192},
		{"Cast", unsafe.Sizeof(Cast{}), 128 + 64*(8+4+64)},
		{"Event", unsafe.Sizeof(Event{}), 16},
		{"Part", unsafe.Sizeof(Part{}), PartHead},
		{"Group", unsafe.Sizeof(Group{}), 256},
		{"Group.Hops", unsafe.Offsetof(Group{}.Hops), 128},
		{"Region.Hops", unsafe.Offsetof(Region{}.Hops), 64},
		{"Cast.Want", unsafe.Offsetof(Cast{}.Want), 128},
		{"Outgoing.Acked", unsafe.Offsetof(Outgoing{}.Acked), 128},
	} {
		if s.got != s.want {
			t.Errorf("%s: %d, not %d", s.what, s.got, s.want)
		}
	}
}

func TestParseHead(t *testing.T) {
	data := func(shape Shape, count uint8, length uint16) Head {
		return Head{Magic: Magic, Version: 1, Kind: Data, Shape: shape, Count: count, Length: length}
	}
	of := func(kind Kind, count uint8, length uint16) Head {
		return Head{Magic: Magic, Version: 1, Kind: kind, Count: count, Length: length}
	}
	with := func(h Head, change func(*Head)) Head { change(&h); return h }
	for _, c := range []struct {
		name string
		head Head
		want error
	}{
		// Pairs of shape 0 are 4 + 4 + 8 = 16 bytes; 86 of them are 1376.
		{"least", data(0, 1, 64), nil},
		{"four fill the least body", data(0, 4, 64), nil},
		{"five need a step more", data(0, 5, 96), nil},
		{"five do not fit 64", data(0, 5, 64), ErrLength},
		{"four need no 96", data(0, 4, 96), ErrLength},
		{"most", data(0, 86, 1376), nil},
		{"one more", data(0, 87, 1376), ErrLength},
		{"one more and longer", data(0, 87, 1408), ErrLength},
		{"no pairs", data(0, 0, 64), ErrFormat},
		{"no length", data(0, 1, 0), ErrLength},
		{"below the least", data(0, 2, 32), ErrLength},
		{"no multiple", data(0, 4, 72), ErrLength},
		{"widest shape", data(0x1f, 13, 1312), nil}, // 4 + 32 + 64 = 100
		{"widest shape, too many", data(0x1f, 14, 1376), ErrLength},
		{"long", data(Long, 255, 1376), nil},
		{"long and empty", data(Long, 0, 64), ErrFormat},
		{"large", data(Long, 1, 0), nil},
		{"large with two pairs", data(Long, 2, 0), ErrFormat},
		{"long and wide", data(Long|Wide, 1, 64), ErrFormat},
		{"dense", data(Dense, 0, 64), nil},
		{"dense, wide", data(Dense|Wide, 0, 1376), nil},
		{"dense with a count", data(Dense, 1, 64), ErrFormat},
		{"dense with a class", data(Dense|1, 0, 64), ErrFormat},
		{"dense and long", data(Dense|Long, 0, 64), ErrFormat},
		{"no shape", data(0x80, 1, 64), ErrFormat},

		{"ack", of(Ack, 0, 64), nil},
		{"ack of 32", of(Ack, 0, 32), ErrLength},
		{"ack of 96", of(Ack, 0, 96), ErrLength},
		{"ack with a count", of(Ack, 1, 64), ErrFormat},
		{"ack with a shape", with(of(Ack, 0, 64), func(h *Head) { h.Shape = 1 }), ErrFormat},
		{"answer", of(Answer, 0, 64), nil},
		{"answer of 96", of(Answer, 0, 96), ErrLength},
		{"probe", of(Probe, 0, 0), nil},
		{"probe, largest", of(Probe, 0, 1376), nil},
		{"probe, too large", of(Probe, 0, 1408), ErrLength},
		{"probe with a count", of(Probe, 1, 0), ErrFormat},
		{"reply by the kernel", of(ProbeReply, 1, 0), nil},
		{"reply by user space", of(ProbeReply, 2, 32), nil},
		{"reply by nobody", of(ProbeReply, 0, 0), ErrFormat},
		{"reply by a third", of(ProbeReply, 3, 0), ErrFormat},
		{"chunk", of(Broadcast, 0, 64), nil},
		{"chunk that hopped", with(of(Broadcast, 0, 64), func(h *Head) { h.Hop = 9 }), nil},
		{"chain's answer that hopped", with(of(BroadcastAck, 0, 64), func(h *Head) { h.Hop = 9 }), nil},
		{"empty chunk", of(Broadcast, 0, 0), ErrLength},

		{"another magic", with(data(0, 1, 64), func(h *Head) { h.Magic++ }), ErrMagic},
		{"another version", with(data(0, 1, 64), func(h *Head) { h.Version = 2 }), ErrVersion},
		{"kind 0", of(0, 0, 64), ErrKind},
		{"kind 10", of(10, 0, 64), ErrKind},
		{"zero", with(data(0, 1, 64), func(h *Head) { h.Zero = 1 }), ErrFormat},
		{"zero2", with(data(0, 1, 64), func(h *Head) { h.Zero2 = 0x100 }), ErrFormat},
		{"flag", with(data(0, 1, 64), func(h *Head) { h.Flags = 1 }), nil},
		{"unknown flag", with(data(0, 1, 64), func(h *Head) { h.Flags = 3 }), ErrFormat},
		{"data that hopped", with(data(0, 1, 64), func(h *Head) { h.Hop = 1 }), ErrFormat},
		{"scratch", with(data(0, 1, 64), func(h *Head) { h.SCell, h.STable, h.SOps, h.SShift, h.SSet = 1, 2, 3, 4, 5 }), nil},
	} {
		b := make([]byte, HeadSize)
		c.head.Put(b)
		got, err := ParseHead(b)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: error %v, not %v", c.name, err, c.want)
		}
		if err == nil && got != c.head {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
	if _, err := ParseHead(make([]byte, HeadSize-1)); !errors.Is(err, ErrShort) {
		t.Errorf("63 bytes: %v", err)
	}
}

func TestParseFrameLength(t *testing.T) {
	frame := func(length uint16, n int) []byte {
		b := make([]byte, n)
		h := Head{Magic: Magic, Version: 1, Kind: Data, Shape: Long, Count: 1, Length: length}
		h.Put(b)
		return b
	}
	for _, c := range []struct {
		length uint16
		n      int
		want   error
	}{
		{64, 128, nil},
		{64, 127, ErrShort},
		{64, 129, ErrLength},
		{64, 64, ErrShort},
		{0, 64, ErrLength},
		{0, FrameSize, ErrLength}, // that would have had a length
		{0, FrameSize + 32, nil},
		{0, FrameSize + 33, ErrLength},
		{0, 64 + 1<<20, nil},
	} {
		if _, err := ParseFrame(frame(c.length, c.n)); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("length %d in %d bytes: error %v, not %v", c.length, c.n, err, c.want)
		}
	}
}

func TestPaddedSize(t *testing.T) {
	for n, want := range map[int]int{0: 64, 1: 64, 64: 64, 65: 96, 96: 96, 97: 128, 1345: 1376, 1376: 1376, 1377: 1408} {
		if got := PaddedSize(n); got != want {
			t.Errorf("%d: %d, not %d", n, got, want)
		}
	}
}

func TestSetStamp(t *testing.T) {
	b := unhex(t, headExampleHex)
	SetStamp(b, 0x0807060504030201, false)
	h := headExample
	h.Stamp, h.Flags = 0x0807060504030201, 0
	if got := ReadHead(b); got != h {
		t.Errorf("got %+v", got)
	}
	SetStamp(b, 1, true)
	if got := ReadHead(b); got.Stamp != 1 || got.Flags != FlagWantAck {
		t.Errorf("got %+v", got)
	}
}
