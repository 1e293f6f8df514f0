// SPDX-License-Identifier: Apache-2.0

package output

// csvEncoder writes CSV as in RFC 4180 with a header, but lines end in LF. A
// cell is quoted if it contains a comma, a quote, CR or LF, or begins or ends
// with a space or tab. An empty string is "" and Null is nothing at all, so
// they differ; only in a row of a single column Null is "" too, because many
// readers would drop an empty line. Bytes that are no UTF-8 stay as they are.
type csvEncoder struct {
	keys, values int
	header       []byte
}

func newCSVEncoder(s Schema) *csvEncoder {
	e := &csvEncoder{keys: len(s.Keys), values: len(s.Values)}
	names := Row{}
	for _, c := range s.Keys {
		names.Keys = append(names.Keys, Value{Kind: Bytes, B: []byte(c.Name)})
	}
	for _, c := range s.Values {
		names.Values = append(names.Values, Value{Kind: Bytes, B: []byte(c.Name)})
	}
	e.header = e.AppendRow(nil, &names)
	return e
}

func (e *csvEncoder) AppendHeader(dst []byte) []byte { return append(dst, e.header...) }

func (e *csvEncoder) AppendRow(dst []byte, r *Row) []byte {
	if !fits(r, e.keys, e.values) {
		r = fit(r, e.keys, e.values)
	}
	start := len(dst)
	for i := range r.Keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendCSVCell(dst, &r.Keys[i])
	}
	for i := range r.Values {
		if i > 0 || len(r.Keys) > 0 {
			dst = append(dst, ',')
		}
		dst = appendCSVCell(dst, &r.Values[i])
	}
	if len(dst) == start {
		dst = append(dst, '"', '"')
	}
	return append(dst, '\n')
}

func appendCSVCell(dst []byte, v *Value) []byte {
	if v.Kind != Bytes && v.Kind != JSON {
		return appendPlain(dst, v)
	}
	b := v.B
	if len(b) > 0 && !blank(b[0]) && !blank(b[len(b)-1]) {
		if out, found, _ := appendScanned(dst, b, &specialCSV); !found || !needsCSVQuotes(b) {
			return out
		}
	}
	dst = append(dst, '"')
	from := 0
	for i, c := range b {
		if c == '"' {
			dst = append(dst, b[from:i+1]...)
			from = i // the quote once more
		}
	}
	dst = append(dst, b[from:]...)
	return append(dst, '"')
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

func needsCSVQuotes(b []byte) bool {
	for _, c := range b {
		switch c {
		case ',', '"', '\r', '\n':
			return true
		}
	}
	return false
}
