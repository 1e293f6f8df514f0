// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/fold"
	"github.com/quernmr/quern/shuffle/wire"
)

// benchOutput cuts n keys of 16 bytes and values of 4 into streams.
func benchOutput(j *testJob, n int) []*output {
	rng := rand.New(rand.NewPCG(1, 1))
	list := make([]pair, n)
	for i := range list {
		list[i] = pair{fmt.Sprintf("key-%012x", i), []int64{int64(rng.IntN(1000))}}
	}
	o := j.cut(shuffle.StreamID{Target: j.target(0, 1)}, list)
	per := wire.Keyed(1, 1, false).PairsPerFrame()
	var all []*output
	for at := 0; at < len(o.frames); at += wire.Segment {
		part := &output{job: j, frames: o.frames[at:min(len(o.frames), at+wire.Segment)]}
		for i, f := range part.frames {
			le.PutUint32(f[20:], uint32(i))
		}
		part.spec = shuffle.StreamSpec{
			ID: shuffle.StreamID{Target: j.target(0, 1), Segment: uint32(len(all))}, Frames: len(part.frames),
			Pairs: uint64(min(n-at*per, wire.Segment*per)),
		}
		all = append(all, part)
	}
	return all
}

// BenchmarkFold takes frames that are in memory already: check, claim and fold.
func BenchmarkFold(b *testing.B) {
	for _, keys := range []int{1 << 10, 100 << 10, 1 << 20} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			r := testReceiver(b, Options{Readers: 1, FoldMemory: 512 << 20})
			ctx := testContext(b)
			j := newJob(rand.New(rand.NewPCG(2, 2)), fold.Sum)
			if err := r.OpenJob(ctx, j.spec); err != nil {
				b.Fatal(err)
			}
			if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: j.target(0, 1), Keys: [5]uint64{0, uint64(keys)}}); err != nil {
				b.Fatal(err)
			}
			var frames [][]byte
			var streams []*stream
			for _, o := range benchOutput(j, keys) {
				g, err := r.Open(ctx, []shuffle.StreamSpec{o.spec})
				if err != nil {
					b.Fatal(err)
				}
				for i := range o.frames {
					frames = append(frames, o.seal(i, g[0], 1))
				}
				streams = append(streams, r.bySlot[g[0].Slot].Load())
			}
			h := newHand(r, nil)
			pairs := 0
			b.ReportAllocs()
			before := cpu()
			b.ResetTimer()
			for i := range b.N {
				at := i % len(frames)
				if at == 0 { // a further mapper with the same keys
					for _, st := range streams {
						for w := range st.shared.Seen {
							atomic.StoreUint64(&st.shared.Seen[w], 0)
						}
					}
				}
				h.packet(frames[at], nil, nil)
				if i%16 == 15 {
					h.letGo()
				}
				pairs += int(frames[at][6])
			}
			h.letGo()
			b.StopTimer()
			if n := h.counts[wire.Folded].Load(); n != uint64(b.N) {
				b.Fatalf("%d of %d frames folded", n, b.N)
			}
			b.ReportMetric(float64(cpu()-before)/float64(pairs), "cpu-ns/pair")
		})
	}
}

// BenchmarkSocket sends frames over the loopback.
func BenchmarkSocket(b *testing.B) {
	for _, keys := range []int{1 << 10, 100 << 10, 1 << 20} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			r := testReceiver(b, Options{Readers: 1, FoldMemory: 512 << 20})
			ctx := testContext(b)
			j := newJob(rand.New(rand.NewPCG(2, 2)), fold.Sum)
			if err := r.OpenJob(ctx, j.spec); err != nil {
				b.Fatal(err)
			}
			if err := r.OpenTarget(ctx, shuffle.TargetSpec{ID: j.target(0, 1), Keys: [5]uint64{0, uint64(keys)}}); err != nil {
				b.Fatal(err)
			}
			var frames [][]byte
			var streams []*stream
			for _, o := range benchOutput(j, keys) {
				g, err := r.Open(ctx, []shuffle.StreamSpec{o.spec})
				if err != nil {
					b.Fatal(err)
				}
				for i := range o.frames {
					f := o.seal(i, g[0], 1)
					wire.SetStamp(f, 1, i%32 == 31)
					frames = append(frames, f)
				}
				streams = append(streams, r.bySlot[g[0].Slot].Load())
			}
			l, err := dial(r.Port())
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			folded := func() uint64 {
				s := r.Stats()
				return s.Reasons[wire.Folded] + s.Reasons[wire.Duplicate]
			}
			pairs := 0
			super := make([]byte, 0, 64<<10)
			b.ReportAllocs()
			before := cpu()
			b.ResetTimer()
			for i := 0; i < b.N; {
				at := i % len(frames)
				if at == 0 {
					for folded() < uint64(i) {
						time.Sleep(20 * time.Microsecond)
					}
					for _, st := range streams {
						for w := range st.shared.Seen {
							atomic.StoreUint64(&st.shared.Seen[w], 0)
						}
					}
				}
				super = super[:0]
				for n := 0; n < 40 && at < len(frames) && i < b.N && (n == 0 || len(frames[at]) == len(frames[at-1])); n++ {
					super = append(super, frames[at]...)
					pairs += int(frames[at][6])
					at++
					i++
				}
				if err := sendSegments(l.UDPConn, super, len(frames[at-1])); err != nil {
					b.Fatal(err)
				}
				for uint64(i) > folded()+400 {
					time.Sleep(5 * time.Microsecond)
				}
			}
			for folded() < uint64(b.N) {
				time.Sleep(20 * time.Microsecond)
			}
			b.StopTimer()
			b.ReportMetric(float64(cpu()-before)/float64(pairs), "cpu-ns/pair")
		})
	}
}
