// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/bits"
	"slices"
)

// Splitters cut the keys into ranges that follow each other in key order, so
// that ranges can be sorted and written by different goroutines. A range is
// chosen by the eight bytes behind the prefix that all sampled keys share.
type Splitters struct {
	common []byte
	at     []uint64 // ascending: range i begins at at[i-1]
	// first leads from the upper bits of a prefix, less the first splitter, to
	// the first range that may hold it, so that few splitters are left to compare.
	first []uint16
	shift uint
}

const firstBits = 12

// ChooseSplitters cuts into at most n ranges of about equal share of the sample.
func ChooseSplitters(sample [][]byte, n int) Splitters {
	if n < 2 || len(sample) < 2 {
		return Splitters{}
	}
	slices.SortFunc(sample, bytes.Compare)
	first, last := sample[0], sample[len(sample)-1]
	c := 0
	for c < len(first) && c < len(last) && first[c] == last[c] {
		c++
	}
	s := Splitters{common: bytes.Clone(first[:c])}
	for i := 1; i < n; i++ {
		p := prefix(sample[i*len(sample)/n][c:])
		if p == 0 || len(s.at) > 0 && s.at[len(s.at)-1] >= p {
			continue
		}
		s.at = append(s.at, p)
	}
	if len(s.at) > 1 {
		lo := s.at[0]
		s.shift = uint(max(bits.Len64(s.at[len(s.at)-1]-lo)-firstBits, 0))
		s.first = make([]uint16, (s.at[len(s.at)-1]-lo)>>s.shift+1)
		r := 1 // a prefix >= lo is in range 1 at least
		for i := range s.first {
			for r < len(s.at) && s.at[r] <= lo+uint64(i)<<s.shift {
				r++
			}
			s.first[i] = uint16(r)
		}
	}
	return s
}

// SampleKeys takes keys from all over the records of sets: a few from each
// stretch, some thousands in all. They are not copies.
func SampleKeys(l Layout, sets ...*Buckets) [][]byte {
	const perSpan, most = 4, 1 << 14
	var keys [][]byte
	for _, b := range sets {
		for i := range b.Count() {
			b.Spans(i, func(r, end Ref) {
				for n := 0; r < end && n < perSpan; n++ {
					rec := b.arena.Rec(r)
					if l.Lanes < 0 {
						keys = append(keys, rec.PayloadKey())
					} else {
						keys = append(keys, rec.Key())
					}
					r += Ref(l.Size(rec))
				}
			})
		}
	}
	if step := len(keys) / most; step > 1 {
		for i := range most {
			keys[i] = keys[i*step]
		}
		keys = keys[:most]
	}
	return keys
}

// prefix is prefixAt for slices that need not be padded.
func prefix(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var w [8]byte
	copy(w[:], b)
	return binary.BigEndian.Uint64(w[:])
}

// Len returns the number of ranges.
func (s *Splitters) Len() int { return len(s.at) + 1 }

// Range returns the range of a key.
func (s *Splitters) Range(key []byte) int {
	if len(s.at) == 0 {
		return 0
	}
	if c := len(s.common); c > 0 {
		if len(key) < c || string(key[:c]) != string(s.common) {
			if bytes.Compare(key, s.common) < 0 {
				return 0
			}
			return len(s.at)
		}
		key = key[c:]
	}
	p := prefix(key)
	at := s.at
	if p < at[0] {
		return 0
	}
	if p >= at[len(at)-1] {
		return len(at)
	}
	r := int(s.first[(p-at[0])>>s.shift])
	for n := 0; at[r] <= p; r++ {
		// Where splitters stand close together, the rest is searched.
		if n++; n == 8 {
			more, _ := slices.BinarySearch(at[r:], p+1)
			return r + more
		}
	}
	return r
}

// Borders cuts sorted runs into at most n ranges by the first keys of their
// blocks, of which each stands for about as many bytes: range i begins at the
// border before it. Keys must be of whole groups, so that no group is cut.
func Borders(keys [][]byte, n int) [][]byte {
	borders := [][]byte{}
	if n < 2 || len(keys) < 2 {
		return borders
	}
	slices.SortFunc(keys, bytes.Compare)
	for i := 1; i < n; i++ {
		k := keys[i*len(keys)/n]
		if len(k) > 0 && (len(borders) == 0 || bytes.Compare(borders[len(borders)-1], k) < 0) {
			borders = append(borders, k)
		}
	}
	return borders
}

