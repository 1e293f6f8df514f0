// SPDX-License-Identifier: Apache-2.0

package allreduce

import "testing"

// Who watches in vain does so more and more rarely, and takes it up again once it is worth it.
func TestSpin(t *testing.T) {
	var s spin
	looked := 0
	never := func() bool { looked++; return false }
	for i, want := range []int{1, 2, 4, 8, 16, 32, spinMost, spinMost} {
		looked = 0
		if s.wait(never) || looked == 0 {
			t.Errorf("%d: it watched %d times", i, looked)
		}
		if s.skip != want {
			t.Errorf("%d: %d waits go by, want %d", i, s.skip, want)
		}
		looked = 0
		for s.skip > 0 {
			if s.wait(never) {
				t.Error("it came to be")
			}
		}
		if looked != 0 {
			t.Errorf("%d: it watched %d times where it should not have", i, looked)
		}
	}
	for range 10 {
		if !s.wait(func() bool { return true }) || s.skip != 0 {
			t.Errorf("%+v", s)
		}
	}
	if s.penalty != 0 {
		t.Errorf("%+v", s)
	}
	// It comes to be while one watches.
	looked = 0
	if !s.wait(func() bool { looked++; return looked == 2 }) {
		t.Error("it was missed")
	}
}
