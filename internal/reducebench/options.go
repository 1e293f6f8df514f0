// SPDX-License-Identifier: Apache-2.0

package reducebench

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
	Auto   = "auto"     // our protocol as a program gets it: frames as of Kernel for small vectors, streams for large ones
	Kernel = "kernel"   // its frames, with programs at all interfaces
	User   = "user"     // the same frames, taken in and added up by the members' processes
	Server = "ps-tcp"   // a parameter server in the first member's process
	Ring   = "ring-tcp" // each member sends to the next
)

// Paths are all paths, in the order of the table.
var Paths = []string{Auto, Kernel, User, Server, Ring}

// Usual are those that are measured if none are named.
var Usual = []string{Auto, Kernel, Server, Ring}

// Conditions of a run.
const (
	Idle = foldbench.Idle // nothing else runs
	Busy = foldbench.Busy // two processes per core do nothing but use it
)

// What the paths over TCP, and streams of Auto, go over.
const (
	Plain  = "plain"  // a bridge without programs at its interfaces, on which TCP has its offloads
	Switch = "switch" // the links of the kernel's path, on which no packet is larger than the MTU
)

// Networks are both.
var Networks = []string{Plain, Switch}

// Limits of what is measured.
const (
	MinMembers  = 2
	MaxMembers  = 32
	MaxElements = 1 << 26
)

// Options say what Run measures.
type Options struct {
	Members    []int
	Elements   []int // of vectors, int32
	Paths      []string
	Conditions []string
	Blocks     int           // times that each path has its turn, all else being equal
	Rounds     int           // most rounds of a turn
	Time       time.Duration // after which a turn begins no other burst
	Network    string        // of the paths over TCP, and of streams; "": Plain
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
		{name: "members", numbers: o.Members, least: MinMembers, most: MaxMembers},
		{name: "elements", numbers: o.Elements, least: 1, most: MaxElements},
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
	return nil
}
