// SPDX-License-Identifier: Apache-2.0

package bpf

import "sync"

// rounds runs a wait for callers that come at any time. A call is served by a
// wait that began after the call did; calls that arrive while one is running
// share the next. So many callers pay for two waits, not for one each.
type rounds struct {
	wait func() error

	mu      sync.Mutex
	running *round // nil: none
	next    *round // gathers callers; nil: nobody waits
}

type round struct {
	done chan struct{}
	err  error
}

func (r *rounds) do() error {
	r.mu.Lock()
	if mine := r.next; mine != nil {
		r.mu.Unlock()
		<-mine.done
		return mine.err
	}
	// The first of a round runs it.
	mine := &round{done: make(chan struct{})}
	r.next = mine
	before := r.running
	r.mu.Unlock()
	if before != nil {
		<-before.done
	}

	r.mu.Lock()
	r.next, r.running = nil, mine
	r.mu.Unlock()

	mine.err = r.wait()

	r.mu.Lock()
	if r.running == mine {
		r.running = nil
	}
	r.mu.Unlock()
	close(mine.done)
	return mine.err
}
