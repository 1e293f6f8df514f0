// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Sizes and limits of broadcasts, in bytes where nothing else is said.
const (
	ChunkHead   = 32                   // what stands before the data in a chunk's body
	ChunkSize   = BodySize - ChunkHead // data of every chunk but the last of a message
	ChunkAnswer = 64                   // body of an answer
	AnswerFrame = HeadSize + ChunkAnswer
	MaxChains   = 64     // most chains of a broadcast, and most members of a chain
	ChainDirect = 0xfffe // this chunk is for one member, which answers it at once
	ChainAll    = 0xffff // from the source to the head of every chain, which puts its own chain's number here
)

// Offsets in a chunk's frame of what is changed in place.
const (
	offChain = HeadSize + 14
	offGroup = HeadSize + 16
)

// Put writes it to the first ChunkHead bytes of b.
func (c *Chunk) Put(b []byte) {
	b = b[:ChunkHead:ChunkHead]
	le.PutUint32(b, c.Place)
	le.PutUint32(b[4:], c.First)
	le.PutUint32(b[8:], c.Total)
	le.PutUint16(b[12:], c.Bytes)
	le.PutUint16(b[14:], c.Chain)
	le.PutUint64(b[16:], c.Group)
	le.PutUint64(b[24:], c.Zero)
}

// ReadChunk reads the first ChunkHead bytes of b, a frame's body, and checks nothing.
func ReadChunk(b []byte) Chunk {
	b = b[:ChunkHead:ChunkHead]
	return Chunk{
		Place: le.Uint32(b), First: le.Uint32(b[4:]), Total: le.Uint32(b[8:]),
		Bytes: le.Uint16(b[12:]), Chain: le.Uint16(b[14:]), Group: le.Uint64(b[16:]), Zero: le.Uint64(b[24:]),
	}
}

// fits says whether the chunk's numbers are such as a chunk may have.
func (c *Chunk) fits() bool {
	return c.Total > 0 && c.Place >= c.First && c.Place-c.First < c.Total && uint64(c.First)+uint64(c.Total) <= 1<<32-1 &&
		c.Zero == 0 && (c.Chain < MaxChains || c.Chain == ChainDirect || c.Chain == ChainAll)
}

// last says whether it is the last of its message.
func (c *Chunk) last() bool { return c.Place-c.First == c.Total-1 }

// ChunkNonce returns the nonce of a chunk's tag, or its answer's: the number of the
// transmission, which a source counts up with every chunk it sends, and the chain. Kind, hop and group are in
// the pad beside it.
func ChunkNonce(chain uint16, transmission uint32) uint64 {
	return uint64(chain)<<32 | uint64(transmission)
}

// PutChunk writes a chunk to b, which has room for FrameSize bytes, and returns the frame. Kind,
// shape, length and stream of the head are made here, the rest is the caller's: token, the transmission as Seq, the
// source's slot as Back, Stamp, Hop. Errors wrap ErrMisuse.
func PutChunk(b []byte, h Head, c Chunk, data []byte, tags *Tags) ([]byte, error) {
	c.Zero = 0
	if len(data) == 0 || len(data) > ChunkSize || !c.fits() || len(data) < ChunkSize && !c.last() {
		return nil, fmt.Errorf("%w: chunk %d of %d from %d, chain %d, with %d bytes", ErrMisuse, c.Place, c.Total, c.First, c.Chain, len(data))
	}
	length := PaddedSize(ChunkHead + len(data))
	b = b[:HeadSize+length]
	h.Magic, h.Version, h.Kind, h.Shape, h.Count, h.Stream = Magic, Version, Broadcast, 0, 0, 0
	h.Length, h.Zero, h.Zero2, h.Tag = uint16(length), 0, 0, 0
	h.Put(b)
	c.Bytes = uint16(len(data))
	c.Put(b[HeadSize:])
	n := HeadSize + ChunkHead
	clear(b[n+copy(b[n:], data):])
	tags.SealChunk(b)
	return b, nil
}

// PassChunk makes of a chunk that a member has what it sends to the next one: its chain, one
// hop more, its bit in the group, a new tag.
func PassChunk(b []byte, chain uint16, bit uint8, tags *Tags) {
	le.PutUint16(b[offChain:], chain)
	le.PutUint64(b[offGroup:], le.Uint64(b[offGroup:])|1<<bit)
	b[offHop]++
	b[offFlags] = 0
	tags.SealChunk(b)
}

// AnswerChunk cuts a chunk, after [PassChunk] had its way with it, to the answer
// that the source gets, and returns that.
func AnswerChunk(b []byte, tags *Tags) []byte {
	b = b[:AnswerFrame]
	b[offKind] = byte(BroadcastAck)
	le.PutUint16(b[offLength:], ChunkAnswer)
	le.PutUint16(b[HeadSize+12:], 0)
	clear(b[HeadSize+ChunkHead:])
	tags.SealChunk(b)
	return b
}

