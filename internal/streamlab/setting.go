// SPDX-License-Identifier: Apache-2.0

package streamlab

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/receive"
)

// Setting is what a job runs on.
type Setting struct {
	Hosts int
	// Kernel says per host whether programs fold and absorb there.
	Kernel []bool
	IPv6   bool
	// Past has senders with a kernel's help send past the sockets where that can be.
	Past bool
	// Faults hit every packet on its way to a host.
	Faults netlab.Faults
	// TableBits, TableMemory and FoldMemory make tables and memory too small. 0: the
	// receiver's own sizes.
	TableBits   int
	TableMemory int64
	FoldMemory  int64
	Ports       int
	Stall       time.Duration
	Log         *slog.Logger
}

func (s Setting) String() string {
	return fmt.Sprintf("%d hosts, kernel %v, IPv6 %v, past sockets %v, table bits %d, table memory %d, fold memory %d, %d ports, faults %+v",
		s.Hosts, s.Kernel, s.IPv6, s.Past, s.TableBits, s.TableMemory, s.FoldMemory, s.Ports, s.Faults)
}

// NewSetting draws a setting: one fault or a mix, up to 20 % loss.
func NewSetting(seed uint64, hosts int) Setting {
	rng := rand.New(rand.NewPCG(seed, 0xd1b54a32d192ed03))
	s := Setting{
		Hosts: hosts,
		IPv6:  rng.IntN(3) == 0,
		Ports: 1 + rng.IntN(4),
		// No run is to end for want of time: with 20 % loss and machines that are
		// busy, silence of seconds happens.
		Stall: time.Minute,
	}
	s.Past = rng.IntN(2) == 0
	for range hosts {
		s.Kernel = append(s.Kernel, rng.IntN(4) > 0)
	}
	if rng.IntN(2) == 0 {
		s.TableBits = 10 + rng.IntN(4)
	}
	switch rng.IntN(4) {
	case 0:
		s.TableMemory = 1 << 20
	case 1:
		s.TableMemory = 8 << 20
	}
	if rng.IntN(3) == 0 {
		s.FoldMemory = 2 << 20
	}
	f := &s.Faults
	faults := []func(){
		func() { f.Loss = 0.2 * rng.Float64() },
		func() { f.Duplicate = 0.2 * rng.Float64() },
		func() { f.Reorder, f.Hold = 0.2*rng.Float64(), time.Duration(1+rng.IntN(5))*time.Millisecond },
		func() { f.Corrupt = 0.1 * rng.Float64() },
		func() {
			f.Delay, f.Jitter = time.Duration(rng.IntN(2000))*time.Microsecond, time.Duration(rng.IntN(1000))*time.Microsecond
		},
	}
	f.UDPOnly = true
	switch which := rng.IntN(len(faults) + 3); {
	case which < len(faults):
		faults[which]()
	case which == len(faults):
	default: // a mix
		for _, fault := range faults {
			if rng.IntN(2) == 0 {
				fault()
			}
		}
	}
	return s
}

// Report is what a run did.
type Report struct {
	Pairs, Kernel, User, Retransmitted, Delivered, Past, Flips, Runs uint64
	Overflows                                                        int // partitions whose sum was rightly reported not to fit
	Receivers                                                        []receive.Stats
	Time                                                             time.Duration
}
