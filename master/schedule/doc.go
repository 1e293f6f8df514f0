// SPDX-License-Identifier: Apache-2.0

// Package schedule decides which attempt of which task runs where. It is a state
// machine: events go in, actions come out. It has no clock (every call says what
// time it is), no I/O, no goroutines and no randomness, so that any history can
// be written down, replayed and simulated.
package schedule
