// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
)

// way is how packets get from this host to another.
type way struct {
	iface     uint32
	mtu       int // of packets, in bytes
	from, to  netip.Addr
	near, far [6]byte // hardware addresses
}

// findWay asks the system for the way to a host, which must be by one of the devices. It runs in
// their network namespace. Errors are as shuffle.Transmitter has them.
func findWay(devices []*device, to netip.Addr) (w way, err error) {
	to = to.Unmap()
	o := &netlink.RouteGetOptions{}
	if zone := to.Zone(); zone != "" {
		if n, err := strconv.Atoi(zone); err == nil {
			o.OifIndex = n
		} else {
			o.Oif = zone
		}
		to = to.WithZone("")
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), o)
	if err != nil {
		return w, fmt.Errorf("%w: %w", shuffle.ErrNotNow, err)
	}
	if len(routes) != 1 {
		return w, fmt.Errorf("%w: %d routes", ErrUnsupported, len(routes))
	}
	r := routes[0]
	from, ok := addrOf(r.Src)
	if !slices.ContainsFunc(devices, func(d *device) bool { return d.Index == r.LinkIndex }) || !ok || r.Type != unix.RTN_UNICAST {
		return w, fmt.Errorf("%w: the way there is not by an interface of ours", ErrUnsupported)
	}
	next := to
	if gw, ok := addrOf(r.Gw); ok {
		next = gw
	} else if via, is := r.Via.(*netlink.Via); is {
		if next, ok = addrOf(via.Addr); !ok {
			return w, fmt.Errorf("%w: the way there is by %v", ErrUnsupported, via)
		}
	}
	l, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return w, fmt.Errorf("%w: %w", shuffle.ErrNotNow, err)
	}
	far, err := neighbour(r.LinkIndex, next)
	if err != nil {
		return w, err
	}
	near := l.Attrs().HardwareAddr
	if len(near) != 6 {
		return w, fmt.Errorf("%w: interface %s is no Ethernet", ErrUnsupported, l.Attrs().Name)
	}
	w = way{iface: uint32(r.LinkIndex), mtu: l.Attrs().MTU, from: from, to: to, near: [6]byte(near), far: [6]byte(far)}
	if r.MTU > 0 {
		w.mtu = min(w.mtu, r.MTU)
	}
	return w, nil
}

// neighbour returns the hardware address of who is at the other end of a device's link.
func neighbour(device int, a netip.Addr) (net.HardwareAddr, error) {
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	list, err := netlink.NeighList(device, family)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", shuffle.ErrNotNow, err)
	}
	const known = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	for _, n := range list {
		if b, ok := addrOf(n.IP); ok && a == b && n.State&known != 0 && len(n.HardwareAddr) == 6 {
			return n.HardwareAddr, nil
		}
	}
	return nil, fmt.Errorf("%w: no hardware address of %s", shuffle.ErrNotNow, a)
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok && !a.IsUnspecified()
}
