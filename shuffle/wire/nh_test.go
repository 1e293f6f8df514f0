// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// All ways to add up the products agree, for all lengths and at all alignments.
func TestNH(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		words := rapid.IntRange(0, NHWords).Draw(t, "words")
		skew := rapid.IntRange(0, 40).Draw(t, "skew")
		ones := rapid.Bool().Draw(t, "ones") // carries everywhere
		m := make([]byte, skew+8*words)
		for i := range m {
			if m[i] = byte(rng.Uint32()); ones {
				m[i] = 0xff
			}
		}
		key := make([]uint64, words)
		for i := range key {
			if key[i] = rng.Uint64(); ones {
				key[i] = ^uint64(0)
			}
		}
		m = m[skew:]
		want := uint64(0)
		for i := range words {
			w, k := le.Uint64(m[8*i:]), key[i]
			want += uint64(uint32(w)+uint32(k)) * uint64(uint32(w>>32)+uint32(k>>32))
		}
		if got := nh(m, key); got != want {
			t.Fatalf("%d words: %#x, want %#x", words, got, want)
		}
		if got := nhWords(m, key); got != want {
			t.Fatalf("%d words one by one: %#x, want %#x", words, got, want)
		}
	})
}

func BenchmarkNH(b *testing.B) {
	m, key := make([]byte, BodySize), make([]uint64, BodySize/8)
	for name, f := range map[string]func([]byte, []uint64) uint64{"best": nh, "plain": nhWords} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(BodySize)
			for b.Loop() {
				f(m, key)
			}
		})
	}
}
