// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package wire

// nh adds up the products for the words of m, a multiple of 8 bytes.
func nh(m []byte, key []uint64) uint64 { return nhWords(m, key) }
