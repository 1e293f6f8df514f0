// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"
)

// The baseline: pairs go over one TCP connection in batches, each with its
// length in front (u32), as large as 64 KiB hold whole pairs. An empty batch asks for
// an answer: the number of pairs folded so far (u64).

// batchBytes is the size of a full batch.
const batchBytes = 64 << 10 / PairBytes * PairBytes

// receiveBuffer is as large as the receiver's reads: some batches at once.
const receiveBuffer = 4 * (batchBytes + 4)

// TCPReceiver is the role that folds what comes over TCP.
type TCPReceiver struct {
	Meter
	listener net.Listener
	table    *Table
	folded   chan error
}

// TCPListen says what a TCPReceiver gets ready.
type TCPListen struct {
	Address string // host:port; port 0: any
	Bits    int    // of the table
}

// Listen makes a table and waits for one sender. It answers with its address.
func (r *TCPReceiver) Listen(in *TCPListen, address *string) (err error) {
	if r.listener != nil {
		return errors.New("listens already")
	}
	if r.table, err = NewTable(in.Bits); err != nil {
		return err
	}
	if r.listener, err = net.Listen("tcp", in.Address); err != nil {
		return err
	}
	*address = r.listener.Addr().String()
	r.folded = make(chan error, 1)
	go func() {
		conn, err := r.listener.Accept()
		if err == nil {
			err = foldStream(conn, r.table)
			conn.Close()
		}
		r.folded <- err
	}()
	return nil
}

// Folded waits for the end of the sender's connection and answers with what
// the table holds.
func (r *TCPReceiver) Folded(_ *None, out *Folded) error {
	if r.folded == nil {
		return errors.New("does not listen")
	}
	if err := <-r.folded; err != nil {
		return err
	}
	r.folded <- nil
	*out = r.table.Folded()
	return nil
}

// Close stops listening.
func (r *TCPReceiver) Close() error {
	if r.listener == nil {
		return nil
	}
	return r.listener.Close()
}

// foldStream folds batches until the connection ends between two.
func foldStream(conn io.ReadWriter, t *Table) error {
	buf := make([]byte, receiveBuffer)
	have := 0 // bytes in buf
	for {
		n, err := conn.Read(buf[have:])
		have += n
		at := 0
		for have-at >= 4 {
			size := int(binary.LittleEndian.Uint32(buf[at:]))
			if size > batchBytes {
				return fmt.Errorf("a batch of %d bytes: at most %d are possible", size, batchBytes)
			}
			if have-at-4 < size {
				break
			}
			batch := buf[at+4 : at+4+size]
			at += 4 + size
			if size > 0 {
				if err := t.Fold(batch); err != nil {
					return err
				}
				continue
			}
			if _, err := conn.Write(binary.LittleEndian.AppendUint64(nil, t.pairs)); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
		}
		have = copy(buf, buf[at:have])
		if errors.Is(err, io.EOF) && have == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive: %w (%d bytes of a batch were there)", err, have)
		}
	}
}

// TCPSender is the role that sends pairs over TCP.
type TCPSender struct {
	Meter
	conn   net.Conn
	stream []byte // batches of one round
	pairs  int    // of one round
	sent   uint64
}

// TCPConnect says what a TCPSender gets ready.
type TCPConnect struct {
	Address string
	Keys    int
	Order   string
}

// Connect makes the pairs and connects.
func (s *TCPSender) Connect(in *TCPConnect, _ *None) error {
	p, err := Pairs(in.Keys, in.Order)
	if err != nil {
		return err
	}
	s.pairs = in.Keys
	s.stream = make([]byte, 0, len(p)+4*(len(p)/batchBytes+1))
	for len(p) > 0 {
		n := min(len(p), batchBytes)
		s.stream = append(binary.LittleEndian.AppendUint32(s.stream, uint32(n)), p[:n]...)
		p = p[n:]
	}
	runtime.GC() // what made the pairs is not to be collected while they are sent
	s.conn, err = net.Dial("tcp", in.Address)
	return err
}

// Sent is what a TCPSender did.
type Sent struct {
	Pairs uint64
	Took  time.Duration // from the first byte to the answer that all is folded
}

// Rounds sends all pairs so many times and waits until they are folded.
func (s *TCPSender) Rounds(n *int, out *Sent) error {
	if s.conn == nil {
		return errors.New("is not connected")
	}
	began := time.Now()
	for range *n {
		// A write a batch, as a sender would that gets its pairs bit by bit.
		for rest := s.stream; len(rest) > 0; {
			size := 4 + int(binary.LittleEndian.Uint32(rest))
			if _, err := s.conn.Write(rest[:size]); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			rest = rest[size:]
		}
	}
	before := s.sent
	s.sent += uint64(*n) * uint64(s.pairs)
	if err := s.ask(nil); err != nil {
		return err
	}
	*out = Sent{s.sent - before, time.Since(began)}
	return nil
}

