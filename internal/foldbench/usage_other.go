// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package foldbench

import (
	"errors"
	"time"
)

var errNoTimes = errors.New("processor times are read on Linux alone")

func processTime() (time.Duration, error) { return 0, errNoTimes }

// MachineTime needs Linux.
func MachineTime() (time.Duration, error) { return 0, errNoTimes }

// InterruptTime needs Linux.
func InterruptTime() (time.Duration, error) { return 0, errNoTimes }
