// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"errors"
	"net/netip"
)

// Transmitter sends frames past the sockets, and past all that the system does
// between a socket and an interface: filters and queueing disciplines too. It may be
// used from several goroutines. Package bpf implements it.
type Transmitter interface {
	// Transmit sends each frame as a packet of its own, without a UDP checksum, from a
	// port of this host to another host's. No news is not good news, as with sockets. An
	// error that wraps ErrNotNow says that the system has to find the way first, which it does
	// for what a socket sends there; with any other there is no use in trying again. Then no
	// frame was sent, or they count as lost.
	Transmit(from uint16, to netip.AddrPort, frames [][]byte) error
}

// TransmitAtOnce is the most frames of one Transmit.
const TransmitAtOnce = 256

// ErrNotNow is returned by a Transmitter that may be of use later.
var ErrNotNow = errors.New("the way to the host is not known yet")
