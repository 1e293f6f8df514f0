// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quernmr/quern/bpf/faults"
	"golang.org/x/sys/unix"
)

// arrival is a packet that a host received.
type arrival struct {
	number  uint64 // that it was sent with
	payload []byte
}

const payloadSize = 200

// payload is its number, again and again.
func payload(number uint64) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, number), payloadSize/8)
}

// numberOf returns the number of a payload of which a few bits may be wrong, or
// the greatest for one of another length.
func numberOf(b []byte) uint64 {
	if len(b) != payloadSize {
		return math.MaxUint64
	}
	seen := map[uint64]int{}
	for ; len(b) > 0; b = b[8:] {
		seen[binary.LittleEndian.Uint64(b)]++
	}
	for number, n := range seen {
		if n > payloadSize/16 {
			return number
		}
	}
	return math.MaxUint64
}

// stream sends n packets from host 1 to host 2 and returns what arrived. They
// pass the wire in order. The receiving host may still mix them up: it has a
// queue per CPU. No queue overruns: it waits for the wire now and then.
func stream(t *testing.T, l *Lab, n int, ip6 bool) []arrival {
	t.Helper()
	from, to := l.Host(1), l.Host(2)
	source, target := from.IPv4(), to.IPv4()
	if ip6 {
		source, target = from.IPv6(), to.IPv6()
	}
	server, client := listen(t, to, target, 7100), listen(t, from, source, 0)
	defer server.Close()
	defer client.Close()
	var got []arrival
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 2000)
		for {
			size, err := server.Read(buffer)
			if err != nil {
				return
			}
			b := bytes.Clone(buffer[:size])
			got = append(got, arrival{numberOf(b), b})
		}
	}()
	for i := range n {
		if _, err := client.WriteToUDPAddrPort(payload(uint64(i)), netip.AddrPortFrom(target, 7100)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	settle(t, l)
	// All that arrives has arrived; it is to be read, on a machine that may be busy.
	for quiet := 0; quiet < 3; time.Sleep(10 * time.Millisecond) {
		quiet++
		if unread(t, server) > 0 {
			quiet = 0
		}
	}
	server.Close()
	<-done
	return got
}

// unread returns the bytes of the next packet that a socket has for its reader.
func unread(t *testing.T, c *net.UDPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// settle waits until nothing is held any more and what is under way has arrived.
func settle(t *testing.T, l *Lab) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		c, err := l.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if c.Released+c.Discarded == c.Total().Held {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("still held: %+v", c)
		}
	}
	time.Sleep(30 * time.Millisecond)
}

func counters(t *testing.T, l *Lab) Counters {
	t.Helper()
	c, err := l.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for i, link := range c.Links {
		if link.From.Overrun+link.To.Overrun > 0 {
			t.Errorf("queues of host %d were overrun: %+v", i+1, link)
		}
	}
	return c
}

// numbers returns those of packets, in order of arrival.
func numbers(got []arrival) []uint64 {
	var n []uint64
	for _, a := range got {
		n = append(n, a.number)
	}
	return n
}

// near fails unless count is what n draws with chance p give, within five
// standard deviations.
func near(t *testing.T, what string, count uint64, n int, p float64) {
	t.Helper()
	mean, deviation := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	if math.Abs(float64(count)-mean) > 5*deviation {
		t.Errorf("%s: %d of %d, want about %.0f", what, count, n, mean)
	}
}

