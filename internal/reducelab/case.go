// SPDX-License-Identifier: Apache-2.0

package reducelab

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/wire"
)

// Limits bound what a case draws.
type Limits struct {
	Hosts   int // of the lab
	Kernel  int // the first so many have a kernel's help
	Mortal  int // the last so many are processes that may be killed, with a kernel's help but for the very last
	Members int // of a group, at most
	Calls   int // of a group, at most
	Largest int // values of a vector
}

// mortal says whether a host's node is a process that may be killed.
func (l Limits) mortal(h int) bool { return h > l.Hosts-l.Mortal }

// hasKernel says whether a host has a kernel's help.
func (l Limits) hasKernel(h int) bool { return h <= l.Kernel || l.mortal(h) && h < l.Hosts }

// Flavour says whose programs take part.
type Flavour string

// The flavours.
const (
	Programs Flavour = "programs" // all members have a kernel's help
	NoHelp   Flavour = "no help"  // nobody uses it
	Mixed    Flavour = "mixed"
)

// Call is one call of all members.
type Call struct {
	Op   allreduce.Op
	Wide bool // int64, else int32
	Len  int
}

// Group is hosts, by rank, that make calls one after the other.
type Group struct {
	Members []int
	Bits    int // 0: chosen by the library
	Calls   []Call
}

// Pause has a member sleep before a call.
type Pause struct {
	Rank, Call int
	For        time.Duration
}

// End has a member end in a call: its process is killed, or its context ends.
type End struct {
	Rank, Call int
	After      time.Duration // the call's beginning
}

// Case is groups that reduce at the same time, and what happens meanwhile.
type Case struct {
	Seed    uint64
	Flavour Flavour
	IPv6    bool
	Groups  []Group                 // two have the same members
	Answers map[int]wire.AnswerMode // of hosts, where it is not AnswerTX
	Streams shuffle.StreamUse
	Faults  netlab.Faults
	Pauses  []Pause // in the first group
	Killed  []End   // of the first group
	GivesUp []End   // the same
	Formed  func()  // called once the groups are formed; nil: nothing
	Lost    []int   // ranks of the first group to whom something else happens
	// Patience is for how long a member need not answer; 0: long, where nothing happens to members, else the rig's.
	Patience time.Duration
}

func (c *Case) String() string {
	s := fmt.Sprintf("seed %d: %s, IPv6 %v", c.Seed, c.Flavour, c.IPv6)
	for _, g := range c.Groups {
		values := 0
		for _, call := range g.Calls {
			values += call.Len
		}
		s += fmt.Sprintf(", hosts %d make %d calls of %d values in all (bits %d)", g.Members, len(g.Calls), values, g.Bits)
	}
	return s + fmt.Sprintf(", streams %s, answers %v, pauses %v, killed %v, give up %v, faults %+v", c.Streams, c.Answers, c.Pauses, c.Killed, c.GivesUp, c.Faults)
}

// name is what a group of the case is called.
func (c *Case) name(group int) string { return fmt.Sprintf("case %d group %d", c.Seed, group) }

// whole says whether nothing may keep calls from being done.
func (c *Case) whole() bool { return len(c.Killed) == 0 && len(c.GivesUp) == 0 && len(c.Lost) == 0 }

// NewCase draws a case.
func NewCase(seed uint64, l Limits) *Case {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	c := &Case{Seed: seed, IPv6: rng.IntN(3) == 0, Answers: map[int]wire.AnswerMode{}}
	c.Flavour = []Flavour{Programs, Programs, Programs, NoHelp, Mixed, Mixed}[rng.IntN(6)]
	var hosts []int
	for h := 1; h <= l.Hosts; h++ {
		if c.Flavour != Programs || l.hasKernel(h) {
			hosts = append(hosts, h)
		}
	}
	rng.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	n := min(2+rng.IntN(l.Members-1), len(hosts))
	members := hosts[:n]
	for _, h := range members {
		if c.Flavour != NoHelp && l.hasKernel(h) && rng.IntN(8) == 0 {
			c.Answers[h] = []wire.AnswerMode{wire.AnswerTC, wire.AnswerUser}[rng.IntN(2)]
		}
	}
	c.Groups = []Group{drawGroup(rng, l, members)}
	if rng.IntN(4) == 0 {
		c.Groups = append(c.Groups, drawGroup(rng, l, members))
	}
	c.Faults = labnode.DrawFaults(rng)
	c.happen(rng, l)
	c.Streams = []shuffle.StreamUse{shuffle.StreamsBySize, shuffle.StreamsBySize, shuffle.StreamsAlways, shuffle.StreamsNever}[rng.IntN(4)]
	if c.Streams != shuffle.StreamsNever && rng.IntN(2) == 0 {
		// TCP suffers too, the control plane's included. It is slow where much is lost, and what is damaged behind a checksum is a broken stream.
		f := &c.Faults
		f.UDPOnly, f.Corrupt, f.Loss, f.Reorder = false, 0, min(f.Loss, 0.005), min(f.Reorder, 0.02)
	}
	return c
}

func drawGroup(rng *rand.Rand, l Limits, members []int) Group {
	g := Group{Members: append([]int(nil), members...)}
	rng.Shuffle(len(members), func(i, j int) { g.Members[i], g.Members[j] = g.Members[j], g.Members[i] })
	if rng.IntN(2) == 0 {
		g.Bits = 2 + rng.IntN(4)
	}
	// Many small calls, or few large ones.
	calls, largest := 1+rng.IntN(l.Calls), l.Largest
	if calls > 4 {
		largest = max(1, largest/calls)
	}
	for range calls {
		g.Calls = append(g.Calls, drawCall(rng, largest))
	}
	return g
}

func drawCall(rng *rand.Rand, largest int) Call {
	c := Call{Op: allreduce.Op(rng.IntN(3)), Wide: rng.IntN(2) == 0}
	block := wire.ChunkSize / 4
	if c.Wide {
		block /= 2
	}
	switch rng.IntN(4) {
	case 0: // around whole blocks
		c.Len = block*(1+rng.IntN(max(1, largest/block))) + rng.IntN(3) - 1
	case 1:
		c.Len = 1 + rng.IntN(largest)
	default:
		c.Len = 1 << rng.IntN(bits(largest))
		c.Len += rng.IntN(c.Len)
	}
	c.Len = max(1, min(c.Len, max(largest, 1)))
	return c
}

func bits(n int) (b int) {
	for ; n > 1; n >>= 1 {
		b++
	}
	return max(b, 1)
}

// happen draws what happens to members: often nothing.
func (c *Case) happen(rng *rand.Rand, l Limits) {
	g := &c.Groups[0]
	draw := func(rank int) End {
		return End{Rank: rank, Call: rng.IntN(len(g.Calls)), After: time.Duration(rng.IntN(2000)) * time.Microsecond}
	}
	for rank, h := range g.Members {
		switch {
		case l.mortal(h) && rng.IntN(4) == 0:
			c.Killed = append(c.Killed, draw(rank))
		case rng.IntN(24) == 0:
			c.Pauses = append(c.Pauses, Pause{Rank: rank, Call: rng.IntN(len(g.Calls)), For: time.Duration(rng.IntN(100)) * time.Millisecond})
		case rng.IntN(80) == 0:
			c.GivesUp = append(c.GivesUp, draw(rank))
		}
	}
}
