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

// Config says what a run measures.
type Config struct {
	Keys  int
	Pairs int    // at least so many are sent; rounded up to rounds of all keys
	Order string // RandomOrder or HashOrder
	Busy  bool
	Trips int // round trips; 0: none
}

// TCP measures the baseline between two places.
func TCP(ctx context.Context, from, to Place, c Config) (_ Result, err error) {
	result := Result{Path: "tcp", Order: c.Order, Keys: c.Keys, Condition: Idle}
	if c.Keys < 1 {
		return result, fmt.Errorf("%d keys: at least one is needed", c.Keys)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var started []*Process
	defer func() {
		if err != nil {
			cancel() // whoever still works is killed
		}
		for _, p := range started {
			if cerr := p.Close(); err == nil {
				err = cerr
			}
		}
	}()
	start := func(p Place, role string) (*Process, error) {
		r, err := Start(ctx, p, role)
		if err == nil {
			started = append(started, r)
		}
		return r, err
	}
	send, err := start(from, "tcp-send")
	if err != nil {
		return result, err
	}
	receive, err := start(to, "tcp-receive")
	if err != nil {
		return result, err
	}
	var address string
	err = receive.Call(ctx, "Listen", &TCPListen{Address: net.JoinHostPort(to.Address(), "0"), Bits: TableBits(c.Keys)}, &address)
	if err != nil {
		return result, err
	}
	if err = send.Call(ctx, "Connect", &TCPConnect{Address: address, Keys: c.Keys, Order: c.Order}, &None{}); err != nil {
		return result, err
	}
	// The first round puts the keys into the table, and is not measured.
	var sent Sent
	warm := 1
	if err = send.Call(ctx, "Rounds", &warm, &sent); err != nil {
		return result, err
	}
	if c.Busy {
		result.Condition = Busy
		for range 2 * runtime.NumCPU() {
			p, err := start(from, "spin")
			if err != nil {
				return result, err
			}
			if err := p.Call(ctx, "Ready", &None{}, &None{}); err != nil {
				return result, err
			}
		}
	}
	rounds := max(1, (c.Pairs+c.Keys-1)/c.Keys)
	u, err := watch(ctx, send, receive, func() error { return send.Call(ctx, "Rounds", &rounds, &sent) })
	if err != nil {
		return result, err
	}
	n := float64(sent.Pairs)
	result.PairsPerSecond = n / sent.Took.Seconds()
	result.SendCPUNsPerPair, result.RecvCPUNsPerPair = float64(u.send)/n, float64(u.receive)/n
	if !c.Busy { // else the machine does other things above all
		result.CPUNsPerPair = float64(u.machine) / n
	}
	if c.Trips > 0 {
		var trips TCPTrips
		if err = send.Call(ctx, "Trips", &c.Trips, &trips); err != nil {
			return result, err
		}
		result.RTTp50Us = float64(Quantile(trips.Took, 0.50)) / 1e3
		result.RTTp99Us = float64(Quantile(trips.Took, 0.99)) / 1e3
	}
	if err = send.Call(ctx, "Disconnect", &None{}, &None{}); err != nil {
		return result, err
	}
	var folded Folded
	if err = receive.Call(ctx, "Folded", &None{}, &folded); err != nil {
		return result, err
	}
	want := Expect(c.Keys, warm+rounds)
	want.Pairs += uint64(c.Trips * min(tripPairs, c.Keys))
	if folded != want {
		return result, fmt.Errorf("folded %+v, not %+v", folded, want)
	}
	return result, nil
}

// used is the processor time that passed.
type used struct{ send, receive, machine time.Duration }

// watch runs f and tells what it used. Both roles embed Meter.
func watch(ctx context.Context, send, receive *Process, f func() error) (used, error) {
	take := func() (u used, err error) {
		if err = send.Call(ctx, "Used", &None{}, &u.send); err != nil {
			return u, err
		}
		if err = receive.Call(ctx, "Used", &None{}, &u.receive); err != nil {
			return u, err
		}
		u.machine, err = MachineTime()
		return u, err
	}
	before, err := take()
	if err != nil {
		return before, err
	}
	if err := f(); err != nil {
		return before, err
	}
	after, err := take()
	return used{after.send - before.send, after.receive - before.receive, after.machine - before.machine}, err
}
