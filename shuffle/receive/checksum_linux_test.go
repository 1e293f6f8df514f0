// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/wire"
)

// TestNoChecksum sends to a receiver over IPv6 what a program has passed up rewritten:
// a packet without a UDP checksum, which sockets drop unless they are told.
func TestNoChecksum(t *testing.T) {
	r := testReceiver(t, Options{Readers: 1})
	c, err := net.DialUDP("udp6", nil, &net.UDPAddr{IP: net.IPv6loopback, Port: r.Port()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []int{unix.UDP_NO_CHECK6_TX, unix.UDP_NO_CHECK6_RX} {
		if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, option, 1) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
	}
	// A probe shows that the packet came in: it is answered.
	if _, err := c.Write(wire.PutProbe(make([]byte, wire.FrameSize), 42, 1, 64, 9)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 2000)); err != nil {
		t.Errorf("no answer to a packet without a checksum: %v", err)
	}
}
