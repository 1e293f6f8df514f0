// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/segment"
)

// drainMost is how many frames are read before who waits looks at them.
const drainMost = 64

const (
	// sendStep is after what time who waits for room to send looks whether the port was closed, and
	// sendMost after what time what is to be sent is given up.
	sendStep = 20 * time.Millisecond
	sendMost = time.Second
)

// socket is a port of the system's. It is none of those that Go's runtime watches: the system would tell
// the runtime of each packet that has left, which takes longer than to send a small message to all. Who
// waits blocks a thread.
type socket struct {
	fd     int // never blocks
	wake   int // an eventfd: poke writes to it
	port   uint16
	six    bool
	users  gate
	closed atomic.Bool // before users is shut
	buf    []byte

	sending sync.Mutex
	cut     bool // the system cuts packets
	control []byte
	to4     unix.SockaddrInet4
	to6     unix.SockaddrInet6
}

func listen(six, both bool) (port, error) {
	s, err := openSocket(six || both, both)
	if both && err != nil {
		// Without IPv6 those are reached that have an IPv4 address.
		s, err = openSocket(false, false)
	}
	if err != nil {
		return nil, fmt.Errorf("broadcast: open a socket to send from: %w", err)
	}
	return s, nil
}

func openSocket(six, both bool) (_ *socket, err error) {
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{})
	if six {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{}
	}
	s := &socket{fd: -1, wake: -1, six: six, users: newGate(), cut: true, control: segment.Control(), buf: make([]byte, 2048)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.free())
		}
	}()
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if six {
		only := 1
		if both {
			only = 0
		}
		if err = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	tune(s.fd, six)
	if err = unix.Bind(s.fd, address); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if address, err = unix.Getsockname(s.fd); err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		s.port = uint16(a.Port)
	case *unix.SockaddrInet6:
		s.port = uint16(a.Port)
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return s, nil
}

// tune asks for what helps and can be done without.
func tune(fd int, six bool) {
	for _, o := range [][3]int{{unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, sendBuffer}, {unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, receiveBuffer}} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], o[2])
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], o[2])
	}
	if six {
		// Answers that programs made have no checksum; their tag is one.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	}
}

func (s *socket) number() uint16 { return s.port }

func (s *socket) local(to netip.Addr) (netip.Addr, error) { return localAddress(to) }

func (s *socket) send(b []byte, size int, to netip.AddrPort) error {
	if !s.users.enter() {
		return net.ErrClosed
	}
	defer s.users.leave()
	s.sending.Lock()
	defer s.sending.Unlock()
	address, err := s.address(to)
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n, control := min(len(b), size), []byte(nil)
		if s.cut && len(b) > size {
			n, control = min(len(b), segments*size), s.control
			segment.SetSize(control, size)
		}
		err := s.packet(b[:n], control, address)
		switch {
		case err == nil:
			b = b[n:]
		case control != nil && (segment.Refused(err) || errors.Is(err, unix.EMSGSIZE)):
			s.cut = false
		default:
			return os.NewSyscallError("sendmsg", err)
		}
	}
	return nil
}

// packet sends one packet. It waits where the system has no room for it.
func (s *socket) packet(b, control []byte, to unix.Sockaddr) error {
	var until time.Time
	for {
		_, err := unix.SendmsgN(s.fd, b, control, to, 0)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
		default:
			return err
		}
		now := time.Now()
		if until.IsZero() {
			until = now.Add(sendMost)
		}
		if s.closed.Load() || !now.Before(until) {
			return err
		}
		step := unix.NsecToTimespec(int64(sendStep))
		_, err = unix.Ppoll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, &step, nil)
		if err != nil && err != unix.EINTR {
			return err
		}
	}
}

// address returns what the system calls an address. sending is held.
func (s *socket) address(to netip.AddrPort) (unix.Sockaddr, error) {
	a := to.Addr()
	if !s.six {
		a = a.Unmap()
		if !a.Is4() {
			return nil, fmt.Errorf("%s is no IPv4 address: %w", a, unix.EAFNOSUPPORT)
		}
		s.to4.Port, s.to4.Addr = int(to.Port()), a.As4()
		return &s.to4, nil
	}
	if !a.IsValid() {
		return nil, fmt.Errorf("no address: %w", unix.EDESTADDRREQ)
	}
	s.to6.Port, s.to6.Addr, s.to6.ZoneId = int(to.Port()), a.As16(), 0
	if zone := a.Zone(); zone != "" {
		n, err := strconv.ParseUint(zone, 10, 32)
		if err != nil {
			i, err := net.InterfaceByName(zone)
			if err != nil {
				return nil, fmt.Errorf("the zone of %s: %w", a, err)
			}
			n = uint64(i.Index)
		}
		s.to6.ZoneId = uint32(n)
	}
	return &s.to6, nil
}

func (s *socket) wait(until time.Time, f func([]byte)) (bool, error) {
	if !s.users.enter() {
		return false, net.ErrClosed
	}
	defer s.users.leave()
	for {
		if s.closed.Load() {
			return false, net.ErrClosed
		}
		rest := unix.NsecToTimespec(max(0, int64(time.Until(until))))
		on := [2]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(s.wake), Events: unix.POLLIN}}
		n, err := unix.Ppoll(on[:], &rest, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return false, os.NewSyscallError("ppoll", err)
		case n == 0:
			return false, nil
		}
		if on[1].Revents != 0 && !s.closed.Load() {
			var count [8]byte
			_, _ = unix.Read(s.wake, count[:])
		}
		if on[0].Revents == 0 {
			return false, nil
		}
		return s.drain(f), nil
	}
}

// drain hands over what has come.
func (s *socket) drain(f func([]byte)) (came bool) {
	for range drainMost {
		n, err := unix.Read(s.fd, s.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			// That was all; or an ICMP answer to an earlier packet: who sends notices that nothing comes.
			return came
		}
		came = true
		f(s.buf[:n])
	}
	return came
}

func (s *socket) poke() {
	if !s.users.enter() {
		return
	}
	defer s.users.leave()
	s.ring()
}

// ring ends a wait. Nobody closes the socket meanwhile.
func (s *socket) ring() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(s.wake, one[:])
}

func (s *socket) close() error {
	s.closed.Store(true)
	s.ring()
	s.users.shut()
	return s.free()
}

// free closes what is open. Nobody uses it: another file may have its number at once.
func (s *socket) free() error {
	var errs []error
	for _, fd := range []int{s.fd, s.wake} {
		if fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return errors.Join(errs...)
}
