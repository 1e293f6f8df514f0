// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// transmitter makes one at a0; it is closed at the end of the test.
func transmitter(t *testing.T, h *Host) *Transmitter {
	t.Helper()
	x, err := NewTransmitter(h)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func TestTransmit(t *testing.T) {
	l := newLab(t)
	h := open(t, Options{Interfaces: []string{"a0"}, Limits: small()})
	x := transmitter(t, h)
	var conn *net.UDPConn
	l.far(func() {
		pass, err := AttachPass("b0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pass.Close() })
		if conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(l.addrB)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		// All frames of a call at once are more than most systems allow a socket.
		_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) })
		if err != nil {
			t.Fatal(err)
		}
	})
	to := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	// Nobody has asked for the far end's hardware address yet.
	if err := x.Transmit(7, to, [][]byte{{1}}); !errors.Is(err, shuffle.ErrNotNow) {
		t.Errorf("an unknown neighbour: %v", err)
	}
	own, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := own.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	read := func() ([]byte, netip.AddrPort) {
		t.Helper()
		b := make([]byte, 2048)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		return b[:n], from
	}
	if b, _ := read(); string(b) != "hello" {
		t.Fatalf("%q came", b)
	}
	time.Sleep(2 * time.Millisecond)
	frame := func(i, size int) []byte {
		b := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2+1)
		return b[:size]
	}
	// The second call has fewer frames than the first: none of that may come again.
	for _, n := range []int{shuffle.TransmitAtOnce, 100, 1} {
		var frames [][]byte
		for i := range n {
			frames = append(frames, frame(i, []int{wire.FrameSize, 1, 128, wire.FrameSize}[i%4]))
		}
		if err := x.Transmit(4321, to, frames); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			b, from := read()
			if !bytes.Equal(b, frames[i]) || from != netip.AddrPortFrom(netip.MustParseAddr(l.addrA), 4321) {
				t.Fatalf("of %d, frame %d of %d bytes came as %d bytes from %s", n, i, len(frames[i]), len(b), from)
			}
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if n, from, err := conn.ReadFromUDPAddrPort(make([]byte, 2048)); err == nil {
		t.Errorf("%d more bytes came from %s", n, from)
	}
	for what, c := range map[string]struct {
		to     string
		frames [][]byte
		want   error
	}{
		"no frame":          {to.String(), nil, nil},
		"too many":          {to.String(), make([][]byte, shuffle.TransmitAtOnce+1), nil},
		"an empty frame":    {to.String(), [][]byte{{}}, nil},
		"too large a frame": {to.String(), [][]byte{make([]byte, wire.FrameSize+1)}, nil},
		"IPv6":              {"[" + l.sixB + "]:7", [][]byte{{1}}, ErrUnsupported},
		"ourselves":         {l.addrA + ":7", [][]byte{{1}}, ErrUnsupported},
		"no such host":      {"10.77.0.9:7", [][]byte{{1}}, shuffle.ErrNotNow},
		"no route":          {"192.0.2.1:7", [][]byte{{1}}, shuffle.ErrNotNow},
	} {
		if err := x.Transmit(7, netip.MustParseAddrPort(c.to), c.frames); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.Transmit(7, to, [][]byte{{1}}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Pages of packets come back from a far end that has made short answers of them, and
// are used again for packets that must be whole.
func TestTransmitAfterAnswers(t *testing.T) {
	l := newLab(t)
	h := open(t, Options{Interfaces: []string{"a0"}, Limits: small()})
	x := transmitter(t, h)
	var far *Host
	l.far(func() { far = open(t, Options{Interfaces: []string{"b0"}, Limits: small()}) })
	sh(t, "ip -n %s neigh replace %s dev a0 lladdr %s", l.hereN, l.addrB, hardwareOf(t, l))
	tags := wire.NewTags([16]byte{1, 2, 3})
	if err := far.SetJob(0, tags.Job()); err != nil {
		t.Fatal(err)
	}
	// All frames were seen: the program answers those that ask, whatever is in them.
	s := &far.Memory().Streams[0]
	s.Frames, s.Ops, s.Lanes, s.Flags = wire.Segment, wire.PackOps(wire.OpSumBound), 1, wire.FlagFold
	for i := range s.Seen {
		s.Seen[i] = 1<<32 - 1
	}
	s.Token = 99
	shape := wire.Keyed(1, 1, false)
	var frames [][]byte
	for i := range shuffle.TransmitAtOnce {
		b := make([]byte, wire.FrameSize)
		head := wire.Head{
			Magic: wire.Magic, Kind: wire.Data, Shape: shape, Count: uint8(shape.PairsPerFrame()), Version: wire.Version,
			Token: 99, Seq: uint32(i), Length: wire.BodySize,
		}
		head.Put(b)
		tags.SealData(b)
		wire.SetStamp(b, 1, true)
		frames = append(frames, b)
	}
	const calls = 4
	for range calls {
		if err := x.Transmit(4321, netip.AddrPortFrom(netip.MustParseAddr(l.addrB), uint16(far.Port())), frames); err != nil {
			t.Fatal(err)
		}
	}
	var reasons [wire.Reasons]uint64
	eventually(t, func() string {
		var err error
		if reasons, err = far.Reasons(); err != nil {
			t.Fatal(err)
		}
		if n := reasons[wire.Answered] + reasons[wire.Malformed]; n != calls*shuffle.TransmitAtOnce {
			return fmt.Sprintf("%d frames of %d came", n, calls*shuffle.TransmitAtOnce)
		}
		return ""
	})
	if reasons[wire.Malformed] != 0 {
		t.Errorf("of %d frames %d were answered, %d malformed", calls*shuffle.TransmitAtOnce, reasons[wire.Answered], reasons[wire.Malformed])
	}
}

// hardwareOf returns the address of b0.
func hardwareOf(t *testing.T, l *lab) (a string) {
	t.Helper()
	l.far(func() {
		i, err := net.InterfaceByName("b0")
		if err != nil {
			t.Fatal(err)
		}
		a = i.HardwareAddr.String()
	})
	return a
}

func TestHeaderSum(t *testing.T) {
	// The example of RFC 1071 with an odd carry: words 0001 f203 f4f5 f6f7 sum up to ddf2.
	if s := headerSum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); s != ^uint16(0xddf2) {
		t.Errorf("%#x", s)
	}
}

func TestTransmitterUnsupported(t *testing.T) {
	needRoot(t)
	h := open(t, Options{Limits: small()})
	if _, err := NewTransmitter(h); !errors.Is(err, ErrUnsupported) {
		t.Errorf("without an interface: %v", err)
	}
}
