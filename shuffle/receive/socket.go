// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/quernmr/quern/shuffle/segment"
)

const (
	// messages is how many packets are read at once.
	messages = 16
	// room is what one read may bring where packets come joined.
	room = 64 << 10
)

// batchConn reads and writes several packets with one system call where the
// system can.
type batchConn interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// socket is one of the receiver's sockets.
type socket struct {
	conn   *net.UDPConn
	batch  batchConn
	joined bool // packets come joined, with a control message that says where to cut
	six    bool // IPv6, and IPv4 too if it is bound to all addresses
	buffer int  // bytes it may hold
}

// listenTries is how many ports are tried where any will do.
const listenTries = 20

// listen opens n sockets on one port, or one where the system can't share a port. Port 0 is any.
func listen(address string, port, n, buffer int) (list []*socket, found int, err error) {
	for range listenTries {
		// Between the look whether a port is ours alone and its use somebody else may get it.
		if list, found, err = listenOn(address, port, n, buffer); err == nil || port != 0 || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return list, found, err
}

func listenOn(address string, port, n, buffer int) ([]*socket, int, error) {
	network, host := "udp", address
	if address == "" {
		host = "::"
	}
	// Alone at first: a port that is shared would be shared with strangers, too.
	s, err := open(network, host, port, buffer, false)
	if err != nil && address == "" {
		host, network = "0.0.0.0", "udp4" // no IPv6 here
		s, err = open(network, host, port, buffer, false)
	}
	var list []*socket
	if err == nil {
		port = s.conn.LocalAddr().(*net.UDPAddr).Port
		if !sharesPorts {
			return []*socket{s}, port, nil
		}
		err = s.conn.Close()
	}
	for err == nil && len(list) < n {
		if s, err = open(network, host, port, buffer, true); err == nil {
			list = append(list, s)
		}
	}
	if err != nil {
		for _, s := range list {
			s.conn.Close()
		}
		return nil, 0, fmt.Errorf("receive: listen for frames on %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
	}
	return list, port, nil
}

func open(network, host string, port, buffer int, shared bool) (*socket, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !shared {
			return nil
		}
		var failed error
		if err := c.Control(func(fd uintptr) { failed = sharePort(fd) }); err != nil {
			return err
		}
		return failed
	}}
	c, err := config.ListenPacket(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	s := &socket{conn: c.(*net.UDPConn)}
	s.six = s.conn.LocalAddr().(*net.UDPAddr).IP.To4() == nil
	if s.six {
		s.batch = ipv6.NewPacketConn(s.conn)
	} else {
		s.batch = ipv4.NewPacketConn(s.conn)
	}
	raw, err := s.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { s.joined, s.buffer = tune(fd, s.six, buffer) })
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	if s.buffer == 0 {
		_ = s.conn.SetReadBuffer(buffer)
		s.buffer = buffer
	}
	return s, nil
}

// addressOf is where a packet came from, IPv4 as such.
func addressOf(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := u.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

const (
	// cutMost is how many frames go to the system as one packet that is cut later. Interfaces of labs hold some hundred, and
	// drop the rest at once.
	cutMost = 32
	// cutBytes is how many bytes such a packet has at most.
	cutBytes = 65000
)

// SendFrame sends a frame from the port that frames go to. It leaves from the address that
// the system's routes choose for that destination, or from the one that Options.Listen
// names. It may be called from several goroutines, and waits while the socket is full.
func (r *Receiver) SendFrame(frame []byte, to netip.AddrPort) error {
	return r.SendFrames(frame, len(frame), to)
}

// SendFrames sends frames that stand behind each other in b, all of size bytes but for the last one, which may be smaller, to one
// host. Where the system can, it is given many at once (UDP_SEGMENT). After an error some may have been sent. For the rest
// it is like [Receiver.SendFrame].
//
// A receiver whose programs work in generic mode sees such frames in one packet, which goes up to user space.
func (r *Receiver) SendFrames(b []byte, size int, to netip.AddrPort) error {
	s := r.sockets[0]
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	switch {
	case !s.six && !to.Addr().Is4():
		return fmt.Errorf("receive: send a frame to %s: port %d is open for IPv4 alone", to, r.port)
	case size <= 0 && len(b) > 0:
		return fmt.Errorf("receive: send frames of %d bytes", size)
	}
	var control []byte // nil: frames go one by one
	if segment.Possible && len(b) > size {
		if _, whole := r.whole.Load(to.Addr()); !whole {
			control = segment.Control()
			segment.SetSize(control, size)
		}
	}
	for len(b) > 0 {
		n, with := min(len(b), size), []byte(nil)
		if control != nil && len(b) > size {
			n, with = min(len(b), max(1, min(cutMost, cutBytes/size))*size), control
		}
		err := r.sendPacket(b[:n], with, to)
		switch {
		case err == nil:
			b = b[n:]
		case errors.Is(err, net.ErrClosed):
			return ErrClosed
		case with != nil && (segment.Refused(err) || tooLarge(err)):
			// It may be the frames' own fault: then one alone fails too, and tells.
			control = nil
			if _, known := r.whole.LoadOrStore(to.Addr(), true); !known {
				r.opts.Log.Info("the way to a host does not take UDP_SEGMENT; frames go one by one", "host", to.Addr(), "error", err)
			}
		default:
			return fmt.Errorf("receive: send a frame: %w", err)
		}
	}
	return nil
}

// sendPacket gives one packet to the system.
func (r *Receiver) sendPacket(b, control []byte, to netip.AddrPort) error {
	if r.outlet != nil && to.Addr().Zone() == "" {
		return r.outlet.send(b, control, to)
	}
	_, _, err := r.sockets[0].conn.WriteMsgUDPAddrPort(b, control, to)
	return err
}
