// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

const (
	books = "../../testdata/books"
	book  = books + "/being_ernest.txt"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A pair of neighbours weighs as much as the window is wide, one at its edge 1.
func TestByHand(t *testing.T) {
	// Words: b a' c | b. The second paragraph is a context of its own.
	in := write(t, "B, a'\n c!\n\n\n'b' 7\n")
	for _, c := range []struct {
		s    settings
		want string
	}{
		{settings{window: 2}, "a\tb\t1\t2\na\tc\t1\t2\nb\tc\t1\t1\n"},
		{settings{window: 1}, "a\tb\t1\t1\na\tc\t1\t1\n"},
		{settings{window: 1000}, "a\tb\t1\t1000\na\tc\t1\t1000\nb\tc\t1\t999\n"},
		{settings{window: 2, least: 2}, ""},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{in}, c.s, &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("%+v: got %q, want %q", c.s, out.String(), c.want)
		}
	}

	// "to" is a word near "to", but once only, and the same goes for "be".
	in = write(t, "to be or\nnot to be")
	var out bytes.Buffer
	if err := run(t.Context(), []string{in}, settings{window: 4, least: 2}, &out); err != nil {
		t.Fatal(err)
	}
	// be-or: 1 and 3 apart; be-not: 2 and 2; be-to: 1, 1 and 3 (be to);
	// or-to: 2 and 2; not-to: 3 and 1.
	if want := "be\tnot\t2\t6\nbe\tor\t2\t6\nbe\tto\t3\t10\nnot\tto\t2\t6\nor\tto\t2\t6\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

type reference struct {
	Window     int      `json:"window"`
	Rows       int      `json:"rows"`
	SHA256Rows string   `json:"sha256_of_rows"`
	Top        [][4]any `json:"top"`
}

// The books, against Counters of Python (testdata/reference.py): every row.
func TestBooks(t *testing.T) {
	var want reference
	text, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	s := settings{window: want.Window, dir: filepath.Join(t.TempDir(), "out")}
	if err := run(t.Context(), []string{books}, s, nil); err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile(filepath.Join(s.dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(part); hex.EncodeToString(sum[:]) != want.SHA256Rows {
		t.Errorf("the rows differ from those of Python")
	}

	for _, top := range want.Top {
		if row := fmt.Sprintf("\n%s\t%s\t%.0f\t%.0f\n", top[:]...); !strings.Contains(string(part), row) {
			t.Errorf("no row %q", row)
		}
	}
	if n := strings.Count(string(part), "\n"); n != want.Rows {
		t.Errorf("%d rows, want %d", n, want.Rows)
	}
}

// One book, against a map, with what leaves out rows.
func TestTopAndLeast(t *testing.T) {
	const window = 3
	text, err := os.ReadFile(book)
	if err != nil {
		t.Fatal(err)
	}
	type counted struct {
		text string
		near
	}
	counts := map[string]near{}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		_, words := split([]byte(paragraph), nil, nil)
		for i := range words {
			for j := max(0, i-window); j < i; j++ {
				ends := []string{string(words[i]), string(words[j])}
				slices.Sort(ends)
				n := counts[strings.Join(ends, "\t")]
				counts[strings.Join(ends, "\t")] = near{n.Count + 1, n.Weight + int64(window+1-(i-j))}
			}
		}
	}
	var rows []counted
	for text, n := range counts {
		rows = append(rows, counted{text, n})
	}
	slices.SortFunc(rows, func(a, b counted) int { return cmp.Compare(a.text, b.text) })
	check := func(s settings, want []counted) {
		t.Helper()
		var lines strings.Builder
		for _, r := range want {
			fmt.Fprintf(&lines, "%s\t%d\t%d\n", r.text, r.Count, r.Weight)
		}
		var out bytes.Buffer
		if err := run(t.Context(), []string{book}, s, &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != lines.String() {
			t.Errorf("%+v: the rows differ from those of a map", s)
		}
	}
	often := slices.DeleteFunc(slices.Clone(rows), func(r counted) bool { return r.Count < 4 })
	if len(often) < 500 || len(often) > len(rows)/2 {
		t.Errorf("%d rows of %d are seen 4 times", len(often), len(rows))
	}
	check(settings{window: window, least: 4}, often)
	slices.SortStableFunc(rows, func(a, b counted) int { return cmp.Compare(b.Weight, a.Weight) })
	check(settings{window: window, top: 50}, rows[:50])
}

// However the input is cut and however many mappers there are, rows are the same.
func TestSplits(t *testing.T) {
	var want []mapreduce.Row[pair, near]
	for _, o := range []mapreduce.Options{
		{Workers: 1},
		{Workers: 3, Input: input.Options{SplitSize: 10_000}},
		{Workers: 2, Input: input.Options{SplitSize: 50_000}, Memory: mapreduce.MinMemory},
	} {
		o.Inputs = []string{book}
		o.Input.Delimiter = []byte("\n\n")
		rows, _, err := mapreduce.Collect(t.Context(), cooccurrence(settings{window: 3, least: 2}), o)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = rows
		}
		same := slices.EqualFunc(rows, want, func(a, b mapreduce.Row[pair, near]) bool {
			return bytes.Equal(a.Key.Word, b.Key.Word) && bytes.Equal(a.Key.Other, b.Key.Other) && a.Result == b.Result
		})
		if len(rows) < 1000 || !same {
			t.Errorf("%d workers, splits of %d: %d rows, want the %d of one worker", o.Workers, o.Input.SplitSize, len(rows), len(want))
		}
	}
}

// split finds the words that stand in a text and nothing else.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("aBcÄß'  .\n1")), 0, 40, -1).Draw(t, "text")
		var want []string
		for _, word := range strings.FieldsFunc(strings.ToLower(text), notInWords) {
			if word = strings.Trim(word, "'"); word != "" {
				want = append(want, word)
			}
		}
		_, words := split([]byte(text), make([]byte, 7), nil)
		got := make([]string, len(words))
		for i, word := range words {
			got[i] = string(word)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", text, got, want)
		}
	})
}

func TestErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.txt")
	for _, c := range []struct {
		input, want string
		window      int
	}{
		{missing, missing, 5},
		{books, "a window of 0 words", 0},
		{books, "a window of 1001 words", 1001},
	} {
		var out bytes.Buffer
		err := run(t.Context(), []string{c.input}, settings{window: c.window}, &out)
		if err == nil || !strings.Contains(err.Error(), c.want) || out.Len() != 0 {
			t.Errorf("error %v, standard output %q", err, out.String())
		}
	}
}
