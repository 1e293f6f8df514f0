// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"
)

// maxRSS returns the peak of a resource usage in bytes.
func maxRSS(usage *syscall.Rusage) int64 {
	switch runtime.GOOS {
	case "darwin", "ios":
		return int64(usage.Maxrss)
	}
	return int64(usage.Maxrss) << 10 // the other systems count KiB
}

// childRSS returns the peak resident memory in bytes of a process that ended.
// 0: unknown.
func childRSS(state *os.ProcessState) int64 {
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		return maxRSS(usage)
	}
	return 0
}
