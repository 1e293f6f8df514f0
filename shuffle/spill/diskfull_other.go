// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package spill

import (
	"errors"
	"syscall"
)

// Windows' ERROR_HANDLE_DISK_FULL and ERROR_DISK_FULL.
const (
	errorHandleDiskFull = 39
	errorDiskFull       = 112
)

// isDiskFull says whether err means that there is no more room.
func isDiskFull(err error) bool {
	var number syscall.Errno
	return errors.As(err, &number) && (number == errorHandleDiskFull || number == errorDiskFull)
}
