// SPDX-License-Identifier: Apache-2.0

package push

import (
	"time"

	"github.com/quernmr/quern/shuffle/wire"
)

// answers are the two kinds of answers, told apart since the ones of processes
// wait for a CPU.
const (
	byKernel = iota
	byUser
)

// window decides how many frames may be in flight to one destination. It
// has no clock: times are nanoseconds that it is told.
//
// It grows by one frame a round trip, or doubles while nothing has gone wrong
// yet, and shrinks by a part on loss and on delay, at most once a round trip.
type window struct {
	size      float64 // frames
	threshold float64 // beyond it growth is slow
	ceiling   int
	flight    int
	delay     [2]int64 // how far beyond the shortest round trip is fine

	rtt   [2]estimate
	last  int   // who answered last
	since int64 // of the last shrinking: loss of frames sent before is the same event
	prior float64
	reo   int64 // factor of patience with reordering
	reoAt int64
}

// estimate follows round trips.
type estimate struct {
	smooth, vary, least int64
}

const (
	floorFrames = 16 // below it, timers rather than answers would set the pace
	firstFrames = 64 // and less if the receiver says so
	noThreshold = 1 << 30
)

func newWindow(o Options) window {
	return window{
		size: firstFrames, threshold: noThreshold, ceiling: o.Window, reo: 1,
		delay: [2]int64{int64(o.KernelDelay), int64(o.UserDelay)},
	}
}

// limit says how many frames may be in flight.
func (w *window) limit() int { return max(1, min(int(w.size), w.ceiling)) }

// room says how many more frames may go.
func (w *window) room() int { return max(0, w.limit()-w.flight) }

func (w *window) floor() float64 { return float64(max(1, min(floorFrames, w.ceiling))) }

// setCeiling takes the receiver's advice.
func (w *window) setCeiling(n int) {
	w.ceiling = max(1, n)
	w.size = min(w.size, float64(w.ceiling))
}

// begin sets the first window, while nothing is known of the way.
func (w *window) begin(share int) {
	if w.flight == 0 && w.rtt[byKernel].smooth == 0 && w.rtt[byUser].smooth == 0 && w.since == 0 {
		w.size = float64(min(share, firstFrames, w.ceiling))
	}
}

// sample takes a round trip.
func (w *window) sample(now, rtt int64, from uint32) {
	k := byKernel
	if from == wire.FromUser {
		k = byUser
	}
	w.last = k
	e := &w.rtt[k]
	if e.smooth == 0 {
		e.smooth, e.vary, e.least = rtt, rtt/2, rtt
	} else {
		d := rtt - e.smooth
		e.smooth += d / 8
		e.vary += (max(d, -d) - e.vary) / 4
		// The shortest one is forgotten slowly, as paths change.
		e.least = min(rtt, e.least+e.least>>12+1)
	}
	if over := rtt - e.least - w.delay[k]; over > 0 && now-w.since > e.smooth {
		w.shrink(now, max(0.7, 1-0.5*float64(over)/float64(rtt)))
	}
}

// acked tells of frames that arrived.
func (w *window) acked(n int) {
	if float64(w.flight+n)*2 < w.size {
		return // it was not the window that held frames back
	}
	if w.size < w.threshold {
		w.size += float64(n)
	} else {
		w.size += float64(n) / w.size
	}
	w.size = min(w.size, float64(w.ceiling))
}

// lost tells of a loss of a frame sent at a time.
func (w *window) lost(now, sent int64) {
	if sent > w.since {
		w.shrink(now, 0.7)
	}
}

func (w *window) shrink(now int64, by float64) {
	w.prior = w.size
	w.since = now
	w.size = max(w.floor(), w.size*by)
	w.threshold = w.size
}

// silent tells that a probe was answered by nothing.
func (w *window) silent(now int64) {
	w.since = now
	w.size = w.floor()
	w.threshold = max(w.threshold/2, w.size)
	if w.threshold > noThreshold/4 {
		w.threshold = float64(w.ceiling) / 2
	}
}

// spurious tells that a frame was taken for lost and was not: be more patient, and
// take the shrinking back.
func (w *window) spurious(now int64) {
	if now-w.reoAt > w.smooth() {
		w.reo, w.reoAt = min(w.reo*2, 64), now
	}
	w.size = min(max(w.size, w.prior), float64(w.ceiling))
}

func (w *window) smooth() int64 { return max(w.rtt[w.last].smooth, int64(20*time.Microsecond)) }

// patience is how long after it was sent a frame is waited for when later ones have arrived.
func (w *window) patience(now int64) int64 {
	if w.reo > 1 && now-w.reoAt > int64(200*time.Millisecond) {
		w.reo, w.reoAt = w.reo/2, now
	}
	e := &w.rtt[w.last]
	if e.smooth == 0 {
		return int64(20 * time.Millisecond)
	}
	return e.smooth + 2*e.vary + w.reo*max(e.smooth/4, int64(200*time.Microsecond))
}

// probe is how long to wait for an answer, after tries that had none.
func (w *window) probe(tries int) int64 {
	e := &w.rtt[w.last]
	t := int64(20 * time.Millisecond)
	if e.smooth != 0 {
		least := int64(time.Millisecond)
		if w.last == byUser {
			least = 5 * int64(time.Millisecond)
		}
		t = max(least, e.smooth+4*e.vary)
	}
	return min(t<<min(tries, 8), int64(500*time.Millisecond))
}
