// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

func testRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 3)) }

// TestBlocks writes and reads pairs of any kind.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pairs := rapid.SliceOf(rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 2, 2)).Draw(rt, "pairs")
		w := &blockWriter{plain: rapid.Bool().Draw(rt, "plain")}
		r := &blockReader{}
		for len(pairs) > 0 || rapid.Bool().Draw(rt, "an empty block") {
			n := rapid.IntRange(0, len(pairs)).Draw(rt, "in a block")
			for _, p := range pairs[:n] {
				w.add(p[0], p[1])
			}
			b := w.take(n == len(pairs))
			if err := r.reset(b); err != nil {
				rt.Fatal(err)
			}
			for _, p := range pairs[:n] {
				if r.left == 0 {
					rt.Fatal("too few pairs")
				}
				k, v := r.next()
				if !bytes.Equal(k, p[0]) || !bytes.Equal(v, p[1]) {
					rt.Fatalf("%q, %q, want %q", k, v, p)
				}
			}
			if r.left != 0 || b.Last != (n == len(pairs)) || b.Pairs != uint32(n) {
				rt.Fatalf("%d left, %v", r.left, b.Last)
			}
			pairs = pairs[n:]
		}
	})
}

func TestBlockIsCompressed(t *testing.T) {
	w := &blockWriter{}
	for !w.full() {
		w.add([]byte("the same key"), []byte("the same value"))
	}
	if b := w.take(true); !b.Compressed || len(b.Data) > blockBytes/10 {
		t.Errorf("%d bytes, compressed: %v", len(b.Data), b.Compressed)
	}
	rng := testRand(1)
	random := make([]byte, blockBytes)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	w.add(random, nil)
	if b := w.take(true); b.Compressed {
		t.Errorf("random bytes are compressed, to %d", len(b.Data))
	}
}

// TestBlockDamage changes each bit of a block, and what is said of it.
func TestBlockDamage(t *testing.T) {
	for _, plain := range []bool{false, true} {
		w := &blockWriter{plain: plain}
		for range 20 {
			w.add([]byte("key key key"), []byte("value value"))
		}
		b := w.take(true)
		fails := func(what string, b *api.FetchBlock) {
			t.Helper()
			r := &blockReader{}
			if err := r.reset(b); !errors.Is(err, errBlock) || r.left != 0 {
				t.Errorf("%s: %v, %d pairs", what, err, r.left)
			}
		}
		for bit := range 8 * len(b.Data) {
			data := slices.Clone(b.Data)
			data[bit/8] ^= 1 << (bit % 8)
			fails("a bit", &api.FetchBlock{Data: data, Compressed: b.Compressed, Pairs: b.Pairs, Digest: b.Digest})
		}
		for _, n := range []uint32{0, b.Pairs - 1, b.Pairs + 1, 1<<32 - 1} {
			fails("pairs", &api.FetchBlock{Data: b.Data, Compressed: b.Compressed, Pairs: n, Digest: b.Digest})
		}
		fails("compression", &api.FetchBlock{Data: b.Data, Compressed: !b.Compressed, Pairs: b.Pairs, Digest: b.Digest})
		fails("no digest", &api.FetchBlock{Data: b.Data, Compressed: b.Compressed, Pairs: b.Pairs})
	}
}

// FuzzBlock reads blocks of any bytes, with the right digest. What is taken is written the same.
func FuzzBlock(f *testing.F) {
	w := &blockWriter{}
	w.add([]byte("key"), []byte("value"))
	w.add([]byte("key"), nil)
	plain := w.take(true)
	f.Add(plain.Data, false, plain.Pairs)
	for range 100 {
		w.add([]byte("key"), []byte("value"))
	}
	packed := w.take(true)
	f.Add(packed.Data, packed.Compressed, packed.Pairs)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0}, false, uint32(1))
	f.Add([]byte{}, true, uint32(0))
	f.Fuzz(func(t *testing.T, data []byte, compressed bool, pairs uint32) {
		r := &blockReader{most: 1 << 20}
		b := &api.FetchBlock{Data: data, Compressed: compressed, Pairs: pairs, Digest: xxh3.Hash(data)}
		if r.reset(b) != nil {
			return
		}
		w := &blockWriter{plain: true}
		var first []byte
		if r.left > 0 {
			first = slices.Clone(r.rest)
		}
		for r.left > 0 {
			k, v := r.next()
			w.add(k, v)
		}
		// Lengths may be written in more bytes than they need.
		if got := w.take(true); got.Pairs != pairs || len(got.Data) > len(first) {
			t.Errorf("%d pairs in %d bytes, from %d in %d", got.Pairs, len(got.Data), pairs, len(first))
		}
	})
}
