// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// A member listens on one port for all peers; whoever connects says who it is and what for. Connections are kept.

// What connections are for.
const (
	toServer = 1 // the first member's parameter server
	toNext   = 2 // of a ring
)

// streams are a member's connections.
type streams struct {
	ctx      context.Context
	rank     int
	listener net.Listener
	wait     sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed when one came
	came    map[streamKey]net.Conn
	made    map[streamKey]net.Conn
	closed  bool
}

type streamKey struct {
	purpose byte
	other   int // rank
}

func listen(ctx context.Context, address string, rank int) (*streams, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	s := &streams{ctx: ctx, rank: rank, listener: l, changed: make(chan struct{}), came: map[streamKey]net.Conn{}, made: map[streamKey]net.Conn{}}
	s.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var hello [2]byte
			if _, err := io.ReadFull(c, hello[:]); err != nil {
				c.Close()
				continue
			}
			s.mu.Lock()
			if s.closed {
				c.Close()
			} else {
				s.came[streamKey{hello[0], int(hello[1])}] = c
				close(s.changed)
				s.changed = make(chan struct{})
			}
			s.mu.Unlock()
		}
	})
	return s, nil
}

// from waits for another member's connection.
func (s *streams) from(purpose byte, other int) (net.Conn, error) {
	for {
		s.mu.Lock()
		c, changed, closed := s.came[streamKey{purpose, other}], s.changed, s.closed
		s.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		if c != nil {
			return c, nil
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
}

// to connects to another member, if that was not done before.
func (s *streams) to(purpose byte, other int, address string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	if c := s.made[streamKey{purpose, other}]; c != nil {
		return c, nil
	}
	var d net.Dialer
	c, err := d.DialContext(s.ctx, "tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	s.made[streamKey{purpose, other}] = c
	if _, err := c.Write([]byte{purpose, byte(s.rank)}); err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	return c, nil
}

func (s *streams) close() {
	s.mu.Lock()
	s.closed = true
	s.listener.Close()
	for _, all := range []map[streamKey]net.Conn{s.came, s.made} {
		for _, c := range all {
			c.Close()
		}
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// readAhead is how much one read of a connection may take.
const readAhead = 256 << 10

// reader takes pieces off a connection, with few calls of the system. What it returns begins where
// an int32 may, since all pieces are whole ones.
type reader struct {
	c    net.Conn
	room []byte
	have []byte // in room
}

func newReader(c net.Conn, largest int) *reader {
	return &reader{c: c, room: make([]byte, max(readAhead, largest))}
}

// take returns the next n bytes, until it is called again.
func (r *reader) take(n int) ([]byte, error) {
	if len(r.have) < n {
		r.have = r.room[:copy(r.room, r.have)]
		got, err := io.ReadAtLeast(r.c, r.room[len(r.have):], n-len(r.have))
		r.have = r.room[:len(r.have)+got]
		if err != nil {
			return nil, cut(err)
		}
	}
	b := r.have[:n]
	r.have = r.have[n:]
	return b, nil
}

// into fills b with what comes next.
func (r *reader) into(b []byte) error {
	n := copy(b, r.have)
	r.have = r.have[n:]
	if n == len(b) {
		return nil
	}
	if small := 4 << 10; len(b)-n < small { // rather with what follows
		rest, err := r.take(len(b) - n)
		copy(b[n:], rest)
		return err
	}
	_, err := io.ReadFull(r.c, b[n:])
	return cut(err)
}

// cut has the end of a connection be an error.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	return nil
}

// pieceHead is what stands before a piece on its way to the parameter server and back: its number and
// bytes, u32 each.
const pieceHead = 8

func putPiece(b []byte, piece, bytes int) {
	binary.LittleEndian.PutUint32(b, uint32(piece))
	binary.LittleEndian.PutUint32(b[4:], uint32(bytes))
}

func readPiece(b []byte) (piece, bytes int) {
	return int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
}
