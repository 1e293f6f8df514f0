// SPDX-License-Identifier: Apache-2.0

package push

import (
	"time"

	"golang.org/x/sys/unix"
)

// clockBase is CLOCK_MONOTONIC, which programs in the kernel read too, at start.
// Go's own monotonic clock is the same one, at another offset.
var start, clockBase = func() (time.Time, int64) {
	var best, base int64
	begin := time.Now()
	for i := range 5 {
		before := time.Since(begin)
		var ts unix.Timespec
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
			break
		}
		after := time.Since(begin)
		if d := int64(after - before); i == 0 || d < best {
			best, base = d, ts.Nano()-int64(before+after)/2
		}
	}
	return begin, base
}()
