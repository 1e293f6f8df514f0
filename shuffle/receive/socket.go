// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
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
	buffer int  // bytes it may hold
}

// listen opens n sockets on one port.
func listen(address string, port, n, buffer int) ([]*socket, int, error) {
	network, host := "udp", address
	if address == "" {
		host = "::"
	}
	var list []*socket
	for len(list) < n {
		s, err := open(network, host, port, buffer, n > 1)
		if err != nil && address == "" && host == "::" && len(list) == 0 {
			host, network = "0.0.0.0", "udp4" // no IPv6 here
			s, err = open(network, host, port, buffer, n > 1)
		}
		if err != nil {
			if len(list) > 0 && errors.Is(err, errors.ErrUnsupported) {
				break // one socket for all
			}
			for _, s := range list {
				s.conn.Close()
			}
			return nil, 0, fmt.Errorf("receive: listen for frames on %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
		}
		list = append(list, s)
		port = s.conn.LocalAddr().(*net.UDPAddr).Port
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
	six := s.conn.LocalAddr().(*net.UDPAddr).IP.To4() == nil
	if six {
		s.batch = ipv6.NewPacketConn(s.conn)
	} else {
		s.batch = ipv4.NewPacketConn(s.conn)
	}
	raw, err := s.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { s.joined, s.buffer = tune(fd, six, buffer) })
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
