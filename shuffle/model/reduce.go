// SPDX-License-Identifier: Apache-2.0

package model

import (
	"sync/atomic"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/wire"
)

var _ shuffle.Reduces = (*Host)(nil)

// claimTries is how often programs try to claim a part while others claim theirs.
const claimTries = 8

// Groups returns the members' ends of all-reduces, none if there are no programs for them.
func (h *Host) Groups() []wire.Group { return h.ends.groups }

// OnRound has f called for every result that brought a group's Stored to its Wake, within
// Handle and before that returns. It must not call the host.
func (h *Host) OnRound(f func(wire.Event)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends.round = f
	return nil
}

// mark is one of the words that both sides change.
func (h *Host) mark(at uint32) *uint64 {
	if uint64(at) >= uint64(len(h.ends.marks)) {
		return nil
	}
	return &h.ends.marks[at]
}

// element is one of a content, nil if there is none.
func (h *Host) element(content, at uint32) []byte {
	c := h.ends.contents[content]
	if c == nil || (uint64(at)+1)*wire.ChunkSize > uint64(len(c.Data)) {
		return nil
	}
	return c.Data[uint64(at)*wire.ChunkSize:][:wire.ChunkSize]
}

func markOf(generation, low uint32) uint64 { return uint64(generation)<<32 | uint64(low) }

func generationOf(mark uint64) uint32 { return uint32(mark >> 32) }

// block is a frame of an all-reduce that is for a group, and genuine.
type block struct {
	group      *wire.Group
	slot       uint32 // of the group
	part       wire.Part
	place      uint32 // of the block, among those that there is room for
	generation uint32
	tags       *wire.Tags
	values     []byte // with zeros behind them
}

// group is steps 90 to 95, and 100 to 105.
func (h *Host) group(p *packet) (b block, verdict Verdict, ok bool) {
	hd, frame := &p.head, p.b[p.frame:]
	no := func(r wire.Reason, v Verdict) (block, Verdict, bool) { return block{}, h.end(r, v), false }

	// Whose it is.
	slot, found := h.ends.tokens[hd.Token]
	if !found || uint64(slot) >= uint64(len(h.ends.groups)) {
		return no(wire.UpGroup, Pass)
	}
	g := &h.ends.groups[slot]
	token, content := atomic.LoadUint64(&g.Token), g.Sums
	if hd.Kind == wire.Reduced {
		content = g.Results
	}
	b = block{group: g, slot: slot, tags: h.job(g.Job)}
	if token == 0 || token != hd.Token || b.tags == nil || h.ends.contents[content] == nil {
		return no(wire.UpGroup, Pass)
	}

	// What it says.
	if !chunkFields(hd, len(frame), 0, wire.PartHead+wire.BodyStep, wire.BodySize) {
		return no(wire.Malformed, Drop)
	}
	if len(frame) > wire.HeadSize+int(hd.Length) {
		return no(wire.UpShape, Pass)
	}
	b.part = wire.ReadPart(frame[wire.HeadSize:])
	b.values = frame[wire.HeadSize+wire.PartHead:]
	b.generation, b.place = hd.Seq>>(g.Bits&31), hd.Seq&(1<<(g.Bits&31)-1)
	part := &b.part
	if hd.Back != 0 || part.Wide > 1 || part.Op > wire.OpMax || part.Reducer >= wire.MaxMembers || part.Member >= wire.MaxMembers ||
		part.Zero != 0 || part.Zero2 != 0 || part.Zero3 != [2]uint64{} || part.Bytes == 0 || part.Bytes > wire.ChunkSize ||
		part.Bytes%(4<<part.Wide) != 0 || wire.PaddedSize(wire.PartHead+int(part.Bytes)) != int(hd.Length) ||
		hd.Kind == wire.Reduced && part.Member != 0 {
		return no(wire.Malformed, Drop)
	}

	// Whether it is for this member, of that one, and genuine.
	stray := part.Reducer != g.Rank || part.Member >= g.Members || part.Member == g.Rank
	if hd.Kind == wire.Reduced {
		stray = part.Reducer == g.Rank || part.Reducer >= g.Members
	}
	if stray || b.generation == 0 {
		return no(wire.PartStray, Drop)
	}
	if !b.tags.OpenPart(frame) {
		return no(wire.PartTag, Drop)
	}
	return b, 0, true
}

