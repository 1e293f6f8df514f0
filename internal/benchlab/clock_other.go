// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package benchlab

import (
	"errors"
	"time"
)

func ProcessTime(int) (time.Duration, error) {
	return 0, errors.New("processor times of other processes are read on Linux alone")
}

// Monotonic returns 0: what needs one clock for several processes runs on Linux alone.
func Monotonic() int64 { return 0 }
