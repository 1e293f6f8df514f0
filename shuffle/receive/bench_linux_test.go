// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// sendSegments sends several frames of one size with one call.
func sendSegments(c *net.UDPConn, b []byte, size int) error {
	oob := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(oob[8:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(oob[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(oob[16:], uint16(size))
	_, _, err := c.WriteMsgUDP(b, oob, nil)
	return err
}

// cpu returns the processor time of the process, in ns: what others do on the
// machine does not count.
func cpu() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
