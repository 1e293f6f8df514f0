// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"fmt"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
)

// Kernel is the help of a host's kernel.
type Kernel interface {
	shuffle.Kernel
	Broadcasts() (shuffle.Broadcasts, error)
	Port() int
	Close() error
}

// HereLimits are the sizes of what Here opens.
var HereLimits = shuffle.Limits{Streams: 64, Targets: 32, Outgoing: 64, Jobs: 8, Regions: 16, Casts: 4, Chunks: 1 << 16}

// Here opens the help of the kernel of the host that this process is in: one that a
// lab's Host.Command has started. The caller closes it.
func Here() (Kernel, error) {
	h, err := bpf.Open(bpf.Options{Interfaces: []string{netlab.InterfaceName}, Limits: HereLimits, TableMemory: 32 << 20})
	if err != nil {
		return nil, fmt.Errorf("the kernel's help: %w", err)
	}
	return h, nil
}
