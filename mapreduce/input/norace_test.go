// SPDX-License-Identifier: Apache-2.0

//go:build !race

package input

// fewer is by how much exhaustive tests are smaller: the race detector slows
// them down and has nothing more to find in the rest.
const fewer = 0
