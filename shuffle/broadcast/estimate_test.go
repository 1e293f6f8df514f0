// SPDX-License-Identifier: Apache-2.0

package broadcast

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	e := newEstimate(0)
	for _, tc := range []struct {
		do    func()
		tries int
		want  time.Duration
	}{
		{func() {}, 0, firstTick},
		{func() {}, 2, 4 * firstTick},
		{func() {}, 60, mostTick},
		{func() { e.add(-1); e.add(time.Hour) }, 0, firstTick},
		{func() { e.add(100 * time.Microsecond) }, 0, leastTick},
		{func() { e = newEstimate(0); e.add(8 * ms) }, 0, 32 * ms}, // 2 x 8 + 4 x 4
		{func() { e.add(16 * ms) }, 0, 38 * ms},                    // 2 x 9 + 4 x 5
		{func() { e.spurious() }, 0, 76 * ms},
		{func() { e.calm(); e.calm() }, 0, 38 * ms},
		{func() { e = newEstimate(0); e.add(time.Second) }, 3, 4 * time.Second},
		{func() { e = newEstimate(time.Minute); e.add(ms) }, 3, time.Minute},
	} {
		tc.do()
		if got := e.patience(tc.tries); got != tc.want {
			t.Errorf("%+v after %d tries: %v, want %v", e, tc.tries, got, tc.want)
		}
	}
	for range 10 {
		e.spurious()
	}
	if e.slack != mostSlack {
		t.Errorf("slack %d", e.slack)
	}
}

// A process that reads answers late is not what answers take.
func TestEstimateOfLateReads(t *testing.T) {
	e := newEstimate(leastTick)
	for range 5 {
		e.add(time.Millisecond)
	}
	e.add(900 * time.Millisecond)
	if got := e.patience(0); got != mostOdd {
		t.Errorf("it waits for %v, want %v", got, mostOdd)
	}
	if got := e.pause(0); got != mostOdd {
		t.Errorf("a direct chunk counts as lost after %v, want %v", got, mostOdd)
	}
	e.spurious() // so it was too soon
	if got := e.patience(0); got != 2*mostOdd {
		t.Errorf("it waits for %v after that, want %v", got, 2*mostOdd)
	}
	// Where all answers take long, it is long: a mean of 200 ms, a deviation that has gone from 100 ms to next to nothing.
	far := newEstimate(leastTick)
	for range 40 {
		far.add(200 * time.Millisecond)
	}
	if got := far.patience(0); got < 400*time.Millisecond || got > 401*time.Millisecond {
		t.Errorf("over a long way it waits for %v", got)
	}
}
