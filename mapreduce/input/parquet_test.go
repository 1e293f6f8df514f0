// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

type parquetPoint struct {
	X int32   `parquet:"x"`
	Y *string `parquet:"y,optional"`
}

type parquetRow struct {
	I    int64             `parquet:"i"`
	U    uint64            `parquet:"u"`
	F    float64           `parquet:"f"`
	G    float32           `parquet:"g"`
	B    bool              `parquet:"b"`
	S    string            `parquet:"s"`
	Raw  []byte            `parquet:"raw"`
	D    int64             `parquet:"d,decimal(2:18)"`
	Opt  *int32            `parquet:"opt,optional"`
	T    time.Time         `parquet:"t,timestamp(microsecond)"`
	Day  int32             `parquet:"day,date"`
	ID   [16]byte          `parquet:"id,uuid"`
	Bare []int32           `parquet:"bare"`
	List []string          `parquet:"list,list"`
	Map  map[string]int64  `parquet:"map"`
	P    parquetPoint      `parquet:"p"`
	Ps   []parquetPoint    `parquet:"ps,list"`
	LL   [][]int32         `parquet:"ll,list"`
	M2   map[int32]float32 `parquet:"m2"`
}

func packParquet[T any](t testing.TB, rowsPerGroup int, rows []T, opts ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, opts...)
	for at := 0; at < len(rows); at += rowsPerGroup {
		if _, err := w.Write(rows[at:min(at+rowsPerGroup, len(rows))]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestParquetRows(t *testing.T) {
	y, seven := "why", int32(7)
	rows := []parquetRow{
		{
			I: math.MinInt64, U: math.MaxUint64, F: 0.1, G: 0.1, B: true, S: "a\"\\\n\x01ü", Raw: []byte{0xff, 0x00},
			D: -5, Opt: &seven, T: time.Date(2024, 2, 29, 1, 2, 3, 4000, time.UTC), Day: -1,
			ID:   [16]byte{0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0x00},
			Bare: []int32{1, 2}, List: []string{"x", "", "z"}, Map: map[string]int64{"k": 9007199254740993},
			P: parquetPoint{X: 1, Y: &y}, Ps: []parquetPoint{{X: 2}, {X: 3, Y: &y}},
			LL: [][]int32{{1, 2}, {}, {3}}, M2: map[int32]float32{4: 0.5},
		},
		{F: math.NaN(), G: float32(math.Inf(-1)), T: time.Unix(0, 0).UTC(), D: 123456, LL: [][]int32{}},
		{F: 1e21, G: 16777216, T: time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC), D: -100, Raw: []byte("text")},
	}
	want := []string{
		`{"i":-9223372036854775808,"u":18446744073709551615,"f":0.1,"g":0.1,"b":true,"s":"a\"\\\n\u0001ü","raw":{"base64":"/wA="},"d":-0.05,"opt":7,"t":"2024-02-29T01:02:03.000004Z","day":"1969-12-31","id":"123e4567-e89b-12d3-a456-426614174000","bare":[1,2],"list":["x","","z"],"map":{"k":9007199254740993},"p":{"x":1,"y":"why"},"ps":[{"x":2,"y":null},{"x":3,"y":"why"}],"ll":[[1,2],[],[3]],"m2":[{"key":4,"value":0.5}]}`,
		`{"i":0,"u":0,"f":"NaN","g":"-Infinity","b":false,"s":"","raw":"","d":1234.56,"opt":null,"t":"1970-01-01T00:00:00Z","day":"1970-01-01","id":"00000000-0000-0000-0000-000000000000","bare":[],"list":[],"map":{},"p":{"x":0,"y":null},"ps":[],"ll":[],"m2":[]}`,
		`{"i":0,"u":0,"f":1e+21,"g":16777216,"b":false,"s":"","raw":"text","d":-1.00,"opt":null,"t":"1969-12-31T23:59:59Z","day":"1970-01-01","id":"00000000-0000-0000-0000-000000000000","bare":[],"list":[],"map":{},"p":{"x":0,"y":null},"ps":[],"ll":[],"m2":[]}`,
	}
	for _, per := range []int{1, 2, 3} {
		path := write(t, t.TempDir(), "x.parquet", packParquet(t, per, rows))
		p, err := Discover(context.Background(), []string{path}, Options{Format: Parquet})
		if err != nil {
			t.Fatal(err)
		}
		if n := (len(rows) + per - 1) / per; len(p.Splits) != n {
			t.Errorf("%d splits, want %d", len(p.Splits), n)
		}
		got, err := content(p)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%d rows, want %d", len(lines), len(want))
		}
		for i := range want {
			if lines[i] != want[i] {
				t.Errorf("row %d:\n got %s\nwant %s", i, lines[i], want[i])
			}
			if !json.Valid([]byte(lines[i])) {
				t.Errorf("row %d is no JSON: %s", i, lines[i])
			}
		}
	}
}

type parquetSmall struct {
	A int64    `parquet:"a"`
	B string   `parquet:"b"`
	C []string `parquet:"c,list"`
}

func smallRows(n int) []parquetSmall {
	rows := make([]parquetSmall, n)
	for i := range rows {
		rows[i] = parquetSmall{A: int64(i), B: fmt.Sprint("row ", i)}
		for j := range i % 5 {
			rows[i].C = append(rows[i].C, fmt.Sprint(i, "/", j))
		}
	}
	return rows
}

