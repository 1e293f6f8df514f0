// SPDX-License-Identifier: Apache-2.0

//go:build race

package allreduce

// raceEnabled says that the race detector is at work, which allocates.
const raceEnabled = true
