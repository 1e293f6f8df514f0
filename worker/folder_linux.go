// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// holdLock makes and locks a file, until it is closed or this process ends.
func holdLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("worker: the lock of its folder: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			who, _ := io.ReadAll(io.LimitReader(f, 100))
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("worker: folder %s belongs to another worker that runs (%s): give this one another (--dir)", filepath.Dir(path), strings.TrimSpace(string(who)))
			}
			return nil, fmt.Errorf("worker: %s can't be locked: %w; use a folder on a local file system (--dir)", path, err)
		}
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			if err := f.Truncate(0); err == nil {
				_, _ = fmt.Fprintf(f, "process %d\n", os.Getpid()) // for people alone
			}
			return f, nil
		}
		// Its holder has just removed it.
		_ = f.Close()
	}
}

// room returns how many bytes are free where path is.
func room(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return math.MaxInt64 // whoever writes there will learn more
	}
	return int64(st.Bavail) * st.Bsize
}

// userTimeout has the system give up connections whose other end has not
// acknowledged data for that long, in milliseconds.
func userTimeout(fd uintptr, ms int) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms)
}
