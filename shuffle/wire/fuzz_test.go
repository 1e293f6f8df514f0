// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"slices"
	"testing"
)

func seeds(f *testing.F) {
	var b Builder
	buf := make([]byte, FrameSize)
	head := Head{Token: 1, Seq: 2, Back: 3}
	for _, shape := range []Shape{Keyed(0, 1, false), Keyed(1, 2, true), Keyed(3, 4, false)} {
		b.Reset(buf, shape)
		for i := range 3 {
			b.Add(uint64(i)<<50, bytes.Repeat([]byte{'k'}, shape.KeyBytes()-i), make([]int64, shape.Lanes()))
		}
		f.Add(bytes.Clone(b.Finish(head, testTags)))
	}
	b.Reset(buf, Long)
	b.Add(0, bytes.Repeat([]byte{'k'}, 65), []int64{1})
	b.Add(0, bytes.Repeat([]byte{'l'}, 70), []int64{2})
	f.Add(bytes.Clone(b.Finish(head, testTags)))
	b.Reset(buf, Dense|Wide)
	b.AddValue(7, 1)
	b.AddValue(8, 2)
	f.Add(bytes.Clone(b.Finish(head, testTags)))
	large, _ := LargeFrame(head, bytes.Repeat([]byte{'m'}, 1500), []int64{1}, testTags)
	f.Add(large)
	f.Add(PutAck(make([]byte, AckFrame), Head{Magic: Magic, Version: 1, Token: 1}, AckBody{From: 1}, testTags))
	f.Add(PutProbe(make([]byte, FrameSize), 1, 2, 96, 3))
	chunk, _ := PutChunk(make([]byte, FrameSize), head, Chunk{Total: 1, Chain: ChainAll}, []byte("data"), testTags)
	f.Add(bytes.Clone(chunk))
	PassChunk(chunk, 3, 9, testTags)
	f.Add(bytes.Clone(chunk))
	f.Add(AnswerChunk(chunk, testTags))
}

// What is read from a frame, put together again, is the frame.
func FuzzFrame(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		testTags.OpenData(frame)
		h, err := ParseFrame(frame)
		if err != nil {
			return
		}
		again := make([]byte, HeadSize)
		h.Put(again)
		if !bytes.Equal(again, frame[:HeadSize]) {
			t.Fatalf("head %x came out as %x", frame[:HeadSize], again)
		}
		var r Reader
		lanes := 1
		if h.Shape.Keyed() {
			lanes = h.Shape.Lanes()
		}
		for ; lanes <= 6; lanes++ {
			if r.Reset(frame, lanes) == nil {
				rebuild(t, frame, h, &r)
			}
			if h.Shape != Long {
				break
			}
		}
	})
}

func rebuild(t *testing.T, frame []byte, h Head, r *Reader) {
	var again []byte
	if h.Length == 0 {
		if !r.Next() {
			t.Fatal("a large frame without a pair")
		}
		var err error
		if again, err = LargeFrame(h, r.Key(), r.Lanes(), nil); err != nil {
			t.Fatal(err)
		}
	} else {
		var b Builder
		b.Reset(make([]byte, FrameSize), h.Shape)
		for r.Next() {
			ok := false
			if h.Shape&Dense != 0 {
				ok = b.AddValue(r.Index(), r.Lanes()[0])
			} else {
				ok = b.Add(uint64(r.Meta()>>7)<<39, r.Key(), slices.Clone(r.Lanes()))
			}
			if !ok {
				t.Fatal("a pair that was read can't be put in", b.Err())
			}
		}
		again = b.Finish(h, nil)
	}
	copy(again[offTag:], frame[offTag:offTag+8])
	if !bytes.Equal(again, frame) {
		t.Fatalf("got  %x\nwant %x", again, frame)
	}
}

