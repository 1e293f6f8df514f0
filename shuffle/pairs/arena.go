// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"
)

// Ref addresses a record: its distance from the arena's start in units of
// eight bytes. Ref 0 is no record.
type Ref uint32

// BlockSize is the unit, in bytes, in which an arena hands out memory.
const BlockSize = 256 << 10

// MaxArena is the largest arena in bytes: what a Ref can address, its end included,
// and what address space allows.
const MaxArena = min(32<<30-BlockSize, math.MaxInt/4)

// ErrFull is returned when an arena has reached its limit.
var ErrFull = errors.New("arena is full")

// Arena is a reserved range of memory that only takes what is touched. It may
// be used by several goroutines.
type Arena struct {
	base  unsafe.Pointer
	mem   []byte
	limit int64

	mu   sync.Mutex
	next int64
	free map[int64][]int64 // sizes in bytes to offsets
	used int64
	peak int64
}

// NewArena reserves an arena of at most limit bytes.
func NewArena(limit int64) (*Arena, error) {
	limit = min(max(limit, 4*BlockSize), MaxArena) &^ (BlockSize - 1)
	mem, err := reserve(limit)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes for pairs: %w (a smaller --memory may help)", limit, err)
	}
	a := &Arena{mem: mem, base: unsafe.Pointer(unsafe.SliceData(mem)), limit: limit, free: map[int64][]int64{}}
	a.next = BlockSize // Ref 0 stays unused
	return a, nil
}

// Close gives all memory back. Nothing that points into the arena may be used afterwards.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	mem := a.mem
	a.mem, a.base = nil, nil
	return release(mem)
}

// Alloc returns at least size bytes as an offset and a length, a multiple of
// BlockSize. It returns ErrFull beyond the limit.
func (a *Arena) Alloc(size int64) (offset, length int64, err error) {
	length = (size + BlockSize - 1) &^ (BlockSize - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if l := a.free[length]; len(l) > 0 {
		offset = l[len(l)-1]
		a.free[length] = l[:len(l)-1]
	} else {
		if a.next+length > a.limit {
			return 0, 0, ErrFull
		}
		offset = a.next
		a.next += length
	}
	a.used += length
	a.peak = max(a.peak, a.used)
	return offset, length, nil
}

// Free takes back what Alloc gave.
func (a *Arena) Free(offset, length int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free[length] = append(a.free[length], offset)
	a.used -= length
}

// Used returns the bytes handed out, Peak the most there ever were.
func (a *Arena) Used() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// Peak returns the most bytes that were ever handed out at once.
func (a *Arena) Peak() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peak
}

// At returns the address of a record.
func (a *Arena) At(r Ref) unsafe.Pointer { return unsafe.Add(a.base, uintptr(r)<<3) }
