// SPDX-License-Identifier: Apache-2.0

// Package castlab gives random contents to members on the hosts of a netlab, under faults
// that a seed chooses and while members and sources are killed, and holds what
// arrived to what was sent. It is what the fault tests of broadcasts and their nightly runs
// are made of.
package castlab
