// SPDX-License-Identifier: Apache-2.0

package castbench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/quernmr/quern/internal/foldbench"
)

// The paths.
const (
	Kernel     = "kernel"         // our protocol, with programs at all interfaces
	Relay      = "relay"          // the same frames, relayed by the members' processes
	Sequential = "tcp-sequential" // written to one connection after the other
	Parallel   = "tcp-parallel"   // a goroutine a connection
	Loop       = "udp-loop"       // datagrams to each member, acknowledged by its process
)

// Paths are all paths, in the order of the table.
var Paths = []string{Kernel, Relay, Sequential, Parallel, Loop}

// What joins the hosts that the kernel's path runs on.
const (
	Switch = "xdp-switch" // an XDP program that hands frames from link to link
	Bridge = "bridge"     // the machine's own, at the cost of what is measured
)

// Networks are all of those.
var Networks = []string{Switch, Bridge}

// Conditions of a run.
const (
	Idle = foldbench.Idle // nothing else runs
	Busy = foldbench.Busy // two processes per core do nothing but use it
)

// Limits of what is measured.
const (
	MaxMembers = 64
	MinBytes   = 8 // a message has a number, by which it differs from the others
	MaxBytes   = 1 << 30
)

// Options say what Run measures.
type Options struct {
	Members    []int
	Sizes      []int // of messages, in bytes
	Paths      []string
	Conditions []string
	Blocks     int           // times that each path has its turn, all else being equal
	Rounds     int           // most rounds of a turn
	Time       time.Duration // after which a turn begins no other round
	Chains     int           // of our protocol; 0: its own choice
	Window     int           // chunks in flight per chain; 0: its own choice
	Network    string        // of the kernel's path; "": Switch
	// Place is what roles' processes are started with, Spin those that use
	// processors; their hosts are chosen here.
	Place, Spin foldbench.Place
	Log         io.Writer // progress; nil: none
	Quick       bool      // nothing is waited for; figures mean little
}

// Check returns an error that names what is out of range.
func (o *Options) Check() error {
	for _, list := range []struct {
		name    string
		is      []string
		may     []string
		numbers []int
		least   int
		most    int
	}{
		{name: "members", numbers: o.Members, least: 1, most: MaxMembers},
		{name: "bytes", numbers: o.Sizes, least: MinBytes, most: MaxBytes},
		{name: "path", is: o.Paths, may: Paths},
		{name: "condition", is: o.Conditions, may: []string{Idle, Busy}},
	} {
		if len(list.is)+len(list.numbers) == 0 {
			return fmt.Errorf("no %s given", list.name)
		}
		for _, s := range list.is {
			if !slices.Contains(list.may, s) {
				return fmt.Errorf("%q is no %s (%s)", s, list.name, strings.Join(list.may, ", "))
			}
		}
		for _, n := range list.numbers {
			if n < list.least || n > list.most {
				return fmt.Errorf("%d %s: %d to %d are possible", n, list.name, list.least, list.most)
			}
		}
	}
	if o.Network != "" && !slices.Contains(Networks, o.Network) {
		return fmt.Errorf("%q is no network (%s)", o.Network, strings.Join(Networks, ", "))
	}
	if o.Blocks < 1 || o.Rounds < 1 {
		return fmt.Errorf("%d turns of %d rounds: 1 is the least of both", o.Blocks, o.Rounds)
	}
	if o.Chains < 0 || o.Window < 0 {
		return fmt.Errorf("%d chains and a window of %d: 0 is the least", o.Chains, o.Window)
	}
	return nil
}
