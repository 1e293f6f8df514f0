// SPDX-License-Identifier: Apache-2.0

package broadcast

import "github.com/quernmr/quern/shuffle/wire"

// A chunk in a star is on its way for one hop, and costs the source a packet and an answer per member; in a
// chain it is on its way for as many hops as there are members, and costs the source one of each. So a star is for what is
// over before the last member of a chain has the first chunk, and long chains for what takes much longer
// than that.
//
// In a lab on two cores one processor does the work of all hosts, so what counts is how many packets there are, and a star has
// as many answers as chunks: 8 members had messages of all sizes from 1.4 KB to 1 MB the sooner the fewer
// chains there were, 1.4 KB in half the time that a star took, 1 MB in some tenth less than two chains took. The
// star of small messages is for hosts with processors of their own: their members work at the same time,
// and a chain has as many hops one after the other as it has members.
const (
	starChunks = 4    // up to here every member is a chain
	someChunks = 1024 // up to here chains have at most someLength members
	someLength = 8
)

// In flight at any host, windows times heads, are fewer than the 256 frames that a veth holds,
// with room for answers. One window is no larger than what keeps a chain of many members busy.
const (
	maxFlight   = 160
	maxWindow   = 64
	leastWindow = 4
)

// chainsFor returns how many chains so many members make for so many chunks.
func chainsFor(members, chunks int) int {
	k := 1
	switch {
	case chunks <= starChunks:
		k = members
	case chunks <= someChunks:
		k = (members + someLength - 1) / someLength
	}
	return clampChains(k, members)
}

// clampChains returns a number of chains that is possible.
func clampChains(k, members int) int {
	return max(min(k, members, wire.MaxChains), (members+wire.MaxChains-1)/wire.MaxChains)
}

// windowFor returns how many chunks of a chain may be in flight, of so many chains.
func windowFor(chains int) int { return max(2, min(maxWindow, maxFlight/max(1, chains))) }
