// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/quernmr/quern/shuffle/pairs"
	"pgregory.net/rapid"
)

var (
	testSeed = pairs.Seed{A: 0x0123456789abcdef, B: 0xfedcba9876543210}
	testTags = NewTags([16]byte{7, 7, 7})
)

type pair struct {
	key   []byte
	lanes []int64
}

func drawLanes(t *rapid.T, n int, wide bool) []int64 {
	lanes := make([]int64, n)
	for i := range lanes {
		if wide {
			lanes[i] = rapid.Int64().Draw(t, "value")
		} else {
			lanes[i] = int64(rapid.Int32().Draw(t, "value"))
		}
	}
	return lanes
}

// drawFrame returns a good frame, what is in it, and the lanes of its job. Dense frames have
// pairs without keys.
func drawFrame(t *rapid.T) (frame []byte, shape Shape, lanes int, offset uint32, want []pair) {
	wide := rapid.Bool().Draw(t, "wide")
	n := 1
	switch rapid.IntRange(0, 3).Draw(t, "form") {
	case 0:
		shape, lanes = Long, rapid.IntRange(1, 9).Draw(t, "lanes")
		n, wide = rapid.IntRange(1, 20).Draw(t, "pairs"), true
	case 1:
		shape, lanes = Dense, 1
		if wide {
			shape |= Wide
		}
		n = rapid.IntRange(1, (BodySize-8)/shape.ValueBytes()).Draw(t, "values")
		offset = rapid.Uint32Range(0, 1<<32-1-uint32(n)).Draw(t, "offset")
	default:
		lanes = rapid.IntRange(1, MaxLanes).Draw(t, "lanes")
		shape = Keyed(rapid.IntRange(0, Classes-1).Draw(t, "class"), lanes, wide)
		n = rapid.IntRange(1, shape.PairsPerFrame()).Draw(t, "pairs")
	}
	var b Builder
	b.Reset(make([]byte, FrameSize), shape)
	for i := range n {
		p := pair{lanes: drawLanes(t, lanes, wide)}
		ok := true
		switch {
		case shape == Long:
			least := MaxKey + 1
			if lanes > MaxLanes {
				least = 0
			}
			p.key = rapid.SliceOfN(rapid.Byte(), least, 200).Draw(t, "key")
			ok = b.Add(0, p.key, p.lanes)
		case shape&Dense != 0:
			ok = b.AddValue(offset+uint32(i), p.lanes[0])
		default:
			p.key = rapid.SliceOfN(rapid.Byte(), leastKey(shape.Class()), shape.KeyBytes()).Draw(t, "key")
			ok = b.Add(testSeed.HashBytes(p.key), p.key, p.lanes)
		}
		if b.Err() != nil {
			t.Fatal(b.Err())
		}
		if !ok {
			if shape != Long {
				t.Fatalf("pair %d of %d does not fit", i, n)
			}
			break
		}
		want = append(want, p)
	}
	h := Head{
		Token: rapid.Uint64().Draw(t, "token"), Stream: rapid.Uint32().Draw(t, "stream"),
		Seq: rapid.Uint32Range(0, Segment-1).Draw(t, "seq"), Back: rapid.Uint32().Draw(t, "back"),
	}
	frame = b.Finish(h, testTags)
	if frame == nil {
		t.Fatal("no frame", b.Err())
	}
	return frame, shape, lanes, offset, want
}

