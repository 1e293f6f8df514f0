// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"github.com/dchest/siphash"
)

// Tags are the keys that a job's frames are tagged with.
//
// A tag is NH(head, body) + SipHash-2-4(token, kind, hop and nonce) mod 2^64. NH is
// the universal hash of UMAC (RFC 4418, section 5.2.2: one multiplication of two
// 32-bit sums per 8 bytes): for one key, two given messages collide with
// probability 2^-32, so a forger who sees tags succeeds with at most that per
// frame. The pad must never serve two different messages: a data frame's nonce
// is its number and the slot it is answered to, and its bytes are the same
// however often it is sent; an acknowledgement has a nonce of its own.
//
// A frame that is larger than FrameSize never meets a program. Its tag is
// SipHash-2-4 of the tagged head and the body.
type Tags struct{ job Job }

// NewTags derives a job's keys from its secret.
func NewTags(secret [16]byte) *Tags {
	k0, k1 := le.Uint64(secret[:8]), le.Uint64(secret[8:])
	derive := func(label byte, i int) uint64 {
		var m [16]byte
		m[0] = label
		le.PutUint64(m[8:], uint64(i))
		return siphash.Hash(k0, k1, m[:])
	}
	t := &Tags{}
	t.job.Sip0, t.job.Sip1 = derive('p', 0), derive('p', 1)
	for i := range t.job.NH {
		t.job.NH[i] = derive('n', i)
	}
	return t
}

// Job returns the keys as the programs want them.
func (t *Tags) Job() *Job { return &t.job }

// TagsOf returns the tags with keys that were derived before.
func TagsOf(job *Job) *Tags { return &Tags{job: *job} }

// Pad returns the pad of a message. nonce is below 2^48.
func (t *Tags) Pad(token uint64, kind Kind, hop uint8, nonce uint64) uint64 {
	var m [16]byte
	le.PutUint64(m[:8], token)
	le.PutUint64(m[8:], uint64(kind)<<56|uint64(hop)<<48|nonce)
	return t.sip(m[:])
}

func (t *Tags) sip(m []byte) uint64 { return siphash.Hash(t.job.Sip0, t.job.Sip1, m) }

// Tag returns the tag of a frame: head and body, at least HeadSize + the body's
// length, which is at most BodySize. It reads token, kind and hop from the head.
func (t *Tags) Tag(frame []byte, nonce uint64) uint64 {
	length := int(le.Uint16(frame[offLength:]))
	if length == 0 && len(frame) > FrameSize {
		return t.largeTag(frame)
	}
	sum := nh(frame[:TaggedHead], t.job.NH[:TaggedHead/8])
	sum += nh(frame[HeadSize:HeadSize+length], t.job.NH[TaggedHead/8:])
	return sum + t.Pad(le.Uint64(frame[offToken:]), Kind(frame[offKind]), frame[offHop], nonce)
}

func (t *Tags) largeTag(frame []byte) uint64 {
	var key [16]byte
	le.PutUint64(key[:8], t.job.Sip0)
	le.PutUint64(key[8:], t.job.Sip1)
	h := siphash.New(key[:])
	h.Write(frame[:TaggedHead])
	h.Write(frame[HeadSize:])
	return h.Sum64()
}

// Seal writes the tag of a frame into it. Its length is one that [ParseFrame] takes.
func (t *Tags) Seal(frame []byte, nonce uint64) {
	le.PutUint64(frame[offTag:], t.Tag(frame, nonce))
}

// Open says whether a frame has the right tag. It is false for frames that are shorter
// than they say, and for lengths that no frame has.
func (t *Tags) Open(frame []byte, nonce uint64) bool {
	if len(frame) < HeadSize {
		return false
	}
	length := int(le.Uint16(frame[offLength:]))
	if length > BodySize || length%BodyStep != 0 || len(frame) < HeadSize+length {
		return false
	}
	return le.Uint64(frame[offTag:]) == t.Tag(frame, nonce)
}

// SealData writes the tag of a data frame, with the nonce that is due to it.
func (t *Tags) SealData(frame []byte) {
	t.Seal(frame, Nonce(le.Uint32(frame[offBack:]), le.Uint32(frame[offSeq:])))
}

// OpenData says whether a data frame has the right tag.
func (t *Tags) OpenData(frame []byte) bool {
	return len(frame) >= HeadSize && t.Open(frame, Nonce(le.Uint32(frame[offBack:]), le.Uint32(frame[offSeq:])))
}
