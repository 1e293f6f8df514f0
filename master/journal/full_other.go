// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package journal

import (
	"errors"
	"syscall"
)

// isFull knows ERROR_DISK_FULL and ERROR_HANDLE_DISK_FULL.
func isFull(err error) bool {
	return errors.Is(err, syscall.Errno(112)) || errors.Is(err, syscall.Errno(39))
}
