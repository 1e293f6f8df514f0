// SPDX-License-Identifier: Apache-2.0

// Package streamlab runs random jobs through senders and receivers on the hosts
// of a netlab, under faults that a seed chooses, and compares what was folded with
// plain arithmetic. It is what the fault tests and their nightly runs are made of.
package streamlab