// ParseChunk reads a chunk or the answer of a chain, which b holds exactly. Data lies in b.
// The tag is not checked: see [Tags.OpenChunk].
func ParseChunk(b []byte) (h Head, c Chunk, data []byte, err error) {
	if h, err = ParseFrame(b); err != nil {
		return h, c, nil, err
	}
	if h.Kind != Broadcast && h.Kind != BroadcastAck {
		return h, c, nil, fmt.Errorf("%w: kind %d is no chunk", ErrKind, h.Kind)
	}
	p := b[HeadSize:]
	c = ReadChunk(p)
	switch {
	case h.Stream != 0 || h.Flags != 0:
		return h, c, nil, fmt.Errorf("%w: a chunk with a stream or flags", ErrFormat)
	case h.Hop > MaxChains || h.Kind == Broadcast && h.Hop == MaxChains: // else it could go round for ever
		return h, c, nil, fmt.Errorf("%w: a chunk that %d members have sent on, where a chain has %d at most", ErrFormat, h.Hop, MaxChains)
	case !c.fits():
		return h, c, nil, fmt.Errorf("%w: chunk %d of %d from %d, chain %d", ErrBody, c.Place, c.Total, c.First, c.Chain)
	case h.Kind == BroadcastAck: // an answer carries no data
		if c.Bytes != 0 || len(p) != ChunkAnswer || !zero(p[ChunkHead:]) {
			return h, c, nil, fmt.Errorf("%w: an answer with data", ErrBody)
		}
		return h, c, nil, nil
	case c.Bytes == 0 || c.Bytes > ChunkSize || c.Bytes < ChunkSize && !c.last(),
		PaddedSize(ChunkHead+int(c.Bytes)) != len(p):
		return h, c, nil, fmt.Errorf("%w: chunk %d of %d has %d bytes in a body of %d", ErrLength, c.Place, c.Total, c.Bytes, len(p))
	}
	data = p[ChunkHead:][:c.Bytes]
	if !zero(p[ChunkHead+int(c.Bytes):]) {
		return h, c, nil, fmt.Errorf("%w: padding is not zero", ErrBody)
	}
	return h, c, data, nil
}

// SealChunk writes the tag of a chunk or its answer into it. Its length is one that [ParseChunk] takes.
func (t *Tags) SealChunk(frame []byte) { le.PutUint64(frame[offTag:], t.chunkTag(frame)) }

// OpenChunk says whether a frame that [ParseChunk] took has the right tag.
func (t *Tags) OpenChunk(frame []byte) bool { return le.Uint64(frame[offTag:]) == t.chunkTag(frame) }

func (t *Tags) chunkTag(frame []byte) uint64 {
	length := int(le.Uint16(frame[offLength:]))
	sum := nh(frame[:TaggedHead], t.job.NH[:TaggedHead/8])
	sum += nh(frame[HeadSize:HeadSize+length], t.job.NH[TaggedHead/8:])
	nonce := ChunkNonce(le.Uint16(frame[offChain:]), le.Uint32(frame[offSeq:]))
	return sum + t.chunkPad(le.Uint64(frame[offToken:]), Kind(frame[offKind]), frame[offHop], nonce, le.Uint64(frame[offGroup:]))
}

// chunkPad is [Tags.Pad] with the group, which members add to: what they send on is another message.
func (t *Tags) chunkPad(token uint64, kind Kind, hop uint8, nonce, group uint64) uint64 {
	var m [24]byte
	le.PutUint64(m[:8], token)
	le.PutUint64(m[8:], uint64(kind)<<56|uint64(hop)<<48|nonce)
	le.PutUint64(m[16:], group)
	return t.sip(m[:])
}

// A mark is the word of a chunk in a region: at a member its state and, at the first chunk of a
// message, how many of the message's are stored; at a source a bit per chain.

func markHalves(m *uint64) *[2]uint32 { return (*[2]uint32)(unsafe.Pointer(m)) }

// ClaimMark says whether the caller is to copy the chunk: nobody else has or does. It
// is for MarkStored, or back to MarkNone, after that.
func ClaimMark(m *uint64) bool {
	return atomic.CompareAndSwapUint32(&markHalves(m)[0], MarkNone, MarkWriting)
}

// MarkState returns the state of a chunk at a member.
func MarkState(m *uint64) uint32 { return atomic.LoadUint32(&markHalves(m)[0]) }

// SetMark sets the state of a chunk that the caller has claimed.
func SetMark(m *uint64, state uint32) { atomic.StoreUint32(&markHalves(m)[0], state) }

// CountMark counts a chunk that was stored, at the mark of its message's first
// chunk, and returns how many there are now.
func CountMark(first *uint64) uint32 { return atomic.AddUint32(&markHalves(first)[1], 1) }

// MarkCount returns how many chunks of the message that begins here are stored.
func MarkCount(first *uint64) uint32 { return atomic.LoadUint32(&markHalves(first)[1]) }
