// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"github.com/dchest/siphash"
)

// StreamMagic starts every message of a stream between two members of a group: "QRS1".
const StreamMagic = 0x31535251

// Sizes and limits of streams, in bytes.
const (
	StreamHeadSize = 64
	PieceSize      = 64 << 10 // most values in a piece
	PieceStep      = 8        // what follows a head is padded with zeros to a multiple of it
	ByeText        = 512      // longest text of a StreamBye

	streamBlock  = 1 << 10 // of a piece's values that the lower hash takes at a time
	streamBlocks = PieceSize / streamBlock
)

// StreamKind says what a message of a stream is.
type StreamKind uint8

// The kinds of messages.
const (
	StreamHello   StreamKind = iota + 1 // from who connects: Dialled is its nonce
	StreamWelcome                       // the answer: both nonces
	StreamConfirm                       // the answer to that: both nonces, and the call that the sender waits in
	StreamPart                          // a piece of the sender's values, for the member that reduces them
	StreamSum                           // a piece of the result
	StreamWait                          // the sender waits in this call
	StreamBye                           // nothing follows: the sender's end is broken. A text says why
)

// StreamHead is the start of a message; all is little-endian. All of it is under the tag. So is what follows: Bytes of values, or of text, and
// zeros up to a multiple of PieceStep, which are not.
type StreamHead struct {
	Kind     StreamKind
	From, To uint8  // members
	Token    uint64 // of the group
	Call     uint64 // number of the call
	What     uint32 // of the call, as in Part
	Bytes    uint32 // of values or text that follow
	Place    uint64 // of the first value in the vector; of StreamWait and StreamBye: how many of these went before on this connection
	Dialled  uint64 // of the first three kinds: nonce of who connected; else 0
	Answered uint64 // likewise, of who was connected to; 0 in StreamHello
	Tag      uint64
}

const (
	offStreamKind = 5
	offStreamTo   = 7
	offStreamTag  = 56
)

// PaddedPiece returns how many bytes follow the head of a message with so many of values or text.
func PaddedPiece(bytes int) int { return (bytes + PieceStep - 1) / PieceStep * PieceStep }

// Put writes it to the first StreamHeadSize bytes of b.
func (h *StreamHead) Put(b []byte) {
	b = b[:StreamHeadSize:StreamHeadSize]
	le.PutUint32(b, StreamMagic)
	b[4], b[offStreamKind], b[6], b[offStreamTo] = Version, byte(h.Kind), h.From, h.To
	for i, v := range [...]uint64{h.Token, h.Call, uint64(h.What) | uint64(h.Bytes)<<32, h.Place, h.Dialled, h.Answered, h.Tag} {
		le.PutUint64(b[8+8*i:], v)
	}
}

// ParseStreamHead reads the head of a message. The tag is not checked: see [StreamTags]. Errors wrap ErrShort, ErrMagic, ErrVersion, ErrKind,
// ErrFormat or ErrLength.
func ParseStreamHead(b []byte) (h StreamHead, err error) {
	if len(b) < StreamHeadSize {
		return h, fmt.Errorf("%w: %d bytes of a stream's message", ErrShort, len(b))
	}
	if le.Uint32(b) != StreamMagic {
		return h, ErrMagic
	}
	if b[4] != Version {
		return h, fmt.Errorf("%w: %d", ErrVersion, b[4])
	}
	h = StreamHead{
		Kind: StreamKind(b[offStreamKind]), From: b[6], To: b[offStreamTo], Token: le.Uint64(b[8:]), Call: le.Uint64(b[16:]), What: le.Uint32(b[24:]), Bytes: le.Uint32(b[28:]),
		Place: le.Uint64(b[32:]), Dialled: le.Uint64(b[40:]), Answered: le.Uint64(b[48:]), Tag: le.Uint64(b[offStreamTag:]),
	}
	most := uint32(0)
	switch h.Kind {
	case StreamHello, StreamWelcome, StreamConfirm, StreamWait:
	case StreamPart, StreamSum:
		if most = PieceSize; h.Bytes == 0 || h.Bytes%4 != 0 {
			return h, fmt.Errorf("%w: a piece of %d bytes", ErrLength, h.Bytes)
		}
	case StreamBye:
		most = ByeText
	default:
		return h, fmt.Errorf("%w: kind %d of a stream", ErrKind, h.Kind)
	}
	switch greets := h.Kind <= StreamConfirm; {
	case h.Bytes > most:
		return h, fmt.Errorf("%w: %d bytes behind a message of kind %d", ErrLength, h.Bytes, h.Kind)
	case h.From >= MaxMembers || h.To >= MaxMembers || h.From == h.To || h.Token == 0:
		return h, fmt.Errorf("%w: from member %d to %d", ErrFormat, h.From, h.To)
	case (h.Dialled != 0) != greets, (h.Answered != 0) != (h.Kind == StreamWelcome || h.Kind == StreamConfirm):
		return h, fmt.Errorf("%w: nonces of a stream", ErrFormat)
	}
	return h, nil
}

