// SPDX-License-Identifier: Apache-2.0

// Package segment has the system cut one large send into packets of equal size
// (UDP_SEGMENT, Linux 4.18), for the sockets that frames leave by.
package segment
