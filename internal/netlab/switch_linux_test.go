// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quernmr/quern/bpf/faults"
)

// unbridge takes a host's port out of the bridge, so that nothing but a switch reaches it.
func unbridge(t *testing.T, l *Lab, i int) {
	t.Helper()
	wire, err := l.bridge.handle()
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	port, err := wire.LinkByName(portName(i))
	if err == nil {
		err = wire.LinkSetNoMaster(port)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// heard sends text to a socket and returns what comes first, or "" if nothing does within a
// time.
func heard(t *testing.T, from, to *net.UDPConn, text string, within time.Duration) string {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort([]byte(text), to.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	n, err := to.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

const (
	soon = time.Minute            // what is to come
	now  = 100 * time.Millisecond // what is not
)

// TestSwitch sends to a host that no bridge reaches: what arrives went by the switch. It is
// off while any link is spoiled, and on again after.
func TestSwitch(t *testing.T) {
	l := build(t, Options{Hosts: 3, StaticNeighbours: true, Switch: true})
	unbridge(t, l, 2)
	a, b := listen(t, l.Host(1), IPv4(1), 0), listen(t, l.Host(2), IPv4(2), 7000)
	on := func(what string) {
		t.Helper()
		if got := heard(t, a, b, what, soon); got != what {
			t.Fatalf("%s: heard %q", what, got)
		}
	}
	off := func(what string) {
		t.Helper()
		if got := heard(t, a, b, what, now); got != "" {
			t.Fatalf("%s: heard %q", what, got)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	on("as made")
	if six := listen(t, l.Host(2), IPv6(2), 7001); heard(t, listen(t, l.Host(1), IPv6(1), 0), six, "six", now) != "" {
		t.Error("UDP over IPv6 went by the switch, with a checksum that was never made")
	}
	must(l.Cut(3))
	off("another host is cut")
	must(l.Cut(1))
	must(l.Heal(3))
	off("one of two is healed")
	must(l.Heal(1))
	on("all are healed")
	must(l.Host(3).SetFaults(From, Faults{Loss: 0.5}))
	off("another host loses packets")
	must(l.SetFaults(Faults{Delay: time.Millisecond}))
	off("all delay packets")
	must(l.SetFaults(Faults{}))
	on("no faults")
	must(l.Reseed(5))
	on("other seed")
	if l.Host(1).SetFaults(To, Faults{Loss: 2}) == nil {
		t.Error("a chance of 2")
	}
}

// TestSwitchFaults has faults and cuts hit a lab with a switch as they do one without.
func TestSwitchFaults(t *testing.T) {
	const n, seed = 1000, 3
	l := build(t, Options{Hosts: 2, StaticNeighbours: true, Seed: seed, Switch: true, Faults: Faults{Loss: 0.5}})
	for round := range 2 {
		got := numbers(stream(t, l, n, false))
		c := counters(t, l).Links[1].To
		if c.Lost == 0 || c.Drawn != uint64(n*(round+1)) || c.Lost+uint64(len(got)) < n {
			t.Errorf("%d arrived of %d: %+v", len(got), n, c)
		}
		if err := l.SetFaults(Faults{}); err != nil {
			t.Fatal(err)
		}
		if got := stream(t, l, n, false); len(got) != n {
			t.Errorf("%d arrived of %d without faults", len(got), n)
		}
		if again := counters(t, l).Links[1].To; again != c {
			t.Errorf("without faults %+v became %+v", c, again)
		}
		if err := l.Cut(2); err != nil {
			t.Fatal(err)
		}
		if got := stream(t, l, 10, false); len(got) != 0 {
			t.Errorf("%d packets got through to a host that is cut", len(got))
		}
		if cut := counters(t, l).Links[1].To.Cut; cut < uint64(10*(round+1)) { // neighbour discovery counts, too
			t.Errorf("%d packets were cut", cut)
		}
		if err := l.Heal(2); err != nil {
			t.Fatal(err)
		}
		if err := l.SetFaults(Faults{Loss: 0.5}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSwitchHosts has 17 hosts, a program at every second one, speak with each other: by UDP
// over IPv4 and IPv6 and by TCP. ARP and neighbour discovery come first.
func TestSwitchHosts(t *testing.T) {
	const hosts, turned = 17, 7002
	l := build(t, Options{Hosts: hosts, Switch: true})
	ends, err := faults.LoadEnds(1500, turned)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ends.Close() })
	sums := make(chan [sha256.Size]byte, hosts)
	for _, h := range l.Hosts() {
		if h.Number()%2 == 0 {
			if err := h.Do(func() error {
				link, err := netlink.LinkByName(InterfaceName)
				if err != nil {
					return err
				}
				return ends.AttachTurn(link.Attrs().Index)
			}); err != nil {
				t.Fatal(err)
			}
		}
		serve(t, h, sums)
	}
	text := bytes.Repeat([]byte("much to say. "), 100_000)
	for _, h := range l.Hosts() {
		next := l.Host(h.Number()%hosts + 1)
		for _, ip := range []struct{ from, to netip.Addr }{{h.IPv4(), next.IPv4()}, {h.IPv6(), next.IPv6()}} {
			c := listen(t, h, ip.from, 0)
			ports := []uint16{7000}
			if next.Number()%2 == 0 {
				ports = append(ports, turned)
			}
			for _, port := range ports {
				question := fmt.Sprintf("%d to %d by %v", h.Number(), next.Number(), ip.to)
				if _, err := c.WriteToUDPAddrPort([]byte(question), netip.AddrPortFrom(ip.to, port)); err != nil {
					t.Fatal(err)
				}
				answer := make([]byte, 100)
				_ = c.SetReadDeadline(time.Now().Add(soon))
				if n, err := c.Read(answer); err != nil || string(answer[:n]) != question {
					t.Fatalf("%s, port %d: %q, %v", question, port, answer[:n], err)
				}
			}
			if err := say(h, netip.AddrPortFrom(ip.to, 7001), text); err != nil {
				t.Error(err)
				continue
			}
			if got := <-sums; got != sha256.Sum256(text) {
				t.Errorf("TCP from %v to %v: other bytes", ip.from, ip.to)
			}
		}
	}
	// Hosts whose programs have gone still take packets.
	if err := ends.Close(); err != nil {
		t.Fatal(err)
	}
	for i := 2; i <= hosts; i += 2 {
		server := listen(t, l.Host(i), IPv4(i), 7003)
		if got := heard(t, listen(t, l.Host(1), IPv4(1), 0), server, "still there", soon); got != "still there" {
			t.Fatalf("host %d, whose program has gone, heard %q", i, got)
		}
	}
	c := counters(t, l) // nothing overrun
	if total := c.Total(); total.Drawn != 0 || total.Lost != 0 {
		t.Errorf("%+v", total)
	}
}

// serve answers UDP with what it says, and takes one TCP connection after the other, whose
// bytes' sum it gives.
func serve(t *testing.T, h *Host, sums chan<- [sha256.Size]byte) {
	t.Helper()
	for _, ip := range []netip.Addr{h.IPv4(), h.IPv6()} {
		c := listen(t, h, ip, 7000)
		go func() {
			b := make([]byte, 2000)
			for {
				n, from, err := c.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				_, _ = c.WriteToUDPAddrPort(b[:n], from)
			}
		}()
	}
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = net.Listen("tcp", ":7001")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			sum := sha256.New()
			_, err = io.Copy(sum, c)
			c.Close()
			if err == nil {
				sums <- [sha256.Size]byte(sum.Sum(nil))
			}
		}
	}()
}

// say writes bytes to a TCP connection from a host and waits until the other end closes it.
func say(h *Host, to netip.AddrPort, text []byte) error {
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), soon) // one address: no other goroutine dials
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(soon))
	if _, err := c.Write(text); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c)
	return err
}
