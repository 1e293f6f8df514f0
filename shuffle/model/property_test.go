// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
	"pgregory.net/rapid"
)

// job draws a stream's frames: pairs of one shape with few different keys.
func drawJob(t *rapid.T, shape wire.Shape, frames int) (all [][]byte, in [][]Pair) {
	least := 0
	if shape.Class() > 0 {
		least = shape.KeyBytes()/2 + 1
	}
	var b wire.Builder
	for seq := range frames {
		b.Reset(make([]byte, wire.FrameSize), shape)
		var pairs []Pair
		for range rapid.IntRange(1, min(12, shape.PairsPerFrame())).Draw(t, "pairs") {
			n := rapid.IntRange(least, min(least+1, shape.KeyBytes())).Draw(t, "length")
			p := Pair{Key: string(bytes.Repeat([]byte{byte(rapid.IntRange(0, 5).Draw(t, "letter"))}, n))}
			for range shape.Lanes() {
				if shape&wire.Wide != 0 {
					p.Lanes = append(p.Lanes, rapid.Int64().Draw(t, "value"))
				} else {
					p.Lanes = append(p.Lanes, int64(rapid.Int32().Draw(t, "value")))
				}
			}
			if !b.Add(testSeed.HashBytes([]byte(p.Key)), []byte(p.Key), p.Lanes) {
				t.Fatal(b.Err())
			}
			pairs = append(pairs, p)
		}
		h := head(uint32(seq))
		h.Flags = uint8(rapid.IntRange(0, 1).Draw(t, "ask"))
		all, in = append(all, b.Finish(h, testTags)), append(in, pairs)
	}
	return all, in
}

func drawShape(t *rapid.T) (wire.Shape, []uint8) {
	lanes := rapid.IntRange(1, wire.MaxLanes).Draw(t, "lanes")
	shape := wire.Keyed(rapid.IntRange(0, wire.Classes-1).Draw(t, "class"), lanes, rapid.Bool().Draw(t, "wide"))
	// No bound sums: values are drawn from all there are.
	return shape, rapid.SliceOfN(rapid.Uint8Range(0, wire.OpXor), lanes, lanes).Draw(t, "ops")
}

// Frames that come in any order, some of them often, over several CPUs, some into a table that is
// far too small or missing: what the programs folded and what went up is each frame once.
func TestFoldIsTheOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape, ops := drawShape(t)
		cpus := rapid.IntRange(1, 3).Draw(t, "cpus")
		b := newBench(t, Config{CPUs: cpus}, shape, rapid.IntRange(0, 4).Draw(t, "bits"), ops...)
		tables := [][]byte{b.table.Memory}
		more, err := b.NewTables(b.table.Layout, cpus-1)
		if err != nil {
			t.Fatal(err)
		}
		for i, table := range more {
			if i == 1 {
				break // the third CPU has none
			}
			b.Memory().Cells[testTarget*cpus+1+i].SetPlace(shape.Class(), uint32(table.ID)+1, uint8(i))
			tables = append(tables, table.Memory)
		}
		frames, in := drawJob(t, shape, rapid.IntRange(1, 8).Draw(t, "frames"))

		want := map[string][]*big.Int{}
		for _, pairs := range in {
			Merge(ops, want, Fold(ops, pairs...))
		}
		user := map[string][]*big.Int{}
		var r wire.Reader
		deliver := func(seq, cpu int) {
			p := NewPacket(frames[seq])
			v, out := b.Handle(cpu, p.Bytes)
			if v != Pass {
				return
			}
			// What a receiver in user space does.
			f := PayloadOf(out)
			if err := wire.Restore(f, testSeed); err != nil {
				t.Fatal(err)
			}
			if !testTags.OpenData(f) || !bytes.Equal(f[wire.HeadSize:], frames[seq][wire.HeadSize:]) {
				t.Fatal("a frame that went up is not whole")
			}
			if !b.stream.ClaimUser(uint32(seq)) {
				return
			}
			if err := r.Reset(f, shape.Lanes()); err != nil {
				t.Fatal(err)
			}
			for r.Next() {
				Merge(ops, user, Fold(ops, Pair{string(r.Key()), r.Lanes()}))
			}
		}
		for range rapid.IntRange(0, 20).Draw(t, "packets") {
			deliver(rapid.IntRange(0, len(frames)-1).Draw(t, "frame"), rapid.IntRange(0, cpus-1).Draw(t, "cpu"))
		}
		for seq := range frames { // what is missing is sent again, in the end
			if !b.stream.Claimed(uint32(seq)) {
				deliver(seq, seq%cpus)
			}
		}
		got := user
		pairs, counted := uint64(0), uint64(0)
		for _, memory := range tables {
			all, err := Drain(memory, shape.Class(), shape.Lanes(), b.ops)
			if err != nil {
				t.Fatal(err)
			}
			Merge(ops, got, all)
			pairs += wire.TableOf(memory).Pairs
		}
		for i := range cpus {
			c := &b.Memory().Cells[testTarget*cpus+i]
			counted += c.Pairs
		}
		if d := Diff(got, want); d != "" {
			t.Fatal(d)
		}
		for seq := range frames { // the books
			if b.stream.Seen[0]>>(32+seq)&1 == 0 {
				counted -= uint64(len(in[seq]))
				pairs -= uint64(len(in[seq]))
			}
		}
		if counted != 0 || pairs != 0 {
			t.Fatalf("cells are off by %d pairs, tables by %d", int64(counted), int64(pairs))
		}
	})
}

