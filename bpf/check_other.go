// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bpf

import (
	"runtime"

	"github.com/quernmr/quern/shuffle"
)

// Examine says that this system can't.
func Examine(mode shuffle.Mode, o Options, _ string) *Report {
	r := &Report{XDPMode: o.XDP.String()}
	if len(o.Interfaces) > 0 {
		r.Interface = o.Interfaces[0]
	}
	r.add("system", Missing, "the kernel folds on Linux alone, and this is "+runtime.GOOS, "run Quern on Linux 5.15 or newer")
	r.conclude(mode)
	return r
}

// SelfTest returns an error that wraps ErrUnsupported.
func SelfTest() (string, error) { return "", errSystem }
