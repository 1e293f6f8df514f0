// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package output

import (
	"errors"
	"os"
)

// renameOverEmpty renames a folder over an empty one: the empty one is removed
// first, and made again if the rename fails.
func renameOverEmpty(temp, target string) error {
	if err := os.Remove(target); err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return errors.Join(err, os.Mkdir(target, 0o777))
	}
	return nil
}

// syncDir does nothing: there is no way to sync a folder here.
func syncDir(string) error { return nil }

// isNotDir is not told apart from a missing folder here.
func isNotDir(error) bool { return false }
