// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// What the clone program returns in a test run.
const (
	tcGoesOn    = ^uint32(0) // TC_ACT_UNSPEC
	tcRedirect  = 7
	offSkbMark  = 8   // of mark in struct __sk_buff
	sizeSkb     = 192 // of that struct
	cloneMark   = 0x514e434c
	packetTypes = 0x0003 // ETH_P_ALL
)

// tap is a socket that sees what leaves by the loopback interface.
type tap struct {
	t  testing.TB
	fd int
}

func newTap(t testing.TB) *tap {
	t.Helper()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	network := uint16(packetTypes<<8&0xff00 | packetTypes>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(network))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: lo.Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		t.Fatal(err)
	}
	return &tap{t, fd}
}

// read returns what has left since the last call: packets are there once the call that sends them returns.
func (p *tap) read() (all [][]byte) {
	p.t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(p.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}
		if err != nil {
			p.t.Fatal(err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			all = append(all, bytes.Clone(buf[:n]))
		}
	}
}

// TestRunClone gives packets that user space sends to the clone program, and looks at
// all that leaves: test runs send clones really, here by the loopback interface of a namespace of their own.
func TestRunClone(t *testing.T) {
	newLab(t)
	c := newCastTwins(t)
	tap := newTap(t)
	clone := c.rig.programs["quern_clone"]
	run := func(packet []byte, mark uint32) (verdict uint32, out []byte, markOut uint32) {
		t.Helper()
		o := ebpf.RunOptions{Data: packet, DataOut: c.rig.out[:cap(c.rig.out)], Context: make([]byte, sizeSkb), ContextOut: make([]byte, sizeSkb)}
		le.PutUint32(o.Context.([]byte)[offSkbMark:], mark)
		verdict, err := clone.Run(&o)
		if err != nil {
			t.Fatal(err)
		}
		return verdict, o.DataOut, le.Uint32(o.ContextOut.([]byte)[offSkbMark:])
	}
	rng := rand.New(rand.NewPCG(6, 6))
	clones := 0
	for round := range 400 {
		v6 := rng.IntN(2) == 0
		c.resetCasts()
		k := wire.Cast{Token: castToken(1), Job: 1, Chains: uint32(rng.IntN(12))}
		if round%10 == 0 {
			k.Chains = 60 + uint32(rng.IntN(6))
		}
		for i := range k.Heads {
			k.Heads[i] = hopTo(100+i, v6, testRunInterface)
			switch rng.IntN(12) {
			case 0:
				k.Heads[i].Interface = 0
			case 1:
				k.Heads[i].V6 ^= 1
			}
		}
		last := -1
		for i := range min(int(k.Chains), len(k.Heads)) {
			if h := k.Heads[i]; h.Interface != 0 && h.V6 == map[bool]uint8{true: 1}[v6] {
				last = i
			}
		}
		elsewhere := last >= 0 && rng.IntN(3) == 0
		if elsewhere {
			k.Heads[last].Interface = 99
		}
		c.cast(2, k)
		p := packetOf(c.chunk(wire.Chunk{Place: 4, First: 3, Total: 10, Chain: wire.ChainAll}, 11, 0, wire.ChunkSize), v6).Ports(shuffle.Port, shuffle.Port)
		if rng.IntN(4) == 0 {
			p.SetUDP(6, 0, 0) // no checksum
		}
		switch rng.IntN(14) {
		case 0:
			at := []int{0, 4, 7, 8, 24, 49, wire.HeadSize + 14}[rng.IntN(7)]
			p.SetFrame(at, p.Payload()[at]^1)
		case 1:
			p.SetIP(rng.IntN(10), byte(rng.Uint32()))
		case 2:
			p.Frame(p.Payload()[:rng.IntN(120)])
		}
		packet := p.Bytes
		mark := rng.Uint32()
		if rng.IntN(12) == 0 {
			mark = cloneMark
		}
		var want [][]byte
		if mark == cloneMark {
			want = [][]byte{bytes.Clone(packet)}
		} else {
			want, _ = c.model.Egress(bytes.Clone(packet))
		}
		touched := !bytes.Equal(want[len(want)-1], packet)
		tap.read()
		verdict, out, markOut := run(packet, mark)
		got := append(tap.read(), out)
		if len(got) != len(want) {
			t.Fatalf("round %d: %d packets, not %d\n%x", round, len(got), len(want), packet)
		}
		for i := range got {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("round %d, packet %d of %d:\n%x\nbecame\n%x\nnot\n%x", round, i, len(got), packet, got[i], want[i])
			}
		}
		wantVerdict, wantMark := tcGoesOn, mark
		switch {
		case mark == cloneMark: // it was here before
			wantMark = 0
		case touched && elsewhere: // where it goes there may be a program too
			wantVerdict, wantMark = tcRedirect, cloneMark
		}
		if verdict != wantVerdict || markOut != wantMark {
			t.Fatalf("round %d: verdict %d, mark %#x, not %d and %#x", round, int32(verdict), markOut, int32(wantVerdict), wantMark)
		}
		clones += len(got) - 1
	}
	if clones < 1000 {
		t.Errorf("%d clones", clones)
	}
}

