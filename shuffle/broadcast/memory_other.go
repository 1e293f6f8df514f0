// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package broadcast

import (
	"errors"
	"fmt"
	"os"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// newContent makes a content of the process's own.
func newContent(chunks int) (_ *shuffle.Content, free func() error, _ error) {
	c := &shuffle.Content{Data: make([]byte, chunks*wire.ChunkSize), Marks: make([]uint64, chunks)}
	c.Open = func() (*os.File, error) {
		return nil, fmt.Errorf("memory of a process that others can map: %w", errors.ErrUnsupported)
	}
	return c, func() error { return nil }, nil
}

// openPayload returns a file with a copy of a payload.
func openPayload(_ *shuffle.Content, payload []byte, _ int64) (*os.File, int64, error) {
	f, err := os.CreateTemp("", "quern-broadcast-")
	if err != nil {
		return nil, 0, err
	}
	// Where a file that is open can't be removed it stays until the system cleans up.
	_ = os.Remove(f.Name())
	if _, err := f.Write(payload); err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("copy a broadcast to a file: %w", err)
	}
	return f, 0, nil
}

func machineMemory() int64 { return 0 }