// A frame that does not fit changes no result, and is whole again after it went up.
func TestWholeOrNotAtAll(t *testing.T) {
	b := newBench(t, Config{}, narrow, 2, wire.OpMax)
	fits, _ := keyedFrame(t, narrow, head(0), 0, 3)
	large, _ := keyedFrame(t, narrow, wantAck(head(1)), 1, 40)
	if v, _ := b.Handle(0, NewPacket(fits).Bytes); v != Drop {
		t.Fatal(v)
	}
	before := b.drain(t)
	b.counted()
	for range 3 {
		p := NewPacket(large).Checksum()
		v, out := b.Handle(0, p.Bytes)
		if v != Pass || !maps.Equal(b.counted(), reasons{wire.UpFull: 1}) {
			t.Fatal(v)
		}
		if b.drain(t) != before || b.stream.Claimed(1) || b.cell.Frames != 1 || b.cell.Pairs != 3 {
			t.Error("a frame without place was applied or claimed")
		}
		f := PayloadOf(out)
		if bytes.Equal(f, large) || testTags.OpenData(f) {
			t.Error("pass one left no trace, so this test shows nothing")
		}
		if be.Uint16(out[14+20+6:]) != 0 {
			t.Error("a packet that was changed kept its checksum")
		}
		if h := wire.ReadHead(f); h.SCell != testTarget || h.STable != uint32(b.table.ID)&0xffffff || h.SSet != 0 || h.SOps != b.ops || h.SShift != 0 {
			t.Errorf("scratch %+v", h)
		}
		if err := wire.Restore(f, testSeed); err != nil || !testTags.OpenData(f) {
			t.Error("not whole again", err)
		}
	}
	if b.cell.Full != 3 {
		t.Errorf("%d frames without place", b.cell.Full)
	}
}

// Every byte of a frame damaged in turn: nothing is changed.
func TestDamageChangesNothing(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	frame, _ := keyedFrame(t, narrow, head(7), 0, 4) // no padding
	state := b.state()
	for i := range frame {
		if i >= 40 && i < 48 || i >= 52 && i < 64 || i == 48 {
			continue // stamp, scratch, flags: nothing depends on them
		}
		for _, x := range []byte{1, 0x80, 0xff} {
			v, _ := b.Handle(0, NewPacket(frame).SetFrame(i, frame[i]^x).Bytes)
			if v == TX || b.state() != state {
				t.Fatalf("byte %d xor %#x: %v", i, x, v)
			}
		}
	}
	for n := range len(frame) { // cut, with headers that say so
		if v, _ := b.Handle(0, NewPacket(frame[:n]).Bytes); v == TX || b.state() != state {
			t.Fatalf("cut to %d: %v", n, v)
		}
	}
	whole := NewPacket(frame)
	for n := range len(whole.Bytes) { // cut, with headers that don't
		if v, _ := b.Handle(0, whole.Clone().Cut(n).Bytes); v == TX || b.state() != state {
			t.Fatalf("packet cut to %d: %v", n, v)
		}
	}
	if b.counted()[wire.Folded] != 0 || wire.TableOf(b.table.Memory).Used != 0 {
		t.Error("something was folded, or a slot taken")
	}
	if v, _ := b.Handle(0, whole.Bytes); v != Drop || b.state() == state {
		t.Error("the frame itself is not taken")
	}
}

