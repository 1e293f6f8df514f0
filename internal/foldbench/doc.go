// SPDX-License-Identifier: Apache-2.0

// Package foldbench measures what it costs to bring pairs from one host to
// another and to fold them there, by different paths: processor time per pair at
// both ends and of the whole machine, pairs per second, and round trips.
//
// Each end is a process of its own (a role), so that its processor time can be
// told from the other's; the benchmark asks them by net/rpc over their standard
// input and output. Roles are this program again: a hidden command calls
// ServeRole. Ends are hosts of a netlab, or this machine.
//
// All paths fold the same pairs (Pairs) into tables of the same size, and every
// run checks what was folded.
package foldbench
