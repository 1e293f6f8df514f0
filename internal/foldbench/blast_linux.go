// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/wire"
)

// blast sends frames of a stream that is open nowhere, 32 to a packet that the
// system cuts and two of those to a call, as push does. It returns the pairs sent.
func blast(outputs []*commit.Output, rounds int, to netip.AddrPort) (uint64, error) {
	const burst, packets, ports = 32, 2, 4
	spec := job()
	tags := wire.NewTags(spec.Secret)
	var conns []*ipv4.PacketConn
	for range ports {
		c, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return 0, fmt.Errorf("open a socket to send from: %w", err)
		}
		defer c.Close()
		conns = append(conns, ipv4.NewPacketConn(c))
	}
	ms := make([]ipv4.Message, packets)
	for i := range ms {
		ms[i] = ipv4.Message{Buffers: [][]byte{make([]byte, 0, burst*wire.FrameSize)}, Addr: net.UDPAddrFromAddrPort(to), OOB: make([]byte, unix.CmsgSpace(2))}
		binary.NativeEndian.PutUint64(ms[i].OOB, uint64(unix.CmsgLen(2)))
		binary.NativeEndian.PutUint32(ms[i].OOB[8:], unix.IPPROTO_UDP)
		binary.NativeEndian.PutUint32(ms[i].OOB[12:], unix.UDP_SEGMENT)
	}
	turn := 0
	var pairs uint64
	for range rounds {
		for _, o := range outputs {
			pairs += o.Manifest().Pairs
			for f := 0; f < o.Frames(); {
				n := 0
				for ; n < packets && f < o.Frames(); n++ {
					buf := ms[n].Buffers[0][:0]
					size := o.Size(f)
					for k := 0; k < burst && f < o.Frames() && o.Size(f) <= size; k++ {
						at := len(buf)
						buf = o.Frame(f, buf, wire.Head{Token: 1, Stream: 0, Seq: uint32(f % wire.Segment)})
						tags.SealData(buf[at:])
						f++
						if len(buf)-at < size {
							break
						}
					}
					stamp := uint64(time.Now().UnixNano())
					for at := 0; at < len(buf); at += size {
						wire.SetStamp(buf[at:min(at+size, len(buf))], stamp, at+size >= len(buf))
					}
					ms[n].Buffers[0] = buf
					binary.NativeEndian.PutUint16(ms[n].OOB[unix.CmsgLen(0):], uint16(size))
				}
				for rest := ms[:n]; len(rest) > 0; {
					turn++
					sent, err := conns[turn%ports].WriteBatch(rest, 0)
					if err != nil {
						return pairs, fmt.Errorf("send: %w", err)
					}
					rest = rest[sent:]
				}
			}
		}
	}
	return pairs, nil
}
