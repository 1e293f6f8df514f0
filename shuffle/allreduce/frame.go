// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle/wire"
)

// errDiffers is why a group breaks whose members call it with different vectors, or not in the same order.
var errDiffers = errors.New("called with another vector than others: its length, width or operation differs, or it is another call")

// Handle takes a frame that came up to the host's socket: a part, or a result. It keeps nothing of it. It may be
// called from several goroutines.
func (n *Node) Handle(frame []byte, from netip.AddrPort) {
	n.counts.reasons[n.handle(frame)].Add(1)
}

func (n *Node) handle(frame []byte) wire.Reason {
	h, p, values, err := wire.ParsePart(frame)
	switch {
	case errors.Is(err, wire.ErrMagic), errors.Is(err, wire.ErrShort) && len(frame) < wire.HeadSize:
		return wire.Foreign
	case err != nil:
		return wire.Malformed
	}
	e := (*n.tokens.Load())[h.Token]
	if e == nil || e.members == 1 || !e.gate.enter() {
		return wire.UpGroup
	}
	defer e.gate.leave()
	b := block{p: p, number: h.Seq, slot: int(h.Seq & (1<<e.bits - 1)), generation: h.Seq >> e.bits, again: h.SSet != 0}
	if int(p.Reducer) >= e.members || b.generation == 0 {
		return wire.PartStray
	}
	if h.Kind == wire.Reduce {
		if int(p.Reducer) != e.rank || int(p.Member) >= e.members || int(p.Member) == e.rank {
			return wire.PartStray
		}
		if !e.tags.OpenPart(frame) {
			return wire.PartTag
		}
		reason := e.part(&b, int(p.Member), values)
		if reason == wire.BlockReduced {
			e.sendResult(&b, e.next)
		}
		return reason
	}
	if !e.tags.OpenPart(frame) {
		return wire.PartTag
	}
	return e.result(frame, &b, values)
}

// block is a block of a reducer as a frame has it.
type block struct {
	p          wire.Part
	number     uint32
	slot       int
	generation uint32
	// again is what programs have noted in a part that they found the block's result for: it came before. Else it
	// was the part that made the block whole.
	again bool
}

// mark makes the block's mark of what stands in the low half.
func (b *block) mark(low uint32) uint64 { return uint64(b.generation)<<32 | uint64(low) }

// claim makes a mark that is of an older generation this one's. It returns how the mark stands, and whether that is by this call.
func claim(mark *uint64, to uint64) (was uint64, mine bool) {
	for {
		was = atomic.LoadUint64(mark)
		if was>>32 >= to>>32 {
			return was, false
		}
		if atomic.CompareAndSwapUint64(mark, was, to) {
			return to, true
		}
	}
}

// join sets a bit in a mark of this generation, or makes it one. It returns the mark's bits then, and whether this call has set it;
// or that the mark is of a newer one.
func join(mark *uint64, generation, bit uint32) (bits uint32, mine, newer bool) {
	for {
		was := atomic.LoadUint64(mark)
		is := uint32(was >> 32)
		switch {
		case is > generation:
			return 0, false, true
		case is == generation:
			if bits = uint32(was); bits&bit != 0 {
				return bits, false, false
			}
		default:
			bits = 0
		}
		bits |= bit
		if atomic.CompareAndSwapUint64(mark, was, uint64(generation)<<32|uint64(bits)) {
			return bits, true, false
		}
	}
}

// part takes a member's part of a block that is reduced here. It is what programs do, in the order they do it. Of a block that
// is reduced with it the caller sends the result.
func (e *end) part(b *block, member int, values []byte) wire.Reason {
	row := e.sums.marks[b.slot*e.row:][:e.row]
	what, _ := claim(&row[wire.RowWhat], b.mark(b.p.What))
	switch {
	case what>>32 > uint64(b.generation):
		return wire.PartStray
	case uint32(what) != b.p.What:
		if member == e.rank {
			e.fail(fmt.Errorf("%w (member %d, %s, is this one)", errDiffers, e.rank, e.spec.Members[e.rank].Name))
		} else {
			e.fail(e.memberError(member, errDiffers))
		}
		return wire.PartDiffers
	}
	bit := uint32(1) << member
	_, mine, newer := join(&row[wire.RowClaimed], b.generation, bit)
	switch {
	case newer:
		return wire.PartStray
	case !mine && member == e.rank:
		return wire.PartBefore
	case !mine:
		return e.before(b, member, atomic.LoadUint64(&row[wire.RowApplied]))
	}
	e.add(b, values)
	applied, _, _ := join(&row[wire.RowApplied], b.generation, bit)
	if applied != e.all() {
		return wire.Added
	}
	if !e.complete(b) {
		return wire.Added
	}
	return wire.BlockReduced
}

// before is what becomes of a part that was claimed before.
func (e *end) before(b *block, member int, applied uint64) wire.Reason {
	if e.kernel && !b.again {
		// Programs have passed it up because it was the last one: they could not go on, or can't send what they made of it.
		if applied == b.mark(e.all()) && e.complete(b) {
			return wire.BlockReduced
		}
		if e.sendResult(b, e.next) {
			// Or they have not seen it, as it was joined with others, or came within the host. Then it may be of a member that
			// asks, and the next one's programs stop what they have.
			if asks := e.spec.Members[member].Address; asks != e.next {
				e.sendResult(b, asks)
			}
			return wire.ResultPassed
		}
	}
	if e.sendResult(b, e.spec.Members[member].Address) {
		return wire.ResultAgain
	}
	return wire.PartBefore
}

