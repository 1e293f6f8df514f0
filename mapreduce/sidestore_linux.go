// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/mapreduce/task"
)

// newSideStore returns a store in memory that the collector does not know of and that can't
// be written by accident; where this system refuses that, one in the collector's. size is
// how much will be written, if that is known.
func newSideStore(size int64) sideStore {
	fd, err := unix.MemfdCreate("quern side input", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil { // older than 6.3
		fd, err = unix.MemfdCreate("quern side input", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return &heapStore{make([]byte, 0, size)}
	}
	return &fileStore{f: os.NewFile(uintptr(fd), "side input")}
}

// fileStore keeps a side input in a file in memory.
type fileStore struct {
	f    *os.File
	size int64
}

func (s *fileStore) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	s.size += int64(n)
	return n, err
}

func (s *fileStore) keep() ([]byte, func() error, error) {
	defer s.drop() // the mapping stays
	content, unmap, err := task.SideInput{Descriptor: int(s.f.Fd()), Size: s.size}.Map()
	if err != nil {
		return nil, nil, fmt.Errorf("keeping its content: %w", err)
	}
	return content, unmap, nil
}

func (s *fileStore) drop() { _ = s.f.Close() }
