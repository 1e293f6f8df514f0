// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package output

// swap lets two folders change places and returns where the target's former
// content is, and how to take it back.
func swap(temp, target string) (old string, undo func() error, err error) {
	return swapInTwoSteps(temp, target)
}

// isMountPoint is not known here; the rename at the end says so then.
func isMountPoint(string) bool { return false }

// startWriteBack is only known on Linux.
func startWriteBack(file, int64, int64) {}
