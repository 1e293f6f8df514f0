// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Stats makes the kernel take the times of all programs, which costs each run some tens of
// nanoseconds, until the closer is closed. It needs Linux 5.8. See [Host.Times].
func Stats() (io.Closer, error) {
	c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("take the times of programs: %w", kernelError(err))
	}
	return c, nil
}