func TestParquetColumnsAndBlocks(t *testing.T) {
	rows := smallRows(5000)
	// Small pages, so that rows are gathered from many.
	path := write(t, t.TempDir(), "x.parquet", packParquet(t, 2000, rows, parquet.PageBufferSize(300), parquet.DataPageVersion(1)))
	read := func(columns []string, block int) ([]string, *Plan) {
		t.Helper()
		p, err := discoverTest(t, Options{Format: Parquet, Columns: columns}, block, path)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		row := int64(1)
		var read int64
		for _, s := range p.Splits {
			r, err := p.Open(context.Background(), s)
			if err != nil {
				t.Fatal(err)
			}
			var buf []byte
			for {
				b, err := r.ReadBlock(buf)
				if err != nil {
					break
				}
				if b.Line != row {
					t.Fatalf("block begins at row %d, want %d", b.Line, row)
				}
				if cap(b.Data) < len(b.Data)+Slack {
					t.Fatal("no slack")
				}
				_ = EachLine(b.Data, nil, func(l []byte, _ int) error { out = append(out, string(l)); row++; return nil })
				read += b.Read
				buf = b.Data
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if read != p.TotalBytes {
			t.Errorf("%d bytes said to be read, want %d", read, p.TotalBytes)
		}
		return out, p
	}
	for _, block := range []int{1, 1000, defaultBlock} {
		got, _ := read([]string{"c", "a"}, block)
		if len(got) != len(rows) {
			t.Fatalf("%d rows", len(got))
		}
		for i, r := range rows {
			var back struct {
				A int64
				B *string
				C []string
			}
			if err := json.Unmarshal([]byte(got[i]), &back); err != nil {
				t.Fatal(err)
			}
			if back.A != r.A || back.B != nil || strings.Join(back.C, ",") != strings.Join(r.C, ",") {
				t.Fatalf("row %d: %s", i, got[i])
			}
		}
	}
	if got, _ := read([]string{"c.list"}, 0); got[1] != `{"c":["1/0"]}` {
		t.Errorf("nested column: %s", got[1])
	}
	_, err := Discover(context.Background(), []string{path}, Options{Format: Parquet, Columns: []string{"nope"}})
	if err == nil || !strings.Contains(err.Error(), `"nope"`) || !strings.Contains(err.Error(), "a, b, c") {
		t.Errorf("missing column: %v", err)
	}
	_, err = Discover(context.Background(), []string{path}, Options{})
	if err == nil || !strings.Contains(err.Error(), "--input-format parquet") || !strings.Contains(err.Error(), path) {
		t.Errorf("read as text: %v", err)
	}
	_, err = Discover(context.Background(), []string{"-"}, Options{Format: Parquet})
	if err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("from standard input: %v", err)
	}
}

func TestParquetLongRows(t *testing.T) {
	rows := []parquetSmall{{B: "a"}, {B: strings.Repeat("x", 100)}, {B: "c"}}
	path := write(t, t.TempDir(), "x.parquet", packParquet(t, 3, rows))
	o := Options{Format: Parquet, Columns: []string{"b"}, MaxLine: 50}
	p, err := Discover(context.Background(), []string{path}, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = content(p); err == nil || !strings.Contains(err.Error(), "row 2") {
		t.Errorf("long row: %v", err)
	}
	o.LongLines = LongLinesSkip
	if p, err = Discover(context.Background(), []string{path}, o); err != nil {
		t.Fatal(err)
	}
	if got, err := content(p); err != nil || got != "{\"b\":\"a\"}\n{\"b\":\"c\"}\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestParquetDamaged(t *testing.T) {
	packed := packParquet(t, 50, smallRows(100))
	for i := 0; i < len(packed); i += 7 {
		for _, how := range []string{"cut", "turned"} {
			bad := bytes.Clone(packed)
			if how == "cut" {
				bad = bad[:i]
			} else {
				bad[i] ^= 0x15
			}
			s, err := newSettings(Options{Format: Parquet})
			if err != nil {
				t.Fatal(err)
			}
			s.open = func(string) (diskFile, error) { return memory{bytes.NewReader(bad)}, nil }
			p := &Plan{set: s, Files: []File{{Path: "x.parquet", Size: int64(len(bad))}}}
			if err = p.splitParquet(context.Background()); err == nil {
				_, err = content(p)
			}
			if how == "cut" && err == nil {
				t.Fatalf("cut at %d: no error", i)
			}
			if err != nil && !strings.Contains(err.Error(), "x.parquet") {
				t.Fatalf("%s at %d: the error names no file: %v", how, i, err)
			}
		}
	}
}

func TestNumbersAsJSON(t *testing.T) {
	for _, c := range []struct {
		digits string
		scale  int
		want   string
	}{
		{"0", 2, "0.00"},
		{"5", 2, "0.05"},
		{"-5", 1, "-0.5"},
		{"12345", 0, "12345"},
		{"12345", 5, "0.12345"},
		{"-12345", 3, "-12.345"},
		{"7", -2, "700"},
		{"0", -2, "0"},
		{"1", 2000, "1e-2000"},
	} {
		if got := string(appendDecimal(nil, []byte(c.digits), c.scale)); got != c.want {
			t.Errorf("%s with %d decimals: %s, want %s", c.digits, c.scale, got, c.want)
		}
	}
	for h, want := range map[uint16]string{0x3c00: "1", 0xc000: "-2", 0x0001: "5.9604645e-08", 0x7bff: "65504", 0x7c00: `"Infinity"`, 0x8000: "-0", 0x3555: "0.33325195"} {
		if got := string(appendFloat(nil, halfFloat(h), 32)); got != want {
			t.Errorf("half %#x: %s, want %s", h, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 1: "1", 1e20: "100000000000000000000", 1e-7: "1e-07", 123.456: "123.456"} {
		if got := string(appendFloat(nil, f, 64)); got != want {
			t.Errorf("%g: %s, want %s", f, got, want)
		}
	}
}
