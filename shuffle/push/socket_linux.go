// SPDX-License-Identifier: Apache-2.0

package push

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

const segmentation = true

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

// segmentControl returns the control message that has a packet cut in segments.
// Sockets keep their checksums on: the kernel refuses to cut without.
func segmentControl() []byte {
	b := make([]byte, unix.CmsgSpace(2))
	if unix.SizeofCmsghdr == 16 {
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(2)))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(unix.CmsgLen(2)))
	}
	binary.NativeEndian.PutUint32(b[unix.SizeofCmsghdr-8:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(b[unix.SizeofCmsghdr-4:], unix.UDP_SEGMENT)
	return b
}

func setSegment(control []byte, size int) {
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(size))
}

// refusesSegments says whether an error means that a packet can't be cut: the
// device, a tunnel or an old kernel does not know how, or segments are too large.
func refusesSegments(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOPROTOOPT)
}

// tooLargeSegments says whether such an error may be due to their size: a frame
// alone then fails too, and tells.
func tooLargeSegments(err error) bool { return errors.Is(err, unix.EINVAL) }

func tooLarge(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

// passing says whether an error is about a lack that passes by itself.
func passing(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM)
}
