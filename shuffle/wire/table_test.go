// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func padded(key string, class int) []byte {
	b := make([]byte, 8<<class)
	copy(b, key)
	return b
}

// A slot of class 1 and three lanes as programs write it, byte by byte.
func TestSlotBytes(t *testing.T) {
	const class, lanes, bits = 1, 3, 2
	ops := PackOps(OpSum, OpMin, OpSum)
	mem := make([]byte, TableSize(class, lanes, bits))
	s, err := NewSlots(mem, class, lanes, ops)
	if err != nil {
		t.Fatal(err)
	}
	if s.Bits() != 2 || s.Len() != 12 {
		t.Fatal(s.Bits(), s.Len())
	}
	meta := uint32(0xc0000000 | 11) // slot 3 of 4; ten bytes
	slot, ok := s.Find(meta, padded("ten bytes!", class), 0)
	if slot != 3 || !ok || s.Used() != 1 {
		t.Fatal(slot, ok, s.Used())
	}
	const size = 8 + 24 + 8 + 16
	at := mem[TableHead+3*size:][:size]
	want := unhex(t, "0b0000c0 00000000 0000000000000000 0000000000000000 0000000000000000 00000000 00000000 74656e20627974657321000000000000")
	if !bytes.Equal(at, want) {
		t.Errorf("taken\ngot  %x\nwant %x", at, want)
	}
	if err := s.Each(func(*Value) error { return errors.New("a slot without values was given out") }); err != nil {
		t.Error(err)
	}
	s.Apply(3, []int64{math.MinInt64, 5, math.MaxInt64})
	s.Apply(3, []int64{-1, 9, 2})
	// Lane 0: least - 1 wraps to most, carry -1 above bit 0: -2 | 1. Lane 1: 5 xor most. Lane 2: most + 2, carry 1.
	want = unhex(t, `0b0000c0 ffffffff ffffffffffffff7f faffffffffffff7f 0100000000000080 00000000 01000000
		74656e20627974657321000000000000`)
	if !bytes.Equal(at, want) {
		t.Errorf("applied\ngot  %x\nwant %x", at, want)
	}
	seen := 0
	if err := s.Each(func(v *Value) error {
		seen++
		if v.Slot != 3 || string(v.Key) != "ten bytes!" || !slices.Equal(v.Lanes, []int64{math.MaxInt64, 5, math.MinInt64 + 1}) ||
			!slices.Equal(v.Carries, []int64{-1, 0, 1}) {
			t.Errorf("%+v", v)
		}
		return nil
	}); err != nil || seen != 1 {
		t.Error(seen, err)
	}
	if n := bytes.Count(mem, []byte{0}); n != len(mem)-1-(len(want)-bytes.Count(want, []byte{0})) { // 1: used
		t.Error("something else was written")
	}
	s.CountPairs(2)
	if s.Pairs() != 2 || TableOf(mem).Used != 1 {
		t.Error("head of the table")
	}
}

