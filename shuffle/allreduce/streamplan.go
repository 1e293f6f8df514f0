// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

// streamSizes are when a call goes over streams, and how it is cut. They are the same at all members.
type streamSizes struct {
	least   int // bytes of a vector from which on streams are used
	segment int // bytes that a member reduces at least, where it reduces any: how many do follows from it
	piece   int // bytes of a piece, a multiple of streamAlign values
}

// streamAlign keeps the segments of members, and pieces, off each other's cache lines, and messages whole.
const streamAlign = 16

// ensureDefaults has streams take over where they were faster than frames of the kernel's path, in turns on one machine (two cores, load 35 to 45): medians of rounds in
// us, streams against frames, of 2, 4 and 8 members: 4 KB 30, 177, 437 against 30, 173, 570; 8 KB 23, 149, 458 against 81, 309, 673; 16 KB 30, 171, 1,021 against
// 114, 396, 1,945. Fewer owners have fewer processes be woken, more share the work: of the least segment 128 KiB was tried alone.
func (s streamSizes) ensureDefaults() streamSizes {
	if s == (streamSizes{}) {
		s = streamSizes{least: 8 << 10, segment: 128 << 10, piece: wire.PieceSize}
	}
	return s
}

// overStreams says whether a call goes over streams. It follows from the group's spec and the vector's length and width alone: all
// members must say the same.
func (s streamSizes) overStreams(use shuffle.StreamUse, bytes int) bool {
	return bytes > 0 && (use == shuffle.StreamsAlways || use == shuffle.StreamsBySize && bytes >= s.least)
}

// streamPlan is how a vector is divided: each of the owners reduces a segment, to which all others send it their pieces, and
// whose result it sends to all. One owner is a parameter server, as many as there are members use all links alike.
type streamPlan struct {
	members int
	first   int // rank of the owner of the first segment; the next ones follow it
	owners  int
	values  int // of the vector
	segment int // values of each segment but perhaps the last ones
	piece   int // values of a piece
}

func (s streamSizes) plan(call uint64, members int, v Vector) streamPlan {
	width := v.width()
	p := streamPlan{members: members, first: int(call % uint64(members)), values: v.Len(), piece: s.piece / width}
	p.owners = max(1, min(members, p.values*width/s.segment))
	p.segment = (p.values + p.owners - 1) / p.owners
	p.segment = (p.segment + streamAlign - 1) / streamAlign * streamAlign
	return p
}

// bounds returns where the segment is that a member reduces: from to itself if there is none.
func (p *streamPlan) bounds(rank int) (from, to int) {
	j := (rank - p.first + p.members) % p.members
	if j >= p.owners {
		return 0, 0
	}
	return min(p.values, j*p.segment), min(p.values, (j+1)*p.segment)
}

// pieces returns how many pieces a member's segment has.
func (p *streamPlan) pieces(rank int) int {
	from, to := p.bounds(rank)
	return (to - from + p.piece - 1) / p.piece
}

// at returns where a piece of a member's segment is, and how many values it has.
func (p *streamPlan) at(rank, piece int) (from, n int) {
	from, to := p.bounds(rank)
	from += piece * p.piece
	return from, min(p.piece, to-from)
}
