// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// acceptNoChecksum makes a socket take datagrams without a checksum over IPv6, as programs send them.
func acceptNoChecksum(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	}); err != nil {
		return err
	}
	if serr != nil {
		return fmt.Errorf("take datagrams without a checksum: %w", serr)
	}
	return nil
}