func TestFindProbesEightSlots(t *testing.T) {
	const bits = 1
	mem := make([]byte, TableSize(0, 1, bits))
	s, err := NewSlots(mem, 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	// All at home in the last slot, 1; slots 1 to 8 are in reach.
	for i := range Probes {
		slot, ok := s.Find(1<<31|2, padded(fmt.Sprint(i), 0), 0)
		if slot != 1+i || !ok {
			t.Fatalf("key %d: slot %d, %v", i, slot, ok)
		}
	}
	before := bytes.Clone(mem)
	if slot, ok := s.Find(1<<31|2, padded("9", 0), 0); ok {
		t.Errorf("a ninth key: slot %d", slot)
	}
	if slot, ok := s.Find(1<<31|2, padded("7", 0), 0); slot != 8 || !ok {
		t.Errorf("the eighth key again: slot %d, %v", slot, ok)
	}
	if !bytes.Equal(before, mem) {
		t.Error("finding keys that are there changed the table")
	}
	// The same key with another length is another key: "1" and "1\0".
	if slot, ok := s.Find(0|3, padded("1", 0), 0); slot != 0 || !ok {
		t.Errorf("a longer key: slot %d, %v", slot, ok)
	}
	// Slot 9 is beyond the reach of any.
	if slot, ok := s.Find(1<<31|3, padded("1", 0), 0); ok {
		t.Errorf("a ninth slot: %d", slot)
	}
	if slot, ok := s.Find(1<<31|2, padded("3", 0), 1); slot != 4 || !ok {
		t.Errorf("shifted to slot 0, the key is found in its reach: slot %d, %v", slot, ok)
	}
}

func TestTableRefuses(t *testing.T) {
	for _, c := range []struct{ class, lanes, n int }{
		{0, 1, TableSize(0, 1, 3) - 1},
		{0, 1, TableSize(0, 1, 3) + 24},
		{0, 1, 0},
		{0, 1, TableHead + 8*24}, // no home slots
		{0, 0, TableSize(0, 1, 3)},
		{0, 5, TableSize(0, 1, 3)},
		{-1, 1, TableSize(0, 1, 3)},
		{4, 1, TableSize(0, 1, 3)},
	} {
		if _, err := NewSlots(make([]byte, c.n), c.class, c.lanes, 0); !errors.Is(err, ErrTable) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := NewSlots(make([]byte, TableSize(0, 1, 3)), 0, 1, 7); !errors.Is(err, ErrTable) {
		t.Errorf("operation 7: %v", err)
	}
	for _, n := range []int{0, TableHead, TableHead + 7, TableHead + 12} {
		if _, err := NewVector(make([]byte, n), OpMax); !errors.Is(err, ErrTable) {
			t.Errorf("a vector in %d bytes: %v", n, err)
		}
	}
	for _, op := range []uint8{OpSum, 7} {
		if _, err := NewVector(make([]byte, TableHead+8), op); !errors.Is(err, ErrTable) {
			t.Errorf("a vector with operation %d: %v", op, err)
		}
	}
}

func TestEachRefusesDamage(t *testing.T) {
	const class, lanes = 1, 1
	mem := make([]byte, TableSize(class, lanes, 0))
	s, err := NewSlots(mem, class, lanes, 0)
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := s.Find(12, padded("eleven byte", class), 0)
	s.Apply(slot, []int64{1})
	for _, c := range []struct {
		name string
		at   int
		b    byte
	}{
		{"length 0", 0, 0x80},
		{"length of the class below", 0, 9},
		{"length beyond the class", 0, 18},
		{"padding", 16 + 11, 1},
		{"free, with a mark", 32 + 4, 1},
	} {
		old := mem[TableHead+c.at]
		mem[TableHead+c.at] = c.b
		if err := s.Each(func(*Value) error { return nil }); !errors.Is(err, ErrTable) {
			t.Errorf("%s: %v", c.name, err)
		}
		mem[TableHead+c.at] = old
	}
	stop := errors.New("stop")
	if err := s.Each(func(*Value) error { return stop }); err != stop {
		t.Errorf("%v", err)
	}
}

// Slots and a map with wide arithmetic agree, whatever the operations.
func TestSlotsFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.IntRange(0, Classes-1).Draw(t, "class")
		lanes := rapid.IntRange(1, MaxLanes).Draw(t, "lanes")
		bits := rapid.IntRange(0, 5).Draw(t, "bits")
		shift := rapid.Uint8Range(0, 12).Draw(t, "shift")
		each := rapid.SliceOfN(rapid.Uint8Range(0, 6), lanes, lanes).Draw(t, "ops")
		mem := make([]byte, TableSize(class, lanes, bits))
		s, err := NewSlots(mem, class, lanes, PackOps(each...))
		if err != nil {
			t.Fatal(err)
		}
		type row struct {
			v []int64
			c []int64
		}
		want := map[string]row{}
		refused := false
		for range rapid.IntRange(0, 60).Draw(t, "pairs") {
			n := rapid.IntRange(leastKey(class), min(leastKey(class)+2, 8<<class)).Draw(t, "length")
			key := padded(string(bytes.Repeat([]byte{byte(rapid.IntRange(0, 3).Draw(t, "letter"))}, n)), class)
			h := testSeed.HashBytes(key[:n])
			slot, ok := s.Find(Meta(h, n), key, shift)
			if !ok {
				refused = true
				continue
			}
			values := drawLanes(t, lanes, true)
			s.Apply(slot, values)
			r, ok := want[string(key[:n])]
			if !ok {
				r = row{make([]int64, lanes), make([]int64, lanes)}
				for i, op := range each {
					r.v[i] = Identity(op)
				}
			}
			for i, op := range each {
				v, c := ApplyOp(op, r.v[i], values[i])
				r.v[i] = v
				r.c[i] += int64(c)
			}
			want[string(key[:n])] = r
		}
		if refused && len(want) < Probes {
			t.Fatal("no place in an empty table")
		}
		if s.Used() != uint64(len(want)) {
			t.Fatalf("%d used, %d keys", s.Used(), len(want))
		}
		if err := s.Each(func(v *Value) error {
			r := want[string(v.Key)]
			if !slices.Equal(r.v, v.Lanes) || !slices.Equal(r.c, v.Carries) {
				t.Fatalf("%q: %v %v, not %v", v.Key, v.Lanes, v.Carries, r)
			}
			delete(want, string(v.Key))
			return nil
		}); err != nil || len(want) != 0 {
			t.Fatal(err, len(want))
		}
	})
}

