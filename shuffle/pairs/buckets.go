// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"fmt"
	"unsafe"
)

// A record is a run of eight-byte words in an arena:
//
//	word 0   high half: tag, the upper half of the key's hash
//	         bit 31: carries follow the lanes; bits 0 to 30: key length in bytes
//	         (payload layout: word 1 is the payload's length in bytes)
//	key      padded with zeros to whole words, at least two, so that short keys
//	         are compared without looking at their length
//	value    lanes, one word each, or the payload padded to whole words
const (
	carryFlag = 1 << 31
	lenMask   = carryFlag - 1
)

// MaxKey is the longest key in bytes: what a run can hold with its value.
const MaxKey = 1<<30 - 4096

// Layout says what stands behind a record's key: that many lanes, or a payload
// of bytes if Lanes is negative.
type Layout struct{ Lanes int }

// Payload is the layout of records whose value is bytes.
var Payload = Layout{-1}

func words(n int) int { return (n + 7) >> 3 }

// KeyWords returns the words that a key of n bytes takes.
func KeyWords(n int) int { return max(2, words(n)) }

// Head returns word 0 of a record.
func Head(hash uint64, n int) uint64 { return hash&^0xffffffff | uint64(n) }

// Record is a view of one record.
type Record struct{ p unsafe.Pointer }

// Rec returns the record at r.
func (a *Arena) Rec(r Ref) Record { return Record{a.At(r)} }

// Word returns word i.
func (r Record) Word(i int) *uint64 { return (*uint64)(unsafe.Add(r.p, uintptr(i)<<3)) }

// Head returns word 0.
func (r Record) Head() uint64 { return *(*uint64)(r.p) }

// KeyLen returns the key's length in bytes.
func (r Record) KeyLen() int { return int(r.Head() & lenMask) }

// Tag returns the upper half of the key's hash.
func (r Record) Tag() uint32 { return uint32(r.Head() >> 32) }

// HasCarry says whether carries follow the lanes.
func (r Record) HasCarry() bool { return r.Head()&carryFlag != 0 }

// Key returns the key of a record with lanes.
func (r Record) Key() []byte { return unsafe.Slice((*byte)(unsafe.Add(r.p, 8)), r.KeyLen()) }

// Lanes returns the n words behind the key (and, if the record has carries,
// as many carries, when n says so).
func (r Record) Lanes(n int) []int64 {
	return unsafe.Slice((*int64)(unsafe.Add(r.p, 8+KeyWords(r.KeyLen())<<3)), n)
}

// PayloadKey returns the key of a record with a payload.
func (r Record) PayloadKey() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(r.p, 16)), r.KeyLen())
}

// Payload returns the payload.
func (r Record) Payload() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(r.p, 16+KeyWords(r.KeyLen())<<3)), int(*r.Word(1)))
}

// Size returns the record's length in words.
func (l Layout) Size(r Record) int {
	if l.Lanes < 0 {
		return 2 + KeyWords(r.KeyLen()) + words(int(*r.Word(1)))
	}
	n := 1 + KeyWords(r.KeyLen()) + l.Lanes
	if r.HasCarry() {
		n += l.Lanes
	}
	return n
}

// span is a stretch of records.
type span struct{ start, end Ref }

// cursor is where the next record of a bucket goes. Cursors stand apart from
// the rest of their buckets, so that those of all buckets fit the cache.
type cursor struct{ pos, end Ref }

// bucket is what else there is to know of a bucket.
type bucket struct {
	start Ref
	next  uint32 // words of the next chunk
	full  []span
}

const (
	firstChunk = 32   // words
	maxChunk   = 8192 // words
)

// FirstChunk is the least that a bucket with a record takes, in bytes.
const FirstChunk = firstChunk * 8

// Buckets holds the records of one mapper, in n buckets. It belongs to one goroutine.
type Buckets struct {
	arena    *Arena
	cursors  []cursor
	buckets  []bucket
	pos, end Ref // rest of the current block
	blocks   []block
	recycled []span // memory of other buckets that are done with
	bytes    int64
	records  int64
	maxChunk uint32
}

type block struct{ offset, length int64 }

// NewBuckets makes n empty buckets that may take about share bytes before
// their owner spills.
func NewBuckets(a *Arena, n int, share int64) *Buckets {
	b := &Buckets{arena: a, cursors: make([]cursor, n), buckets: make([]bucket, n), maxChunk: maxChunk}
	// Half-filled chunks must not be what fills the share.
	for b.maxChunk > firstChunk && int64(b.maxChunk)*8*int64(n)*4 > share {
		b.maxChunk /= 2
	}
	for i := range b.buckets {
		b.buckets[i].next = firstChunk
	}
	return b
}

// Count returns the number of buckets.
func (b *Buckets) Count() int { return len(b.buckets) }

// Bytes returns the memory taken.
func (b *Buckets) Bytes() int64 { return b.bytes }

