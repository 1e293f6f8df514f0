// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func arena(t testing.TB, limit int64) *Arena {
	t.Helper()
	a, err := NewArena(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// put writes a record with a payload.
func put(t testing.TB, b *Buckets, i int, key, payload []byte) Ref {
	t.Helper()
	kw, pw := KeyWords(len(key)), words(len(payload))
	r, err := b.Reserve(i, 2+kw+pw)
	if err != nil {
		t.Fatal(err)
	}
	rec := b.arena.Rec(r)
	*rec.Word(0), *rec.Word(1) = uint64(len(key)), uint64(len(payload))
	*rec.Word(1 + kw) = 0
	copy(rec.PayloadKey(), key)
	if pw > 0 {
		*rec.Word(1 + kw + pw) = 0
		copy(rec.Payload(), payload)
	}
	return r
}

func genBytes(most int) *rapid.Generator[[]byte] {
	return rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 0, most),
		rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a'}), 0, 20),
		rapid.Map(rapid.SampledFrom([]int{7, 8, 9, 15, 16, 17, 24}), func(n int) []byte { return bytes.Repeat([]byte("x"), n) }),
	)
}

// Sorting records equals sorting their keys and payloads by bytes.Compare.
func TestSortEqualsCompare(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := arena(t, 64<<20)
		b := NewBuckets(a, 1, 1<<20)
		type pair struct{ key, payload []byte }
		var want []pair
		var list []Entry
		s := NewSorter(a, Payload)
		repeat := rapid.IntRange(1, 40).Draw(rt, "repeat") // more than the thresholds of the sorts
		for _, k := range rapid.SliceOfN(genBytes(30), 0, 30).Draw(rt, "keys") {
			for i := range repeat {
				p := fmt.Appendf(nil, "%d payload", i*7%5)
				if i%3 == 0 {
					p = nil
				}
				want = append(want, pair{k, p})
				list = append(list, s.Entry(put(t, b, 0, k, p)))
			}
		}
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		s.Sort(list)
		slices.SortFunc(want, func(a, b pair) int {
			return cmp.Or(bytes.Compare(a.key, b.key), bytes.Compare(a.payload, b.payload))
		})
		for i, e := range list {
			rec := a.Rec(e.Ref())
			if !bytes.Equal(rec.PayloadKey(), want[i].key) || !bytes.Equal(rec.Payload(), want[i].payload) {
				rt.Fatalf("at %d: %q %q, want %q %q", i, rec.PayloadKey(), rec.Payload(), want[i].key, want[i].payload)
			}
		}
	})
}

func TestSortLarge(t *testing.T) {
	a := arena(t, 64<<20)
	b := NewBuckets(a, 1, 1<<20)
	s := NewSorter(a, Payload)
	var list []Entry
	var want []string
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		k := fmt.Sprintf("%d", rng.IntN(40_000))
		if rng.IntN(3) == 0 {
			k = "http://example.org/very/long/common/prefix/" + k
		}
		want = append(want, k)
		list = append(list, s.Entry(put(t, b, 0, []byte(k), nil)))
	}
	s.Sort(list)
	slices.Sort(want)
	for i, e := range list {
		if got := a.Rec(e.Ref()).PayloadKey(); string(got) != want[i] {
			t.Fatalf("at %d: %q, want %q", i, got, want[i])
		}
	}
}

// Keys that agree for very long must not cost a descent for every word.
func TestSortLongCommonPrefix(t *testing.T) {
	a := arena(t, 512<<20)
	b := NewBuckets(a, 1, 1<<30)
	s := NewSorter(a, Payload)
	prefix := bytes.Repeat([]byte("y"), 4<<20)
	var list []Entry
	for i := range 40 {
		list = append(list, s.Entry(put(t, b, 0, append(prefix, fmt.Sprintf("%02d", i*7%40)...), nil)))
	}
	s.Sort(list)
	for i, e := range list {
		if key := a.Rec(e.Ref()).PayloadKey(); string(key[len(prefix):]) != fmt.Sprintf("%02d", i) {
			t.Fatalf("at %d: %s", i, key[len(prefix):])
		}
	}
}

