// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
)

func stdin(t *testing.T, o Options, r io.Reader) (*Plan, []rec, error) {
	t.Helper()
	o.Stdin = r
	p, err := Discover(context.Background(), []string{"-"}, o)
	if err != nil {
		t.Fatal(err)
	}
	got, _, _, err := readPlan(p, string(o.Delimiter), false)
	return p, got, err
}

func TestStandardInput(t *testing.T) {
	data := "a\nbb\r\n\x00\xff\nlast"
	want := model([]byte(data), "", false)
	for name, r := range map[string]io.Reader{
		"whole":        strings.NewReader(data),
		"byte by byte": iotest.OneByteReader(strings.NewReader(data)),
		"data and EOF": iotest.DataErrReader(strings.NewReader(data)),
	} {
		p, got, err := stdin(t, Options{}, r)
		if err != nil || !same(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if p.Exact || !p.Splits[0].Stream || p.Files[0].Size != -1 {
			t.Errorf("%s: plan %+v", name, p)
		}
	}
	if _, _, err := stdin(t, Options{}, iotest.ErrReader(errors.New("broken"))); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("broken: %v", err)
	}
	if _, got, err := stdin(t, Options{}, strings.NewReader("")); err != nil || len(got) != 0 {
		t.Errorf("empty: %v, %v", got, err)
	}
	for _, names := range [][]string{{"-", "-"}, {"-", "/dev/stdin"}} {
		if _, err := Discover(context.Background(), names, Options{}); err == nil || !strings.Contains(err.Error(), "only once") {
			t.Errorf("%q: %v", names, err)
		}
	}
}

func TestLineNumbersOfPipes(t *testing.T) {
	data := strings.Repeat("some line\n", 30000)
	p, err := Discover(context.Background(), []string{"-"}, Options{Stdin: strings.NewReader("long long line\n" + data), MaxLine: 10, LongLines: LongLinesSkip})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Open(context.Background(), p.Splits[0])
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	line := int64(2)
	for {
		b, err := r.ReadBlock(make([]byte, 0, 5000))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if b.Line != line {
			t.Fatalf("line %d, want %d", b.Line, line)
		}
		line += int64(bytes.Count(b.Data, []byte("\n")))
	}
	if line != 30002 {
		t.Errorf("%d lines", line-1)
	}
	if _, err := p.LineAt(context.Background(), &p.Files[0], 3); err == nil {
		t.Error("standard input read again")
	}
}

func TestLineAt(t *testing.T) {
	dir := t.TempDir()
	text := []byte("a\nbb\n\nccc\n")
	plain := write(t, dir, "plain", text)
	packed := write(t, dir, "packed", pack(t, "gzip", text))
	p := find(t, Options{}, plain, packed)
	for _, f := range p.Files {
		for at, want := range map[int64]int64{0: 1, 1: 1, 2: 2, 4: 2, 5: 3, 6: 4, 9: 4, 10: 5, 100: 5} {
			if got, err := p.LineAt(context.Background(), &f, at); err != nil || got != want {
				t.Errorf("%s at %d: line %d, want %d: %v", f.Path, at, got, want, err)
			}
		}
	}
	many := write(t, dir, "many", []byte(strings.Repeat("x--", 50000)))
	p = find(t, Options{Delimiter: []byte("--")}, many)
	for _, at := range []int64{0, 3, 65536, 65537, 65538, 131073, 149999} {
		if got, err := p.LineAt(context.Background(), &p.Files[0], at); err != nil || got != at/3+1 {
			t.Errorf("at %d: line %d, want %d: %v", at, got, at/3+1, err)
		}
	}
}

func TestShrinkAndGrow(t *testing.T) {
	dir := t.TempDir()
	for _, how := range []string{"whole", "range", "gzip", "quoted"} {
		data := bytes.Repeat([]byte("0123456789abcde\n"), 1000)
		if how == "gzip" {
			data = pack(t, "gzip", data)
		}
		o := Options{}
		if how == "range" || how == "quoted" {
			o.SplitSize = 1000
		}
		path := write(t, dir, how, data)
		p := find(t, o, path)
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("more\n"); err != nil {
			t.Fatal(err)
		}
		f.Close()
		got, err := content(p)
		if want := 16000; err != nil || len(got) != want {
			t.Errorf("%s grown: %d bytes, want %d: %v", how, len(got), want, err)
		}
		if err := os.Truncate(path, int64(len(data)-20)); err != nil {
			t.Fatal(err)
		}
		if _, err = content(p); err == nil || !strings.Contains(err.Error(), "shrank") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s shrunk: %v", how, err)
		}
	}
	path := write(t, dir, "gone", []byte("x\n"))
	p := find(t, Options{}, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := content(p); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
}