// all is the marks' bits of all members.
func (e *end) all() uint32 { return uint32(1<<e.members - 1) }

// add adds values to user space's element.
func (e *end) add(b *block, values []byte) {
	at := b.slot*e.row + e.row - 1
	e.adding.Lock()
	defer e.adding.Unlock()
	into, mark := e.sums.at(at)[:len(values)], &e.sums.marks[at]
	if uint32(atomic.LoadUint64(mark)>>32) == b.generation {
		combineBytes(Op(b.p.Op), b.p.Wide != 0, into, values)
		return
	}
	fill(e.sums.at(at), values)
	atomic.StoreUint64(mark, b.mark(0))
}

// fill puts values into an element. Programs add up, and send, whole steps of a frame's body, whose last bytes are to be zeros.
func fill(element, values []byte) {
	n := copy(element, values)
	clear(element[n : wire.PaddedSize(wire.PartHead+n)-wire.PartHead])
}

// complete makes the result of a block that all have added their parts to, and stores it. It says whether it was this call that
// did: then the caller sends it on its way.
func (e *end) complete(b *block) bool {
	first := b.slot * e.row
	mark := &e.sums.marks[first+wire.RowResult]
	if _, mine := claim(mark, b.mark(wire.MarkWriting)); !mine {
		return false
	}
	into := e.sums.at(first + wire.RowResult)[:b.p.Bytes]
	some := false
	e.adding.Lock() // somebody may be about to send what stood there, for an old part
	for i := first + wire.RowCPU; i < first+e.row; i++ {
		if uint32(atomic.LoadUint64(&e.sums.marks[i])>>32) != b.generation {
			continue
		}
		if from := e.sums.at(i)[:len(into)]; some {
			combineBytes(Op(b.p.Op), b.p.Wide != 0, into, from)
		} else {
			fill(e.sums.at(first+wire.RowResult), from)
			some = true
		}
	}
	atomic.StoreUint64(mark, b.mark(wire.MarkStored))
	e.adding.Unlock()
	e.store(b, into)
	return true
}

// putResult writes the frame of the result of a block that was reduced here to buf, which has room for one. It returns nil
// unless the result stands here.
func (e *end) putResult(buf []byte, b *block) []byte {
	at := b.slot*e.row + wire.RowResult
	mark := &e.sums.marks[at]
	values := buf[wire.HeadSize+wire.PartHead:][:b.p.Bytes]
	e.adding.Lock()
	here := atomic.LoadUint64(mark) == b.mark(wire.MarkStored)
	if here {
		copy(values, e.sums.at(at))
		here = atomic.LoadUint64(mark) == b.mark(wire.MarkStored) // programs know no locks
	}
	e.adding.Unlock()
	if !here {
		return nil
	}
	p := b.p
	p.Member = 0
	frame, err := wire.PutPart(buf, wire.Reduced, e.spec.Token, b.number, p, values, e.tags)
	if err != nil {
		return nil // its numbers were those of a frame that came, or of a call
	}
	return frame
}

// sendResult sends the result of a block that was reduced here, if it stands here.
func (e *end) sendResult(b *block, to netip.AddrPort) bool {
	buf := e.node.frames.Get().(*[wire.FrameSize]byte)
	defer e.node.frames.Put(buf)
	frame := e.putResult(buf[:], b)
	if frame == nil {
		return false
	}
	e.node.send(frame, len(frame), to)
	return true
}

// store stores a result for this member's call, and says whether it was new.
func (e *end) store(b *block, values []byte) bool {
	at := int(b.p.Reducer)<<e.bits | b.slot
	mark := &e.results.marks[at]
	if _, mine := claim(mark, b.mark(wire.MarkWriting)); !mine {
		return false
	}
	fill(e.results.at(at), values)
	atomic.StoreUint64(mark, b.mark(wire.MarkStored))
	if atomic.AddUint32(&e.counts.Stored, 1) == atomic.LoadUint32(&e.counts.Wake) {
		e.poke()
	}
	return true
}

// result takes the result of a block.
func (e *end) result(frame []byte, b *block, values []byte) wire.Reason {
	last := (e.rank+1)%e.members == int(b.p.Reducer)
	if int(b.p.Reducer) == e.rank {
		return wire.PartStray
	}
	if !e.store(b, values) {
		// Programs pass up what they have stored and can't send on; what came before they drop.
		if !e.kernel || last || atomic.LoadUint64(&e.results.marks[int(b.p.Reducer)<<e.bits|b.slot]) != b.mark(wire.MarkStored) {
			return wire.ResultBefore
		}
		e.node.send(frame, len(frame), e.next)
		return wire.ResultPassed
	}
	if last {
		return wire.ResultStored
	}
	e.node.counts.reasons[wire.ResultStored].Add(1)
	e.node.send(frame, len(frame), e.next)
	return wire.ResultPassed
}
