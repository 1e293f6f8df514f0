// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"time"
)

// Direction of a port, as its host sees it.
type Direction int

// The directions.
const (
	From Direction = 0 // from the host into the bridge
	To   Direction = 1 // from the bridge to the host
)

func (d Direction) String() string {
	if d == From {
		return "from"
	}
	return "to"
}

// LinearMTU is an MTU that XDP programs on a veth take without fragments on
// pages of 4 KiB; a little more may be possible. A switch takes no more.
const LinearMTU = 3498

// MaxHold bounds the sum of a plan's times. Both directions of a packet's way
// may hold it that long.
const MaxHold = 30 * time.Second

// Plan says what a wire does to packets in one direction. Chances are 0 to 1.
type Plan struct {
	Seed      uint64
	Loss      float64
	Duplicate float64
	Corrupt   float64
	Reorder   float64
	Hold      time.Duration // a reordered packet is held 1 us to this long
	Delay     time.Duration // every packet is held this long
	Jitter    time.Duration // and up to this much longer
	UDPOnly   bool
	Cut       bool
}

// Check returns an error that names what is out of range.
func (p *Plan) Check() error {
	for _, c := range []struct {
		name  string
		value float64
	}{{"loss", p.Loss}, {"duplicate", p.Duplicate}, {"corrupt", p.Corrupt}, {"reorder", p.Reorder}} {
		if !(c.value >= 0 && c.value <= 1) { // refuses NaN too
			return fmt.Errorf("%s is %v, want a chance of 0 to 1", c.name, c.value)
		}
	}
	for _, t := range []struct {
		name  string
		value time.Duration
	}{{"hold", p.Hold}, {"delay", p.Delay}, {"jitter", p.Jitter}} {
		if t.value < 0 || t.value > MaxHold {
			return fmt.Errorf("%s is %v, want 0 to %v", t.name, t.value, MaxHold)
		}
	}
	if sum := p.Hold + p.Delay + p.Jitter; sum > MaxHold {
		return fmt.Errorf("hold, delay and jitter add up to %v, at most %v are possible", sum, MaxHold)
	}
	if p.Reorder > 0 && p.Hold < time.Microsecond {
		return fmt.Errorf("reorder needs a hold of at least 1µs, not %v", p.Hold)
	}
	return nil
}

// active says whether anything is to be drawn.
func (p *Plan) active() bool {
	return p.Loss > 0 || p.Duplicate > 0 || p.Corrupt > 0 || p.Reorder > 0 || p.Delay > 0 || p.Jitter > 0
}

// Tally is what a wire did in one direction, in packets.
type Tally struct {
	Drawn      uint64 // packets that were subject to faults
	Lost       uint64
	Duplicated uint64
	Corrupted  uint64 // one to three bits flipped
	Rejected   uint64 // corrupted but not UDP, so dropped as its checksum would have done
	Reordered  uint64
	Held       uint64 // copied to user space, for reordering or delay
	Unheld     uint64 // to be held, but there was no room: sent on at once
	Cut        uint64 // dropped since the link is cut
}

// Held is a packet that a wire wants held.
type Held struct {
	Due   int64 // CLOCK_MONOTONIC, in nanoseconds
	Port  int   // index of the interface to send it out of, with Mark
	Frame []byte
}

// Mark is that of held packets when they are sent: they pass unchanged.
const Mark = markFrom | markTo

// Fate is what a plan's chances make of a packet, before its kind is looked at.
type Fate struct {
	Lost, Duplicated, Corrupted, Reordered bool
	Hold                                   time.Duration // of the packet
	CopyHold                               time.Duration // of its copy
}

// Fate returns what happens to the packet of that number, counted from 0 on one
// port in one direction. It is the same computation that the program makes.
func (p *Plan) Fate(number uint64) Fate {
	f := Fate{
		Lost:       p.chance(number, drawLoss, p.Loss),
		Duplicated: p.chance(number, drawDuplicate, p.Duplicate),
		Corrupted:  p.chance(number, drawCorrupt, p.Corrupt),
	}
	f.Reordered, f.Hold = p.holding(number, drawReorder)
	_, f.CopyHold = p.holding(number, drawCopyReorder)
	return f
}

func (p *Plan) chance(number, which uint64, chance float64) bool {
	return uint64(draw(p.Seed, number, which)) < threshold(chance)
}

func (p *Plan) holding(number, which uint64) (bool, time.Duration) {
	us := microseconds(p.Delay)
	reordered := p.chance(number, which, p.Reorder)
	if reordered {
		us += 1 + below(draw(p.Seed, number, which+1), microseconds(p.Hold))
	}
	return reordered, time.Duration(us+below(draw(p.Seed, number, which+2), microseconds(p.Jitter))) * time.Microsecond
}

func microseconds(d time.Duration) uint32 { return uint32(d / time.Microsecond) }

// threshold is how programs write a chance.
func threshold(chance float64) uint64 { return uint64(chance * (1 << 32)) }

// The rest mirrors c/wire.bpf.c and c/faults.h.

const (
	markFrom = 0x80000000
	markTo   = 0x40000000
)

const (
	drawLoss = iota
	drawDuplicate
	drawCorrupt
	drawReorder
	_ // hold
	_ // jitter
	drawCopyReorder

	draws = 16
)

func draw(seed, number, which uint64) uint32 {
	return uint32(mix(seed+(number*draws+which+1)*golden) >> 32)
}

func below(random, n uint32) uint32 { return uint32(uint64(random) * uint64(n) >> 32) }

const golden = 0x9e3779b97f4a7c15

// mix is the output function of splitmix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// SeedOf derives the seed of one direction of one host's wire from a lab's.
func SeedOf(seed uint64, host int, direction Direction) uint64 {
	return mix(mix(seed) + (uint64(host)*2+uint64(direction)+1)*golden)
}
