// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bufio"
	"bytes"
	"math/bits"
	"sort"
	"strings"
)

func newBufio(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

// packBzip2 is a plain packer, since the standard library has none: blocks of
// 60,000 bytes, codes of nearly equal length.
func packBzip2(data []byte) []byte {
	w := bitWriter{}
	for _, c := range []byte("BZh1") {
		w.put(uint64(c), 8)
	}
	var sum uint32
	for at := 0; at < len(data); at += 60_000 {
		crc := packBlock(&w, data[at:min(at+60_000, len(data))])
		sum = (sum<<1 | sum>>31) ^ crc
	}
	w.put(endMark, 48)
	w.put(uint64(sum), 32)
	return w.b
}

func packBlock(w *bitWriter, data []byte) (crc uint32) {
	crc = ^uint32(0)
	for _, c := range data {
		crc ^= uint32(c) << 24
		for range 8 {
			if crc&(1<<31) != 0 {
				crc = crc<<1 ^ 0x04c11db7
			} else {
				crc <<= 1
			}
		}
	}
	crc = ^crc

	// Runs of 4 to 259 equal bytes become 4 bytes and a count.
	var runs []byte
	for i := 0; i < len(data); {
		n := 1
		for i+n < len(data) && n < 259 && data[i+n] == data[i] {
			n++
		}
		runs = append(runs, data[i:i+min(n, 4)]...)
		if n >= 4 {
			runs = append(runs, byte(n-4))
		}
		i += n
	}

	// The last column of the sorted rotations.
	twice := string(runs) + string(runs)
	n := len(runs)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(a, b int) bool {
		x, y := order[a], order[b]
		if c := strings.Compare(twice[x:x+n], twice[y:y+n]); c != 0 {
			return c < 0
		}
		return x < y
	})
	origin := 0
	column := make([]byte, n)
	var used [256]bool
	for i, at := range order {
		if at == 0 {
			origin = i
		}
		column[i] = runs[(at+n-1)%n]
		used[column[i]] = true
	}

	// Move to front; runs of zeros in bijective base 2.
	var front []byte
	for c := range 256 {
		if used[c] {
			front = append(front, byte(c))
		}
	}
	var symbols []int
	zeros := 0
	flush := func() {
		for zeros > 0 {
			symbols = append(symbols, (zeros-1)&1)
			zeros = (zeros - 1) >> 1
		}
	}
	for _, c := range column {
		i := bytes.IndexByte(front, c)
		if i == 0 {
			zeros++
			continue
		}
		flush()
		symbols = append(symbols, i+1)
		copy(front[1:i+1], front[:i])
		front[0] = c
	}
	flush()
	size := len(front) + 2
	symbols = append(symbols, size-1)

	w.put(blockMark, 48)
	w.put(uint64(crc), 32)
	w.put(0, 1)
	w.put(uint64(origin), 24)
	var ranges uint64
	for r := range 16 {
		for c := range 16 {
			if used[r*16+c] {
				ranges |= 1 << (15 - r)
			}
		}
	}
	w.put(ranges, 16)
	for r := range 16 {
		if ranges>>(15-r)&1 == 0 {
			continue
		}
		for c := range 16 {
			bit := uint64(0)
			if used[r*16+c] {
				bit = 1
			}
			w.put(bit, 1)
		}
	}
	groups := (len(symbols) + 49) / 50
	w.put(2, 3)
	w.put(uint64(groups), 15)
	for range groups {
		w.put(0, 1)
	}
	// The first short symbols have codes of k bits, the others one more.
	k := bits.Len(uint(size)) - 1
	short := 1<<(k+1) - size
	for range 2 {
		w.put(uint64(k), 5)
		for s := range size {
			if s == short {
				w.put(2, 2) // one bit longer from here on
			}
			w.put(0, 1)
		}
	}
	for _, s := range symbols {
		if s < short {
			w.put(uint64(s), k)
		} else {
			w.put(uint64(s+short), k+1)
		}
	}
	return crc
}
