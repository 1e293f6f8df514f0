// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		class, lanes int
		wide         bool
		shape        Shape
		pair, most   int
		slot         int
	}{
		// pair = 4 + lanes x width + key; slot = 8 + 8 lanes + 8 (lanes / 2) + key
		{0, 1, false, 0x00, 16, 86, 24},
		{0, 1, true, 0x10, 20, 68, 24},
		{1, 1, false, 0x01, 24, 57, 32},
		{1, 2, true, 0x15, 36, 38, 48},
		{2, 3, false, 0x0a, 48, 28, 72},
		{3, 4, false, 0x0f, 84, 16, 120},
		{3, 4, true, 0x1f, 100, 13, 120},
	} {
		s := Keyed(c.class, c.lanes, c.wide)
		if s != c.shape || !s.Keyed() || !s.Valid() || s.Class() != c.class || s.Lanes() != c.lanes || (s.ValueBytes() == 8) != c.wide {
			t.Errorf("%+v: %#x, class %d, %d lanes, %d bytes", c, s, s.Class(), s.Lanes(), s.ValueBytes())
		}
		if s.PairSize() != c.pair || s.PairsPerFrame() != c.most {
			t.Errorf("%+v: %d bytes, %d in a frame", c, s.PairSize(), s.PairsPerFrame())
		}
		if got := SlotSize(c.class, c.lanes); got != c.slot {
			t.Errorf("%+v: slot of %d bytes", c, got)
		}
	}
	if got := TableSize(0, 1, 3); got != 64+(8+8)*24 {
		t.Errorf("table of %d bytes", got)
	}
	valid := 0
	for s := range 256 {
		if Shape(s).Valid() {
			valid++
		}
	}
	if valid != 35 || !Long.Valid() || !Dense.Valid() || !(Dense | Wide).Valid() || Long.Keyed() || Dense.Keyed() {
		t.Errorf("%d shapes", valid)
	}
}

func TestClassOf(t *testing.T) {
	for n, want := range map[int]int{0: 0, 8: 0, 9: 1, 16: 1, 17: 2, 32: 2, 33: 3, 64: 3} {
		if got, ok := ClassOf(n); got != want || !ok {
			t.Errorf("%d bytes: class %d, %v", n, got, ok)
		}
	}
	if _, ok := ClassOf(65); ok {
		t.Error("65 bytes have a class")
	}
	for class, want := range []int{0, 9, 17, 33} {
		if got := leastKey(class); got != want {
			t.Errorf("class %d begins at %d", class, got)
		}
	}
}

func TestMeta(t *testing.T) {
	for _, c := range []struct {
		hash uint64
		n    int
		want uint32
	}{
		{0, 0, 1},                    // never 0
		{1 << 39, 0, 1<<7 | 1},       // the lowest bit that travels
		{1<<39 - 1, 64, 65},          // none that does
		{^uint64(0), 64, 0xffffffc1}, // 2^25 - 1 << 7 | 65
		{0x8000000000000000, 3, 1<<31 | 4},
		{0x123456f89abcdef0, 8, 0x12345680 | 9}, // 0xf8: its top bit is the last that travels
	} {
		if got := Meta(c.hash, c.n); got != c.want {
			t.Errorf("hash %#x, %d bytes: %#x, not %#x", c.hash, c.n, got, c.want)
		}
	}
}

func TestHomeSlot(t *testing.T) {
	for _, c := range []struct {
		meta  uint32
		shift uint8
		bits  int
		want  int
	}{
		{0xffffffff, 0, 21, 1<<21 - 1},
		{0xffffffff, 0, 10, 1<<10 - 1},
		{0xffffffff, 1, 10, 1<<10 - 1}, // 24 ones and a zero: the top ten are ones
		{0xffffffff, 16, 10, 0x3fe},    // nine ones are left: bits 24 to 16
		{0x80000000, 0, 1, 1},
		{0x80000000, 1, 1, 0},
		{0x40000000, 1, 1, 1},
		{0x000000ff, 0, 10, 0},       // hash 1
		{0x000000ff, 24, 10, 1 << 9}, // hash 1, all above it dropped
		{0x12345681, 0, 8, 0x12},
		{0x12345681, 4, 8, 0x23},
	} {
		if got := HomeSlot(c.meta, c.shift, c.bits); got != c.want {
			t.Errorf("meta %#x, shift %d, 2^%d slots: %#x, not %#x", c.meta, c.shift, c.bits, got, c.want)
		}
	}
}

func TestOps(t *testing.T) {
	if got := PackOps(OpSum, OpMin, OpXor, OpSumBound); got != 0x6510 {
		t.Errorf("packed %#x", got)
	}
	for lane, want := range []uint8{0, 1, 5, 6} {
		if got := OpOf(0x6510, lane); got != want {
			t.Errorf("lane %d: %d", lane, got)
		}
	}
	if !ValidOps(0x6510) || ValidOps(0x7510) || ValidOps(0x0080) {
		t.Error("which operations exist")
	}
	const least, most = -1 << 63, 1<<63 - 1
	for _, c := range []struct {
		op      uint8
		a, b, r int64
		carry   int32
	}{
		{OpSum, 3, 4, 7, 0},
		{OpSum, most, 1, least, 1},
		{OpSum, least, -1, most, -1},
		{OpSum, least, least, 0, -1},
		{OpSum, most, most, -2, 1},
		{OpSum, most, least, -1, 0},
		{OpSumBound, most, 1, least, 0},
		{OpMin, 3, -4, -4, 0},
		{OpMax, 3, -4, 3, 0},
		{OpAnd, 0b1100, 0b1010, 0b1000, 0},
		{OpOr, 0b1100, 0b1010, 0b1110, 0},
		{OpXor, 0b1100, 0b1010, 0b0110, 0},
	} {
		if r, carry := ApplyOp(c.op, c.a, c.b); r != c.r || carry != c.carry {
			t.Errorf("operation %d on %d, %d: %d, carry %d", c.op, c.a, c.b, r, carry)
		}
		for _, v := range []int64{0, 1, -1, least, most, 12345} {
			if r, carry := ApplyOp(c.op, Identity(c.op), v); r != v || carry != 0 {
				t.Errorf("operation %d: identity with %d is %d, carry %d", c.op, v, r, carry)
			}
		}
	}
}
