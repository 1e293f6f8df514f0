// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func text(s string) Value                { return Value{Kind: Bytes, B: []byte(s)} }
func integer(i int64) Value              { return Value{Kind: Int, I: i} }
func float(f float64) Value              { return Value{Kind: Float, F: f} }
func decimal(i int64, scale uint8) Value { return Value{Kind: Decimal, I: i, Scale: scale} }

// columns makes a schema of columns named k0, k1, ... and v0, v1, ...
func columns(keys, values int) Schema {
	var s Schema
	for i := range keys {
		s.Keys = append(s.Keys, Column{Name: "k" + strconv.Itoa(i)})
	}
	for i := range values {
		s.Values = append(s.Values, Column{Name: "v" + strconv.Itoa(i)})
	}
	return s
}

func encode(t testing.TB, f Format, s Schema, rows ...Row) string {
	t.Helper()
	enc, err := NewEncoder(f, s)
	if err != nil {
		t.Fatal(err)
	}
	out := enc.AppendHeader(nil)
	for i := range rows {
		out = enc.AppendRow(out, &rows[i])
	}
	return string(out)
}

func TestCells(t *testing.T) {
	cases := []struct {
		cell            Value
		tsv, csv, jsonl string
	}{
		{Value{}, ``, `""`, `null`}, // CSV: the only cell of its row
		{text(""), ``, `""`, `""`},
		{text("word"), `word`, `word`, `"word"`},
		{text("Größe"), `Größe`, `Größe`, `"Größe"`},
		{text("a\tb"), `a\tb`, "a\tb", `"a\tb"`},
		{text("a\nb\r"), `a\nb\r`, "\"a\nb\r\"", `"a\nb\r"`},
		{text(`back\slash`), `back\\slash`, `back\slash`, `"back\\slash"`},
		{text(`say "hi"`), `say "hi"`, `"say ""hi"""`, `"say \"hi\""`},
		{text(`"`), `"`, `""""`, `"\""`},
		{text("a,b"), `a,b`, `"a,b"`, `"a,b"`},
		{text(" a"), ` a`, `" a"`, `" a"`},
		{text("a "), `a `, `"a "`, `"a "`},
		{text("\x00\x1f\x7f"), "\x00\x1f\x7f", "\x00\x1f\x7f", "\"\\u0000\\u001f\x7f\""},
		{text("a\xff"), "a\xff", "a\xff", `{"base64":"Yf8="}`},
		{text("\xed\xa0\x80"), "\xed\xa0\x80", "\xed\xa0\x80", `{"base64":"7aCA"}`}, // half a surrogate pair
		{text("\u2028<&>"), "\u2028<&>", "\u2028<&>", "\"\u2028<&>\""},
		{integer(0), `0`, `0`, `0`},
		{integer(-7), `-7`, `-7`, `-7`},
		{integer(42), `42`, `42`, `42`},
		{integer(999), `999`, `999`, `999`},
		{integer(1000), `1000`, `1000`, `1000`},
		{integer(math.MinInt64), `-9223372036854775808`, `-9223372036854775808`, `-9223372036854775808`},
		{Value{Kind: Uint, I: -1}, `18446744073709551615`, `18446744073709551615`, `18446744073709551615`},
		{Value{Kind: Bool, I: 1}, `true`, `true`, `true`},
		{Value{Kind: Bool}, `false`, `false`, `false`},
		{float(0.1), `0.1`, `0.1`, `0.1`},
		{float(3), `3`, `3`, `3`},
		{float(1e6), `1000000`, `1000000`, `1000000`},
		{float(1e21), `1e+21`, `1e+21`, `1e+21`},
		{float(1e-7), `1e-07`, `1e-07`, `1e-07`},
		{float(math.Copysign(0, -1)), `-0`, `-0`, `-0`},
		{float(math.NaN()), `NaN`, `NaN`, `"NaN"`},
		{float(math.Inf(1)), `Infinity`, `Infinity`, `"Infinity"`},
		{float(math.Inf(-1)), `-Infinity`, `-Infinity`, `"-Infinity"`},
		{decimal(-5, 1), `-0.5`, `-0.5`, `-0.5`},
		{decimal(0, 3), `0`, `0`, `0`},
		{decimal(12345, 2), `123.45`, `123.45`, `123.45`},
		{decimal(12300, 2), `123`, `123`, `123`},
		{decimal(1230, 2), `12.3`, `12.3`, `12.3`},
		{decimal(7, 0), `7`, `7`, `7`},
		{decimal(100, 0), `100`, `100`, `100`},
		{decimal(1, 38), `0.00000000000000000000000000000000000001`, `0.00000000000000000000000000000000000001`, `0.00000000000000000000000000000000000001`},
		{decimal(math.MinInt64, 18), `-9.223372036854775808`, `-9.223372036854775808`, `-9.223372036854775808`},
		{decimal(math.MaxInt64, 19), `0.9223372036854775807`, `0.9223372036854775807`, `0.9223372036854775807`},
	}
	for _, c := range cases {
		row := Row{Values: []Value{c.cell}}
		if got := encode(t, TSV, columns(0, 1), row); got != c.tsv+"\n" {
			t.Errorf("tsv of %+v: %q, want %q", c.cell, got, c.tsv)
		}
		if got := strings.TrimPrefix(encode(t, CSV, columns(0, 1), row), "v0\n"); got != c.csv+"\n" {
			t.Errorf("csv of %+v: %q, want %q", c.cell, got, c.csv)
		}
		if got := encode(t, JSONL, columns(0, 1), row); got != `{"value":`+c.jsonl+"}\n" {
			t.Errorf("jsonl of %+v: %q, want %q", c.cell, got, c.jsonl)
		}
	}
}

