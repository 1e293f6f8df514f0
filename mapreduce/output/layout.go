// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bufio"
	"fmt"
	"io"
)

// layout is how a part's rows become the bytes of a file.
type layout struct {
	format      Format
	compression string
	binary      bool // Parquet: see DirOptions.ParquetBinary
	schema      Schema
	encoder     Encoder // nil for Parquet
}

func newLayout(f Format, compression string, binary bool, s Schema) (*layout, error) {
	if f == "" {
		f = TSV
	}
	l := &layout{format: f, compression: compression, binary: binary, schema: s}
	switch compression {
	case NoCompression, Gzip, Zstd:
	default:
		return nil, unknownCompression(compression)
	}
	if f == Parquet {
		_, err := newParquetSchema(s, binary)
		return l, err
	}
	enc, err := NewEncoder(f, s)
	l.encoder = enc
	return l, err
}

// PartName returns the name of a part's file: part-00000 for TSV and Plain, with .csv,
// .jsonl or .parquet for other formats, and .gz or .zst behind that if it is
// compressed (Parquet compresses within the file and keeps its name).
func PartName(index int, f Format, compression string) string {
	name := fmt.Sprintf("part-%05d", index)
	switch f {
	case TSV, Plain, "":
	case Parquet:
		return name + ".parquet"
	default:
		name += "." + string(f)
	}
	switch compression {
	case Gzip:
		name += ".gz"
	case Zstd:
		name += ".zst"
	}
	return name
}

// sink is where the bytes of a part go.
type sink interface {
	io.Writer
	// finish makes what was written last.
	finish() error
	// abandon gives up; it may be called while another goroutine writes.
	abandon()
}

// open returns the part whose bytes go to s. encoder replaces the layout's own
// and may leave out the header.
func (l *layout) open(s sink, encoder Encoder) (Part, error) {
	switch {
	case l.format == Parquet:
		return newParquetPart(s, l)
	case l.compression != NoCompression:
		c, err := newCompressor(s, l.compression)
		return &textPart{encoder: encoder, w: c, flush: c.finish, sink: s}, err
	}
	w := bufio.NewWriterSize(s, 64<<10) // large writes go past it
	return &textPart{encoder: encoder, w: w, flush: w.Flush, sink: s}, nil
}

// textPart is a part that takes encoded rows.
type textPart struct {
	encoder Encoder
	w       io.Writer
	flush   func() error
	sink    sink
	row     []byte // for WriteRow
}

func (p *textPart) Encoder() Encoder { return p.encoder }

func (p *textPart) Write(b []byte) (int, error) { return p.w.Write(b) }

func (p *textPart) WriteRow(r *Row) error {
	p.row = p.encoder.AppendRow(p.row[:0], r)
	_, err := p.w.Write(p.row)
	return err
}

func (p *textPart) Close() error {
	if err := p.flush(); err != nil {
		return err
	}
	p.w, p.flush, p.row = nil, nil, nil // the books keep closed parts, but not their buffers
	return p.sink.finish()
}

// bare is an encoder without header, for parts of a stream but the first.
type bare struct{ Encoder }

func (bare) AppendHeader(dst []byte) []byte { return dst }
