// SPDX-License-Identifier: Apache-2.0

// Package benchlab is what benchmarks share whose ends are processes on the hosts of a
// netlab: a second network between the hosts that has no programs on it, roles whose
// standard output is theirs, processes that use processors, and what all of them used.
package benchlab
