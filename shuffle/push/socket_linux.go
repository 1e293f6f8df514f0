// SPDX-License-Identifier: Apache-2.0

package push

import (
	"errors"

	"golang.org/x/sys/unix"
)

// tune asks for what helps and can be done without.
func tune(fd uintptr, six bool) {
	f := int(fd)
	_ = unix.SetsockoptInt(f, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
	_ = unix.SetsockoptInt(f, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	// A frame that is too large for the path is an error, which sends it another
	// way: programs at the receiver fold whole packets alone.
	if six {
		_ = unix.SetsockoptInt(f, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		// Answers that programs made have no checksum; their tag is one.
		_ = unix.SetsockoptInt(f, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
		return
	}
	_ = unix.SetsockoptInt(f, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
}

// tooLargeSegments says whether such an error may be due to their size: a frame
// alone then fails too, and tells.
func tooLargeSegments(err error) bool { return errors.Is(err, unix.EINVAL) }

func tooLarge(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

// passing says whether an error is about a lack that passes by itself.
func passing(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM)
}
