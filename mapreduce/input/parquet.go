// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// parquetFile is an open Parquet file and what is to be read of it.
type parquetFile struct {
	file   diskFile
	meta   *parquet.File
	fields []*parquetNode
	leaves []parquetLeaf
}

// parquetLeaf is a column that is read.
type parquetLeaf struct {
	column   int // index in the file
	repeated bool
}

// guardParquet turns panics of the library, which files that are not what they
// say can cause, into errors.
func guardParquet(path string, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("input: %s: not a valid Parquet file: %v", path, p)
		}
	}()
	return do()
}

func (s *settings) openParquetFile(ctx context.Context, file *File) (*parquetFile, error) {
	f, err := s.openPlaces(ctx, file)
	if err != nil {
		return nil, err
	}
	p := &parquetFile{file: f}
	err = guardParquet(file.Path, func() error {
		p.meta, err = parquet.OpenFile(f, file.Size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		if err != nil {
			return fmt.Errorf("input: %s: not a valid Parquet file of %d bytes: %w", file.Path, file.Size, err)
		}
		return p.choose(file.Path, s.Columns)
	})
	if err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// choose picks the columns to be read. A name with dots may mean a field of a
// nested column, which is read whole then.
func (p *parquetFile) choose(path string, wanted []string) error {
	all := p.meta.Root().Columns()
	want := make(map[string]bool)
	for _, name := range wanted {
		at := slices.IndexFunc(all, func(c *parquet.Column) bool { return c.Name() == name })
		if at < 0 {
			first, _, _ := strings.Cut(name, ".")
			at = slices.IndexFunc(all, func(c *parquet.Column) bool { return c.Name() == first && !c.Leaf() })
		}
		if at < 0 {
			names := make([]string, len(all))
			for i, c := range all {
				names[i] = c.Name()
			}
			return fmt.Errorf("input: %s has no column %q; it has %s", path, name, strings.Join(names, ", "))
		}
		want[all[at].Name()] = true
	}
	halves := float16Leaves(p.meta.Metadata().Schema)
	for _, c := range all {
		if len(wanted) == 0 || want[c.Name()] {
			p.fields = append(p.fields, newParquetNode(c, &p.leaves, halves))
		}
	}
	return nil
}

func (p *parquetFile) close() error { return p.file.Close() }

// splitParquet makes a split of every row group.
func (p *Plan) splitParquet(ctx context.Context) error {
	type group struct{ bytes int64 }
	groups := make([][]group, len(p.Files))
	err := parallel(ctx, p.lookers(), len(p.Files), func(i int) error {
		file := &p.Files[i]
		if file.Size < 0 {
			return fmt.Errorf("input: %s is not a regular file; Parquet is read from its end, so save it as a file first", file.Path)
		}
		f, err := p.set.openParquetFile(ctx, file)
		if err != nil {
			return err
		}
		defer f.close()
		for _, g := range f.meta.Metadata().RowGroups {
			var n int64
			for _, leaf := range f.leaves {
				if leaf.column < len(g.Columns) {
					n += max(0, g.Columns[leaf.column].MetaData.TotalCompressedSize)
				}
			}
			groups[i] = append(groups[i], group{n})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, gs := range groups {
		for g, info := range gs {
			p.add(Split{Files: []int{i}, Start: int64(g), End: int64(g) + 1, Bytes: info.bytes})
			p.TotalBytes += info.bytes
		}
	}
	return nil
}

func (p *Plan) openParquet(ctx context.Context, s Split) (Reader, error) {
	if len(s.Files) != 1 {
		return nil, fmt.Errorf("input: split %d has %d Parquet files, not one", s.Index, len(s.Files))
	}
	file := &p.Files[s.Files[0]]
	f, err := p.set.openParquetFile(ctx, file)
	if err != nil {
		return nil, err
	}
	r := &parquetReader{ctx: ctx, set: p.set, file: file, parquetFile: f, bytes: s.Bytes, first: 1}
	err = guardParquet(file.Path, func() error {
		groups := f.meta.RowGroups()
		if s.Start < 0 || s.Start >= int64(len(groups)) {
			return fmt.Errorf("input: split %d is row group %d of %s, which has %d", s.Index, s.Start, file.Path, len(groups))
		}
		for _, g := range groups[:s.Start] {
			r.first += g.NumRows()
		}
		g := groups[s.Start]
		r.rows = g.NumRows()
		chunks := g.ColumnChunks()
		for _, leaf := range f.leaves {
			r.columns = append(r.columns, &columnReader{pages: chunks[leaf.column].Pages(), repeated: leaf.repeated})
		}
		r.record = make([][]parquet.Value, len(r.columns))
		return nil
	})
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// parquetReader hands out the rows of one row group as JSON lines. Offset in
// its blocks counts bytes of these lines from the begin of the row group, Line
// is the number of the row in the file.
type parquetReader struct {
	*parquetFile
	ctx     context.Context
	set     *settings
	file    *File
	columns []*columnReader
	record  [][]parquet.Value // of the current row, by leaf

	first   int64 // row number of the first row, from 1
	rows    int64
	done    int64 // rows
	bytes   int64 // on disk
	told    int64 // of them
	offset  int64
	skipped int64
	err     error
}

// ReadBlock returns rows as JSON, one object a line.
func (r *parquetReader) ReadBlock(buf []byte) (Block, error) {
	if r.err != nil {
		return Block{}, r.err
	}
	if err := r.ctx.Err(); err != nil {
		return Block{}, err
	}
	target := r.set.block
	if c := cap(buf) - Slack; c >= 4<<10 && c < target {
		target = c
	}
	buf = buf[:0]
	b := Block{File: r.file, Line: r.first + r.done, Offset: r.offset}
	err := guardParquet(r.file.Path, func() error {
		for r.done < r.rows && len(buf) < target {
			at := len(buf)
			if err := r.next(); err != nil {
				return fmt.Errorf("input: %s: row %d cannot be read: %w", r.file.Path, r.first+r.done, err)
			}
			buf = appendRow(buf, r.fields, r.record)
			r.done++
			if n := int64(len(buf) - at); n > r.set.MaxLine {
				if r.set.LongLines == LongLinesError {
					return fmt.Errorf("input: %s: row %d takes %d bytes as JSON, more than %d; allow longer ones with --max-line, or pass over them with --long-lines skip", r.file.Path, r.first+r.done-1, n, r.set.MaxLine)
				}
				r.skipped++ // half an object is none, so these are never truncated
				r.offset += n + 1
				buf = buf[:at]
				if at > 0 {
					break // rows in a block follow each other
				}
				b.Line, b.Offset = r.first+r.done, r.offset
				continue
			}
			buf = append(buf, '\n')
			r.offset += int64(len(buf) - at)
		}
		return nil
	})
	if err == nil && len(buf) == 0 {
		err = io.EOF
	}
	if err != nil {
		r.err = err
		return Block{}, err
	}
	if cap(buf) < len(buf)+Slack {
		buf = append(make([]byte, 0, len(buf)+len(buf)/8+Slack), buf...)
	}
	b.Data = buf
	read := r.bytes
	if r.done < r.rows {
		read = int64(float64(r.bytes) * float64(r.done) / float64(r.rows))
	}
	b.Read, r.told = read-r.told, read
	return b, nil
}

// next gathers the values of one row.
func (r *parquetReader) next() error {
	for i, c := range r.columns {
		var err error
		if r.record[i], err = c.next(r.record[i][:0]); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("a column has too few values: %w", io.ErrUnexpectedEOF)
			}
			return err
		}
	}
	return nil
}

// Skipped returns how many rows were too long.
func (r *parquetReader) Skipped() (skipped, truncated int64) { return r.skipped, 0 }

// Close closes the file.
func (r *parquetReader) Close() error {
	if r.err == nil {
		r.err = errors.New("input: the reader is closed")
	}
	_ = guardParquet(r.file.Path, func() error {
		for _, c := range r.columns {
			c.close()
		}
		return nil
	})
	r.columns = nil
	if err := r.close(); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	return nil
}

// columnReader reads the values of one column of a row group.
type columnReader struct {
	pages    parquet.Pages
	page     parquet.Page
	values   parquet.ValueReader
	buf      []parquet.Value // read, from at to len
	at       int
	store    [170]parquet.Value
	repeated bool
	ended    bool
}

// next appends the values of the next row to dst.
func (c *columnReader) next(dst []parquet.Value) ([]parquet.Value, error) {
	if c.at == len(c.buf) {
		if err := c.fill(nil); err != nil {
			return dst, err
		}
	}
	dst = append(dst, c.buf[c.at])
	c.at++
	for c.repeated {
		if c.at == len(c.buf) {
			if err := c.fill(dst); err != nil {
				if errors.Is(err, io.EOF) {
					break
				}
				return dst, err
			}
		}
		if c.buf[c.at].RepetitionLevel() == 0 {
			break
		}
		dst = append(dst, c.buf[c.at])
		c.at++
	}
	return dst, nil
}

// fill reads more values. The bytes of kept lie in a page that goes away with
// its last value, so they are copied then.
func (c *columnReader) fill(kept []parquet.Value) error {
	for !c.ended {
		if c.values != nil {
			n, err := c.values.ReadValues(c.store[:])
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if n > 0 {
				c.buf, c.at = c.store[:n], 0
				return nil
			}
			for i := range kept {
				kept[i] = kept[i].Clone()
			}
			parquet.Release(c.page)
			c.page, c.values = nil, nil
		}
		page, err := c.pages.ReadPage()
		if err != nil {
			c.ended = errors.Is(err, io.EOF)
			return err
		}
		c.page, c.values = page, page.Values()
	}
	return io.EOF
}

func (c *columnReader) close() {
	if c.page != nil {
		parquet.Release(c.page)
		c.page = nil
	}
	c.pages.Close()
}