// StreamTags are the keys that a job's streams are tagged with. No other messages are tagged with them.
//
// A tag is H(head, values) + SipHash-2-4(pad) mod 2^64. H is a tree of two levels of NH, as in [Tags]: values are hashed by blocks of 1 KiB, and the hashes of the blocks, behind the head,
// as a message of fixed length once more, with keys of its own. For two given messages either level collides with probability 2^-32, so a
// forger succeeds with at most 2^-31 per piece. The pad has all that tells messages of a job apart: the group, both nonces of the connection,
// direction, kind, call and place. What follows a head has the length that its receiver expects there.
//
// The recipient and the nonces of a connection are in the pad alone, so that a piece for all members is hashed once.
type StreamTags struct {
	sip0, sip1 uint64
	lower      [streamBlock / 8]uint64
	upper      [StreamHeadSize/8 - 1 + streamBlocks]uint64
}

// NewStreamTags derives a job's keys from its secret.
func NewStreamTags(secret [16]byte) *StreamTags {
	k0, k1 := le.Uint64(secret[:8]), le.Uint64(secret[8:])
	derive := func(label byte, i int) uint64 {
		var m [16]byte
		m[0] = label
		le.PutUint64(m[8:], uint64(i))
		return siphash.Hash(k0, k1, m[:])
	}
	t := &StreamTags{sip0: derive('s', 0), sip1: derive('s', 1)}
	for i := range t.lower {
		t.lower[i] = derive('l', i)
	}
	for i := range t.upper {
		t.upper[i] = derive('u', i)
	}
	return t
}

// Hash returns H of a message: of a head that was put, of which the recipient, nonces and the tag do not count, and of what follows it, at most PieceSize
// bytes. What is short of a multiple of PieceStep counts as zeros.
func (t *StreamTags) Hash(head, values []byte) uint64 {
	var m [StreamHeadSize - 8 + 8*streamBlocks]byte
	copy(m[:], head[:offStreamTag])
	m[offStreamTo] = 0
	clear(m[40:offStreamTag])
	at := StreamHeadSize - 8
	for len(values) >= streamBlock {
		le.PutUint64(m[at:], nh(values[:streamBlock], t.lower[:]))
		values, at = values[streamBlock:], at+8
	}
	if whole := len(values) / 8 * 8; len(values) > 0 {
		sum := nh(values[:whole], t.lower[:])
		if rest := values[whole:]; len(rest) > 0 {
			var last [8]byte
			copy(last[:], rest)
			sum += nhWords(last[:], t.lower[whole/8:])
		}
		le.PutUint64(m[at:], sum)
	}
	return nh(m[:], t.upper[:])
}

// Pad returns the pad of a message on a connection with these nonces; Answered is 0 where it is not known yet.
func (t *StreamTags) Pad(h *StreamHead, dialled, answered uint64) uint64 {
	var m [48]byte
	le.PutUint64(m[:], h.Token)
	le.PutUint64(m[8:], dialled)
	le.PutUint64(m[16:], answered)
	le.PutUint64(m[24:], h.Call)
	le.PutUint64(m[32:], h.Place)
	m[40], m[41], m[42] = byte(h.Kind), h.From, h.To
	return siphash.Hash(t.sip0, t.sip1, m[:])
}

// Seal puts a head whose tag is made of what follows it, on a connection with these nonces.
func (t *StreamTags) Seal(b []byte, h *StreamHead, values []byte, dialled, answered uint64) {
	h.Put(b)
	h.Tag = t.Hash(b, values) + t.Pad(h, dialled, answered)
	le.PutUint64(b[offStreamTag:], h.Tag)
}

// Address makes a head that was sealed for one member one for another, of the same hash: its recipient and its tag are replaced.
func (t *StreamTags) Address(b []byte, h *StreamHead, hash uint64, to uint8, dialled, answered uint64) {
	h.To = to
	h.Tag = hash + t.Pad(h, dialled, answered)
	b[offStreamTo] = to
	le.PutUint64(b[offStreamTag:], h.Tag)
}

// Open says whether a message that [ParseStreamHead] took has the right tag.
func (t *StreamTags) Open(b []byte, h *StreamHead, values []byte, dialled, answered uint64) bool {
	return h.Tag == t.Hash(b, values)+t.Pad(h, dialled, answered)
}
