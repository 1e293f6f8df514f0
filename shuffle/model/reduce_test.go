// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

const (
	groupToken = 0x6e0c6e0c6e0c6e0c
	groupSlot  = 1
)

// groupEnd is a host with a member's end of a group.
type groupEnd struct {
	*Host
	group         *wire.Group
	sums, results *shuffle.Content
	events        []wire.Event
}

func memberAddress(rank int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(rank)}), shuffle.Port)
}

// newGroupEnd opens the end of member rank of several.
func newGroupEnd(t failer, cfg Config, rank, members, bits int) *groupEnd {
	t.Helper()
	cfg.Reduces = true
	cfg.Limits = shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Jobs: 4, Regions: 1, Casts: 1, Groups: 2, Chunks: 1024}
	e := &groupEnd{Host: NewHost(cfg)}
	row := wire.RowCPU + e.Memory().CPUs + 1
	var err error
	if e.sums, err = e.NewContent(row << bits); err != nil {
		t.Fatal(err)
	}
	if e.results, err = e.NewContent(members << bits); err != nil {
		t.Fatal(err)
	}
	next := (rank + 1) % members
	hop := wire.Hop{MACTo: [6]byte{2, 0, 0, 0, 0, byte(next)}, Interface: 1, PortTo: [2]byte{0x1b, 0xcd}, PortFrom: [2]byte{0x1b, 0xcd}}
	copy(hop.To[:], memberAddress(next).Addr().AsSlice())
	copy(hop.From[:], memberAddress(rank).Addr().AsSlice())
	e.group = &e.Groups()[groupSlot]
	*e.group = wire.Group{
		Token: groupToken, Job: testJob, Sums: e.sums.ID, SumMarks: e.sums.Mark, Results: e.results.ID, ResultMarks: e.results.Mark,
		Row: uint32(row), Bits: uint8(bits), Members: uint8(members), Rank: uint8(rank), Hops: [2]wire.Hop{hop, {}},
	}
	for _, err := range []error{
		e.SetJob(testJob, testTags.Job()), e.SetToken(groupToken, groupSlot), e.OnRound(func(v wire.Event) { e.events = append(e.events, v) }),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// state is all that a packet may change but for reasons.
func (e *groupEnd) state() string {
	return fmt.Sprint(*e.group, e.Marks(), e.events, e.sums.Data, e.results.Data)
}

func partFrame(t failer, kind wire.Kind, block uint32, p wire.Part, values []byte) []byte {
	t.Helper()
	f, err := wire.PutPart(make([]byte, wire.FrameSize), kind, groupToken, block, p, values, testTags)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// One good packet of each kind with one thing wrong at a time; the order is that of the package's documentation.
func TestPartIsChecked(t *testing.T) {
	const bits, rank, members = 2, 1, 4
	const block = 3<<bits | 2
	values := bytes.Repeat([]byte{1, 0, 0, 0}, 10) // 72 bytes of body, so 96
	row := func(e *groupEnd) []uint64 { return e.Marks()[e.group.SumMarks+2*e.group.Row:] }
	of := func(generation, low uint64) uint64 { return generation<<32 | low }
	for _, c := range []struct {
		name    string
		part    func(p *wire.Part)
		packet  func(p *Packet)
		memory  func(e *groupEnd)
		verdict Verdict
		reason  wire.Reason
		changed bool
		result  bool // the packet is a result
	}{
		{name: "good", verdict: Drop, reason: wire.Added, changed: true},
		{name: "good result", result: true, verdict: TX, reason: wire.ResultPassed, changed: true},

		{name: "no such token", packet: func(p *Packet) { p.SetFrame(8, 1) }, verdict: Pass, reason: wire.UpGroup},
		{name: "closed", memory: func(e *groupEnd) { e.group.Token = 0 }, verdict: Pass, reason: wire.UpGroup},
		{name: "another's", memory: func(e *groupEnd) { e.group.Token++ }, verdict: Pass, reason: wire.UpGroup},
		{name: "no such slot", memory: func(e *groupEnd) { e.ends.tokens[groupToken] = 2 }, verdict: Pass, reason: wire.UpGroup},
		{name: "no keys", memory: func(e *groupEnd) { e.group.Job = 2 }, verdict: Pass, reason: wire.UpGroup},
		{name: "no sums", memory: func(e *groupEnd) { e.group.Sums = 9 }, verdict: Pass, reason: wire.UpGroup},
		{name: "no results", result: true, memory: func(e *groupEnd) { e.group.Results = 9 }, verdict: Pass, reason: wire.UpGroup},
		{name: "no sums matter not to a result", result: true, memory: func(e *groupEnd) { e.group.Sums = 9 }, verdict: TX, reason: wire.ResultPassed, changed: true},

		{name: "a stream", packet: func(p *Packet) { p.SetFrame(16, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "a flag", packet: func(p *Packet) { p.SetFrame(48, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "a hop", packet: func(p *Packet) { p.SetFrame(49, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "a length", packet: func(p *Packet) { p.SetFrame(28, 97) }, verdict: Drop, reason: wire.Malformed},
		{name: "no values", packet: func(p *Packet) { p.SetFrame(28, 32) }, verdict: Drop, reason: wire.Malformed},
		{name: "two frames", packet: func(p *Packet) { p.Frame(append(bytes.Clone(p.Payload()), p.Payload()...)) }, verdict: Pass, reason: wire.UpShape},
		{name: "a back", packet: func(p *Packet) { p.SetFrame(24, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "an operation", packet: func(p *Packet) { p.SetFrame(64+6, 3) }, verdict: Drop, reason: wire.Malformed},
		{name: "a width", packet: func(p *Packet) { p.SetFrame(64+7, 2) }, verdict: Drop, reason: wire.Malformed},
		{name: "a reducer", packet: func(p *Packet) { p.SetFrame(64+8, 32) }, verdict: Drop, reason: wire.Malformed},
		{name: "a member", packet: func(p *Packet) { p.SetFrame(64+9, 32) }, verdict: Drop, reason: wire.Malformed},
		{name: "a member of a result", result: true, packet: func(p *Packet) { p.SetFrame(64+9, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "zeros", packet: func(p *Packet) { p.SetFrame(64+10, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "more zeros", packet: func(p *Packet) { p.SetFrame(64+31, 1) }, verdict: Drop, reason: wire.Malformed},
		{name: "half a value", packet: func(p *Packet) { p.SetFrame(64+4, 42) }, verdict: Drop, reason: wire.Malformed},
		{name: "fewer values than length", packet: func(p *Packet) { p.SetFrame(64+4, 32) }, verdict: Drop, reason: wire.Malformed},
		{name: "more values", packet: func(p *Packet) { p.SetFrame(64+4, 68) }, verdict: Drop, reason: wire.Malformed},

		{name: "no such member", part: func(p *wire.Part) { p.Member = 4 }, verdict: Drop, reason: wire.PartStray},
		{name: "this member", part: func(p *wire.Part) { p.Member = rank }, verdict: Drop, reason: wire.PartStray},
		{name: "another reducer", part: func(p *wire.Part) { p.Reducer = 2 }, verdict: Drop, reason: wire.PartStray},
		{name: "a result of ours", result: true, part: func(p *wire.Part) { p.Reducer = rank }, verdict: Drop, reason: wire.PartStray},
		{name: "a result of nobody", result: true, part: func(p *wire.Part) { p.Reducer = 4 }, verdict: Drop, reason: wire.PartStray},
		{name: "generation 0", packet: func(p *Packet) { p.SetFrame(20, 2) }, verdict: Drop, reason: wire.PartStray},
		{name: "tag", packet: func(p *Packet) { p.SetFrame(64+32, 2) }, verdict: Drop, reason: wire.PartTag},
		{name: "tag of a result", result: true, packet: func(p *Packet) { p.SetFrame(64+32, 2) }, verdict: Drop, reason: wire.PartTag},
		{name: "a part as a result", packet: func(p *Packet) { p.SetFrame(4, 9); p.SetFrame(64+8, 3, 0) }, verdict: Drop, reason: wire.PartTag},
		{name: "no place for this CPU", memory: func(e *groupEnd) { e.group.Row = wire.RowCPU + 1 }, verdict: Pass, reason: wire.UpGroup},
		{name: "no marks", memory: func(e *groupEnd) { e.group.SumMarks = 1020 }, verdict: Pass, reason: wire.UpGroup},
		{name: "no marks of results", result: true, memory: func(e *groupEnd) { e.group.ResultMarks = 1020 }, verdict: Pass, reason: wire.UpGroup},

		{name: "another call", memory: func(e *groupEnd) { row(e)[wire.RowWhat] = of(3, 6) }, verdict: Pass, reason: wire.PartDiffers},
		{name: "the same call", memory: func(e *groupEnd) { row(e)[wire.RowWhat] = of(3, 5) }, verdict: Drop, reason: wire.Added, changed: true},
		{name: "an older call", memory: func(e *groupEnd) { row(e)[wire.RowWhat] = of(2, 6) }, verdict: Drop, reason: wire.Added, changed: true},
		{name: "a newer one", memory: func(e *groupEnd) { row(e)[wire.RowWhat] = of(4, 5) }, verdict: Drop, reason: wire.PartStray},
		{name: "a newer claim", memory: func(e *groupEnd) { row(e)[wire.RowWhat], row(e)[wire.RowClaimed] = of(3, 5), of(4, 0) }, verdict: Drop, reason: wire.PartStray},
		{
			name: "claimed", verdict: Drop, reason: wire.PartBefore,
			memory: func(e *groupEnd) { row(e)[wire.RowWhat], row(e)[wire.RowClaimed] = of(3, 5), of(3, 1<<2) },
		},
		{
			name: "claimed, and its result is being written", verdict: Drop, reason: wire.PartBefore,
			memory: func(e *groupEnd) {
				row(e)[wire.RowWhat], row(e)[wire.RowClaimed], row(e)[wire.RowResult] = of(3, 5), of(3, 1<<2), of(3, wire.MarkWriting)
			},
		},
		{
			name: "claimed, and the result is there", verdict: TX, reason: wire.ResultAgain, changed: true,
			memory: func(e *groupEnd) {
				row(e)[wire.RowWhat], row(e)[wire.RowClaimed], row(e)[wire.RowResult] = of(3, 5), of(3, 1<<2), of(3, wire.MarkStored)
			},
		},
		{
			name: "claimed, and an older result is there", verdict: Drop, reason: wire.PartBefore,
			memory: func(e *groupEnd) {
				row(e)[wire.RowWhat], row(e)[wire.RowClaimed], row(e)[wire.RowResult] = of(3, 5), of(3, 1<<2), of(2, wire.MarkStored)
			},
		},
		{
			name: "the last one", verdict: TX, reason: wire.BlockReduced, changed: true,
			memory: func(e *groupEnd) { row(e)[wire.RowApplied] = of(3, 0xb) },
		},
		{
			name: "the last one, and user space completes it", verdict: Drop, reason: wire.Added, changed: true,
			memory: func(e *groupEnd) {
				row(e)[wire.RowApplied], row(e)[wire.RowResult] = of(3, 0xb), of(3, wire.MarkWriting)
			},
		},
		{
			name: "the last one, and nowhere to send it", verdict: Pass, reason: wire.UpHop, changed: true,
			memory: func(e *groupEnd) { row(e)[wire.RowApplied], e.group.Hop = of(3, 0xb), 1 },
		},

		{name: "an older result", result: true, memory: func(e *groupEnd) { e.Marks()[e.group.ResultMarks+3<<bits+2] = of(2, wire.MarkStored) }, verdict: TX, reason: wire.ResultPassed, changed: true},
		{name: "one that is here", result: true, memory: func(e *groupEnd) { e.Marks()[e.group.ResultMarks+3<<bits+2] = of(3, wire.MarkStored) }, verdict: Drop, reason: wire.ResultBefore},
		{name: "one that is being written", result: true, memory: func(e *groupEnd) { e.Marks()[e.group.ResultMarks+3<<bits+2] = of(3, wire.MarkWriting) }, verdict: Drop, reason: wire.ResultBefore},
		{name: "a newer one is here", result: true, memory: func(e *groupEnd) { e.Marks()[e.group.ResultMarks+3<<bits+2] = of(4, wire.MarkStored) }, verdict: Drop, reason: wire.ResultBefore},
		{name: "behind us is its reducer", result: true, part: func(p *wire.Part) { p.Reducer = 2 }, verdict: Drop, reason: wire.ResultStored, changed: true},
		{name: "no hop", result: true, memory: func(e *groupEnd) { e.group.Hop = 1 }, verdict: Pass, reason: wire.UpHop, changed: true},
		{name: "user space sends", result: true, memory: func(e *groupEnd) { e.SetAnswer(wire.AnswerUser) }, verdict: Pass, reason: wire.UpHop, changed: true},
		{name: "by tc", result: true, memory: func(e *groupEnd) { e.SetAnswer(wire.AnswerTC) }, verdict: Pass, reason: wire.ResultPassed, changed: true},
		{name: "by another interface", result: true, memory: func(e *groupEnd) { e.group.Hops[0].Interface = 5 }, verdict: Redirect, reason: wire.ResultPassed, changed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newGroupEnd(t, Config{}, rank, members, bits)
			kind, p := wire.Reduce, wire.Part{What: 5, Reducer: rank, Member: 2}
			if c.result {
				kind, p = wire.Reduced, wire.Part{What: 5, Reducer: 3}
			}
			if c.part != nil {
				c.part(&p)
			}
			packet := NewPacket(partFrame(t, kind, block, p, values)).Ports(7117, 7117)
			if c.packet != nil {
				c.packet(packet)
			}
			if c.memory != nil {
				c.memory(e)
			}
			before, was := e.state(), clone(packet)
			verdict, out := e.Handle(0, packet.Bytes)
			if verdict != c.verdict || e.reasons[c.reason] != 1 {
				t.Errorf("%v, reasons %v", verdict, maps.Collect(func(yield func(wire.Reason, uint64) bool) {
					for i, n := range e.reasons {
						if n != 0 && !yield(wire.Reason(i), n) {
							return
						}
					}
				}))
			}
			after := e.state()
			if was := before == after; was == c.changed && c.reason != wire.PartStray && c.reason != wire.PartBefore && c.reason != wire.ResultAgain {
				t.Errorf("memory changed: %v", !was)
			}
			if verdict == Pass && c.reason != wire.UpHop && c.reason != wire.ResultPassed && !bytes.Equal(out, was) {
				t.Error("what goes up was changed")
			}
		})
	}
}

// allMember is a member of a simulated all-reduce, and what its user space knows.
type allMember struct {
	*groupEnd
	call  int
	sent  []int // per reducer: blocks of the plan that its part was sent of, and that it has the result of
	taken []int
}

// allBlock is a block of the plan, which all members make alike.
type allBlock struct {
	call   int
	number uint32
	part   wire.Part
	values [][]byte // by member
	want   []byte
}

// allReduce is members and a network between them that loses, doubles, delays and reorders.
type allReduce struct {
	t       *testing.T
	rng     *rand.Rand
	bits    int
	plan    [][]allBlock // by reducer
	calls   int
	members []*allMember
	flying  [][]byte
	old     [][]byte // everything that ever flew, to come again
}

func newAllReduce(t *testing.T, seed uint64) *allReduce {
	rng := rand.New(rand.NewPCG(seed, 7))
	n := 2 + rng.IntN(4)
	a := &allReduce{t: t, rng: rng, bits: 2 + rng.IntN(2), plan: make([][]allBlock, n), calls: 3 + rng.IntN(4)}
	start := 0
	for call := range a.calls {
		op, wide := uint8(rng.IntN(3)), uint8(rng.IntN(2))
		blocks := rng.IntN(8 * n)
		for b := range blocks {
			r := (start + b) % n
			size := 64
			if b == blocks-1 {
				size = 8 * (1 + rng.IntN(8))
			}
			block := allBlock{call: call, number: uint32(1<<a.bits + len(a.plan[r])), part: wire.Part{What: uint32(call), Bytes: uint16(size), Op: op, Wide: wide, Reducer: uint8(r)}}
			for range n {
				v := make([]byte, size)
				for i := range v {
					v[i] = byte(rng.Uint32())
				}
				if block.values = append(block.values, v); block.want == nil {
					block.want = bytes.Clone(v)
				} else {
					together(block.want, v, op, wide)
				}
			}
			a.plan[r] = append(a.plan[r], block)
		}
		start = (start + blocks) % n
	}
	for rank := range n {
		e := newGroupEnd(t, Config{CPUs: 2}, rank, n, a.bits)
		if rng.IntN(4) == 0 {
			e.group.Hop = 1 // programs can't send to the next one
		}
		if rng.IntN(6) == 0 {
			e.SetAnswer(wire.AnswerUser)
		}
		a.members = append(a.members, &allMember{groupEnd: e, sent: make([]int, n), taken: make([]int, n)})
	}
	return a
}

func (a *allReduce) send(packet []byte) {
	a.flying = append(a.flying, packet)
	a.old = append(a.old, bytes.Clone(packet))
}

func (a *allReduce) sendFrame(from, to int, frame []byte) {
	a.send(NewPacket(frame).Addresses(memberAddress(from), memberAddress(to)).Bytes)
}

// deliver has a packet arrive.
func (a *allReduce) deliver(packet []byte) {
	m := a.members[packet[33]]
	switch verdict, out := m.Handle(a.rng.IntN(2), packet); verdict {
	case TX:
		a.send(out)
	case Pass:
		a.up(int(packet[33]), int(packet[29]), bytes.Clone(PayloadOf(out)))
	}
}

// up is what user space does with what programs have stored and can't send.
func (a *allReduce) up(rank, from int, frame []byte) {
	m, next := a.members[rank], (rank+1)%len(a.members)
	h, p, _, err := wire.ParsePart(frame)
	if err != nil {
		a.t.Fatal(err)
	}
	if h.Kind == wire.Reduced {
		a.sendFrame(rank, next, frame)
		return
	}
	b := &a.plan[rank][h.Seq-1<<a.bits]
	row := m.row(b.number)
	if row.marks[wire.RowResult] != markOf(b.number>>a.bits, wire.MarkStored) {
		a.t.Fatalf("a part of block %d came up: %#x", b.number, row.marks)
	}
	if h.SSet != 0 {
		next = from
	}
	p.Member = 0
	a.sendFrame(rank, next, partFrame(a.t, wire.Reduced, b.number, p, row.element(wire.RowResult)[:p.Bytes]))
}

type modelRow struct {
	marks []uint64
	data  []byte
}

func (r *modelRow) element(i int) []byte { return r.data[i*wire.ChunkSize:][:wire.ChunkSize] }

func (m *allMember) row(block uint32) *modelRow {
	at := block & (1<<m.group.Bits - 1) * m.group.Row
	return &modelRow{m.sums.Marks[at:][:m.group.Row], m.sums.Data[at*wire.ChunkSize:]}
}

// own adds a member's part of a block that it reduces itself.
func (a *allReduce) own(rank int, b *allBlock) {
	m := a.members[rank]
	row, generation := m.row(b.number), b.number>>a.bits
	set := func(mark, low uint32) uint64 {
		if generationOf(row.marks[mark]) != generation {
			row.marks[mark] = markOf(generation, 0)
		}
		row.marks[mark] |= uint64(low)
		return row.marks[mark]
	}
	if generationOf(row.marks[wire.RowWhat]) != generation {
		row.marks[wire.RowWhat] = markOf(generation, b.part.What)
	}
	set(wire.RowClaimed, 1<<rank)
	last := int(m.group.Row) - 1
	copy(row.element(last), b.values[rank])
	row.marks[last] = markOf(generation, 0)
	set(wire.RowApplied, 1<<rank)
	a.repair(rank, b)
}

// repair completes a block that lacks nothing but its result.
func (a *allReduce) repair(rank int, b *allBlock) {
	m := a.members[rank]
	row, generation := m.row(b.number), b.number>>a.bits
	if row.marks[wire.RowApplied] != markOf(generation, 1<<len(a.members)-1) || generationOf(row.marks[wire.RowResult]) == generation {
		return
	}
	var all []byte
	for i := wire.RowCPU; i < int(m.group.Row); i++ {
		if generationOf(row.marks[i]) != generation {
			continue
		}
		if v := row.element(i)[:b.part.Bytes]; all == nil {
			all = bytes.Clone(v)
		} else {
			together(all, v, b.part.Op, b.part.Wide)
		}
	}
	copy(row.element(wire.RowResult), all)
	row.marks[wire.RowResult] = markOf(generation, wire.MarkStored)
	at := uint32(rank)<<a.bits | b.number&(1<<a.bits-1)
	copy(m.results.Data[at*wire.ChunkSize:], all)
	m.results.Marks[at] = markOf(generation, wire.MarkStored)
	a.sendFrame(rank, (rank+1)%len(a.members), partFrame(a.t, wire.Reduced, b.number, b.part, all))
}

// act is a member's user space, once. It says whether the member has all.
func (a *allReduce) act(rank int) bool {
	m, done := a.members[rank], true
	for r, plan := range a.plan {
		for m.taken[r] < m.sent[r] {
			b := &plan[m.taken[r]]
			at := uint32(r)<<a.bits | b.number&(1<<a.bits-1)
			if m.results.Marks[at] != markOf(b.number>>a.bits, wire.MarkStored) {
				break
			}
			if got := m.results.Data[at*wire.ChunkSize:][:b.part.Bytes]; !bytes.Equal(got, b.want) {
				a.t.Fatalf("member %d has of block %d of %d (operation %d)\n%x, not\n%x", rank, b.number, r, b.part.Op, got, b.want)
			}
			m.taken[r]++
		}
		for m.sent[r] < len(plan) && plan[m.sent[r]].call <= m.call && m.sent[r]-m.taken[r] < 1<<a.bits/2 {
			b := &plan[m.sent[r]]
			m.sent[r]++
			if r == rank {
				a.own(rank, b)
				continue
			}
			a.part(rank, b)
		}
		again := a.rng.IntN(8) == 0
		for i := m.taken[r]; i < m.sent[r] && again; i++ {
			if r == rank {
				a.repair(rank, &plan[i])
			} else {
				a.part(rank, &plan[i])
			}
		}
		done = done && (m.taken[r] == len(plan) || plan[m.taken[r]].call > m.call)
	}
	if done && m.call < a.calls {
		m.call++
	}
	return m.call == a.calls
}

func (a *allReduce) part(rank int, b *allBlock) {
	p := b.part
	p.Member = uint8(rank)
	a.sendFrame(rank, int(p.Reducer), partFrame(a.t, wire.Reduce, b.number, p, b.values[rank]))
}

// Members come to the same sums, call after call and in few slots, over a network that loses, doubles and reorders, and brings
// packets of long ago again. Some programs can't send, and user space does.
func TestAllReduce(t *testing.T) {
	runs := uint64(24)
	if testing.Short() {
		runs = 10
	}
	var all [wire.Reasons]uint64
	for seed := range runs {
		a := newAllReduce(t, seed)
		for step := 0; ; step++ {
			if step == 200_000 {
				t.Fatalf("seed %d: no end: %d in flight", seed, len(a.flying))
			}
			if done := slices.IndexFunc(a.members, func(m *allMember) bool { return m.call < a.calls }) < 0; done {
				break
			}
			if a.rng.IntN(4) == 0 || len(a.flying) == 0 {
				a.act(a.rng.IntN(len(a.members)))
				continue
			}
			if a.rng.IntN(6) == 0 {
				a.deliver(bytes.Clone(a.old[a.rng.IntN(len(a.old))]))
				continue
			}
			i := a.rng.IntN(min(len(a.flying), 6))
			packet := a.flying[i]
			a.flying = slices.Delete(a.flying, i, i+1)
			switch a.rng.IntN(12) {
			case 0: // lost
			case 1:
				a.deliver(bytes.Clone(packet))
				fallthrough
			default:
				a.deliver(packet)
			}
		}
		for _, m := range a.members {
			for i, n := range m.reasons {
				all[i] += n
			}
		}
	}
	for _, reason := range []wire.Reason{
		wire.UpHop, wire.PartStray, wire.PartBefore, wire.Added, wire.BlockReduced, wire.ResultAgain, wire.ResultStored, wire.ResultBefore, wire.ResultPassed,
	} {
		if all[reason] < runs {
			t.Errorf("%v: %d times only", reason, all[reason])
		}
	}
	for _, reason := range []wire.Reason{wire.Malformed, wire.PartTag, wire.PartDiffers, wire.Torn, wire.UpGroup} {
		if all[reason] != 0 {
			t.Errorf("%v: %d times", reason, all[reason])
		}
	}
}

// The operations at their edges, by hand.
func TestTogether(t *testing.T) {
	for _, c := range []struct {
		op, wide uint8
		a, b     uint64
		want     uint64
	}{
		{wire.OpSum, 0, 0x00000001_ffffffff, 0x00000001_00000001, 0x00000002_00000000}, // nothing is carried into the next one
		{wire.OpSum, 0, 0x7fffffff_80000000, 0x00000001_ffffffff, 0x80000000_7fffffff}, // both wrap
		{wire.OpSum, 1, 0x7fffffff_ffffffff, 1, 0x80000000_00000000},
		{wire.OpMin, 0, 0x80000000_7fffffff, 0x7fffffff_80000000, 0x80000000_80000000},
		{wire.OpMax, 0, 0x80000000_7fffffff, 0x7fffffff_80000000, 0x7fffffff_7fffffff},
		{wire.OpMin, 0, 0xffffffff_00000000, 0x00000000_ffffffff, 0xffffffff_ffffffff},
		{wire.OpMin, 1, 0x80000000_00000000, 0x7fffffff_ffffffff, 0x80000000_00000000},
		{wire.OpMax, 1, 0x80000000_00000000, 0x7fffffff_ffffffff, 0x7fffffff_ffffffff},
		{wire.OpMax, 1, 0xffffffff_ffffffff, 0, 0},
	} {
		a, b := le.AppendUint64(nil, c.a), le.AppendUint64(nil, c.b)
		if together(a, b, c.op, c.wide); le.Uint64(a) != c.want {
			t.Errorf("operation %d of %x and %x, wide %d: %x, not %x", c.op, c.a, c.b, c.wide, le.Uint64(a), c.want)
		}
	}
}
