// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"os"

	"golang.org/x/sys/unix"
)

// sharedMemory makes memory for this process and a child. The child can make it larger, but not smaller: using
// memory that is not there any more would end this process.
func sharedMemory() (*os.File, error) {
	fd, err := unix.MemfdCreate("quern-vector", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "quern-vector")
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}
