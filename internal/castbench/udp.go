// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/ipv4"
)

// Over UDP a message is cut into datagrams as large as the network takes. A member
// answers what it has read at once with one datagram, which says what it has: all
// before a place, and a bit for each of the 64 behind it. The source has at most a
// window under way to each member, and sends again what is not acknowledged in time.
// Several datagrams go with one call of the system at both ends and, where there is
// segmentation offload, as one packet through it.

const (
	udpMagic  = 0x31434251
	udpHead   = 24
	udpData   = 1500 - 20 - 8 - udpHead // of each datagram of a message but the last
	udpAnswer = 24
	udpWindow = 64                                         // datagrams; an answer has a bit for each
	udpBatch  = 8                                          // packets a call
	udpJoin   = (1<<16 - 1 - 20 - 8) / (udpHead + udpData) // datagrams a packet
	// udpBuffer is how many bytes a socket may hold: some windows, each packet of which
	// takes up to 2.5 KB.
	udpBuffer = 4 << 20
	// udpPatience is how long nothing may come of what is under way before it is sent
	// again. Where all processors are in use answers take some 10 ms.
	udpPatience    = 50 * time.Millisecond
	udpMaxPatience = time.Second
)

// datagram is the head of one: magic u32, place u32, number u64, size of the message u64.
type datagram struct {
	place        uint32
	number, size uint64
}

func (d *datagram) put(b []byte) {
	binary.LittleEndian.PutUint32(b, udpMagic)
	binary.LittleEndian.PutUint32(b[4:], d.place)
	binary.LittleEndian.PutUint64(b[8:], d.number)
	binary.LittleEndian.PutUint64(b[16:], d.size)
}

func readDatagram(b []byte) (d datagram, ok bool) {
	if len(b) < udpHead || binary.LittleEndian.Uint32(b) != udpMagic {
		return d, false
	}
	return datagram{binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}, true
}

// places returns how many datagrams a message has.
func places(size int) int { return max(1, (size+udpData-1)/udpData) }

// udpMember takes messages.
type udpMember struct {
	conn *net.UDPConn
	room *room
	done chan struct{}

	number uint64
	size   int
	data   []byte
	have   []bool // by place
	before int    // all places before it are there
	count  int
}

func listenUDP(address string, r *room) (*udpMember, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		return nil, fmt.Errorf("udp: %w", err)
	}
	if err := c.SetReadBuffer(udpBuffer); err != nil {
		c.Close()
		return nil, fmt.Errorf("udp: %w", err)
	}
	m := &udpMember{conn: c, room: r, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		if err := m.serve(); !errors.Is(err, net.ErrClosed) {
			r.fail(fmt.Errorf("udp: %w", err))
		}
	}()
	return m, nil
}

func (m *udpMember) close() {
	m.conn.Close()
	<-m.done
}

func (m *udpMember) serve() error {
	batch := ipv4.NewPacketConn(m.conn)
	if err := joinReads(m.conn); err != nil {
		return err
	}
	ms := make([]ipv4.Message, udpBatch)
	for i := range ms {
		ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1<<16)}, make([]byte, joinControl)
	}
	var answer [udpAnswer]byte
	for {
		n, err := batch.ReadBatch(ms, 0)
		if err != nil {
			return err
		}
		var to net.Addr
		m.room.mu.Lock()
		for i := range ms[:n] {
			b := ms[i].Buffers[0][:ms[i].N]
			for size := cutSize(ms[i].OOB[:ms[i].NN], len(b)); len(b) > 0 && err == nil; b = b[min(size, len(b)):] {
				err = m.take(b[:min(size, len(b))])
			}
			to = ms[i].Addr
		}
		m.room.mu.Unlock()
		if err != nil {
			return err
		}
		m.answer(answer[:])
		if _, err := m.conn.WriteTo(answer[:], to); err != nil {
			return err
		}
	}
}

// take takes a datagram.
func (m *udpMember) take(b []byte) error {
	d, ok := readDatagram(b)
	if !ok {
		return fmt.Errorf("%d bytes that are no datagram of a message", len(b))
	}
	if d.number < m.number {
		return nil // again, of one that was there
	}
	if d.number > m.number {
		data, err := m.room.begin(d.size, d.number)
		if err != nil {
			return err
		}
		m.data, m.number, m.size = data, d.number, len(data)
		m.have = append(m.have[:0], make([]bool, places(m.size))...)
		m.before, m.count = 0, 0
	}
	at := int(d.place) * udpData
	b = b[udpHead:]
	if int(d.place) >= len(m.have) || len(b) != min(udpData, m.size-at) {
		return fmt.Errorf("datagram %d of %d with %d bytes", d.place, len(m.have), len(b))
	}
	if m.have[d.place] {
		return nil
	}
	copy(m.data[at:], b)
	m.have[d.place] = true
	for m.count++; m.before < len(m.have) && m.have[m.before]; m.before++ {
	}
	if m.count == len(m.have) {
		m.room.end()
	}
	return nil
}

// answer says what is there of the message under way.
func (m *udpMember) answer(b []byte) {
	var set uint64
	for i := m.before + 1; i < min(len(m.have), m.before+1+udpWindow); i++ {
		if m.have[i] {
			set |= 1 << (i - m.before - 1)
		}
	}
	binary.LittleEndian.PutUint32(b, udpMagic)
	binary.LittleEndian.PutUint32(b[4:], uint32(m.before))
	binary.LittleEndian.PutUint64(b[8:], m.number)
	binary.LittleEndian.PutUint64(b[16:], set)
}

