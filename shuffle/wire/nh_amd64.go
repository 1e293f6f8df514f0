// SPDX-License-Identifier: Apache-2.0

package wire

import "golang.org/x/sys/cpu"

// nhSteps adds up the products for n > 0 steps of 32 bytes of m. It needs AVX2.
//
//go:noescape
func nhSteps(m *byte, key *uint64, n int) uint64

// nh adds up the products for the words of m, a multiple of 8 bytes.
func nh(m []byte, key []uint64) (sum uint64) {
	if n := len(m) / 32; cpu.X86.HasAVX2 && n > 0 {
		_ = key[4*n-1]
		sum = nhSteps(&m[0], &key[0], n)
		m, key = m[32*n:], key[4*n:]
	}
	return sum + nhWords(m, key)
}
