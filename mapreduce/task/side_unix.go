// SPDX-License-Identifier: Apache-2.0

//go:build unix

package task

import (
	"fmt"
	"math"
	"os"
	"syscall"
)

// takeSide looks at a side input's descriptor and closes it to children.
func takeSide(s SideInput) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(s.Descriptor, &st); err != nil {
		return fmt.Errorf("descriptor %d: %w", s.Descriptor, err)
	}
	// What is mapped beyond a file's end can't be read. Other descriptors, as of a region in
	// the kernel, have no size.
	if end := s.Offset + s.Size; st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Size < end {
		return fmt.Errorf("its file ends at byte %d, before %d", st.Size, end)
	}
	syscall.CloseOnExec(s.Descriptor)
	return nil
}

// Map maps the side input for reading, without a copy. The content must not be written, which
// is a fault, nor used after unmap. The descriptor stays open.
func (s SideInput) Map() (content []byte, unmap func() error, err error) {
	if s.Size == 0 {
		return []byte{}, func() error { return nil }, nil
	}
	from := s.Offset &^ int64(os.Getpagesize()-1)
	skip := s.Offset - from
	if s.Size > math.MaxInt-skip {
		return nil, nil, fmt.Errorf("side input %q: %d bytes can't be mapped on this system", s.Name, s.Size)
	}
	mem, err := syscall.Mmap(s.Descriptor, from, int(skip+s.Size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("side input %q: mapping %d bytes: %w", s.Name, s.Size, os.NewSyscallError("mmap", err))
	}
	return mem[skip:], func() error { return syscall.Munmap(mem) }, nil
}
