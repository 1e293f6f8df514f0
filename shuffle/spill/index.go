// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sort"

	"github.com/zeebo/xxh3"
)

// maxIndexKey is where the index cuts first keys: it is held in memory, keys
// may be huge.
const maxIndexKey = 256

// index is the table of contents of a run.
type index struct {
	blocks []blockInfo
	keys   []byte // arena of first keys
	parts  []partInfo
	pairs  int64
}

// partInfo says which blocks belong to a part.
type partInfo struct {
	part       uint32
	first, end int
	pairs, raw int64
}

// add appends a block, whose first key is key.
func (x *index) add(b blockInfo, key []byte) {
	b.cut = len(key) > maxIndexKey
	if b.cut {
		key = key[:maxIndexKey]
	}
	x.addCut(b, key)
}

func (x *index) addCut(b blockInfo, key []byte) {
	b.keyOff, b.keyLen = len(x.keys), uint16(len(key))
	x.keys = append(x.keys, key...)
	if n := len(x.parts); n == 0 || x.parts[n-1].part != b.part {
		x.parts = append(x.parts, partInfo{part: b.part, first: len(x.blocks)})
	}
	x.blocks = append(x.blocks, b)
	p := &x.parts[len(x.parts)-1]
	p.end = len(x.blocks)
	p.pairs += int64(b.pairs)
	p.raw += int64(b.raw)
	x.pairs += int64(b.pairs)
}

// key returns the first key of block i, or its start if it is cut.
func (x *index) key(i int) []byte {
	b := &x.blocks[i]
	return x.keys[b.keyOff : b.keyOff+int(b.keyLen) : b.keyOff+int(b.keyLen)]
}

// part returns what is known about a part; the zero value if it has no pairs.
func (x *index) part(part int) partInfo {
	if uint64(part) > math.MaxUint32 {
		return partInfo{}
	}
	i, ok := slices.BinarySearchFunc(x.parts, uint32(part), func(p partInfo, t uint32) int { return cmp.Compare(p.part, t) })
	if !ok {
		return partInfo{}
	}
	return x.parts[i]
}

// mayReach says whether the first key of block i may be bound or larger. For
// the blocks of a part in order the answer is first false, then true, also
// with cut keys.
func (x *index) mayReach(i int, bound []byte) bool {
	k := x.key(i)
	if bytes.Compare(k, bound) >= 0 {
		return true
	}
	return x.blocks[i].cut && bytes.HasPrefix(bound, k)
}

// span returns the blocks that may hold keys of the part with lo <= key < hi, and
// from which block on keys must be compared with hi.
func (x *index) span(part int, lo, hi []byte) (first, end, checkFrom int) {
	p := x.part(part)
	first, end = p.first, p.end
	if lo != nil {
		// The block before the first one that may begin with lo may end with it.
		n := sort.Search(end-first, func(i int) bool { return x.mayReach(first+i, lo) })
		first += max(0, n-1)
	}
	checkFrom = end
	if hi != nil {
		// No block whose first key is hi or more is needed.
		end = first + sort.Search(end-first, func(i int) bool { return bytes.Compare(x.key(first+i), hi) >= 0 })
		// All keys of a block are below hi if the next block's first one is.
		n := sort.Search(p.end-first, func(i int) bool { return x.mayReach(first+i, hi) })
		checkFrom = first + max(0, n-1)
	}
	return first, end, checkFrom
}

// appendFooter appends footer and trailer; off is where they begin in the file.
func (x *index) appendFooter(dst []byte, off int64) []byte {
	start := len(dst)
	dst = binary.AppendUvarint(dst, uint64(len(x.blocks)))
	for i := range x.blocks {
		b := &x.blocks[i]
		dst = binary.AppendUvarint(dst, uint64(b.part))
		dst = binary.AppendUvarint(dst, uint64(b.stored))
		dst = binary.AppendUvarint(dst, uint64(b.raw))
		dst = binary.AppendUvarint(dst, uint64(b.pairs))
		keyLen := uint64(b.keyLen) << 1
		if b.cut {
			keyLen |= 1
		}
		dst = binary.AppendUvarint(dst, keyLen)
		dst = append(dst, x.key(i)...)
	}
	size := len(dst) - start
	dst = binary.LittleEndian.AppendUint64(dst, uint64(off))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(size))
	dst = binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:]))
	return append(dst, magic...)
}

// parseTrailer returns where the footer of a file of that size stands.
func parseTrailer(trailer []byte, fileSize int64) (off, size int64, err error) {
	if len(trailer) != trailerSize {
		return 0, 0, errors.New("file is too short")
	}
	if string(trailer[24:]) != magic {
		return 0, 0, errors.New("end mark or format version does not match")
	}
	o, n := binary.LittleEndian.Uint64(trailer), binary.LittleEndian.Uint64(trailer[8:])
	room := uint64(fileSize) - uint64(magicSize) - uint64(trailerSize)
	if n > room || n > math.MaxInt32 || o != uint64(magicSize)+room-n {
		return 0, 0, errors.New("footer position is impossible")
	}
	return int64(o), int64(n), nil
}

// parseFooter reads an index back from footer and trailer. off is where the
// footer begins in the file, and so where the last block must end.
func parseFooter(buf []byte, off int64) (*index, error) {
	footer := buf[:len(buf)-trailerSize]
	if binary.LittleEndian.Uint64(buf[len(footer)+16:]) != xxh3.Hash(buf[:len(footer)+16]) {
		return nil, errors.New("checksum of footer does not match")
	}
	impossible := errors.New("footer is impossible")
	bad := false
	number := func(limit uint64) uint64 {
		v, n := binary.Uvarint(footer)
		if n <= 0 || v > limit {
			bad = true
			return 0
		}
		footer = footer[n:]
		return v
	}
	x := new(index)
	at := int64(magicSize)
	blocks := number(math.MaxInt32)
	if bad || blocks > uint64(len(footer))/5 {
		bad = bad || blocks > 0
		blocks = 0
	}
	x.blocks = make([]blockInfo, 0, blocks)
	for range blocks {
		b := blockInfo{off: at}
		b.part = uint32(number(math.MaxUint32))
		b.stored = uint32(number(maxRaw))
		b.raw = uint32(number(maxRaw))
		b.pairs = uint32(number(maxRaw))
		k := number(maxIndexKey<<1 | 1)
		b.cut = k&1 != 0
		k >>= 1
		if bad || k > uint64(len(footer)) || b.pairs == 0 || uint64(b.raw) < 3*uint64(b.pairs) || b.cut && k != maxIndexKey {
			return nil, impossible
		}
		key := footer[:k]
		footer = footer[k:]
		if n := len(x.blocks); n > 0 {
			last := &x.blocks[n-1]
			if b.part < last.part || b.part == last.part && bytes.Compare(key, x.key(n-1)) < 0 {
				return nil, impossible
			}
		}
		at += headerSize + int64(b.stored)
		if at > off {
			return nil, impossible
		}
		x.addCut(b, key)
	}
	if bad || len(footer) != 0 || at != off {
		return nil, impossible
	}
	return x, nil
}
