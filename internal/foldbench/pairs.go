// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// The orders that pairs come in.
const (
	RandomOrder = "random"
	HashOrder   = "hash" // as committed map outputs have it
)

// KeyBytes is the length of all keys.
const KeyBytes = 16

// PairBytes is the size of a pair as it travels: meta, value of 4 bytes, key, as
// in a frame of its shape.
const PairBytes = 4 + 4 + KeyBytes

// Seed is that of the hash.
var Seed = pairs.Seed{A: 0x5bd1e9955bd1e995, B: 0x1b873593cc9e2d51}

// PutKey writes the i-th key to the first KeyBytes of b. Keys are all
// different and look random.
func PutKey(b []byte, i int) {
	x := mix(uint64(i) + 1)
	binary.LittleEndian.PutUint64(b, x)
	binary.LittleEndian.PutUint64(b[8:], mix(x^0x9e3779b97f4a7c15))
}

// mix is the finaliser of SplitMix64: one to one, so keys differ.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Pairs returns a pair for each of the first n keys, with the value 1, in an
// order: n x PairBytes bytes.
func Pairs(n int, order string) ([]byte, error) {
	type entry struct {
		hash uint64
		key  [KeyBytes]byte
	}
	all := make([]entry, n)
	for i := range all {
		e := &all[i]
		PutKey(e.key[:], i)
		e.hash = Seed.HashBytes(e.key[:])
	}
	switch order {
	case HashOrder:
		slices.SortFunc(all, func(a, b entry) int {
			if a.hash != b.hash {
				if a.hash < b.hash {
					return -1
				}
				return 1
			}
			return bytes.Compare(a.key[:], b.key[:])
		})
	case RandomOrder: // keys are
	default:
		return nil, fmt.Errorf("%q is no order of pairs (random, hash)", order)
	}
	out := make([]byte, 0, n*PairBytes)
	for i := range all {
		e := &all[i]
		out = binary.LittleEndian.AppendUint32(out, wire.Meta(e.hash, KeyBytes))
		out = binary.LittleEndian.AppendUint32(out, 1)
		out = append(out, e.key[:]...)
	}
	return out, nil
}
