// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Over TCP a member reads a message into memory that is there already and answers with
// one byte. The connections are kept.

// tcpMember takes messages from one source.
type tcpMember struct {
	listener net.Listener
	room     *room
	wait     sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
}

func listenTCP(address string, r *room) (*tcpMember, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	m := &tcpMember{listener: l, room: r, conns: map[net.Conn]bool{}}
	m.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.mu.Lock()
			m.conns[c] = true
			m.mu.Unlock()
			m.wait.Go(func() {
				if err := m.serve(c); err != nil {
					r.fail(fmt.Errorf("tcp: %w", err))
				}
				m.mu.Lock()
				delete(m.conns, c)
				m.mu.Unlock()
				c.Close()
			})
		}
	})
	return m, nil
}

// readAhead is how much of a message the first read can take: a small one, and all that
// a connection has at once of a large one.
const readAhead = 128 << 10

// serve takes messages until the connection ends between two. Nothing follows a
// message before it was answered.
func (m *tcpMember) serve(c net.Conn) error {
	answer, ahead := []byte{1}, make([]byte, readAhead)
	for {
		n, err := io.ReadAtLeast(c, ahead, headBytes)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			err = m.take(c, ahead[:n])
		}
		if err == nil {
			_, err = c.Write(answer)
		}
		if err != nil {
			return err
		}
	}
}

// take puts a message, of which some is read, where it belongs.
func (m *tcpMember) take(c net.Conn, ahead []byte) error {
	size, number := binary.LittleEndian.Uint64(ahead), binary.LittleEndian.Uint64(ahead[8:])
	m.room.mu.Lock()
	defer m.room.mu.Unlock()
	b, err := m.room.begin(size, number)
	if err != nil {
		return err
	}
	n := copy(b, ahead[headBytes:])
	if n < len(ahead)-headBytes {
		return fmt.Errorf("%d bytes behind a message that nobody has answered", len(ahead)-headBytes-n)
	}
	if _, err := io.ReadFull(c, b[n:]); err != nil {
		return err
	}
	m.room.end()
	return nil
}

func (m *tcpMember) close() {
	m.listener.Close()
	m.mu.Lock()
	for c := range m.conns {
		c.Close()
	}
	m.mu.Unlock()
	m.wait.Wait()
}

// tcpSource has a connection to each member.
type tcpSource struct {
	conns []net.Conn
}

func dialTCP(ctx context.Context, addresses []string) (*tcpSource, error) {
	s := &tcpSource{}
	for _, a := range addresses {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp4", a)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("tcp: %w", err)
		}
		s.conns = append(s.conns, c)
	}
	return s, nil
}

func (s *tcpSource) close() {
	for _, c := range s.conns {
		c.Close()
	}
}

func answered(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("tcp: wait for the answer of %v: %w", c.RemoteAddr(), err)
	}
	return nil
}

func written(c net.Conn, m []byte) error {
	if _, err := c.Write(m); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	return nil
}

// sequential writes the message to one member after the other and then waits for
// all answers.
func (s *tcpSource) sequential(m []byte, members int) error {
	for _, c := range s.conns[:members] {
		if err := written(c, m); err != nil {
			return err
		}
	}
	for _, c := range s.conns[:members] {
		if err := answered(c); err != nil {
			return err
		}
	}
	return nil
}

// parallel writes the message to all members at once, by a goroutine each, and waits.
func (s *tcpSource) parallel(m []byte, members int) error {
	errs := make([]error, members)
	var wait sync.WaitGroup
	for i, c := range s.conns[:members] {
		wait.Go(func() {
			if errs[i] = written(c, m); errs[i] == nil {
				errs[i] = answered(c)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