// reduce is a reducer's end.
func (h *Host) reduce(p *packet) Verdict {
	b, verdict, ok := h.group(p)
	if !ok {
		return verdict
	}
	g, generation, bit := b.group, b.generation, uint32(1)<<b.part.Member
	row := b.place * g.Row
	if uint64(p.cpu)+wire.RowCPU+1 >= uint64(g.Row) {
		return h.end(wire.UpGroup, Pass)
	}
	sum := h.element(g.Sums, row+wire.RowCPU+uint32(p.cpu))
	mark := h.mark(g.SumMarks + row + wire.RowCPU + uint32(p.cpu))
	if sum == nil || mark == nil {
		return h.end(wire.UpGroup, Pass)
	}
	marks := h.ends.marks[g.SumMarks+row:]

	// What call the block is of.
	what := markOf(generation, b.part.What)
	was := atomic.LoadUint64(&marks[wire.RowWhat])
	if generationOf(was) < generation {
		if atomic.CompareAndSwapUint64(&marks[wire.RowWhat], was, what) {
			was = what
		} else {
			was = atomic.LoadUint64(&marks[wire.RowWhat])
		}
	}
	switch {
	case was == what:
	case generationOf(was) == generation:
		return h.end(wire.PartDiffers, Pass)
	default:
		return h.end(wire.PartStray, Drop)
	}

	// Claimed once.
	for tries := 0; ; tries++ {
		was = atomic.LoadUint64(&marks[wire.RowClaimed])
		if generationOf(was) > generation {
			return h.end(wire.PartStray, Drop)
		}
		now := markOf(generation, bit)
		if generationOf(was) == generation {
			if was&uint64(bit) != 0 {
				if atomic.LoadUint64(&marks[wire.RowResult]) != markOf(generation, wire.MarkStored) {
					return h.end(wire.PartBefore, Drop)
				}
				return h.complete(p, &b, marks, true)
			}
			now |= was
		}
		if atomic.CompareAndSwapUint64(&marks[wire.RowClaimed], was, now) {
			break
		}
		if tries == claimTries {
			return h.end(wire.UpGroup, Pass)
		}
	}

	// Added.
	if generationOf(*mark) != generation {
		copy(sum, b.values)
		atomic.StoreUint64(mark, markOf(generation, 0))
	} else {
		together(sum, b.values, b.part.Op, b.part.Wide)
	}
	was = atomic.LoadUint64(&marks[wire.RowApplied])
	if generationOf(was) == generation || !atomic.CompareAndSwapUint64(&marks[wire.RowApplied], was, markOf(generation, bit)) {
		was = atomic.OrUint64(&marks[wire.RowApplied], uint64(bit))
	} else {
		was = 0
	}
	if uint32(was)|bit != uint32(1<<g.Members-1) {
		return h.end(wire.Added, Drop)
	}
	return h.complete(p, &b, marks, false)
}

