// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"container/heap"
	"time"
)

// timer calls fire once its time has come. Timers of the same time fire in the order
// in which they were set.
type timer struct {
	at    time.Duration
	seq   uint64
	index int // in the heap, plus 1; 0: not set
	fire  func(*State)
}

type timers struct {
	heap []*timer
	seq  uint64
}

func (t *timers) Len() int { return len(t.heap) }
func (t *timers) Less(i, k int) bool {
	a, b := t.heap[i], t.heap[k]
	if a.at != b.at {
		return a.at < b.at
	}
	return a.seq < b.seq
}

func (t *timers) Swap(i, k int) {
	t.heap[i], t.heap[k] = t.heap[k], t.heap[i]
	t.heap[i].index, t.heap[k].index = i+1, k+1
}

func (t *timers) Push(x any) {
	x.(*timer).index = len(t.heap) + 1
	t.heap = append(t.heap, x.(*timer))
}

func (t *timers) Pop() any {
	n := len(t.heap) - 1
	x := t.heap[n]
	t.heap[n] = nil
	t.heap = t.heap[:n]
	x.index = 0
	return x
}

// set has a timer fire at that time, and at no other.
func (t *timers) set(x *timer, at time.Duration) {
	if x.index > 0 {
		if x.at == at {
			return
		}
		x.at = at
		heap.Fix(t, x.index-1)
		return
	}
	t.seq++
	x.at, x.seq = at, t.seq
	heap.Push(t, x)
}

func (t *timers) stop(x *timer) {
	if x.index > 0 {
		heap.Remove(t, x.index-1)
	}
}

// due takes the next timer that is due out.
func (t *timers) due(now time.Duration) *timer {
	if len(t.heap) == 0 || t.heap[0].at > now {
		return nil
	}
	return heap.Pop(t).(*timer)
}
