// SPDX-License-Identifier: Apache-2.0

package allreduce

import "time"

const (
	// spinFor is how long a call watches for results before it sleeps: about what it costs to be woken.
	spinFor = 30 * time.Microsecond
	// spinAway is after what time of giving up the processor others were at work that need it: watching makes them slower.
	spinAway = 200 * time.Microsecond
	// spinMost is how many waits at most go by without watching after watching was in vain.
	spinMost = 64
)

// spin watches for what others do, for as short a time as it takes to be woken, and gives up the processor to whoever wants it
// meanwhile. Where it is in vain it is done more and more rarely.
type spin struct {
	skip, penalty int
}

// wait watches until something is so, and says whether it came to be.
func (s *spin) wait(so func() bool) bool {
	if s.skip > 0 {
		s.skip--
		return false
	}
	for began := time.Now(); ; {
		if so() {
			s.penalty /= 2
			return true
		}
		giveWay()
		switch took := time.Since(began); {
		case took > spinAway && so():
			s.penalty = min(spinMost, max(1, 2*s.penalty))
			s.skip = s.penalty
			return true
		case took > spinFor && !so():
			s.penalty = min(spinMost, max(1, 2*s.penalty))
			s.skip = s.penalty
			return false
		}
	}
}