func TestFramesComeBack(t *testing.T) {
	var r Reader
	rapid.Check(t, func(t *rapid.T) {
		frame, shape, lanes, offset, want := drawFrame(t)
		h, err := ParseFrame(frame)
		if err != nil {
			t.Fatal(err)
		}
		if h.Kind != Data || h.Shape != shape || !testTags.OpenData(frame) {
			t.Fatalf("head %+v", h)
		}
		if err := r.Reset(frame, lanes); err != nil {
			t.Fatal(err)
		}
		for i, p := range want {
			if r.Left() != len(want)-i || !r.Next() {
				t.Fatalf("ends before pair %d", i)
			}
			if !bytes.Equal(r.Key(), p.key) || !slices.Equal(r.Lanes(), p.lanes) {
				t.Fatalf("pair %d: %q %v, not %q %v", i, r.Key(), r.Lanes(), p.key, p.lanes)
			}
			if shape.Keyed() && r.Meta() != Meta(testSeed.HashBytes(p.key), len(p.key)) {
				t.Fatalf("pair %d: meta %#x", i, r.Meta())
			}
			if shape&Dense != 0 && r.Index() != offset+uint32(i) {
				t.Fatalf("value %d: number %d", i, r.Index())
			}
		}
		if r.Next() {
			t.Fatal("more pairs than were put in")
		}
		if shape == Long {
			return // lanes do not show in it
		}
		if err := r.Reset(frame, lanes+1); err == nil {
			t.Fatal("read with another number of lanes")
		} else if r.Next() {
			t.Fatal("pairs after an error")
		}
	})
}

func TestKeyedFrameBytes(t *testing.T) {
	var b Builder
	buf := bytes.Repeat([]byte{0xff}, FrameSize)
	b.Reset(buf, Keyed(1, 2, false))
	if !b.Add(0x8000000000000000, []byte("ninebytes"), []int64{-2, 0x01020304}) {
		t.Fatal(b.Err())
	}
	if !b.Add(1<<39, []byte("sixteen bytes ab"), []int64{5, -1 << 31}) || b.Count() != 2 {
		t.Fatal(b.Err())
	}
	frame := b.Finish(Head{Token: 9}, nil)
	want := unhex(t, `
		51524e31 01 05 02 01 0900000000000000 00000000 00000000 00000000 4000 0000
		0000000000000000 0000000000000000 00 00 0000 00000000 00000000 0000 00 00
		0a000080 feffffff 04030201 6e696e65627974657300000000000000
		91000000 05000000 00000080 7369787465656e206279746573206162
		0000000000000000`)
	if !bytes.Equal(frame, want) {
		t.Errorf("got  %x\nwant %x", frame, want)
	}
}

func TestLongFrameBytes(t *testing.T) {
	key := bytes.Repeat([]byte{'k'}, 66)
	var b Builder
	b.Reset(bytes.Repeat([]byte{0xff}, FrameSize), Long)
	if !b.Add(0, key, []int64{-1}) {
		t.Fatal(b.Err())
	}
	frame := b.Finish(Head{}, nil)
	want := append(unhex(t, "42000000 ffffffffffffffff"), key...) // 12 + 66 = 78, then to 80, then to 96
	want = append(want, make([]byte, 18)...)
	if !bytes.Equal(frame[HeadSize:], want) || frame[5] != 0x20 || frame[6] != 1 {
		t.Errorf("got  %x\nwant %x", frame, want)
	}
}

func TestDenseFrameBytes(t *testing.T) {
	var b Builder
	b.Reset(bytes.Repeat([]byte{0xff}, FrameSize), Dense)
	for i, v := range []int64{1, -1} {
		if !b.AddValue(uint32(258+i), v) {
			t.Fatal(b.Err())
		}
	}
	frame := b.Finish(Head{}, nil)
	want := append(unhex(t, "02010000 02000000 01000000 ffffffff"), make([]byte, 48)...)
	if !bytes.Equal(frame[HeadSize:], want) || frame[5] != 0x40 || frame[6] != 0 {
		t.Errorf("got  %x\nwant %x", frame, want)
	}
}

func TestBuilderIsFull(t *testing.T) {
	var b Builder
	buf := make([]byte, FrameSize)
	for s := range Shape(KeyedShapes) {
		b.Reset(buf, s)
		key := bytes.Repeat([]byte{'x'}, s.KeyBytes())
		n := 0
		for b.Add(0, key, make([]int64, s.Lanes())) {
			n++
		}
		if n != s.PairsPerFrame() || b.Err() != nil {
			t.Errorf("shape %#x: %d pairs, not %d (%v)", uint8(s), n, s.PairsPerFrame(), b.Err())
		}
		if _, err := ParseFrame(b.Finish(Head{Token: 1}, nil)); err != nil {
			t.Errorf("shape %#x: %v", uint8(s), err)
		}
	}
	for shape, want := range map[Shape]int{Dense: 342, Dense | Wide: 171} { // (1376 - 8) / 4 and / 8
		b.Reset(buf, shape)
		n := 0
		for b.AddValue(uint32(n), 0) {
			n++
		}
		if n != want || b.Err() != nil {
			t.Errorf("shape %#x: %d values, not %d (%v)", uint8(shape), n, want, b.Err())
		}
	}
	// Long pairs of five lanes and no key: 44 bytes, 31 of them in 1376.
	b.Reset(buf, Long)
	n := 0
	for b.Add(0, nil, make([]int64, 5)) {
		n++
	}
	if n != 31 || b.Err() != nil {
		t.Errorf("%d long pairs (%v)", n, b.Err())
	}
}

