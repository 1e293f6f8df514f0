// SPDX-License-Identifier: Apache-2.0

package pairs

import "golang.org/x/sys/unix"

// reserve maps address space that takes memory only where it is touched. Huge
// pages are not asked for: under a hypervisor each of them was measured to cost
// more to be had than all its lookups saved.
func reserve(size int64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
}

func release(mem []byte) error { return unix.Munmap(mem) }
