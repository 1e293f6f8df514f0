// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// loopback is the interface that test runs happen on.
const loopback = 1

// loaded loads the wire's programs for test runs.
func loaded(t *testing.T) *Wire {
	t.Helper()
	w, err := LoadWire(loopback)
	// Not os.ErrPermission: that is EACCES too, which the verifier says of a program
	// that it rejects.
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("programs cannot be loaded here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// skb is the kernel's struct __sk_buff.
type skb [48]uint32

const mark = 2 // index in it

const (
	passed  = 0 // TC_ACT_OK
	dropped = 2 // TC_ACT_SHOT
)

// pass sends a packet through one of the programs. It returns what the program
// said, and what it made of the packet and of its mark.
func pass(t *testing.T, w *Wire, d Direction, packet []byte, inMark uint32) (verdict uint32, out []byte, outMark uint32) {
	t.Helper()
	program := w.objects.FromHost
	if d == To {
		program = w.objects.ToHost
	}
	in, after := skb{mark: inMark}, skb{}
	o := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+64), Context: &in, ContextOut: &after}
	verdict, err := program.Run(&o)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, o.DataOut, after[mark]
}

// udp4 returns a UDP packet with that much inside.
func udp4(size int) []byte {
	b := make([]byte, 42+size)
	b[12], b[13] = 0x08, 0x00
	b[14] = 0x45
	binary.BigEndian.PutUint16(b[16:], uint16(28+size))
	b[22], b[23] = 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[38:], uint16(8+size))
	for i := range size {
		b[42+i] = byte(i)
	}
	return b
}

func udp6(size int) []byte {
	b := make([]byte, 62+size)
	b[12], b[13] = 0x86, 0xdd
	b[14] = 0x60
	binary.BigEndian.PutUint16(b[18:], uint16(8+size))
	b[20], b[21] = unix.IPPROTO_UDP, 64
	binary.BigEndian.PutUint16(b[58:], uint16(8+size))
	return b
}

// icmp6 returns a packet of ICMPv6.
func icmp6(kind byte) []byte {
	b := udp6(8)
	b[20], b[54] = unix.IPPROTO_ICMPV6, kind
	return b
}

func other4(protocol byte) []byte {
	b := udp4(100)
	b[23] = protocol
	return b
}

func set(t *testing.T, w *Wire, d Direction, p Plan, renumber bool) {
	t.Helper()
	if err := w.SetPlan(loopback, d, &p, renumber); err != nil {
		t.Fatal(err)
	}
}