// Records returns the number of records that Reserve made room for.
func (b *Buckets) Records() int64 { return b.records }

// Reserve makes room for a record of n words in bucket i. It returns ErrFull
// when the arena is exhausted.
func (b *Buckets) Reserve(i, n int) (Ref, error) {
	c := &b.cursors[i]
	r := c.pos
	if int64(r)+int64(n) > int64(c.end) {
		if err := b.grow(i, n); err != nil {
			return 0, err
		}
		r = c.pos
	}
	c.pos = r + Ref(n)
	b.records++
	return r, nil
}

func (b *Buckets) grow(i, n int) error {
	k := &b.buckets[i]
	want := int64(max(int(k.next), n))
	rest := int64(b.end - b.pos)
	if rest < want {
		switch {
		case rest >= int64(n) && rest >= want/2:
			want = rest
		case want*8 > BlockSize/4:
			off, length, err := b.alloc(want * 8)
			if err != nil {
				return err
			}
			b.open(i, Ref(off>>3), Ref((off+length)>>3))
			return nil
		case len(b.recycled) > 0:
			s := b.recycled[len(b.recycled)-1]
			b.recycled = b.recycled[:len(b.recycled)-1]
			b.pos, b.end = s.start, s.end
			return b.grow(i, n)
		default:
			off, length, err := b.alloc(BlockSize)
			if err != nil {
				return err
			}
			b.pos, b.end = Ref(off>>3), Ref((off+length)>>3)
		}
	}
	start := b.pos
	b.pos += Ref(want)
	b.open(i, start, b.pos)
	return nil
}

func (b *Buckets) open(i int, start, end Ref) {
	k, c := &b.buckets[i], &b.cursors[i]
	if c.pos > k.start {
		k.full = append(k.full, span{k.start, c.pos})
	}
	k.start, *c = start, cursor{start, end}
	k.next = min(k.next*2, b.maxChunk)
}

func (b *Buckets) alloc(size int64) (off, length int64, err error) {
	off, length, err = b.arena.Alloc(size)
	if err != nil {
		return 0, 0, fmt.Errorf("%w after %d bytes of records", err, b.bytes)
	}
	b.blocks = append(b.blocks, block{off, length})
	b.bytes += length
	return off, length, nil
}

// Each calls fn for every record of bucket i in the order they came.
func (b *Buckets) Each(i int, l Layout, fn func(Ref, Record)) {
	k := &b.buckets[i]
	for _, s := range k.full {
		b.each(s, l, fn)
	}
	b.each(span{k.start, b.cursors[i].pos}, l, fn)
}

func (b *Buckets) each(s span, l Layout, fn func(Ref, Record)) {
	for r := s.start; r < s.end; {
		rec := b.arena.Rec(r)
		n := l.Size(rec)
		fn(r, rec)
		r += Ref(n)
	}
}

// Spans calls fn for every stretch of records of bucket i.
func (b *Buckets) Spans(i int, fn func(start, end Ref)) {
	k := &b.buckets[i]
	for _, s := range k.full {
		fn(s.start, s.end)
	}
	if pos := b.cursors[i].pos; pos > k.start {
		fn(k.start, pos)
	}
}

// Recycle takes over the memory of bucket i of another set, whose records are
// not looked at again. The other set still owns it: it must not be Reset
// before this one is done with.
func (b *Buckets) Recycle(from *Buckets, i int) {
	k := &from.buckets[i]
	for _, s := range append(k.full, span{k.start, from.cursors[i].end}) {
		if s.end-s.start >= firstChunk*4 {
			b.recycled = append(b.recycled, s)
		}
	}
	k.full, k.start, from.cursors[i] = k.full[:0], 0, cursor{}
}

// Copy appends a copy of the n words of a record to bucket i.
func (b *Buckets) Copy(i int, r Record, n int) (Ref, error) {
	to, err := b.Reserve(i, n)
	if err != nil {
		return 0, err
	}
	dst := b.arena.At(to)
	for w := uintptr(0); w < uintptr(n)<<3; w += 8 {
		*(*uint64)(unsafe.Add(dst, w)) = *(*uint64)(unsafe.Add(r.p, w))
	}
	return to, nil
}

// Words returns how many words bucket i holds.
func (b *Buckets) Words(i int) int64 {
	k := &b.buckets[i]
	n := int64(b.cursors[i].pos - k.start)
	for _, s := range k.full {
		n += int64(s.end - s.start)
	}
	return n
}

// Reset forgets all records and gives their memory back.
func (b *Buckets) Reset() {
	for _, k := range b.blocks {
		b.arena.Free(k.offset, k.length)
	}
	b.blocks = b.blocks[:0]
	b.bytes, b.records = 0, 0
	b.pos, b.end = 0, 0
	for i := range b.buckets {
		b.buckets[i] = bucket{next: firstChunk, full: b.buckets[i].full[:0]}
		b.cursors[i] = cursor{}
	}
}