func TestVector(t *testing.T) {
	mem := make([]byte, TableHead+4*8)
	v, err := NewVector(mem, OpMin)
	if err != nil {
		t.Fatal(err)
	}
	if v.Len() != 4 || v.At(2) != math.MaxInt64 {
		t.Error(v.Len(), v.At(2))
	}
	v.Apply(2, 7)
	v.Apply(2, 9)
	v.Apply(2, -1)
	v.CountPairs(3)
	want := make([]byte, len(mem))
	want[8] = 3
	copy(want[TableHead+16:], unhex(t, "0000000000000080")) // -1 xor 7fff...
	if v.At(2) != -1 || !bytes.Equal(mem, want) || v.Pairs() != 3 {
		t.Errorf("%d %x", v.At(2), mem)
	}
}

// Of all that claim a frame at the same time one succeeds.
func TestOneClaims(t *testing.T) {
	var s Stream
	const each = 512
	var won [2]atomic.Int64
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for seq := range uint32(each) {
				seq = seq * 7 % each
				if g%2 == 0 && s.ClaimKernel(seq) || g%2 == 1 && s.ClaimUser(seq) {
					won[g%2].Add(1)
				}
			}
		})
	}
	wg.Wait()
	if won[0].Load()+won[1].Load() != each {
		t.Errorf("%d and %d claims of %d frames", won[0].Load(), won[1].Load(), each)
	}
	user := int64(0)
	for seq := range uint32(each) {
		if !s.Claimed(seq) {
			t.Errorf("frame %d is not claimed", seq)
		}
		user += int64(s.Seen[seq/32] >> (32 + seq%32) & 1)
	}
	if user != won[1].Load() || s.Claimed(each) {
		t.Errorf("%d frames are user space's, %d were claimed by it", user, won[1].Load())
	}
}

func TestClaimBits(t *testing.T) {
	var s Stream
	if !s.ClaimKernel(33) || s.ClaimUser(33) || s.Seen[1] != 2 {
		t.Errorf("%#x", s.Seen[1])
	}
	if !s.ClaimUser(63) || s.ClaimKernel(63) || s.Seen[1] != 1<<63|1<<31|2 {
		t.Errorf("%#x", s.Seen[1])
	}
}

func TestPlace(t *testing.T) {
	var c Cell
	c.SetPlace(2, 0x02000005, 3)
	c.SetPlace(0, 7, 1)
	if c.Table != [4]uint32{7, 0, 0x02000005, 0} || c.Shift != [4]uint8{1, 0, 3, 0} {
		t.Errorf("%+v", c)
	}
	if table, shift := c.Place(2); table != 0x02000005 || shift != 3 {
		t.Error(table, shift)
	}
}
