// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/vishvananda/netlink"
)

// linkName is the name of both ends of a direct link.
func linkName(link int) string { return fmt.Sprintf("qbench%d", link) }

// linkAddress is that of an end, 1 or 2.
func linkAddress(link, end int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 71, 18 + byte(link), byte(end)})
}

// connect lays a link between two hosts of a lab, beside its bridge: on the way
// over that every packet passes two more programs and two more queues, which
// no path is to be charged for. The link goes with the hosts.
func connect(a, b *netlab.Host, link int) error {
	if err := lay(a, b, link); err != nil {
		return fmt.Errorf("link for benchmarks: %w", err)
	}
	return nil
}

func lay(a, b *netlab.Host, link int) error {
	var far *os.File
	err := b.Do(func() (err error) {
		far, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return err
	}
	defer far.Close()
	hardware := func(end int) net.HardwareAddr { return net.HardwareAddr{0x02, 0x71, 0x18, 0, byte(link), byte(end)} }
	err = a.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.HardwareAddr, attributes.MTU = linkName(link), hardware(1), 1500
		veth := netlink.NewVeth(attributes)
		veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = linkName(link), hardware(2), 1500
		veth.PeerNamespace = netlink.NsFd(int(far.Fd()))
		return netlink.LinkAdd(veth)
	})
	if err != nil {
		return err
	}
	for i, h := range []*netlab.Host{a, b} {
		if err := h.Do(func() error { return bringUp(link, i+1, hardware(2-i)) }); err != nil {
			return err
		}
	}
	for _, h := range []*netlab.Host{a, b} {
		if err := h.Do(func() error { return waitUp(link) }); err != nil {
			return err
		}
	}
	return nil
}

func bringUp(link, end int, peer net.HardwareAddr) error {
	l, err := netlink.LinkByName(linkName(link))
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: linkAddress(link, end).AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(l, address); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: linkAddress(link, 3-end).AsSlice(), HardwareAddr: peer,
	})
}

// waitUp returns when the link carries packets.
func waitUp(link int) error {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByName(linkName(link))
		if err != nil || l.Attrs().OperState == netlink.OperUp {
			return err
		}
		if time.Since(begin) > 5*time.Second {
			return fmt.Errorf("it is %s after 5 s", l.Attrs().OperState)
		}
	}
}
