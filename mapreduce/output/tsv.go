// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"fmt"
)

// tsvEncoder writes one row a line: cells of the key, then of the value, with a
// TAB between. Tab, newline, carriage return and backslash come out as \t, \n,
// \r and \\, so that a file can always be cut at its tabs and newlines and each
// cell be read back with UnescapeTSV. Null is an empty cell, and so is an empty
// string: TSV cannot tell them apart (CSV and JSON lines can).
type tsvEncoder struct{ keys, values int }

func newTSVEncoder(s Schema) *tsvEncoder {
	return &tsvEncoder{keys: len(s.Keys), values: len(s.Values)}
}

func (e *tsvEncoder) AppendHeader(dst []byte) []byte { return dst }

func (e *tsvEncoder) AppendRow(dst []byte, r *Row) []byte {
	if !fits(r, e.keys, e.values) {
		r = fit(r, e.keys, e.values)
	}
	if e.keys == 1 && e.values == 1 { // nearly all jobs: no loops
		dst = append(appendTSVCell(dst, &r.Keys[0]), '\t')
		return append(appendTSVCell(dst, &r.Values[0]), '\n')
	}
	start := len(dst)
	for i := range r.Keys {
		dst = append(appendTSVCell(dst, &r.Keys[i]), '\t')
	}
	for i := range r.Values {
		dst = append(appendTSVCell(dst, &r.Values[i]), '\t')
	}
	if len(dst) == start {
		return append(dst, '\n')
	}
	dst[len(dst)-1] = '\n' // what follows the last cell
	return dst
}

func appendTSVCell(dst []byte, v *Value) []byte {
	switch v.Kind {
	case Int:
		return appendInt(dst, v.I)
	case Bytes, JSON:
		out, found, _ := appendScanned(dst, v.B, &specialTSV)
		if found {
			return appendTSVEscaped(dst, v.B)
		}
		return out
	}
	return appendPlain(dst, v)
}

func appendTSVEscaped(dst, b []byte) []byte {
	from := 0
	for i, c := range b {
		switch c {
		case '\t':
			c = 't'
		case '\n':
			c = 'n'
		case '\r':
			c = 'r'
		case '\\':
		default:
			continue
		}
		dst = append(dst, b[from:i]...)
		dst = append(dst, '\\', c)
		from = i + 1
	}
	return append(dst, b[from:]...)
}

// UnescapeTSV returns the bytes of a cell that the TSV encoder wrote. If there
// is nothing to unescape, that is cell itself, else a new slice. A backslash
// that begins no escape is an error.
func UnescapeTSV(cell []byte) ([]byte, error) {
	at := bytes.IndexByte(cell, '\\')
	if at < 0 {
		return cell, nil
	}
	out := append(make([]byte, 0, len(cell)), cell[:at]...)
	for i := at; i < len(cell); i++ {
		c := cell[i]
		if c != '\\' {
			out = append(out, c)
			continue
		}
		i++
		if i == len(cell) {
			return nil, fmt.Errorf("tsv cell %q: a single backslash at its end", cell)
		}
		switch cell[i] {
		case 't':
			c = '\t'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case '\\':
		default:
			return nil, fmt.Errorf("tsv cell %q: unknown escape \\%c at byte %d", cell, cell[i], i-1)
		}
		out = append(out, c)
	}
	return out, nil
}

// plainEncoder writes cells as they are, with a TAB between and a newline at
// the end: the lines of grep and sort come out as they went in. What contains
// tabs or newlines can't be read back; the other formats are for that.
type plainEncoder struct{ keys, values int }

func (e *plainEncoder) AppendHeader(dst []byte) []byte { return dst }

func (e *plainEncoder) AppendRow(dst []byte, r *Row) []byte {
	if !fits(r, e.keys, e.values) {
		r = fit(r, e.keys, e.values)
	}
	for _, cells := range [...][]Value{r.Keys, r.Values} {
		for i := range cells {
			v := &cells[i]
			if v.Kind == Bytes {
				dst = append(dst, v.B...)
			} else {
				dst = appendPlain(dst, v)
			}
			dst = append(dst, '\t')
		}
	}
	if e.keys+e.values > 0 {
		dst = dst[:len(dst)-1]
	}
	return append(dst, '\n')
}