// setTxChecksums has an interface leave checksums to whoever takes the packet, or not.
func setTxChecksums(t testing.TB, name string, on uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const setTxChecksum = 0x17 // ETHTOOL_STXCSUM
	value := [2]uint32{setTxChecksum, on}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&value)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
		t.Fatalf("checksums of %s: %v", name, e)
	}
}

// Clones have right checksums, wherever these are made: before the program or behind it, for one frame or
// for several that are cut apart later. Hosts without programs take them.
func TestCloneChecksums(t *testing.T) {
	l := newLab(t)
	const heads, frames = 3, 5
	addresses := func(v6 bool, i int) netip.AddrPort {
		if v6 {
			return netip.MustParseAddrPort(fmt.Sprintf("[fd77::2%d]:7117", i))
		}
		return netip.MustParseAddrPort(fmt.Sprintf("10.77.0.2%d:7117", i))
	}
	var far [2][heads]*net.UDPConn
	for i := range heads {
		sh(t, "ip -n %s addr add %s/24 dev b0", l.farN, addresses(false, i).Addr())
		sh(t, "ip -n %s addr add %s/64 dev b0 nodad", l.farN, addresses(true, i).Addr())
	}
	l.far(func() {
		for i := range heads {
			for version := range far {
				conn, err := net.ListenUDP([]string{"udp4", "udp6"}[version], net.UDPAddrFromAddrPort(addresses(version == 1, i)))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				far[version][i] = conn
			}
		}
	})
	h := openCasting(t, Options{Interfaces: []string{"a0"}})
	if !h.Clones() {
		t.Fatal("nothing clones")
	}
	tags := wire.NewTags([16]byte{7})
	for _, on := range []uint32{1, 0} {
		setTxChecksums(t, "a0", on)
		for version := range far {
			conn, err := net.ListenUDP([]string{"udp4", "udp6"}[version], nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			cast := &h.Ends().Casts[0]
			*cast = wire.Cast{Chains: heads}
			for i := range heads {
				to := addresses(version == 1, i)
				eventually(t, func() string {
					_, _ = conn.WriteToUDPAddrPort([]byte("who has it?"), to)
					var err error
					if cast.Heads[i], err = h.Hop(to); err != nil {
						return err.Error()
					}
					return ""
				})
			}
			cast.Token = castToken(1)
			var all [][]byte
			for i := range uint32(frames) {
				f, err := wire.PutChunk(make([]byte, wire.FrameSize), wire.Head{Token: cast.Token, Seq: i}, wire.Chunk{Place: i, Total: frames, Chain: wire.ChainAll},
					castData(int(i), wire.ChunkSize), tags)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, f)
			}
			for _, segment := range []bool{false, true} {
				// To somebody else than any of them: the packet itself goes to a head too.
				to := netip.MustParseAddrPort(net.JoinHostPort(map[bool]string{false: l.addrB, true: l.sixB}[version == 1], "7117"))
				if segment {
					control := make([]byte, unix.CmsgSpace(2))
					head := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
					head.Level, head.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
					head.SetLen(unix.CmsgLen(2))
					binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], wire.FrameSize)
					_, _, err := conn.WriteMsgUDPAddrPort(bytes.Join(all, nil), control, to)
					if on == 0 && errors.Is(err, unix.EIO) {
						t.Log("this kernel makes no checksums of packets that it cuts apart")
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
				} else {
					for _, f := range all {
						if _, err := conn.WriteToUDPAddrPort(f, to); err != nil {
							t.Fatal(err)
						}
					}
				}
				for i, c := range far[version] {
					_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
					for n := 0; n < frames; {
						buf := make([]byte, 1<<16)
						size, err := c.Read(buf)
						if err != nil {
							t.Fatalf("checksums by the far end %d, IPv%d, segments %v: head %d got %d frames: %v", on, 4+2*version, segment, i, n, err)
						}
						if string(buf[:size]) == "who has it?" {
							continue
						}
						if !bytes.Equal(buf[:size], all[n]) {
							t.Fatalf("head %d got something else as frame %d", i, n)
						}
						n++
					}
				}
			}
			cast.Token = 0
		}
	}
	l.far(func() {
		s, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			t.Fatal(err)
		}
		var lines [][]string
		for line := range strings.SplitSeq(string(s), "\n") {
			if strings.HasPrefix(line, "Udp: ") {
				lines = append(lines, strings.Fields(line))
			}
		}
		if wrong := lines[1][slices.Index(lines[0], "InCsumErrors")]; wrong != "0" {
			t.Errorf("%s packets had a wrong checksum", wrong)
		}
	})
}