// Between returns the borders of range rng: lo <= key < hi, nil if there is none.
func Between(borders [][]byte, rng int) (lo, hi []byte) {
	if rng > 0 {
		lo = borders[rng-1]
	}
	if rng < len(borders) {
		hi = borders[rng]
	}
	return lo, hi
}

// BottomK keeps the k distinct keys with the smallest fixed hashes: a sample
// of the distinct keys that depends on nothing but them. Merging the samples
// of parts gives the sample of the whole. Of long keys it keeps the beginning,
// which is as good a border.
type BottomK struct {
	k    int
	keys map[uint64]string // by hash
	max  uint64
}

const sampledKey = 256 // bytes that are kept of a key

// NewBottomK makes an empty sample of at most k keys.
func NewBottomK(k int) *BottomK {
	return &BottomK{k: k, keys: map[uint64]string{}, max: ^uint64(0)}
}

// Add offers a key.
func (b *BottomK) Add(key []byte) {
	if h := FixedSeed.HashBytes(key); h <= b.max {
		b.add(h, string(key[:min(len(key), sampledKey)]))
	}
}

func (b *BottomK) add(h uint64, key string) {
	// Should two keys have one hash, the lesser one stands for both.
	if old, ok := b.keys[h]; ok && old <= key {
		return
	}
	b.keys[h] = key
	if len(b.keys) >= 2*b.k {
		b.shrink()
	}
}

func (b *BottomK) shrink() {
	if len(b.keys) <= b.k {
		return
	}
	hashes := slices.Sorted(maps.Keys(b.keys))
	for _, h := range hashes[b.k:] {
		delete(b.keys, h)
	}
	b.max = hashes[b.k-1]
}

// Merge takes in another sample.
func (b *BottomK) Merge(o *BottomK) {
	for h, key := range o.keys {
		if h <= b.max {
			b.add(h, key)
		}
	}
}

// Cuts returns the n-1 keys at which parts 1 to n-1 begin, ascending; a part
// whose cut equals the next one's is empty.
func (b *BottomK) Cuts(n int) [][]byte {
	b.shrink()
	l := slices.Sorted(maps.Values(b.keys))
	cuts := make([][]byte, n-1)
	for i := range cuts {
		if len(l) > 0 {
			cuts[i] = []byte(l[(i+1)*len(l)/n])
		}
	}
	return cuts
}

var errSample = errors.New("damaged sample of keys")

// maxSample bounds the size of a sample that is read.
const maxSample = 1 << 26

// AppendBinary appends the sample: its size, the number of keys, and for each, by
// ascending hash, the hash (8 bytes), the key's length and the key. Sizes and
// lengths are uvarints. Equal samples have equal bytes.
func (b *BottomK) AppendBinary(dst []byte) ([]byte, error) {
	b.shrink()
	dst = binary.AppendUvarint(dst, uint64(b.k))
	dst = binary.AppendUvarint(dst, uint64(len(b.keys)))
	for _, h := range slices.Sorted(maps.Keys(b.keys)) {
		dst = binary.LittleEndian.AppendUint64(dst, h)
		dst = binary.AppendUvarint(dst, uint64(len(b.keys[h])))
		dst = append(dst, b.keys[h]...)
	}
	return dst, nil
}

// MarshalBinary returns what AppendBinary appends.
func (b *BottomK) MarshalBinary() ([]byte, error) { return b.AppendBinary(nil) }

// UnmarshalBinary makes b the sample that was encoded.
func (b *BottomK) UnmarshalBinary(data []byte) error {
	k, size := binary.Uvarint(data)
	if size <= 0 || k == 0 || k > maxSample {
		return errSample
	}
	data = data[size:]
	n, size := binary.Uvarint(data)
	if size <= 0 || n > k {
		return errSample
	}
	data = data[size:]
	s := NewBottomK(int(k))
	last := uint64(0)
	for i := range n {
		if len(data) < 8 {
			return errSample
		}
		h := binary.LittleEndian.Uint64(data)
		length, size := binary.Uvarint(data[8:])
		if size <= 0 || length > sampledKey || i > 0 && h <= last {
			return errSample
		}
		data = data[8+size:]
		if uint64(len(data)) < length {
			return errSample
		}
		s.keys[h], last = string(data[:length]), h
		data = data[length:]
	}
	if len(data) != 0 {
		return errSample
	}
	*b = *s
	return nil
}
