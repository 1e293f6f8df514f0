// SPDX-License-Identifier: Apache-2.0

package mapreduce

import "time"

// SetMaxRuns lowers the number of runs that may stand side by side, until the
// function that it returns is called.
func SetMaxRuns(n int) (restore func()) {
	old := maxRuns
	maxRuns = n
	return func() { maxRuns = old }
}

// SetKeepPause changes the least time between two checkpoints, until the function that it returns is called.
func SetKeepPause(d time.Duration) (restore func()) {
	old := keepPause
	keepPause = d
	return func() { keepPause = old }
}
