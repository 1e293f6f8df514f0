// SPDX-License-Identifier: Apache-2.0

package benchlab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/vishvananda/netlink"
)

// The plain network: a bridge in a host of the lab that has nothing else to do, and
// a link to it from each of the others. No program is anywhere on it. The lab's own
// has programs at its ports, so that those at the hosts' interfaces can send, and with
// them no packet is larger than the MTU.

const PlainName = "plain0" // of hosts' interfaces

// PlainAddress is that of a host in the plain network.
func PlainAddress(host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 71, 18, byte(host)}) }

func plainHardware(host int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x71, 0x18, 0, 0, byte(host)}
}

// LayPlain joins hosts by a bridge in another one.
func LayPlain(bridge *netlab.Host, hosts []*netlab.Host) error {
	err := bridge.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MTU = "plain", 1500
		snooping := false
		b := &netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &snooping}
		if err := netlink.LinkAdd(b); err != nil {
			return err
		}
		return netlink.LinkSetUp(b)
	})
	if err != nil {
		return fmt.Errorf("bridge of the plain network: %w", err)
	}
	for _, h := range hosts {
		if err := layLink(bridge, h, len(hosts)); err != nil {
			return fmt.Errorf("link of host %d to the plain network: %w", h.Number(), err)
		}
	}
	for _, h := range hosts {
		if err := h.Do(waitPlain); err != nil {
			return fmt.Errorf("link of host %d to the plain network: %w", h.Number(), err)
		}
	}
	return nil
}

func layLink(bridge, h *netlab.Host, hosts int) error {
	var far *os.File
	err := h.Do(func() (err error) {
		far, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return err
	}
	defer far.Close()
	err = bridge.Do(func() error {
		master, err := netlink.LinkByName("plain")
		if err != nil {
			return err
		}
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MTU, attributes.MasterIndex = fmt.Sprintf("port%d", h.Number()), 1500, master.Attrs().Index
		veth := netlink.NewVeth(attributes)
		veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = PlainName, plainHardware(h.Number()), 1500
		veth.PeerNamespace = netlink.NsFd(int(far.Fd()))
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		port, err := netlink.LinkByName(attributes.Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(port)
	})
	if err != nil {
		return err
	}
	return h.Do(func() error {
		l, err := netlink.LinkByName(PlainName)
		if err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: PlainAddress(h.Number()).AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if err := netlink.AddrAdd(l, address); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for i := 1; i <= hosts; i++ { // hosts are numbered from 1 on
			if i == h.Number() {
				continue
			}
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: PlainAddress(i).AsSlice(), HardwareAddr: plainHardware(i),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// waitPlain returns when the link carries packets.
func waitPlain() error {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByName(PlainName)
		if err != nil || l.Attrs().OperState == netlink.OperUp {
			return err
		}
		if time.Since(begin) > 10*time.Second {
			return fmt.Errorf("it is %s after 10 s", l.Attrs().OperState)
		}
	}
}

// SentBytes returns what a host's interface has sent so far.
func SentBytes(h *netlab.Host, name string) (n uint64, err error) {
	err = h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", name, err)
		}
		if s := l.Attrs().Statistics; s != nil {
			n = s.TxBytes
		}
		return nil
	})
	return n, err
}
