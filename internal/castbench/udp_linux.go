// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// joinControl is how much room the message takes that says where to cut what is read.
var joinControl = unix.CmsgSpace(4)

// joinReads has a socket give several datagrams of one sender at once.
func joinReads(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) })
	if err == nil && failed != nil {
		err = fmt.Errorf("join datagrams: %w", failed)
	}
	return err
}

// cutControl returns what has the system cut what is written into datagrams of a size.
func cutControl(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(b[8:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(b[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return b
}

// cutSize returns the size of the datagrams in what was read, which is whole if nothing is
// said.
func cutSize(control []byte, whole int) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return whole
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_UDP && m.Header.Type == unix.UDP_GRO && len(m.Data) >= 4 {
			return int(max(1, binary.NativeEndian.Uint32(m.Data)))
		}
	}
	return whole
}