// udpSource sends to all members by one socket.
type udpSource struct {
	conn    *net.UDPConn
	batch   *ipv4.PacketConn
	members []udpEnd
	of      map[netip.AddrPort]int // a member's index
	out, in []ipv4.Message
	heads   []byte // of the datagrams in out
	cut     []byte // has the system cut a packet
	again   int    // datagrams that were sent again, ever
}

// udpEnd is what a source knows of a member.
type udpEnd struct {
	address *net.UDPAddr
	before  int    // it has all places before
	set     uint64 // and of those behind before, as in an answer
	next    int    // first place that was never sent
	quiet   time.Time
	waits   time.Duration
}

func (e *udpEnd) has(place int) bool {
	return place < e.before || place > e.before && place-e.before-1 < 64 && e.set>>(place-e.before-1)&1 != 0
}

func openUDP(address string, members []netip.AddrPort) (*udpSource, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		return nil, fmt.Errorf("udp: %w", err)
	}
	if err := errors.Join(c.SetReadBuffer(udpBuffer), c.SetWriteBuffer(udpBuffer)); err != nil {
		c.Close()
		return nil, fmt.Errorf("udp: %w", err)
	}
	s := &udpSource{
		conn: c, batch: ipv4.NewPacketConn(c), of: map[netip.AddrPort]int{},
		heads: make([]byte, udpBatch*udpJoin*udpHead), cut: cutControl(udpHead + udpData),
	}
	for i, a := range members {
		s.members = append(s.members, udpEnd{address: net.UDPAddrFromAddrPort(a)})
		s.of[a] = i
	}
	for range udpBatch {
		s.out = append(s.out, ipv4.Message{})
	}
	for range 4 * udpBatch {
		s.in = append(s.in, ipv4.Message{Buffers: [][]byte{make([]byte, udpAnswer)}})
	}
	return s, nil
}

func (s *udpSource) close() { s.conn.Close() }

// send gives a message to the first members.
func (s *udpSource) send(ctx context.Context, m []byte, num uint64, members int) error {
	total := places(len(m))
	now := time.Now()
	for i := range s.members[:members] {
		e := &s.members[i]
		e.before, e.set, e.next, e.quiet, e.waits = 0, 0, 0, now, udpPatience
	}
	// What is queued: packets, the last of which has some datagrams of one member up to
	// a place.
	packets, datagrams, last, to := 0, 0, 0, (*udpEnd)(nil)
	flush := func() error {
		for rest := s.out[:packets]; len(rest) > 0; {
			n, err := s.batch.WriteBatch(rest, 0)
			if err != nil {
				return fmt.Errorf("udp: send: %w", err)
			}
			rest = rest[n:]
		}
		packets, to = 0, nil
		return nil
	}
	queue := func(e *udpEnd, place int) error {
		if to != e || place != last+1 || datagrams == udpJoin || s.cut == nil {
			if packets == udpBatch {
				if err := flush(); err != nil {
					return err
				}
			}
			o := &s.out[packets]
			o.Buffers, o.OOB, o.Addr = o.Buffers[:0], nil, e.address
			packets, datagrams, to = packets+1, 0, e
		}
		o := &s.out[packets-1]
		head := s.heads[((packets-1)*udpJoin+datagrams)*udpHead:][:udpHead]
		(&datagram{uint32(place), num, uint64(len(m))}).put(head)
		o.Buffers = append(o.Buffers, head, m[place*udpData:min(len(m), (place+1)*udpData)])
		if datagrams, last = datagrams+1, place; datagrams > 1 {
			o.OOB = s.cut
		}
		return nil
	}
	for {
		open, overdue := 0, time.Time{}
		for i := range s.members[:members] {
			e := &s.members[i]
			if e.before >= total {
				continue
			}
			open++
			if due := e.quiet.Add(e.waits); !now.Before(due) {
				for p := e.before; p < e.next; p++ {
					if !e.has(p) {
						s.again++
						if err := queue(e, p); err != nil {
							return err
						}
					}
				}
				e.quiet, e.waits = now, min(2*e.waits, udpMaxPatience)
			}
			for ; e.next < min(total, e.before+udpWindow); e.next++ {
				if err := queue(e, e.next); err != nil {
					return err
				}
			}
			if due := e.quiet.Add(e.waits); overdue.IsZero() || due.Before(overdue) {
				overdue = due
			}
		}
		if err := flush(); err != nil {
			return err
		}
		if open == 0 {
			return nil
		}
		if err := s.read(ctx, num, total, overdue); err != nil {
			return err
		}
		now = time.Now()
	}
}

// read takes answers until some came, or a time.
func (s *udpSource) read(ctx context.Context, num uint64, total int, until time.Time) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := s.conn.SetReadDeadline(until); err != nil {
		return fmt.Errorf("udp: %w", err)
	}
	n, err := s.batch.ReadBatch(s.in, 0)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("udp: wait for answers: %w", err)
	}
	now := time.Now()
	for i := range s.in[:n] {
		b := s.in[i].Buffers[0][:s.in[i].N]
		from, ok := s.in[i].Addr.(*net.UDPAddr)
		if !ok || len(b) != udpAnswer || binary.LittleEndian.Uint32(b) != udpMagic || binary.LittleEndian.Uint64(b[8:]) != num {
			continue
		}
		at := from.AddrPort()
		member, ok := s.of[netip.AddrPortFrom(at.Addr().Unmap(), at.Port())]
		before, set := int(binary.LittleEndian.Uint32(b[4:])), binary.LittleEndian.Uint64(b[16:])
		if !ok || before > total {
			continue
		}
		e := &s.members[member]
		if before > e.before || before == e.before && bits.OnesCount64(set&^e.set) > 0 {
			e.before, e.set, e.quiet, e.waits = before, set, now, udpPatience
		}
	}
	return nil
}
