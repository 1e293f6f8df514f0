// SPDX-License-Identifier: Apache-2.0

package push

import "time"

// now returns nanoseconds of CLOCK_MONOTONIC; it is never 0.
func now() int64 { return clockBase + int64(time.Since(start)) }
