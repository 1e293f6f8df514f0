// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// sharesPorts says whether several sockets can have one port.
const sharesPorts = true

// controlRoom is room for the control messages of a packet: its local address
// and the size of joined ones.
const controlRoom = 96

func sharePort(fd uintptr) error {
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// tune asks for what helps and can be done without: joined packets, packets
// whose checksum was cleared by a program, and a large buffer.
func tune(fd uintptr, six bool, buffer int) (joined bool, got int) {
	if six {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	} else {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	joined = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		got = 0
	}
	return joined, got / 2 // the system doubles what it is asked for
}

// control is one control message.
type control struct {
	level, kind uint32
	whole, data []byte
}

// nextControl returns the first control message of a list and what follows it; ok is
// false at the end, or if the list is damaged.
func nextControl(b []byte) (c control, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return c, nil, false
	}
	const lengthBytes = unix.SizeofCmsghdr - 8
	n := int(binary.NativeEndian.Uint32(b))
	if lengthBytes == 8 {
		n = int(binary.NativeEndian.Uint64(b))
	}
	if n < unix.CmsgLen(0) || n > len(b) {
		return c, nil, false
	}
	c = control{
		level: binary.NativeEndian.Uint32(b[lengthBytes:]), kind: binary.NativeEndian.Uint32(b[lengthBytes+4:]),
		whole: b[:n], data: b[unix.CmsgLen(0):n],
	}
	return c, b[min(len(b), unix.CmsgSpace(n-unix.CmsgLen(0))):], true
}

// joinedSize returns the size of the packets that were joined, 0 if there was one alone.
func joinedSize(b []byte) int {
	for {
		c, rest, ok := nextControl(b)
		switch {
		case !ok:
			return 0
		case c.level == unix.IPPROTO_UDP && c.kind == unix.UDP_GRO && len(c.data) >= 4:
			return int(binary.NativeEndian.Uint32(c.data))
		}
		b = rest
	}
}

// tooLarge says whether an error is about a packet that the way to a host does not take.
func tooLarge(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

// appendSource appends the control message that makes an answer leave from the
// address that a packet, with control messages b, came to.
func appendSource(dst, b []byte) []byte {
	for {
		c, rest, ok := nextControl(b)
		if !ok {
			return dst
		}
		six := c.level == unix.IPPROTO_IPV6 && c.kind == unix.IPV6_PKTINFO && len(c.data) >= 20
		four := c.level == unix.IPPROTO_IP && c.kind == unix.IP_PKTINFO && len(c.data) >= 12
		if six || four {
			at := len(dst)
			dst = append(dst, c.whole...)
			info := dst[at+unix.CmsgLen(0):]
			// The way back may be by another interface, but for addresses that
			// mean something on one alone.
			if four {
				clear(info[:4])
			} else if info[0] != 0xfe || info[1]&0xc0 != 0x80 {
				clear(info[16:20])
			}
			for len(dst)-at < unix.CmsgSpace(len(c.data)) {
				dst = append(dst, 0)
			}
			return dst
		}
		b = rest
	}
}