func TestRows(t *testing.T) {
	row := func(keys, values int) Row {
		r := Row{}
		for i := range keys {
			r.Keys = append(r.Keys, text("key"+strconv.Itoa(i)))
		}
		for i := range values {
			r.Values = append(r.Values, integer(int64(i)))
		}
		return r
	}
	cases := []struct {
		keys, values    int
		tsv, csv, jsonl string
	}{
		{0, 0, "", `""`, `{}`},
		{1, 0, "key0", "key0", `{"key":"key0"}`},
		{0, 1, "0", "0", `{"value":0}`},
		{1, 1, "key0\t0", "key0,0", `{"key":"key0","value":0}`},
		{2, 0, "key0\tkey1", "key0,key1", `{"key":["key0","key1"]}`},
		{2, 1, "key0\tkey1\t0", "key0,key1,0", `{"key":["key0","key1"],"value":0}`},
		{0, 2, "0\t1", "0,1", `{"value":{"v0":0,"v1":1}}`},
		{1, 2, "key0\t0\t1", "key0,0,1", `{"key":"key0","value":{"v0":0,"v1":1}}`},
		{3, 3, "key0\tkey1\tkey2\t0\t1\t2", "key0,key1,key2,0,1,2", `{"key":["key0","key1","key2"],"value":{"v0":0,"v1":1,"v2":2}}`},
	}
	for _, c := range cases {
		s := columns(c.keys, c.values)
		r := row(c.keys, c.values)
		if got := encode(t, TSV, s, r); got != c.tsv+"\n" {
			t.Errorf("tsv: %q, want %q", got, c.tsv)
		}
		_, got, _ := strings.Cut(encode(t, CSV, s, r), "\n")
		if got != c.csv+"\n" {
			t.Errorf("csv: %q, want %q", got, c.csv)
		}
		if got := encode(t, JSONL, s, r); got != c.jsonl+"\n" {
			t.Errorf("jsonl: %q, want %q", got, c.jsonl)
		}
	}
	// Too few cells and too many do no harm.
	if got, want := encode(t, JSONL, columns(1, 2), row(0, 3)), `{"key":null,"value":{"v0":0,"v1":1}}`+"\n"; got != want {
		t.Errorf("a row that does not fit: %q, want %q", got, want)
	}
}

func TestCSVHeader(t *testing.T) {
	s := Schema{Keys: []Column{{"city, country", Bytes}}, Values: []Column{{"mean", Float}, {"", Int}}}
	if got, want := encode(t, CSV, s), "\"city, country\",mean,\"\"\n"; got != want {
		t.Errorf("header %q, want %q", got, want)
	}
	null := Row{Keys: []Value{text("")}, Values: []Value{{}, text("")}}
	_, got, _ := strings.Cut(encode(t, CSV, s, null), "\n")
	if want := "\"\",,\"\"\n"; got != want {
		t.Errorf("empty strings and Null: %q, want %q", got, want)
	}
}

func TestEncoderRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		format Format
		schema Schema
	}{
		"unknown format":         {"xml", columns(1, 1)},
		"parquet":                {Parquet, columns(1, 1)},
		"names that are alike":   {JSONL, Schema{Values: []Column{{"n", Int}, {"n", Int}}}},
		"a name that is no text": {JSONL, Schema{Values: []Column{{"n\xff", Int}, {"m", Int}}}},
	} {
		if _, err := NewEncoder(c.format, c.schema); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
	if _, err := ParseFormat("tsv"); err != nil {
		t.Error(err)
	}
	if _, err := ParseFormat(""); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

// anyText draws strings with all that may need care, of lengths around those
// at which the scan changes its way.
func anyText() *rapid.Generator[[]byte] {
	nasty := rapid.SampledFrom([]byte("\t\n\r\\\",' a\x00\x1f\x7f\x80\xc3\xa4\xe2\x80\xa8\xff"))
	return rapid.OneOf(
		rapid.SliceOfN(nasty, 0, 40),
		rapid.SliceOfN(rapid.OneOf(rapid.Just(byte('x')), rapid.Just(byte('y')), rapid.Just(byte('z')), nasty), 0, 40),
		rapid.SliceOf(rapid.Byte()),
		rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
	)
}

func anyCell() *rapid.Generator[Value] {
	return rapid.Custom(func(t *rapid.T) Value {
		switch k := rapid.SampledFrom([]Kind{Bytes, Bytes, Null, Int, Uint, Float, Decimal, Bool}).Draw(t, "kind"); k {
		case Bytes:
			return Value{Kind: k, B: anyText().Draw(t, "text")}
		case Int, Uint:
			return Value{Kind: k, I: rapid.Int64().Draw(t, "integer")}
		case Float:
			bits := rapid.OneOf(rapid.Uint64(), rapid.Map(rapid.Float64(), math.Float64bits)).Draw(t, "float")
			return Value{Kind: k, F: math.Float64frombits(bits)}
		case Decimal:
			return Value{Kind: k, I: rapid.Int64().Draw(t, "decimal"), Scale: rapid.Uint8Range(0, 38).Draw(t, "scale")}
		case Bool:
			return Value{Kind: k, I: rapid.Int64Range(0, 1).Draw(t, "bool")}
		}
		return Value{}
	})
}

func anyRow(keys, values int) *rapid.Generator[Row] {
	return rapid.Custom(func(t *rapid.T) Row {
		return Row{
			Keys:   rapid.SliceOfN(anyCell(), keys, keys).Draw(t, "keys"),
			Values: rapid.SliceOfN(anyCell(), values, values).Draw(t, "values"),
		}
	})
}

// checkText checks a cell's text against its value, by other means than those
// that wrote it.
func checkText(t *rapid.T, got string, v Value) {
	t.Helper()
	ok := false
	switch v.Kind {
	case Null:
		ok = got == ""
	case Bytes:
		ok = got == string(v.B)
	case Int:
		ok = got == strconv.FormatInt(v.I, 10)
	case Uint:
		ok = got == strconv.FormatUint(uint64(v.I), 10)
	case Bool:
		ok = got == strconv.FormatBool(v.I != 0)
	case Float:
		f, err := strconv.ParseFloat(got, 64)
		ok = err == nil && (f == v.F && math.Signbit(f) == math.Signbit(v.F) || math.IsNaN(f) && math.IsNaN(v.F)) &&
			len(got) <= len(strconv.FormatFloat(v.F, 'f', -1, 64))
	case Decimal:
		want := new(big.Rat).SetFrac(big.NewInt(v.I), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(v.Scale)), nil))
		r, valid := new(big.Rat).SetString(got)
		ok = valid && r.Cmp(want) == 0 && !strings.ContainsAny(got, "eE+") &&
			!(strings.Contains(got, ".") && strings.HasSuffix(got, "0")) && !strings.HasSuffix(got, ".")
	}
	if !ok {
		t.Fatalf("%+v came out as %q", v, got)
	}
}

// all returns a row's cells in their order.
func all(r Row) []Value { return append(append([]Value(nil), r.Keys...), r.Values...) }

func TestTSVRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, v := rapid.IntRange(0, 3).Draw(t, "keys"), rapid.IntRange(0, 3).Draw(t, "values")
		rows := rapid.SliceOfN(anyRow(k, v), 0, 5).Draw(t, "rows")
		enc, err := NewEncoder(TSV, columns(k, v))
		if err != nil {
			t.Fatal(err)
		}
		out := enc.AppendHeader(nil)
		for i := range rows {
			out = enc.AppendRow(out, &rows[i])
		}
		lines := bytes.SplitAfter(out, []byte("\n"))
		if len(lines) != len(rows)+1 || len(lines[len(rows)]) != 0 {
			t.Fatalf("%d lines for %d rows: %q", len(lines)-1, len(rows), out)
		}
		for i, r := range rows {
			cells := bytes.Split(bytes.TrimSuffix(lines[i], []byte("\n")), []byte("\t"))
			want := all(r)
			if len(cells) != max(1, len(want)) {
				t.Fatalf("%d cells for %d: %q", len(cells), len(want), lines[i])
			}
			for j, w := range want {
				got, err := UnescapeTSV(cells[j])
				if err != nil {
					t.Fatal(err)
				}
				checkText(t, string(got), w)
			}
		}
	})
}

func TestCSVRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, v := rapid.IntRange(0, 3).Draw(t, "keys"), rapid.IntRange(1, 3).Draw(t, "values")
		rows := rapid.SliceOfN(anyRow(k, v), 0, 5).Draw(t, "rows")
		enc, err := NewEncoder(CSV, columns(k, v))
		if err != nil {
			t.Fatal(err)
		}
		out := enc.AppendHeader(nil)
		for i := range rows {
			out = enc.AppendRow(out, &rows[i])
		}

		// As Go's reader sees it, which takes CR LF in a cell for LF.
		lf := func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
		read := csv.NewReader(bytes.NewReader(out))
		records, err := read.ReadAll()
		if err != nil {
			t.Fatalf("%v in %q", err, out)
		}
		exact := readCSV(t, string(out))
		if len(records) != len(rows)+1 || len(exact) != len(rows)+1 {
			t.Fatalf("%d and %d records for %d rows: %q", len(records), len(exact), len(rows), out)
		}
		for i, r := range rows {
			for j, w := range all(r) {
				cell := exact[i+1][j]
				checkText(t, cell.text, w)
				if records[i+1][j] != lf(cell.text) {
					t.Fatalf("row %d: encoding/csv reads %q, the grammar says %q", i, records[i+1][j], cell.text)
				}
				if k+v > 1 && w.Kind == Null && cell.quoted || w.Kind == Bytes && len(w.B) == 0 && !cell.quoted {
					t.Fatalf("row %d: %+v quoted: %v", i, w, cell.quoted)
				}
			}
		}
	})
}

type csvCell struct {
	text   string
	quoted bool
}

// readCSV reads RFC 4180 by its grammar, with LF for CR LF.
func readCSV(t *rapid.T, s string) (records [][]csvCell) {
	for s != "" {
		var record []csvCell
		for {
			var c csvCell
			if strings.HasPrefix(s, `"`) {
				c.quoted = true
				for s = s[1:]; ; {
					end := strings.IndexByte(s, '"')
					if end < 0 {
						t.Fatalf("quote without end")
					}
					c.text += s[:end]
					s = s[end+1:]
					if !strings.HasPrefix(s, `"`) {
						break
					}
					c.text += `"`
					s = s[1:]
				}
			} else {
				end := strings.IndexAny(s, ",\n\r\"")
				if end < 0 {
					t.Fatalf("cell without end: %q", s)
				}
				c.text, s = s[:end], s[end:]
			}
			record = append(record, c)
			next := s[0]
			s = s[1:]
			if next == '\n' {
				break
			}
			if next != ',' {
				t.Fatalf("%q after a cell", next)
			}
		}
		records = append(records, record)
	}
	return records
}

func TestJSONLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, v := rapid.IntRange(0, 3).Draw(t, "keys"), rapid.IntRange(0, 3).Draw(t, "values")
		rows := rapid.SliceOfN(anyRow(k, v), 0, 5).Draw(t, "rows")
		enc, err := NewEncoder(JSONL, columns(k, v))
		if err != nil {
			t.Fatal(err)
		}
		out := enc.AppendHeader(nil)
		for i := range rows {
			out = enc.AppendRow(out, &rows[i])
		}
		if n := bytes.Count(out, []byte("\n")); n != len(rows) {
			t.Fatalf("%d lines for %d rows", n, len(rows))
		}
		read := json.NewDecoder(bytes.NewReader(out))
		read.UseNumber()
		for _, r := range rows {
			var got map[string]any
			if err := read.Decode(&got); err != nil {
				t.Fatalf("%v in %q", err, out)
			}
			want := 0
			switch {
			case k == 1:
				checkJSON(t, got["key"], r.Keys[0])
				want++
			case k > 1:
				for i, cell := range got["key"].([]any) {
					checkJSON(t, cell, r.Keys[i])
				}
				want++
			}
			switch {
			case v == 1:
				checkJSON(t, got["value"], r.Values[0])
				want++
			case v > 1:
				cells := got["value"].(map[string]any)
				if len(cells) != v {
					t.Fatalf("values %v", cells)
				}
				for i := range r.Values {
					checkJSON(t, cells["v"+strconv.Itoa(i)], r.Values[i])
				}
				want++
			}
			if len(got) != want {
				t.Fatalf("%d members, want %d: %v", len(got), want, got)
			}
		}
		if _, err := read.Token(); err != io.EOF {
			t.Fatalf("more than the rows: %v", err)
		}
	})
}

