// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"sync"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// moves is a queue of where map outputs are now: whoever fills it never waits.
type moves struct {
	mu   sync.Mutex
	list []*api.MapOutput
	more chan struct{}
}

func newMoves() *moves { return &moves{more: make(chan struct{}, 1)} }

func (m *moves) add(o *api.MapOutput) {
	m.mu.Lock()
	m.list = append(m.list, o)
	m.mu.Unlock()
	select {
	case m.more <- struct{}{}:
	default:
	}
}

// pump hands all over, as it comes, until ctx is done or hand says so.
func (m *moves) pump(ctx context.Context, hand func(*api.MapOutput) bool) {
	for {
		m.mu.Lock()
		list := m.list
		m.list = nil
		m.mu.Unlock()
		for _, o := range list {
			if !hand(o) {
				return
			}
		}
		select {
		case <-m.more:
		case <-ctx.Done():
			return
		}
	}
}
