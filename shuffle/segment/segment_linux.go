// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Possible says whether the system may know how.
const Possible = true

// Control returns a control message that has what is sent with it cut in segments, of a
// size that [SetSize] sets. Sockets keep their checksums on: the kernel refuses to cut without.
func Control() []byte {
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

// SetSize sets the bytes of each segment but the last one, which may have less.
func SetSize(control []byte, size int) {
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(size))
}

// Refused says whether an error means that a packet can't be cut: the device, a
// tunnel or an old kernel does not know how, or segments are too large.
func Refused(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOPROTOOPT)
}
