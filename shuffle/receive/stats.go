// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

type spillStats struct{ runs, bytes atomic.Uint64 }

// Stats count what a receiver has done since it began.
type Stats struct {
	Reasons [wire.Reasons]uint64 // how frames ended in user space
	Busy    uint64               // frames that found no room and were left to be sent again
	Kernel  [wire.Reasons]uint64 // how they ended in the kernel
	Streams int                  // open now
	Flips   uint64               // tables sealed
	Tables  uint64               // tables made
	NoTable uint64               // times that the budget had no table
	Runs    uint64               // written to disk
	Spilled uint64               // bytes of them
}

// Stats returns what was done so far.
func (r *Receiver) Stats() Stats {
	s := Stats{
		Flips: r.tables.flips.Load(), Tables: r.tables.made.Load(), NoTable: r.tables.refused.Load(),
		Runs: r.spilled.runs.Load(), Spilled: r.spilled.bytes.Load(),
	}
	for _, h := range append(r.hands[:len(r.hands):len(r.hands)], r.control) {
		for i := range s.Reasons {
			s.Reasons[i] += h.counts[i].Load()
		}
		s.Busy += h.counts[busy].Load()
	}
	r.mu.Lock()
	s.Streams = r.open
	closed := r.closed
	r.mu.Unlock()
	if r.kernel != nil && !closed {
		if k, err := r.kernel.Reasons(); err == nil {
			s.Kernel = k
		}
	}
	return s
}

// Totals returns how far the books of a target are: what its complete streams
// held, and what was folded.
func (r *Receiver) Totals(id shuffle.TargetID) (Totals, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, err := r.target(id)
	if err != nil {
		return Totals{}, err
	}
	if t.finished != nil {
		return *t.finished, nil
	}
	b := Totals{Streams: len(t.done)}
	for _, d := range t.done {
		b.Sent += d.pairs
	}
	if !t.vacated {
		for i := range r.cells(t.slot) {
			b.Kernel += atomic.LoadUint64(&r.cells(t.slot)[i].Pairs)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b.User = t.userPairs
	return b, nil
}

// String says in one line who folds here.
func (r *Receiver) String() string {
	switch {
	case r.folds:
		return fmt.Sprintf("kernel (%s), port %d", r.kernel, r.port)
	case r.opts.Mode == shuffle.UserOnly:
		return fmt.Sprintf("user space, port %d: as it was told", r.port)
	}
	return fmt.Sprintf("user space, port %d: there is no kernel's help", r.port)
}
