// SPDX-License-Identifier: Apache-2.0

//go:build unix

package blobs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// syncFolder makes a rename survive a loss of power.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("folder of blobs: %w", err)
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("folder of blobs: %w", err)
	}
	return nil
}
