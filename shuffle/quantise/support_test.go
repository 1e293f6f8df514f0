// SPDX-License-Identifier: Apache-2.0

package quantise_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// hall is where members of a group within a test meet, written as plainly as can be.
type hall struct {
	mu      sync.Mutex
	moved   *sync.Cond
	size    int
	calls   int // of the round under way
	leaving int
	closed  error
	sums    allreduce.Vector
}

func newGroup(size int) []allreduce.Group {
	h := &hall{size: size}
	h.moved = sync.NewCond(&h.mu)
	members := make([]allreduce.Group, size)
	for i := range members {
		members[i] = &member{h, i}
	}
	return members
}

type member struct {
	*hall
	rank int
}

func (m *member) Rank() int { return m.rank }
func (m *member) Size() int { return m.size }

func (m *member) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed == nil {
		m.closed = fmt.Errorf("%w: member %d left", allreduce.ErrBroken, m.rank)
	}
	m.moved.Broadcast()
	return nil
}

func merge[T int32 | int64](op allreduce.Op, to, from []T) {
	for i, v := range from {
		switch op {
		case allreduce.Min:
			to[i] = min(to[i], v)
		case allreduce.Max:
			to[i] = max(to[i], v)
		default:
			to[i] += v
		}
	}
}

func (m *member) Reduce(_ context.Context, v allreduce.Vector) error {
	h := m.hall
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.leaving > 0 && h.closed == nil {
		h.moved.Wait()
	}
	if h.closed != nil {
		return h.closed
	}
	if h.calls == 0 {
		h.sums.Op = v.Op
		h.sums.Int32, h.sums.Int64 = append(h.sums.Int32[:0], v.Int32...), append(h.sums.Int64[:0], v.Int64...)
	} else {
		if h.sums.Op != v.Op || len(h.sums.Int32) != len(v.Int32) || len(h.sums.Int64) != len(v.Int64) {
			h.closed = fmt.Errorf("%w: different vectors", allreduce.ErrBroken)
			h.moved.Broadcast()
			return h.closed
		}
		merge(v.Op, h.sums.Int32, v.Int32)
		merge(v.Op, h.sums.Int64, v.Int64)
	}
	h.calls++
	if h.calls == h.size {
		h.leaving = h.size
		h.moved.Broadcast()
	}
	for h.leaving == 0 && h.closed == nil {
		h.moved.Wait()
	}
	if h.closed != nil {
		return h.closed
	}
	copy(v.Int32, h.sums.Int32)
	copy(v.Int64, h.sums.Int64)
	if h.leaving--; h.leaving == 0 {
		h.calls = 0
		h.moved.Broadcast()
	}
	return nil
}

// together runs f for all members at once and returns their errors; hanging is a failure.
func together(groups []allreduce.Group, f func(rank int, g allreduce.Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = f(i, g) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		panic("members hang")
	}
	return errs
}

func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b }
