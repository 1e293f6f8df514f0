// SPDX-License-Identifier: Apache-2.0

// Package castbench measures broadcasts: how long it takes until a source knows that
// all members have what it gave them, what its interface sends for that and what it
// costs the machine, by our own protocol with and without programs in the kernel
// and by what else one would write.
//
// The source and each member are processes of their own, in hosts of a netlab: roles
// as in foldbench. Two networks join the hosts: one for programs, whose interfaces see
// packets as a card would give them and whose switch is an XDP program (or, to compare,
// the machine's bridge), and a plain one with none, on which TCP has its offloads. Paths take turns, so that what disturbs one disturbs all.
//
// Every message has other bytes than the one before, and members tell what they got.
package castbench
