// SPDX-License-Identifier: Apache-2.0

package commit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// ErrRepeated is returned by Commit if a key was added twice: the pairs were
// not wholly combined, and frames of such an output would depend on chance.
var ErrRepeated = errors.New("a key was added twice to a committed output; combine before committing")

// ErrBeyond is returned by Commit if a sum is so far beyond 64 bits that it can't travel
// in frames.
var ErrBeyond = errors.New("a sum is too far beyond 64 bits to be sent in frames")

// long is the index of pairs that do not fit a keyed frame among the classes.
const long = wire.Classes

// maxCarry bounds how far beyond 64 bits a sum may be: it travels as 2 pairs a carry.
const maxCarry = 1 << 10

// Builder takes pairs of one partition. It belongs to one goroutine.
//
// Pairs wait in blocks, those of a class in records of one size; there is no
// object per pair.
type Builder struct {
	seed   pairs.Seed
	ops    []fold.Op
	lanes  int
	keyed  bool
	stores [wire.Classes + 1]store
	lo, hi []int64 // scratch of AddCarry
	piece  []int64
	err    error
}

// entry stands for a pair while it is sorted.
type entry struct {
	hash uint64
	ref  uint32 // number of the record; of a long pair its place, in words
	size uint32 // length of the key; for a further pair of the same key also more
}

// more marks pairs that carry on the sum of the key before them.
const more = 1 << 31

func (e entry) keyLen() int { return int(e.size &^ more) }

// store holds the pairs of one class. From splitAt pairs on they are divided by the
// top bits of their hashes, so that sorting and laying out each part stays in
// the cache.
type store struct {
	record int // bytes of one; 0 for long pairs
	shift  uint
	n      int
	parts  []bucket
	wide   uint64 // not 0 if a value does not fit an int32
}

// bucket holds a part of a store. A record is hash and size as in an entry, then
// lanes and key; long pairs have their entries beside them.
type bucket struct {
	n       int
	blocks  [][]byte
	entries []entry
}

const recordHead = 12

const (
	splitAt    = 1 << 14
	splitBits  = 7
	blockShift = 9 // records of a block, log2
	blockMask  = 1<<blockShift - 1
	longShift  = 16 // words of a block of long pairs, log2; a larger pair has one of its own
	firstBytes = 1 << 10
)

// split divides what came so far.
func (s *store) split() {
	old := s.parts[0]
	s.parts, s.shift = make([]bucket, 1<<splitBits), 64-splitBits
	for i := range old.n {
		rec := old.at(uint32(i), s.record)
		h := binary.LittleEndian.Uint64(rec)
		copy(s.parts[h>>s.shift].put(h, 0, s.record), rec)
	}
}

// put makes a record and writes its head.
func (b *bucket) put(hash uint64, size uint32, record int) []byte {
	rec := b.room(b.n&blockMask == 0, record, record<<blockShift)
	b.n++
	binary.LittleEndian.PutUint64(rec, hash)
	binary.LittleEndian.PutUint32(rec[8:], size)
	return rec
}

// at returns a record of a keyed pair.
func (b *bucket) at(ref uint32, record int) []byte {
	i := int(ref&blockMask) * record
	return b.blocks[ref>>blockShift][i : i+record : i+record]
}

// list appends the entries of a bucket to e.
func (b *bucket) list(e []entry, record int) []entry {
	if b.entries != nil {
		return b.entries
	}
	ref := uint32(0)
	for _, block := range b.blocks {
		for ; len(block) > 0; block = block[record:] {
			e = append(e, entry{binary.LittleEndian.Uint64(block), ref, binary.LittleEndian.Uint32(block[8:])})
			ref++
		}
	}
	return e
}

// NewBuilder makes a builder for outputs of a job.
func NewBuilder(job *shuffle.JobSpec) *Builder {
	n := len(job.Ops)
	b := &Builder{
		seed: job.Seed, ops: job.Ops, lanes: n, keyed: n <= wire.MaxLanes,
		lo: make([]int64, n), hi: make([]int64, n), piece: make([]int64, n),
	}
	for c := range wire.Classes {
		b.stores[c].record = recordHead + 8*n + 8<<c
	}
	for c := range b.stores {
		b.stores[c].parts = make([]bucket, 1)
	}
	if n == 0 || n > fold.MaxLanes {
		b.err = fmt.Errorf("a job of %d lanes; 1 to %d are possible", n, fold.MaxLanes)
	}
	return b
}

// Err returns the first thing that went wrong; Commit returns it too.
func (b *Builder) Err() error { return b.err }

// Add takes a pair. key and lanes are copied. Each key may be added once.
func (b *Builder) Add(key []byte, lanes []int64) {
	if len(lanes) != b.lanes || len(key) > pairs.MaxKey {
		b.refuse(key, lanes)
		return
	}
	b.add(key, lanes, 0)
}

