// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math/bits"
)

func onesCount(w uint64) int { return bits.OnesCount64(w) }

// PutProbe writes a probe with a body of length zeros to b, which has room for it, and returns it.
// length is a multiple of BodyStep, at most BodySize; the answer is as long, so that it shows the
// largest frame that gets through. id tells answers apart. There is no tag: a probe
// belongs to no job, and an answer is believed for what it shows alone.
func PutProbe(b []byte, id uint64, seq uint32, length int, stamp uint64) []byte {
	b = b[:HeadSize+length]
	clear(b)
	h := Head{Magic: Magic, Version: Version, Kind: Probe, Token: id, Seq: seq, Length: uint16(length), Stamp: stamp}
	h.Put(b)
	return b
}

// AnswerProbe turns a probe into user space's answer to it.
func AnswerProbe(b []byte) {
	b[offKind], b[offCount] = byte(ProbeReply), FromUser
}

// ParseProbe reads a probe or an answer to one, which b holds exactly. The head's token is the id;
// its count says who answered: FromKernel or FromUser.
func ParseProbe(b []byte) (Head, error) {
	h, err := ParseFrame(b)
	if err != nil {
		return h, err
	}
	if h.Kind != Probe && h.Kind != ProbeReply {
		return h, fmt.Errorf("%w: kind %d is no probe", ErrKind, h.Kind)
	}
	return h, nil
}
