// SPDX-License-Identifier: Apache-2.0

package mapreduce

// SetMaxRuns lowers the number of runs that may stand side by side, until the
// function that it returns is called.
func SetMaxRuns(n int) (restore func()) {
	old := maxRuns
	maxRuns = n
	return func() { maxRuns = old }
}
