// SPDX-License-Identifier: Apache-2.0

package shuffle

import (
	"fmt"
	"sync"

	"github.com/quernmr/quern/shuffle/wire"
)

// ErrNoSlot is returned when all slots for jobs' keys are in use.
var ErrNoSlot = fmt.Errorf("all slots for jobs' keys are in use; let some jobs finish, or raise the limit of jobs: %w", ErrBusy)

// JobSlots hands out the slots of a kernel's table of jobs. A host's sender and
// receiver share one, since programs check frames of both with the same keys.
type JobSlots struct {
	kernel Kernel
	mu     sync.Mutex
	held   map[JobID]*heldSlot
	free   []int // the lowest last
}

type heldSlot struct {
	slot, refs int
	keys       *wire.Job // in the slot; nil: not written by this process
}

// NewJobSlots hands out the first n slots of a kernel; n is Limits.Jobs.
func NewJobSlots(kernel Kernel, n int) *JobSlots {
	s := &JobSlots{kernel: kernel, held: map[JobID]*heldSlot{}}
	for i := n - 1; i >= 0; i-- {
		s.free = append(s.free, i)
	}
	return s
}

// Acquire returns a slot that holds the keys of a job, the same for each caller
// that holds it. It returns ErrNoSlot if there is none, and refuses other keys than
// those that the job is open with.
func (s *JobSlots) Acquire(job JobID, keys *wire.Job) (slot int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[job]; h != nil {
		switch {
		case h.keys == nil: // the slot was reserved
			if err := s.kernel.SetJob(h.slot, keys); err != nil {
				return 0, fmt.Errorf("keys of job %s: %w", job, err)
			}
			copied := *keys
			h.keys = &copied
		case *h.keys != *keys:
			return 0, fmt.Errorf("job %s is open with another secret; a job keeps its secret, give the new one another id", job)
		}
		h.refs++
		return h.slot, nil
	}
	if len(s.free) == 0 {
		return 0, ErrNoSlot
	}
	slot = s.free[len(s.free)-1]
	if err := s.kernel.SetJob(slot, keys); err != nil {
		return 0, fmt.Errorf("keys of job %s: %w", job, err)
	}
	s.free = s.free[:len(s.free)-1]
	copied := *keys
	s.held[job] = &heldSlot{slot, 1, &copied}
	return slot, nil
}

// Reserve holds the slot that an earlier process had for a job, as Acquire does.
// It reports whether the slot was free or is that job's.
func (s *JobSlots) Reserve(job JobID, slot int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[job]; h != nil {
		if h.slot != slot {
			return false
		}
		h.refs++
		return true
	}
	for i, f := range s.free {
		if f == slot {
			s.free = append(s.free[:i], s.free[i+1:]...)
			s.held[job] = &heldSlot{slot, 1, nil}
			return true
		}
	}
	return false
}

// Release is called once per Acquire or Reserve, when no open stream of the
// caller's names the slot and no program runs that began while one did.
func (s *JobSlots) Release(job JobID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[job]
	if h == nil {
		return
	}
	if h.refs--; h.refs == 0 {
		delete(s.held, job)
		s.free = append(s.free, h.slot)
	}
}