// Records come back as they were put, bucket by bucket, whatever their sizes;
// memory is given back and taken again.
func TestBucketsKeepRecords(t *testing.T) {
	a := arena(t, 256<<20)
	for round := range 2 {
		b := NewBuckets(a, 5, 8<<20)
		var want [5][]string
		rng := rand.New(rand.NewPCG(uint64(round), 7))
		for i := range 20_000 {
			n := rng.IntN(30)
			if i%5000 == 0 {
				n = 3 << 20 // larger than any chunk
			}
			key := bytes.Repeat([]byte{byte('a' + i%26)}, n)
			to := rng.IntN(5)
			want[to] = append(want[to], fmt.Sprintf("%d/%c", n, 'a'+i%26))
			put(t, b, to, key, nil)
		}
		if b.Records() != 20_000 {
			t.Errorf("%d records", b.Records())
		}
		for i := range want {
			var got []string
			b.Each(i, Payload, func(_ Ref, rec Record) {
				k := rec.PayloadKey()
				c := byte('?')
				if len(k) > 0 {
					c = k[0]
					if bytes.Count(k, k[:1]) != len(k) {
						t.Fatal("a key is damaged")
					}
				}
				got = append(got, fmt.Sprintf("%d/%c", len(k), c))
			})
			for j, w := range want[i] {
				if w[0] == '0' {
					w = "0/?"
				}
				if got[j] != w {
					t.Fatalf("bucket %d record %d: %s, want %s", i, j, got[j], w)
				}
			}
		}
		if a.Used() != b.Bytes() {
			t.Errorf("arena %d, buckets %d", a.Used(), b.Bytes())
		}
		b.Reset()
		if a.Used() != 0 {
			t.Errorf("%d bytes still used", a.Used())
		}
	}
}

func TestArenaIsBounded(t *testing.T) {
	a := arena(t, 2<<20)
	b := NewBuckets(a, 1, 1<<20)
	var err error
	for range 100_000 {
		if _, err = b.Reserve(0, 8); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
	if a.Used() > 2<<20 {
		t.Errorf("used %d", a.Used())
	}
}

// What is given back can be had again in other sizes, and nothing is handed out
// twice.
func TestArenaReusesMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := arena(t, 64*BlockSize)
		type piece struct{ offset, length int64 }
		var held []piece
		var used int64
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(rt, "free") {
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				a.Free(held[i].offset, held[i].length)
				used -= held[i].length
				held = slices.Delete(held, i, i+1)
				continue
			}
			o, l, err := a.Alloc(rapid.Int64Range(1, 9*BlockSize).Draw(rt, "size"))
			if err != nil {
				continue
			}
			for _, h := range held {
				if o < h.offset+h.length && h.offset < o+l {
					rt.Fatalf("%d+%d overlaps %+v", o, l, h)
				}
			}
			held = append(held, piece{o, l})
			used += l
		}
		if a.Used() != used {
			rt.Fatalf("used %d, want %d", a.Used(), used)
		}
		for _, h := range held {
			a.Free(h.offset, h.length)
		}
		// All of it in one piece again.
		if _, _, err := a.Alloc(63 * BlockSize); err != nil {
			rt.Fatal(err)
		}
	})
}

// A key near the end of a page must be read like any other.
func TestLoadShortAcrossPages(t *testing.T) {
	buf := make([]byte, 3*pageSize)
	for i := range buf {
		buf[i] = byte(i*7 + 1)
	}
	base := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf))) % pageSize)
	for off := base + pageSize; off < base+2*pageSize+8; off++ {
		if off < 0 || off+16 > len(buf) {
			continue
		}
		for n := 0; n <= 16; n++ {
			key := buf[off : off+n]
			var padded [16]byte
			copy(padded[:], key)
			k0, k1 := LoadShort(unsafe.Pointer(&buf[off]), n)
			if k0 != load8(unsafe.Pointer(&padded[0])) || k1 != load8(unsafe.Pointer(&padded[8])) {
				t.Fatalf("offset %d length %d: %x %x, want %x", off, n, k0, k1, padded)
			}
		}
	}
}