// Forged: the right token and everything else right, and a tag that is a guess.
func TestForgedFramesTakeNoSlot(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	frame, _ := keyedFrame(t, narrow, head(7), 0, 4)
	state := b.state()
	random := rand.New(rand.NewPCG(1, 2))
	const tries = 20_000
	for range tries {
		p := NewPacket(frame)
		le.PutUint64(p.Payload()[32:], random.Uint64())
		le.PutUint32(p.Payload()[68:], random.Uint32())
		if v, _ := b.Handle(0, p.Bytes); v != Drop {
			t.Fatal(v)
		}
	}
	if b.state() != state || !maps.Equal(b.counted(), reasons{wire.BadTag: tries}) {
		t.Error("a forged frame changed something")
	}
}

// A frame that was delayed until its slot had another stream is dropped.
func TestDelayedIntoAnotherStream(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	frame, _ := keyedFrame(t, narrow, wantAck(head(7)), 0, 4)
	b.stream.Token++
	state := b.state()
	if v, _ := b.Handle(0, NewPacket(frame).Bytes); v != Drop || b.state() != state || !maps.Equal(b.counted(), reasons{wire.BadToken: 1}) {
		t.Error(v)
	}
}

// Forged duplicates get no answer: the tag is looked at first.
func TestForgedDuplicatesGetNoAnswer(t *testing.T) {
	b := newBench(t, Config{}, narrow, 6, wire.OpSum)
	frame, _ := keyedFrame(t, narrow, wantAck(head(7)), 0, 4)
	b.Handle(0, NewPacket(frame).Bytes)
	b.counted()
	if v, _ := b.Handle(0, NewPacket(frame).SetFrame(70, 1).Bytes); v != Drop || !maps.Equal(b.counted(), reasons{wire.BadTag: 1}) {
		t.Error(v)
	}
	if v, _ := b.Handle(0, NewPacket(frame).Bytes); v != TX || !maps.Equal(b.counted(), reasons{wire.Duplicate: 1, wire.Answered: 1}) {
		t.Error(v)
	}
}

// A sum that wraps on its way and comes back has the same carries in whatever order.
func TestOverflowDoesNotDependOnOrder(t *testing.T) {
	wide := wire.Keyed(0, 2, true)
	values := []int64{1<<63 - 1, 1<<63 - 1, -1 << 63, -5, 1<<62 + 3, 7}
	var frames [][]byte
	for seq, v := range values {
		var f wire.Builder
		f.Reset(make([]byte, wire.FrameSize), wide)
		f.Add(testSeed.HashBytes([]byte("k")), []byte("k"), []int64{v, -v})
		frames = append(frames, f.Finish(head(uint32(seq)), testTags))
	}
	want := ""
	for seed := range uint64(20) {
		b := newBench(t, Config{}, wide, 3, wire.OpSum, wire.OpSum)
		for _, seq := range rand.New(rand.NewPCG(seed, 1)).Perm(len(frames)) {
			b.Handle(0, NewPacket(frames[seq]).Bytes)
		}
		got := b.drain(t)
		if want == "" {
			want = got
			// 2 (2^63 - 1) - 2^63 - 5 + 2^62 + 3 + 7, and its negation but for the wrapped -(-2^63), which is -2^63.
			a := new(big.Int).Lsh(big.NewInt(1), 63)
			a.Add(a, new(big.Int).Lsh(big.NewInt(1), 62)).Add(a, big.NewInt(3))
			n := new(big.Int).Neg(a)
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), 64))
			if got != fmt.Sprintf("map[k:[%v %v]]", a, n) {
				t.Fatalf("%s, not %v %v", got, a, n)
			}
		}
		if got != want {
			t.Fatalf("order %d: %s, not %s", seed, got, want)
		}
	}
}

