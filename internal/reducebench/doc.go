// SPDX-License-Identifier: Apache-2.0

// Package reducebench measures all-reduces: how long it takes until all members of a
// group have the sum of what each of them had, what their interfaces send for that and what
// it costs the machine, by our own protocol with and without programs in the kernel and
// by what else one would write: a parameter server and a ring, both over TCP.
//
// Each member is a process of its own, in a host of a netlab: roles as in foldbench, on networks as
// in castbench. Paths take turns, so that what disturbs one disturbs all.
//
// A turn has bursts of rounds that follow each other at once, each with other values. Members note when
// they began and ended a round by the machine's clock, and check all results of a burst behind it. A round lasts
// from when the last member began it until the last one has the result: what nobody can be rid of,
// however early the others were.
package reducebench
