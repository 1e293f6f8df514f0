// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"errors"
	"testing"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/commit"
	"github.com/quernmr/quern/shuffle/fold"
)

// A bounded sum carries nothing in the kernel, so a promise that was broken has to
// be found in what the manifests add up to.
func TestBoundIsKept(t *testing.T) {
	tooMuch, fits := commit.Total{Lo: 1 << 63}, commit.Total{Lo: 1<<63 - 1}
	for _, c := range []struct {
		name  string
		op    fold.Op
		bound bool
		sum   commit.Total
		ok    bool
	}{
		{"kept", fold.Sum, true, fits, true},
		{"broken", fold.Sum, true, tooMuch, false},
		{"broken by far", fold.Sum, true, commit.Total{Hi: 1}, false},
		{"never given", fold.Sum, false, tooMuch, true},
		{"no sum", fold.Max, true, tooMuch, true},
	} {
		e := Expect{SumAbs: []commit.Total{{}, c.sum}}
		err := e.promised(&shuffle.JobSpec{Ops: []fold.Op{fold.Sum, c.op}, Bound: []bool{true, c.bound}})
		if c.ok != (err == nil) || err != nil && !errors.Is(err, ErrOverflow) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