func TestEncodings(t *testing.T) {
	le := "\xff\xfea\x00\xfc\x00\n\x00=\xd8\x00\xde" // a ü LF 😀
	be := "\xfe\xff\x00a\x00\xfc\x00\n\xd8=\xde\x00"
	text := "aü\n😀"
	for _, c := range []struct{ data, encoding, want, fails string }{
		{le, "", "", "--encoding utf-16"},
		{be, "utf-8", "", "--encoding utf-16"},
		{le, "utf-16", text, ""},
		{be, "UTF-16", text, ""},
		{le[2:], "utf-16", "", "byte order mark"},
		{le[2:], "utf-16le", text, ""},
		{le, "utf-16le", text, ""},
		{be[2:], "utf-16be", text, ""},
		{"", "utf-16", "", ""},
		{"a\xfc\n\x80", "latin1", "aü\n\u0080", ""},
		{"a\xfc\n\x80", "windows-1252", "aü\n€", ""},
		{"\xef\xbb\xbfa\xef\xbb\xbf\n", "", "a\xef\xbb\xbf\n", ""},
		{"\xef\xbb\xbf", "", "", ""},
		{"\xef\xbb", "", "\xef\xbb", ""},
		{"a\xff\xfe\n", "", "a\xff\xfe\n", ""},
	} {
		for _, packing := range []string{"", "gzip", "zstd"} {
			data := []byte(c.data)
			if packing != "" {
				data = pack(t, packing, data)
			}
			if len(data) == 0 && packing != "" {
				continue
			}
			path := write(t, t.TempDir(), "f", data)
			for _, from := range []string{path, "-"} {
				p, err := Discover(context.Background(), []string{from}, Options{Encoding: c.encoding, Stdin: bytes.NewReader(data)})
				var got string
				if err == nil {
					got, err = content(p)
				}
				if c.fails != "" {
					if err == nil || !strings.Contains(err.Error(), c.fails) || !strings.Contains(err.Error(), from) {
						t.Errorf("%q as %q from %s: error %v", c.data, c.encoding, from, err)
					}
					continue
				}
				if err != nil || got != c.want {
					t.Errorf("%q as %q, %s: %q, want %q: %v", c.data, c.encoding, packing, got, c.want, err)
				}
			}
		}
	}
	path := write(t, t.TempDir(), "f", []byte("\xef\xbb\xbfa\nb\n"))
	p := find(t, Options{}, path)
	r, err := p.Open(context.Background(), p.Splits[0])
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := r.ReadBlock(nil); err != nil || b.Offset != 3 || b.Read != 7 {
		t.Errorf("block %+v, %v", b, err)
	}
}

func TestLongLineErrors(t *testing.T) {
	path := write(t, t.TempDir(), "f", []byte("ok\n"+strings.Repeat("x", 100)+"\nok\n"))
	for _, block := range []int{1, 10, 1000} {
		p, err := discoverTest(t, Options{MaxLine: 99}, block, path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = content(p)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "byte 3 ") ||
			!strings.Contains(err.Error(), "--max-line") || !strings.Contains(err.Error(), "--long-lines") {
			t.Errorf("block %d: %v", block, err)
		}
	}
	// Longer than any buffer, in a file that nobody can hold in memory twice.
	huge := io.MultiReader(strings.NewReader("a\n"), io.LimitReader(zeros{}, 200<<20), strings.NewReader("\nb\n"))
	p, err := Discover(context.Background(), []string{"-"}, Options{Stdin: huge, MaxLine: 5, LongLines: LongLinesTruncate})
	if err != nil {
		t.Fatal(err)
	}
	got, skipped, cut, err := readPlan(p, "", false)
	want := []rec{{"a", 0}, {"\x00\x00\x00\x00\x00", 2}, {"b", 200<<20 + 3}}
	if err != nil || !same(got, want) || skipped != 0 || cut != 1 {
		t.Errorf("%v, %d, %d, %v", got, skipped, cut, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestForeignSplits(t *testing.T) {
	path := write(t, t.TempDir(), "f", []byte("a\nb\n"))
	p := find(t, Options{SplitSize: 2}, path)
	for _, s := range []Split{{Files: []int{1}}, {Files: []int{-1}}, {Files: []int{0}, Start: 3, End: 2}, {Files: []int{0}, Start: 0, End: 9}} {
		if r, err := p.Open(context.Background(), s); err == nil {
			if _, err = r.ReadBlock(nil); err == nil {
				t.Errorf("%+v can be read", s)
			}
			r.Close()
		}
	}
	if _, err := new(Plan).Open(context.Background(), Split{}); err == nil {
		t.Error("a plan out of nowhere opens")
	}
}
