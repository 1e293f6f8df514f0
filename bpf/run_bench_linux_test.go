// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/model"
	"github.com/quernmr/quern/shuffle/pairs"
	"github.com/quernmr/quern/shuffle/wire"
)

// foldBench is frames of some keys, each key once.
type foldBench struct {
	shape   wire.Shape
	keys    int
	ordered bool
	op      uint8
}

func (f foldBench) String() string {
	order := "random"
	if f.ordered {
		order = "hash"
	}
	width := 4
	if f.shape&wire.Wide != 0 {
		width = 8
	}
	return fmt.Sprintf("key=%d/lanes=%dx%d/keys=%d/order=%s", f.shape.KeyBytes(), f.shape.Lanes(), width, f.keys, order)
}

// frames returns packets of streams 0 and on, each of at most wire.Segment frames.
func (f foldBench) frames(tags *wire.Tags) (packets [][]byte, pairsIn int) {
	type hashed struct {
		hash uint64
		key  uint64
	}
	seed := pairs.Seed{A: 3, B: 5}
	n := f.shape.KeyBytes()
	key := make([]byte, n)
	all := make([]hashed, f.keys)
	for i := range all {
		binary.BigEndian.PutUint64(key[n-8:], uint64(i)*0x9e3779b97f4a7c15)
		all[i] = hashed{seed.HashBytes(key), uint64(i) * 0x9e3779b97f4a7c15}
	}
	if f.ordered {
		slices.SortFunc(all, func(a, b hashed) int {
			if a.hash < b.hash {
				return -1
			}
			return 1
		})
	} else {
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	var b wire.Builder
	buf := make([]byte, wire.FrameSize)
	b.Reset(buf, f.shape)
	lanes := make([]int64, f.shape.Lanes())
	emit := func() {
		i := len(packets)
		h := wire.Head{Token: uint64(1 + i/wire.Segment), Stream: uint32(i / wire.Segment), Seq: uint32(i % wire.Segment)}
		packets = append(packets, model.NewPacket(b.Finish(h, tags)).Bytes)
		b.Reset(buf, f.shape)
	}
	// Few keys come many times.
	for once := len(all); len(all) < 100_000; {
		all = append(all, all[:once]...)
	}
	for i, h := range all {
		binary.BigEndian.PutUint64(key[n-8:], h.key)
		for l := range lanes {
			lanes[l] = int64(i)
		}
		if !b.Add(h.hash, key, lanes) {
			emit()
			b.Add(h.hash, key, lanes)
		}
	}
	if b.Count() > 0 {
		emit()
	}
	return packets, len(all)
}

// times are what each packet took; each is the least of all rounds, since others use
// the machine too.
type times []time.Duration

// round runs a program once for each packet.
func (t *times) round(b testing.TB, p *ebpf.Program, packets [][]byte) (verdicts [4]int) {
	if *t == nil {
		*t = slices.Repeat([]time.Duration{time.Hour}, len(packets))
	}
	for i, packet := range packets {
		v, d, err := p.Benchmark(packet, 1, nil)
		if err != nil {
			b.Fatal(err)
		}
		verdicts[v&3]++
		(*t)[i] = min((*t)[i], d)
	}
	return verdicts
}

func (t times) sum() (sum time.Duration) {
	for _, d := range t {
		sum += d
	}
	return sum
}

// BenchmarkRunFold reports what a pair takes in the programs: by test runs over distinct
// frames, less what an empty program takes. insert is the first time that the keys come, update
// the later ones.
func BenchmarkRunFold(b *testing.B) {
	shapes := []wire.Shape{wire.Keyed(0, 1, false), wire.Keyed(1, 1, false), wire.Keyed(1, 1, true), wire.Keyed(1, 2, true), wire.Keyed(2, 1, false), wire.Keyed(3, 4, true)}
	sizes := []int{880, 100_000, 1_000_000}
	if os.Getenv("QUERN_LONG") != "" {
		shapes = shapes[:0]
		for s := wire.Shape(0); s < wire.KeyedShapes; s++ {
			shapes = append(shapes, s)
		}
		sizes = append(sizes, 440_000)
	}
	for _, shape := range shapes {
		for _, keys := range sizes {
			for _, ordered := range []bool{true, false} {
				f := foldBench{shape, keys, ordered, wire.OpSum}
				b.Run(f.String(), f.run)
			}
		}
	}
}

func (f foldBench) run(b *testing.B) {
	r := newRig(b, shuffle.Limits{Streams: 64, Targets: 1, Jobs: 1, Outgoing: 1})
	onCPU(b, 0)
	tags := wire.NewTags([16]byte{1})
	r.check(r.SetJob(0, tags.Job()))
	layout := shuffle.TableLayout{Class: f.shape.Class(), Lanes: f.shape.Lanes(), Bits: bits.Len(uint(f.keys*2)) - 0}
	if f.keys*10 < 6<<(layout.Bits-1) { // 30 to 60 %
		layout.Bits--
	}
	t, err := r.NewTables(layout, 1)
	r.check(err)
	r.memory.Cells[0].SetPlace(f.shape.Class(), uint32(t[0].ID)+1, 0)
	packets, n := f.frames(tags)
	var ops uint16
	for i := range f.shape.Lanes() {
		ops |= uint16(f.op) << (4 * i)
	}
	open := func() {
		for i := range r.memory.Streams {
			r.memory.Streams[i] = wire.Stream{Token: uint64(i + 1), Frames: wire.Segment, Ops: ops, Lanes: uint8(f.shape.Lanes()), Flags: wire.FlagFold}
		}
	}
	run := r.programs["quern_dispatch"]
	var empty, insert, dispatch, find, update times
	open()
	if v := insert.round(b, run, packets); v[model.Pass] > 0 {
		b.Logf("%d of %d frames were passed up", v[model.Pass], len(packets))
	}
	index := uint32(chainSets)
	if f.shape&wire.Wide != 0 {
		index += 2
	}
	_, set := r.set(layout)
	link := func(i uint32) {
		r.check(r.maps["chain"].Put(index+i, set.programs[setNames(layout)[index-chainSets+i]]))
	}
	for b.Loop() {
		empty.round(b, r.programs["quern_pass"], packets)
		// With links of the chain taken away, frames go up there.
		open()
		r.check(r.maps["chain"].Delete(index))
		dispatch.round(b, run, packets)
		link(0)
		r.check(r.maps["chain"].Delete(index + 1))
		find.round(b, run, packets)
		link(1)
		update.round(b, run, packets)
	}
	per := func(t, less times) float64 { return float64(t.sum()-less.sum()) / float64(n) }
	b.ReportMetric(per(update, empty), "ns/pair")
	b.ReportMetric(per(insert, empty), "insert-ns/pair")
	b.ReportMetric(per(dispatch, empty), "dispatch-ns/pair")
	b.ReportMetric(per(find, dispatch), "find-ns/pair")
	b.ReportMetric(per(update, find), "apply-ns/pair")
	b.ReportMetric(float64(empty.sum())/float64(len(packets)), "empty-ns/frame")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRunDispatch reports what a full frame takes in the dispatcher, tag included.
func BenchmarkRunDispatch(b *testing.B) {
	r := newRig(b, shuffle.Limits{Streams: 64, Targets: 1, Jobs: 1, Outgoing: 1})
	onCPU(b, 0)
	tags := wire.NewTags([16]byte{1})
	r.check(r.SetJob(0, tags.Job()))
	f := foldBench{wire.Keyed(1, 1, false), 1000, true, wire.OpSum}
	packets, _ := f.frames(tags)
	r.memory.Streams[0] = wire.Stream{Token: 1, Frames: wire.Segment, Lanes: 1, Flags: wire.FlagFold}
	measure := func(name string, p *ebpf.Program) float64 {
		var best time.Duration
		for range 5 {
			_, d, err := p.Benchmark(packets[0], 20_000, nil)
			r.check(err)
			if best == 0 || d < best {
				best = d
			}
		}
		b.ReportMetric(float64(best), name)
		return float64(best)
	}
	for b.Loop() {
		measure("pass-ns", r.programs["quern_pass"])
		measure("dispatch-ns", r.programs["quern_dispatch"])
		r.memory.Streams[0].Token = 9
		measure("token-ns", r.programs["quern_dispatch"])
		r.memory.Streams[0].Token = 1
	}
	b.ReportMetric(0, "ns/op")
}
