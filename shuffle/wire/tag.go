// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"github.com/dchest/siphash"
)

// Tags are the keys that a job's frames are tagged with.
//
// A tag is NH(head, body) + SipHash-2-4(token, kind and nonce) mod 2^64. NH is
// the universal hash of UMAC (RFC 4418, section 5.2.2: one multiplication of two
// 32-bit sums per 8 bytes): for one key, two given messages collide with
// probability 2^-32, so a forger who sees tags succeeds with at most that per
// frame. The pad must never serve two different messages: a data frame's nonce
// is its number, and its bytes are the same however often it is sent; an
// acknowledgement has a nonce of its own.
type Tags struct{ job Job }

// NewTags derives a job's keys from its secret.
func NewTags(secret [16]byte) *Tags {
	k0, k1 := binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])
	derive := func(label byte, i int) uint64 {
		var m [16]byte
		m[0] = label
		binary.LittleEndian.PutUint64(m[8:], uint64(i))
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

// Pad returns the pad of a message. nonce is below 2^48.
func (t *Tags) Pad(token uint64, kind Kind, hop uint8, nonce uint64) uint64 {
	var m [16]byte
	binary.LittleEndian.PutUint64(m[:8], token)
	binary.LittleEndian.PutUint64(m[8:], uint64(kind)<<56|uint64(hop)<<48|nonce)
	return siphash.Hash(t.job.Sip0, t.job.Sip1, m[:])
}

// Tag returns the tag of a frame: head and body, at least HeadSize + the body's
// length. It reads token, kind and hop from the head.
func (t *Tags) Tag(frame []byte, nonce uint64) uint64 {
	length := int(binary.LittleEndian.Uint16(frame[28:]))
	sum := nh(frame[:TaggedHead], t.job.NH[:TaggedHead/8])
	sum += nh(frame[HeadSize:HeadSize+length], t.job.NH[TaggedHead/8:])
	return sum + t.Pad(binary.LittleEndian.Uint64(frame[8:]), Kind(frame[4]), frame[49], nonce)
}

func nh(m []byte, key []uint64) (sum uint64) {
	for len(m) >= 8 {
		w, k := binary.LittleEndian.Uint64(m), key[0]
		sum += uint64(uint32(w)+uint32(k)) * uint64(uint32(w>>32)+uint32(k>>32))
		m, key = m[8:], key[1:]
	}
	return sum
}
