// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/quernmr/quern/shuffle/pairs"
)

func sampleOf(t *testing.T, k int, keys ...string) []byte {
	t.Helper()
	s := pairs.NewBottomK(k)
	for _, key := range keys {
		s.Add([]byte(key))
	}
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// However samples are merged, the cuts are those of one sample of all keys.
func TestCutsOfMergedSamples(t *testing.T) {
	var all []string
	var parts [5][]string
	for i := range 5000 {
		key := fmt.Sprintf("key%d", i*7919%9000)
		all = append(all, key)
		parts[i%5] = append(parts[i%5], key)
		parts[(i/3)%5] = append(parts[(i/3)%5], key)
	}
	want, err := Cuts(sampleOf(t, 300, all...), 7)
	if err != nil || len(want) != 6 {
		t.Fatal(want, err)
	}
	var encoded [][]byte
	for _, p := range parts {
		encoded = append(encoded, sampleOf(t, 300, p...))
	}
	at := func(i ...int) (out [][]byte) {
		for _, i := range i {
			out = append(out, encoded[i])
		}
		return out
	}
	merge := func(s ...[]byte) []byte {
		b, err := MergeSamples(s...)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, s := range map[string][]byte{
		"at once":                               merge(encoded...),
		"pairwise, some twice, with empty ones": merge(merge(at(4, 0)...), nil, merge(at(2, 3, 0)...), merge(), encoded[1]),
	} {
		got, err := Cuts(s, 7)
		if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%s: %q, want %q (%v)", name, got, want, err)
		}
	}
	if _, err := MergeSamples([]byte("x")); err == nil {
		t.Error("a damaged sample was merged")
	}
	if _, err := Cuts([]byte("x"), 2); err == nil {
		t.Error("a damaged sample was cut")
	}
}

// Each key is in the part that the local engine puts it in: the number of cuts
// that are not above it.
func TestBetween(t *testing.T) {
	for _, cuts := range [][]string{{"b", "d"}, {"", "b"}, {"", ""}, {"b", "b"}, {"b"}, {}} {
		var c [][]byte
		for _, s := range cuts {
			c = append(c, []byte(s))
		}
		for _, key := range []string{"", "\x00", "a", "b", "b\x00", "c", "d", "e"} {
			want := 0
			for _, s := range cuts {
				if key >= s {
					want++
				}
			}
			for part := range len(cuts) + 1 {
				low, high := Between(c, part)
				in := (len(low) == 0 || key >= string(low)) && (len(high) == 0 || key < string(high))
				if in != (part == want) {
					t.Errorf("cuts %q: key %q in part %d: %v, it is in %d", cuts, key, part, in, want)
				}
			}
		}
	}
	// Without keys there is nothing to be cut.
	cuts, err := Cuts(nil, 3)
	if err != nil || len(cuts) != 2 {
		t.Errorf("no sample: %q, %v", cuts, err)
	}
	if cuts, err = Cuts(nil, 1); err != nil || len(cuts) != 0 {
		t.Errorf("one part: %q, %v", cuts, err)
	}
	if low, high := Between(cuts, 0); low != nil || high != nil {
		t.Errorf("one part: %q to %q", low, high)
	}
	if s := sampleOf(t, 10); !bytes.Equal(s, sampleOf(t, 10)) {
		t.Error("equal samples have different bytes")
	}
}
