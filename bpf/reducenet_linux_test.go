// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// ring is a group of hosts that reduce for each other, by frames made by hand.
type ring struct {
	l       *castLab
	v6      bool
	bits    uint8
	token   uint64
	members []*ringMember
	next    []uint32 // per reducer: the number of its next block
	call    uint32
}

type ringMember struct {
	h             *castHost
	slot, row     int
	group         *wire.Group
	sums, results *shuffle.Content
}

// needReduces fails where a kernel that has broadcasts can't reduce.
func needReduces(t testing.TB, h *Host) {
	t.Helper()
	needBroadcasts(t, h)
	if _, err := h.Reduces(); err != nil {
		t.Fatal(err)
	}
}

// openGroup makes the memory of an end of a group, and its record but for the way to the next member and the token.
func openGroup(t testing.TB, h *Host, slot int, bits uint8, members, rank int) (sums, results *shuffle.Content) {
	t.Helper()
	row := wire.RowCPU + h.Memory().CPUs + 1
	sums, results = newContent(t, h, row<<bits), newContent(t, h, members<<bits)
	h.Groups()[slot] = wire.Group{
		Job: 3, Sums: sums.ID, SumMarks: sums.Mark, Results: results.ID, ResultMarks: results.Mark,
		Row: uint32(row), Bits: bits, Members: uint8(members), Rank: uint8(rank),
	}
	return sums, results
}