// complete makes a part into the block's result.
func (h *Host) complete(p *packet, b *block, marks []uint64, again bool) Verdict {
	g, generation := b.group, b.generation
	p.head.STable, p.head.SSet = b.slot, 0
	if again {
		p.head.SSet = 1
	}
	p.head.Put(p.b[p.frame:])
	be.PutUint16(p.b[p.udp+6:], 0)
	row := b.place * g.Row
	result := h.element(g.Sums, row+wire.RowResult)
	if !again {
		h.reasons[wire.Added]++
		at := uint32(g.Rank)<<(g.Bits&31) | b.place
		own, ownMark := h.element(g.Results, at), h.mark(g.ResultMarks+at)
		if own == nil || ownMark == nil {
			return h.end(wire.UpGroup, Pass)
		}
		if !takeMark(&marks[wire.RowResult], generation) {
			return Drop // user space was quicker
		}
		sum := h.element(g.Sums, row+wire.RowCPU+uint32(p.cpu))[:len(b.values)]
		for i := uint32(wire.RowCPU); i < g.Row; i++ {
			if other := h.element(g.Sums, row+i); i != wire.RowCPU+uint32(p.cpu) && generationOf(atomic.LoadUint64(&marks[i])) == generation {
				together(sum, other, b.part.Op, b.part.Wide)
			}
		}
		copy(result, sum)
		mine := takeMark(ownMark, generation)
		if mine {
			copy(own, sum)
		}
		atomic.StoreUint64(&marks[wire.RowResult], markOf(generation, wire.MarkStored))
		atomic.AddUint32(&g.Reduced, 1)
		h.reasons[wire.BlockReduced]++
		if mine {
			atomic.StoreUint64(ownMark, markOf(generation, wire.MarkStored))
			h.countStored(b)
		}
	}

	// And sent.
	hop, out := g.Hops[atomic.LoadUint32(&g.Hop)&1], h.cfg.Interface
	if h.cfg.Answer == wire.AnswerUser || !again && !h.serves(p, &hop) {
		return h.end(wire.UpHop, Pass)
	}
	if again {
		p.turn()
	} else {
		p.address(&hop)
		out = hop.Interface
	}
	p.head.Kind, p.head.STable, p.head.SSet, p.head.SOps, p.head.SShift = wire.Reduced, 0, 0, 0, 0
	p.head.Put(p.b[p.frame:])
	b.part.Member = 0
	b.part.Put(p.b[p.frame+wire.HeadSize:])
	copy(b.values, result)
	clear(b.values[b.part.Bytes:]) // in elements that may be anything
	b.tags.SealPart(p.b[p.frame:])
	p.finish()
	atomic.AddUint32(&g.Passed, 1)
	if again {
		h.reasons[wire.ResultAgain]++
	}
	return h.leaves(out)
}

// reduced is a member's end.
func (h *Host) reduced(p *packet) Verdict {
	b, verdict, ok := h.group(p)
	if !ok {
		return verdict
	}
	g := b.group
	at := uint32(b.part.Reducer)<<(g.Bits&31) | b.place
	element, mark := h.element(g.Results, at), h.mark(g.ResultMarks+at)
	if element == nil || mark == nil {
		return h.end(wire.UpGroup, Pass)
	}
	if !takeMark(mark, b.generation) {
		return h.end(wire.ResultBefore, Drop)
	}
	copy(element, b.values)
	atomic.StoreUint64(mark, markOf(b.generation, wire.MarkStored))
	h.reasons[wire.ResultStored]++
	h.countStored(&b)

	// And sent on, but not to its reducer.
	next := g.Rank + 1
	if next >= g.Members {
		next = 0
	}
	if next == b.part.Reducer {
		return Drop
	}
	hop := g.Hops[atomic.LoadUint32(&g.Hop)&1]
	if h.cfg.Answer == wire.AnswerUser || !h.serves(p, &hop) {
		return h.end(wire.UpHop, Pass)
	}
	p.address(&hop)
	p.finish()
	atomic.AddUint32(&g.Passed, 1)
	return h.end(wire.ResultPassed, h.leaves(hop.Interface))
}

// takeMark says whether the caller is to write what is of a generation: it is there of none that is as new.
func takeMark(mark *uint64, generation uint32) bool {
	was := atomic.LoadUint64(mark)
	return generationOf(was) < generation && atomic.CompareAndSwapUint64(mark, was, markOf(generation, wire.MarkWriting))
}

// countStored tells of a result if somebody waits for just this.
func (h *Host) countStored(b *block) {
	if n := atomic.AddUint32(&b.group.Stored, 1); n == atomic.LoadUint32(&b.group.Wake) && h.ends.round != nil {
		h.ends.round(wire.Event{Token: b.group.Token, Slot: b.slot, First: n})
	}
}

// together puts values into others.
func together(into, values []byte, op, wide uint8) {
	into = into[:min(len(into), len(values))]
	if wide != 0 {
		for i := 0; i < len(into); i += 8 {
			le.PutUint64(into[i:], uint64(combine(op, int64(le.Uint64(into[i:])), int64(le.Uint64(values[i:])))))
		}
		return
	}
	for i := 0; i < len(into); i += 4 {
		le.PutUint32(into[i:], uint32(combine(op, int32(le.Uint32(into[i:])), int32(le.Uint32(values[i:])))))
	}
}

func combine[T int32 | int64](op uint8, a, b T) T {
	switch op {
	case wire.OpMin:
		return min(a, b)
	case wire.OpMax:
		return max(a, b)
	}
	return a + b // wraps
}
