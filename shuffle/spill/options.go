// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"errors"
	"fmt"
)

// Compression is how the blocks of a run are compressed.
type Compression uint8

// The compressions. Blocks that do not shrink are stored as they are.
const (
	S2   Compression = iota // the default: several times as fast as Zstd
	Zstd                    // at its fastest level: a third smaller than S2 on sorted text
	None
)

func (c Compression) String() string {
	switch c {
	case S2:
		return "s2"
	case Zstd:
		return "zstd"
	case None:
		return "none"
	}
	return fmt.Sprintf("Compression(%d)", uint8(c))
}

// Options say how a run is written. The zero value is good.
type Options struct {
	// BlockSize is the size in bytes of a block before compression. Larger ones
	// compress better, smaller ones let more cursors be open in the same memory.
	// Powers of two waste none. 0: DefaultBlockSize. At most 1 GiB.
	BlockSize int
	// Compression of the blocks; the zero value is S2.
	Compression Compression
	// ByKey says that payloads of equal keys come in any order, as is enough for
	// NewKeyMerger. It only matters to the order checks of builds with the tag
	// "invariants".
	ByKey bool
}

// DefaultBlockSize is the size of a block before compression, in bytes.
const DefaultBlockSize = 128 << 10

// MaxPair is the largest size of a pair, key and payload together, in bytes.
const MaxPair = 1 << 30

const (
	maxBlockSize = 1 << 30
	// maxRaw bounds a block before compression: one pair and its three lengths.
	maxRaw = MaxPair + maxPairOverhead
	// writeSize is how many bytes are written at once.
	writeSize = 256 << 10
)

// ErrCorrupt is what errors about damaged runs wrap; see CorruptError.
var ErrCorrupt = errors.New("damaged run file")

// CorruptError says that a run file does not hold what was written to it.
type CorruptError struct {
	Path   string
	Offset int64 // of the damaged block, header, footer or trailer in the file
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("spill: %s: damaged at offset %d: %s; check the disk under --spill-dir and run the job again", e.Path, e.Offset, e.Reason)
}

// Unwrap returns ErrCorrupt.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// withDefaults fills in what is not set, or says what is wrong.
func (o Options) withDefaults() (Options, error) {
	if o.BlockSize == 0 {
		o.BlockSize = DefaultBlockSize
	}
	if o.BlockSize < 0 || o.BlockSize > maxBlockSize {
		return o, fmt.Errorf("spill: block size %d: must be 1 to %d bytes", o.BlockSize, maxBlockSize)
	}
	if o.Compression > None {
		return o, fmt.Errorf("spill: unknown compression %d", o.Compression)
	}
	return o, nil
}

// CursorMemory returns how many bytes an open cursor of a run takes at most, for
// a block size (0: the default): the block that it reads from and, while that
// is being read and decompressed, as much again. Block sizes that are powers
// of two make the best of it, others are rounded up. A pair larger than the block size
// counts with its own size; see Run.CursorMemory.
func CursorMemory(blockSize int) int64 {
	if blockSize <= 0 {
		blockSize = DefaultBlockSize
	}
	return 2*int64(bufferSize(blockSize)) + cursorOverhead
}

// cursorOverhead is room for a cursor's key and what else it needs.
const cursorOverhead = 4 << 10

// WriterMemory returns how many bytes an open Writer takes, for a block size (0:
// the default), without its index (see Run.IndexMemory).
func WriterMemory(blockSize int) int64 {
	if blockSize <= 0 {
		blockSize = DefaultBlockSize
	}
	return int64(bufferSize(blockSize)) + int64(bufferSize(outSize(blockSize))) + cursorOverhead
}

// flushSize is how many bytes of finished blocks a Writer gathers before it
// writes them.
func flushSize(blockSize int) int { return min(writeSize, 4*blockSize) }

// outSize is the room for them: what is nearly enough, and one block more.
func outSize(blockSize int) int {
	return flushSize(blockSize) + headerSize + compressedBound(blockSize)
}
