// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

const (
	sendBuffer    = 4 << 20 // bytes; the system may allow less
	receiveBuffer = 4 << 20
	// segments is how many chunks go to the system as one packet that is cut later. More
	// than 45 do not fit into a packet.
	segments = 32
)

// port is what a source sends from, and hears answers at. One goroutine at a time waits; any may
// send, poke and close, also after it was closed. The system's is a socket; see listen.
type port interface {
	// number is that of the UDP port.
	number() uint16
	// local says which address of this host others see that sends to an address.
	local(to netip.Addr) (netip.Addr, error)
	// send sends frames that stand behind each other in b, all of size bytes but for a
	// smaller last one.
	send(b []byte, size int, to netip.AddrPort) error
	// wait hands over frames that came, at least one of them, or returns false at a time,
	// or when poke is called. Once the port is closed the error wraps net.ErrClosed.
	wait(until time.Time, f func(frame []byte)) (came bool, err error)
	// poke ends a wait, or the next one. Others may call it.
	poke()
	// close ends a wait, and returns when nobody uses the port any more. It is called once.
	close() error
}

// localAddress returns the address of this host that others see who get packets from it.
func localAddress(to netip.Addr) (netip.Addr, error) {
	// A socket that is connected and sends nothing knows.
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the way to %s: %w", to, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// frames puts chunks behind each other, for port.send.
type frames struct {
	buf  []byte
	size int
	n    int
}

func (f *frames) reset() { f.buf, f.size, f.n = f.buf[:0], 0, 0 }

func (f *frames) full() bool { return f.n == segments }

// add puts a chunk behind the others. Those before it are as large as a chunk gets.
func (f *frames) add(h wire.Head, c wire.Chunk, data []byte, tags *wire.Tags) error {
	if f.buf == nil {
		f.buf = make([]byte, 0, segments*wire.FrameSize)
	}
	at := len(f.buf)
	frame, err := wire.PutChunk(f.buf[at:at+wire.FrameSize], h, c, data, tags)
	if err != nil {
		return err
	}
	if f.n == 0 {
		f.size = len(frame)
	}
	f.buf = f.buf[:at+len(frame)]
	f.n++
	return nil
}
