// SPDX-License-Identifier: Apache-2.0

package output

// Kind is the type of a Value.
type Kind uint8

const (
	// Null is the absence of a value: empty in TSV and CSV, null in JSON.
	Null Kind = iota
	// Int is a signed 64-bit integer in Value.I.
	Int
	// Uint is an unsigned 64-bit integer in Value.I's bits.
	Uint
	// Float is a float64 in Value.F, written in the shortest form that reads back equal.
	Float
	// Decimal is Value.I times ten to the power of -Value.Scale, written without trailing zeros.
	Decimal
	// Bytes is a string in Value.B; it need not be UTF-8.
	Bytes
	// Bool is true if Value.I is not 0.
	Bool
	// JSON is a JSON text in Value.B, on one line. JSON lines hold it as it is,
	// other formats as a string.
	JSON
)

// Value is one cell. Its bytes are valid only until the call that got it returns.
type Value struct {
	Kind  Kind
	Scale uint8 // Decimal: digits after the point, 0 to 38
	I     int64
	F     float64
	B     []byte
}

// Column names a cell of every row and says its kind (for Parquet's schema and
// the header of CSV).
type Column struct {
	Name string
	Kind Kind
}

// Schema describes the rows of a job.
type Schema struct {
	Keys   []Column // one for a plain key, several for composite keys, none if rows have no key
	Values []Column
}

// Row is one result.
type Row struct {
	Keys   []Value
	Values []Value
}

// Format is the way rows become bytes.
type Format string

// The formats.
const (
	TSV     Format = "tsv"     // key, TAB, values; tab, newline, CR and backslash escaped
	CSV     Format = "csv"     // RFC 4180 with a header line
	JSONL   Format = "jsonl"   // {"key":...,"value":...}, exact
	Parquet Format = "parquet" // one file a part
	Plain   Format = "plain"   // as TSV but with nothing escaped, for rows that are lines already
)

// Encoder turns rows into bytes of a text format. It holds no state between
// rows, so several goroutines may encode ranges of a part that are then
// written one after the other.
type Encoder interface {
	// AppendHeader appends what stands before a part's first row.
	AppendHeader(dst []byte) []byte
	// AppendRow appends one row with its line end.
	AppendRow(dst []byte, r *Row) []byte
}

// Info tells a target about the job before anything is read.
type Info struct {
	Job    string
	Schema Schema
	Parts  int
	Inputs []string // paths of the input files, so that none is overwritten
}

// Target is where a job's rows go.
type Target interface {
	// Begin checks that the output can be written and may be (ErrExists,
	// ErrOverlap) and opens a transaction. The target stays as it is until Commit.
	Begin(info Info) (Transaction, error)
}

// Transaction is one job's output in the making.
type Transaction interface {
	// Part opens a part; parts may be written by different goroutines.
	Part(index int) (Part, error)
	// Commit makes the whole output visible at once. success is the content of
	// _SUCCESS (JSON, the audit), for targets that have one.
	Commit(success []byte) error
	// Abort removes all traces. It may be called after Commit, and then does nothing.
	Abort() error
}

// Early is what transactions implement that keep rows back until Commit and
// need not: Early tells them, before any part is opened, that nothing can fail
// any more but writing, so rows of the only part may be handed on at once.
type Early interface{ Early() }

// Part is one part of the output; its methods are called by one goroutine at a time.
type Part interface {
	// Encoder returns the encoder whose bytes Write takes, or nil if the format
	// wants rows (WriteRow).
	Encoder() Encoder
	// Write takes the encoded rows in order; the header is written by the engine
	// (AppendHeader) first.
	Write(p []byte) (int, error)
	// WriteRow takes one row, for formats without Encoder.
	WriteRow(r *Row) error
	// Close flushes and syncs.
	Close() error
}