func TestVectors(t *testing.T) {
	for _, shape := range []wire.Shape{wire.Dense, wire.Dense | wire.Wide} {
		b := newBench(t, Config{}, shape, 4, wire.OpMin)
		send := func(seq uint32, offset uint32, want reasons, values ...int64) {
			t.Helper()
			b.Handle(0, NewPacket(denseFrame(t, shape, head(seq), offset, values...)).Bytes)
			if got := b.counted(); !maps.Equal(got, want) {
				t.Errorf("counted %v, not %v", got, want)
			}
		}
		folded := reasons{wire.Folded: 1}
		send(0, 0, folded, 5, -6)
		send(1, 1, folded, 3, 9)
		send(2, 12, folded, 1, 2, 3, -1<<31)        // to the very end
		b.cell.SetPlace(0, uint32(b.table.ID)+1, 3) // a vector has no hashes to shift
		p := NewPacket(denseFrame(t, shape, head(3), 13, 1, 2, 3, 4))
		_, out := b.Handle(0, p.Bytes)
		if h := wire.ReadHead(PayloadOf(out)); h.SShift != 0 || h.STable != uint32(b.table.ID)&0xffffff || !maps.Equal(b.counted(), reasons{wire.UpFull: 1}) {
			t.Errorf("%+v", h)
		}
		send(3, 13, reasons{wire.UpFull: 1}, 1, 2, 3, 4)      // one beyond
		send(4, 1<<32-4, reasons{wire.UpFull: 1}, 1, 2, 3, 4) // far beyond
		v, err := wire.NewVector(b.table.Memory, wire.OpMin)
		if err != nil {
			t.Fatal(err)
		}
		const none = 1<<63 - 1
		for i, want := range []int64{5, -6, 9, none, none, none, none, none, none, none, none, none, 1, 2, 3, -1 << 31} {
			if v.At(i) != want {
				t.Errorf("value %d: %d, not %d", i, v.At(i), want)
			}
		}
		if b.cell.Pairs != 8 || v.Pairs() != 8 || b.cell.Frames != 3 || b.cell.Full != 3 || b.stream.Seen[0] != 7 {
			t.Errorf("%+v", b.cell)
		}
		// A sum that may carry is user space's.
		b.stream.Ops = wire.OpSum
		send(5, 0, reasons{wire.UpShape: 1}, 1)
		b.stream.Ops = wire.OpSumBound
		send(5, 0, folded, 1)
		// No table.
		b.cell.SetPlace(0, 0, 0)
		send(6, 0, reasons{wire.UpTable: 1}, 1)
		if b.cell.Want != 1 || b.cell.Missing != 1 {
			t.Errorf("%+v", b.cell)
		}
		// Lengths that are not those of the number of values.
		for name, at := range map[string]int{"none": 0, "too many": 15, "very many": 255} {
			f := denseFrame(t, shape, head(7), 0, 1)
			f[68] = byte(at)
			testTags.SealData(f)
			if b.Handle(0, NewPacket(f).Bytes); !maps.Equal(b.counted(), reasons{wire.Malformed: 1}) {
				t.Errorf("%s values", name)
			}
		}
		// A keyed frame in a vector's stream.
		f, _ := keyedFrame(t, narrow, head(8), 0, 1)
		if b.Handle(0, NewPacket(f).Bytes); !maps.Equal(b.counted(), reasons{wire.Malformed: 1}) {
			t.Error("a keyed frame")
		}
	}
}

// The table of a class that has none is asked for.
func TestMissingTables(t *testing.T) {
	shape := wire.Keyed(2, 1, true)
	b := newBench(t, Config{CPUs: 2}, shape, 4, wire.OpSum)
	frame, _ := keyedFrame(t, shape, head(0), 0, 3)
	p := NewPacket(frame).Checksum()
	before := clone(p)
	if v, out := b.Handle(1, p.Bytes); v != Pass || !bytes.Equal(out, before) {
		t.Error("a frame without a table was changed")
	}
	cell := &b.Memory().Cells[testTarget*2+1]
	if cell.Want != 4 || cell.Missing != 1 || b.cell.Missing != 0 || b.stream.Seen[0] != 0 {
		t.Errorf("%+v", cell)
	}
}

// A pair whose length does not suit its class takes no slot.
func TestLengthsOfKeys(t *testing.T) {
	for _, bits := range []uint32{0, 10, 0x7f} { // 8-byte keys: 1 to 9 are lengths
		b := newBench(t, Config{}, narrow, 4, wire.OpSum)
		frame, _ := keyedFrame(t, narrow, head(0), 0, 1)
		le.PutUint32(frame[64:], le.Uint32(frame[64:])&^0x7f|bits)
		testTags.SealData(frame)
		if v, _ := b.Handle(0, NewPacket(frame).Bytes); v != Pass || !maps.Equal(b.counted(), reasons{wire.UpFull: 1}) {
			t.Errorf("length bits %d: %v", bits, v)
		}
		if wire.TableOf(b.table.Memory).Used != 0 {
			t.Errorf("length bits %d took a slot", bits)
		}
	}
}

