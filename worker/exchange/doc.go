// SPDX-License-Identifier: Apache-2.0

// Package exchange moves pairs between workers: it keeps what map tasks left
// here, pushes or serves it to whoever reduces, and gathers what a reduce
// attempt needs into runs on this worker's disk.
//
// # Push
//
// Folds without a total order are folded on their way. Gather opens a target at the
// receiver of its own worker and asks the workers that have map outputs, by
// Peer.Push, to send them: each reads its runs, brings values to the job's
// scale, cuts them into frames (package commit) and sends those (package push). When all
// outputs are complete, the target is finished: it is drained, the books are
// balanced, and the keys go to one run. A worker's own outputs are handed over without packets.
//
// Targets have generations. A reduce attempt has 256 of its own, since a target whose state
// is lost is begun anew, and everything is pushed again. A receiver takes streams
// only of targets that are being gathered at this time: whoever comes late is refused.
//
// # Pull
//
// All else is fetched, by Peer.Fetch, as sorted pairs in blocks with digests, from as
// many outputs at once as memory allows, and merged into runs. A damaged
// block, or a connection that breaks, costs what came after the last good block.
// Sums too far beyond 64 bits to travel in frames come this way too.
//
// # What is lost
//
// An output that can't be had is told (Gather.Lost) and waited for, again and again,
// until it can or has moved (Gather.Moved). Whether it is lost is not decided here. Only an
// output that was made again with other pairs ends a gathering: the part is to begin anew.
package exchange
