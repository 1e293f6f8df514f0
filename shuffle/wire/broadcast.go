// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// BroadcastHead is the size of what stands before the data in a chunk's body.
const BroadcastHead = 32

// ChunkSize is the most data of a chunk.
const ChunkSize = BodySize - BroadcastHead

// BroadcastBody is the start of the body of a chunk of a broadcast. Data follows,
// padded with zeros to a multiple of BodyStep. Members change Group and the head's Hop, and tag anew.
type BroadcastBody struct {
	Chunk uint32 // number of the chunk; the head's Seq is the number of the transmission
	Total uint32 // number of chunks
	Bytes uint32 // of data in this chunk, 1 to ChunkSize; only the last may be below ChunkSize
	Chain uint32 // number of the chain that this chunk goes through
	Group uint64 // a bit per member of the chain: it has this chunk
	Zero  uint64
}

// Put writes it to the first BroadcastHead bytes of b.
func (c *BroadcastBody) Put(b []byte) {
	b = b[:BroadcastHead:BroadcastHead]
	le.PutUint32(b, c.Chunk)
	le.PutUint32(b[4:], c.Total)
	le.PutUint32(b[8:], c.Bytes)
	le.PutUint32(b[12:], c.Chain)
	le.PutUint64(b[16:], c.Group)
	le.PutUint64(b[24:], c.Zero)
}

// BroadcastNonce returns the nonce of a chunk's tag: the number of the transmission, which a
// source counts up with every chunk it sends, and the chain. Hop and kind are in the pad beside it.
func BroadcastNonce(chain, transmission uint32) uint64 {
	return uint64(uint16(chain))<<32 | uint64(transmission)
}

// PutChunk writes a chunk to b, which has room for FrameSize bytes, and returns the frame. Kind and
// length of the head are made here, the rest is the caller's: token, the member's slot as Stream, the
// transmission as Seq, the source's slot as Back, Stamp, Hop.
func PutChunk(b []byte, h Head, c BroadcastBody, data []byte, tags *Tags) ([]byte, error) {
	if len(data) == 0 || len(data) > ChunkSize || c.Chunk >= c.Total || c.Chain > 0xffff {
		return nil, fmt.Errorf("%w: chunk %d of %d, chain %d, with %d bytes", ErrMisuse, c.Chunk, c.Total, c.Chain, len(data))
	}
	if len(data) < ChunkSize && c.Chunk != c.Total-1 {
		return nil, fmt.Errorf("%w: chunk %d of %d has %d bytes, not %d", ErrMisuse, c.Chunk, c.Total, len(data), ChunkSize)
	}
	length := PaddedSize(BroadcastHead + len(data))
	b = b[:HeadSize+length]
	h.Magic, h.Version, h.Kind, h.Shape, h.Count = Magic, Version, Broadcast, 0, 0
	h.Length, h.Zero, h.Zero2, h.Tag = uint16(length), 0, 0, 0
	h.Put(b)
	c.Bytes, c.Zero = uint32(len(data)), 0
	c.Put(b[HeadSize:])
	n := HeadSize + BroadcastHead
	clear(b[n+copy(b[n:], data):])
	tags.Seal(b, BroadcastNonce(c.Chain, h.Seq))
	return b, nil
}

// ParseChunk reads a chunk or the answer of a chain, which b holds exactly. Data lies in b.
// The tag is not checked: see [Tags.Open] and [BroadcastNonce].
func ParseChunk(b []byte) (h Head, c BroadcastBody, data []byte, err error) {
	if h, err = ParseFrame(b); err != nil {
		return h, c, nil, err
	}
	if h.Kind != Broadcast && h.Kind != BroadcastAck {
		return h, c, nil, fmt.Errorf("%w: kind %d is no chunk", ErrKind, h.Kind)
	}
	p := b[HeadSize:]
	c = BroadcastBody{
		Chunk: le.Uint32(p), Total: le.Uint32(p[4:]), Bytes: le.Uint32(p[8:]), Chain: le.Uint32(p[12:]),
		Group: le.Uint64(p[16:]), Zero: le.Uint64(p[24:]),
	}
	switch {
	case c.Chunk >= c.Total, c.Zero != 0, c.Chain > 0xffff:
		return h, c, nil, fmt.Errorf("%w: chunk %d of %d, chain %d", ErrBody, c.Chunk, c.Total, c.Chain)
	case h.Kind == BroadcastAck: // an answer carries no data
		if c.Bytes != 0 || len(p) != PaddedSize(BroadcastHead) || !zero(p[BroadcastHead:]) {
			return h, c, nil, fmt.Errorf("%w: an answer with data", ErrBody)
		}
		return h, c, nil, nil
	case c.Bytes == 0 || c.Bytes > ChunkSize || c.Bytes < ChunkSize && c.Chunk != c.Total-1,
		PaddedSize(BroadcastHead+int(c.Bytes)) != len(p):
		return h, c, nil, fmt.Errorf("%w: chunk %d of %d has %d bytes in a body of %d", ErrLength, c.Chunk, c.Total, c.Bytes, len(p))
	}
	data = p[BroadcastHead:][:c.Bytes]
	if !zero(p[BroadcastHead+c.Bytes:]) {
		return h, c, nil, fmt.Errorf("%w: padding is not zero", ErrBody)
	}
	return h, c, data, nil
}

// PutChunkAck writes the answer that the last member of a chain makes of a chunk to b, which has
// room for it, and returns it. Its hop is the number of members that the chunk passed.
func PutChunkAck(b []byte, h Head, c BroadcastBody, tags *Tags) []byte {
	length := PaddedSize(BroadcastHead)
	b = b[:HeadSize+length]
	h.Magic, h.Version, h.Kind, h.Shape, h.Count = Magic, Version, BroadcastAck, 0, 0
	h.Length, h.Zero, h.Zero2, h.Tag = uint16(length), 0, 0, 0
	h.Put(b)
	c.Bytes, c.Zero = 0, 0
	c.Put(b[HeadSize:])
	clear(b[HeadSize+BroadcastHead:])
	tags.Seal(b, BroadcastNonce(c.Chain, h.Seq))
	return b
}