func TestBuilderRefuses(t *testing.T) {
	narrow, buf := Keyed(0, 1, false), make([]byte, FrameSize)
	for _, c := range []struct {
		name  string
		shape Shape
		buf   []byte
		add   func(b *Builder) bool
	}{
		{"a key of the next class", narrow, buf, func(b *Builder) bool { return b.Add(0, make([]byte, 9), []int64{1}) }},
		{"a key of the class below", Keyed(1, 1, false), buf, func(b *Builder) bool { return b.Add(0, make([]byte, 8), []int64{1}) }},
		{"a long key", Keyed(3, 1, false), buf, func(b *Builder) bool { return b.Add(0, make([]byte, 65), []int64{1}) }},
		{"a short key in a long frame", Long, buf, func(b *Builder) bool { return b.Add(0, make([]byte, 64), []int64{1}) }},
		{"no lanes in a long frame", Long, buf, func(b *Builder) bool { return b.Add(0, make([]byte, 65), nil) }},
		{"too many lanes", narrow, buf, func(b *Builder) bool { return b.Add(0, nil, []int64{1, 2}) }},
		{"a wide value", narrow, buf, func(b *Builder) bool { return b.Add(0, nil, []int64{1 << 31}) }},
		{"a wide negative value", narrow, buf, func(b *Builder) bool { return b.Add(0, nil, []int64{-1<<31 - 1}) }},
		{"a wide value in a vector", Dense, buf, func(b *Builder) bool { return b.AddValue(0, 1<<31) }},
		{"a gap in a vector", Dense, buf, func(b *Builder) bool { return b.AddValue(4, 1) && b.AddValue(6, 1) }},
		{"a value in a keyed frame", narrow, buf, func(b *Builder) bool { return b.AddValue(0, 1) }},
		{"a pair in a vector", Dense, buf, func(b *Builder) bool { return b.Add(0, nil, []int64{1}) }},
		{"no shape", 0x80, buf, func(b *Builder) bool { return b.Add(0, nil, []int64{1}) }},
		{"a small buffer", narrow, buf[: 10 : FrameSize-1], func(b *Builder) bool { return b.Add(0, nil, []int64{1}) }},
		{"a small buffer, long", Long, buf[: 10 : FrameSize-1], func(b *Builder) bool { return b.Add(0, make([]byte, 70), []int64{1}) }},
		{"a small buffer, dense", Dense, buf[: 10 : FrameSize-1], func(b *Builder) bool { return b.AddValue(0, 1) }},
	} {
		var b Builder
		b.Reset(c.buf, c.shape)
		if c.add(&b) || !errors.Is(b.Err(), ErrMisuse) {
			t.Errorf("%s: %v", c.name, b.Err())
		}
		if b.Finish(Head{}, nil) != nil {
			t.Errorf("%s: finished", c.name)
		}
	}
	var b Builder
	b.Reset(buf, narrow)
	if b.Finish(Head{}, nil) != nil {
		t.Error("an empty frame was finished")
	}
	for _, v := range []int64{1<<31 - 1, -1 << 31} {
		if !b.Add(0, nil, []int64{v}) {
			t.Errorf("%d: %v", v, b.Err())
		}
	}
}