func tally(t *testing.T, w *Wire, d Direction) Tally {
	t.Helper()
	got, err := w.Tally(loopback, d)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestProgramIsFate sends thousands of packets through the program and compares
// with what Fate says of each.
func TestProgramIsFate(t *testing.T) {
	w := loaded(t)
	p := Plan{
		Seed: 42, Loss: 0.2, Corrupt: 0.3, Reorder: 0.4,
		Hold: 5 * time.Millisecond, Delay: time.Millisecond, Jitter: 100 * time.Microsecond,
	}
	set(t, w, From, p, false)
	var want Tally
	flipped := map[int]int{}
	header := 0
	for i := range uint64(4000) {
		packet, headers := udp4(200), 42
		if i%2 == 1 {
			packet, headers = udp6(200), 62
		}
		verdict, out, mark := pass(t, w, From, packet, 0)
		f := p.Fate(i)
		want.Drawn++
		if f.Lost != (verdict == dropped) {
			t.Fatalf("packet %d: verdict %d, %+v", i, verdict, f)
		}
		if f.Lost {
			want.Lost++
			continue
		}
		if f.Reordered {
			want.Reordered++
		}
		if mark != markFrom|microseconds(f.Hold) {
			t.Fatalf("packet %d: mark %x, %+v", i, mark, f)
		}
		differ, inHeader := 0, false
		for j := range packet {
			if n := bits.OnesCount8(packet[j] ^ out[j]); n > 0 {
				differ += n
				inHeader = j < headers
				if j < 14 {
					t.Fatalf("packet %d: the Ethernet header is damaged", i)
				}
			}
		}
		if f.Corrupted != (differ > 0) || differ > 3 {
			t.Fatalf("packet %d: %d bits flipped, %+v", i, differ, f)
		}
		if f.Corrupted {
			want.Corrupted++
			flipped[differ]++
			if inHeader {
				header++
			}
		}
	}
	if got := tally(t, w, From); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	n := int(want.Corrupted)
	if header < n/5 || header > n*3/10 || flipped[1] < n/4 || flipped[2] < n/4 || flipped[3] < n/4 {
		t.Errorf("of %d damaged packets %d in headers; bits: %v", n, header, flipped)
	}
	if other := tally(t, w, To); other != (Tally{}) {
		t.Errorf("the other direction: %+v", other)
	}
}

// TestHeld reads from the ring what the program wants held.
func TestHeld(t *testing.T) {
	w := loaded(t)
	p := Plan{Seed: 1, Delay: 3 * time.Millisecond, Jitter: time.Millisecond}
	set(t, w, To, p, false)
	const already = 500 // microseconds, drawn on the way in
	for i := range uint64(300) {
		packet := udp4(int(i) * 5)
		now := func() int64 {
			var ts unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
				t.Fatal(err)
			}
			return ts.Nano()
		}
		before := now()
		if verdict, _, _ := pass(t, w, To, packet, markFrom|already); verdict != dropped {
			t.Fatalf("packet %d is sent on at once", i)
		}
		after := now()
		held, err := w.ReadHeld()
		if err != nil {
			t.Fatal(err)
		}
		hold := (already*time.Microsecond + p.Fate(i).Hold).Nanoseconds()
		if held.Due < before+hold || held.Due > after+hold || held.Port != loopback || !bytes.Equal(held.Frame, packet) {
			t.Fatalf("packet %d: %d to %d ns from now, want %d; port %d; same: %v", i, held.Due-after, held.Due-before, hold, held.Port, bytes.Equal(held.Frame, packet))
		}
	}
	// A packet that comes again goes out, and so does one that is too long.
	if verdict, _, _ := pass(t, w, To, udp4(10), Mark); verdict != passed {
		t.Error("a held packet is not sent on")
	}
	if got := tally(t, w, To); got != (Tally{Drawn: 300, Held: 300}) {
		t.Errorf("%+v", got)
	}
}

// TestNoRoom sends packets on that there is no room to hold.
func TestNoRoom(t *testing.T) {
	w := loaded(t)
	set(t, w, To, Plan{Delay: time.Second}, false)
	packet := udp4(1400)
	for range 4000 { // the ring has 4 MiB
		pass(t, w, To, packet, 0)
	}
	got := tally(t, w, To)
	if got.Unheld == 0 || got.Held+got.Unheld != 4000 || got.Held < 2000 {
		t.Errorf("%+v", got)
	}
	if verdict, _, _ := pass(t, w, To, packet, 0); verdict != passed {
		t.Error("a packet is lost for want of room")
	}
}

// TestSpared checks which packets faults may strike.
func TestSpared(t *testing.T) {
	w := loaded(t)
	arp := udp4(0)
	arp[13] = 6
	hopByHop := udp6(8)
	hopByHop[20] = unix.IPPROTO_HOPOPTS
	for _, c := range []struct {
		name        string
		packet      []byte
		all, udp    bool
		ifCorrupted uint32
	}{
		{"UDP over IPv4", udp4(10), true, true, passed},
		{"UDP over IPv6", udp6(10), true, true, passed},
		{"UDP with nothing in it", udp4(0), true, true, passed},
		{"TCP", other4(unix.IPPROTO_TCP), true, false, dropped},
		{"ping", other4(unix.IPPROTO_ICMP), true, false, dropped},
		{"ping over IPv6", icmp6(128), true, false, dropped},
		{"group membership", other4(unix.IPPROTO_IGMP), false, false, passed},
		{"group membership over IPv6", hopByHop, false, false, passed},
		{"neighbour discovery", icmp6(135), false, false, passed},
		{"ARP", arp, false, false, passed},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, udpOnly := range []bool{false, true} {
				struck := c.all && !udpOnly || c.udp
				set(t, w, From, Plan{Loss: 1, UDPOnly: udpOnly}, false)
				if verdict, _, _ := pass(t, w, From, c.packet, 0); struck != (verdict == dropped) {
					t.Errorf("UDP only: %v; verdict %d", udpOnly, verdict)
				}
				set(t, w, From, Plan{Corrupt: 1, UDPOnly: udpOnly}, false)
				verdict, out, _ := pass(t, w, From, c.packet, 0)
				want := c.ifCorrupted
				if !struck {
					want = passed
				}
				damaged := struck && c.udp
				if verdict != want || verdict == passed && damaged == bytes.Equal(out, c.packet) {
					t.Errorf("UDP only: %v; verdict %d, want %d", udpOnly, verdict, want)
				}
				set(t, w, From, Plan{Cut: true}, false)
				if verdict, _, _ := pass(t, w, From, c.packet, 0); verdict != dropped {
					t.Errorf("it crosses a cut link")
				}
			}
		})
	}
	set(t, w, To, Plan{Cut: true}, false)
	if verdict, _, _ := pass(t, w, To, udp4(10), Mark); verdict != dropped {
		t.Error("a held packet crosses a cut link")
	}
}

