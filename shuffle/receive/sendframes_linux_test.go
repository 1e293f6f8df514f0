// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/wire"
)

// set turns an option of a socket on.
func set(t *testing.T, c *net.UDPConn, level, option int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }); cerr != nil || err != nil {
		t.Skip("option", option, "of sockets:", cerr, err)
	}
}

// joins returns a socket at which packets that were cut come joined again.
func joins(t *testing.T, address string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { c.Close() })
	set(t, c, unix.IPPROTO_UDP, unix.UDP_GRO)
	return c
}

// TestSendFramesCuts looks at the packets: many frames are one send, and where the system refuses that, each is its own.
func TestSendFramesCuts(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		c := joins(t, address)
		r := testReceiver(t, Options{Listen: address})
		to := c.LocalAddr().(*net.UDPAddr).AddrPort()
		frames := bytes.Repeat([]byte{7}, 40*wire.FrameSize+100)
		// reads returns how many reads bring all of it.
		reads := func() (n int) {
			t.Helper()
			if err := r.SendFrames(frames, wire.FrameSize, to); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 1<<16)
			for left := len(frames); left > 0; n++ {
				if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				got, err := c.Read(b)
				if err != nil {
					t.Fatalf("%d bytes are missing: %v", left, err)
				}
				left -= got
			}
			return n
		}
		// 32 frames, and 8 with the small one.
		if n := reads(); n != 2 {
			t.Errorf("%s: 41 frames came in %d packets, want 2", address, n)
		}
		// Without checksums the kernel does not cut.
		level, option := unix.SOL_SOCKET, unix.SO_NO_CHECK
		if address == "::1" {
			level, option = unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX
			set(t, c, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX)
		}
		if err := unix.SetsockoptInt(r.outlet.fd, level, option, 1); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if n := reads(); n != 41 {
				t.Errorf("%s: 41 frames came in %d packets where none can be cut", address, n)
			}
		}
		if _, known := r.whole.Load(to.Addr()); !known {
			t.Errorf("%s: it will be tried in vain again", address)
		}
	}
}

// TestSteer has packets from many ports come to sockets that share one: to all of those that are meant, and to no other.
func TestSteer(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		for meant := 1; meant <= 3; meant++ {
			port := 0
			var all []*socket
			for range meant + 1 {
				s, err := open("udp", address, port, 1<<20, true)
				if err != nil {
					t.Skip(err)
				}
				defer s.conn.Close()
				port = s.conn.LocalAddr().(*net.UDPAddr).Port
				all = append(all, s)
			}
			raw, err := all[0].conn.SyscallConn()
			if err == nil {
				cerr := raw.Control(func(fd uintptr) { err = steer(int(fd), meant) })
				if cerr != nil {
					err = cerr
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			const senders = 60
			for range senders {
				c, err := net.DialUDP("udp", nil, all[0].conn.LocalAddr().(*net.UDPAddr))
				if err == nil {
					_, err = c.Write([]byte("x"))
					c.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			var came atomic.Int64
			count := make([]int, len(all))
			var readers sync.WaitGroup
			for i, s := range all {
				readers.Go(func() {
					for b := make([]byte, 10); ; came.Add(1) {
						if _, err := s.conn.Read(b); err != nil {
							return
						}
						count[i]++
					}
				})
			}
			waitFor(t, "packets", func() bool { return came.Load() == senders })
			for _, s := range all {
				s.conn.Close()
			}
			readers.Wait()
			for i, n := range count {
				if (n > 0) != (i < meant) {
					t.Errorf("%s: %d packets came to socket %d, where %d are meant", address, n, i, meant)
				}
			}
		}
	}
}

// TestOutlet sends from receivers with and without an outlet: all arrives, and nothing at an outlet. A port is one receiver's.
func TestOutlet(t *testing.T) {
	frame := parts(t)[0]
	for _, address := range []string{"127.0.0.1", "::1", ""} {
		if address == "::1" {
			joins(t, address) // or there is no IPv6
		}
		for readers := 1; readers <= 2; readers++ {
			g := &got{}
			b := testReceiver(t, Options{Listen: address, Readers: readers, Other: g.take})
			if b.outlet == nil {
				t.Fatal("no outlet")
			}
			host := netip.MustParseAddr("127.0.0.1")
			if address == "::1" {
				host = netip.MustParseAddr(address)
			}
			for _, without := range []bool{false, true} {
				a := testReceiver(t, Options{Listen: address})
				if without {
					a.outlet.close()
					a.outlet = nil
				}
				for range 10 {
					if err := a.SendFrame(frame, netip.AddrPortFrom(host, uint16(b.Port()))); err != nil {
						t.Fatal(err)
					}
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			}
			waitFor(t, "frames", func() bool { return g.count() == 20 })
			if waiting, err := unix.IoctlGetInt(b.outlet.fd, unix.SIOCINQ); err != nil || waiting != 0 {
				t.Errorf("%q: %d bytes came to the outlet: %v", address, waiting, err)
			}
			if _, err := New(Options{Listen: address, Port: b.Port(), FoldMemory: 8 << 20}); err == nil {
				t.Errorf("%q: a port is had by two", address)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			// It is nobody's again.
			again := testReceiver(t, Options{Listen: address, Port: b.Port()})
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
