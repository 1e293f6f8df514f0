// SPDX-License-Identifier: Apache-2.0

package push

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/segment"
	"github.com/quernmr/quern/shuffle/wire"
)

// Sockets keep their checksums on, since the kernel refuses to cut packets without, and
// over IPv6 they take answers that have none.
func TestChecksums(t *testing.T) {
	for network, address := range map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0"} {
		t.Run(network, func(t *testing.T) {
			open := func() *net.UDPConn {
				c, err := net.ListenPacket(network, address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c.(*net.UDPConn)
			}
			from, to := open(), open()
			raw, err := from.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			six := network == "udp6"
			if err := raw.Control(func(fd uintptr) {
				tune(fd, six)
				if off, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK); err != nil || off != 0 {
					t.Errorf("checksums are switched off: %d, %v", off, err)
				}
				if !six {
					return
				}
				if off, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX); err != nil || off != 0 {
					t.Errorf("checksums are switched off: %d, %v", off, err)
				}
				if on, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX); err != nil || on != 1 {
					t.Errorf("answers without a checksum are not taken: %d, %v", on, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			control := segment.Control()
			segment.SetSize(control, wire.FrameSize)
			if _, _, err := from.WriteMsgUDP(make([]byte, 2*wire.FrameSize), control, to.LocalAddr().(*net.UDPAddr)); err != nil {
				t.Fatalf("a packet of two segments is refused: %v", err)
			}
			buf := make([]byte, 1<<16)
			for range 2 {
				if err := to.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				if n, err := to.Read(buf); err != nil || n != wire.FrameSize {
					t.Errorf("%d bytes came, %v", n, err)
				}
			}
		})
	}
}