func TestLargeFrames(t *testing.T) {
	var r Reader
	for _, c := range []struct{ key, lanes, want int }{
		{1365, 1, 1408}, // 4 + 8 + 1368 = 1380
		{1 << 20, 4, 36 + 1<<20 + 28},
		{10, 200, 1632}, // 4 + 1600 + 12 = 1616
	} {
		key := bytes.Repeat([]byte("key"), c.key)[:c.key]
		lanes := make([]int64, c.lanes)
		for i := range lanes {
			lanes[i] = int64(i) - 3
		}
		frame, err := LargeFrame(Head{Token: 5, Seq: 6}, key, lanes, testTags)
		if err != nil {
			t.Fatal(err)
		}
		if len(frame) != HeadSize+c.want || !testTags.OpenData(frame) {
			t.Errorf("%d bytes: a frame of %d", c.key, len(frame))
		}
		if err := r.Reset(frame, c.lanes); err != nil {
			t.Fatal(err)
		}
		if !r.Next() || !bytes.Equal(r.Key(), key) || !slices.Equal(r.Lanes(), lanes) || r.Next() {
			t.Errorf("%d bytes: other pairs", c.key)
		}
		for _, i := range []int{8, 20, 64, 70, len(frame) - 1} {
			frame[i] ^= 1
			if testTags.OpenData(frame) {
				t.Errorf("byte %d is not under the tag", i)
			}
			frame[i] ^= 1
		}
	}
	if _, err := LargeFrame(Head{}, make([]byte, 1364), []int64{1}, nil); !errors.Is(err, ErrMisuse) { // 1376
		t.Errorf("a pair that fits: %v", err)
	}
	if _, err := LargeFrame(Head{}, make([]byte, 64), []int64{1}, nil); !errors.Is(err, ErrMisuse) {
		t.Errorf("a short key: %v", err)
	}
	var b Builder
	b.Reset(make([]byte, FrameSize), Long)
	if b.Add(0, make([]byte, 1365), []int64{1}) || b.Err() != nil || b.Count() != 0 {
		t.Errorf("a pair that fits no frame: %v", b.Err())
	}
	if !b.Add(0, make([]byte, 1364), []int64{1}) {
		t.Errorf("the largest pair that fits: %v", b.Err())
	}
}