// TestRenumber begins anew with the same seed.
func TestRenumber(t *testing.T) {
	w := loaded(t)
	p := Plan{Seed: 9, Loss: 0.5}
	verdicts := func() (all []uint32) {
		for range 100 {
			v, _, _ := pass(t, w, To, udp4(10), 0)
			all = append(all, v)
		}
		return all
	}
	same := func(a, b []uint32) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	set(t, w, To, p, true)
	first := verdicts()
	set(t, w, To, p, false)
	if same(first, verdicts()) {
		t.Error("numbers begin anew without being asked to")
	}
	set(t, w, To, p, true)
	if !same(first, verdicts()) {
		t.Error("the same seed gives another result")
	}
	if got := tally(t, w, To); got.Drawn != 300 {
		t.Errorf("%+v", got)
	}
}

// TestTurn turns packets around.
func TestTurn(t *testing.T) {
	const port = 0x1234
	for _, mtu := range []int{1500, 9000} {
		e, err := LoadEnds(mtu, port)
		if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
			t.Skipf("programs cannot be loaded here: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for _, c := range []struct {
			packet  []byte
			from    int // of addresses
			address int // their length
			udp     int
		}{{udp4(20), 26, 4, 34}, {udp6(20), 22, 16, 54}} {
			in := c.packet
			for i := range 12 {
				in[i] = byte(i + 1)
			}
			for i := range 2 * c.address {
				in[c.from+i] = byte(0x80 + i)
			}
			binary.BigEndian.PutUint16(in[c.udp:], 0x5678)
			binary.BigEndian.PutUint16(in[c.udp+2:], port)
			binary.BigEndian.PutUint16(in[c.udp+6:], 0xabcd)
			want := bytes.Clone(in)
			copy(want, in[6:12])
			copy(want[6:], in[:6])
			copy(want[c.from:], in[c.from+c.address:c.from+2*c.address])
			copy(want[c.from+c.address:], in[c.from:c.from+c.address])
			binary.BigEndian.PutUint16(want[c.udp:], port)
			binary.BigEndian.PutUint16(want[c.udp+2:], 0x5678)
			want[c.udp+6], want[c.udp+7] = 0, 0
			const pass, transmit = 2, 3
			verdict, out, err := e.objects.Turn.Test(in)
			if err != nil || verdict != transmit || !bytes.Equal(out, want) {
				t.Errorf("verdict %d, %v\n%x\n%x", verdict, err, out, want)
			}
			in[c.udp+3]++
			if verdict, out, err := e.objects.Turn.Test(in); err != nil || verdict != pass || !bytes.Equal(out, in) {
				t.Errorf("another port: verdict %d, %v", verdict, err)
			}
		}
		if seen, turned, err := e.Turned(); err != nil || seen != 4 || turned != 2 {
			t.Errorf("%d seen, %d turned, %v", seen, turned, err)
		}
	}
}

// TestCost keeps the programs cheap to verify on every kernel.
func TestCost(t *testing.T) {
	const budget = 10_000
	w := loaded(t)
	for _, p := range []*ebpf.Program{w.objects.FromHost, w.objects.ToHost} {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not tell (5.16 and up do)")
		}
		if n > budget {
			t.Errorf("%s: %d verified instructions, at most %d are wanted", info.Name, n, budget)
		}
	}
}
