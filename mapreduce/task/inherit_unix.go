// SPDX-License-Identifier: Apache-2.0

//go:build unix

package task

import (
	"fmt"
	"os"
	"syscall"
)

// inherits says that child processes can inherit descriptors.
const inherits = true

// inherited is a pipe that the parent left open.
func inherited(fd uintptr, name string) (*os.File, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(fd), &st); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("descriptor %d is no pipe", fd)
	}
	syscall.CloseOnExec(int(fd))
	return os.NewFile(fd, name), nil
}
