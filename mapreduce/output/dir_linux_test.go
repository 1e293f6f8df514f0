// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of that many bytes.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("quern-test", dir, "tmpfs", 0, options); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDirDiskFull(t *testing.T) {
	disk := smallDisk(t, "size=256k")
	out := filepath.Join(disk, "sub", "out")
	long := strings.Repeat("long ", 40_000)
	for _, opts := range []DirOptions{{}, {Format: Parquet}} {
		tx := begin(t, Dir(out, opts), wordInfo(2))
		must(t, writePart(tx, 0, wordRow("fits", 1)))
		rows := make([]Row, 0, 10)
		for i := range 10 {
			rows = append(rows, wordRow(random(i)+long, 1))
		}
		err := writePart(tx, 1, rows...)
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), out) || !strings.Contains(err.Error(), "make room") {
			t.Errorf("%+v: %v, want a full disk", opts, err)
		}
		must(t, tx.Abort())
		same(t, disk, nil)
	}
	// Not even a folder fits.
	full := smallDisk(t, "nr_inodes=2")
	must(t, os.Mkdir(filepath.Join(full, "x"), 0o755))
	if _, err := Dir(filepath.Join(full, "a", "b", "out"), DirOptions{}).Begin(wordInfo(1)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without inodes: %v", err)
	}
	same(t, full, map[string]string{"x": "/"})
}

// random returns text that does not compress, the same for the same seed.
func random(seed int) string {
	b := make([]byte, 100_000)
	x := uint64(seed + 1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = 'a' + byte(x>>32)%26
	}
	return string(b)
}

func TestDirMountPoint(t *testing.T) {
	disk := smallDisk(t, "size=64k")
	if _, err := Dir(disk, DirOptions{}).Begin(wordInfo(1)); !errors.Is(err, ErrTarget) {
		t.Errorf("a mount point: %v, want ErrTarget", err)
	}
	tx := begin(t, Dir(filepath.Join(disk, "out"), DirOptions{}), wordInfo(1))
	must(t, tx.Commit(nil))
}

func TestStreamDiskFull(t *testing.T) {
	disk := smallDisk(t, "size=64k")
	var w strings.Builder
	tx := begin(t, Stream(&w, StreamOptions{SpoolMemory: -1, SpoolDir: disk}), wordInfo(1))
	if err := writePart(tx, 0, wordRow(random(1), 1)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want a full disk", err)
	}
	must(t, tx.Abort())
	same(t, disk, nil)
	if w.Len() > 0 {
		t.Error("something was written")
	}
}
