// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"io"
	"os"
)

// Slack is the number of readable bytes that every block has beyond len(Data)
// (cap(Data) >= len(Data)+Slack), so that a mapper may load whole machine
// words. Their content means nothing.
const Slack = 64

// Format says what a record is, as far as cutting the input goes.
type Format uint8

const (
	// Lines are records ended by Options.Delimiter.
	Lines Format = iota
	// QuotedLines are lines in which a newline between two double quotes is
	// data (CSV as in RFC 4180).
	QuotedLines
	// Parquet is a Parquet file; every row group is a split and its rows are
	// handed over as JSON lines (one object a row, numbers exact, NULL as null).
	Parquet
)

// LongLines says what becomes of a record longer than Options.MaxLine.
type LongLines uint8

const (
	// LongLinesError ends the job with an error that names file and offset.
	LongLinesError LongLines = iota
	// LongLinesSkip drops the record and counts it.
	LongLinesSkip
	// LongLinesTruncate keeps the first MaxLine bytes and counts it.
	LongLinesTruncate
)

// Options steers discovery, splitting and reading. The zero value reads lines.
type Options struct {
	Format     Format
	Delimiter  []byte    // record delimiter; empty: LF, and one CR before it is no data
	MaxLine    int64     // longest record in bytes; 0: 64 MiB
	LongLines  LongLines // what to do with longer ones
	Encoding   string    // "" or "utf-8": bytes as they are, UTF-16 with a BOM is refused; "utf-16", "utf-16le", "utf-16be", "latin1", "windows-1252": transcoded to UTF-8
	SplitSize  int64     // bytes of a split of a plain file; 0: 16 MiB
	AllowEmpty bool      // a pattern that matches nothing is no error
	Columns    []string  // Parquet: only these columns are read; empty: all
	Stdin      io.Reader // what "-" reads; nil: os.Stdin
	// Uploads maps paths to local files that stand in for them. Such a path keeps
	// its name everywhere, and patterns and folders find it as if it were on
	// disk. A pattern that finds one of them finds nothing else.
	Uploads map[string]string
}

// File is one input file.
type File struct {
	Path        string // as found; "-" is standard input
	Index       int    // position in Plan.Files
	Size        int64  // bytes on disk; -1: unknown (pipes, standard input)
	Compression string // "", "gzip", "zstd", "bzip2", "xz", "snappy", "s2", "lz4"; of pipes, and of small files among more than 16,384, only known in the File of a Block

	planned os.FileInfo // of a regular file, as it was found
	etag    string      // of an object (s3://...), as it was found; reads ask for that content alone
}

// Split is a part of the input that one map task reads. It is plain data.
type Split struct {
	Index  int   // position in Plan.Splits
	Files  []int // indices of the files; more than one only if all are read whole (small files go together)
	Start  int64 // plain files: first byte (records that begin in [Start, End) belong to the split); Parquet: row group
	End    int64 // -1: the end of the file, whatever its size
	Quoted bool  // QuotedLines: Start lies between quotes
	Stream bool  // long and only readable from front to back: worth one reader for several mappers
	Bytes  int64 // bytes on disk, for progress; 0 if unknown
}

// Plan is what discovery found.
type Plan struct {
	Files      []File
	Splits     []Split
	Notes      []string // said once to the user: names skipped, empty .gz files, ...
	TotalBytes int64    // sum of known sizes
	Exact      bool     // false if a size is unknown

	set *settings
}

// Block is a run of whole records.
type Block struct {
	Data   []byte // records, each ended by the delimiter but perhaps the last of a file, and but a truncated one, which is alone in its block
	File   *File
	Offset int64 // of Data[0] in the file (decompressed bytes)
	Line   int64 // 1-based line number of Data[0]; 0: unknown, ask Plan.LineAt
	Read   int64 // bytes read from disk since the block before, for progress
}

// Reader hands out the blocks of one split in order.
type Reader interface {
	// ReadBlock fills a block, reusing buf's memory if it is large enough. It
	// returns io.EOF when there is none left. Errors name file and offset.
	ReadBlock(buf []byte) (Block, error)
	// Skipped returns how many records were skipped or truncated as too long.
	Skipped() (skipped, truncated int64)
	io.Closer
}

// Opener opens splits of a plan.
type Opener interface {
	Open(ctx context.Context, s Split) (Reader, error)
}
