// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "os"

// peakRSS is not known on this system.
func peakRSS() int64 { return 0 }

// childRSS is not known on this system.
func childRSS(*os.ProcessState) int64 { return 0 }