// openRing opens a group of the hosts of a lab as its owner does: tokens last.
func (l *castLab) openRing(bits uint8, v6 bool) *ring {
	t := l.t
	t.Helper()
	l.token++
	r := &ring{l: l, v6: v6, bits: bits, token: l.token}
	for i, h := range l.hosts {
		needReduces(t, h.Host)
		m := &ringMember{h: h, slot: (i + 1) % small().Groups, row: wire.RowCPU + h.Memory().CPUs + 1}
		m.sums, m.results = openGroup(t, h.Host, m.slot, bits, len(l.hosts), i)
		m.group = &h.Groups()[m.slot]
		m.group.Hops[0] = l.hop(h, l.hosts[(i+1)%len(l.hosts)], v6, false)
		r.members = append(r.members, m)
		r.next = append(r.next, 1<<bits)
	}
	for _, m := range r.members {
		atomic.StoreUint64(&m.group.Token, r.token)
		if err := m.h.SetToken(r.token, m.slot); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *ring) close() {
	t := r.l.t
	t.Helper()
	var all sync.WaitGroup
	for _, m := range r.members {
		if err := m.h.ClearToken(r.token); err != nil {
			t.Error(err)
		}
		atomic.StoreUint64(&m.group.Token, 0)
		for _, c := range []*shuffle.Content{m.sums, m.results} {
			all.Go(func() {
				if err := errors.Join(m.h.Quiesce(), m.h.FreeContent(c)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
}

// block is one that is being reduced.
type ringBlock struct {
	r       *ring
	reducer int
	number  uint32
	part    wire.Part
	values  [][]byte // per member
	want    []byte
}

// begin begins a block of random values.
func (r *ring) begin(reducer int, op, wide uint8, values int) *ringBlock {
	width := 4 << wide
	b := &ringBlock{r: r, reducer: reducer, number: r.next[reducer], part: wire.Part{Op: op, Wide: wide, Reducer: uint8(reducer)}}
	r.next[reducer]++
	r.call++
	b.part.What = r.call * 7
	for range r.members {
		v := make([]byte, values*width)
		for i := range v {
			v[i] = byte(rand.Uint32())
		}
		b.values = append(b.values, v)
	}
	b.want = make([]byte, values*width)
	for i := range values {
		at := func(m int) int64 {
			if wide == 1 {
				return int64(binary.LittleEndian.Uint64(b.values[m][8*i:]))
			}
			return int64(int32(binary.LittleEndian.Uint32(b.values[m][4*i:])))
		}
		sum := at(0)
		for m := 1; m < len(r.members); m++ {
			switch op {
			case wire.OpMin:
				sum = min(sum, at(m))
			case wire.OpMax:
				sum = max(sum, at(m))
			default:
				sum += at(m)
			}
		}
		if wide == 1 {
			binary.LittleEndian.PutUint64(b.want[8*i:], uint64(sum))
		} else {
			binary.LittleEndian.PutUint32(b.want[4*i:], uint32(sum))
		}
	}
	return b
}

// own adds the reducer's own part as its user space does. It is not the last one to be added.
func (b *ringBlock) own() {
	t, r := b.r.l.t, b.r
	t.Helper()
	m := r.members[b.reducer]
	generation := uint64(b.number>>r.bits) << 32
	row := int(b.number&(1<<r.bits-1)) * m.row
	claim := func(mark int, low uint64) {
		p := &m.sums.Marks[row+mark]
		for {
			old := atomic.LoadUint64(p)
			now := generation | low
			if old>>32 == generation>>32 {
				now = old | low
			}
			if atomic.CompareAndSwapUint64(p, old, now) {
				return
			}
		}
	}
	claim(wire.RowWhat, uint64(b.part.What))
	claim(wire.RowClaimed, 1<<b.reducer)
	element := row + m.row - 1
	copy(m.sums.Data[element*wire.ChunkSize:], b.values[b.reducer])
	atomic.StoreUint64(&m.sums.Marks[element], generation)
	claim(wire.RowApplied, 1<<b.reducer)
}

// frame is what a member sends for the block.
func (b *ringBlock) frame(member int) []byte {
	b.r.l.t.Helper()
	p := b.part
	p.Member = uint8(member)
	f, err := wire.PutPart(make([]byte, wire.FrameSize), wire.Reduce, b.r.token, b.number, p, b.values[member], b.r.l.tags)
	if err != nil {
		b.r.l.t.Fatal(err)
	}
	return f
}

func (b *ringBlock) send(member int) { b.sendFrame(member, b.frame(member)) }

func (b *ringBlock) sendFrame(member int, frame []byte) {
	b.r.l.t.Helper()
	if _, err := b.r.members[member].h.conn.WriteToUDPAddrPort(frame, b.r.members[b.reducer].h.address(b.r.v6)); err != nil {
		b.r.l.t.Fatal(err)
	}
}

// has says why a member has not got the block's result, or "".
func (b *ringBlock) has(member int) string {
	r, m := b.r, b.r.members[member]
	at := b.reducer<<r.bits | int(b.number&(1<<r.bits-1))
	want := uint64(b.number>>r.bits)<<32 | wire.MarkStored
	if got := atomic.LoadUint64(&m.results.Marks[at]); got != want {
		reasons, _ := m.h.Reasons()
		return fmt.Sprintf("member %d has mark %#x of block %d of reducer %d, want %#x;%s", member, got, b.number, b.reducer, want, notZero(reasons))
	}
	if got := m.results.Data[at*wire.ChunkSize:][:len(b.want)]; string(got) != string(b.want) {
		return fmt.Sprintf("member %d has %x, want %x", member, got, b.want)
	}
	return ""
}

// all waits until all have it.
func (b *ringBlock) all() {
	b.r.l.t.Helper()
	for i := range b.r.members {
		eventually(b.r.l.t, func() string { return b.has(i) })
	}
}

// reasonsOf returns how often a reason was counted at a member.
func (r *ring) reason(member int, of wire.Reason) uint64 {
	r.l.t.Helper()
	n, err := r.members[member].h.Reasons()
	if err != nil {
		r.l.t.Fatal(err)
	}
	return n[of]
}

// Parts of members are added up by the reducer's programs, and the result goes round by itself: no socket hears of it.
func TestReduceRing(t *testing.T) {
	for _, hosts := range []int{2, 3} {
		l := newCastLab(t, hosts)
		for _, v6 := range []bool{false, true} {
			r := l.openRing(2, v6)
			blocks := 0
			for round := range 6 { // every slot is used more than once
				for reducer := range hosts {
					for how := range 2 {
						values := []int{1, 168, 100}[round%3]
						b := r.begin(reducer, uint8(round%3), uint8(how), values)
						b.own()
						for i := range hosts {
							if i != reducer {
								b.send(i)
							}
						}
						b.all()
						blocks++
					}
				}
			}
			for i, m := range r.members {
				// Counted behind the mark. Whoever sent a result on has counted that before.
				eventually(t, func() string {
					if got := atomic.LoadUint32(&m.group.Stored); got != uint32(blocks) {
						return fmt.Sprintf("member %d of %d has %d results, want %d", i, hosts, got, blocks)
					}
					return ""
				})
			}
			for i, m := range r.members {
				// Its own blocks' results leave from here, and pass by but for those that its successor reduces.
				passed, reduced := blocks/hosts*(hosts-1), blocks/hosts
				if got := atomic.LoadUint32(&m.group.Passed); got != uint32(passed) {
					t.Errorf("member %d of %d sent %d results, want %d", i, hosts, got, passed)
				}
				if got := atomic.LoadUint32(&m.group.Reduced); got != uint32(reduced) {
					t.Errorf("member %d of %d completed %d blocks, want %d", i, hosts, got, reduced)
				}
			}
			(&group{l: l}).nothingMore()
			r.close()
		}
	}
}

// What is lost is repaired by who sends its part again: it comes to be added, or the result comes back, and goes on from there.
func TestReduceRepairs(t *testing.T) {
	l := newCastLab(t, 3)
	r := l.openRing(3, false)
	// The result is not sent on: there is no way to the next member. The last part comes up to the reducer's user space.
	hop := r.members[0].group.Hops[0]
	r.members[0].group.Hops[0].Interface = 0
	b := r.begin(0, wire.OpSum, 0, 300)
	b.own()
	b.send(1)
	eventually(t, func() string {
		if n := r.reason(0, wire.Added); n != 1 {
			return fmt.Sprintf("%d parts are added", n)
		}
		return ""
	})
	b.send(1) // came before, and there is no result
	eventually(t, func() string {
		if n := r.reason(0, wire.PartBefore); n != 1 {
			return fmt.Sprintf("%d parts came before", n)
		}
		return ""
	})
	b.send(2)
	buf := make([]byte, 2048)
	_ = r.members[0].h.conn.SetReadDeadline(time.Now().Add(time.Minute))
	n, from, err := r.members[0].h.conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	// It is as it was sent, but for what is scratch.
	h, p, values, err := wire.ParsePart(buf[:n])
	if err != nil || h.Kind != wire.Reduce || p.Member != 2 || string(values) != string(b.values[2]) || !l.tags.OpenPart(buf[:n]) || from.Addr().Unmap() != r.members[2].h.at.IPv4() {
		t.Errorf("up came %+v %+v from %s: %v", h, p, from, err)
	}
	eventually(t, func() string { return b.has(0) })
	if b.has(1) == "" || b.has(2) == "" {
		t.Error("a result came by a way that was cut")
	}
	// Member 1 asks again, and heals member 2.
	b.send(1)
	b.all()
	if n := r.reason(0, wire.ResultAgain); n != 1 {
		t.Errorf("%d results were sent again, want 1", n)
	}
	// Whoever has it already takes no notice.
	b.send(2)
	eventually(t, func() string {
		if n := r.reason(2, wire.ResultBefore); n != 1 {
			return fmt.Sprintf("%d results came before", n)
		}
		return ""
	})
	r.members[0].group.Hops[0] = hop

	// Nothing of these is added.
	b = r.begin(0, wire.OpMax, 1, 168)
	b.own()
	damaged := b.frame(1)
	damaged[len(damaged)-1] ^= 1
	b.sendFrame(1, damaged)
	other := *b
	other.part.What++
	b.sendFrame(1, other.frame(1)) // of another call: up
	stray := *b
	stray.part.Reducer = 2
	b.sendFrame(1, stray.frame(1))
	for reason, want := range map[wire.Reason]uint64{wire.PartTag: 1, wire.PartDiffers: 1, wire.PartStray: 1} {
		eventually(t, func() string {
			if n := r.reason(0, reason); n != want {
				return fmt.Sprintf("reason %d was counted %d times, want %d", reason, n, want)
			}
			return ""
		})
	}
	_ = r.members[0].h.conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, _, err = r.members[0].h.conn.ReadFromUDPAddrPort(buf); err != nil {
		t.Fatal(err)
	}
	if _, p, _, err := wire.ParsePart(buf[:n]); err != nil || p.What != b.part.What+1 {
		t.Errorf("up came %+v: %v", p, err)
	}
	b.send(2)
	b.send(1)
	b.all()
	_ = r.members[0].h.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	if n, _, err := r.members[0].h.conn.ReadFromUDPAddrPort(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes more came up: %v", n, err)
	}
	r.close()
}

// Who waits for a result is told of the one that it waits for, and of no other.
func TestReduceRounds(t *testing.T) {
	l := newCastLab(t, 2)
	r := l.openRing(4, false)
	told := make([]chan wire.Event, 2)
	for i, m := range r.members {
		told[i] = make(chan wire.Event, 100)
		if err := m.h.OnRound(func(e wire.Event) { told[i] <- e }); err != nil {
			t.Fatal(err)
		}
		if err := m.h.OnRound(func(wire.Event) {}); err == nil {
			t.Error("two are told")
		}
		atomic.StoreUint32(&m.group.Wake, 3)
	}
	for n := 1; n <= 7; n++ {
		b := r.begin(n%2, wire.OpSum, 0, 10)
		b.own()
		b.send(1 - n%2)
		b.all()
		if n != 3 && n != 7 {
			continue
		}
		for i, m := range r.members {
			select {
			case e := <-told[i]:
				if want := (wire.Event{Token: r.token, Slot: uint32(m.slot), First: uint32(n)}); e != want {
					t.Errorf("member %d is told of %+v, want %+v", i, e, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("member %d is not told", i)
			}
			atomic.StoreUint32(&m.group.Wake, 7)
		}
	}
	r.close()
	for i := range told {
		if err := r.members[i].h.Close(); err != nil {
			t.Error(err)
		}
		if len(told[i]) > 0 {
			t.Errorf("member %d is told of %+v, too", i, <-told[i])
		}
	}
}
