// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	outletBuffer = 4 << 20
	// outletMost is how long a frame waits for room, in seconds.
	outletMost = 1
)

// outlet is a socket that frames leave by and none come to: it has the port of those that are read, and the system is told to
// give what comes to them alone. They are watched by Go's runtime, which the system would tell of each packet that has left.
// That wakes a thread for nothing, which costs more than to send the packet did.
type outlet struct {
	mu  sync.RWMutex // is held while fd is used
	fd  int          // -1: closed
	six bool
}

// newOutlet returns nil where that can't be had.
func newOutlet(sockets []*socket) *outlet {
	raw, err := sockets[0].conn.SyscallConn()
	if err != nil {
		return nil
	}
	at := sockets[0].conn.LocalAddr().(*net.UDPAddr)
	if at.Zone != "" {
		return nil
	}
	// First, so that nothing ever comes to it.
	if cerr := raw.Control(func(fd uintptr) { err = steer(int(fd), len(sockets)) }); cerr != nil || err != nil {
		return nil
	}
	o := &outlet{fd: -1, six: sockets[0].six}
	if err := o.open(at.AddrPort()); err != nil {
		o.close()
		return nil
	}
	return o
}

func (o *outlet) open(at netip.AddrPort) (err error) {
	family := unix.AF_INET
	if o.six {
		family = unix.AF_INET6
	}
	if o.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if o.six && at.Addr().IsUnspecified() {
		if err := unix.SetsockoptInt(o.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			return err
		}
	}
	if unix.SetsockoptInt(o.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, outletBuffer) != nil {
		_ = unix.SetsockoptInt(o.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, outletBuffer)
	}
	if err := unix.SetsockoptTimeval(o.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: outletMost}); err != nil {
		return err
	}
	if err := sharePort(uintptr(o.fd)); err != nil {
		return err
	}
	return unix.Bind(o.fd, o.address(at))
}

// steer has the system give each packet for a port to one of the first n sockets that were bound to it, by a hash of where it
// comes from: address and port.
func steer(fd, n int) error {
	const (
		network = 1<<32 - 0x100000 // SKF_NET_OFF: offsets are from the IP header
		odd     = 0x9e3779b1
	)
	stmt := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	program := []unix.SockFilter{
		stmt(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, network),
		stmt(unix.BPF_ALU|unix.BPF_RSH|unix.BPF_K, 4),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 6, Jt: 4},
		stmt(unix.BPF_LD|unix.BPF_H|unix.BPF_ABS, network+20),
		stmt(unix.BPF_MISC|unix.BPF_TAX, 0),
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, network+12),
		stmt(unix.BPF_JMP|unix.BPF_JA, 3),
		stmt(unix.BPF_LD|unix.BPF_H|unix.BPF_ABS, network+40),
		stmt(unix.BPF_MISC|unix.BPF_TAX, 0),
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, network+20),
		stmt(unix.BPF_ALU|unix.BPF_XOR|unix.BPF_X, 0),
		stmt(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, odd),
		stmt(unix.BPF_ALU|unix.BPF_RSH|unix.BPF_K, 16),
		stmt(unix.BPF_ALU|unix.BPF_MOD|unix.BPF_K, uint32(n)),
		stmt(unix.BPF_RET|unix.BPF_A, 0),
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

func (o *outlet) address(a netip.AddrPort) unix.Sockaddr {
	if o.six {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
}

// send sends a packet, and waits where the system has no room for it.
func (o *outlet) send(b, control []byte, to netip.AddrPort) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.fd < 0 {
		return net.ErrClosed
	}
	for {
		_, err := unix.SendmsgN(o.fd, b, control, o.address(to), 0)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// close returns when nobody sends any more.
func (o *outlet) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fd >= 0 {
		_ = unix.Close(o.fd)
		o.fd = -1
	}
}
