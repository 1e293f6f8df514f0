// SPDX-License-Identifier: Apache-2.0

package labnode

import (
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/quernmr/quern/internal/netlab"
)

// Bare returns an error if the interface of the host of the calling thread has a program or a filter.
func Bare() error {
	link, err := netlink.LinkByName(netlab.InterfaceName)
	if err != nil {
		return err
	}
	if x := link.Attrs().Xdp; x != nil && x.Attached {
		return fmt.Errorf("XDP program %d is left at %s", x.ProgId, netlab.InterfaceName)
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(link, parent)
		if err == nil && len(filters) > 0 {
			return fmt.Errorf("%d filters are left at %s: %v", len(filters), netlab.InterfaceName, filters[0])
		}
	}
	return nil
}

// Kept counts the descriptors of maps, programs and links that this process has open.
func Kept() (n int, err error) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(to, "anon_inode:bpf") {
			n++
		}
	}
	return n, nil
}
