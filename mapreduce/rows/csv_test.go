// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce/input"
)

func TestCSV(t *testing.T) {
	header := Format{Kind: CSV, Header: true}
	for _, c := range []struct {
		name    string
		format  Format
		want    []string
		content string
		rows    [][]string
		err     []string // what the error must contain
	}{
		{"plain", header, []string{"k", "v"}, "k,v\na,1\nb,2\n", [][]string{{"a", "1"}, {"b", "2"}}, nil},
		{"no last newline", header, []string{"v", "k"}, "k,v\na,1\nb,2", [][]string{{"1", "a"}, {"2", "b"}}, nil},
		{"CRLF", header, []string{"v"}, "k,v\r\na,1\r\nb,\r\n", [][]string{{"1"}, {""}}, nil},
		{"a lone CR is data", header, []string{"v", "k"}, "k,v\na\rb,\r1\n", [][]string{{"\r1", "a\rb"}}, nil},
		{"quoted newline", header, []string{"k", "v"}, "k,v\n\"a\nb\",1\n\"a\nb\",2\nc,\"3\"\n", [][]string{{"a\nb", "1"}, {"a\nb", "2"}, {"c", "3"}}, nil},
		{"quoted CRLF stays", header, []string{"k"}, "k,v\r\n\"a\r\nb\",1\r\n", [][]string{{"a\r\nb"}}, nil},
		{"doubled quotes", header, []string{"k", "v"}, "k,v\r\n\"say \"\"hi\"\", you\",1\r\n,2\r\n\"\",3\r\n", [][]string{{`say "hi", you`, "1"}, {"", "2"}, {"", "3"}}, nil},
		{"only quotes", header, []string{"k"}, "k\n\"\"\"\"\n\"\"\"\"\"\"\n", [][]string{{`"`}, {`""`}}, nil},
		{"quoted last field at the end", header, []string{"v"}, "k,v\na,\"1\"", [][]string{{"1"}}, nil},
		{"quoted header", header, []string{"a,b", `q"`}, "\"a,b\",\"q\"\"\"\n1,2\n", [][]string{{"1", "2"}}, nil},
		{"blank lines", header, []string{"v"}, "k,v\n\na,1\n\r\n\n\nb,2\n\n", [][]string{{"1"}, {"2"}}, nil},
		{"one column, blank lines", header, []string{"v"}, "v\n\n1\n\"\"\n\r\n2", [][]string{{"1"}, {""}, {"2"}}, nil},
		{"nothing wanted", header, nil, "k,v\na,1\nb,2\n", [][]string{{}, {}}, nil},
		{"a column twice", header, []string{"v", "k", "v"}, "k,v\r\na,1\r\n", [][]string{{"1", "a", "1"}}, nil},
		{"empty file", header, []string{"v"}, "", [][]string{}, nil},
		{"only a header", header, []string{"v"}, "k,v", [][]string{}, nil},
		{"by number", header, []string{"#2"}, "k,v\na,1\n", [][]string{{"1"}}, nil},
		{"other separator", Format{Kind: CSV, Comma: '|', Header: true}, []string{"v"}, "k|v\na,b|1\n", [][]string{{"1"}}, nil},
		{"tabs with quotes", Format{Kind: CSV, Comma: '\t', Header: true}, []string{"v"}, "k\tv\na\t\"1\t2\"\n", [][]string{{"1\t2"}}, nil},
		{"columns given", Format{Kind: CSV, Columns: []string{"x", "y"}}, []string{"y"}, "a,1\nb,2\n", [][]string{{"1"}, {"2"}}, nil},
		{"columns by number", Format{Kind: CSV}, []string{"2"}, "a,1\nb,2\n", [][]string{{"1"}, {"2"}}, nil},
		{"lazy quotes", Format{Kind: CSV, LazyQuotes: true, Header: true}, []string{"k", "v"}, "k,v\n5\" disk,1\n\"a \"b\" c\",2\n\"open,3\nx,4\n", [][]string{{`5" disk`, "1"}, {`a "b" c`, "2"}}, []string{"a.txt:4", "1 field", "2"}},

		{"too few", header, []string{"k", "v"}, "k,v\na,1\nb\nc,3\n", [][]string{{"a", "1"}}, []string{"a.txt:3: ", "1 field ", "have 2"}},
		{"too many", header, []string{"k", "v"}, "k,v\na,1\nb,2,3\nc,3\n", [][]string{{"a", "1"}}, []string{"a.txt:3: ", "3 fields", "have 2"}},
		{"too few after quoted newlines", header, []string{"k", "v"}, "k,v\n\"a\n\n\",1\n\"b\n\"\nc,3\n", [][]string{{"a\n\n", "1"}}, []string{"a.txt:5: ", "1 field ", "have 2"}},
		{"pad", Format{Kind: CSV, Header: true, Ragged: Pad}, []string{"v", "k"}, "k,v\na\nb,2\nc,3,4\n\"d\"\n", [][]string{{"<nil>", "a"}, {"2", "b"}, {"3", "c"}, {"<nil>", "d"}}, nil},
		{"skip", Format{Kind: CSV, Header: true, Ragged: Skip}, []string{"v"}, "k,v\na\nb,2\nc,3,4\nd,5\n", [][]string{{"2"}, {"5"}}, nil},
		{"no such column", header, []string{"w"}, "k,v\na,1\n", [][]string{}, []string{"a.txt:1: ", `"w"`, `"k", "v"`}},
		{"no such number", header, []string{"#3"}, "k,v\na,1\n", [][]string{}, []string{`"#3"`}},
		{"column twice in header", header, []string{"k"}, "k,k\na,1\n", [][]string{}, []string{`"k"`, "1 and 2", `"#1"`}},
		{"column twice but not wanted", header, []string{"v"}, "k,k,v\na,1,2\n", [][]string{{"2"}}, nil},
		{"blank first line", header, []string{"k"}, "\nk,v\na,1\n", [][]string{}, []string{"a.txt:1: ", "first line is empty"}},
		{"bare quote", header, []string{"v"}, "k,v\na,1\nb\"c,2\n", [][]string{{"1"}}, []string{"a.txt:3: ", "field 1", "lazy"}},
		{"bare quote in an unwanted field", header, []string{"k"}, "k,v\na,1\nb,2\"\n", [][]string{{"a"}}, []string{"a.txt:3: ", "field 2"}},
		{"after the closing quote", header, []string{"k"}, "k,v\na,1\n\"b\"x,2\n", [][]string{{"a"}}, []string{"a.txt:3: ", "field 1", "closing quote"}},
		{"never closed", header, []string{"k"}, "k,v\na,1\nb,\"2\nc,3\n", [][]string{{"a"}}, []string{"a.txt:3: ", "field 2", "never closed"}},
		{"bad header", header, []string{"k"}, "k,\"v\na,1\n", [][]string{}, []string{"a.txt:1: ", "never closed"}},

		{"TSV", Format{Kind: TSV, Header: true}, []string{"v", "k"}, "k\tv\n\"a\t1\"\nb\\t\t\n", [][]string{{`1"`, `"a`}, {"", `b\t`}}, nil},
		{"TSV with escapes", Format{Kind: TSV, Header: true, Escapes: true}, []string{"v", "k"}, "k\tv\na\\tb\t\\\\1\\n\\x\\\nb\t2\n", [][]string{{"\\1\n\\x\\", "a\tb"}, {"2", "b"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := collect(t, c.format, c.want, c.content)
			if !reflect.DeepEqual(fieldsOf(got), c.rows) {
				t.Errorf("got %q, want %q", fieldsOf(got), c.rows)
			}
			checkError(t, err, c.err)
		})
	}
}

// failer is what tests of both kinds can do.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

func checkError(t failer, err error, contain []string) {
	t.Helper()
	if len(contain) == 0 {
		if err != nil {
			t.Errorf("unexpected error: %v", err)
		}
		return
	}
	if err == nil {
		t.Fatalf("no error, want one with %q", contain)
	}
	for _, s := range contain {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q lacks %q", err, s)
		}
	}
}

