// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"fmt"
)

// splitter takes apart one CSV or TSV record at a time, quotes and all. It is
// the careful way; Parser.Next goes a faster one where there are no quotes.
type splitter struct {
	comma   byte
	quotes  bool // quotes mean something
	lazy    bool
	escapes bool
	fields  [][]byte // of the record last split; valid until the next
	scratch []byte   // where fields stand that are not in the data as they are
}

func newSplitter(f *Format) *splitter {
	return &splitter{comma: f.Comma, quotes: f.Kind == CSV, lazy: f.LazyQuotes, escapes: f.Escapes}
}

// special is the byte without which a record is just what stands between commas
// and newlines; 0: there is none.
func (s *splitter) special() byte {
	switch {
	case s.quotes:
		return '"'
	case s.escapes:
		return '\\'
	}
	return 0
}

// split takes the record at data[pos:] apart. It ends at end; the next begins
// at next. An error is about the record, whose end is then not known.
func (s *splitter) split(data []byte, pos int) (end, next int, err error) {
	s.fields, s.scratch = s.fields[:0], s.scratch[:0]
	next = -1
	if s.lazy { // a line is a record
		next = len(data)
		if n := bytes.IndexByte(data[pos:], '\n'); n >= 0 {
			next = pos + n + 1
			data = trimCR(data[:pos+n], pos)
		}
	}
	for i := pos; ; i++ {
		var field []byte
		quoted := s.quotes && i < len(data) && data[i] == '"'
		if quoted {
			if field, i, err = s.quoted(data, i); err != nil {
				return 0, 0, err
			}
		} else {
			from := i
			i = endOfField(data, i, s.comma)
			field = data[from:i]
		}
		if i < len(data) && data[i] == s.comma {
			if err = s.add(field, quoted); err != nil {
				return 0, 0, err
			}
			continue
		}
		// The record ends: at a line end, or with the data.
		end = i
		if i < len(data) {
			if data[i] == '\r' { // only after a closing quote
				i++
			} else if !quoted {
				field = trimCR(field, 0)
				end = len(trimCR(data[:i], pos))
			}
			i++
		}
		if next < 0 {
			next = i
		}
		return end, next, s.add(field, quoted)
	}
}

func (s *splitter) add(field []byte, quoted bool) error {
	if !quoted && s.quotes && !s.lazy && bytes.IndexByte(field, '"') >= 0 {
		return fmt.Errorf("field %d has a quote inside but does not begin with one: put the field in quotes and double the quote inside, or allow lazy quotes", len(s.fields)+1)
	}
	if s.escapes {
		field = s.unescape(field)
	}
	s.fields = append(s.fields, field)
	return nil
}

// quoted reads the field whose opening quote is data[i] and gives the position
// of the comma or line end after it.
func (s *splitter) quoted(data []byte, i int) ([]byte, int, error) {
	i++
	from, kept := i, len(s.scratch)
	plain := true // the field stands in the data as it is
	for {
		n := bytes.IndexByte(data[i:], '"')
		if n < 0 {
			if !s.lazy {
				return nil, 0, fmt.Errorf("field %d begins with a quote that is never closed", len(s.fields)+1)
			}
			if plain {
				return data[from:], len(data), nil
			}
			s.scratch = append(s.scratch, data[i:]...)
			return s.scratch[kept:], len(data), nil
		}
		q := i + n
		i = q + 1
		if i == len(data) || data[i] == s.comma || data[i] == '\n' || data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			if plain {
				return data[from:q], i, nil
			}
			s.scratch = append(s.scratch, data[q-n:q]...)
			return s.scratch[kept:], i, nil
		}
		doubled := data[i] == '"'
		if !doubled && !s.lazy {
			return nil, 0, fmt.Errorf("field %d goes on after its closing quote: double a quote that belongs to the field, or allow lazy quotes", len(s.fields)+1)
		}
		plain = false
		s.scratch = append(s.scratch, data[q-n:q+1]...)
		if doubled {
			i++
		}
	}
}

// unescape undoes what Quern's TSV output escapes. A backslash before any other
// character is data.
func (s *splitter) unescape(field []byte) []byte {
	n := bytes.IndexByte(field, '\\')
	if n < 0 {
		return field
	}
	kept := len(s.scratch)
	s.scratch = append(s.scratch, field[:n]...)
	for i := n; i < len(field); i++ {
		c := field[i]
		if c == '\\' && i+1 < len(field) {
			switch field[i+1] {
			case 't':
				c = '\t'
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case '\\':
			default:
				i--
			}
			i++
		}
		s.scratch = append(s.scratch, c)
	}
	return s.scratch[kept:]
}

// trimCR drops a CR at the end of a line that begins at from.
func trimCR(line []byte, from int) []byte {
	if n := len(line); n > from && line[n-1] == '\r' {
		return line[:n-1]
	}
	return line
}
