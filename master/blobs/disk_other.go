// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package blobs

import (
	"errors"
	"syscall"
)

// isFull knows ERROR_DISK_FULL and ERROR_HANDLE_DISK_FULL.
func isFull(err error) bool {
	return errors.Is(err, syscall.Errno(112)) || errors.Is(err, syscall.Errno(39))
}

// syncFolder does nothing: folders can't be synced there.
func syncFolder(string) error { return nil }
