// SPDX-License-Identifier: Apache-2.0

// Package master is the one place that owns the state of a cluster's jobs: it takes
// them from submitters, has workers do what package schedule decides, takes their
// results once and writes them to the journal before anybody hears of it.
//
// One goroutine, the loop, owns all of that state. Calls of gRPC hand it what they
// want to be done. Results that are offered at the same time share one write of
// the journal.
package master