// ask sends bytes and an empty batch, and waits for the answer.
func (s *TCPSender) ask(batch []byte) error {
	if _, err := s.conn.Write(append(batch, 0, 0, 0, 0)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	var b [8]byte
	if _, err := io.ReadFull(s.conn, b[:]); err != nil {
		return fmt.Errorf("wait for the answer: %w", err)
	}
	if folded := binary.LittleEndian.Uint64(b[:]); folded != s.sent {
		return fmt.Errorf("%d pairs were sent, %d are folded", s.sent, folded)
	}
	return nil
}

// tripPairs are the pairs of a question: about as many as a frame has.
const tripPairs = 57

// TCPTrips are round trips.
type TCPTrips struct{ Took []time.Duration }

// Trips sends a few pairs and waits for the answer, so many times. The pairs are
// the first ones of the round, with the value 0.
func (s *TCPSender) Trips(n *int, out *TCPTrips) error {
	if s.conn == nil {
		return errors.New("is not connected")
	}
	few := min(tripPairs, s.pairs)
	question := append(binary.LittleEndian.AppendUint32(nil, uint32(few*PairBytes)), s.stream[4:4+few*PairBytes]...)
	for i := range few {
		binary.LittleEndian.PutUint32(question[4+i*PairBytes+4:], 0)
	}
	for range *n {
		began := time.Now()
		s.sent += uint64(few)
		if err := s.ask(question); err != nil {
			return err
		}
		out.Took = append(out.Took, time.Since(began))
	}
	return nil
}

// Disconnect ends the connection.
func (s *TCPSender) Disconnect(*None, *None) error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}

// Close ends the connection.
func (s *TCPSender) Close() error { return s.Disconnect(nil, nil) }

// Config says what is measured.
type Config struct {
	Keys  int
	Order string // of the baseline's pairs: RandomOrder or HashOrder
	Trips int    // round trips
}

// tcpSession is the baseline between two places.
type tcpSession struct {
	base
	c      Config
	rounds int
	trips  int
}

func openTCP(ctx context.Context, from, to Place, c Config) (_ session, err error) {
	s := &tcpSession{base: base{path: "tcp", order: c.Order, keys: c.Keys}, c: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.start(ctx, from, to, "tcp-send", "tcp-receive"); err != nil {
		return nil, err
	}
	var address string
	err = s.receive.Call(ctx, "Listen", &TCPListen{Address: net.JoinHostPort(to.Address(), "0"), Bits: TableBits(c.Keys)}, &address)
	if err != nil {
		return nil, err
	}
	if err = s.send.Call(ctx, "Connect", &TCPConnect{Address: address, Keys: c.Keys, Order: c.Order}, &None{}); err != nil {
		return nil, err
	}
	_, err = s.bulk(ctx, 1) // keys are in the table from now on
	return s, err
}

func (s *tcpSession) bulk(ctx context.Context, pairs int) (sent Sent, err error) {
	rounds := max(1, (pairs+s.c.Keys-1)/s.c.Keys)
	s.rounds += rounds
	err = s.send.Call(ctx, "Rounds", &rounds, &sent)
	return sent, err
}

func (s *tcpSession) alone(context.Context, int) (Sent, error) { return Sent{}, nil }

func (s *tcpSession) program(context.Context, int) (float64, error) { return 0, nil }

func (s *tcpSession) trip(ctx context.Context) (p50, p99 time.Duration, sent Sent, err error) {
	var out TCPTrips
	began := time.Now()
	if err = s.send.Call(ctx, "Trips", &s.c.Trips, &out); err != nil {
		return 0, 0, sent, err
	}
	s.trips += s.c.Trips
	sent = Sent{uint64(s.c.Trips * min(tripPairs, s.c.Keys)), time.Since(began)}
	return Quantile(out.Took, 0.50), Quantile(out.Took, 0.99), sent, nil
}

func (s *tcpSession) verify(ctx context.Context) error {
	if err := s.send.Call(ctx, "Disconnect", &None{}, &None{}); err != nil {
		return err
	}
	var folded Folded
	if err := s.receive.Call(ctx, "Folded", &None{}, &folded); err != nil {
		return err
	}
	want := Expect(s.c.Keys, s.rounds)
	want.Pairs += uint64(s.trips * min(tripPairs, s.c.Keys))
	if folded != want {
		return fmt.Errorf("the tcp path folded %v, not %v", folded, want)
	}
	return nil
}
