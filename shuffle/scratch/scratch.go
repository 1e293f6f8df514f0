// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// alive is the file of a folder that its process holds a lock on.
const alive = "alive"

// moment is how old a folder without a lock must be to be taken for a leftover: one
// that is being made has none yet.
const moment = 10 * time.Second

// Folder is a temporary folder of this process.
type Folder struct {
	path string
	lock io.Closer // nil: the system has no locks that end with a process
}

// New removes the folders in parent that New made with that prefix for processes
// that are gone, and makes another. parent "" is the system's temporary folder. What
// cannot be removed stays, without an error. On systems other than Linux all stay.
func New(parent, prefix string) (*Folder, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	sweep(parent, prefix)
	path, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, err
	}
	lock, err := hold(filepath.Join(path, alive))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &Folder{path, lock}, nil
}

// Path returns where the folder is.
func (f *Folder) Path() string { return f.path }

// Close removes the folder with all that is in it.
func (f *Folder) Close() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		// Only now: nobody may sweep what is being removed.
		err = errors.Join(err, f.lock.Close())
		f.lock = nil
	}
	return err
}
