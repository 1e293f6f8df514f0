// SPDX-License-Identifier: Apache-2.0

package output

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
)

const (
	// A row group is closed at whichever comes first. Row groups are what
	// readers split by, and one is held in memory while it is written.
	parquetGroupBytes = 32 << 20
	parquetGroupRows  = 1 << 20

	// Rows are handed to the library in batches.
	parquetBatchRows  = 256
	parquetBatchBytes = 256 << 10
)

// parquetRoot is a group whose columns stay in the order of the schema
// (parquet.Group sorts them by name).
type parquetRoot struct {
	parquet.Group
	fields []parquet.Field
}

func (r *parquetRoot) Fields() []parquet.Field { return r.fields }

// newParquetSchema makes the file's schema: columns of keys, then of values, all optional.
//
// Int, Uint, Float and Bool have types of their own. Bytes are strings, or
// plain byte arrays if binary is true. Decimals are strings with the exact
// number in text, since every value has its own scale and a Parquet decimal has
// one for all of them.
func newParquetSchema(s Schema, binary bool) (*parquet.Schema, error) {
	columns := append(append([]Column(nil), s.Keys...), s.Values...)
	if len(columns) == 0 {
		return nil, fmt.Errorf("rows without columns, which Parquet cannot hold: %w", ErrUnsupported)
	}
	root := &parquetRoot{Group: parquet.Group{}}
	for _, c := range columns {
		switch {
		case c.Name == "" || !utf8.ValidString(c.Name):
			return nil, fmt.Errorf("column name %q, which Parquet cannot hold (it needs UTF-8 and at least one character): %w", c.Name, ErrUnsupported)
		case root.Group[c.Name] != nil:
			return nil, fmt.Errorf("two columns are called %q, which Parquet cannot hold (rename one): %w", c.Name, ErrUnsupported)
		}
		var node parquet.Node
		switch c.Kind {
		case Int:
			node = parquet.Int(64)
		case Uint:
			node = parquet.Uint(64)
		case Float:
			node = parquet.Leaf(parquet.DoubleType)
		case Bool:
			node = parquet.Leaf(parquet.BooleanType)
		case Bytes:
			if binary {
				node = parquet.Leaf(parquet.ByteArrayType)
				break
			}
			fallthrough
		default:
			node = parquet.String()
		}
		// The plain encoding is the one that every reader knows.
		node = parquet.Optional(parquet.Encoded(node, &parquet.Plain))
		root.Group[c.Name] = node
	}
	sorted := make(map[string]parquet.Field)
	for _, f := range root.Group.Fields() {
		sorted[f.Name()] = f
	}
	for _, c := range columns {
		root.fields = append(root.fields, sorted[c.Name])
	}
	return parquet.NewSchema("rows", root), nil
}

// parquetPart is a part that takes rows.
type parquetPart struct {
	sink    sink
	writer  *parquet.GenericWriter[any]
	columns []Column
	keys    int
	binary  bool

	batch []parquet.Row
	rows  int    // in batch
	bytes []byte // that the batch's values point to
	group struct{ rows, bytes int }
	total int64 // rows so far, for errors
}

func newParquetPart(s sink, l *layout) (*parquetPart, error) {
	schema, err := newParquetSchema(l.schema, l.binary)
	if err != nil {
		return nil, err
	}
	// zstd, not the more common snappy: the library's snappy has different
	// results on different processors.
	var codec compress.Codec = &parquet.Zstd
	if l.compression == Gzip {
		codec = &parquet.Gzip
	}
	config, err := parquet.NewWriterConfig(schema, parquet.Compression(codec),
		parquet.CreatedBy("quern", "1", "0"), parquet.WriteBufferSize(256<<10), parquet.DataPageStatistics(true))
	if err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	p := &parquetPart{
		sink: s, writer: parquet.NewGenericWriter[any](s, config), keys: len(l.schema.Keys), binary: l.binary,
		columns: append(append([]Column(nil), l.schema.Keys...), l.schema.Values...),
		batch:   make([]parquet.Row, parquetBatchRows),
	}
	cells := make([]parquet.Value, parquetBatchRows*len(p.columns))
	for i := range p.batch {
		p.batch[i] = cells[i*len(p.columns) : (i+1)*len(p.columns)]
	}
	return p, nil
}

