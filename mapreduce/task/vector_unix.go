// SPDX-License-Identifier: Apache-2.0

//go:build unix

package task

import "syscall"

// closeOnExec keeps a descriptor from programs that this one starts.
func closeOnExec(fd int) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	syscall.CloseOnExec(fd)
	return nil
}

func vectorSize(fd int) (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return 0, systemError("fstat", err)
	}
	return st.Size, nil
}

func growVector(fd int, size int64) error {
	if err := syscall.Ftruncate(fd, size); err != nil {
		return systemError("ftruncate", err)
	}
	return nil
}

func mapVector(fd, size int) ([]byte, error) {
	mem, err := syscall.Mmap(fd, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, systemError("mmap", err)
	}
	return mem, nil
}

func unmapVector(mem []byte) error {
	if err := syscall.Munmap(mem); err != nil {
		return systemError("munmap", err)
	}
	return nil
}
