// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "os"

// labSignals returns none: there are no labs on this system.
func labSignals() (<-chan os.Signal, func()) { return nil, func() {} }

func codeOfState(s *os.ProcessState) int { return s.ExitCode() }
