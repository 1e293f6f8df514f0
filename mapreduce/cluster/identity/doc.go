// SPDX-License-Identifier: Apache-2.0

// Package identity makes and reads the certificates by which the processes of a
// cluster know each other.
//
// A certificate names a role (master, worker or client), not a machine: it holds the
// DNS name ROLE.quern.internal, which no name server needs to know, so that hosts may
// change their addresses. Both ends of every connection show one, by TLS 1.3, and each
// checks that the other's was signed by the cluster's own authority and has a role that
// may be at that end.
package identity
