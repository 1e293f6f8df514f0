// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/quernmr/quern/bpf/faults"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host is one of a lab.
type Host struct {
	lab       *Lab
	number    int
	namespace *namespace
	port      int // index of the link's far end

	faults [2]Faults // by Direction; guarded by lab.mu, as cut is
	cut    bool
}

// Number returns the host's number, from 1.
func (h *Host) Number() int { return h.number }

// Name returns the name of the host's namespace, for `ip netns exec NAME`.
func (h *Host) Name() string { return h.namespace.name }

// IPv4 returns the host's IPv4 address.
func (h *Host) IPv4() netip.Addr { return IPv4(h.number) }

// IPv6 returns the host's IPv6 address.
func (h *Host) IPv6() netip.Addr { return IPv6(h.number) }

// HardwareAddr returns the Ethernet address of the host's link.
func (h *Host) HardwareAddr() net.HardwareAddr { return HardwareAddr(h.number) }

func (h *Host) String() string { return fmt.Sprintf("host %d (%s)", h.number, h.namespace.name) }

// connect makes the link between the host and the bridge.
func (h *Host) connect(wire *netlink.Handle, bridge int) error {
	o := h.lab.options
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.MasterIndex = portName(h.number), o.MTU, bridge
	a.HardwareAddr = net.HardwareAddr{0x02, 0x71, 0x17, 1, 0, byte(h.number)}
	a.NumTxQueues, a.NumRxQueues = o.Queues, o.Queues
	h.namespace.mu.RLock()
	veth := netlink.NewVeth(a)
	veth.PeerName, veth.PeerHardwareAddr = InterfaceName, h.HardwareAddr()
	veth.PeerNamespace = netlink.NsFd(int(h.namespace.fd))
	veth.PeerMTU, veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(o.MTU), uint32(o.Queues), uint32(o.Queues)
	err := wire.LinkAdd(veth)
	h.namespace.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("make a link: %w", err)
	}
	port, err := wire.LinkByName(a.Name)
	if err != nil {
		return fmt.Errorf("find the port: %w", err)
	}
	h.port = port.Attrs().Index
	// The bridge is told where the host is, so that it never sends to all ports.
	// (A permanent entry would be an address of the bridge itself.)
	neighbour := &netlink.Neigh{
		LinkIndex: h.port, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER,
		State: netlink.NUD_NOARP, HardwareAddr: h.HardwareAddr(),
	}
	if err := wire.NeighSet(neighbour); err != nil {
		return fmt.Errorf("tell the bridge the host's address: %w", err)
	}
	err = h.lab.bridge.do(func() error {
		if err := faults.Prepare(h.port); err != nil {
			return err
		}
		if !o.Switch {
			return h.lab.ends.AttachPass(h.port)
		}
		if err := h.lab.ends.Join(h.port, h.HardwareAddr()); err != nil {
			return err
		}
		return h.lab.ends.AttachSwitch(h.port)
	})
	if err != nil {
		return err
	}
	if err := wire.LinkSetUp(port); err != nil {
		return fmt.Errorf("set the port up: %w", err)
	}
	return h.configure()
}

// configure gives the host's end its addresses.
func (h *Host) configure() error {
	host, err := h.namespace.handle()
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.LinkByName(InterfaceName)
	if err != nil {
		return fmt.Errorf("find the host's interface: %w", err)
	}
	for _, p := range []netip.Prefix{
		netip.PrefixFrom(h.IPv4(), bitsIPv4),
		netip.PrefixFrom(h.IPv6(), bitsIPv6),
	} {
		address := &netlink.Addr{
			IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		}
		if p.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD // usable at once
		}
		if err := host.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %v: %w", p, err)
		}
	}
	if err := host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the host's interface up: %w", err)
	}
	if h.lab.options.Switch {
		// Only an interface that is up tells its other end.
		if err := h.namespace.do(receiveOffload); err != nil {
			return err
		}
	}
	if !h.lab.options.StaticNeighbours {
		return nil
	}
	for i := 1; i <= h.lab.options.Hosts; i++ {
		if i == h.number {
			continue
		}
		for _, ip := range []netip.Addr{IPv4(i), IPv6(i)} {
			n := &netlink.Neigh{
				LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: ip.AsSlice(), HardwareAddr: HardwareAddr(i),
			}
			if err := host.NeighSet(n); err != nil {
				return fmt.Errorf("add neighbour %v: %w", ip, err)
			}
		}
	}
	return nil
}

// receiveOffload turns generic receive offload on at the link of the host whose namespace
// the thread is in. Without it, or a program of its own, a veth takes nothing that is
// redirected to it.
func receiveOffload() error {
	const set = 0x2c // ETHTOOL_SGRO
	value := struct{ command, data uint32 }{set, 1}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], InterfaceName)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("turn generic receive offload on at the host's interface, which a switch needs: %w", errno)
	}
	return nil
}

// Do runs fn in the host: on the caller's goroutine, whose thread is moved into
// the host's namespace and back. Sockets that fn makes stay in the host, for
// good and whoever uses them; goroutines that it starts are not there.
func (h *Host) Do(fn func() error) error { return h.namespace.do(fn) }

// SetFaults changes the faults of the host's link in one direction.
func (h *Host) SetFaults(d Direction, f Faults) error {
	h.lab.mu.Lock()
	defer h.lab.mu.Unlock()
	if d != From && d != To {
		return fmt.Errorf("there is no direction %d", d)
	}
	h.faults[d] = f
	return h.lab.plan(false, h)
}

// Command is a process in a host. It is killed when this process ends, and when
// the lab is closed; what it starts itself is ended when the lab is closed.
type Command struct {
	*exec.Cmd
	host *Host
}

// Command prepares a process in the host, as exec.CommandContext does.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Command {
	return &Command{exec.CommandContext(ctx, name, args...), h}
}

// Start starts the process and does not wait for it.
func (c *Command) Start() error {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return c.host.lab.starter.run(func() error {
		if err := c.host.namespace.enter(); err != nil {
			return err
		}
		return c.Cmd.Start()
	})
}

// Run starts the process and waits for it.
func (c *Command) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it writes to standard output.
func (c *Command) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("standard output is set already")
	}
	var out, diagnostics bytes.Buffer
	c.Stdout = &out
	capture := c.Stderr == nil
	if capture {
		c.Stderr = &diagnostics
	}
	err := c.Run()
	var exit *exec.ExitError
	if capture && errors.As(err, &exit) {
		exit.Stderr = diagnostics.Bytes()
	}
	return out.Bytes(), err
}

// CombinedOutput runs the process and returns all that it writes.
func (c *Command) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("standard output or error is set already")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// starter is a thread that starts processes. The kernel kills a process that is
// to go with its parent when the thread ends that started it, so that thread
// must last.
type starter struct {
	jobs chan func()
	quit chan struct{}
	done chan struct{}
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		// Never unlocked: the thread is in some host's namespace, and ends with this goroutine.
		runtime.LockOSThread()
		defer close(s.done)
		for {
			select {
			case job := <-s.jobs:
				job()
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

// run runs fn on the thread.
func (s *starter) run(fn func() error) error {
	result := make(chan error, 1)
	select {
	case s.jobs <- func() { result <- fn() }:
		return <-result
	case <-s.done:
		return errClosed
	}
}

// stop ends the thread. It is called once.
func (s *starter) stop() {
	close(s.quit)
	<-s.done
}
