// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quernmr/quern/worker/process"
)

// folder is where a worker's files are, in a folder that it alone uses.
type folder struct {
	path string // of this process's run
	lock *os.File
}

const (
	lockName  = "lock"
	runPrefix = "run-"
)

// openFolder takes dir for this process, and removes what earlier ones have left.
func openFolder(dir string) (*folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("worker: its folder: %w", err)
	}
	lock, err := holdLock(filepath.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	f := &folder{lock: lock}
	if err := f.sweep(dir); err != nil {
		return nil, errors.Join(err, f.release())
	}
	if f.path, err = os.MkdirTemp(dir, runPrefix); err != nil {
		return nil, errors.Join(fmt.Errorf("worker: its folder: %w", err), f.release())
	}
	return f, nil
}

// sweep ends processes and removes files of a worker that did not get to do it.
func (f *folder) sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("worker: its folder: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		old := filepath.Join(dir, e.Name())
		process.Sweep(old)
		if err := removeAll(old); err != nil {
			return fmt.Errorf("worker: what an earlier one left in %s can't be removed, do it by hand: %w", old, err)
		}
	}
	return nil
}

// release gives the folder up to whoever wants it.
func (f *folder) release() error {
	// Removed while it is held: who waits for the old file finds that it is not the one of that name.
	return errors.Join(os.Remove(f.lock.Name()), f.lock.Close())
}

// Close removes all files of this run.
func (f *folder) Close() error {
	err := removeAll(f.path)
	return errors.Join(err, f.release())
}

// removeAll is os.RemoveAll for folders in which a program may have taken rights from
// folders of its own.
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(path, func(p string, d os.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}
