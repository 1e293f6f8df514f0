// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/wire"
)

// BenchmarkRunBroadcast reports what full chunks and answers take in the programs: by test runs over distinct
// frames, less what an empty program takes. store is a chunk that comes first and is passed on, pass one that is here
// already, answer one that is here and is cut to an answer; collect an answer that clocks nothing, pump one that becomes
// the next chunk, again one that is known.
func BenchmarkRunBroadcast(b *testing.B) {
	const chunks = 2048
	r := newRig(b, shuffle.Limits{Streams: 1, Targets: 1, Outgoing: 1, Jobs: 1, Regions: 1, Casts: 1, Chunks: 2 * chunks})
	onCPU(b, 0)
	ends, marks := withBroadcasts(r)
	r.newContent(0, chunks)
	r.newContent(1, chunks)
	tags := wire.NewTags([16]byte{1})
	r.check(r.SetJob(0, tags.Job()))
	token := castToken(0)
	r.check(r.maps["tokens"].Put(token, uint32(0)))
	region, cast := &ends.Regions[0], &ends.Casts[0]
	*region = wire.Region{Token: token, Chunks: chunks, Hops: [2]wire.Hop{hopTo(3, false, testRunInterface)}}
	var down, up [][]byte
	for i := range uint32(chunks) {
		f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: token, Seq: i}, wire.Chunk{Place: i, Total: chunks, Chain: wire.ChainAll}, castData(int(i), wire.ChunkSize), tags)
		r.check(err)
		down = append(down, model.NewPacket(f).Ports(shuffle.Port, shuffle.Port).Bytes)
		f = append([]byte(nil), f...)
		wire.PassChunk(f, 0, 0, tags)
		up = append(up, model.NewPacket(wire.AnswerChunk(f, tags)).Ports(shuffle.Port, shuffle.Port).Bytes)
	}
	run := r.programs["quern_dispatch"]
	var emptyDown, emptyUp, store, pass, answer, collect, pump, again times
	for b.Loop() {
		emptyDown.round(b, r.programs["quern_pass"], down)
		emptyUp.round(b, r.programs["quern_pass"], up)
		clear(marks)
		region.Hops[0].Tail = 0
		if v := store.round(b, run, down); v[model.TX] != chunks {
			b.Fatal(v)
		}
		pass.round(b, run, down)
		region.Hops[0].Tail = 1
		answer.round(b, run, down)
		if wire.MarkCount(&marks[0]) != chunks {
			b.Fatal("not all are stored")
		}
		for _, flags := range []uint32{0, wire.FlagPump} {
			clear(marks)
			*cast = wire.Cast{
				Token: token, Content: 1, Chunks: chunks, Chains: 1, Flags: flags, Total: chunks, Bytes: wire.ChunkSize,
				Want: [wire.MaxChains]uint64{1}, Heads: [wire.MaxChains]wire.Hop{hopTo(9, false, testRunInterface)},
			}
			if flags == 0 {
				collect.round(b, run, up)
			} else if v := pump.round(b, run, up); v[model.TX] != chunks {
				b.Fatal(v)
			}
		}
		if again.round(b, run, up); cast.Done != chunks || cast.Pumped != chunks {
			b.Fatalf("%d done, %d pumped", cast.Done, cast.Pumped)
		}
	}
	per := func(t, less times) float64 { return float64(t.sum()-less.sum()) / chunks }
	b.ReportMetric(per(store, emptyDown), "store-ns")
	b.ReportMetric(per(pass, emptyDown), "pass-ns")
	b.ReportMetric(per(answer, emptyDown), "answer-ns")
	b.ReportMetric(per(collect, emptyUp), "collect-ns")
	b.ReportMetric(per(pump, emptyUp), "pump-ns")
	b.ReportMetric(per(again, emptyUp), "again-ns")
	b.ReportMetric(float64(emptyDown.sum())/chunks, "empty-ns")
	b.ReportMetric(0, "ns/op")
}
