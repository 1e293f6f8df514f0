// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package output

import (
	"errors"
	"os"
)

// swap lets two folders change places and returns where the target's former
// content is, and how to take it back.
func swap(temp, target string) (old string, undo func() error, err error) {
	return swapInTwoSteps(temp, target)
}

// exchange fails with errors.ErrUnsupported: there is no such step here.
func exchange(a, b string) error {
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: errors.ErrUnsupported}
}

// isMountPoint is not known here; the rename at the end says so then.
func isMountPoint(string) bool { return false }

// startWriteBack is only known on Linux.
func startWriteBack(file, int64, int64) {}
