// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hold makes a file and locks it until it is closed or the process ends. A file
// system without locks is no error: nobody can lock the file there to sweep.
func hold(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return f, nil
}

// sweep removes what processes that are gone have left.
func sweep(parent, prefix string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < moment {
			continue
		}
		// The folder's parent may be everybody's: other users' folders are theirs to sweep.
		if s, ok := info.Sys().(*syscall.Stat_t); !ok || int(s.Uid) != os.Geteuid() {
			continue
		}
		remove(filepath.Join(parent, e.Name()))
	}
}

// remove removes a folder if its lock is free, or if it is empty: its process was
// stopped before there was a lock.
func remove(path string) {
	f, err := os.OpenFile(filepath.Join(path, alive), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if os.IsNotExist(err) {
			_ = os.Remove(path) // fails if there is anything in it
		}
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.RemoveAll(path)
	}
}
