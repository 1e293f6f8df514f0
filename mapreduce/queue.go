// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"errors"
	"sync"
)

var errAborted = errors.New("stopped because another range failed")

// queue writes the segments of tasks in the order of the tasks, part by part.
// A task whose turn has come writes at once; others keep their segments, and
// wait when they have too many or have run too far ahead.
type queue struct {
	w       *writePhase
	window  int
	mu      sync.Mutex
	cond    *sync.Cond
	turn    map[int]int // per partition: the task whose turn it is
	last    map[int]int // per partition: its last task
	pending map[int][]pendingSegment
	done    map[int]bool
	low     int // all tasks below are written
	total   int
	failed  int // tasks above are not wanted any more
}

type pendingSegment struct {
	segment
	recycle func([]byte)
}

func newQueue(w *writePhase, tasks []stretch) *queue {
	q := &queue{w: w, window: 2 * max(1, len(w.reducers)), turn: map[int]int{}, last: map[int]int{}, pending: map[int][]pendingSegment{}, done: map[int]bool{}, total: len(tasks), failed: len(tasks)}
	q.cond = sync.NewCond(&q.mu)
	for _, t := range tasks {
		if _, ok := q.turn[t.part]; !ok {
			q.turn[t.part] = t.index
		}
		q.last[t.part] = t.index
	}
	return q
}

// enter waits until a task is near enough to those being written; false if the
// work was aborted.
func (q *queue) enter(t stretch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for t.index <= q.failed && t.index >= q.low+q.window {
		q.cond.Wait()
	}
	return t.index <= q.failed
}

// abort stops the tasks above index: those below go on, so that of several
// errors the first in the output is always the one that is told.
func (q *queue) abort(index int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = min(q.failed, index)
	q.cond.Broadcast()
}

// put hands over a segment; last says that the task has no more.
func (q *queue) put(t stretch, s segment, last bool, recycle func([]byte)) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.index > q.failed {
		return errAborted
	}
	q.pending[t.index] = append(q.pending[t.index], pendingSegment{s, recycle})
	if !last {
		// A long range waits for its turn rather than fill the memory.
		for t.index <= q.failed && q.turn[t.part] != t.index {
			q.cond.Wait()
		}
		if t.index > q.failed {
			return errAborted
		}
	} else {
		q.done[t.index] = true
	}
	return q.write(t.part)
}

// write writes what may be written of a partition.
func (q *queue) write(part int) error {
	for {
		i := q.turn[part]
		segs := q.pending[i]
		delete(q.pending, i)
		// The lock is held while a segment is written: parts of one job go to one
		// disk or stream, and the others encode meanwhile.
		for _, s := range segs {
			if err := q.one(s); err != nil {
				q.failed = -1
				q.cond.Broadcast()
				return err
			}
		}
		if !q.done[i] {
			return nil
		}
		if i == q.last[part] {
			q.turn[part] = q.total // nobody's
			q.advance()
			return nil
		}
		q.turn[part] = i + 1
		q.advance()
	}
}

func (q *queue) one(s pendingSegment) error {
	if len(s.data) > 0 {
		p, err := q.w.part(s.part)
		if err != nil {
			return err
		}
		if _, err := p.Write(s.data); err != nil {
			return err
		}
		q.w.e.rows.Add(s.rows)
	}
	if s.data != nil {
		s.recycle(s.data)
	}
	return nil
}

// advance moves the low mark past all finished tasks.
func (q *queue) advance() {
	for q.low < q.total && q.done[q.low] && len(q.pending[q.low]) == 0 {
		q.low++
	}
	q.cond.Broadcast()
}
