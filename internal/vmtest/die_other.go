// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package vmtest

import "os/exec"

// dieWithParent does nothing: other systems have no such signal.
func dieWithParent(*exec.Cmd) {}
