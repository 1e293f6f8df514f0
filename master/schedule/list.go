// SPDX-License-Identifier: Apache-2.0

package schedule

import "time"

// attempt is a try at a task that runs, or may.
type attempt struct {
	st      *stage
	task    uint32
	sa      uint32
	number  uint32
	epoch   uint64
	w       *worker // nil: it is gone, and the attempt lives on only because it is claimed
	at      string  // the worker's ID
	mem     int64
	started time.Duration
	done    float64
	spec    bool // a copy
	// waits: a reduce attempt that is known to lack a map output.
	waits bool
	// accused is the worker that a reduce attempt could not reach, and was believed.
	accused *worker
	// claimed: its result is being written to the journal.
	claimed    bool
	membership // of a gang

	sibling *attempt // the next attempt of the task
	links   [3]struct{ prev, next *attempt }
	in      [3]bool
}

// The lists that an attempt may be in.
const (
	byWorker = iota
	byStage  // in the order of their start
	bySpec   // those of a stage that may get a copy, in the order of their start
)

// list is a list of attempts in the order in which they were added.
type list struct {
	which       int
	first, last *attempt
	n           int
}

func (l *list) add(a *attempt) {
	// An attempt that returns to a list goes where its start belongs.
	after := l.last
	for after != nil && after.started > a.started {
		after = after.links[l.which].prev
	}
	k := &a.links[l.which]
	k.prev = after
	if after == nil {
		k.next = l.first
		l.first = a
	} else {
		k.next = after.links[l.which].next
		after.links[l.which].next = a
	}
	if k.next == nil {
		l.last = a
	} else {
		k.next.links[l.which].prev = a
	}
	a.in[l.which] = true
	l.n++
}

func (l *list) remove(a *attempt) {
	if !a.in[l.which] {
		return
	}
	k := &a.links[l.which]
	if k.prev == nil {
		l.first = k.next
	} else {
		k.prev.links[l.which].next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		k.next.links[l.which].prev = k.prev
	}
	*k = struct{ prev, next *attempt }{}
	a.in[l.which] = false
	l.n--
}

func (l *list) next(a *attempt) *attempt { return a.links[l.which].next }

// name is the attempt as the outside knows it.
func (a *attempt) name() Attempt {
	return Attempt{
		Job: a.st.job.ID, Stage: a.st.kind, StageAttempt: a.sa,
		Task: a.task, Number: a.number, Epoch: a.epoch,
	}
}
