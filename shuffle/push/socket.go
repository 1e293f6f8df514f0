// SPDX-License-Identifier: Apache-2.0

package push

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/quernmr/quern/shuffle/wire"
)

// batchConn reads and writes several packets with one system call where the
// system can. Messages of both address families are the same type.
type batchConn interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// port is a source port.
type port struct {
	conn   *net.UDPConn
	batch  batchConn
	number uint16
}

const (
	sendBuffer    = 4 << 20 // bytes; the system may allow less
	receiveBuffer = 1 << 20
)

// listen opens n sockets of a family on ports that the system chooses.
func listen(six bool, n int) (ports []*port, err error) {
	network := "udp4"
	if six {
		network = "udp6"
	}
	for range n {
		c, err := net.ListenUDP(network, nil)
		if err != nil {
			closeAll(ports)
			return nil, fmt.Errorf("open a socket to send from: %w", err)
		}
		p := &port{conn: c, number: uint16(c.LocalAddr().(*net.UDPAddr).Port)}
		ports = append(ports, p)
		_ = c.SetWriteBuffer(sendBuffer)
		_ = c.SetReadBuffer(receiveBuffer)
		if six {
			p.batch = ipv6.NewPacketConn(c)
		} else {
			p.batch = ipv4.NewPacketConn(c)
		}
		raw, err := c.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { tune(fd, six) })
		}
		if err != nil {
			closeAll(ports)
			return nil, fmt.Errorf("set up a socket to send from: %w", err)
		}
	}
	return ports, nil
}

func closeAll(ports []*port) {
	for _, p := range ports {
		p.conn.Close()
	}
}

// read takes in what comes back to a port, until it is closed.
func (s *Sender) read(p *port) {
	defer s.readers.Done()
	const batch = 16
	ms := make([]ipv4.Message, batch)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, 2*wire.AckFrame)}
	}
	for {
		n, err := p.batch.ReadBatch(ms, 0)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Any other error is about an earlier packet of ours (an ICMP answer), and
		// the loops that send notice that nothing arrives.
		for i := range max(n, 0) {
			s.absorb(ms[i].Buffers[0][:ms[i].N])
		}
	}
}
