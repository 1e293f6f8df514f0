// SPDX-License-Identifier: Apache-2.0

package pairs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
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
	free []stretch // by offset; no two touch, none touches next
	used int64
	peak int64
}

// stretch is free memory between what is handed out.
type stretch struct{ offset, length int64 }

// NewArena reserves an arena of at most limit bytes.
func NewArena(limit int64) (*Arena, error) {
	limit = min(max(limit, 4*BlockSize), MaxArena) &^ (BlockSize - 1)
	mem, err := reserve(limit)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes for pairs: %w (a smaller --memory may help)", limit, err)
	}
	a := &Arena{mem: mem, base: unsafe.Pointer(unsafe.SliceData(mem)), limit: limit}
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
	offset = -1
	for i := range a.free {
		if f := &a.free[i]; f.length >= length {
			offset = f.offset
			f.offset += length
			if f.length -= length; f.length == 0 {
				a.free = slices.Delete(a.free, i, i+1)
			}
			break
		}
	}
	if offset < 0 {
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
	i, _ := slices.BinarySearchFunc(a.free, offset, func(f stretch, o int64) int { return cmp.Compare(f.offset, o) })
	before := i > 0 && a.free[i-1].offset+a.free[i-1].length == offset
	after := i < len(a.free) && offset+length == a.free[i].offset
	switch {
	case before && after:
		a.free[i-1].length += length + a.free[i].length
		a.free = slices.Delete(a.free, i, i+1)
	case before:
		a.free[i-1].length += length
	case after:
		a.free[i].offset = offset
		a.free[i].length += length
	default:
		a.free = slices.Insert(a.free, i, stretch{offset, length})
	}
	if last := len(a.free) - 1; a.free[last].offset+a.free[last].length == a.next {
		a.next = a.free[last].offset
		a.free = a.free[:last]
	}
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
