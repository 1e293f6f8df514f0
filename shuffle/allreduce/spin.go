// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"runtime"
	"time"
)

const (
	// spinFor is how long a call watches for results before it sleeps. To wake a member takes some 35 us of processor on a virtual machine, half of
	// them the program's that tells of the result; to give up the processor takes about 1 us, and others work meanwhile.
	spinFor = time.Millisecond
	// spinAlone is how long it watches without letting others of its own process go first, too.
	spinAlone = 30 * time.Microsecond
	// spinAway is after what time of giving up the processor once others were at work that need it for longer than
	// members of a group do: watching makes them slower, and whoever is woken goes before them.
	spinAway = 600 * time.Microsecond
	// spinMost is how many waits at most go by without watching after watching was in vain.
	spinMost = 64
)

// spin watches for what others do, and gives up the processor to whoever wants it meanwhile. Where it is in vain it is
// done more and more rarely.
type spin struct {
	skip, penalty int
}

// wait watches until something is so, and says whether it came to be.
func (s *spin) wait(so func() bool) bool {
	if s.skip > 0 {
		s.skip--
		return false
	}
	began := time.Now()
	last := began
	for {
		if so() {
			s.penalty /= 2
			return true
		}
		giveWay()
		now := time.Now()
		away, past := now.Sub(last), now.Sub(began)
		last = now
		if away <= spinAway && past <= spinFor {
			if past > spinAlone {
				runtime.Gosched()
			}
			continue
		}
		done := so()
		if away > spinAway || !done {
			s.penalty = min(spinMost, max(1, 2*s.penalty))
			s.skip = s.penalty
		}
		return done
	}
}