// The fixed hash chooses partitions, so it must never change: output would
// move between parts.
func TestFixedHashIsFixed(t *testing.T) {
	for key, want := range map[string]uint64{
		"":                            0x7af2907cd792b06d,
		"a":                           0x7a513a454df4b0b7,
		"sixteen bytes ..":            0xbe824391db53e8fe,
		"a key longer than two words": 0xa1e277551ce7c81c,
	} {
		if got := FixedSeed.HashBytes([]byte(key)); got != want {
			t.Errorf("%q: %#x, want %#x", key, got, want)
		}
	}
}

// Keys that differ little must spread evenly over partitions and buckets.
func TestHashSpreads(t *testing.T) {
	for name, format := range map[string]string{"short": "%d", "word": "key%08d", "long": "a rather long key with the number %d in it"} {
		const n, parts = 100_000, 64
		var low, high [parts]int
		for i := range n {
			h := FixedSeed.HashBytes(fmt.Appendf(nil, format, i))
			low[h%parts]++
			high[Partition(h, parts)]++
		}
		for i := range low {
			// 1562 expected, standard deviation 39: seven of them.
			for _, c := range []int{low[i], high[i]} {
				if c < 1562-280 || c > 1562+280 {
					t.Errorf("%s: %d of %d keys in one of %d", name, c, n, parts)
				}
			}
		}
	}
}

// Ranges follow each other in key order, whatever the sample was.
func TestSplittersKeepOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keys := rapid.SliceOfN(genBytes(20), 2, 60).Draw(rt, "keys")
		if rapid.Bool().Draw(rt, "prefix") {
			for i := range keys[:len(keys)-1] {
				keys[i] = append([]byte("common/"), keys[i]...)
			}
		}
		n := rapid.IntRange(1, 20).Draw(rt, "ranges")
		sample := slices.Clone(keys[:rapid.IntRange(0, len(keys)).Draw(rt, "sample")])
		s := ChooseSplitters(sample, n)
		slices.SortFunc(keys, bytes.Compare)
		last := 0
		for _, k := range keys {
			r := s.Range(k)
			if r < last || r >= s.Len() {
				rt.Fatalf("key %q in range %d of %d after %d", k, r, s.Len(), last)
			}
			last = r
		}
	})
}

// The sample depends on the set of keys alone, not on order or division.
func TestBottomKIsASetFunction(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var keys []string
	for i := range 5000 {
		keys = append(keys, fmt.Sprint(i))
	}
	var want [][]byte
	for range 5 {
		a, b := NewBottomK(64), NewBottomK(64)
		rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for i, k := range keys {
			if i%3 == 0 {
				a.Add([]byte(k))
			}
			b.Add([]byte(k))
		}
		a.Merge(b)
		got := a.Cuts(4)
		if want == nil {
			want = got
		}
		if !slices.EqualFunc(got, want, bytes.Equal) || !slices.IsSortedFunc(got, bytes.Compare) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := NewBottomK(8).Cuts(3); len(got) != 2 {
		t.Errorf("cuts of nothing: %q", got)
	}
}

func BenchmarkSort(b *testing.B) {
	a := arena(b, 256<<20)
	bs := NewBuckets(a, 1, 1<<30)
	s := NewSorter(a, Payload)
	var list []Entry
	for i := range 16_384 {
		list = append(list, s.Entry(put(b, bs, 0, fmt.Appendf(nil, "word%d", i*7919), nil)))
	}
	work := make([]Entry, len(list))
	for b.Loop() {
		copy(work, list)
		s.Sort(work)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(list)), "ns/key")
}

func BenchmarkHash(b *testing.B) {
	for _, n := range []int{6, 14, 40} {
		key := bytes.Repeat([]byte("k"), n)
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			for b.Loop() {
				FixedSeed.HashBytes(key)
			}
		})
	}
}
