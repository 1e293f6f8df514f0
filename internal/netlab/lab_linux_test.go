// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needLab skips the test where labs are not possible, and says why.
func needLab(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
}

// build makes a lab that ends with the test.
func build(t testing.TB, o Options) *Lab {
	t.Helper()
	needLab(t)
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// listen opens a UDP socket on a host. It has room for whatever a test sends,
// and takes packets without a checksum.
func listen(t testing.TB, h *Host, ip netip.Addr, port uint16) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, port)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
			t.Error(err)
		}
		if ip.Is6() {
			if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAllPairs sends UDP between all pairs of hosts, over IPv4 and IPv6.
func TestAllPairs(t *testing.T) {
	l := build(t, Options{Hosts: 4})
	for _, to := range l.Hosts() {
		for _, ip := range []netip.Addr{to.IPv4(), to.IPv6()} {
			server := listen(t, to, ip, 7000)
			go func() {
				buffer := make([]byte, 100)
				for {
					n, from, err := server.ReadFromUDPAddrPort(buffer)
					if err != nil {
						return
					}
					_, _ = server.WriteToUDPAddrPort(append([]byte("re: "), buffer[:n]...), from)
				}
			}()
			for _, from := range l.Hosts() {
				local := from.IPv4()
				if ip.Is6() {
					local = from.IPv6()
				}
				c := listen(t, from, local, 0)
				question := fmt.Sprintf("%d to %v", from.Number(), ip)
				if _, err := c.WriteToUDPAddrPort([]byte(question), netip.AddrPortFrom(ip, 7000)); err != nil {
					t.Fatal(err)
				}
				_ = c.SetReadDeadline(time.Now().Add(time.Minute))
				answer := make([]byte, 100)
				n, err := c.Read(answer)
				if err != nil || string(answer[:n]) != "re: "+question {
					t.Errorf("%s: %q, %v", question, answer[:n], err)
				}
			}
		}
	}
}
