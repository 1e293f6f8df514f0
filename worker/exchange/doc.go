// SPDX-License-Identifier: Apache-2.0

// Package exchange moves pairs between workers: it keeps what map tasks left
// here, pushes or serves it to whoever reduces, and gathers what a reduce
// attempt needs into runs on this worker's disk.
package exchange
