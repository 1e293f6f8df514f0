// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"os"
	"unsafe"
)

// Vector is memory that two processes share: mapped to be read and written, and growing only. It is used
// by one goroutine at a time.
type Vector struct {
	fd  int
	mem []byte
}

// OpenVector maps the memory behind a descriptor, which stays the caller's: of an ordinary file, or of one in memory that can't
// be made smaller. Whoever can't trust the other process must have seen to that, since memory that is not there (any
// more) can't be used without a fault.
func OpenVector(fd int) *Vector { return &Vector{fd: fd} }

// step is by how much a vector grows at least, in bytes.
const step = 64 << 10

// MaxVector is how many bytes a vector may have.
const MaxVector = 1 << 30

// bytes returns the first count values of width bytes. grow makes the file as large as that; else one that is smaller is an error.
func (v *Vector) bytes(count, width int, grow bool) ([]byte, error) {
	if count < 0 || count > (MaxVector-step)/width {
		return nil, fmt.Errorf("a vector of %d values of %d bytes: %d are the most", count, width, (MaxVector-step)/width)
	}
	n := count * width
	if n <= len(v.mem) {
		return v.mem[:n], nil
	}
	size, err := vectorSize(v.fd)
	if err != nil {
		return nil, err
	}
	if size < int64(n) {
		if !grow {
			return nil, fmt.Errorf("a vector of %d bytes, and its memory has %d", n, size)
		}
		// Twice as much, so that vectors that get longer are not mapped anew each time.
		size = int64(max(n, min(2*len(v.mem), MaxVector-step))+step-1) &^ (step - 1)
		if err := growVector(v.fd, size); err != nil {
			return nil, err
		}
	}
	if err := v.Close(); err != nil {
		return nil, err
	}
	if v.mem, err = mapVector(v.fd, int(min(size, MaxVector))); err != nil {
		return nil, err
	}
	return v.mem[:n], nil
}

// Int32 returns the first n values; see Int64.
func (v *Vector) Int32(n int, grow bool) ([]int32, error) {
	b, err := v.bytes(n, 4, grow)
	if err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

// Int64 returns the first n values as this machine has them, until the next call. With grow the memory is made as large as
// that; else it is an error that it is not.
func (v *Vector) Int64(n int, grow bool) ([]int64, error) {
	b, err := v.bytes(n, 8, grow)
	if err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

// Close unmaps it. It can be used again.
func (v *Vector) Close() error {
	if v.mem == nil {
		return nil
	}
	mem := v.mem
	v.mem = nil
	return unmapVector(mem)
}

// systemError says which call failed.
func systemError(call string, err error) error {
	return fmt.Errorf("memory shared with another process: %w", os.NewSyscallError(call, err))
}