func (p *parquetPart) Encoder() Encoder { return nil }

func (p *parquetPart) Write([]byte) (int, error) {
	return 0, fmt.Errorf("bytes written to a Parquet part, which takes rows: %w", ErrState)
}

func (p *parquetPart) WriteRow(r *Row) error {
	if !fits(r, p.keys, len(p.columns)-p.keys) {
		return fmt.Errorf("a row of %d and %d cells for %d columns of keys and %d of values: %w",
			len(r.Keys), len(r.Values), p.keys, len(p.columns)-p.keys, ErrState)
	}
	row := p.batch[p.rows]
	size := len(p.bytes)
	for i := range p.columns {
		v := &r.Keys
		at := i
		if i >= p.keys {
			v, at = &r.Values, i-p.keys
		}
		cell, err := p.cell(&p.columns[i], &(*v)[at])
		if err != nil {
			return fmt.Errorf("row %d, column %q: %w", p.total+1, p.columns[i].Name, err)
		}
		level := 1
		if cell.IsNull() {
			level = 0
		}
		row[i] = cell.Level(0, level, i)
	}
	p.rows++
	p.total++
	p.group.rows++
	p.group.bytes += len(p.bytes) - size + 8*len(p.columns)
	if p.group.bytes >= parquetGroupBytes || p.group.rows >= parquetGroupRows {
		if err := p.flushBatch(); err != nil {
			return err
		}
		p.group.rows, p.group.bytes = 0, 0
		return p.writer.Flush()
	}
	if p.rows == len(p.batch) || len(p.bytes) >= parquetBatchBytes {
		return p.flushBatch()
	}
	return nil
}

func (p *parquetPart) flushBatch() error {
	if p.rows == 0 {
		return nil
	}
	_, err := p.writer.WriteRows(p.batch[:p.rows])
	p.rows = 0
	p.bytes = p.bytes[:0]
	return err
}

// cell makes a value of the column's type. What would lose anything on the way
// is an error.
func (p *parquetPart) cell(c *Column, v *Value) (parquet.Value, error) {
	if v.Kind == Null {
		return parquet.NullValue(), nil
	}
	switch c.Kind {
	case Int:
		if v.Kind == Int || v.Kind == Uint && v.I >= 0 {
			return parquet.Int64Value(v.I), nil
		}
	case Uint:
		if v.Kind == Uint || v.Kind == Int && v.I >= 0 {
			return parquet.Int64Value(v.I), nil
		}
	case Float:
		switch {
		case v.Kind == Float:
			return parquet.DoubleValue(v.F), nil
		case v.Kind == Int && exactFloat(v.I):
			return parquet.DoubleValue(float64(v.I)), nil
		}
	case Bool:
		if v.Kind == Bool {
			return parquet.BooleanValue(v.I != 0), nil
		}
	default: // strings
		start := len(p.bytes)
		if v.Kind == Bytes {
			if !(p.binary && c.Kind == Bytes) && !utf8.Valid(v.B) {
				return parquet.Value{}, fmt.Errorf("%q is no UTF-8, which a Parquet string must be: choose another format (jsonl is exact), or have strings written as binary", clip(v.B))
			}
			p.bytes = append(p.bytes, v.B...)
		} else {
			p.bytes = appendPlain(p.bytes, v)
		}
		return parquet.ByteArrayValue(p.bytes[start:len(p.bytes):len(p.bytes)]), nil
	}
	return parquet.Value{}, fmt.Errorf("the value %s does not fit the column's type in Parquet: choose another format", appendPlain(nil, v))
}

// exactFloat says that a float64 holds i.
func exactFloat(i int64) bool {
	f := float64(i)
	return f < math.MaxInt64 && int64(f) == i
}

// clip shortens a value for an error message.
func clip(b []byte) []byte { return b[:min(len(b), 60)] }

func (p *parquetPart) Close() error {
	if err := p.flushBatch(); err != nil {
		return err
	}
	if err := p.writer.Close(); err != nil {
		return err
	}
	p.writer, p.batch, p.bytes = nil, nil, nil // the books keep closed parts, but not their buffers
	return p.sink.finish()
}
