// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"io/fs"
	"os"
)

// replaceEmpty renames a folder to target, which may be an empty folder. If it
// is not empty, that is fs.ErrExist; if it is no folder (any more), ErrTarget.
func replaceEmpty(temp, target string) error {
	info, err := os.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Rename(temp, target)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &os.LinkError{Op: "rename", Old: temp, New: target, Err: ErrTarget}
	}
	empty, err := isEmpty(target)
	if err != nil {
		return err
	}
	if !empty {
		return &os.LinkError{Op: "rename", Old: temp, New: target, Err: fs.ErrExist}
	}
	return renameOverEmpty(temp, target)
}

// swapInTwoSteps moves the target aside and the folder to its place, and takes
// the first step back if the second fails.
func swapInTwoSteps(temp, target string) (old string, undo func() error, err error) {
	old = temp + ".old"
	if err := os.Rename(target, old); err != nil {
		return "", nil, err
	}
	if err := os.Rename(temp, target); err != nil {
		return "", nil, errors.Join(err, os.Rename(old, target))
	}
	return old, func() error {
		return errors.Join(os.Rename(target, temp), os.Rename(old, target))
	}, nil
}
