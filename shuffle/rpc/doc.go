// SPDX-License-Identifier: Apache-2.0

// Package rpc carries shuffle.Control, shuffle.BroadcastControl and shuffle.ReduceControl between hosts by gRPC.
//
// Errors keep their identity: errors.Is finds shuffle.ErrReset, ErrUnknown,
// ErrRefused, ErrBusy and ErrDigest, and those of contexts, at the client as at the receiver.
// A call that can't reach its server fails at once; all calls may be repeated, which
// package push does. No message is larger than 4 MiB, however large a frame is, so
// a server needs no limits of its own for this service.
//
// Secrets and tokens travel as they are: the connection has to be encrypted, and
// its two ends have to know each other, wherever others can reach it.
package rpc
