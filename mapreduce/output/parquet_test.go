// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

func parquetBytes(t *testing.T, s Schema, opts StreamOptions, rows []Row) []byte {
	t.Helper()
	var w bytes.Buffer
	opts.Format = Parquet
	tx := begin(t, Stream(&w, opts), Info{Schema: s, Parts: 1})
	must(t, writePart(tx, 0, rows...))
	must(t, tx.Commit(nil))
	return w.Bytes()
}

func TestParquetRoundTrip(t *testing.T) {
	s := Schema{
		Keys:   []Column{{"word", Bytes}, {"again", Bytes}},
		Values: []Column{{"int", Int}, {"uint", Uint}, {"float", Float}, {"decimal", Decimal}, {"bool", Bool}, {"any", Null}},
	}
	rows := []Row{
		{Keys: []Value{text("a"), text("")}, Values: []Value{integer(math.MinInt64), {Kind: Uint, I: -1}, float(0.1), decimal(-50, 2), {Kind: Bool, I: 1}, text("x")}},
		{Keys: []Value{{}, {}}, Values: []Value{{}, {}, {}, {}, {}, {}}},
		{Keys: []Value{text("ü"), text("z")}, Values: []Value{{Kind: Uint, I: 7}, integer(8), integer(1 << 53), integer(3), {Kind: Bool}, float(2.5)}},
	}
	for _, compression := range []string{NoCompression, Zstd, Gzip} {
		b := parquetBytes(t, s, StreamOptions{Compression: compression}, rows)
		f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		must(t, err)
		var names []string
		for _, c := range f.Schema().Columns() {
			names = append(names, c[0])
		}
		if got := strings.Join(names, " "); got != "word again int uint float decimal bool any" {
			t.Errorf("columns %s", got)
		}
		type row struct {
			Word    *string  `parquet:"word,optional"`
			Again   *string  `parquet:"again,optional"`
			Int     *int64   `parquet:"int,optional"`
			Uint    *uint64  `parquet:"uint,optional"`
			Float   *float64 `parquet:"float,optional"`
			Decimal *string  `parquet:"decimal,optional"`
			Bool    *bool    `parquet:"bool,optional"`
			Any     *string  `parquet:"any,optional"`
		}
		got, err := parquet.Read[row](bytes.NewReader(b), int64(len(b)))
		must(t, err)
		if len(got) != 3 {
			t.Fatalf("%d rows", len(got))
		}
		a, empty, last := got[0], got[1], got[2]
		if *a.Word != "a" || *a.Again != "" || *a.Int != math.MinInt64 || *a.Uint != math.MaxUint64 || *a.Float != 0.1 || *a.Decimal != "-0.5" || !*a.Bool || *a.Any != "x" {
			t.Errorf("first row %+v", a)
		}
		if empty != (row{}) {
			t.Errorf("row of Null %+v", empty)
		}
		if *last.Word != "ü" || *last.Int != 7 || *last.Uint != 8 || *last.Float != 1<<53 || *last.Decimal != "3" || *last.Bool || *last.Any != "2.5" {
			t.Errorf("last row %+v", last)
		}
		if again := parquetBytes(t, s, StreamOptions{Compression: compression}, rows); !bytes.Equal(b, again) {
			t.Errorf("%q: other bytes the second time", compression)
		}
	}
}

func TestParquetManyRows(t *testing.T) {
	var rows []Row
	const n = 3*parquetBatchRows + 7
	long := strings.Repeat("x", 50_000) // the row group's limit is passed once
	for i := range n {
		rows = append(rows, wordRow(random10(i)+long, int64(i)))
	}
	b := parquetBytes(t, wordSchema, StreamOptions{}, rows)
	if !bytes.Equal(b, parquetBytes(t, wordSchema, StreamOptions{}, rows)) {
		t.Error("other bytes the second time")
	}
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	if g := len(f.RowGroups()); g != 2 {
		t.Errorf("%d row groups", g)
	}
	i := 0
	for _, g := range f.RowGroups() {
		r := g.Rows()
		buf := make([]parquet.Row, 100)
		for {
			k, err := r.ReadRows(buf)
			for _, row := range buf[:k] {
				if string(row[0].ByteArray()) != random10(i)+long || row[1].Int64() != int64(i) {
					t.Fatalf("row %d: %d", i, row[1].Int64())
				}
				i++
			}
			if err == io.EOF {
				break
			}
			must(t, err)
		}
		must(t, r.Close())
	}
	if i != n {
		t.Errorf("%d rows, want %d", i, n)
	}
}

// random10 returns ten letters made from i.
func random10(i int) string {
	var b [10]byte
	for j := range b {
		b[j] = 'a' + byte(i>>j)&15
	}
	return string(b[:])
}

func TestParquetRefuses(t *testing.T) {
	one := func(k Kind) Schema { return Schema{Values: []Column{{"n", k}}} }
	for name, c := range map[string]struct {
		kind Kind
		cell Value
	}{
		"bytes that are no UTF-8":   {Bytes, text("a\xff")},
		"text in a column of Int":   {Int, text("7")},
		"a large Uint for an Int":   {Int, Value{Kind: Uint, I: -1}},
		"a negative Int for a Uint": {Uint, integer(-1)},
		"an Int that is no float64": {Float, integer(1<<53 + 1)},
		"the largest Int":           {Float, integer(math.MaxInt64)},
		"a Float for an Int":        {Int, float(1)},
		"an Int for a Bool":         {Bool, integer(1)},
	} {
		tx := begin(t, Stream(io.Discard, StreamOptions{Format: Parquet}), Info{Schema: one(c.kind), Parts: 1})
		err := writePart(tx, 0, Row{Values: []Value{c.cell}})
		if err == nil || !strings.Contains(err.Error(), `"n"`) || !strings.Contains(err.Error(), "row 1") {
			t.Errorf("%s: %v", name, err)
		}
		must(t, tx.Abort())
	}
	tx := begin(t, Stream(io.Discard, StreamOptions{Format: Parquet}), Info{Schema: one(Int), Parts: 1})
	if err := writePart(tx, 0, wordRow("a", 1)); !errors.Is(err, ErrState) {
		t.Errorf("cells without column: %v", err)
	}
	must(t, tx.Abort())
	for name, s := range map[string]Schema{
		"no columns":             {},
		"a column without name":  {Keys: []Column{{"", Int}}},
		"a name that is no text": {Keys: []Column{{"\xff", Int}}},
	} {
		if _, err := newParquetSchema(s, false); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParquetBinary(t *testing.T) {
	b := parquetBytes(t, wordSchema, StreamOptions{ParquetBinary: true}, []Row{wordRow("a\xff", 1)})
	type row struct {
		Key   []byte `parquet:"key,optional"`
		Value int64  `parquet:"value,optional"`
	}
	got, err := parquet.Read[row](bytes.NewReader(b), int64(len(b)))
	must(t, err)
	if len(got) != 1 || string(got[0].Key) != "a\xff" || got[0].Value != 1 {
		t.Errorf("%+v", got)
	}
}

// BenchmarkParquet writes rows as a word count does.
func BenchmarkParquet(b *testing.B) {
	part, err := newParquetPart(noSink{}, &layout{schema: wordSchema})
	if err != nil {
		b.Fatal(err)
	}
	row := wordRow("kmem_cache_alloc", 1)
	b.ReportAllocs()
	for i := range b.N {
		row.Values[0].I = int64(i & 1023)
		if err := part.WriteRow(&row); err != nil {
			b.Fatal(err)
		}
	}
	if err := part.Close(); err != nil {
		b.Fatal(err)
	}
}
