// SPDX-License-Identifier: Apache-2.0

package push

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/wire"
)

// Jobs hands out the slots of a kernel's table of jobs, which the receiver at the
// same host uses too.
type Jobs interface {
	// Acquire returns a slot that holds the keys of a job.
	Acquire(job shuffle.JobID, keys *wire.Job) (slot int, err error)
	// Release is called once per Acquire, when no open slot of Memory.Outgoing names it.
	Release(job shuffle.JobID)
}

// Options steer a sender. The zero value is ready.
type Options struct {
	// Kernel absorbs acknowledgements if it is not nil; Jobs must then be set too.
	Kernel shuffle.Kernel
	Jobs   Jobs
	// Transmitter sends frames past the sockets to receivers whose programs fold. nil:
	// all go by sockets.
	Transmitter shuffle.Transmitter
	// Memory holds the sending ends if there is no kernel; nil: memory of its own.
	Memory *shuffle.Memory
	Log    *slog.Logger // nil: nothing is logged

	// Ports is how many source ports frames leave from per address family: they
	// spread the work over the receiver's CPUs, at the price of reordering. 0: 4.
	Ports int
	// Window is the most frames in flight to a destination whose
	// shuffle.Endpoint says nothing of it: a veth drops what goes beyond 256. 0: 192.
	Window int
	// Ahead is how many segments of a push are open at once; opening one takes
	// as long as sending several. 0: 12.
	Ahead int
	// Stall is how long a stream may go without progress. After a quarter of it the
	// stream is opened again, after half it goes over the control connection, and
	// if nothing comes of that for as long as Stall, the push fails. 0: 10 s.
	Stall time.Duration
	// Retry is how long a failing call of the control plane is repeated: a
	// receiver's process may be restarting. 0: 15 s.
	Retry time.Duration
	// Resets is how often in sequence a receiver may ask for everything to be
	// opened again until the push fails. 0: 8.
	Resets int
	// KernelDelay and UserDelay are how far round trips may be above the shortest
	// seen before the window shrinks, for answers of programs and of processes.
	// 0: 1 ms and 5 ms.
	KernelDelay, UserDelay time.Duration
	// NoSegmentation sends every frame as a packet of its own (no UDP_SEGMENT).
	NoSegmentation bool
}

// EnsureDefaults fills in what is 0.
func (o Options) EnsureDefaults() Options {
	orInt := func(p *int, d int) {
		if *p <= 0 {
			*p = d
		}
	}
	or := func(p *time.Duration, d time.Duration) {
		if *p <= 0 {
			*p = d
		}
	}
	orInt(&o.Ports, 4)
	orInt(&o.Window, 192)
	orInt(&o.Ahead, 12)
	orInt(&o.Resets, 8)
	or(&o.Stall, 10*time.Second)
	or(&o.Retry, 15*time.Second)
	or(&o.KernelDelay, time.Millisecond)
	or(&o.UserDelay, 5*time.Millisecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Request is one output to be sent.
type Request struct {
	Control shuffle.Control
	// Dest is the receiver's address, with its zone if it is link-local. The port is
	// that of Control.Endpoint.
	Dest   netip.Addr
	Output *commit.Output // must not go away before Push returns
	Job    shuffle.JobSpec
	Target shuffle.TargetSpec
	Map    uint32 // number of the map task
}

// Report says what a push did. Counts are of frames where nothing else is said.
type Report struct {
	Pairs         uint64 // in the output; all of them are folded if Push returned no error
	Frames        int    // in the output
	Segments      int
	Sent          uint64 // as packets, retransmissions included
	Retransmitted uint64
	Spurious      uint64 // retransmitted although the first one had arrived
	Delivered     uint64 // over the control connection
	Known         uint64 // that needed not be sent, as the receiver had them
	Acks          uint64 // answers taken in
	Wakeups       uint64 // times the loop that sends was woken by answers
	Probes        uint64 // times an answer was asked for since none came
	Bursts        uint64 // system calls that sent
	Past          uint64 // of Sent, those that went past the sockets
	Resets        int    // times everything was opened again
	Reopened      int    // streams opened again for lack of progress
	StatusCalls   int
	KernelRTT     RTT // of answers made by programs
	UserRTT       RTT // of answers made by processes
	Time          time.Duration
}

// RTT sums up round trips.
type RTT struct {
	Samples  uint64
	P50, P99 time.Duration // to within a sixteenth
}
