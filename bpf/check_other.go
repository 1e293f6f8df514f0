// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bpf

import "runtime"

// Examine says that this system can't.
func Examine(o Options) *Report {
	r := &Report{XDPMode: o.XDP.String()}
	if len(o.Interfaces) > 0 {
		r.Interface = o.Interfaces[0]
	}
	r.add("system", Missing, runtime.GOOS+" has no XDP", "run Quern on Linux 5.15 or newer")
	r.conclude()
	return r
}

// SelfTest returns an error that wraps ErrUnsupported.
func SelfTest() (string, error) { return "", errSystem }
