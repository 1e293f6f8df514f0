// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/quernmr/quern/mapreduce/input"
)

// window is how many bytes are searched for commas and newlines in one go: few
// enough for data and positions to stay in the first-level cache.
const window = 4 << 10

// Type is what a field is. Fields of CSV, TSV, regular expressions and lines
// are Text or Missing.
type Type uint8

const (
	Missing Type = iota // not there, or null
	Text                // a string
	Number              // a JSON number, as written
	Bool                // true or false
	Nested              // an array or object, as written
)

// Parser finds the wanted columns in the records of one block after another.
// It belongs to one goroutine.
type Parser struct {
	// What Next needs comes first. Every entry of marks is where a field
	// begins, which is one after the comma or newline before it; marks[at] is
	// the current position.
	marks  []uint32
	at     int  // entry where the next record begins
	have   int  // number of entries
	width  int  // fields of a record
	pair   bool // records have two fields, and both are wanted
	first  int  // if so, which of the wanted ones stands first in the record
	data   []byte
	fields [][]byte
	cols   []int // wanted column -> field number
	tail   []int // wanted columns that are a record's last field

	start, end int // of the record in data
	comma      byte
	kind       Kind
	scanned    int // data[:scanned] is in marks
	limit      int // data[:limit], from the current position on, has no special byte and ends a line
	special    int // first special byte (see splitter.special) after the limit; less than the current position: to be looked for
	pos        int // where the next record begins, for kinds without marks

	layout  *Layout
	columns *columns
	split   *splitter
	types   []Type
	json    jsonRecord
	block   input.Block
	err     error
	skipped int64
}

// NewParser makes a parser.
func (l *Layout) NewParser() *Parser {
	p := &Parser{
		layout: l,
		kind:   l.format.Kind,
		comma:  l.format.Comma,
		fields: make([][]byte, len(l.want)),
		width:  1,
	}
	if p.kind == CSV || p.kind == TSV {
		p.split = newSplitter(&l.format)
		p.marks = make([]uint32, window+2*room)
	}
	if p.kind == JSONL {
		p.types = make([]Type, len(l.want))
		p.json = jsonRecord{fields: p.fields, types: p.types}
	}
	return p
}

// Reset begins a block, which must stay as it is until the next Reset. It reads
// the header if the block is its file's first, or asks for it if the columns of
// the file are not known yet. Its errors, an [*Error] for what is wrong with the
// file, are those of Err too.
func (p *Parser) Reset(b input.Block) error {
	p.block, p.data = b, b.Data
	p.start, p.end, p.err = 0, 0, nil
	p.seek(0)
	if len(b.Data) == 0 {
		return nil
	}
	if uint64(len(b.Data)) > math.MaxUint32-1 {
		p.data, p.err = nil, errors.New("rows: a block must be smaller than 4 GiB")
		return p.err
	}
	c, skip, err := p.layout.columnsOf(b)
	if err != nil {
		p.data, p.err = nil, err
		return err
	}
	if c != nil && c != p.columns {
		p.columns, p.width, p.cols, p.tail = c, c.width, c.at, c.tail
		p.pair = p.split != nil && c.width == 2 && len(c.at) == 2 && c.at[0] != c.at[1]
		p.first = 0
		if p.pair && c.at[1] == 0 {
			p.first = 1
		}
	}
	p.seek(skip)
	return nil
}

// Next goes to the next record. It is false at the end of the block and after
// an error.
func (p *Parser) Next() bool {
	if at := p.at; p.pair && at+2 < p.have {
		// The commonest table by itself: two columns, both wanted.
		marks, data := p.marks[at:at+3], p.data
		start, mid, next := int(marks[0]), int(marks[1]), int(marks[2])
		// start < mid < next <= len(data): comparing them as unsigned numbers is
		// enough for the compiler to leave out all other checks.
		if uint(next) <= uint(len(data)) && uint(mid) < uint(next) && uint(start) < uint(mid) {
			if data[next-1] == '\n' && data[mid-1] != '\n' {
				end := next - 1
				if data[end-1] == '\r' && end > mid {
					end--
				}
				fields := p.fields
				if len(fields) == 2 {
					fields[p.first&1] = data[start : mid-1]
					fields[p.first&1^1] = data[mid:end]
				}
				p.at = at + 2
				p.start, p.end = start, end
				return true
			}
		}
	}
	return p.next()
}

// next is Next for all kinds of records.
func (p *Parser) next() bool {
	for {
		if last := p.at + p.width; last < p.have {
			if p.plainRecord(p.marks[p.at:last+1]) || p.oddRecord() {
				return true
			}
			continue
		}
		if p.split == nil {
			return p.nextLine()
		}
		if p.scanned < p.limit {
			p.fill()
			continue
		}
		if p.at+1 == p.have { // nothing left of what was searched
			pos := int(p.marks[p.at])
			if pos == len(p.data) {
				return false
			}
			if p.extend(pos) {
				continue
			}
		}
		if p.oddRecord() {
			return true
		}
	}
}

