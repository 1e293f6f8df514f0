// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/quernmr/quern/shuffle/wire"
)

// loopback returns nodes with sockets at the loopback interface.
func loopback(t testing.TB, n int) []*Node {
	var nodes []*Node
	for range n {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Skip(err)
		}
		_ = conn.SetReadBuffer(4 << 20)
		node, err := New(Options{Port: conn.LocalAddr().(*net.UDPAddr).Port, Send: func(b []byte, size int, to netip.AddrPort) error {
			for len(b) > 0 {
				k := min(size, len(b))
				if _, err := conn.WriteToUDPAddrPort(b[:k], to); err != nil {
					return err
				}
				b = b[k:]
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		var reader sync.WaitGroup
		reader.Go(func() {
			buf := make([]byte, 2048)
			for {
				k, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				node.Handle(buf[:k], from)
			}
		})
		t.Cleanup(func() {
			conn.Close()
			reader.Wait()
			node.Close()
		})
		nodes = append(nodes, node)
	}
	return nodes
}

// direct returns nodes whose frames are handled by whoever sends them, at once. Their ports are their numbers.
func direct(t testing.TB, n int) []*Node {
	nodes := make([]*Node, n)
	for i := range nodes {
		var err error
		nodes[i], err = New(Options{Port: i + 1, Send: func(b []byte, size int, to netip.AddrPort) error {
			for len(b) > 0 {
				k := min(size, len(b))
				nodes[to.Port()-1].Handle(b[:k:k], netip.AddrPort{})
				b = b[k:]
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nodes[i].Close() })
	}
	return nodes
}

func formNodes(t testing.TB, nodes []*Node) (*Formed, []Group) {
	spec := FormSpec{Name: "test"}
	for i, n := range nodes {
		spec.Members = append(spec.Members, Member{Name: fmt.Sprint(i), Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0), Control: n.Control()})
	}
	f, err := Form(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close(context.Background()) })
	var ends []Group
	for _, n := range nodes {
		g, err := n.Group(f.Token)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, g)
	}
	return f, ends
}

// others has all ends but the first call as often as the first one does, until stop is called.
func others(t testing.TB, ends []Group, size int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, g := range ends[1:] {
		wg.Go(func() {
			v := make([]int32, size)
			for AllReduce(ctx, g, Sum, v) == nil {
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// Nothing is allocated by calls and frames but at the start.
func TestReduceAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, size := range []int{10, 50_000} {
		f, ends := formNodes(t, direct(t, 3))
		// Who formed the group asks members every now and then, which allocates: by the clock, and not by calls.
		f.stop()
		<-f.ended
		v := make([]int32, size)
		stop := others(t, ends, size)
		call := func() {
			if err := AllReduce(context.Background(), ends[0], Sum, v); err != nil {
				t.Error(err)
			}
		}
		for range 10 {
			call()
		}
		// Not none: a collection empties the pool of frames.
		if got := testing.AllocsPerRun(100, call); got >= 1 {
			t.Errorf("%v allocations a call of %d values", got, size)
		}
		stop()
	}
}

// Loopback sockets and none, everything in user space and in one process.
func BenchmarkReduce(b *testing.B) {
	for name, make := range map[string]func(testing.TB, int) []*Node{"loopback": loopback, "direct": direct} {
		for _, n := range []int{2, 4} {
			for _, size := range []int{16, 1 << 12, 1 << 18} {
				b.Run(fmt.Sprintf("%s/members=%d/values=%d", name, n, size), func(b *testing.B) { benchReduce(b, make(b, n), size) })
			}
		}
	}
}

func benchReduce(b *testing.B, nodes []*Node, size int) {
	_, ends := formNodes(b, nodes)
	b.ReportAllocs()
	b.SetBytes(int64(4 * size))
	stop := others(b, ends, size)
	v := make([]int32, size)
	for b.Loop() {
		if err := AllReduce(context.Background(), ends[0], Sum, v); err != nil {
			b.Fatal(err)
		}
	}
	stop()
	s := nodes[0].Stats()
	b.ReportMetric(float64(s.Again)/float64(b.N), "again/op")
	b.ReportMetric(float64(s.Woken)/float64(b.N), "woken/op")
	b.ReportMetric(float64(s.Timers)/float64(b.N), "timers/op")
}

// What a part costs that user space adds up, and a result that it stores and sends on.
func BenchmarkHandle(b *testing.B) {
	nodes := direct(b, 3)
	f, ends := formNodes(b, nodes)
	nodes[0].opts.Send = sendNowhere
	tags := wire.NewTags([16]byte{})
	for name, tc := range map[string]struct {
		kind wire.Kind
		part wire.Part
	}{"part": {wire.Reduce, wire.Part{Member: 1}}, "result": {wire.Reduced, wire.Part{Reducer: 2}}} {
		b.Run(name, func(b *testing.B) {
			frame, err := wire.PutPart(make([]byte, wire.FrameSize), tc.kind, f.Token, 0, tc.part, make([]byte, wire.ChunkSize), tags)
			if err != nil {
				b.Fatal(err)
			}
			e := ends[0].(*end)
			b.ReportAllocs()
			b.SetBytes(wire.ChunkSize)
			for number := uint32(1 << e.bits); b.Loop(); number++ {
				b.StopTimer()
				if number == 0 {
					b.Skip("too fast")
				}
				head := wire.ReadHead(frame)
				head.Seq = number
				head.Put(frame)
				tags.SealPart(frame)
				b.StartTimer()
				nodes[0].Handle(frame, netip.AddrPort{})
			}
			s := nodes[0].Stats().Reasons
			if s[wire.Added]+s[wire.ResultPassed] == 0 {
				b.Errorf("%v", s)
			}
		})
	}
}
