// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package allreduce

import "runtime"

// giveWay lets others have the processor, if any want it.
func giveWay() { runtime.Gosched() }
