// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"
	"github.com/zeebo/xxh3"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/shuffle/spill"
)

// blockBytes is about how large a block of pairs is, before compression.
const blockBytes = 256 << 10

// maxBlock bounds a block before compression: one pair may be larger than others
// together.
const maxBlock = spill.MaxPair + blockBytes + 64

// blockWriter puts pairs into blocks.
type blockWriter struct {
	raw   []byte
	pairs uint32
	plain bool // no compression: the block does not leave the process
}

func (w *blockWriter) add(key, payload []byte) {
	w.raw = binary.AppendUvarint(w.raw, uint64(len(key)))
	w.raw = binary.AppendUvarint(w.raw, uint64(len(payload)))
	w.raw = append(append(w.raw, key...), payload...)
	w.pairs++
}

func (w *blockWriter) full() bool { return len(w.raw) >= blockBytes }

// take returns what was added as a block.
func (w *blockWriter) take(last bool) *api.FetchBlock {
	b := &api.FetchBlock{Data: w.raw, Pairs: w.pairs, Last: last}
	if !w.plain && len(w.raw) > 0 {
		if packed := s2.Encode(nil, w.raw); len(packed) < len(w.raw) {
			b.Data, b.Compressed = packed, true
		}
	}
	if b.Compressed {
		w.raw = w.raw[:0]
	} else {
		w.raw = nil
	}
	w.pairs = 0
	b.Digest = xxh3.Hash(b.Data)
	return b
}

// errBlock is what errors about blocks that are not what was sent wrap.
var errBlock = errors.New("a block of pairs is damaged")

// blockReader reads the pairs of a block.
type blockReader struct {
	rest []byte
	left uint32
	raw  []byte // decompressed, used again
	most int    // bytes of a block; 0: maxBlock
}

// reset begins to read a block, after it has looked through all of it.
func (r *blockReader) reset(b *api.FetchBlock) error {
	r.rest, r.left = nil, 0
	if h := xxh3.Hash(b.GetData()); h != b.GetDigest() {
		return fmt.Errorf("exchange: %w: its digest is %#x, it was sent with %#x", errBlock, h, b.GetDigest())
	}
	data := b.GetData()
	if b.GetCompressed() {
		n, err := s2.DecodedLen(data)
		if err != nil || n > cmp.Or(r.most, maxBlock) {
			return fmt.Errorf("exchange: %w: it is said to have %d bytes", errBlock, n)
		}
		if r.raw, err = s2.Decode(r.raw[:cap(r.raw)], data); err != nil {
			return fmt.Errorf("exchange: %w: %w", errBlock, err)
		}
		data = r.raw
	}
	rest := data
	for i := range b.GetPairs() {
		key, payload, after, ok := cutPair(rest)
		if !ok {
			return fmt.Errorf("exchange: %w: pair %d of %d is cut short", errBlock, i, b.GetPairs())
		}
		_, _, rest = key, payload, after
	}
	if len(rest) > 0 {
		return fmt.Errorf("exchange: %w: %d bytes follow its %d pairs", errBlock, len(rest), b.GetPairs())
	}
	r.rest, r.left = data, b.GetPairs()
	return nil
}

// next returns the next pair of a block that has more.
func (r *blockReader) next() (key, payload []byte) {
	r.left--
	key, payload, r.rest, _ = cutPair(r.rest)
	return key, payload
}

// cutPair takes a pair from the front of b.
func cutPair(b []byte) (key, payload, rest []byte, ok bool) {
	k, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, nil, nil, false
	}
	b = b[n:]
	p, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, nil, nil, false
	}
	b = b[n:]
	if k > uint64(len(b)) || p > uint64(len(b))-k {
		return nil, nil, nil, false
	}
	return b[:k:k], b[k : k+p : k+p], b[k+p:], true
}
