// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package broadcast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
)

// socket is a port of the system's.
type socket struct {
	conn  *net.UDPConn
	buf   []byte
	poked atomic.Bool
}

func listen(six, both bool) (port, error) {
	network := "udp4"
	switch {
	case both:
		network = "udp"
	case six:
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, fmt.Errorf("broadcast: open a socket to send from: %w", err)
	}
	_ = conn.SetWriteBuffer(sendBuffer)
	_ = conn.SetReadBuffer(receiveBuffer)
	return &socket{conn: conn, buf: make([]byte, 2048)}, nil
}

func (s *socket) number() uint16 { return uint16(s.conn.LocalAddr().(*net.UDPAddr).Port) }

func (s *socket) local(to netip.Addr) (netip.Addr, error) { return localAddress(to) }

func (s *socket) send(b []byte, size int, to netip.AddrPort) error {
	for len(b) > 0 {
		n := min(len(b), size)
		if _, err := s.conn.WriteToUDPAddrPort(b[:n], to); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (s *socket) wait(until time.Time, f func([]byte)) (bool, error) {
	if err := s.conn.SetReadDeadline(until); err != nil {
		return false, err
	}
	if s.poked.Swap(false) {
		return false, nil
	}
	n, _, err := s.conn.ReadFromUDPAddrPort(s.buf)
	switch {
	case err == nil:
		f(s.buf[:n])
		return true, nil
	case errors.Is(err, net.ErrClosed):
		return false, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.poked.Store(false)
	}
	// Else an ICMP answer to an earlier packet: who sends notices that nothing comes.
	return false, nil
}

func (s *socket) poke() {
	s.poked.Store(true)
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

func (s *socket) close() error { return s.conn.Close() }
