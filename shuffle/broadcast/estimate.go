// SPDX-License-Identifier: Apache-2.0

package broadcast

import "time"

// Bounds of how long nothing may come until a source looks.
const (
	leastTick = 4 * time.Millisecond
	firstTick = 20 * time.Millisecond // while no round trip is known
	mostTick  = 500 * time.Millisecond
	// leastPause is shorter: that a member lacks a chunk is known, so sending it in vain costs little.
	leastPause = time.Millisecond
)

// mostSlack bounds how much longer is waited where answers came that had been taken for lost.
const mostSlack = 16

// An answer is timed when the source's process reads it, which may be long after it came where others want the processor too. So what is made of the
// mean and the deviation is at most that many times the least time that any answer took, unless it is shorter than mostOdd anyway.
const (
	mostOdd   = 50 * time.Millisecond
	mostTimes = 8
)

// estimate follows the time from a chunk to its answer.
type estimate struct {
	smooth, vary time.Duration
	fastest      time.Duration
	slack        int           // factor of patience, 1 or more
	least        time.Duration // of patience
}

func newEstimate(least time.Duration) estimate {
	return estimate{slack: 1, least: max(least, leastTick)}
}

func (e *estimate) add(d time.Duration) {
	if d <= 0 || d > 10*time.Second {
		return
	}
	if e.smooth == 0 {
		e.smooth, e.vary, e.fastest = d, d/2, d
		return
	}
	e.fastest = min(e.fastest, d)
	diff := d - e.smooth
	e.smooth += diff / 8
	e.vary += (max(diff, -diff) - e.vary) / 4
}

// usual is how long hardly any answer takes.
func (e *estimate) usual() time.Duration {
	return min(2*e.smooth+4*e.vary, max(mostOdd, mostTimes*e.fastest))
}

// spurious tells that what was taken for lost was not: the machines are busy.
func (e *estimate) spurious() { e.slack = min(2*e.slack, mostSlack) }

// calm tells that a message went through without a pause.
func (e *estimate) calm() { e.slack = max(1, e.slack/2) }

// patience is how long an answer is waited for, after tries in which none came.
func (e *estimate) patience(tries int) time.Duration {
	t := max(firstTick, e.least)
	if e.smooth != 0 {
		t = max(e.least, e.usual())
	}
	return max(e.least, min(t*time.Duration(e.slack)<<min(tries, 8), max(mostTick, t)))
}

// pause is after what time a direct chunk that was not answered counts as lost, after tries in which nothing came.
func (e *estimate) pause(tries int) time.Duration {
	t := firstTick
	if e.smooth != 0 {
		t = max(leastPause, e.usual())
	}
	return min(t*time.Duration(e.slack)<<min(tries, 8), max(mostTick, t))
}
