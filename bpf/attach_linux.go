// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// vethMTU is the largest MTU with which a veth gives native programs packets in one piece: what a
// page of 4 KiB holds beside the kernel's own (256 bytes before, 320 behind, 14 of Ethernet).
const vethMTU = 3506

// enotsupp is what drivers return that mean "operation not supported".
const enotsupp = syscall.Errno(524)

// device is a network interface.
type device struct {
	Name  string `json:"name"`
	Index int    `json:"index"`

	mtu    int
	driver string // kind of link, "" or "device" for hardware
	link   netlink.Link
}

// listHint says how to find the interfaces that there are.
const listHint = "; ip link lists them"

func findDevice(name string) (*device, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return nil, fmt.Errorf("there is no network interface %q here%s", name, listHint)
		}
		return nil, fmt.Errorf("look up network interface %q: %w", name, err)
	}
	a := l.Attrs()
	d := &device{Name: a.Name, Index: a.Index, mtu: a.MTU, driver: l.Type(), link: l}
	return d, nil
}

// peer returns the other end of a veth, nil if that is in another network namespace.
func (d *device) peer() netlink.Link {
	a := d.link.Attrs()
	if d.driver != "veth" || a.NetNsID >= 0 {
		return nil
	}
	p, err := netlink.LinkByIndex(a.ParentIndex)
	if err != nil || p.Attrs().ParentIndex != d.Index {
		return nil
	}
	return p
}

// kind says what a device is, for people.
func (d *device) kind() string {
	switch {
	case d.link.Attrs().Flags&net.FlagLoopback != 0:
		return "loopback"
	case d.driver == "device" || d.driver == "":
		return "hardware"
	}
	return d.driver
}

func findDevices(names []string) (ds []*device, err error) {
	for _, name := range names {
		d, err := findDevice(name)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// foreign returns the XDP program that is on a device, or nil.
func (d *device) foreign() (*ForeignError, error) {
	l, err := netlink.LinkByIndex(d.Index)
	if err != nil {
		return nil, fmt.Errorf("look up network interface %q: %w", d.Name, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil, nil
	}
	f := &ForeignError{Interface: d.Name, ID: x.ProgId}
	if x.AttachMode == nl.XDP_ATTACHED_SKB {
		f.Mode = Generic
	}
	if x.ProgId != 0 {
		// Only root may ask for a program by its number; the name is a courtesy.
		if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId)); err == nil {
			if info, err := p.Info(); err == nil {
				f.Program = info.Name
			}
			_ = p.Close()
		}
	}
	return f, nil
}

// displace takes the program of somebody else off the device.
func (d *device) displace(f *ForeignError) error {
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		l := it.Take()
		info, err := l.Info()
		if err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == d.Index && uint32(info.Program) == f.ID {
			err := l.Detach()
			_ = l.Close()
			if err != nil {
				return fmt.Errorf("detach XDP program %d from %s: %w", f.ID, d.Name, err)
			}
			return nil
		}
		_ = l.Close()
	}
	// Not by a link, so by netlink.
	flags := unix.XDP_FLAGS_DRV_MODE
	if f.Mode == Generic {
		flags = unix.XDP_FLAGS_SKB_MODE
	}
	if err := netlink.LinkSetXdpFdWithFlags(d.link, -1, flags); err != nil {
		return fmt.Errorf("take XDP program %d off %s: %w", f.ID, d.Name, err)
	}
	return nil
}

func (m XDPMode) flags() link.XDPAttachFlags {
	if m == Generic {
		return link.XDPGenericMode
	}
	return link.XDPDriverMode
}

// checkMTU says early and in words what the kernel refuses with a bare number.
func (d *device) checkMTU(mode XDPMode) error {
	if mode != Native || d.driver != "veth" {
		return nil
	}
	// What arrives is as large as the other end sends. That may be out of sight.
	p := d.peer()
	if p == nil {
		return nil
	}
	if mtu := p.Attrs().MTU; mtu > vethMTU {
		return &mtuError{d.Name, p.Attrs().Name, mtu}
	}
	return nil
}

// mtuError says that the other end of a veth sends what programs can't be given in one piece.
type mtuError struct {
	device, peer string
	mtu          int
}

func (e *mtuError) Error() string {
	return fmt.Sprintf("%v: %s: %s, or --%s generic", ErrMTU, e.found(), e.fix(), XDPModeSetting)
}

func (e *mtuError) Unwrap() error { return ErrMTU }

func (e *mtuError) found() string {
	return fmt.Sprintf("that of %s, the other end of %s, is %d, and native XDP on a veth takes up to %d", e.peer, e.device, e.mtu, vethMTU)
}

func (e *mtuError) fix() string {
	return fmt.Sprintf("ip link set dev %s mtu %d", e.peer, vethMTU)
}

