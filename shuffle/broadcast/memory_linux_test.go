// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/wire"
)

// Whoever gets a content may rely on its size: nobody can change that, not even its owner.
func TestContentKeepsItsSize(t *testing.T) {
	c, free, err := newContent(3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := free(); err != nil {
			t.Error(err)
		}
	}()
	f, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	own, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, size := range []int64{0, wire.ChunkSize, 4 * wire.ChunkSize} {
		if err := own.Truncate(size); !errors.Is(err, unix.EPERM) {
			t.Errorf("cut to %d bytes: %v", size, err)
		}
	}
	if _, err := own.WriteAt([]byte("x"), 3*wire.ChunkSize-1); err != nil || c.Data[3*wire.ChunkSize-1] != 'x' {
		t.Errorf("it can't be written any more: %v", err)
	}
}