func TestSkippedAreCounted(t *testing.T) {
	_, p, err := collect(t, Format{Kind: CSV, Columns: []string{"a", "b"}, Ragged: Skip}, []string{"a"}, "1\n1,2\n1,2,3\n\n\"x\"\n")
	if err != nil || p.Skipped() != 3 {
		t.Fatalf("skipped %d, %v; want 3", p.Skipped(), err)
	}
}

func TestRecordsAndOffsets(t *testing.T) {
	content := "k,v\r\na,1\r\n\r\n\"b\n\",2\r\nc,\"3\"\nd,4"
	got, _, err := collect(t, Format{Kind: CSV, Header: true}, []string{"k"}, content)
	if err != nil {
		t.Fatal(err)
	}
	want := []row{{5, "a,1", []string{"a"}}, {12, "\"b\n\",2", []string{"b\n"}}, {20, "c,\"3\"", []string{"c"}}, {26, "d,4", []string{"d"}}}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestFilesWithOtherColumnOrder(t *testing.T) {
	contents := map[string]string{"a": "k,v\n1,2\n", "b": "v,x,k\n3,4,5\n6,7,8\n", "c": "k,x\n1,2\n"}
	asked := 0
	l, err := (&Format{Kind: CSV, Header: true}).Prepare([]string{"k", "v"}, func(f *input.File) ([]byte, error) {
		asked++
		return []byte(contents[f.Path]), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p := l.NewParser()
	read := func(path string, from, to int) string {
		f := &input.File{Path: path, Size: int64(len(contents[path]))}
		if err := p.Reset(blockAt(f, contents[path], from, to)); err != nil {
			return err.Error()
		}
		s := ""
		for p.Next() {
			s += fmt.Sprintf("%s", p.Fields())
		}
		return s
	}
	for _, c := range []struct {
		path     string
		from, to int
		want     string
		asked    int
	}{
		{"b", 12, 18, "[8 6]", 1},
		{"a", 0, 8, "[1 2]", 1},
		{"b", 6, 18, "[5 3][8 6]", 1},
		{"a", 4, 8, "[1 2]", 2},
		{"b", 0, 12, "[5 3]", 2},
		{"c", 0, 8, `c:1: there is no column "v"; the columns are "k", "x"`, 2},
		{"c", 4, 8, `c:1: there is no column "v"; the columns are "k", "x"`, 3},
		{"a", 4, 8, "[1 2]", 3},
	} {
		if got := read(c.path, c.from, c.to); got != c.want || asked != c.asked {
			t.Errorf("%v: got %s after asking %d times", c, got, asked)
		}
	}
}

func TestLearnFromAStream(t *testing.T) {
	content := "k,v\n1,2\n3,4\n"
	f := &input.File{Path: "-", Size: -1}
	l, err := (&Format{Kind: CSV, Header: true}).Prepare([]string{"v"}, noHeader)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Learn(blockAt(f, content, 0, 8)); err != nil {
		t.Fatal(err)
	}
	p := l.NewParser()
	if err := p.Reset(blockAt(f, content, 8, 12)); err != nil || !p.Next() || string(p.Field(0)) != "4" || p.Next() {
		t.Fatal(err, p.Err())
	}
	// A header that cannot be read names the file.
	err = p.Reset(blockAt(&input.File{Path: "other"}, content, 8, 12))
	checkError(t, err, []string{"other", "not to be called"})
	if p.Next() || p.Err() != err {
		t.Fatal("a block refused by Reset has records")
	}
}

func TestByteOrderMarkMovesTheStart(t *testing.T) {
	content := "k,v\n1,2\n"
	p, err := (&Format{Kind: CSV, Header: true}).NewParser([]string{"v"}, noHeader)
	if err != nil {
		t.Fatal(err)
	}
	b := blockAt(&input.File{Path: "bom", Size: 11}, content, 0, 8)
	b.Offset = 3
	if err := p.Reset(b); err != nil || !p.Next() || string(p.Field(0)) != "2" || p.Next() {
		t.Fatal(err, p.Err())
	}
}

func TestErrorWithoutALine(t *testing.T) {
	p, err := (&Format{Kind: CSV, Columns: []string{"k", "v"}}).NewParser([]string{"v"}, noHeader)
	if err != nil {
		t.Fatal(err)
	}
	f := &input.File{Path: "a.csv"}
	if err := p.Reset(input.Block{Data: []byte("a,1\nb,x7\nc\n"), File: f, Offset: 100}); err != nil {
		t.Fatal(err)
	}
	p.Next()
	p.Next()
	_, err = ParseInt(p.Field(0))
	fe := p.FieldError(0, err)
	if want := `a.csv: offset 104: field "v": "x7" is not a number`; fe.Error() != want || !errors.Is(fe, ErrNotNumber) {
		t.Errorf("got %v, want %s", fe, want)
	}
	fe.Line = 7
	if want := `a.csv:7: field "v": "x7" is not a number`; fe.Error() != want {
		t.Errorf("got %v, want %s", fe, want)
	}
	var e *Error
	if p.Next() || !errors.As(p.Err(), &e) || e.Offset != 109 || e.Line != 0 || e.File != "a.csv" {
		t.Errorf("got %v", p.Err())
	}
	if p.Next() {
		t.Error("Next goes on after an error")
	}
}

func TestFormatsThatAreNone(t *testing.T) {
	for _, c := range []struct {
		format Format
		want   []string
		header HeaderFunc
		err    string
	}{
		{Format{}, nil, nil, "no format"},
		{Format{Kind: "xml"}, nil, nil, `"xml"`},
		{Format{Kind: CSV, Comma: '"'}, nil, noHeader, "field"},
		{Format{Kind: CSV, Comma: '\n'}, nil, noHeader, "field"},
		{Format{Kind: CSV, Comma: 0xe4}, nil, noHeader, "ASCII"},
		{Format{Kind: JSONL, Comma: ','}, nil, nil, "separator"},
		{Format{Kind: JSONL, Header: true}, nil, nil, "header"},
		{Format{Kind: CSV, Header: true, Columns: []string{"a"}}, nil, noHeader, "not both"},
		{Format{Kind: Regexp}, nil, nil, "pattern"},
		{Format{Kind: CSV, Header: true}, nil, nil, "first record"},
		{Format{Kind: TSV, LazyQuotes: true}, nil, noHeader, "lazy"},
		{Format{Kind: CSV, Escapes: true}, nil, noHeader, "escapes"},
		{Format{Kind: CSV, Delimiter: []byte("|")}, nil, noHeader, "delimiter"},
		{Format{Kind: CSV, Ragged: 9}, nil, noHeader, "policy"},
		{Format{Kind: CSV, Columns: []string{"a"}}, []string{"b"}, nil, `"b"; the columns are "a"`},
		{Format{Kind: JSONL}, []string{""}, nil, "name"},
		{Format{Kind: Lines}, []string{"x"}, nil, `"line"`},
	} {
		_, err := c.format.Prepare(c.want, c.header)
		checkError(t, err, []string{c.err})
	}
}

// modelCSV reads strict CSV with encoding/csv. Where that turns CRLF inside
// quotes into LF we keep it, so contents with CR are compared without.
func modelCSV(content string, comma rune, lazy bool) ([][]string, error) {
	r := csv.NewReader(strings.NewReader(content))
	r.Comma, r.LazyQuotes, r.ReuseRecord = comma, lazy, false
	out := [][]string{}
	for {
		rec, err := r.Read()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, rec)
	}
}

// sameAsModel compares all columns of content, without a header, with what
// encoding/csv reads: the same rows, and an error where that has one.
func sameAsModel(t testing.TB, content string, comma byte) {
	t.Helper()
	want, wantErr := modelCSV(content, rune(comma), false)
	if content == "" {
		return
	}
	_, header := fileOf("a.txt", content)
	if first, _ := header(&input.File{Path: "a.txt"}); len(trimCR(first[:strings.IndexByte(content+"\n", '\n')], 0)) == 0 {
		return // a blank first line is an error here
	}
	width := 1
	if len(want) > 0 {
		width = len(want[0])
	}
	format := Format{Kind: CSV, Comma: comma}
	got, _, err := collect(t, format, names(width), content)
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("%q: error %v, encoding/csv says %v", content, err, wantErr)
	}
	if len(want) == 0 {
		return
	}
	rows := fieldsOf(got)
	for _, r := range rows {
		for i := range r {
			r[i] = strings.ReplaceAll(r[i], "\r\n", "\n")
		}
	}
	if !reflect.DeepEqual(rows, want) {
		t.Fatalf("%q: got %q, encoding/csv reads %q", content, rows, want)
	}
}

func FuzzCSV(f *testing.F) {
	for _, s := range []string{"a,b\n1,2\n", "\"a\n\"\"\",b\r\n\n1,\"2\"", "a\n\"b\"x\n", "a,b\nc\"d,e\n", "a,\"b", "a\r,b\n\r\n", strings.Repeat("abcdefg,h\n", 30) + "\"x\",y\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		if strings.HasSuffix(content, "\r") {
			return // encoding/csv drops it; here a lone CR is data
		}
		sameAsModel(t, content, ',')
	})
}