// TestLoss loses packets at the rate asked for, and those that the seed says.
func TestLoss(t *testing.T) {
	const n, p, seed = 10_000, 0.2, 7
	l := build(t, Options{Hosts: 2, StaticNeighbours: true, Seed: seed, Faults: Faults{Loss: p}})
	for _, ip6 := range []bool{false, true} {
		if err := l.Reseed(seed); err != nil {
			t.Fatal(err)
		}
		before := counters(t, l).Links[1].To
		got := numbers(stream(t, l, n, ip6))
		slices.Sort(got)
		after := counters(t, l).Links[1].To
		near(t, "lost", after.Lost-before.Lost, n, p)
		if drawn := after.Drawn - before.Drawn; drawn != n {
			t.Errorf("drawn for %d packets, want %d", drawn, n)
		}
		plan := Faults{Loss: p}.plan(faults.SeedOf(seed, 2, To), false)
		var want []uint64
		for i := range uint64(n) {
			if !plan.Fate(i).Lost {
				want = append(want, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("IPv6 %v: %d packets arrived, the seed says %d, and the same", ip6, len(got), len(want))
		}
	}
	if err := l.Reseed(seed + 1); err != nil {
		t.Fatal(err)
	}
	first := numbers(stream(t, l, 1000, false))
	if err := l.Reseed(seed); err != nil {
		t.Fatal(err)
	}
	second := numbers(stream(t, l, 1000, false))
	slices.Sort(first)
	slices.Sort(second)
	if slices.Equal(first, second) {
		t.Error("two seeds lose the same packets")
	}
}

// TestDuplicate doubles packets that the seed says, each once.
func TestDuplicate(t *testing.T) {
	const n, p, seed = 10_000, 0.1, 3
	l := build(t, Options{Hosts: 2, StaticNeighbours: true, Seed: seed})
	for _, d := range []Direction{To, From} {
		host := map[Direction]int{To: 2, From: 1}[d]
		if err := l.SetFaults(Faults{}); err != nil {
			t.Fatal(err)
		}
		if err := l.Host(host).SetFaults(d, Faults{Duplicate: p}); err != nil {
			t.Fatal(err)
		}
		got := map[uint64]int{}
		for _, a := range stream(t, l, n, false) {
			if !bytes.Equal(a.payload, payload(a.number)) {
				t.Errorf("packet %d is damaged", a.number)
			}
			got[a.number]++
		}
		c := counters(t, l).Links[host-1]
		tally := map[Direction]Tally{To: c.To, From: c.From}[d]
		near(t, "doubled", tally.Duplicated, n, p)
		plan := Faults{Duplicate: p}.plan(faults.SeedOf(seed, host, d), false)
		for i := range uint64(n) {
			want := 1
			if plan.Fate(i).Duplicated {
				want = 2
			}
			if got[i] != want {
				t.Fatalf("%v host %d: packet %d arrived %d times, want %d", d, host, i, got[i], want)
			}
		}
	}
}

// TestCorrupt flips one to three bits of those packets that the seed says; those
// that reach the socket show it.
func TestCorrupt(t *testing.T) {
	const n, p, seed = 10_000, 0.2, 5
	l := build(t, Options{Hosts: 2, StaticNeighbours: true, Seed: seed, Faults: Faults{Corrupt: p}})
	for _, ip6 := range []bool{false, true} {
		if err := l.Reseed(seed); err != nil {
			t.Fatal(err)
		}
		before := counters(t, l).Links[1].To.Corrupted
		damaged, good := 0, uint64(0)
		flips := map[int]int{}
		plan := Faults{Corrupt: p}.plan(faults.SeedOf(seed, 2, To), false)
		for _, a := range stream(t, l, n, ip6) {
			if len(a.payload) != payloadSize {
				continue // the UDP length was hit
			}
			if a.number >= n {
				t.Fatalf("a packet that is none of ours, or damaged more than it should be: %x", a.payload)
			}
			differ := distance(a.payload, payload(a.number))
			switch corrupted := plan.Fate(a.number).Corrupted; {
			case !corrupted && differ == 0:
				good++
			case !corrupted:
				t.Errorf("packet %d is damaged, the seed says otherwise", a.number)
			case differ > 3:
				t.Errorf("packet %d has %d bits flipped", a.number, differ)
			case differ > 0: // else it is damaged in a header in a way that does no harm here
				damaged++
				flips[differ]++
			}
		}
		corrupted := counters(t, l).Links[1].To.Corrupted - before
		near(t, "corrupted", corrupted, n, p)
		if good != n-corrupted {
			t.Errorf("%d undamaged packets arrived, want %d", good, n-corrupted)
		}
		// Three in four are hit in the payload, whatever their checksums.
		near(t, "damaged payload", uint64(damaged), int(corrupted), 0.75)
		if flips[1] < damaged/4 || flips[2] < damaged/4 || flips[3] < damaged/4 {
			t.Errorf("bits flipped: %v", flips)
		}
	}
}

func distance(a, b []byte) (n int) {
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

// TestCorruptOthers drops what is not UDP instead of damaging it: nobody would
// find out.
func TestCorruptOthers(t *testing.T) {
	l := build(t, Options{Hosts: 2, Faults: Faults{Corrupt: 0.05}})
	fetch(t, l, 1<<18)
	if total := counters(t, l).Total(); total.Rejected == 0 || total.Corrupted > 0 {
		t.Errorf("%+v", total)
	}
}

// TestSinglePackets checks that the wire carries the packets of a TCP stream one
// by one, however many the ends make one of.
func TestSinglePackets(t *testing.T) {
	const size = 8 << 20
	l := build(t, Options{Hosts: 2, Faults: Faults{Loss: 1e-9}})
	fetch(t, l, size)
	if to := counters(t, l).Links[0].To; to.Drawn < size/1460 {
		t.Errorf("%d packets for %d bytes", to.Drawn, size)
	}
}

// fetch moves that many bytes from host 2 to host 1 over TCP.
func fetch(t *testing.T, l *Lab, size int) {
	t.Helper()
	var listener net.Listener
	err := l.Host(2).Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(IPv4(2), 7000).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(want)
		c.Close()
	}()
	var c net.Conn
	err = l.Host(1).Do(func() (err error) {
		c, err = net.Dial("tcp4", listener.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got bytes.Buffer
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := got.ReadFrom(c); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes arrived, want %d, and the same; %v", got.Len(), len(want), err)
	}
}

// TestReorder holds packets back; all arrive once, undamaged, and the counters
// say how many were late.
func TestReorder(t *testing.T) {
	const n, p, seed = 10_000, 0.1, 11
	l := build(t, Options{Hosts: 2, StaticNeighbours: true, Seed: seed, Faults: Faults{Reorder: p, Hold: 3 * time.Millisecond}})
	for _, ip6 := range []bool{false, true} {
		before := counters(t, l).Links[1].To
		got := numbers(stream(t, l, n, ip6))
		after := counters(t, l).Links[1].To
		near(t, "reordered", after.Reordered-before.Reordered, n, p)
		if held := after.Held - before.Held; held != after.Reordered-before.Reordered || after.Unheld > 0 {
			t.Errorf("%+v", after)
		}
		late := 0
		highest := uint64(0)
		for _, i := range got {
			if i < highest {
				late++
			}
			highest = max(highest, i)
		}
		if late < n*p/2 || late > n*p*2 {
			t.Errorf("%d packets came late, want about %v", late, n*p)
		}
		slices.Sort(got)
		for i := range uint64(n) {
			if len(got) != n || got[i] != i {
				t.Fatalf("%d packets arrived, want %d, each once", len(got), n)
			}
		}
	}
	if c := counters(t, l); c.Released != c.Total().Held || c.Discarded > 0 {
		t.Errorf("%+v", c)
	}
}

// TestDelay measures how long packets take, and that their order is kept.
func TestDelay(t *testing.T) {
	const delay = 20 * time.Millisecond
	l := build(t, Options{Hosts: 2, StaticNeighbours: true, Faults: Faults{Delay: delay}})
	// With a program at its interface, the host has one queue and keeps the order.
	ends, err := faults.LoadEnds(1500, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ends.Close()
	if err := l.Host(2).Do(func() error { return attach(ends.AttachPass) }); err != nil {
		t.Fatal(err)
	}
	server, client := listen(t, l.Host(2), IPv4(2), 7000), listen(t, l.Host(1), IPv4(1), 0)
	buffer := make([]byte, 10)
	var took []time.Duration
	// On a machine that is busy most take longer, and one has to be the first that does not.
	for start := time.Now(); len(took) < 20 || slices.Min(took) > delay*3/2 && time.Since(start) < time.Minute; {
		begin := time.Now()
		if _, err := client.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(IPv4(2), 7000)); err != nil {
			t.Fatal(err)
		}
		_ = server.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := server.Read(buffer); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	if took[0] < delay || took[0] > delay*3/2 {
		t.Errorf("delays of %v to %v, median %v, want %v", took[0], took[len(took)-1], took[len(took)/2], delay)
	}
	t.Logf("asked for %v: %v to %v, median %v", delay, took[0], took[len(took)-1], took[len(took)/2])
	if got := numbers(stream(t, l, 2000, false)); len(got) != 2000 || !slices.IsSorted(got) {
		t.Errorf("%d packets arrived, in order: %v", len(got), slices.IsSorted(got))
	}
}

// TestBothDirections holds packets for what both links of their way ask for.
func TestBothDirections(t *testing.T) {
	l := build(t, Options{Hosts: 2, StaticNeighbours: true})
	if err := l.Host(1).SetFaults(From, Faults{Delay: 30 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := l.Host(2).SetFaults(To, Faults{Delay: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to int
		least    time.Duration
		most     time.Duration
	}{{1, 2, 50 * time.Millisecond, time.Minute}, {2, 1, 0, 20 * time.Millisecond}} {
		server, client := listen(t, l.Host(c.to), IPv4(c.to), 7000), listen(t, l.Host(c.from), IPv4(c.from), 0)
		best := time.Hour
		for n, start := 0, time.Now(); n < 5 || best > c.most && time.Since(start) < time.Minute; n++ {
			begin := time.Now()
			if _, err := client.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(IPv4(c.to), 7000)); err != nil {
				t.Fatal(err)
			}
			_ = server.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := server.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(begin))
		}
		if best < c.least || best > c.most {
			t.Errorf("%d to %d: %v, want %v to %v", c.from, c.to, best, c.least, c.most)
		}
	}
}

// TestWhileSending changes faults while packets are under way: none is lost that
// the faults do not lose.
func TestWhileSending(t *testing.T) {
	const n = 10_000
	l := build(t, Options{Hosts: 2, StaticNeighbours: true})
	done := make(chan error, 1)
	go func() {
		time.Sleep(10 * time.Millisecond)
		done <- l.SetFaults(Faults{Duplicate: 1})
	}()
	got := numbers(stream(t, l, n, false))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if distinct := len(slices.Compact(slices.Clone(got))); distinct != n || len(got) == n || len(got) == 2*n {
		t.Errorf("%d packets arrived, %d of them distinct, want %d and some doubled", len(got), distinct, n)
	}
}

// TestCut cuts a link and heals it again.
func TestCut(t *testing.T) {
	l := build(t, Options{Hosts: 2, StaticNeighbours: true})
	for i, cut := range []bool{false, true, false} {
		var err error
		if cut {
			err = l.Cut(1)
		} else {
			err = l.Heal(1)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := 100
		if cut {
			want = 0
		}
		if got := stream(t, l, 100, i%2 == 1); len(got) != want {
			t.Errorf("cut %v: %d packets arrived, want %d", cut, len(got), want)
		}
	}
	if c := counters(t, l).Links; c[0].From.Cut < 100 || c[1].From.Cut+c[1].To.Cut > 0 {
		t.Errorf("%+v", c)
	}
	if err := l.Cut(3); err == nil {
		t.Error("there is no host 3")
	}
}

// attach attaches a program to the link of the host that the thread is in.
func attach(with func(int) error) error {
	i, err := net.InterfaceByName(InterfaceName)
	if err != nil {
		return err
	}
	return with(i.Index)
}

// TestTurn proves that what hosts send by XDP_TX arrives, and that held packets
// meet the host's program like others do.
func TestTurn(t *testing.T) {
	const n, port = 500, 7200
	for _, c := range []struct {
		name   string
		faults Faults
	}{
		{"good", Faults{}},
		{"held", Faults{Delay: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := build(t, Options{Hosts: 2, Faults: c.faults, StaticNeighbours: true})
			ends, err := faults.LoadEnds(1500, port)
			if err != nil {
				t.Fatal(err)
			}
			defer ends.Close()
			if err := l.Host(2).Do(func() error { return attach(ends.AttachTurn) }); err != nil {
				t.Fatal(err)
			}
			for _, ip6 := range []bool{false, true} {
				source, target := IPv4(1), IPv4(2)
				if ip6 {
					source, target = IPv6(1), IPv6(2)
				}
				client := listen(t, l.Host(1), source, 0)
				_, before, _ := ends.Turned()
				answers := make(chan int)
				go func() {
					buffer := make([]byte, 2000)
					count := 0
					for ; count < n; count++ {
						_ = client.SetReadDeadline(time.Now().Add(time.Minute))
						if _, err := client.Read(buffer); err != nil {
							break
						}
					}
					answers <- count
				}()
				for i := range n {
					if _, err := client.WriteToUDPAddrPort(payload(uint64(i)), netip.AddrPortFrom(target, port)); err != nil {
						t.Fatal(err)
					}
					if i%50 == 49 {
						time.Sleep(time.Millisecond)
					}
				}
				if got := <-answers; got != n {
					t.Errorf("IPv6 %v: %d answers, want %d", ip6, got, n)
				}
				seen, turned, err := ends.Turned()
				if err != nil || turned-before != n || seen < turned {
					t.Errorf("the program saw %d packets, turned %d around, want %d; %v", seen, turned-before, n, err)
				}
			}
			if held := counters(t, l).Total().Held; c.faults.Any() != (held >= 4*n) {
				t.Errorf("%d packets were held", held)
			}
		})
	}
}

// TestSegments sends with segmentation offload: the wire sees, counts and loses
// single packets.
func TestSegments(t *testing.T) {
	const size, segments, rounds = 1000, 40, 50
	l := build(t, Options{Hosts: 2, Faults: Faults{Loss: 0.5}, StaticNeighbours: true})
	server, client := listen(t, l.Host(2), IPv4(2), 7000), listen(t, l.Host(1), IPv4(1), 0)
	raw, err := client.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for range rounds {
		if _, err := client.WriteToUDPAddrPort(make([]byte, size*segments), netip.AddrPortFrom(IPv4(2), 7000)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Microsecond)
	}
	settle(t, l)
	got := uint64(0)
	buffer := make([]byte, 2000)
	for unread(t, server) > 0 {
		n, err := server.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if n != size {
			t.Fatalf("a packet of %d bytes, want %d", n, size)
		}
		got++
	}
	c := counters(t, l).Links[1].To
	near(t, "lost", c.Lost, segments*rounds, 0.5)
	if c.Drawn != segments*rounds || got != c.Drawn-c.Lost {
		t.Errorf("%d packets arrived; %+v", got, c)
	}
}
