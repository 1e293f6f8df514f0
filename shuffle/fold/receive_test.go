// SPDX-License-Identifier: Apache-2.0

package fold

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// TestFronts folds the same with front tables of all sizes and both orders.
func TestFronts(t *testing.T) {
	for _, front := range []int{4, 8, 12, 20} {
		for _, ordered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%v", front, ordered), func(t *testing.T) {
				s := newSetup(t, []Op{Sum}, 1, 4, 0, 1, 1<<20)
				s.cfg.Front, s.cfg.Ordered = front, ordered
				s.cs = []*Combiner{NewCombiner(s.cfg)}
				if n := len(s.cs[0].slots); n != 1<<front {
					t.Fatalf("%d places", n)
				}
				want := model{}
				for i := range 20000 {
					key, v := fmt.Sprint(i*7919%3001), []int64{int64(i)}
					s.cs[0].addString(key, v)
					want.add(s.cfg.Ops, key, v, nil)
				}
				compare(t, s.drain(t), want)
			})
		}
	}
}

// TestOrderedFrontHits has a key's second pair find the record of its first
// although thousands of others came in between, if all come in the order of
// their hashes.
func TestOrderedFrontHits(t *testing.T) {
	s := newSetup(t, []Op{Sum}, 1, 4, 0, 1, 64<<20)
	s.cfg.Front, s.cfg.Ordered = 14, true
	c := NewCombiner(s.cfg)
	const n = 4000
	for range 3 {
		for i := range n {
			c.addString(fmt.Sprint(i), []int64{1})
		}
	}
	c.Flush()
	if got := c.Records(); got > n*5/4 {
		t.Errorf("%d records for %d keys", got, n)
	}
}

// TestAddCarried mixes values that were folded elsewhere, with their carries,
// among others, across spills.
func TestAddCarried(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := []Op{Sum, Min, Sum}
		s := newSetup(t, ops, 1, 4, 0, 2, int64(rapid.SampledFrom([]int{1, 64 << 20}).Draw(rt, "share")))
		want := model{}
		check := make([]uint64, len(ops))
		value := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, 0, 1}))
		for i := range rapid.IntRange(1, 60).Draw(rt, "n") {
			key := rapid.SampledFrom([]string{"", "a", "sixteen bytes ..", "a key longer than sixteen bytes"}).Draw(rt, "key")
			v := []int64{value.Draw(rt, "v0"), value.Draw(rt, "v1"), value.Draw(rt, "v2")}
			c := s.cs[i%2]
			p := unsafe.Pointer(unsafe.StringData(key))
			if key == "" {
				p = unsafe.Pointer(&v[0])
			}
			h := s.cfg.Seed.Hash(p, len(key))
			check[0] += uint64(v[0]) * h
			check[2] += uint64(v[2]) * h
			if rapid.Bool().Draw(rt, "carried") {
				carry := []int64{rapid.Int64Range(-3, 3).Draw(rt, "c0"), 0, rapid.Int64Range(-3, 3).Draw(rt, "c2")}
				c.AddCarried(p, len(key), v, carry)
				want.add(ops, key, v, nil)
				for l, n := range carry {
					if n != 0 {
						want[key][l].Add(want[key][l], new(big.Int).Lsh(big.NewInt(n), 64))
					}
				}
				continue
			}
			if rapid.Bool().Draw(rt, "nil") {
				c.AddCarried(p, len(key), v, nil)
			} else {
				c.Add(p, len(key), v)
			}
			want.add(ops, key, v, nil)
		}
		for l := range check {
			if got := s.cs[0].Check()[l] + s.cs[1].Check()[l]; got != check[l] {
				rt.Errorf("check of lane %d: %#x, not %#x", l, got, check[l])
			}
		}
		compare(t, s.drain(t), want)
	})
}

// TestAddPacked folds pairs as they lie in a frame.
func TestAddPacked(t *testing.T) {
	for _, key := range []int{8, 16} {
		for _, wide := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%v", key, wide), func(t *testing.T) {
				s := newSetup(t, []Op{Sum}, 1, 4, 0, 2, 64<<20)
				want := model{}
				l := Packed{Size: 8 + key, Key: key, Wide: wide}
				if wide {
					l.Size += 4
				}
				const n = 77 // no multiple of a batch
				b := make([]byte, 1+n*l.Size)
				for i := range n {
					p := b[1+i*l.Size:][:l.Size]
					k := fmt.Sprint(i % 50)
					if i%50 == 7 {
						k = ""
					}
					if i%50 > 40 && key == 16 {
						k = fmt.Sprintf("%-*d", 9+i%8, i%50)
					}
					v := int64(i-30) * 1000
					binary.LittleEndian.PutUint32(p, 0xabcdef80|uint32(len(k)+1))
					if wide {
						v <<= 40
						binary.LittleEndian.PutUint64(p[4:], uint64(v))
					} else {
						binary.LittleEndian.PutUint32(p[4:], uint32(v))
					}
					copy(p[l.Size-key:], k)
					want.add(s.cfg.Ops, k, []int64{v}, nil)
					s.cs[1].addString(k, []int64{v})
				}
				s.cs[0].AddPacked(unsafe.Pointer(&b[1]), n, l)
				s.cs[1].Flush()
				if a, b := s.cs[0], s.cs[1]; a.Emitted() != n || a.Check()[0] != b.Check()[0] || a.Records() != b.Records() {
					t.Errorf("%d pairs, check %#x, %d records, want %d, %#x, %d", a.Emitted(), a.Check()[0], a.Records(), n, b.Check()[0], b.Records())
				}
				s.cs = s.cs[:1]
				compare(t, s.drain(t), want)
			})
		}
	}
}

// TestDrainClose gives all memory back.
func TestDrainClose(t *testing.T) {
	s := newSetup(t, []Op{Sum}, 1, 4, 0, 1, 64<<20)
	for i := range 50000 {
		s.cs[0].addString(fmt.Sprint(i), []int64{1})
	}
	s.cs[0].Flush()
	d, err := NewDrain(t.Context(), s.cfg, s.cs, nil, Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if s.cfg.Arena.Used() == 0 {
		t.Fatal("nothing is in use: the test shows nothing")
	}
	d.Close()
	s.cs[0].Reset()
	if n := s.cfg.Arena.Used(); n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
}
