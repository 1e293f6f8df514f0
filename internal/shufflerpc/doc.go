// SPDX-License-Identifier: Apache-2.0

// Package shufflerpc carries shuffle.Control between processes over TCP, for
// benchmarks, tests and the lab: whatever needs a sender and a receiver in two
// processes without a cluster around them.
//
// It is net/rpc with a codec of its own. A connection begins with eight bytes
// from either side (the format's name and version). Then every message is its
// length (u32, little-endian) and one self-contained gob stream of a header and a body, so
// that a length is checked before anything is read, and a message that does not
// decode costs its call and not the connection.
//
// All calls of shuffle.Control may be repeated, so a call whose connection
// breaks is sent again over a new one, until its context ends or the Patience of
// Options is over. A receiver that was restarted meanwhile answers for itself
// (shuffle.ErrReset, shuffle.ErrUnknown). A context's deadline and its end
// travel to the server.
//
// Nothing is encrypted, and whoever can connect may call: job secrets travel as
// they are. It belongs on loopback and in networks of the lab.
package shufflerpc
