// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"context"
	"errors"

	"github.com/quernmr/quern/shuffle/allreduce"
)

// gang is how a member of an iteration comes by the others. Members are goroutines of this process, or
// processes on the workers of a cluster; each has a share of the splits.
type gang interface {
	// form says that this member has loaded its share and where its state stands (rounds done, -1: it has none), and
	// returns when all members are there. After a group has broken it is called again; members that were lost
	// come back in other processes, without a state. It wraps errGangDone if a member has come to the end
	// meanwhile: nothing is left to be done then.
	form(ctx context.Context, rounds int) (allreduce.Group, error)
	// keep keeps a state after that many rounds beyond this process, in the order of calls, unless one has been kept
	// a moment ago. One member calls it.
	keep(ctx context.Context, rounds int, state []byte) error
	// kept returns the state that was kept last, nil: none was.
	kept() (rounds int, state []byte)
	// say reports where the member is, for people: called once a round.
	say(p iterationProgress)
}

// errGangDone is wrapped by the error of form when there are no more rounds to be done.
var errGangDone = errors.New("the iteration is done")

// iterationProgress is what a member says after a round.
type iterationProgress struct {
	Round, Rounds int // done, and at most
	Change        float64
}
