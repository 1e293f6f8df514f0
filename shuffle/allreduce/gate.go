// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"math"
	"sync/atomic"
)

// gate lets many in until it is shut, and then tells when all have left.
type gate struct {
	inside atomic.Int64
	idle   chan struct{}
}

const gateShut = math.MinInt64 / 2

func (g *gate) enter() bool {
	if g.inside.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.inside.Add(-1) == gateShut {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

// shut is called once. It returns when nobody is inside.
func (g *gate) shut() {
	if g.inside.Add(gateShut) != gateShut {
		<-g.idle
	}
}
