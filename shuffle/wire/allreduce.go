// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// Put writes it to the first PartHead bytes of b.
func (p *Part) Put(b []byte) {
	b = b[:PartHead:PartHead]
	le.PutUint32(b, p.What)
	le.PutUint16(b[4:], p.Bytes)
	b[6], b[7], b[8], b[9] = p.Op, p.Wide, p.Reducer, p.Member
	le.PutUint16(b[10:], p.Zero)
	le.PutUint32(b[12:], p.Zero2)
	le.PutUint64(b[16:], p.Zero3[0])
	le.PutUint64(b[24:], p.Zero3[1])
}

// ReadPart reads the first PartHead bytes of b, a frame's body, and checks nothing.
func ReadPart(b []byte) Part {
	b = b[:PartHead:PartHead]
	return Part{
		What: le.Uint32(b), Bytes: le.Uint16(b[4:]), Op: b[6], Wide: b[7], Reducer: b[8], Member: b[9],
		Zero: le.Uint16(b[10:]), Zero2: le.Uint32(b[12:]), Zero3: [2]uint64{le.Uint64(b[16:]), le.Uint64(b[24:])},
	}
}

// fits says whether the numbers are such as a part, or a result, may have.
func (p *Part) fits(kind Kind) bool {
	return p.Bytes != 0 && p.Bytes <= ChunkSize && p.Wide <= 1 && p.Bytes%(4<<p.Wide) == 0 && p.Op <= OpMax &&
		p.Reducer < MaxMembers && p.Member < MaxMembers && (kind == Reduce || p.Member == 0) &&
		p.Zero == 0 && p.Zero2 == 0 && p.Zero3 == [2]uint64{}
}

// PartNonce returns the nonce of the tag of a frame of an all-reduce.
func PartNonce(reducer, member uint8, block uint32) uint64 {
	return uint64(reducer)<<40 | uint64(member)<<32 | uint64(block)
}

// PartFrameSize returns the size of a frame of an all-reduce with that many bytes of values.
func PartFrameSize(bytes int) int { return HeadSize + PaddedSize(PartHead+bytes) }

// PutPart writes a frame of an all-reduce to b, which has room for FrameSize bytes, and returns it:
// kind is Reduce or Reduced. The block is its number at its reducer; p.Bytes is that of values. Errors wrap ErrMisuse.
func PutPart(b []byte, kind Kind, token uint64, block uint32, p Part, values []byte, tags *Tags) ([]byte, error) {
	if len(values) > ChunkSize {
		return nil, fmt.Errorf("%w: %d bytes of values in a block", ErrMisuse, len(values))
	}
	p.Bytes = uint16(len(values))
	if kind != Reduce && kind != Reduced || !p.fits(kind) {
		return nil, fmt.Errorf("%w: kind %d, %+v", ErrMisuse, kind, p)
	}
	length := PaddedSize(PartHead + len(values))
	b = b[:HeadSize+length]
	h := Head{Magic: Magic, Version: Version, Kind: kind, Token: token, Seq: block, Length: uint16(length)}
	h.Put(b)
	p.Put(b[HeadSize:])
	n := HeadSize + PartHead
	clear(b[n+copy(b[n:], values):])
	tags.SealPart(b)
	return b, nil
}

// ParsePart reads a frame of an all-reduce, which b holds exactly. Values lie in b. The tag is not
// checked: see [Tags.OpenPart]. Errors are those of [ParseFrame], or wrap ErrKind, ErrFormat, ErrBody or ErrLength.
func ParsePart(b []byte) (h Head, p Part, values []byte, err error) {
	if h, err = ParseFrame(b); err != nil {
		return h, p, nil, err
	}
	if h.Kind != Reduce && h.Kind != Reduced {
		return h, p, nil, fmt.Errorf("%w: kind %d is not of an all-reduce", ErrKind, h.Kind)
	}
	body := b[HeadSize:]
	p = ReadPart(body)
	switch {
	case h.Stream != 0 || h.Back != 0 || h.Flags != 0:
		return h, p, nil, fmt.Errorf("%w: a part with a stream or flags", ErrFormat)
	case !p.fits(h.Kind):
		return h, p, nil, fmt.Errorf("%w: %+v", ErrBody, p)
	case PaddedSize(PartHead+int(p.Bytes)) != len(body):
		return h, p, nil, fmt.Errorf("%w: %d bytes of values in a body of %d", ErrLength, p.Bytes, len(body))
	}
	values = body[PartHead:][:p.Bytes]
	if !zero(body[PartHead+int(p.Bytes):]) {
		return h, p, nil, fmt.Errorf("%w: padding is not zero", ErrBody)
	}
	return h, p, values, nil
}

// SealPart writes the tag of a frame of an all-reduce into it. Its length is one that [ParsePart] takes.
func (t *Tags) SealPart(frame []byte) { t.Seal(frame, partNonce(frame)) }

// OpenPart says whether a frame that [ParsePart] took has the right tag.
func (t *Tags) OpenPart(frame []byte) bool { return t.Open(frame, partNonce(frame)) }

func partNonce(frame []byte) uint64 {
	return PartNonce(frame[HeadSize+8], frame[HeadSize+9], le.Uint32(frame[offSeq:]))
}