// Flips in mid-stream: what is in the old table and in the new one adds up.
func TestFlips(t *testing.T) {
	b := newBench(t, Config{}, narrow, 3, wire.OpSum)
	more, err := b.NewTables(b.table.Layout, 1)
	if err != nil {
		t.Fatal(err)
	}
	var all []Pair
	for seq := range uint32(2) {
		frame, pairs := keyedFrame(t, narrow, head(seq), int(seq), 4)
		all = append(all, pairs...)
		if v, _ := b.Handle(0, NewPacket(frame).Bytes); v != Drop {
			t.Fatal(v)
		}
		if seq == 0 {
			b.cell.SetPlace(0, uint32(more[0].ID)+1, 1)
			if err := b.Quiesce(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ops := []uint8{wire.OpSum}
	old, err := Drain(b.table.Memory, 0, 1, b.ops)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := Drain(more[0].Memory, 0, 1, b.ops)
	if err != nil || len(old) != 4 || len(fresh) != 4 {
		t.Fatal(err, len(old), len(fresh))
	}
	Merge(ops, old, fresh)
	if d := Diff(old, Fold(ops, all...)); d != "" {
		t.Error(d)
	}
}

// Whatever comes: one reason, and nothing changed but by what was folded or absorbed. Packets may be
// sealed first, so that what is behind the tag is reached.
func FuzzHandle(f *testing.F) {
	frame, _ := keyedFrame(f, narrow, wantAck(head(7)), 0, 4)
	f.Add(NewPacket(frame).Bytes, true)
	f.Add(NewPacket6(frame).Bytes, true)
	f.Add(NewPacket(frame).Bytes, false)
	f.Add(ackPacket(wire.AckBody{From: 1, Claimed: [8]uint32{7}}, nil).Bytes, true)
	f.Add(NewPacket(wire.PutProbe(make([]byte, wire.FrameSize), 1, 2, 64, 3)).Bytes, false)
	f.Add(NewPacket(denseFrame(f, wire.Dense, head(1), 0, 1, 2)).Bytes, true)
	f.Fuzz(func(t *testing.T, packet []byte, sealed bool) {
		b := newBench(t, Config{}, narrow, 3, wire.OpSum)
		b.Memory().Outgoing[4] = wire.Outgoing{Token: testToken, Job: testJob, Frames: 300}
		if sealed {
			seal(packet)
		}
		state, before := b.state(), bytes.Clone(packet)
		v, out := b.Handle(0, packet)
		r := b.counted()
		sum, ends := uint64(0), uint64(0)
		for reason, n := range r {
			sum += n
			if reason == wire.Answered || reason == wire.AnswerUp || reason == wire.AnswerFailed {
				ends += n
			}
		}
		if sum-ends != 1 || ends > 1 {
			t.Fatalf("counted %v", r)
		}
		touched := r[wire.Folded]+r[wire.Absorbed]+r[wire.AbsorbedUp]+r[wire.UpFull] != 0
		if !touched && b.state() != state {
			t.Fatalf("%v changed something", r)
		}
		switch v {
		case Pass:
			if r[wire.UpFull]+r[wire.UpChain] == 0 && !bytes.Equal(out, before) {
				t.Fatalf("passed and changed: %v", r)
			}
		case TX:
			if r[wire.Answered]+r[wire.Probed] != 1 || len(out) > len(before) {
				t.Fatalf("sent back: %v", r)
			}
		case Drop:
			if out != nil {
				t.Fatal("dropped, and bytes are left")
			}
		default:
			t.Fatal(v)
		}
	})
}

// seal gives the frame in a packet the right tag, if there is a frame.
func seal(packet []byte) {
	at := ethBytes + ipv4Bytes + udpBytes
	if len(packet) > 14 && packet[12] == 0x86 {
		at = ethBytes + ipv6Bytes + udpBytes
	}
	if len(packet) < at {
		return
	}
	p := packet[at:]
	switch h, err := wire.ParseFrame(p); {
	case err != nil:
	case h.Kind == wire.Ack:
		testTags.Seal(p, le.Uint64(p[64:])&(1<<48-1))
	default:
		testTags.SealData(p)
	}
}