// Restoring twice is restoring once, and changes hashes alone.
func FuzzRestore(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		if err := Restore(frame, testSeed); err != nil {
			if !bytes.Equal(before, frame) {
				t.Fatal("a frame that is wrong was changed")
			}
			return
		}
		once := bytes.Clone(frame)
		if err := Restore(frame, testSeed); err != nil || !bytes.Equal(once, frame) {
			t.Fatal("restoring again changes it", err)
		}
		h := ReadHead(frame)
		if !h.Shape.Keyed() {
			if !bytes.Equal(before, frame) {
				t.Fatal("a frame without hashes was changed")
			}
			return
		}
		for i := range int(h.Count) {
			at := HeadSize + i*h.Shape.PairSize()
			le.PutUint32(before[at:], le.Uint32(before[at:])&0x7f)
			le.PutUint32(once[at:], le.Uint32(once[at:])&0x7f)
		}
		if !bytes.Equal(before, once) {
			t.Fatal("more than hashes changed")
		}
	})
}

func FuzzAck(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, a, err := ParseAck(b)
		if err != nil {
			return
		}
		again := make([]byte, AckFrame)
		h.Put(again)
		a.Put(again[HeadSize:])
		if !bytes.Equal(again, b) {
			t.Fatalf("got  %x\nwant %x", again, b)
		}
		var acked [AckedWords]uint64
		fresh, want := a.Absorb(&acked), 0
		for _, c := range a.Claimed {
			want += onesCount(uint64(c))
		}
		if fresh != want {
			t.Fatalf("%d frames, not %d", fresh, want)
		}
	})
}

func FuzzProbe(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ParseProbe(b); err == nil && (len(b) != HeadSize+int(h.Length) || h.Kind == Probe && h.Count != 0) {
			t.Fatalf("%+v", h)
		}
	})
}

func FuzzChunk(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, c, data, err := ParseChunk(b)
		if err != nil {
			return
		}
		again := make([]byte, FrameSize)
		if h.Kind == Broadcast {
			if again, err = PutChunk(again, h, c, data, testTags); err != nil {
				t.Fatal(err)
			}
			copy(again[offTag:], b[offTag:offTag+8])
			if !bytes.Equal(again, b) {
				t.Fatalf("got  %x\nwant %x", again, b)
			}
			// A member makes something of it that the next one reads, and of that an answer.
			PassChunk(again, 5, 63, testTags)
			if h2, c2, data2, err := ParseChunk(again); h.Hop+1 < MaxChains && (err != nil || h2.Hop != h.Hop+1 || c2.Group != c.Group|1<<63 || !bytes.Equal(data2, data)) {
				t.Fatal(h2, c2, err)
			}
			again = AnswerChunk(again, testTags)
			if h, c, _, err = ParseChunk(again); err != nil {
				t.Fatal(err)
			}
		} else {
			h.Put(again)
			c.Put(again[HeadSize:])
			again = again[:AnswerFrame]
			if !bytes.Equal(again, b) {
				t.Fatalf("got  %x\nwant %x", again, b)
			}
		}
		if c.Bytes != 0 || h.Kind != BroadcastAck || c.Place < c.First {
			t.Fatal(h, c)
		}
	})
}

// Whatever a table's memory holds, reading it ends, and gives only keys that its class can hold.
func FuzzTable(f *testing.F) {
	mem := make([]byte, TableSize(1, 2, 0))
	s, _ := NewSlots(mem, 1, 2, 0)
	slot, _ := s.Find(11, padded("ten bytes!", 1), 0)
	s.Apply(slot, []int64{1, 2})
	f.Add(mem[:TableHead+2*SlotSize(1, 2)], uint8(1), uint8(1), uint16(0))
	f.Add([]byte{}, uint8(3), uint8(3), uint16(0x6543))
	f.Fuzz(func(t *testing.T, b []byte, class, lanes uint8, ops uint16) {
		class, lanes = class%Classes, lanes%MaxLanes+1
		if _, err := NewSlots(append(make([]byte, 0, len(b)+8), b...), int(class), int(lanes), ops); err == nil && len(b) < TableSize(int(class), int(lanes), 0) {
			t.Fatalf("a table in %d bytes", len(b))
		}
		mem := make([]byte, TableSize(int(class), int(lanes), 0))
		copy(mem, b)
		s, err := NewSlots(mem, int(class), int(lanes), ops)
		if err != nil {
			return
		}
		last := -1
		_ = s.Each(func(v *Value) error {
			if c, ok := ClassOf(len(v.Key)); !ok || c != int(class) || len(v.Lanes) != int(lanes) || v.Slot <= last {
				t.Fatalf("%+v", v)
			}
			last = v.Slot
			return nil
		})
	})
}