// AddCarry takes a pair whose sums may be beyond 64 bits: that of lane i is
// lanes[i] + carry[i] x 2^64. It travels as several pairs of which none is, so
// that what other mappers have may still bring it back into range. carry may be nil.
func (b *Builder) AddCarry(key []byte, lanes, carry []int64) {
	if carry == nil {
		b.Add(key, lanes)
		return
	}
	if len(lanes) != b.lanes || len(carry) != b.lanes || len(key) > pairs.MaxKey {
		b.refuse(key, lanes)
		return
	}
	lo, hi := b.lo, b.hi
	copy(lo, lanes)
	for i, c := range carry {
		if b.ops[i] != fold.Sum {
			c = 0
		}
		if c > maxCarry || c < -maxCarry {
			b.fail(fmt.Errorf("key %q: %w: %d x 2^64, at most %d are possible", head(key), ErrBeyond, c, maxCarry))
			return
		}
		// As lo is signed, hi counts words of a 128-bit number in two's complement.
		hi[i] = c
	}
	v := b.piece
	for flag := uint32(0); ; flag = more {
		over := false
		for i := range v {
			switch {
			case hi[i] > 0:
				v[i] = math.MaxInt64
			case hi[i] < 0:
				v[i] = math.MinInt64
			default:
				v[i], lo[i] = lo[i], b.ops[i].Identity()
				continue
			}
			over = true
			// lo + hi x 2^64 - v, with lo and v signed.
			diff := lo[i] - v[i]
			if (lo[i]^v[i])&(lo[i]^diff) < 0 {
				if lo[i] < 0 {
					hi[i]--
				} else {
					hi[i]++
				}
			}
			lo[i] = diff
		}
		b.add(key, v, flag)
		if !over {
			return
		}
	}
}

// AddDrain takes all pairs of a part of a drain, in whatever order it gives them.
func (b *Builder) AddDrain(ctx context.Context, d *fold.Drain, part int) error {
	w := d.Walker()
	for r := range d.Ranges(part) {
		err := w.Each(ctx, part, r, func(key []byte, lanes, carry []int64) error {
			b.AddCarry(key, lanes, carry)
			return b.err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) refuse(key []byte, lanes []int64) {
	if len(key) > pairs.MaxKey {
		b.fail(fmt.Errorf("a key of %d bytes is over the limit of %d", len(key), pairs.MaxKey))
		return
	}
	b.fail(fmt.Errorf("a pair with %d lanes in a job of %d", len(lanes), b.lanes))
}

func (b *Builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// head shortens a key for a message.
func head(key []byte) []byte { return key[:min(len(key), 80)] }

func (b *Builder) add(key []byte, lanes []int64, flag uint32) {
	n := len(key)
	p := unsafe.Pointer(unsafe.SliceData(key))
	if n > wire.MaxKey || !b.keyed {
		b.addLong(b.seed.Hash(p, n), key, lanes, flag)
		return
	}
	var h, k0, k1 uint64
	class := 0
	if n <= 16 {
		k0, k1 = pairs.LoadShort(p, n)
		h = b.seed.HashShort(k0, k1, n)
		if n > 8 {
			class = 1
		}
	} else {
		h = b.seed.Hash(p, n)
		class, _ = wire.ClassOf(n)
	}
	s := &b.stores[class]
	if s.n++; s.n == splitAt {
		s.split()
	} else if s.n > math.MaxUint32 {
		b.fail(errors.New("more than 2^32 pairs in one output; use more partitions"))
		return
	}
	part := 0
	if s.n >= splitAt {
		part = int(h >> s.shift)
	}
	rec := s.parts[part].put(h, uint32(n)|flag, s.record)[recordHead:]
	for i, v := range lanes {
		binary.LittleEndian.PutUint64(rec[8*i:], uint64(v))
		s.wide |= uint64(v+1<<31) >> 32
	}
	k := rec[8*len(lanes):]
	switch class {
	case 0:
		binary.LittleEndian.PutUint64(k, k0)
	case 1:
		binary.LittleEndian.PutUint64(k, k0)
		binary.LittleEndian.PutUint64(k[8:], k1)
	default:
		clear(k[copy(k, key):])
	}
}

// addLong keeps a long pair as it travels.
func (b *Builder) addLong(h uint64, key []byte, lanes []int64, flag uint32) {
	s := &b.stores[long].parts[0]
	b.stores[long].n++
	size := wire.LongSize(len(key), len(lanes))
	bytes := (size + 7) &^ 7
	fresh := len(s.blocks) == 0 || len(s.blocks[len(s.blocks)-1])+bytes > 8<<longShift
	rec := s.room(fresh, bytes, max(bytes, 8<<longShift))
	putLong(rec[:size], key, lanes)
	block := len(s.blocks) - 1
	if block >= 1<<(32-longShift) {
		b.fail(errors.New("more than 32 GiB of long pairs in one output; use more partitions"))
		return
	}
	at := (len(s.blocks[block]) - bytes) / 8
	s.entries = append(s.entries, entry{h, uint32(block<<longShift | at), uint32(len(key)) | flag})
}

// room returns size bytes at the end of the last block, or of a fresh one. The
// first block grows, so that small outputs stay small.
func (b *bucket) room(fresh bool, size, block int) []byte {
	if fresh {
		c := block
		if len(b.blocks) == 0 {
			c = max(size, min(firstBytes, block))
		}
		b.blocks = append(b.blocks, make([]byte, 0, c))
	}
	last := &b.blocks[len(b.blocks)-1]
	at := len(*last)
	if at+size > cap(*last) {
		grown := make([]byte, at, min(block, max(at+size, 2*cap(*last))))
		copy(grown, *last)
		*last = grown
	}
	*last = (*last)[:at+size]
	return (*last)[at:]
}

// putLong writes a long pair; see quern.h.
func putLong(p, key []byte, lanes []int64) {
	binary.LittleEndian.PutUint32(p, uint32(len(key)))
	p = p[4:]
	for _, v := range lanes {
		binary.LittleEndian.PutUint64(p, uint64(v))
		p = p[8:]
	}
	clear(p[copy(p, key):])
}