// plainRecord takes a record whose fields begin at marks; the last mark is where
// the record after it begins. It is false if the record is not as it should be:
// the first newline is not where the last field ends, or the line is blank.
func (p *Parser) plainRecord(marks []uint32) bool {
	start, end := int(marks[0]), int(marks[len(marks)-1])-1
	if p.data[end] != '\n' {
		return false
	}
	for _, m := range marks[1 : len(marks)-1] {
		if p.data[m-1] == '\n' {
			return false
		}
	}
	cr := end > start && p.data[end-1] == '\r'
	if p.width == 1 && (end == start || cr && end-start == 1) {
		return false
	}
	for i, c := range p.cols {
		p.fields[i] = p.data[marks[c] : marks[c+1]-1]
	}
	p.at += p.width
	if cr {
		end--
		for _, i := range p.tail {
			p.fields[i] = p.fields[i][:len(p.fields[i])-1]
		}
	}
	p.start, p.end = start, end
	return true
}

// seek makes pos the current position and forgets what was searched.
func (p *Parser) seek(pos int) {
	p.pos, p.scanned, p.limit, p.special = pos, pos, pos, -1
	if p.split != nil {
		p.marks[0] = uint32(pos)
		p.at, p.have = 0, 1
	}
}

// fill searches the next window for commas and newlines.
func (p *Parser) fill() {
	n := copy(p.marks, p.marks[p.at:p.have])
	p.at = 0
	to := min(p.scanned+window, p.limit)
	if need := n + window + room; need > len(p.marks) {
		p.marks = append(make([]uint32, 0, 2*need), p.marks[:n]...)[:2*need]
	}
	p.have = markAfter(p.marks, n, p.data, p.scanned, to, p.comma)
	p.scanned = to
}

// extend moves the limit on to the last line end before the next quote (or
// what else needs care). It is false if the record at pos, the current
// position, is one for the splitter: it has a quote, or no line end.
func (p *Parser) extend(pos int) bool {
	if p.special < pos {
		p.special = len(p.data)
		if c := p.split.special(); c != 0 {
			if n := bytes.IndexByte(p.data[pos:], c); n >= 0 {
				p.special = pos + n
			}
		}
	}
	n := bytes.LastIndexByte(p.data[pos:p.special], '\n')
	if n < 0 {
		return false
	}
	p.limit = pos + n + 1
	return true
}

// oddRecord takes the record at the current position the careful way: it is
// blank, ragged, quoted, or the last of a file that does not end with a
// newline. It is false if the record was dropped, or refused; p.data is then nil.
func (p *Parser) oddRecord() bool {
	pos := int(p.marks[p.at])
	end, next, err := p.split.split(p.data, pos)
	p.start, p.end = pos, end
	if err != nil {
		p.end = pos
		return p.refuse(err)
	}
	p.pass(next)
	if end == pos {
		return false // a blank line
	}
	if len(p.split.fields) != p.width {
		switch p.layout.format.Ragged {
		case Fail:
			return p.refuse(fmt.Errorf("the record has %s but should have %d", plural(len(p.split.fields), "field"), p.width))
		case Skip:
			p.skipped++
			return false
		}
	}
	for i, c := range p.cols {
		if c < len(p.split.fields) {
			p.fields[i] = notNil(p.split.fields[c])
		} else {
			p.fields[i] = nil
		}
	}
	return true
}

// pass makes next, where a record begins, the current position.
func (p *Parser) pass(next int) {
	if next > p.limit {
		special := p.special
		p.seek(next)
		p.special = special
		return
	}
	for {
		for p.at < p.have {
			if int(p.marks[p.at]) == next {
				return
			}
			p.at++
		}
		p.at = p.have
		p.fill()
	}
}

// refuse ends the block with an error about the current record.
func (p *Parser) refuse(err error) bool {
	p.err = p.locate("", err)
	p.data = nil
	p.seek(0)
	return false
}

func (p *Parser) locate(column string, err error) *Error {
	e := &Error{Offset: p.Offset(), Column: column, Err: err}
	if p.block.File != nil {
		e.File = p.block.File.Path
	}
	if p.block.Line > 0 {
		delim := p.layout.format.Delimiter
		if len(delim) == 0 {
			delim = []byte{'\n'}
		}
		e.Line = p.block.Line + int64(bytes.Count(p.block.Data[:p.start], delim))
	}
	return e
}

// Field gives the i-th wanted column of the record. It is nil if the record has
// no such field (JSON: also null), and not nil if it is empty. It is valid
// until the next call of Next and is not to be appended to.
func (p *Parser) Field(i int) []byte { return p.fields[i] }

// Fields gives all wanted columns. The slice itself stays the same.
func (p *Parser) Fields() [][]byte { return p.fields }

// Type says what the i-th wanted column of the record is.
func (p *Parser) Type(i int) Type {
	if p.types != nil {
		return p.types[i]
	}
	if p.fields[i] == nil {
		return Missing
	}
	return Text
}

// Record gives the record as it stands in the file, without its line end.
func (p *Parser) Record() []byte { return p.block.Data[p.start:p.end:p.end] }

// Offset gives where in the (decompressed) file the record begins.
func (p *Parser) Offset() int64 { return p.block.Offset + int64(p.start) }

// Err gives the error, an [*Error], that ended the block, or nil.
func (p *Parser) Err() error { return p.err }

// FieldError makes an error about the i-th wanted column of the record.
func (p *Parser) FieldError(i int, err error) *Error {
	return p.locate(p.layout.want[i], err)
}

// RecordError makes an error about the record.
func (p *Parser) RecordError(err error) *Error { return p.locate("", err) }

// Skipped gives how many records were dropped so far, by policy, in all blocks.
func (p *Parser) Skipped() int64 { return p.skipped }

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
