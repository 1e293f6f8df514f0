// SPDX-License-Identifier: Apache-2.0

// Package spill keeps sorted runs of pairs on disk, compressed and checksummed,
// and merges them. A pair is a key and a payload, both bytes; what a payload
// means is its user's business.
//
// A Writer takes pairs in ascending order of (part, key, payload) and leaves a
// Run. A Cursor reads a range of keys of one part of a run, or of anything
// sorted in memory (SliceCursor). A Merger makes one ordered stream of many
// cursors and is a Cursor itself. Compact merges runs into fewer.
//
// # Durability
//
// Nothing is synced to disk. A run serves the process that wrote it and is
// worthless once that process is gone: a restarted task writes its runs anew.
// Waiting for the disk would cost time and buy nothing. Checksums, on the other
// hand, are verified whenever a block is read, since a disk, a file system or a
// stranger's hand may damage a file while the job goes on.
//
// # File format, version 1
//
// The format may change with every release, because runs live only as long as a
// job. Fixed-size integers are little-endian, uvarint is that of encoding/binary.
//
//	file    = "QRNRUN" version(1 byte) 0(1 byte)  block*  footer  trailer
//
//	block   = header(36 bytes) stored bytes
//	header  = checksum(8)   xxh3-64 over the rest of the header and the stored bytes
//	          offset(8)     of the block in the file, so that a block in the
//	                        wrong place is found out
//	          stored(4)     length of the stored bytes
//	          raw(4)        length once decompressed
//	          pairs(4)      number of pairs, at least 1
//	          part(4)       all pairs of a block belong to this part
//	          encoding(4)   0 as is, 1 s2, 2 zstd
//	raw     = pair*
//	pair    = shared(uvarint)   bytes that the key has in common with the key
//	                            before it in the block; 0 for the first. It is
//	                            the largest such number: cursors build on that.
//	          suffix(uvarint)   length of the rest of the key
//	          payload(uvarint)  length of the payload
//	          the rest of the key, the payload
//
//	footer  = blocks(uvarint)  entry*
//	entry   = part(uvarint) stored(uvarint) raw(uvarint) pairs(uvarint)
//	          2 x key length + 1 if the key is cut (uvarint)
//	          the first key of the block, cut after 256 bytes
//	trailer = footer offset(8) footer length(8)
//	          checksum(8)      xxh3-64 over footer, offset and length
//	          "QRNRUN" version(1 byte) 0(1 byte)
//
// Blocks follow each other without gaps, so entries need no offsets. A block
// that does not shrink by at least a sixteenth is stored as is. A block ends
// before the pair that would carry it over the block size; a pair larger than
// that has a block for itself.
//
// # Order and speed
//
// Beside each key travels a code of 64 bits that says where, and with which
// bytes, it first differs from the key before it. Front coding yields it for
// next to nothing, and a merge can then nearly always decide between two keys
// by comparing their codes (this is offset-value coding): bytes of keys that
// are known to be equal are never looked at again.
package spill