// attach puts an XDP program on the device. What holds the link holds the program there.
func (d *device) attach(prog *ebpf.Program, mode XDPMode, replace bool) (link.Link, error) {
	if err := d.checkMTU(mode); err != nil {
		return nil, err
	}
	f, err := d.foreign()
	if err != nil {
		return nil, err
	}
	if f != nil {
		if !replace {
			return nil, f
		}
		if err := d.displace(f); err != nil {
			return nil, err
		}
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: d.Index, Flags: mode.flags()})
	if err != nil {
		return nil, d.explain(err, mode)
	}
	return l, nil
}

// explain says in words why the kernel did not attach.
func (d *device) explain(err error, mode XDPMode) error {
	switch {
	case errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EMSGSIZE):
		return fmt.Errorf("%w: that of %s is %d, and native XDP takes less (on a veth up to %d at its other end): ip link set dev %s mtu 1500, there too, or --%s generic: %w",
			ErrMTU, d.Name, d.mtu, vethMTU, d.Name, XDPModeSetting, err)
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, enotsupp):
		return fmt.Errorf("%w: the driver of %s (%s) has no %s XDP; --%s generic is slower and works with every driver: %w",
			ErrUnsupported, d.Name, d.kind(), mode, XDPModeSetting, err)
	case errors.Is(err, link.ErrNotSupported):
		return fmt.Errorf("%w: attaching by a link needs Linux 5.9: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		if f, ferr := d.foreign(); ferr == nil && f != nil {
			return f // it came between
		}
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: attaching to %s needs CAP_NET_ADMIN and CAP_BPF: %w", ErrRights, d.Name, err)
	}
	return fmt.Errorf("attach to %s in %s mode: %w", d.Name, mode, err)
}

// attached says whether a link still holds its program on the device.
func (d *device) attached(l link.Link) bool {
	info, err := l.Info()
	return err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == d.Index
}

// Handle and priority of our filters where there is no tcx. The priority is our
// port, so that others are unlikely to have it.
const (
	tcHandle   = 0x7117
	tcPriority = 7117
)

// hook is a place behind the driver where a program of ours goes, on demand.
type hook struct {
	kind    string // in the names of pinned links
	program string
	attach  ebpf.AttachType // by tcx
	parent  uint32          // of a filter
}

var (
	// answerHook sends answers out that XDP has made.
	answerHook = hook{"tc", tcProgram, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}
	// cloneHook clones chunks that sockets send.
	cloneHook = hook{"clone", cloneProgram, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS}
)

// attachHook puts a hook's program on the device. The link is nil where that was done by a
// filter, which stays until detachFilter.
func (d *device) attachHook(k hook, prog *ebpf.Program, filter bool) (link.Link, error) {
	if !filter {
		l, err := link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: prog, Attach: k.attach})
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, link.ErrNotSupported) {
			return nil, fmt.Errorf("attach %s to %s by tcx: %w", k.program, d.Name, err)
		}
	}
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: d.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("add clsact to %s: %w", d.Name, err)
	}
	f := d.filter(k)
	f.Fd, f.Name, f.DirectAction = prog.FD(), k.program, true
	if err := netlink.FilterReplace(f); err != nil {
		return nil, fmt.Errorf("add a filter with %s to %s: %w", k.program, d.Name, err)
	}
	return nil, nil
}

func (d *device) filter(k hook) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: d.Index,
		Parent:    k.parent,
		Handle:    tcHandle,
		Priority:  tcPriority,
		Protocol:  unix.ETH_P_ALL,
	}}
}

// detachFilter removes the filter of attachHook, if it is ours. The qdisc stays: others may use it.
func (d *device) detachFilter(k hook) error {
	l, err := netlink.LinkByIndex(d.Index)
	if err != nil {
		return nil // the device is gone, and the filter with it
	}
	have, err := netlink.FilterList(l, k.parent)
	if err != nil {
		return fmt.Errorf("list filters of %s: %w", d.Name, err)
	}
	for _, f := range have {
		b, ok := f.(*netlink.BpfFilter)
		if !ok || b.Attrs().Handle != tcHandle || b.Attrs().Priority != tcPriority {
			continue
		}
		if err := netlink.FilterDel(d.filter(k)); err != nil {
			return fmt.Errorf("remove our filter from %s: %w", d.Name, err)
		}
	}
	return nil
}

// AttachPass puts a program that passes everything on an interface of the calling
// thread's network namespace. On a veth the other end's XDP_TX arrives only if there is one.
// Closing takes it off; so does the end of the process.
func AttachPass(name string) (io.Closer, error) {
	d, err := findDevice(name)
	if err != nil {
		return nil, err
	}
	prog, err := loadPass()
	if err != nil {
		return nil, err
	}
	defer prog.Close() // the link holds it
	l, err := d.attach(prog, Native, false)
	if err != nil {
		return nil, err
	}
	p := &pass{l}
	hold(p)
	return p, nil
}

type pass struct{ link link.Link }

func (p *pass) Close() error {
	letGo(p)
	return p.link.Close()
}
