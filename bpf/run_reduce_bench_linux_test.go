// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// BenchmarkRunReduce reports what full blocks take in the programs: by test runs over distinct frames, less what an empty
// program takes. first is a part that is the first one of its block on this CPU, add one that is added to what is there, complete-n one that
// makes a block whole that n CPUs and user space have added to, before one of a block that is not whole, again one that gets the result back, stored a
// result that is stored and sent on, known one that is here already.
func BenchmarkRunReduce(b *testing.B) {
	for how := range uint8(6) {
		op, wide := how/2, how%2
		if op == wire.OpMax {
			continue // as Min
		}
		b.Run(fmt.Sprintf("op=%s/bytes=%d", []string{"sum", "min"}[op], 4<<wide), func(b *testing.B) { benchReduce(b, op, wide) })
	}
}

func benchReduce(b *testing.B, op, wide uint8) {
	const (
		bits    = 7
		blocks  = 1 << bits
		cpus    = 8 // that elements are for
		row     = wire.RowCPU + cpus + 1
		members = 8
	)
	r := newRig(b, shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Jobs: 1, Groups: 1, Chunks: blocks * (row + members)})
	onCPU(b, 0)
	groups, marks := withGroups(r)
	e := reduceEnd{&groups[0], marks, r.newContent(0, blocks*row), r.newContent(1, blocks*members)}
	tags := wire.NewTags([16]byte{1})
	r.check(r.SetJob(0, tags.Job()))
	r.check(r.maps["tokens"].Put(uint64(partToken), uint32(0)))
	group := wire.Group{
		Token: partToken, Results: 1, ResultMarks: blocks * row, Row: row, Bits: bits, Members: members,
		Hops: [2]wire.Hop{hopTo(3, false, testRunInterface)},
	}
	packets := func(kind wire.Kind, member, reducer uint8) (all [][]byte) {
		for i := range uint32(blocks) {
			p := wire.Part{What: i, Op: op, Wide: wide, Reducer: reducer, Member: member}
			f, err := wire.PutPart(make([]byte, wire.FrameSize), kind, partToken, blocks+i, p, partValues(wire.ChunkSize, wide, member, uint64(i)), tags)
			r.check(err)
			all = append(all, partPacket(f, false))
		}
		return all
	}
	one, two, result := packets(wire.Reduce, 1, 0), packets(wire.Reduce, 2, 0), packets(wire.Reduced, 0, 3)
	// What others have added: all parts but those.
	others := func(n int) {
		for i := range uint32(blocks) {
			m := e.rowMarks(i)
			m[wire.RowWhat], m[wire.RowClaimed], m[wire.RowApplied] = 1<<32|uint64(i), 1<<32|0xf9, 1<<32|0xf9
			for at := range uint32(n) {
				at = wire.RowCPU + 1 + at
				if at == wire.RowCPU+uint32(n) {
					at = row - 1 // user space's
				}
				m[at] = 1 << 32
			}
		}
	}
	run, empty := r.programs["quern_dispatch"], times{}
	var first, add, before, again, stored, known times
	complete := map[int]*times{1: {}, 2: {}, 4: {}, 8: {}}
	reset := func() {
		clear(marks)
		*e.group = group
	}
	empty = nil
	for b.Loop() {
		empty.round(b, r.programs["quern_pass"], one)
		reset()
		first.round(b, run, one)
		add.round(b, run, two)
		if v := before.round(b, run, two); v[model.Drop] != blocks {
			b.Fatal(v)
		}
		for n, t := range complete {
			reset()
			others(n)
			var unmeasured times
			unmeasured.round(b, run, one)
			if *t = (*t)[:len(*t):len(*t)]; len(*t) == 0 {
				*t = nil
			}
			if v := t.round(b, run, two); v[model.TX] != blocks || e.group.Reduced != blocks {
				b.Fatal(v, *e.group)
			}
		}
		if v := again.round(b, run, one); v[model.TX] != blocks {
			b.Fatal(v)
		}
		reset()
		if v := stored.round(b, run, result); v[model.TX] != blocks {
			b.Fatal(v)
		}
		known.round(b, run, result)
	}
	per := func(t times) float64 { return float64(t.sum()-empty.sum()) / blocks }
	b.ReportMetric(per(first), "first-ns")
	b.ReportMetric(per(add), "add-ns")
	b.ReportMetric(per(before), "before-ns")
	for n, t := range complete {
		b.ReportMetric(per(*t), fmt.Sprintf("complete-%d-ns", n))
	}
	b.ReportMetric(per(again), "again-ns")
	b.ReportMetric(per(stored), "stored-ns")
	b.ReportMetric(per(known), "known-ns")
	b.ReportMetric(float64(empty.sum())/blocks, "empty-ns")
	b.ReportMetric(0, "ns/op")
}
