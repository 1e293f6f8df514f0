// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

var le = binary.LittleEndian

// Offsets in a head of what is changed in place.
const (
	offKind   = 4
	offCount  = 6
	offToken  = 8
	offSeq    = 20
	offBack   = 24
	offLength = 28
	offTag    = 32
	offStamp  = 40
	offFlags  = 48
	offHop    = 49
)

// Put writes the head to the first HeadSize bytes of b, as it is.
func (h *Head) Put(b []byte) {
	b = b[:HeadSize:HeadSize]
	le.PutUint32(b, h.Magic)
	b[4], b[5], b[6], b[7] = byte(h.Kind), byte(h.Shape), h.Count, h.Version
	le.PutUint64(b[8:], h.Token)
	le.PutUint32(b[16:], h.Stream)
	le.PutUint32(b[20:], h.Seq)
	le.PutUint32(b[24:], h.Back)
	le.PutUint16(b[28:], h.Length)
	le.PutUint16(b[30:], h.Zero)
	le.PutUint64(b[32:], h.Tag)
	le.PutUint64(b[40:], h.Stamp)
	b[48], b[49] = h.Flags, h.Hop
	le.PutUint16(b[50:], h.Zero2)
	le.PutUint32(b[52:], h.SCell)
	le.PutUint32(b[56:], h.STable)
	le.PutUint16(b[60:], h.SOps)
	b[62], b[63] = h.SShift, h.SSet
}

// ReadHead reads the first HeadSize bytes of b and checks nothing.
func ReadHead(b []byte) Head {
	b = b[:HeadSize:HeadSize]
	return Head{
		Magic: le.Uint32(b), Kind: Kind(b[4]), Shape: Shape(b[5]), Count: b[6], Version: b[7],
		Token: le.Uint64(b[8:]), Stream: le.Uint32(b[16:]), Seq: le.Uint32(b[20:]), Back: le.Uint32(b[24:]),
		Length: le.Uint16(b[28:]), Zero: le.Uint16(b[30:]), Tag: le.Uint64(b[32:]), Stamp: le.Uint64(b[40:]),
		Flags: b[48], Hop: b[49], Zero2: le.Uint16(b[50:]),
		SCell: le.Uint32(b[52:]), STable: le.Uint32(b[56:]), SOps: le.Uint16(b[60:]), SShift: b[62], SSet: b[63],
	}
}

// ParseHead reads a head and checks what can be told from it alone: magic,
// version, kind, zeros, and that shape, count and length suit the kind. An
// [Answer] is read like an acknowledgement. Errors wrap ErrShort, ErrMagic, ErrVersion,
// ErrKind, ErrFormat or ErrLength.
func ParseHead(b []byte) (Head, error) {
	if len(b) < HeadSize {
		return Head{}, fmt.Errorf("%w: %d bytes, a head has %d", ErrShort, len(b), HeadSize)
	}
	h := ReadHead(b)
	switch {
	case h.Magic != Magic:
		return h, ErrMagic
	case h.Version != Version:
		return h, fmt.Errorf("%w: version %d, not %d", ErrVersion, h.Version, Version)
	case h.Kind < Data || h.Kind > Reduced:
		return h, fmt.Errorf("%w: %d", ErrKind, h.Kind)
	case h.Zero != 0 || h.Zero2 != 0:
		return h, fmt.Errorf("%w: bytes that must be 0 are not", ErrFormat)
	case h.Flags&^FlagWantAck != 0:
		return h, fmt.Errorf("%w: unknown flags %#x", ErrFormat, h.Flags)
	case h.Hop != 0 && h.Kind != Broadcast && h.Kind != BroadcastAck:
		return h, fmt.Errorf("%w: hop %d in a frame that makes none", ErrFormat, h.Hop)
	}
	return h, h.check()
}

// check looks at shape, count and length.
func (h *Head) check() error {
	low, counts := 0, h.Count == 0
	switch h.Kind {
	case Data:
		low = MinBody
		switch {
		case !h.Shape.Valid():
			return fmt.Errorf("%w: unknown shape %#x", ErrFormat, uint8(h.Shape))
		case h.Shape == Long && h.Length == 0: // larger than a frame
			if h.Count != 1 {
				return fmt.Errorf("%w: %d pairs in a frame of no length", ErrFormat, h.Count)
			}
			return nil
		case h.Shape&Dense == 0:
			counts = h.Count != 0
		}
	case Ack, Answer:
		low = AckSize
	case ProbeReply:
		counts = h.Count == FromKernel || h.Count == FromUser
	case Broadcast, BroadcastAck:
		low = ChunkHead
	case Reduce, Reduced:
		low = PartHead + BodyStep
	}
	switch {
	case h.Kind != Data && h.Shape != 0:
		return fmt.Errorf("%w: shape %#x in a frame without pairs", ErrFormat, uint8(h.Shape))
	case !counts:
		return fmt.Errorf("%w: count is %d", ErrFormat, h.Count)
	case h.Length%BodyStep != 0 || h.Length > BodySize || int(h.Length) < low,
		(h.Kind == Ack || h.Kind == Answer) && h.Length != AckSize:
		return fmt.Errorf("%w: a body of %d bytes", ErrLength, h.Length)
	}
	if h.Shape.Keyed() && h.Kind == Data {
		if n := int(h.Count) * h.Shape.PairSize(); PaddedSize(n) != int(h.Length) {
			return fmt.Errorf("%w: %d pairs of %d bytes in a body of %d", ErrLength, h.Count, h.Shape.PairSize(), h.Length)
		}
	}
	return nil
}

// PaddedSize returns the length of a data frame's body with n bytes in it.
func PaddedSize(n int) int { return max(MinBody, (n+BodyStep-1)/BodyStep*BodyStep) }

// ParseFrame reads the head of a frame that b holds exactly, and checks it: as
// [ParseHead] does, and that b is as long as the head says. The pairs are not looked at.
func ParseFrame(b []byte) (Head, error) {
	h, err := ParseHead(b)
	if err != nil {
		return h, err
	}
	if h.Kind == Data && h.Length == 0 {
		if len(b) <= FrameSize || (len(b)-HeadSize)%BodyStep != 0 {
			return h, fmt.Errorf("%w: a large frame of %d bytes", ErrLength, len(b))
		}
		return h, nil
	}
	switch n := HeadSize + int(h.Length); {
	case len(b) < n:
		return h, fmt.Errorf("%w: %d of %d bytes", ErrShort, len(b), n)
	case len(b) > n:
		return h, fmt.Errorf("%w: %d bytes behind the end", ErrLength, len(b)-n)
	}
	return h, nil
}

// Nonce returns the nonce that the pad of a data frame's tag has. Seq is below
// Segment. Back is part of it since a sender that takes over a stream has
// another slot, which makes its frames other messages.
func Nonce(back, seq uint32) uint64 { return uint64(back)<<16 | uint64(uint16(seq)) }

// SetStamp writes the time that an acknowledgement echoes, and whether the
// receiver shall answer. Neither is under the tag.
func SetStamp(frame []byte, stamp uint64, wantAck bool) {
	le.PutUint64(frame[offStamp:], stamp)
	frame[offFlags] = 0
	if wantAck {
		frame[offFlags] = FlagWantAck
	}
}
