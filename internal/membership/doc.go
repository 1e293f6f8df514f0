// SPDX-License-Identifier: Apache-2.0

// Package membership says which processes of a cluster are there, by gossip
// (hashicorp/memberlist): it is how workers find a master, and how a master hears early
// that a worker may be gone.
//
// What it says is a hint. Nobody is declared dead by it: that is what leases are for,
// which are renewed over the control plane.
package membership
