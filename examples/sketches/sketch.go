// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/bits"
)

// register returns the register of a word and its rank there: how many zeros stand
// before the first one in the bits of the word's hash that do not choose the
// register, and one. Of n different words the largest rank of a register is about
// log2(n / registers): a HyperLogLog remembers no more of them.
func register(word []byte, precision int) (uint32, int64) {
	h := hash(word)
	rest := h<<precision | 1<<(precision-1) // a one at the end of what is left
	return uint32(h >> (64 - precision)), int64(bits.LeadingZeros64(rest)) + 1
}

// hash is FNV-1a, and then the bits are mixed (the last steps of MurmurHash3), since
// FNV's high bits hardly depend on a short word's last letters. It must be the
// same in every process: a random seed would make other rows each time.
func hash(word []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, c := range word {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// logs sums up the registers that got a word.
type logs struct {
	used int
	sum  float64 // of 2^-rank
}

func (l *logs) add(rank int64) {
	l.used++
	// Registers come in order, so what rounding there is, is always the same.
	l.sum += math.Ldexp(1, -int(rank))
}

// estimate is that of Flajolet, Fusy, Gandouet and Meunier (HyperLogLog, 2007): the
// harmonic mean of 2^rank, corrected. Where many registers are empty, their number
// says more.
func (l *logs) estimate(precision int) int64 {
	m := float64(int(1) << precision)
	empty := m - float64(l.used)
	alpha := 0.7213 / (1 + 1.079/m)
	switch precision {
	case 4:
		alpha = 0.673
	case 5:
		alpha = 0.697
	case 6:
		alpha = 0.709
	}
	e := alpha * m * m / (l.sum + empty)
	if e <= 2.5*m && empty > 0 {
		e = m * math.Log(m/empty)
	}
	return int64(math.Round(e))
}

// binBits says how fine bins are: 2^binBits of them from each power of two to the next.
const binBits = 5

// bin returns the bin of a length: lengths to 2^(binBits+1) have one each, others share it
// with those that have the same first binBits+1 bits.
func bin(v int64) uint32 {
	u := uint64(max(v, 0))
	shift := max(bits.Len64(u)-binBits-1, 0)
	return uint32(shift<<binBits) + uint32(u>>shift)
}

// middle returns the middle of a bin: no value in it is farther from it than 1/2^(binBits+1) of itself.
func middle(bin uint32) int64 {
	if bin < 2<<binBits {
		return int64(bin)
	}
	shift := bin>>binBits - 1
	low := uint64(bin&(1<<binBits-1)|1<<binBits) << shift
	return int64(low + 1<<shift/2)
}

// count is how many values a bin has.
type count struct {
	bin uint32
	n   int64
}

// histogram has the bins that have values, in order.
type histogram []count

// quantile returns the middle of the bin in which the value lies that percent of all
// do not exceed; 0 if there is no value.
func (h histogram) quantile(percent int64) int64 {
	var n int64
	for _, c := range h {
		n += c.n
	}
	rank := (n*percent + 99) / 100
	for _, c := range h {
		if rank -= c.n; rank <= 0 {
			return middle(c.bin)
		}
	}
	return 0
}
