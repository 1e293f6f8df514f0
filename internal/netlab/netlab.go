// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"time"

	"github.com/quernmr/quern/bpf/faults"
)

// Limits of a lab.
const (
	MaxHosts = 200
	MinMTU   = 1280 // below it there is no IPv6
	MaxMTU   = 9216
)

// MaxSwitchMTU is the largest MTU of a lab with a switch.
const MaxSwitchMTU = faults.LinearMTU

// DefaultHold is how long a reordered packet is held at most if nothing is said.
const DefaultHold = 2 * time.Millisecond

// ErrUnavailable is wrapped by errors that say that this system or this user
// cannot have a lab.
var ErrUnavailable = errors.New("a lab is not possible here")

// errClosed is returned by what is done with a lab after Close.
var errClosed = errors.New("the lab is closed")

// Options describe a lab.
type Options struct {
	Hosts int    // 1 to MaxHosts
	MTU   int    // MinMTU to MaxMTU; 0: 1500
	Seed  uint64 // of what Faults draw
	// Faults hit every packet once, on its way to a host.
	Faults Faults
	// Queues is the number of queues of each link in each direction; a sender's
	// flows are spread over them. 0: 1. Programs at hosts that send back
	// (XDP_TX) use the queue of their CPU.
	Queues int
	// StaticNeighbours tells each host the hardware addresses of all others, so
	// that none has to be asked for. It takes Hosts squared entries.
	StaticNeighbours bool
	// Switch has UDP go from link to link by an XDP program, which is nearer to a switch
	// of its own than the bridge: that makes a packet buffer for each hop, in the time
	// of the machine that all hosts share. Faults are the bridge's: while any link has
	// one or is cut, all packets go by it. So do TCP, ARP, all that is for several hosts,
	// and UDP over IPv6 whose checksum the sender leaves to its card. Over IPv4 such
	// packets arrive without one. Generic receive offload is on at the hosts' links, so
	// that those without programs take packets, and the MTU is [MaxSwitchMTU] at most.
	Switch bool
	// Name begins the names of the namespaces, NAME-h1 and so on. "": one is made
	// up. Only one lab of a name can be there at once.
	Name string
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Check returns an error that says what of the options is not possible.
func (o Options) Check() error {
	_, err := o.withDefaults()
	return err
}

func (o Options) withDefaults() (Options, error) {
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	switch {
	case o.Hosts < 1 || o.Hosts > MaxHosts:
		return o, fmt.Errorf("a lab of %d hosts: 1 to %d are possible", o.Hosts, MaxHosts)
	case o.MTU < MinMTU || o.MTU > MaxMTU:
		return o, fmt.Errorf("an MTU of %d: %d to %d are possible", o.MTU, MinMTU, MaxMTU)
	case o.Switch && o.MTU > MaxSwitchMTU:
		return o, fmt.Errorf("an MTU of %d with a switch: at most %d is possible", o.MTU, MaxSwitchMTU)
	case o.Queues < 1 || o.Queues > 64:
		return o, fmt.Errorf("%d queues: 1 to 64 are possible", o.Queues)
	case o.Name != "" && !goodName.MatchString(o.Name):
		return o, fmt.Errorf("%q is no name for a lab: letters, digits, dots, dashes and underscores, at most 64", o.Name)
	}
	return o, o.Faults.Check()
}

// Direction is one of a link, as its host sees it.
type Direction = faults.Direction

// The directions.
const (
	From = faults.From // from the host
	To   = faults.To   // to the host
)

// Faults are what a link does to packets in one direction. Chances are 0 to 1.
// ARP, neighbour discovery and group management are spared; only a cut link
// stops them.
type Faults struct {
	Loss float64
	// Duplicate is the chance that a packet comes twice. The copy is never damaged,
	// and is reordered and delayed by draws of its own.
	Duplicate float64
	// Corrupt is the chance that one to three bits are flipped: three times in four
	// in what UDP carries, else in the IP and UDP headers. Checksums are not
	// mended; those that the sender leaves to its card are as good as the packet.
	// Packets of other protocols are dropped instead, as their checksums would do.
	Corrupt float64
	// Reorder is the chance that a packet is held so that later ones overtake it.
	Reorder float64
	Hold    time.Duration // longest that a reordered packet is held; 0: DefaultHold
	Delay   time.Duration // of every packet
	Jitter  time.Duration // up to that much more; different draws reorder
	UDPOnly bool          // spare all but UDP
}

func (f Faults) plan(seed uint64, cut bool) *faults.Plan {
	if f.Hold == 0 {
		f.Hold = DefaultHold
	}
	return &faults.Plan{
		Seed: seed, Loss: f.Loss, Duplicate: f.Duplicate, Corrupt: f.Corrupt, Reorder: f.Reorder,
		Hold: f.Hold, Delay: f.Delay, Jitter: f.Jitter, UDPOnly: f.UDPOnly, Cut: cut,
	}
}

// Check returns an error that names what is out of range.
func (f Faults) Check() error { return f.plan(0, false).Check() }

// Any says whether they change anything.
func (f Faults) Any() bool {
	return f.Loss > 0 || f.Duplicate > 0 || f.Corrupt > 0 || f.Reorder > 0 || f.Delay > 0 || f.Jitter > 0
}

// Tally counts what a link did in one direction.
type Tally struct {
	faults.Tally
	// Overrun is packets that the link dropped since its queue was full. It is no
	// fault that was asked for: a queue holds 256.
	Overrun uint64
}

func (t *Tally) add(o Tally) {
	t.Drawn += o.Drawn
	t.Lost += o.Lost
	t.Duplicated += o.Duplicated
	t.Corrupted += o.Corrupted
	t.Rejected += o.Rejected
	t.Reordered += o.Reordered
	t.Held += o.Held
	t.Unheld += o.Unheld
	t.Cut += o.Cut
	t.Overrun += o.Overrun
}

// Link counts what the link of one host did.
type Link struct{ From, To Tally }

// Counters are what all links did since the lab was made.
type Counters struct {
	Links []Link // of Host(1) and on
	// Released counts held packets that were sent on, Discarded those that could
	// not be; what is left is still held.
	Released, Discarded uint64
}

// Total adds up all links and directions.
func (c Counters) Total() Tally {
	var t Tally
	for _, l := range c.Links {
		t.add(l.From)
		t.add(l.To)
	}
	return t
}

// Addresses are the same in every lab.

// InterfaceName is that of a host's link.
const InterfaceName = "eth0"

// IPv4 returns the IPv4 address of host i.
func IPv4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 71, 17, byte(i)}) }

// IPv6 returns the IPv6 address of host i.
func IPv6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x71, 3: 0x17, 15: byte(i)})
}

// HardwareAddr returns the Ethernet address of host i.
func HardwareAddr(i int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x71, 0x17, 0, 0, byte(i)}
}

// The networks that the addresses are in.
const (
	bitsIPv4 = 24
	bitsIPv6 = 64
)

// Swept is a lab whose process ended without cleaning up.
type Swept struct {
	Lab       string
	Processes int // that were left in its hosts and have been killed
	Names     int // of namespaces that were removed
}