// Every way to break a frame that its head does not show.
func TestReaderRefuses(t *testing.T) {
	build := func(shape Shape, pairs ...pair) []byte {
		var b Builder
		b.Reset(make([]byte, FrameSize), shape)
		for i, p := range pairs {
			if shape&Dense != 0 {
				b.AddValue(uint32(i), p.lanes[0])
			} else {
				b.Add(testSeed.HashBytes(p.key), p.key, p.lanes)
			}
		}
		f := b.Finish(Head{Token: 1}, testTags)
		if f == nil {
			t.Fatal(b.Err())
		}
		return f
	}
	one := []int64{1}
	keyed := build(Keyed(1, 1, false), pair{[]byte("nine bytes"), one}, pair{[]byte("sixteen bytes ab"), one})
	long := build(Long, pair{bytes.Repeat([]byte{'k'}, 66), one}, pair{bytes.Repeat([]byte{'l'}, 68), one}) // 80 + 80, to 160
	dense := build(Dense, pair{nil, one}, pair{nil, one})
	set := func(f []byte, at int, b ...byte) []byte {
		f = bytes.Clone(f)
		copy(f[HeadSize+at:], b)
		return f
	}
	small := set(keyed, 0, keyed[64]&0x80|9)
	clear(small[HeadSize+8+8 : HeadSize+24]) // the padding of an 8-byte key is there
	ack := PutAck(make([]byte, AckFrame), Head{Magic: Magic, Version: 1}, AckBody{From: 1}, testTags)
	for _, c := range []struct {
		name  string
		frame []byte
		want  error
	}{
		{"keyed", keyed, nil},
		{"length bits 0", set(keyed, 0, keyed[64]&0x80), ErrPair},
		{"a key of 8 bytes in the class of 9 to 16", set(keyed, 0, keyed[64]&0x80|9), ErrPair},
		{"a key of 8 bytes, padded well", small, ErrPair},
		{"a key of 17 bytes", set(keyed, 0, keyed[64]&0x80|18), ErrPair},
		{"a key of 126 bytes", set(keyed, 24, keyed[88]|0x7f), ErrPair},
		{"a key cut by its length", set(keyed, 0, keyed[64]&0x80|10), ErrPair},
		{"padding of a key", set(keyed, 18, 1), ErrPair},
		{"last padding of a key", set(keyed, 23, 1), ErrPair},
		{"padding of the body", set(keyed, 48, 1), ErrBody},
		{"last padding of the body", set(keyed, 63, 1), ErrBody},
		{"long", long, nil},
		{"a long key of 64", set(long, 0, 64), ErrPair},
		{"a long key that ends beyond the frame", set(long, 80, 77), ErrPair},
		{"a huge long key", set(long, 80, 0xff, 0xff, 0xff, 0xff), ErrPair},
		{"a long key that would wrap", set(long, 80, 0xfd, 0xff, 0xff, 0x7f), ErrPair},
		{"padding of a long key", set(long, 79, 1), ErrPair},
		{"dense", dense, nil},
		{"no values", set(dense, 4, 0), ErrLength},
		{"too many values", set(dense, 4, 15), ErrLength},
		{"very many values", set(dense, 4, 0xff, 0xff, 0xff, 0xff), ErrLength},
		{"a vector beyond 2^32", set(dense, 0, 0xff, 0xff, 0xff, 0xff), ErrBody},
		{"padding of a vector", set(dense, 16, 1), ErrBody},
		{"an acknowledgement", ack, ErrKind},
	} {
		var r Reader
		err := r.Reset(c.frame, 1)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: error %v, not %v", c.name, err, c.want)
		}
		if err != nil && (r.Next() || r.Left() != 0) {
			t.Errorf("%s: pairs after an error", c.name)
		}
		before := bytes.Clone(c.frame)
		err = Restore(c.frame, testSeed)
		if ReadHead(c.frame).Shape.Keyed() {
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%s: restored with error %v, not %v", c.name, err, c.want)
			}
		}
		if !bytes.Equal(before, c.frame) {
			t.Errorf("%s: restoring changed the frame", c.name)
		}
	}
	var r Reader
	if err := r.Reset(long, 0); !errors.Is(err, ErrBody) {
		t.Errorf("no lanes: %v", err)
	}
	// Count says one pair less: what is left is no padding.
	few := bytes.Clone(long)
	few[6] = 1
	if err := r.Reset(few, 1); !errors.Is(err, ErrLength) {
		t.Errorf("a long pair too few: %v", err)
	}
	few[6] = 3
	if err := r.Reset(few, 1); !errors.Is(err, ErrPair) {
		t.Errorf("a long pair too many: %v", err)
	}
}

func TestPaddingZero(t *testing.T) {
	for class := range Classes {
		key := make([]byte, 8<<class)
		for n := range len(key) + 1 {
			for i := range key {
				key[i] = 0x80
				if got := paddingZero(key, n); got != (i < n) {
					t.Errorf("%d of %d bytes, byte %d is not zero: %v", n, len(key), i, got)
				}
				key[i] = 0
			}
		}
	}
}

// Whatever part of a frame's hashes a program replaced, restoring makes it whole.
func TestRestore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame, shape, _, _, want := drawFrame(t)
		whole := bytes.Clone(frame)
		replaced := 0
		if shape.Keyed() {
			replaced = rapid.IntRange(0, len(want)).Draw(t, "replaced")
			for i := range replaced {
				p := frame[HeadSize+i*shape.PairSize():]
				le.PutUint32(p, rapid.Uint32Range(0, 1<<25-1).Draw(t, "slot")<<7|le.Uint32(p)&0x7f)
			}
		}
		copy(frame[52:64], rapid.SliceOfN(rapid.Byte(), 12, 12).Draw(t, "scratch"))
		if replaced > 0 && !bytes.Equal(frame[HeadSize:], whole[HeadSize:]) && testTags.OpenData(frame) {
			t.Fatal("the tag does not see that hashes were replaced")
		}
		if err := Restore(frame, testSeed); err != nil {
			t.Fatal(err)
		}
		if !testTags.OpenData(frame) || !bytes.Equal(frame[HeadSize:], whole[HeadSize:]) {
			t.Fatal("not whole after restoring")
		}
	})
}