func TestCSVEqualsModel(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "bc", "some longer text of a field", ",", ",", ",", "\n", "\n", "\r\n", "\"", "\"\"", "\"x\"", "\"y,\nz\"", "\r", "é"})
	rapid.Check(t, func(r *rapid.T) {
		content := strings.Join(rapid.SliceOfN(piece, 1, 60).Draw(r, "pieces"), "")
		sameAsModel(t, strings.TrimRight(content, "\r"), ',')
	})
}

func TestLazyQuotesEqualModelLineByLine(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "b c", ";", ";", "\"", "\"\"", "\"x\"", "é"})
	rapid.Check(t, func(r *rapid.T) {
		line := strings.Join(rapid.SliceOfN(piece, 1, 30).Draw(r, "pieces"), "")
		want, err := modelCSV(line, ';', true)
		if err != nil || len(want) != 1 {
			r.Fatalf("encoding/csv: %q, %v", want, err)
		}
		ending := rapid.SampledFrom([]string{"", "\n", "\r\n"}).Draw(r, "ending")
		format := Format{Kind: CSV, Comma: ';', LazyQuotes: true}
		got, _, err := collect(t, format, names(len(want[0])), line+ending)
		if err != nil || !reflect.DeepEqual(fieldsOf(got), want) {
			r.Fatalf("%q: got %q, %v; encoding/csv reads %q", line, fieldsOf(got), err, want)
		}
	})
}

