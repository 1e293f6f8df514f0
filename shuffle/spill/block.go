// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

const (
	magic       = "QRNRUN\x01\x00" // the seventh byte is the format version
	magicSize   = len(magic)
	headerSize  = 36
	trailerSize = 24 + magicSize

	// maxPairOverhead is the most that the three lengths of a pair take.
	maxPairOverhead = 15
	// slack is how many bytes behind a decoded block may be read (not used), so
	// that short keys are copied sixteen bytes at a time.
	slack = 16
)

// blockInfo is what the index knows about a block.
type blockInfo struct {
	off    int64 // of its header in the file
	stored uint32
	raw    uint32
	pairs  uint32
	part   uint32
	keyLen uint16
	cut    bool // the key is only the start of the first key
	keyOff int  // of its key in the index's arena
}

// putHeader fills in the header at the start of block, which holds the stored
// bytes behind it.
func putHeader(block []byte, b blockInfo, encoding uint32) {
	le := binary.LittleEndian
	le.PutUint64(block[8:], uint64(b.off))
	le.PutUint32(block[16:], b.stored)
	le.PutUint32(block[20:], b.raw)
	le.PutUint32(block[24:], b.pairs)
	le.PutUint32(block[28:], b.part)
	le.PutUint32(block[32:], encoding)
	le.PutUint64(block, xxh3.Hash(block[8:]))
}

// openBlock checks block, header and stored bytes as read from the file, against
// its checksum and the index, and decompresses it into dst, which has
// length b.raw.
func openBlock(dst, block []byte, b blockInfo) error {
	if len(block) < headerSize || len(block)-headerSize != int(b.stored) {
		return errors.New("block is cut short")
	}
	le := binary.LittleEndian
	if le.Uint64(block) != xxh3.Hash(block[8:]) {
		return errors.New("checksum of block does not match")
	}
	if le.Uint64(block[8:]) != uint64(b.off) || le.Uint32(block[16:]) != b.stored || le.Uint32(block[20:]) != b.raw ||
		le.Uint32(block[24:]) != b.pairs || le.Uint32(block[28:]) != b.part {
		return errors.New("header of block does not match the index")
	}
	if err := decompress(dst, block[headerSize:], le.Uint32(block[32:])); err != nil {
		return fmt.Errorf("cannot decompress block: %w", err)
	}
	return nil
}

// readBlock returns block i decoded, with slack bytes more behind it. buf is
// reused if it is large enough, and given back otherwise.
func (r *Run) readBlock(i int, buf []byte) ([]byte, error) {
	b := r.index.blocks[i]
	size := headerSize + int(b.stored)
	block := takeBuffer(size)
	defer giveBuffer(block)
	n, err := r.file.ReadAt(block, b.off)
	if n < size {
		if err == nil || errors.Is(err, io.EOF) {
			return buf, &CorruptError{r.path, b.off, "file ends within the block"}
		}
		return buf, fmt.Errorf("spill: read %d bytes at offset %d: %w", size, b.off, err)
	}
	if need := int(b.raw) + slack; cap(buf) < need {
		giveBuffer(buf)
		buf = takeBuffer(need)
	} else {
		buf = buf[:need]
	}
	if err := openBlock(buf[:b.raw], block, b); err != nil {
		return buf, &CorruptError{r.path, b.off, err.Error()}
	}
	return buf, nil
}
