// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package input

import (
	"context"
	"os"
)

// waiter returns nil: reads of standard input are only cancelled between blocks.
func waiter(*os.File) func(context.Context) error { return nil }

func openBlocking(_ context.Context, path string) (*os.File, error) { return os.Open(path) }