// genTable draws a table of a fixed number of columns as CSV, together with the
// offsets where records begin.
func genTable(r *rapid.T) (content string, starts []int, width int) {
	width = rapid.IntRange(1, 5).Draw(r, "width")
	if rapid.IntRange(0, 20).Draw(r, "wide") == 0 {
		width = 3000
	}
	plain := rapid.SampledFrom([]string{"", "1", "abc", "-12.5", "eleven char", "a field that is longer than a machine word or eight of them or say seventy bytes"})
	quoted := rapid.SampledFrom([]string{`""`, `"a,b"`, "\"a\nb\"", `"say ""hi"""`, "\"\r\n\n\""})
	quotes := rapid.IntRange(0, 12).Draw(r, "quotes")
	newline := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(r, "newline")
	var b strings.Builder
	for range rapid.IntRange(1, 40).Draw(r, "rows") {
		starts = append(starts, b.Len())
		if b.Len() > 0 && rapid.IntRange(0, 15).Draw(r, "blank") == 0 {
			b.WriteString(newline)
			continue
		}
		withQuotes := quotes > 0 && rapid.IntRange(1, 12).Draw(r, "q") <= quotes
		for i := range width {
			if i > 0 {
				b.WriteByte(',')
			}
			if i < 6 && withQuotes && rapid.Bool().Draw(r, "fq") {
				b.WriteString(quoted.Draw(r, "field"))
			} else if i < 6 {
				s := plain.Draw(r, "field")
				if s == "" && width == 1 {
					s = "x"
				}
				b.WriteString(s)
			}
		}
		b.WriteString(newline)
	}
	content = b.String()
	if rapid.Bool().Draw(r, "unended") {
		content = strings.TrimSuffix(content, newline)
	}
	return content, starts, width
}

