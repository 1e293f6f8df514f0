// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/wire"
)

// ports is how many source ports frames leave from, as push has it.
const ports = 4

// blast sends frames of a stream that is open nowhere as push does: past the
// sockets, 192 at a time, or 32 to a packet that the system cuts and two of those to
// a call. It returns the pairs sent.
func blast(ctx context.Context, outputs []*commit.Output, rounds int, to netip.AddrPort, past shuffle.Transmitter) (pairs uint64, err error) {
	send := blastPast(to, past)
	if past == nil {
		var end func()
		if send, end, err = blastSockets(to); err != nil {
			return 0, err
		}
		defer end()
	}
	spec := job()
	tags := wire.NewTags(spec.Secret)
	const atOnce = 6 * burst
	buf := make([]byte, 0, atOnce*wire.FrameSize)
	var frames [][]byte
	for range rounds {
		for _, o := range outputs {
			pairs += o.Manifest().Pairs
			for f := 0; f < o.Frames(); {
				if ctx.Err() != nil {
					return pairs, context.Cause(ctx)
				}
				buf, frames = buf[:0], frames[:0]
				for ; len(frames) < atOnce && f < o.Frames(); f++ {
					at := len(buf)
					buf = o.Frame(f, buf, wire.Head{Token: 1, Stream: 0, Seq: uint32(f % wire.Segment)})
					tags.SealData(buf[at:])
					frames = append(frames, buf[at:])
				}
				stamp := uint64(time.Now().UnixNano())
				for i, frame := range frames {
					wire.SetStamp(frame, stamp, i%burst == burst-1)
				}
				if err := send(frames); err != nil {
					return pairs, err
				}
			}
		}
	}
	return pairs, nil
}

const burst = 32

func blastPast(to netip.AddrPort, past shuffle.Transmitter) func([][]byte) error {
	turn := 0
	return func(frames [][]byte) error {
		turn++
		return past.Transmit(uint16(40000+turn%ports), to, frames)
	}
}

// blastSockets sends frames of one size but for the last, which lie one behind the other.
func blastSockets(to netip.AddrPort) (send func([][]byte) error, end func(), err error) {
	const packets = 2
	var conns []*net.UDPConn
	var batches []*ipv4.PacketConn
	end = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for range ports {
		c, err := net.ListenUDP("udp4", nil)
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("open a socket to send from: %w", err)
		}
		conns, batches = append(conns, c), append(batches, ipv4.NewPacketConn(c))
	}
	ms := make([]ipv4.Message, packets)
	for i := range ms {
		ms[i] = ipv4.Message{Buffers: make([][]byte, 1), Addr: net.UDPAddrFromAddrPort(to), OOB: make([]byte, unix.CmsgSpace(2))}
		binary.NativeEndian.PutUint64(ms[i].OOB, uint64(unix.CmsgLen(2)))
		binary.NativeEndian.PutUint32(ms[i].OOB[8:], unix.IPPROTO_UDP)
		binary.NativeEndian.PutUint32(ms[i].OOB[12:], unix.UDP_SEGMENT)
	}
	turn := 0
	return func(frames [][]byte) error {
		for len(frames) > 0 {
			n := 0
			for ; n < packets && len(frames) > 0; n++ {
				few := frames[:min(burst, len(frames))]
				frames = frames[len(few):]
				bytes := 0
				for _, f := range few {
					bytes += len(f)
				}
				ms[n].Buffers[0] = few[0][:bytes]
				binary.NativeEndian.PutUint16(ms[n].OOB[unix.CmsgLen(0):], uint16(len(few[0])))
			}
			for rest := ms[:n]; len(rest) > 0; {
				turn++
				sent, err := batches[turn%ports].WriteBatch(rest, 0)
				if err != nil {
					return fmt.Errorf("send: %w", err)
				}
				rest = rest[sent:]
			}
		}
		return nil
	}, end, nil
}