// A program's slots and the sender's lengths are all that a restored frame takes from
// outside; a frame with another key does not pass for it.
func TestRestoreDoesNotForgive(t *testing.T) {
	var b Builder
	b.Reset(make([]byte, FrameSize), Keyed(0, 1, true))
	b.Add(testSeed.HashBytes([]byte("key")), []byte("key"), []int64{4})
	frame := b.Finish(Head{Token: 1}, testTags)
	frame[HeadSize+12] = 'K'
	if err := Restore(frame, testSeed); err != nil {
		t.Fatal(err)
	}
	if testTags.OpenData(frame) {
		t.Error("another key passed")
	}
}

func TestNoAllocations(t *testing.T) {
	buf, other := make([]byte, FrameSize), make([]byte, AckFrame)
	var b Builder
	var r Reader
	key, lanes := []byte("a key of 16 byte"), []int64{1, 2}
	shape := Keyed(1, 2, false)
	var frame []byte
	build := func() {
		b.Reset(buf, shape)
		for b.Add(1<<40, key, lanes) {
		}
		frame = b.Finish(Head{Token: 1}, testTags)
	}
	build()
	var seen [SeenWords]uint64
	for name, f := range map[string]func(){
		"build":   build,
		"tag":     func() { testTags.SealData(frame) },
		"open":    func() { testTags.OpenData(frame) },
		"restore": func() { _ = Restore(frame, testSeed) },
		"read": func() {
			_ = r.Reset(frame, 2)
			for r.Next() {
			}
		},
		"long": func() {
			b.Reset(buf, Long)
			for b.Add(0, buf[:70], lanes) {
			}
			b.Finish(Head{Token: 1}, testTags)
		},
		"dense": func() {
			b.Reset(buf, Dense)
			for i := uint32(0); b.AddValue(i, 1); i++ {
			}
			b.Finish(Head{Token: 1}, testTags)
		},
		"acknowledge": func() {
			a := AckBody{From: FromUser}
			a.Window(&seen, 5)
			PutAck(other, Head{Magic: Magic, Version: 1}, a, testTags)
			_, _, _ = ParseAck(other)
		},
	} {
		if name == "open" || name == "tag" {
			build()
		}
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func benchFrame(shape Shape) []byte {
	var b Builder
	b.Reset(make([]byte, FrameSize), shape)
	for i := 0; ; i++ {
		key := fmt.Appendf(nil, "%0*d", shape.KeyBytes(), i)
		if !b.Add(testSeed.HashBytes(key), key, make([]int64, shape.Lanes())) {
			return b.Finish(Head{Token: 1}, testTags)
		}
	}
}

func BenchmarkTag(b *testing.B) {
	frame := make([]byte, FrameSize)
	le.PutUint16(frame[28:], BodySize)
	b.SetBytes(TaggedHead + BodySize)
	for b.Loop() {
		testTags.Seal(frame, 5)
	}
}

func BenchmarkBuild(b *testing.B) {
	shape := Keyed(1, 1, false)
	var f Builder
	buf, key, lanes := make([]byte, FrameSize), []byte("a key of 16 byte"), []int64{1}
	b.SetBytes(FrameSize)
	for b.Loop() {
		f.Reset(buf, shape)
		for i := uint64(0); f.Add(i<<40, key, lanes); i++ {
		}
		f.Finish(Head{Token: 1}, nil)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*shape.PairsPerFrame()), "ns/pair")
}

func BenchmarkRead(b *testing.B) {
	shape := Keyed(1, 1, false)
	frame := benchFrame(shape)
	var r Reader
	var sum int64
	b.SetBytes(FrameSize)
	for b.Loop() {
		if err := r.Reset(frame, 1); err != nil {
			b.Fatal(err)
		}
		for r.Next() {
			sum += r.Lanes()[0] + int64(len(r.Key()))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*shape.PairsPerFrame()), "ns/pair")
}

func BenchmarkRestore(b *testing.B) {
	shape := Keyed(1, 1, false)
	frame := benchFrame(shape)
	b.SetBytes(FrameSize)
	for b.Loop() {
		if err := Restore(frame, testSeed); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*shape.PairsPerFrame()), "ns/pair")
}
