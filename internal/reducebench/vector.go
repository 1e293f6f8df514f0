// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"fmt"
	"unsafe"
)

// The value of element i of a member in a round is a number that looks random, from round and i, times
// the member's own odd factor. So what is lost, added twice, of another element or another round shows
// in the sum, and the true sum costs one multiplication.

func factor(member int) uint32 { return uint32(member+1)*0x9e3779b2 | 1 }

func mixed(round, i uint32) uint32 {
	x := round*0x85ebca77 + i*0x9e3779b1
	x ^= x >> 15
	x *= 0x2c1b3c6d
	return x ^ x>>12
}

// fill writes a member's values of a round.
func fill(v []int32, round uint32, member int) {
	f := factor(member)
	for i := range v {
		v[i] = int32(f * mixed(round, uint32(i)))
	}
}

// check returns an error if v is not the sum over the first members.
func check(v []int32, round uint32, members int) error {
	var f uint32
	for m := range members {
		f += factor(m)
	}
	for i := range v {
		if want := int32(f * mixed(round, uint32(i))); v[i] != want {
			return fmt.Errorf("round %d: the sum of element %d of %d is %d and not %d", round, i, len(v), v[i], want)
		}
	}
	return nil
}

// raw returns a vector's bytes, in the machine's order, which is that of all members.
func raw(v []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// cooked is the other way round. The bytes begin where an int32 may.
func cooked(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// add adds b, of the same length, to a.
func add(a, b []int32) {
	b = b[:len(a)]
	for len(a) >= 8 {
		x, y := (*[8]int32)(a), (*[8]int32)(b)
		x[0] += y[0]
		x[1] += y[1]
		x[2] += y[2]
		x[3] += y[3]
		x[4] += y[4]
		x[5] += y[5]
		x[6] += y[6]
		x[7] += y[7]
		a, b = a[8:], b[8:]
	}
	for i := range a {
		a[i] += b[i]
	}
}
