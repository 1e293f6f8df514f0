// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// newContent makes a content of the process's own, in a file without a name that other
// processes can map.
func newContent(chunks int) (_ *shuffle.Content, free func() error, _ error) {
	size := chunks * wire.ChunkSize
	fd, err := unix.MemfdCreate("quern-broadcast", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memory for a broadcast: %w", err)
	}
	file := os.NewFile(uintptr(fd), "quern-broadcast")
	fail := func(err error) (*shuffle.Content, func() error, error) {
		file.Close()
		return nil, nil, fmt.Errorf("%d bytes of memory for a broadcast: %w: %w", size, shuffle.ErrBusy, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fail(err)
	}
	// Who maps it would be ended by a signal if it shrank.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return fail(err)
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail(err)
	}
	c := &shuffle.Content{Data: data, Marks: make([]uint64, chunks)}
	c.Open = func() (*os.File, error) {
		// Opened anew, so that whoever gets it can only read.
		return os.Open("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	}
	free = func() error { return errors.Join(unix.Munmap(data), file.Close()) }
	return c, free, nil
}

// openPayload returns a file that a payload of a content can be read from, and where in it. It is a copy
// where the process may not hand out the memory itself.
func openPayload(c *shuffle.Content, payload []byte, offset int64) (*os.File, int64, error) {
	f, err := c.Open()
	if err == nil {
		return f, offset, nil
	}
	fd, failed := unix.MemfdCreate("quern-broadcast", unix.MFD_CLOEXEC)
	if failed != nil {
		return nil, 0, errors.Join(err, failed)
	}
	f = os.NewFile(uintptr(fd), "quern-broadcast")
	if _, failed := f.Write(payload); failed != nil {
		return nil, 0, errors.Join(err, failed, f.Close())
	}
	return f, 0, nil
}

// machineMemory returns the machine's memory in bytes, 0 if that is not known.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit))
}
