// SPDX-License-Identifier: Apache-2.0

package output

import (
	"encoding/base64"
	"fmt"
	"math"
	"unicode/utf8"
)

// jsonlEncoder writes one JSON object a line, {"key":K,"value":V}, exactly:
// K is the key, or an array of its columns if there are several, and is left
// out if rows have no key. V is the value if there is one column of values,
// an object by column name if there are several, and is left out if there are
// none. Strings that are UTF-8 are JSON strings; other bytes are
// {"base64":"..."}. Integers and decimals are JSON numbers with all their
// digits; floats that are no numbers are the strings "NaN", "Infinity" and
// "-Infinity".
type jsonlEncoder struct {
	keys, values int
	open         string // what stands before the first cell of the key, or of the values
	between      string // between key and value
	close        string
	names        []string // several values: what stands before each, `,"name":`
}

func newJSONLEncoder(s Schema) (*jsonlEncoder, error) {
	e := &jsonlEncoder{keys: len(s.Keys), values: len(s.Values), open: "{", close: "}\n"}
	switch e.keys {
	case 0:
	case 1:
		e.open += `"key":`
		e.between = ","
	default:
		e.open += `"key":[`
		e.between = "],"
	}
	switch e.values {
	case 0:
		// Of between only the bracket that ends the key is left.
		e.between = e.between[:max(0, len(e.between)-1)]
	case 1:
		e.between += `"value":`
	default:
		e.between += `"value":{`
		e.close = "}}\n"
	}
	if e.values < 2 {
		return e, nil
	}
	seen := make(map[string]bool, e.values)
	for i, c := range s.Values {
		if !utf8.ValidString(c.Name) {
			return nil, fmt.Errorf("column name %q is no UTF-8, which JSON lines need (say what encoding the input has, or choose csv): %w", c.Name, ErrUnsupported)
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("two value columns are called %q, which JSON lines cannot hold (rename one): %w", c.Name, ErrUnsupported)
		}
		seen[c.Name] = true
		name := string(appendJSONBytes(nil, []byte(c.Name))) + ":"
		if i > 0 {
			name = "," + name
		}
		e.names = append(e.names, name)
	}
	return e, nil
}

func (e *jsonlEncoder) AppendHeader(dst []byte) []byte { return dst }

func (e *jsonlEncoder) AppendRow(dst []byte, r *Row) []byte {
	if !fits(r, e.keys, e.values) {
		r = fit(r, e.keys, e.values)
	}
	if e.keys == 1 && e.values == 1 { // nearly all jobs: texts known to the compiler cost less
		dst = append(dst, `{"key":`...)
		if k := &r.Keys[0]; k.Kind == Bytes {
			dst = appendJSONBytes(dst, k.B)
		} else {
			dst = appendJSONCell(dst, k)
		}
		dst = append(dst, `,"value":`...)
		dst = appendJSONCell(dst, &r.Values[0])
		return append(dst, "}\n"...)
	}
	dst = append(dst, e.open...)
	for i := range r.Keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSONCell(dst, &r.Keys[i])
	}
	dst = append(dst, e.between...)
	if len(e.names) == 0 {
		for i := range r.Values { // one at most
			dst = appendJSONCell(dst, &r.Values[i])
		}
	} else {
		for i := range r.Values {
			dst = append(dst, e.names[i]...)
			dst = appendJSONCell(dst, &r.Values[i])
		}
	}
	return append(dst, e.close...)
}

func appendJSONCell(dst []byte, v *Value) []byte {
	switch v.Kind {
	case Int:
		return appendInt(dst, v.I)
	case Bytes:
		return appendJSONBytes(dst, v.B)
	case Null:
		return append(dst, "null"...)
	case Float:
		if math.IsNaN(v.F) || math.IsInf(v.F, 0) {
			dst = append(dst, '"')
			dst = appendFloat(dst, v.F)
			return append(dst, '"')
		}
	}
	return appendPlain(dst, v)
}

func appendJSONBytes(dst, b []byte) []byte {
	start := len(dst)
	dst = append(dst, '"')
	out, escape, ascii := appendScanned(dst, b, &specialJSON)
	if !ascii && !utf8.Valid(b) {
		dst = append(dst[:start], `{"base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b)
		return append(dst, `"}`...)
	}
	if escape {
		out = appendJSONEscaped(dst, b)
	}
	return append(out, '"')
}

func appendJSONEscaped(dst, b []byte) []byte {
	const hex = "0123456789abcdef"
	from := 0
	for i, c := range b {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, b[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(dst, b[from:]...)
}
