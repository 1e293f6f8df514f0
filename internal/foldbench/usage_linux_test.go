// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	// user 1, nice 2, system 3, idle 400, iowait 500, irq 6, softirq 7, steal 800: 19 ticks of 10 ms.
	got, err := parseStat("cpu  1 2 3 400 500 6 7 800 0 0\ncpu0 1 1 1 1\n")
	if err != nil || got != 190*time.Millisecond {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9\n", "cpu 1 2 3\n", "cpu 1 2 x 4 5 6 7 8 9\n"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
