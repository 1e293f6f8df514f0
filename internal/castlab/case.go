// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
)

// Limits bound what a case draws.
type Limits struct {
	Hosts   int // of the lab
	Kernel  int // the first so many have a kernel's help
	Mortal  int // the last so many are processes that may be killed, with a kernel's help but for the very last
	Members int // of a case, at most
	Largest int64
}

// Flavour says whose programs take part.
type Flavour string

// The flavours.
const (
	Programs Flavour = "programs" // all hosts have a kernel's help
	NoHelp   Flavour = "no help"  // nobody uses it
	Mixed    Flavour = "mixed"
)

// Case is a broadcast and what happens meanwhile. Hosts are numbers of the lab's, from 1 on.
type Case struct {
	Seed    uint64
	Flavour Flavour
	IPv6    bool
	Source  int
	Members []int
	Chains  int     // 0: chosen by the library
	Sizes   []int64 // of the messages of a group; one: a whole that is spread
	Window  int64   // of a whole: bytes of a region; 0: the library's
	Late    int     // so many members, the last ones, join a group after its first message
	Have    []int   // members that have it already
	Retain  bool    // members keep the memory beyond the region
	Faults  netlab.Faults
	Cut     []Event // links that are cut
	Killed  []Event // members that are killed
	Lost    []int   // members that must be left out, though they live
}

// Event is something that happens to a host.
type Event struct {
	Host  int
	After time.Duration // from the beginning on
	For   time.Duration // of a cut
}

func (c *Case) String() string {
	kind := fmt.Sprintf("%d bytes in regions of %d", c.Sizes[0], c.Window)
	if c.group() {
		kind = fmt.Sprintf("messages of %d bytes, %d late members", c.Sizes, c.Late)
	}
	return fmt.Sprintf("seed %d: %s, source %d, members %d, %s, %d chains, IPv6 %v, have %d, retain %v, cut %v, killed %v, faults %+v",
		c.Seed, c.Flavour, c.Source, c.Members, kind, c.Chains, c.IPv6, c.Have, c.Retain, c.Cut, c.Killed, c.Faults)
}

// group says whether it is a group with messages, rather than a whole that is spread.
func (c *Case) group() bool { return len(c.Sizes) > 1 }

// name is what the content is called: no two of a lab are called the same.
func (c *Case) name() string { return fmt.Sprintf("case %d", c.Seed) }

// content is message i.
func (c *Case) content(i int) Content { return Content{Seed: c.Seed<<8 + uint64(i), Size: c.Sizes[i]} }

// NewCase draws a case.
func NewCase(seed uint64, l Limits) *Case {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	c := &Case{Seed: seed, IPv6: rng.IntN(3) == 0, Retain: rng.IntN(2) == 0}
	c.Flavour = []Flavour{Programs, Programs, NoHelp, Mixed, Mixed}[rng.IntN(5)]

	usable := l.Hosts
	if c.Flavour == Programs {
		usable = l.Kernel
	}
	c.Source = 1 + rng.IntN(min(usable, l.Hosts-l.Mortal))
	var others []int
	for h := 1; h <= usable; h++ {
		if h != c.Source {
			others = append(others, h)
		}
	}
	if c.Flavour == Programs && l.Kernel < l.Hosts {
		// The last ones are mortal, and may have it, too.
		for h := l.Kernel + 1; h <= l.Hosts; h++ {
			if l.mortalKernel(h) {
				others = append(others, h)
			}
		}
	}
	rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	c.Members = others[:1+rng.IntN(min(l.Members, len(others)))]
	n := len(c.Members)
	if rng.IntN(2) == 0 {
		c.Chains = 1 + rng.IntN(n)
	}

	size := func(most int64) int64 {
		switch rng.IntN(8) {
		case 0:
			return 0
		case 1, 2, 3:
			return most/4 + rng.Int64N(most)*3/4
		}
		s := int64(1) << rng.IntN(bits(most))
		return min(most, s+rng.Int64N(s))
	}
	if rng.IntN(3) == 0 {
		for range 2 + rng.IntN(4) {
			c.Sizes = append(c.Sizes, size(l.Largest/8))
		}
		c.Late = rng.IntN(min(3, n))
	} else {
		c.Sizes = []int64{size(l.Largest)}
		if rng.IntN(3) == 0 {
			c.Window = c.Sizes[0]/int64(1+rng.IntN(4)) + 1
		}
	}
	for _, h := range c.Members[:n-c.Late] {
		if rng.IntN(16) == 0 {
			c.Have = append(c.Have, h)
		}
	}
	c.spoil(rng, l)
	return c
}

// mortalKernel says whether a host is mortal and has a kernel's help.
func (l Limits) mortalKernel(h int) bool { return h > l.Hosts-l.Mortal && h < l.Hosts }

// hasKernel says whether a host has a kernel's help.
func (l Limits) hasKernel(h int) bool { return h <= l.Kernel || l.mortalKernel(h) }

func bits(n int64) (b int) {
	for ; n > 1; n >>= 1 {
		b++
	}
	return max(b, 1)
}

// lossFree says whether nothing happens to it, but that it takes long perhaps.
func (c *Case) lossFree() bool {
	delay := netlab.Faults{Delay: c.Faults.Delay, UDPOnly: c.Faults.UDPOnly}
	return c.Faults == delay && len(c.Cut) == 0 && len(c.Killed) == 0
}

// spoil draws faults, cuts and deaths: often none, or few.
func (c *Case) spoil(rng *rand.Rand, l Limits) {
	c.Faults = labnode.DrawFaults(rng)
	soon := func() time.Duration { return time.Duration(rng.IntN(100)) * time.Millisecond }
	for _, h := range c.Members {
		switch {
		case h > l.Hosts-l.Mortal && rng.IntN(3) == 0:
			c.Killed = append(c.Killed, Event{Host: h, After: soon()})
		case rng.IntN(24) == 0:
			c.Cut = append(c.Cut, Event{Host: h, After: soon(), For: time.Duration(50+rng.IntN(400)) * time.Millisecond})
		}
	}
}
