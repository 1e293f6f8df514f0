// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

// Whatever comes, nothing falls over; and as long as it has no right tag, nothing is added or stored.
func FuzzHandle(f *testing.F) {
	nodes := direct(f, 3)
	formed, ends := formNodes(f, nodes)
	e := ends[0].(*end)
	tags, other := wire.NewTags([16]byte{}), wire.NewTags([16]byte{1})
	seed := func(kind wire.Kind, number uint32, p wire.Part, values int, tags *wire.Tags) {
		b, err := wire.PutPart(make([]byte, wire.FrameSize), kind, formed.Token, number, p, make([]byte, values), tags)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, false)
		f.Add(b, true)
	}
	room := uint32(1) << e.bits
	seed(wire.Reduce, room, wire.Part{Member: 1}, 4, tags)
	seed(wire.Reduce, 2*room, wire.Part{Member: 2, Wide: 1, Op: wire.OpMax}, wire.ChunkSize, tags)
	seed(wire.Reduce, room, wire.Part{Member: 1}, 4, other)
	seed(wire.Reduced, room, wire.Part{Reducer: 1}, 100, tags)
	seed(wire.Reduced, 1<<32-1, wire.Part{Reducer: 2}, 100, tags)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, frame []byte, seal bool) {
		frame = slices.Clone(frame)
		if len(frame) >= 16 {
			// The token of the group that is open, which no fuzzer finds.
			h := make([]byte, 8)
			for i := range h {
				h[i] = byte(formed.Token >> (8 * i))
			}
			copy(frame[8:], h)
		}
		_, _, _, err := wire.ParsePart(frame)
		genuine := err == nil && tags.OpenPart(frame)
		if seal && err == nil {
			tags.SealPart(frame)
			genuine = true
		}
		before := nodes[0].Stats().Reasons
		sums, results := slices.Clone(e.sums.marks), slices.Clone(e.results.marks)
		nodes[0].Handle(frame, netip.AddrPort{})
		after := nodes[0].Stats().Reasons
		var total uint64
		for i := range after {
			total += after[i] - before[i]
		}
		if total == 0 {
			t.Error("it was not counted")
		}
		if !genuine && (!slices.Equal(sums, e.sums.marks) || !slices.Equal(results, e.results.marks)) {
			t.Error("it changed something")
		}
	})
}

// A part that programs have added and whose block they could not complete: whether it goes up, or nothing does, the
// block is completed. So it is if they have not stored this member's own result.
func TestProgramsLeave(t *testing.T) {
	for name, tc := range map[string]struct {
		up     bool // the part goes up
		result bool // the result was made, and not stored for this member's call
	}{"goes up": {up: true}, "nothing goes up": {}, "result alone": {result: true}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, faults{})
			hosts := l.hosts(2, setting{}, kinds["kernel"])
			_, ends := l.form(hosts, FormSpec{})
			e := ends[0].(*end)
			at := make(chan uint64, 10)
			l.mu.Lock()
			l.drop = func(packet []byte, to *host) bool {
				if to != hosts[0] || payload(packet)[4] != byte(wire.Reduce) {
					return false
				}
				frame := slices.Clone(payload(packet))
				h, p, values, err := wire.ParsePart(frame)
				if err != nil {
					t.Error(err)
					return true
				}
				generation := uint64(h.Seq>>e.bits) << 32
				first := int(h.Seq&(1<<e.bits-1)) * e.row
				row := e.sums.marks[first:][:e.row]
				if atomic.LoadUint64(&row[wire.RowClaimed]) == generation|3 {
					return true // it comes again
				}
				// What programs do up to their tail call, once this member's part is there.
				if atomic.LoadUint64(&row[wire.RowApplied]) != generation|1 {
					return true
				}
				copy(e.sums.at(first+wire.RowCPU+1), values)
				atomic.StoreUint64(&row[wire.RowCPU+1], generation)
				atomic.StoreUint64(&row[wire.RowClaimed], generation|3)
				if tc.result {
					into := e.sums.at(first + wire.RowResult)
					copy(into, e.sums.at(first + e.row - 1)[:p.Bytes])
					combineBytes(Op(p.Op), p.Wide != 0, into[:p.Bytes], values)
					atomic.StoreUint64(&row[wire.RowResult], generation|wire.MarkStored)
				}
				atomic.StoreUint64(&row[wire.RowApplied], generation|3)
				at <- generation
				if tc.up {
					hosts[0].Handle(frame, netip.AddrPort{})
				}
				return true
			}
			l.mu.Unlock()
			for i := range 3 {
				reduce(t, ends, 5, Op(i), i%2 == 0, uint64(i))
			}
			if len(at) != 2 { // the first and the third block are this member's
				t.Errorf("it happened %d times", len(at))
			}
		})
	}
}

// Values add up as they do in programs, whatever lies where.
func TestCombineBytes(t *testing.T) {
	for _, op := range []Op{Sum, Min, Max} {
		for _, wide := range []bool{false, true} {
			for shift := range 3 {
				c := makeCall(2, 100, op, wide, uint64(shift))
				a := slices.Concat(make([]byte, shift), c.vecs[0].values(0, 100, new([wire.ChunkSize]byte)))[shift:]
				b := slices.Concat(make([]byte, 2*shift), c.vecs[1].values(0, 100, new([wire.ChunkSize]byte)))[2*shift:]
				combineBytes(op, wide, a, b)
				for i := range c.vecs {
					c.vecs[i].set(0, a)
				}
				c.check(t)
			}
		}
	}
}
