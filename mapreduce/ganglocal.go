// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// localGang is the gang of a process that does an iteration alone: its one member has all splits, and
// shares the work among goroutines.
type localGang struct {
	file     *checkpointFile // nil: no states are kept
	at       time.Time       // when one was
	progress *atomic.Pointer[iterationProgress]
}

// keepPause is the least time between two states that are kept. Tests lower it.
var keepPause = time.Second

func (g *localGang) form(context.Context, int) (allreduce.Group, error) {
	return allreduce.Local(1)[0], nil
}

func (g *localGang) keep(_ context.Context, rounds int, state []byte) error {
	if g.file == nil || time.Since(g.at) < keepPause {
		return nil
	}
	if err := g.file.write(rounds, state); err != nil {
		return err
	}
	g.at = time.Now()
	return nil
}

// save keeps a state unless it has been kept.
func (g *localGang) save(s *iterationState) error {
	if g.file == nil || s.rounds <= g.file.rounds {
		return nil
	}
	return g.file.write(s.rounds, s.encode())
}

func (g *localGang) kept() (int, []byte) {
	if g.file == nil {
		return 0, nil
	}
	return g.file.rounds, g.file.state
}

func (g *localGang) say(p iterationProgress) { g.progress.Store(&p) }