func TestCSVRowsDoNotDependOnBlocks(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		content, starts, width := genTable(r)
		if strings.HasPrefix(content, "\n") || strings.HasPrefix(content, "\r\n") || content == "" {
			return
		}
		want := names(min(width, 7))
		format := Format{Kind: CSV}
		whole, _, err := collect(t, format, want, content)
		if err != nil {
			r.Fatal(err)
		}
		model, err := modelCSV(content, ',', false)
		if err != nil {
			r.Fatal(err)
		}
		for i, m := range model {
			for j := range want {
				if got := strings.ReplaceAll(whole[i].fields[j], "\r\n", "\n"); got != m[j] {
					r.Fatalf("row %d, column %d: got %q, encoding/csv reads %q", i, j, got, m[j])
				}
			}
		}
		if len(whole) != len(model) {
			r.Fatalf("got %d rows, encoding/csv reads %d", len(whole), len(model))
		}
		var cuts []int
		for _, s := range starts[1:] {
			if s < len(content) && rapid.Bool().Draw(r, "cut") {
				cuts = append(cuts, s)
			}
		}
		parts, _, err := collect(t, format, want, content, cuts...)
		if err != nil || !reflect.DeepEqual(parts, whole) {
			r.Fatalf("cut at %v of %q: got %+v, %v, want %+v", cuts, content, parts, err, whole)
		}
	})
}

