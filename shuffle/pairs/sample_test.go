// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// A sample comes back as it was, and merging encoded ones is merging them.
func TestSampleTravels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 20).Draw(t, "k")
		a, b, all := NewBottomK(k), NewBottomK(k), NewBottomK(k)
		for _, key := range rapid.SliceOf(genBytes(400)).Draw(t, "keys") {
			if rapid.Bool().Draw(t, "mine") {
				a.Add(key)
			} else {
				b.Add(key)
			}
			all.Add(key)
		}
		x, err := b.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back BottomK
		if err := back.UnmarshalBinary(x); err != nil {
			t.Fatal(err)
		}
		again, _ := back.MarshalBinary()
		if !bytes.Equal(x, again) {
			t.Fatal("a sample changed on its way")
		}
		back.Merge(a)
		if got, want := fmt.Sprintf("%q", back.Cuts(5)), fmt.Sprintf("%q", all.Cuts(5)); got != want {
			t.Fatalf("cuts %s, want %s", got, want)
		}
	})
}

func TestDamagedSamples(t *testing.T) {
	s := NewBottomK(3)
	s.Add([]byte("a"))
	s.Add([]byte("b"))
	whole, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	swapped := append(append(append([]byte{3, 2}, whole[12:]...), whole[2:12]...), whole[22:]...)
	for name, b := range map[string][]byte{
		"nothing": {}, "no size": {0, 0}, "cut": whole[:len(whole)-1], "more behind": append(bytes.Clone(whole), 0),
		"more keys than its size": append([]byte{1}, whole[1:]...), "out of order": swapped,
		"long key": append([]byte{3, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0x81, 2}, make([]byte, 257)...),
	} {
		if err := new(BottomK).UnmarshalBinary(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := new(BottomK).UnmarshalBinary(whole); err != nil {
		t.Error(err)
	}
}

func FuzzSample(f *testing.F) {
	s := NewBottomK(3)
	for _, k := range []string{"a", "", "cc"} {
		s.Add([]byte(k))
	}
	b, _ := s.MarshalBinary()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var s BottomK
		if s.UnmarshalBinary(b) != nil {
			return
		}
		x, err := s.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		// Numbers may have been written longer than they need be.
		if len(x) > len(b) || len(x) == len(b) && !bytes.Equal(x, b) {
			t.Fatalf("%x became %x", b, x)
		}
		s.Cuts(4)
	})
}
