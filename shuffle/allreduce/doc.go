// SPDX-License-Identifier: Apache-2.0

// Package allreduce reduces vectors over the members of a group, all of whom get the result: a [Node] is a
// host's end. It cuts vectors into blocks, each of which one member reduces; parts and results travel as
// frames that a kernel's programs take in, add up and send on, or that this package does the same with. [Local] makes
// a group within a process. Values are integers, so that the result does not depend on any order; package quantise
// makes integers of floats.
package allreduce
