// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"

	"github.com/quernmr/quern/shuffle"
)

// Packet builds packets for tests. Make one good packet, then break one thing. The
// methods change it and return it.
type Packet struct {
	Bytes  []byte
	layers layers
}

type layers struct {
	from, to       netip.AddrPort
	fromMAC, toMAC [6]byte
	ttl            uint8
	checksum       bool
}

// NewPacket returns a UDP packet from a sender to the receiver's port at 10.0.0.2, which holds a
// frame and has no UDP checksum. The frame is copied.
func NewPacket(frame []byte) *Packet {
	p := &Packet{layers: layers{
		from:    netip.MustParseAddrPort("10.0.0.1:40000"),
		to:      netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), shuffle.Port),
		fromMAC: [6]byte{2, 0, 0, 0, 0, 1}, toMAC: [6]byte{2, 0, 0, 0, 0, 2}, ttl: 61,
	}}
	return p.Frame(frame)
}

// NewPacket6 is like [NewPacket], over IPv6.
func NewPacket6(frame []byte) *Packet {
	return NewPacket(frame).Addresses(
		netip.MustParseAddrPort("[fd00::1]:40000"),
		netip.AddrPortFrom(netip.MustParseAddr("fd00::2"), shuffle.Port))
}

// Frame replaces the UDP payload, and makes all headers anew.
func (p *Packet) Frame(frame []byte) *Packet { return p.build(append([]byte(nil), frame...)) }

// Addresses sets source and destination, both IPv4 or both IPv6.
func (p *Packet) Addresses(from, to netip.AddrPort) *Packet {
	p.layers.from, p.layers.to = from, to
	return p.build(p.Payload())
}

// Ports sets the ports.
func (p *Packet) Ports(from, to uint16) *Packet {
	return p.Addresses(netip.AddrPortFrom(p.layers.from.Addr(), from), netip.AddrPortFrom(p.layers.to.Addr(), to))
}

// MACs sets the Ethernet addresses.
func (p *Packet) MACs(from, to [6]byte) *Packet {
	p.layers.fromMAC, p.layers.toMAC = from, to
	return p.build(p.Payload())
}

// Back makes the packet one of the opposite direction: acknowledgements come so.
func (p *Packet) Back() *Packet {
	l := &p.layers
	l.from, l.to, l.fromMAC, l.toMAC = l.to, l.from, l.toMAC, l.fromMAC
	return p.build(p.Payload())
}

// Checksum gives the packet a UDP checksum.
func (p *Packet) Checksum() *Packet {
	p.layers.checksum = true
	return p.build(p.Payload())
}

// Set overwrites bytes, the first at an offset from the packet's start.
func (p *Packet) Set(offset int, b ...byte) *Packet {
	copy(p.Bytes[offset:], b)
	return p
}

// SetIP overwrites bytes, counted from the IP header's start.
func (p *Packet) SetIP(offset int, b ...byte) *Packet { return p.Set(ethBytes+offset, b...) }

// SetUDP overwrites bytes, counted from the UDP header's start.
func (p *Packet) SetUDP(offset int, b ...byte) *Packet { return p.Set(p.udp()+offset, b...) }

// SetFrame overwrites bytes, counted from the frame's start.
func (p *Packet) SetFrame(offset int, b ...byte) *Packet {
	return p.Set(p.udp()+udpBytes+offset, b...)
}

// Cut shortens the packet to n bytes and leaves its headers as they are.
func (p *Packet) Cut(n int) *Packet {
	p.Bytes = p.Bytes[:n:n]
	return p
}

// Append appends bytes and leaves the headers as they are.
func (p *Packet) Append(b ...byte) *Packet {
	p.Bytes = append(p.Bytes, b...)
	return p
}

// Clone returns a copy.
func (p *Packet) Clone() *Packet {
	return &Packet{Bytes: append([]byte(nil), p.Bytes...), layers: p.layers}
}

// Payload returns the UDP payload, a part of Bytes.
func (p *Packet) Payload() []byte { return p.Bytes[min(len(p.Bytes), p.udp()+udpBytes):] }

// PayloadOf returns the UDP payload of a packet that [Host.Handle] gave out, IPv4 without
// options or IPv6 without extension headers.
func PayloadOf(b []byte) []byte {
	if be.Uint16(b[12:]) == 0x86dd {
		return b[ethBytes+ipv6Bytes+udpBytes:]
	}
	return b[ethBytes+ipv4Bytes+udpBytes:]
}

func (p *Packet) udp() int {
	if len(p.Bytes) >= ethBytes && be.Uint16(p.Bytes[12:]) == 0x86dd {
		return ethBytes + ipv6Bytes
	}
	return ethBytes + ipv4Bytes
}

// build makes the packet anew around a frame.
func (p *Packet) build(frame []byte) *Packet {
	l := &p.layers
	v6 := l.to.Addr().Is6()
	ipBytes, etherType := ipv4Bytes, uint16(0x0800)
	if v6 {
		ipBytes, etherType = ipv6Bytes, 0x86dd
	}
	b := make([]byte, ethBytes+ipBytes+udpBytes+len(frame))
	copy(b[0:], l.toMAC[:])
	copy(b[6:], l.fromMAC[:])
	be.PutUint16(b[12:], etherType)

	ip, udp := b[ethBytes:], b[ethBytes+ipBytes:]
	src, dst := l.from.Addr().AsSlice(), l.to.Addr().AsSlice()
	if v6 {
		ip[0] = 0x60
		be.PutUint16(ip[4:], uint16(len(udp)))
		ip[6], ip[7] = 17, l.ttl
		copy(ip[8:], src)
		copy(ip[24:], dst)
	} else {
		ip[0] = 0x45
		be.PutUint16(ip[2:], uint16(ipBytes+len(udp)))
		be.PutUint16(ip[4:], 0x1234)
		be.PutUint16(ip[6:], 0x4000) // don't fragment
		ip[8], ip[9] = l.ttl, 17
		copy(ip[12:], src)
		copy(ip[16:], dst)
		be.PutUint16(ip[10:], ^fold16(sum16(ip[:ipv4Bytes])))
	}
	be.PutUint16(udp, l.from.Port())
	be.PutUint16(udp[2:], l.to.Port())
	be.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[udpBytes:], frame)
	if l.checksum {
		sum := sum16(src) + sum16(dst) + 17 + uint32(len(udp)) + sum16(udp)
		c := ^fold16(sum)
		if c == 0 {
			c = 0xffff
		}
		be.PutUint16(udp[6:], c)
	}
	p.Bytes = b
	return p
}

// sum16 adds up b's 16-bit words; fold16 adds the carries in.
func sum16(b []byte) (sum uint32) {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(be.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold16(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
