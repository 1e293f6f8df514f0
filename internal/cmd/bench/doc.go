// SPDX-License-Identifier: Apache-2.0

// Command bench runs Quern beside other tools on the same files, checks that
// they all find the same, and prints time, memory and ratios. scripts/bench
// prepares what it needs and starts it.
package main
