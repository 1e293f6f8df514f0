// SPDX-License-Identifier: Apache-2.0

// Package reducelab has groups of members on the hosts of a netlab reduce random vectors, under faults that a
// seed chooses and while members are killed, and holds every result to what follows from the values directly. It is what the
// fault tests of all-reduces and their nightly runs are made of.
package reducelab