func checkJSON(t *rapid.T, got any, v Value) {
	t.Helper()
	switch got := got.(type) {
	case nil:
		if v.Kind != Null {
			t.Fatalf("%+v came out as null", v)
		}
	case bool:
		checkText(t, strconv.FormatBool(got), v)
	case json.Number:
		if v.Kind == Bytes {
			t.Fatalf("%+v came out as a number", v)
		}
		checkText(t, got.String(), v)
	case string:
		if v.Kind != Bytes && !(v.Kind == Float && (math.IsNaN(v.F) || math.IsInf(v.F, 0))) {
			t.Fatalf("%+v came out as a string", v)
		}
		checkText(t, got, v)
	case map[string]any:
		b, err := base64.StdEncoding.DecodeString(got["base64"].(string))
		if err != nil || len(got) != 1 || v.Kind != Bytes || utf8.Valid(v.B) {
			t.Fatalf("%+v came out as %v", v, got)
		}
		checkText(t, string(b), v)
	default:
		t.Fatalf("%+v came out as %T", v, got)
	}
}

func TestUnescapeTSV(t *testing.T) {
	for cell, want := range map[string]string{
		``: ``, `plain`: `plain`, `a\tb\nc\rd\\e`: "a\tb\nc\rd\\e", `\\t`: `\t`, `\\\t`: "\\\t",
	} {
		got, err := UnescapeTSV([]byte(cell))
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", cell, got, err, want)
		}
	}
	for _, cell := range []string{`\`, `a\x`, `\\\`, `\0`} {
		if got, err := UnescapeTSV([]byte(cell)); err == nil {
			t.Errorf("%q: %q, want an error", cell, got)
		}
	}
}

func FuzzUnescapeTSV(f *testing.F) {
	for _, s := range []string{"", "plain", `a\tb\\`, `\`, "\\\xff", "tab\there"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, cell []byte) {
		got, err := UnescapeTSV(cell)
		if err != nil {
			return
		}
		// What holds no raw control character is the only way to write its meaning.
		again := appendTSVEscaped(nil, got)
		if !bytes.ContainsAny(cell, "\t\n\r") && !bytes.Equal(again, cell) {
			t.Fatalf("%q means %q, which is written %q", cell, got, again)
		}
		if back, err := UnescapeTSV(again); err != nil || !bytes.Equal(back, got) {
			t.Fatalf("%q is read back as %q, %v", got, back, err)
		}
	})
}

// TestScan holds the scan against a loop over the bytes.
func TestScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyText().Draw(t, "text")
		room := rapid.IntRange(0, 50).Draw(t, "room")
		for name, c := range map[string]struct {
			special *special
			is      func(c byte) bool
		}{
			"tsv":  {&specialTSV, func(c byte) bool { return c <= '\r' || c == '\\' }},
			"csv":  {&specialCSV, func(c byte) bool { return c <= '\r' || c == '"' || c == ',' }},
			"json": {&specialJSON, func(c byte) bool { return c < ' ' || c == '"' || c == '\\' }},
		} {
			found, ascii := false, true
			for _, x := range b {
				found = found || c.is(x)
				ascii = ascii && x < utf8.RuneSelf
			}
			before := append(make([]byte, 0, 3+room), "abc"...)
			out, gotFound, gotASCII := appendScanned(before, b, c.special)
			if string(out) != "abc"+string(b) || gotFound != found || gotASCII != ascii {
				t.Fatalf("%s of %q: %q, found %v, ascii %v", name, b, out, gotFound, gotASCII)
			}
		}
	})
}

func TestAppendRowDoesNotAllocate(t *testing.T) {
	s := Schema{Keys: []Column{{"key", Bytes}, {"more", Bytes}}, Values: []Column{{"a", Float}, {"b", Decimal}, {"c", Int}}}
	row := Row{
		Keys:   []Value{text("tab\there \"quoted\", \xff and so on"), text("plain")},
		Values: []Value{float(0.1), decimal(-12345, 3), integer(math.MinInt64)},
	}
	buf := make([]byte, 0, 4096)
	for _, f := range []Format{TSV, CSV, JSONL} {
		enc, err := NewEncoder(f, s)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { buf = enc.AppendRow(buf[:0], &row) }); n != 0 {
			t.Errorf("%s: %v allocations a row", f, n)
		}
	}
}

func ExampleUnescapeTSV() {
	cell, err := UnescapeTSV([]byte(`two\nlines`))
	fmt.Printf("%q %v\n", cell, err)
	// Output: "two\nlines" <nil>
}
