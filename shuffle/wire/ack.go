// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"sync/atomic"
)

// Limits of what an acknowledgement says.
const (
	// MaxAckBase is the last word that a window begins at.
	MaxAckBase = SeenWords - AckWords
	// NonceCPU is where the CPU number begins in an acknowledgement's nonce; user
	// space is CPU UserCPU.
	NonceCPU = 36
	UserCPU  = 0xfff
	// AckFrame is the size of an acknowledgement.
	AckFrame = HeadSize + AckSize
)

// AckNonce returns the nonce of a CPU's answer number count.
func AckNonce(cpu int, count uint64) uint64 {
	return uint64(cpu&0xfff)<<NonceCPU | count&(1<<NonceCPU-1)
}

// AckBase returns the word that the window of an answer to frame seq begins at.
func AckBase(seq uint32) uint16 {
	return uint16(min(max(int(seq/32)-AckBefore, 0), MaxAckBase))
}

// Put writes the body to the first AckSize bytes of b.
func (a *AckBody) Put(b []byte) {
	b = b[:AckSize:AckSize]
	le.PutUint64(b, a.Nonce)
	le.PutUint64(b[8:], a.Stamp)
	le.PutUint32(b[16:], a.Share)
	le.PutUint16(b[20:], a.Base)
	b[22], b[23] = a.From, a.Zero
	for i, c := range a.Claimed {
		le.PutUint32(b[24+4*i:], c)
	}
	le.PutUint32(b[56:], a.Zero2[0])
	le.PutUint32(b[60:], a.Zero2[1])
}

// ParseAckBody reads an acknowledgement's body. Errors wrap ErrShort or ErrBody.
func ParseAckBody(b []byte) (AckBody, error) {
	if len(b) < AckSize {
		return AckBody{}, fmt.Errorf("%w: %d bytes of an acknowledgement's %d", ErrShort, len(b), AckSize)
	}
	a := AckBody{
		Nonce: le.Uint64(b), Stamp: le.Uint64(b[8:]), Share: le.Uint32(b[16:]), Base: le.Uint16(b[20:]),
		From: b[22], Zero: b[23], Zero2: [2]uint32{le.Uint32(b[56:]), le.Uint32(b[60:])},
	}
	for i := range a.Claimed {
		a.Claimed[i] = le.Uint32(b[24+4*i:])
	}
	switch {
	case a.Zero != 0 || a.Zero2 != [2]uint32{}:
		return a, fmt.Errorf("%w: bytes of an acknowledgement that must be 0 are not", ErrBody)
	case a.From != FromKernel && a.From != FromUser:
		return a, fmt.Errorf("%w: an acknowledgement from %d", ErrBody, a.From)
	case a.Base > MaxAckBase:
		return a, fmt.Errorf("%w: an acknowledgement of word %d", ErrBody, a.Base)
	case a.Nonce>>48 != 0:
		return a, fmt.Errorf("%w: an acknowledgement's nonce %#x", ErrBody, a.Nonce)
	}
	return a, nil
}

// Window sets base and window of an answer to frame seq from a stream's seen words, which
// others may be writing.
func (a *AckBody) Window(seen *[SeenWords]uint64, seq uint32) {
	a.Base = AckBase(seq)
	for i := range a.Claimed {
		a.Claimed[i] = uint32(atomic.LoadUint64(&seen[int(a.Base)+i]))
	}
}

// PutAck writes the acknowledgement of a data frame to b, which has room for
// AckFrame bytes, and returns it. h is the data frame's head.
func PutAck(b []byte, h Head, a AckBody, tags *Tags) []byte {
	b = b[:AckFrame]
	h.Kind, h.Shape, h.Count, h.Length = Ack, 0, 0, AckSize
	h.Flags, h.Hop, h.Zero2 = 0, 0, 0
	h.SCell, h.STable, h.SOps, h.SShift, h.SSet = 0, 0, 0, 0, 0
	h.Put(b)
	a.Put(b[HeadSize:])
	tags.Seal(b, a.Nonce)
	return b
}

// ParseAck reads an acknowledgement, which b holds exactly, or an [Answer]. The tag
// is not checked: see [Tags.Open], with the body's nonce.
func ParseAck(b []byte) (Head, AckBody, error) {
	h, err := ParseFrame(b)
	if err != nil {
		return h, AckBody{}, err
	}
	if h.Kind != Ack && h.Kind != Answer {
		return h, AckBody{}, fmt.Errorf("%w: kind %d is no acknowledgement", ErrKind, h.Kind)
	}
	a, err := ParseAckBody(b[HeadSize:])
	return h, a, err
}

// AnswerToAck makes of an [Answer], which a program passed up, the acknowledgement that is
// to be sent to where it came from. The program has tagged it as that.
func AnswerToAck(b []byte) { b[offKind] = byte(Ack) }

// Absorb takes an acknowledgement's window into a sender's bitmap of frames, and
// returns the number of frames that are new in it. Others may do the same at the same time.
func (a *AckBody) Absorb(acked *[AckedWords]uint64) (fresh int) {
	for i, c := range a.Claimed {
		if c == 0 {
			continue
		}
		w := int(a.Base) + i
		bits := uint64(c) << (32 * (w & 1))
		fresh += onesCount(bits &^ atomic.OrUint64(&acked[w>>1], bits))
	}
	return fresh
}