func TestRaggedLineIsTheSameForAnyBlocks(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		content, starts, width := genTable(r)
		if strings.HasPrefix(content, "\n") || strings.HasPrefix(content, "\r\n") || content == "" || !strings.HasSuffix(content, "\n") {
			return
		}
		line := 1 + strings.Count(content, "\n")
		bad := strings.Repeat(",", width)
		content += bad + "\n1\n"
		var cuts []int
		for _, s := range starts[1:] {
			if rapid.Bool().Draw(r, "cut") {
				cuts = append(cuts, s)
			}
		}
		_, _, err := collect(t, Format{Kind: CSV}, nil, content, cuts...)
		checkError(r, err, []string{fmt.Sprintf("a.txt:%d: the record has %d fields but should have %d", line, width+1, width)})
	})
}

func TestCSVDoesNotAllocate(t *testing.T) {
	content := "k,v\n" + strings.Repeat("abc,-12.5\n\"a \"\"b\"\"\",\"7\"\nx,\n\n", 500)
	file, header := fileOf("a.txt", content)
	p, err := (&Format{Kind: CSV, Header: true}).NewParser([]string{"k", "v"}, header)
	if err != nil {
		t.Fatal(err)
	}
	b := blockAt(file, content, 4, len(content))
	n := testing.AllocsPerRun(10, func() {
		if err := p.Reset(b); err != nil {
			t.Fatal(err)
		}
		for p.Next() {
		}
	})
	if n != 0 || p.Err() != nil {
		t.Fatalf("%v allocations a block, %v", n, p.Err())
	}
}
