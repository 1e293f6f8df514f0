// SPDX-License-Identifier: Apache-2.0

//go:build unix

package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// renameOverEmpty renames a folder over an empty one, in one step. (os.Rename
// refuses that.) If it is not empty any more, that is fs.ErrExist.
func renameOverEmpty(temp, target string) error {
	err := syscall.Rename(temp, target)
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		err = fs.ErrExist
	}
	return &os.LinkError{Op: "rename", Old: temp, New: target, Err: err}
}

// syncDir makes the names in a folder last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil // some network file systems know no such thing
	}
	if err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	return nil
}

// isNotDir says that something above a path is no folder.
func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
