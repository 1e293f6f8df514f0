// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package main

import "syscall"

// peakRSS returns the most bytes that this process had in memory at once. 0:
// unknown.
func peakRSS() int64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return maxRSS(&usage)
}
