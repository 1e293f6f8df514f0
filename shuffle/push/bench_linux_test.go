// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/wire"
)

// rig is a path with one stream to a socket that nobody reads, without its loop: the
// benchmark says that everything sent has arrived.
type rig struct {
	p *path
	s *stream
}

func newRig(b testing.TB, single, six bool) *rig {
	addr := "127.0.0.1"
	if six {
		addr = "::1"
	}
	sink, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { sink.Close() })
	build := commit.NewBuilder(&job)
	for i := range wire.Segment * 49 { // pairs of 28 bytes
		build.Add(fmt.Appendf(nil, "key %010d", i), []int64{int64(i) << 20})
	}
	o, err := build.Commit()
	if err != nil {
		b.Fatal(err)
	}
	s := sender(b, Options{NoSegmentation: single})
	dest := netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(sink.LocalAddr().(*net.UDPAddr).Port))
	p, err := s.path(dest)
	if err != nil {
		b.Fatal(err)
	}
	p.window.size, p.window.ceiling = 192, 192
	u := &push{
		sender: s, out: o, tags: wire.NewTags(job.Secret), path: p, frame: wire.FrameSize, window: 192, began: now(),
		report: &Report{}, req: &Request{Job: job, Target: target}, parcels: map[*stream][]int{}, notify: make(chan struct{}, 1),
	}
	p.pushes = []*push{u}
	st := newStream(u, 0, u.spec(0), shuffle.Grant{Slot: 1, Token: 9, Share: 192}, 0)
	st.publish(0)
	u.streams = []*stream{st}
	return &rig{p, st}
}

// turn sends what the window holds and lets it arrive.
func (r *rig) turn() (n int) {
	at := now()
	r.p.look(at)
	if len(r.s.push.streams) == 0 { // all sent: once more
		r.s.miss(make([]uint32, wire.SeenWords))
		r.s.lost, r.s.nLost, r.s.next = bitmap{}, 0, 0
		r.s.push.events = r.s.push.events[:0]
		r.s.push.streams = append(r.s.push.streams, r.s)
	}
	r.p.fill(at)
	n = r.s.nFlight
	for i, w := range r.s.flight {
		atomic.OrUint64(&r.s.out.Acked[i], w)
	}
	atomic.AddUint64(&r.s.out.Count, uint64(n))
	atomic.StoreUint64(&r.s.out.Stamp, uint64(at))
	atomic.StoreUint64(&r.s.out.Arrived, uint64(at)+50_000)
	atomic.AddUint32(&r.s.out.Answers, 1)
	return n
}

// cpuTime returns the process's CPU time in ns: machines that run benchmarks are seldom idle.
func cpuTime() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkSend(b *testing.B) {
	for _, tc := range []struct{ single, six bool }{{false, false}, {true, false}, {false, true}} {
		b.Run(fmt.Sprintf("segmentation=%v/six=%v", !tc.single, tc.six), func(b *testing.B) {
			r := newRig(b, tc.single, tc.six)
			b.ReportAllocs()
			b.ResetTimer()
			frames := 0
			cpu := cpuTime()
			for frames < b.N {
				frames += r.turn()
			}
			b.StopTimer()
			ns := float64(cpuTime()-cpu) / float64(frames)
			b.ReportMetric(ns, "cpu-ns/frame")
			b.ReportMetric(ns*float64(r.s.push.out.Frames())/float64(r.s.push.out.Manifest().Pairs), "cpu-ns/pair")
			b.ReportMetric(float64(frames)/b.Elapsed().Seconds(), "frames/s")
		})
	}
}

// What the loop does per frame makes no garbage.
func TestSendAllocatesNothing(t *testing.T) {
	r := newRig(t, false, false)
	frames := 0
	for range 3 {
		frames += r.turn()
	}
	if frames < 192 {
		t.Fatalf("%d frames were sent", frames)
	}
	n := testing.AllocsPerRun(20, func() { frames = r.turn() })
	if n/float64(max(frames, 1)) > 0.1 {
		t.Errorf("%v allocations for %d frames", n, frames)
	}
}
