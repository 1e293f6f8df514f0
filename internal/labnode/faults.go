// SPDX-License-Identifier: Apache-2.0

package labnode

import (
	"math/rand/v2"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

// DrawFaults draws what befalls the frames of a case: often nothing, or one kind of fault, or several.
func DrawFaults(rng *rand.Rand) (f netlab.Faults) {
	faults := []func(){
		func() { f.Loss = 0.2 * rng.Float64() },
		func() { f.Duplicate = 0.2 * rng.Float64() },
		func() { f.Reorder, f.Hold = 0.2*rng.Float64(), time.Duration(1+rng.IntN(5))*time.Millisecond },
		func() { f.Corrupt = 0.1 * rng.Float64() },
		func() {
			f.Delay, f.Jitter = time.Duration(rng.IntN(2000))*time.Microsecond, time.Duration(rng.IntN(1000))*time.Microsecond
		},
	}
	f.UDPOnly = true
	switch which := rng.IntN(len(faults) + 4); {
	case which < len(faults):
		faults[which]()
	case which < len(faults)+2:
	default: // a mix
		for _, fault := range faults {
			if rng.IntN(2) == 0 {
				fault()
			}
		}
	}
	return f
}
