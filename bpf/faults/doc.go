// SPDX-License-Identifier: Apache-2.0

// Package faults loads the programs that make the links of a lab: XDP programs
// for their ends, and the bad wire, tc programs that lose, double, damage, hold
// and cut. Package internal/netlab builds the lab around them.
//
// What happens to a packet is a function of a seed and of the packet's number
// on its port and direction. See Fate.
package faults
