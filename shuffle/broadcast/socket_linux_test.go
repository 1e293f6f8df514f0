// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Frames arrive one by one as they were, whether the system cuts packets or refuses to.
func TestSegments(t *testing.T) {
	for name, spoil := range map[string]func(s *socket){
		"cut": func(*socket) {}, "refused": func(s *socket) { s.control[0] = 100 }, "not at all": func(s *socket) { s.cut = false },
	} {
		t.Run(name, func(t *testing.T) {
			to, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			p, err := listen(false, false)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			s := p.(*socket)
			spoil(s)
			const size, n = 1000, 70
			all := noise(1, size*n+17)
			if err := s.send(all, size, to.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
				t.Fatal(err)
			}
			if s.cut != (name == "cut") {
				t.Errorf("it cuts: %v", s.cut)
			}
			_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
			buf := make([]byte, 2*size)
			for len(all) > 0 {
				got, err := to.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				if want := min(size, len(all)); got != want || !bytes.Equal(buf[:got], all[:got]) {
					t.Fatalf("%d bytes, want %d", got, want)
				}
				all = all[got:]
			}
		})
	}
}

// Ports give back all that they take from the system.
func TestSocketLeavesNothing(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	before := open()
	for name, tc := range families {
		for range 20 {
			p, err := listen(tc.six, tc.both)
			if err != nil {
				t.Skip(err)
			}
			if err := p.close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// Others may come and go; forty that stay are ours.
	if after := open(); after >= before+40 {
		t.Errorf("%d files are open, there were %d", after, before)
	}
}

// Addresses become what the system takes for them.
func TestSocketAddresses(t *testing.T) {
	four, six := &socket{}, &socket{six: true}
	at := netip.MustParseAddrPort
	v4 := &unix.SockaddrInet4{Port: 7, Addr: [4]byte{10, 0, 0, 1}}
	mapped := &unix.SockaddrInet6{Port: 7, Addr: [16]byte{10: 255, 11: 255, 12: 10, 15: 1}}
	for _, tc := range []struct {
		s    *socket
		to   netip.AddrPort
		want unix.Sockaddr
	}{
		{four, at("10.0.0.1:7"), v4},
		{four, at("[::ffff:10.0.0.1]:7"), v4},
		{four, at("[fd00::1]:7"), nil},
		{four, netip.AddrPort{}, nil},
		{six, at("10.0.0.1:7"), mapped},
		{six, at("[fe80::1%3]:8"), &unix.SockaddrInet6{Port: 8, ZoneId: 3, Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 1}}},
		{six, at("[fd00::1]:7"), &unix.SockaddrInet6{Port: 7, Addr: [16]byte{0: 0xfd, 15: 1}}},
		{six, at("[fe80::1%nowhere]:8"), nil},
		{six, netip.AddrPort{}, nil},
	} {
		got, err := tc.s.address(tc.to)
		if tc.want == nil {
			if err == nil {
				t.Errorf("%v becomes %v", tc.to, got)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%v becomes %+v, want %+v: %v", tc.to, got, tc.want, err)
		}
	}
}
