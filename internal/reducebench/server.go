// SPDX-License-Identifier: Apache-2.0

package reducebench

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
)

// The parameter server is in the first member's process. A goroutine for each connection reads pieces
// and adds them up, each under a lock of its own; whoever completes one writes it to all. The first
// member's own part takes no connection. A member writes and reads at once, where a vector is more
// than one piece.

// serverPiece is how many bytes a piece has: small enough that sums are on their way while parts come.
const serverPiece = 64 << 10

// psServer has the sums.
type psServer struct {
	members int
	size    int // of a vector, in bytes
	pieces  []psPiece
	conns   []net.Conn // by rank; none for the first
	writing []sync.Mutex
	readers []*reader
	wait    sync.WaitGroup

	own  []int32 // the first member's vector of this round
	left atomic.Int32
	done chan error // of the round; nil: own has the sum
}

type psPiece struct {
	mu    sync.Mutex
	came  int    // parts
	frame []byte // head and sum
}

func newServer(s *streams, members, elements int) (*psServer, error) {
	p := &psServer{
		members: members, size: 4 * elements, conns: make([]net.Conn, members), writing: make([]sync.Mutex, members),
		readers: make([]*reader, members), done: make(chan error, members),
	}
	for at := 0; at < p.size; at += serverPiece {
		bytes := min(serverPiece, p.size-at)
		frame := make([]byte, pieceHead+bytes)
		putPiece(frame, len(p.pieces), bytes)
		p.pieces = append(p.pieces, psPiece{frame: frame})
	}
	for rank := 1; rank < members; rank++ {
		c, err := s.from(toServer, rank)
		if err != nil {
			return nil, err
		}
		p.conns[rank], p.readers[rank] = c, newReader(c, pieceHead+serverPiece)
	}
	return p, nil
}

// serve takes the parts of so many rounds from a connection.
func (p *psServer) serve(rank, rounds int) error {
	r := p.readers[rank]
	for range rounds * len(p.pieces) {
		head, err := r.take(pieceHead)
		if err != nil {
			return err
		}
		piece, bytes := readPiece(head)
		if piece >= len(p.pieces) || bytes != len(p.pieces[piece].frame)-pieceHead {
			return fmt.Errorf("tcp: member %d sent %d bytes as piece %d", rank, bytes, piece)
		}
		b, err := r.take(bytes)
		if err != nil {
			return err
		}
		if err := p.part(piece, b); err != nil {
			return err
		}
	}
	return nil
}

// part adds a part to a piece and, if it was the last, gives it to all.
func (p *psServer) part(piece int, b []byte) error {
	x := &p.pieces[piece]
	x.mu.Lock()
	defer x.mu.Unlock() // who is ahead may not add to what others have not yet got
	sum := x.frame[pieceHead:]
	if x.came == 0 {
		copy(sum, b)
	} else {
		add(cooked(sum), cooked(b))
	}
	if x.came++; x.came < p.members {
		return nil
	}
	x.came = 0
	for rank := 1; rank < p.members; rank++ {
		p.writing[rank].Lock()
		_, err := p.conns[rank].Write(x.frame)
		p.writing[rank].Unlock()
		if err != nil {
			return cut(err)
		}
	}
	copy(raw(p.own)[piece*serverPiece:], sum)
	if p.left.Add(-1) == 0 {
		p.done <- nil
	}
	return nil
}

// begin serves the connections for so many rounds.
func (p *psServer) begin(rounds int) error {
	for rank := 1; rank < p.members; rank++ {
		p.wait.Go(func() {
			if err := p.serve(rank, rounds); err != nil {
				p.done <- err
			}
		})
	}
	return nil
}

// round is the first member's.
func (p *psServer) round(v []int32) error {
	p.own = v
	p.left.Store(int32(len(p.pieces)))
	b := raw(v)
	for i := range p.pieces {
		if err := p.part(i, b[i*serverPiece:min((i+1)*serverPiece, len(b))]); err != nil {
			return err
		}
	}
	return <-p.done
}

// end waits until nothing is under way.
func (p *psServer) end() error {
	p.wait.Wait()
	return nil
}

func (p *psServer) close() error { return nil } // connections are kept

// psMember is one of the others.
type psMember struct {
	c       net.Conn
	r       *reader
	size    int
	heads   []byte // of all pieces
	vector  net.Buffers
	kept    [2][]byte    // what vector is made of
	write   chan []int32 // nil: there is but one piece
	wrote   chan error
	written atomic.Int32 // pieces of a round
}

func newMember(s *streams, server string, elements int) (*psMember, error) {
	c, err := s.to(toServer, 0, server)
	if err != nil {
		return nil, err
	}
	m := &psMember{c: c, r: newReader(c, pieceHead+serverPiece), size: 4 * elements}
	for at := 0; at < m.size; at += serverPiece {
		var head [pieceHead]byte
		putPiece(head[:], at/serverPiece, min(serverPiece, m.size-at))
		m.heads = append(m.heads, head[:]...)
	}
	if len(m.heads) > pieceHead {
		m.write, m.wrote = make(chan []int32), make(chan error, 1)
		go func() {
			for v := range m.write {
				m.wrote <- m.send(v)
			}
			close(m.wrote)
		}()
	}
	return m, nil
}

// send writes a vector's pieces.
func (m *psMember) send(v []int32) error {
	b := raw(v)
	for i := 0; len(b) > 0; i++ {
		n := min(serverPiece, len(b))
		m.kept = [2][]byte{m.heads[i*pieceHead:][:pieceHead], b[:n]}
		m.vector = m.kept[:]
		if _, err := m.vector.WriteTo(m.c); err != nil {
			return cut(err)
		}
		b = b[n:]
		m.written.Add(1)
	}
	return nil
}

func (m *psMember) begin(int) error { return nil }

func (m *psMember) round(v []int32) error {
	m.written.Store(0)
	if m.write != nil {
		m.write <- v
	} else if err := m.send(v); err != nil {
		return err
	}
	b := raw(v)
	for range len(m.heads) / pieceHead {
		head, err := m.r.take(pieceHead)
		if err != nil {
			return err
		}
		piece, bytes := readPiece(head)
		if piece >= len(m.heads)/pieceHead || bytes != min(serverPiece, m.size-piece*serverPiece) {
			return fmt.Errorf("tcp: the server sent %d bytes as piece %d", bytes, piece)
		}
		// It was written, but the call that did it may have to return yet.
		for int(m.written.Load()) <= piece {
			runtime.Gosched()
		}
		if err := m.r.into(b[piece*serverPiece:][:bytes]); err != nil {
			return err
		}
	}
	if m.write != nil {
		return <-m.wrote
	}
	return nil
}

func (m *psMember) end() error { return nil }

func (m *psMember) close() error {
	if m.write != nil {
		close(m.write)
		for range m.wrote { // until it has ended
		}
	}
	return nil
}
