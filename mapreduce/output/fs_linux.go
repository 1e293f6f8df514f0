// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// swap lets two folders change places in one step and returns where the
// target's former content is, and how to take it back.
func swap(temp, target string) (old string, undo func() error, err error) {
	err = exchange(temp, target)
	switch {
	case err == nil:
		return temp, func() error { return exchange(temp, target) }, nil
	case errors.Is(err, errors.ErrUnsupported):
		return swapInTwoSteps(temp, target)
	}
	return "", nil, err
}

// exchange lets two folders change places in one step, or fails with
// errors.ErrUnsupported if the file system cannot.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		err = errors.ErrUnsupported
	}
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
}

// isMountPoint says that another file system (or a part of one) is mounted at path.
func isMountPoint(path string) bool {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false
	}
	return st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// startWriteBack tells the system to begin writing a range of f to disk. It
// does not wait and promises nothing, so its errors mean nothing.
func startWriteBack(f file, offset, size int64) {
	if f, ok := f.(*os.File); ok {
		_ = unix.SyncFileRange(int(f.Fd()), offset, size, unix.SYNC_FILE_RANGE_WRITE)
	}
}
