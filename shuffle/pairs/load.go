// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

const pageSize = 4096

// load8 reads eight bytes as a little-endian word: one load where the machine
// is little-endian, the same result where it is not. The race detector is kept
// out, since LoadShort reads what it then masks away and somebody else may write.
//
//go:nocheckptr
//go:norace
func load8(p unsafe.Pointer) uint64 { return binary.LittleEndian.Uint64((*[8]byte)(p)[:]) }

// shortMasks keep the first n bytes of two words.
var shortMasks = func() (m [17][2]uint64) {
	for n := range m {
		m[n] = [2]uint64{1<<(8*min(n, 8)) - 1, 1<<(8*max(n-8, 0)) - 1}
	}
	return
}()

// LoadShort reads a key of up to 16 bytes as two words, padded with zeros. It
// may read beyond the key, but never into another page, and has no branch
// that depends on the length: lengths of words can't be predicted.
//
//go:nocheckptr
//go:norace
func LoadShort(p unsafe.Pointer, n int) (k0, k1 uint64) {
	if uintptr(p)&(pageSize-1) > pageSize-16 || n == 0 {
		return loadSlow(p, n)
	}
	m := &shortMasks[n]
	return load8(p) & m[0], load8(unsafe.Add(p, 8)) & m[1]
}

func loadSlow(p unsafe.Pointer, n int) (k0, k1 uint64) {
	var b [16]byte
	copy(b[:], unsafe.Slice((*byte)(p), n))
	return binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
}

// Seed makes the hash of one job differ from that of another, so that keys
// that collide can't be prepared.
type Seed struct{ A, B uint64 }

// FixedSeed is the seed of the hash that chooses partitions: which part holds
// a key must not depend on the run.
var FixedSeed = Seed{0x9e3779b97f4a7c15, 0xd6e8feb86659fd93}

const mixer = 0xff51afd7ed558ccd

// HashShort hashes a key of at most 16 bytes, given as LoadShort's words.
func (s Seed) HashShort(k0, k1 uint64, n int) uint64 {
	hi, lo := bits.Mul64(k0^s.A, k1^s.B^uint64(n)<<56)
	h := (hi ^ lo) * mixer
	return h ^ h>>32
}

// Hash hashes a key of any length.
//
//go:nocheckptr
func (s Seed) Hash(p unsafe.Pointer, n int) uint64 {
	if n <= 16 {
		k0, k1 := LoadShort(p, n)
		return s.HashShort(k0, k1, n)
	}
	a, b := s.A, s.B^uint64(n)
	i := 0
	for ; i+16 < n; i += 16 {
		hi, lo := bits.Mul64(load8(unsafe.Add(p, i))^a, load8(unsafe.Add(p, i+8))^b)
		a, b = hi^lo^s.A, hi+lo^s.B
		a = bits.RotateLeft64(a, 23)
	}
	hi, lo := bits.Mul64(load8(unsafe.Add(p, n-16))^a, load8(unsafe.Add(p, n-8))^b)
	h := (hi ^ lo ^ a) * mixer
	return h ^ h>>32
}

// HashBytes hashes a key.
func (s Seed) HashBytes(key []byte) uint64 {
	return s.Hash(unsafe.Pointer(unsafe.SliceData(key)), len(key))
}

// Partition maps a key's fixed hash to one of n parts.
func Partition(fixed uint64, n int) int {
	hi, _ := bits.Mul64(fixed, uint64(n))
	return int(hi)
}
