// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

import (
	"context"
	"errors"
	"runtime"

	"github.com/quernmr/quern/mapreduce/task"
)

// Run is not built for this system.
func Run(context.Context, Spec) (*task.Reply, error) {
	return nil, &Error{Kind: System, Err: errors.ErrUnsupported, Message: "workers run programs on Linux alone, and this is " + runtime.GOOS}
}

// Sweep is not built for this system.
func Sweep(string) int { return 0 }
