// SPDX-License-Identifier: Apache-2.0

// Package chaos runs jobs on a cluster in a lab while workers, tasks and the master are
// killed, stopped, cut off and starved, as a seed says, and holds what comes out to the
// local engine's output, byte for byte.
//
// A scenario is made of its seed alone, so a failure is repeated by its seed, as far as
// time allows: what happens when is fixed, but not how far the job is by then.
package chaos
