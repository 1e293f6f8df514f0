// SPDX-License-Identifier: Apache-2.0

package wire

// nhWords adds up the products for the words of m, a multiple of 8 bytes.
func nhWords(m []byte, key []uint64) (sum uint64) {
	key = key[:len(m)/8]
	for len(m) >= 32 && len(key) >= 4 {
		w0, w1, w2, w3 := le.Uint64(m), le.Uint64(m[8:]), le.Uint64(m[16:]), le.Uint64(m[24:])
		k0, k1, k2, k3 := key[0], key[1], key[2], key[3]
		sum += product(w0, k0) + product(w1, k1)
		sum += product(w2, k2) + product(w3, k3)
		m, key = m[32:], key[4:]
	}
	for len(m) >= 8 && len(key) >= 1 {
		sum += product(le.Uint64(m), key[0])
		m, key = m[8:], key[1:]
	}
	return sum
}

func product(w, k uint64) uint64 {
	return uint64(uint32(w)+uint32(k)) * uint64(uint32(w>>32)+uint32(k>>32))
}
