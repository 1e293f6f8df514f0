// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Table is the baseline's table: open addressing, a slot of 32 bytes as in the
// kernel's tables for this shape, the place taken from the hash's high bits, so
// that pairs in hash order go through it in the order of addresses.
type Table struct {
	slots []slot
	bits  int
	used  int
	pairs uint64
}

// slot is free if its meta is 0.
type slot struct {
	meta   uint32
	mark   uint32
	sum    int64
	k0, k1 uint64
}

// TableBits returns the log2 of the slots of a table for so many keys, at most
// six tenths of which are taken.
func TableBits(keys int) int { return max(4, bits.Len(uint(keys*10/6))) }

// maxTableBits is how many bits of a hash travel.
const maxTableBits = 25

// NewTable makes an empty table of 2^n slots.
func NewTable(n int) (*Table, error) {
	if n < 1 || n > maxTableBits {
		return nil, fmt.Errorf("a table of 2^%d slots: 1 to %d are possible", n, maxTableBits)
	}
	return &Table{slots: make([]slot, 1<<n), bits: n}, nil
}

// Fold adds the values of pairs to their keys'. The table must have room.
func (t *Table) Fold(pairs []byte) error {
	mask := uint32(len(t.slots) - 1)
	shift := uint(32 - t.bits)
	for p := pairs; len(p) >= PairBytes; p = p[PairBytes:] {
		p := p[:PairBytes:PairBytes]
		meta := binary.LittleEndian.Uint32(p)
		value := int64(int32(binary.LittleEndian.Uint32(p[4:])))
		k0, k1 := binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])
		i := meta >> shift
		for {
			s := &t.slots[i&mask]
			if s.meta == meta && s.k0 == k0 && s.k1 == k1 {
				s.sum += value
				break
			}
			if s.meta == 0 {
				if t.used == len(t.slots)-1 {
					return fmt.Errorf("the table is full: %d keys", t.used)
				}
				t.used++
				*s = slot{meta: meta, mark: 1, sum: value, k0: k0, k1: k1}
				break
			}
			i++
		}
	}
	t.pairs += uint64(len(pairs) / PairBytes)
	if rest := len(pairs) % PairBytes; rest != 0 {
		return fmt.Errorf("%d bytes are no whole number of pairs", len(pairs))
	}
	return nil
}

// Folded is what a table holds.
type Folded struct {
	Pairs uint64 // folded
	Keys  int
	Sum   int64  // of all keys' sums
	Check uint64 // of each key's sum x hash(key), mod 2^64
}

func (f Folded) String() string {
	return fmt.Sprintf("%d pairs of %d keys with sum %d and checksum %016x", f.Pairs, f.Keys, f.Sum, f.Check)
}

// Folded goes through the table.
func (t *Table) Folded() Folded {
	f := Folded{Pairs: t.pairs, Keys: t.used}
	var key [KeyBytes]byte
	for i := range t.slots {
		if s := &t.slots[i]; s.meta != 0 {
			binary.LittleEndian.PutUint64(key[:], s.k0)
			binary.LittleEndian.PutUint64(key[8:], s.k1)
			f.Sum += s.sum
			f.Check += uint64(s.sum) * Seed.HashBytes(key[:])
		}
	}
	return f
}

// Expect returns what a table must hold after so many rounds of the pairs of n keys.
func Expect(n, rounds int) Folded {
	f := Folded{Pairs: uint64(n) * uint64(rounds), Keys: n, Sum: int64(n) * int64(rounds)}
	var key [KeyBytes]byte
	for i := range n {
		PutKey(key[:], i)
		f.Check += uint64(rounds) * Seed.HashBytes(key[:])
	}
	return f
}
