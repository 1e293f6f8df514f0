// SPDX-License-Identifier: Apache-2.0

package pairs

import "golang.org/x/sys/unix"

// reserve maps address space that takes memory only where it is touched, in
// huge pages where the system has them: tables of this size are visited at
// random, and small pages would cost a walk of the page table each time.
func reserve(size int64) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only a hint
	return mem, nil
}

func release(mem []byte) error { return unix.Munmap(mem) }
