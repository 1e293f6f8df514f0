// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// rec is a record as a mapper would see it.
type rec struct {
	text string
	off  int64
}

func (r rec) String() string { return fmt.Sprintf("%q@%d", r.text, r.off) }

// model cuts a whole file into records in the plainest way there is.
func model(data []byte, delim string, quoted bool) []rec {
	strip := delim == ""
	if strip {
		delim = "\n"
	}
	var out []rec
	begin := 0
	if bytes.HasPrefix(data, utf8BOM) && !strings.ContainsAny(delim, "\xef\xbb\xbf") {
		begin = 3
	}
	inQuote := false
	for i := begin; i < len(data); {
		if quoted && data[i] == '"' {
			inQuote = !inQuote
		}
		if inQuote || !strings.HasPrefix(string(data[i:]), delim) {
			i++
			continue
		}
		text := string(data[begin:i])
		if strip {
			text = strings.TrimSuffix(text, "\r")
		}
		out = append(out, rec{text, int64(begin)})
		i += len(delim)
		begin = i
	}
	if begin < len(data) {
		out = append(out, rec{string(data[begin:]), int64(begin)})
	}
	return out
}

// limit applies a longest record to what the model says.
func limit(recs []rec, max int, how LongLines) (out []rec, skipped, truncated int64) {
	for _, r := range recs {
		if len(r.text) > max {
			if how == LongLinesSkip {
				skipped++
				continue
			}
			truncated++
			r.text = r.text[:max]
		}
		out = append(out, r)
	}
	return out, skipped, truncated
}

func discoverTest(t testing.TB, o Options, block int, patterns ...string) (*Plan, error) {
	t.Helper()
	s, err := newSettings(o)
	if err != nil {
		return nil, err
	}
	if block > 0 {
		s.block = block
	}
	return discover(context.Background(), patterns, s)
}

// readSplit returns the records of a split and checks what holds for all blocks.
func readSplit(p *Plan, s Split, delim string, quoted bool) (out []rec, skipped, truncated int64, err error) {
	r, err := p.Open(context.Background(), s)
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	var buf []byte
	for {
		b, err := r.ReadBlock(buf)
		if errors.Is(err, io.EOF) {
			skipped, truncated = r.Skipped()
			return out, skipped, truncated, nil
		}
		if err != nil {
			return out, 0, 0, err
		}
		if len(b.Data) == 0 {
			return out, 0, 0, errors.New("an empty block")
		}
		if cap(b.Data) < len(b.Data)+Slack {
			return out, 0, 0, fmt.Errorf("block of %d bytes has capacity %d", len(b.Data), cap(b.Data))
		}
		if quoted {
			for _, m := range model(append([]byte("\n"), b.Data...), "", true)[1:] {
				out = append(out, rec{m.text, m.off - 1 + b.Offset})
			}
		} else if err := EachLine(b.Data, []byte(delim), func(line []byte, off int) error {
			out = append(out, rec{string(line), b.Offset + int64(off)})
			return nil
		}); err != nil {
			return out, 0, 0, err
		}
		buf = b.Data
	}
}

func readPlan(p *Plan, delim string, quoted bool) (out []rec, skipped, truncated int64, err error) {
	for _, s := range p.Splits {
		o, a, b, err := readSplit(p, s, delim, quoted)
		if err != nil {
			return nil, 0, 0, err
		}
		out = append(out, o...)
		skipped += a
		truncated += b
	}
	return out, skipped, truncated, nil
}

func same(a, b []rec) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// texts calls do with every text of up to n letters.
func texts(letters []string, n int, do func(string)) {
	var grow func(prefix string, left int)
	grow = func(prefix string, left int) {
		do(prefix)
		if left == 0 {
			return
		}
		for _, l := range letters {
			grow(prefix+l, left-1)
		}
	}
	grow("", n)
}

// memory stands for a file on disk.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// planFor makes the plan that discovery makes of one file of that content.
func planFor(t testing.TB, data []byte, o Options, block int) *Plan {
	t.Helper()
	s, err := newSettings(o)
	if err != nil {
		t.Fatal(err)
	}
	s.block = block
	s.open = func(string) (diskFile, error) { return memory{bytes.NewReader(data)}, nil }
	p := &Plan{set: s, Exact: true, Files: []File{{Path: "f", Size: int64(len(data))}}}
	if err := p.split(context.Background()); err != nil {
		t.Fatal(err)
	}
	return p
}

// Every text of a few letters, every split size and block size: no record is
// lost, doubled, cut or moved.
func TestBordersExhaustively(t *testing.T) {
	cases := []struct {
		name, delim string
		quoted      bool
		letters     []string
		n           int
		begin       string
	}{
		{"lf", "", false, []string{"a", "\n", "\r"}, 6, ""},
		{"one byte", ";", false, []string{"a", ";", "\n"}, 5, ""},
		{"two bytes", "xy", false, []string{"x", "y", "a"}, 6, ""},
		{"overlapping pair", "\n\n", false, []string{"a", "\n"}, 7, ""},
		{"overlapping three", "aba", false, []string{"a", "b"}, 8, ""},
		{"quoted", "", true, []string{"a", "\n", `"`}, 6, ""},
		{"quoted crlf", "", true, []string{"\r\n", `"`, `""`, "b"}, 5, ""},
		{"mark", "", false, []string{"a", "\n"}, 4, "\xef\xbb\xbf"},
		{"mark and quotes", "", true, []string{"a", "\n", `"`}, 3, "\xef\xbb\xbf"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := Options{Delimiter: []byte(c.delim)}
			if c.quoted {
				o.Format = QuotedLines
			}
			texts(c.letters, c.n-fewer, func(text string) {
				data := []byte(c.begin + text)
				want := model(data, c.delim, c.quoted)
				for split := 1; split <= len(data)+1; split++ {
					o.SplitSize = int64(split)
					for _, block := range []int{1, 2, 3, 5, 64} {
						p := planFor(t, data, o, block)
						got, _, _, err := readPlan(p, c.delim, c.quoted)
						if err != nil {
							t.Fatalf("%q split %d block %d: %v", data, split, block, err)
						}
						if !same(got, want) {
							t.Fatalf("%q split %d block %d:\n got %v\nwant %v", data, split, block, got, want)
						}
					}
				}
			})
		})
	}
}

// The same with records longer than allowed.
func TestLongRecordsExhaustively(t *testing.T) {
	cases := []struct {
		name, delim string
		quoted      bool
		letters     []string
		n           int
	}{
		{"lf", "", false, []string{"a", "\n", "\r"}, 5},
		{"two bytes", "xy", false, []string{"x", "y", "a"}, 5},
		{"overlapping", "\n\n", false, []string{"a", "\n"}, 6},
		{"quoted", "", true, []string{"a", "\n", `"`}, 5},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			texts(c.letters, c.n-fewer, func(text string) {
				all := model([]byte(text), c.delim, c.quoted)
				for max := 1; max <= 4; max++ {
					for how := LongLinesError; how <= LongLinesTruncate; how++ {
						if c.quoted && how == LongLinesTruncate {
							continue // what is cut may have lost its second quote
						}
						want, wantSkip, wantCut := limit(all, max, how)
						for _, split := range []int{1, 2, 3, 100} {
							for _, block := range []int{1, 2, 4, 64} {
								o := Options{Delimiter: []byte(c.delim), MaxLine: int64(max), LongLines: how, SplitSize: int64(split)}
								if c.quoted {
									o.Format = QuotedLines
								}
								p := planFor(t, []byte(text), o, block)
								got, skipped, cut, err := readPlan(p, c.delim, c.quoted)
								id := fmt.Sprintf("%q max %d how %d split %d block %d", text, max, how, split, block)
								if how == LongLinesError {
									if (err != nil) != (wantCut > 0) {
										t.Fatalf("%s: error %v, but %d are too long", id, err, wantCut)
									}
									continue
								}
								if err != nil {
									t.Fatalf("%s: %v", id, err)
								}
								if !same(got, want) || skipped != wantSkip || cut != wantCut {
									t.Fatalf("%s:\n got %v (%d, %d)\nwant %v (%d, %d)", id, got, skipped, cut, want, wantSkip, wantCut)
								}
							}
						}
					}
				}
			})
		})
	}
}

// Larger texts at random, so that buffers grow, records span many splits and
// the real block size is met.
func TestBordersAtRandom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	rapid.Check(t, func(t *rapid.T) {
		quoted := rapid.Bool().Draw(t, "quoted")
		delim := ""
		if !quoted {
			delim = rapid.SampledFrom([]string{"", "|", "--", "<>", "abab", "\x00"}).Draw(t, "delim")
		}
		part := rapid.SampledFrom([]string{"a", "\n", "\r\n", `"`, "-", "<", ">", "ab", "\x00", "\xff", "word ", strings.Repeat("long", 40), "|", "\n\n\n"})
		data := []byte(strings.Join(rapid.SliceOfN(part, 0, 200).Draw(t, "parts"), ""))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{Delimiter: []byte(delim), SplitSize: rapid.Int64Range(1, 500).Draw(t, "split")}
		if quoted {
			o.Format = QuotedLines
		}
		s, err := newSettings(o)
		if err != nil {
			t.Fatal(err)
		}
		s.block = rapid.SampledFrom([]int{1, 7, 64, 300, defaultBlock}).Draw(t, "block")
		p := &Plan{set: s, Files: []File{{Path: path, Size: int64(len(data))}}}
		if err := p.split(context.Background()); err != nil {
			t.Fatal(err)
		}
		got, _, _, err := readPlan(p, delim, quoted)
		if err != nil {
			t.Fatal(err)
		}
		if want := model(data, delim, quoted); !same(got, want) {
			t.Fatalf("%q:\n got %v\nwant %v", data, got, want)
		}
	})
}

func TestEachLine(t *testing.T) {
	for _, c := range []struct {
		data, delim string
		want        []rec
	}{
		{"", "", nil},
		{"\n", "", []rec{{"", 0}}},
		{"a\nb", "", []rec{{"a", 0}, {"b", 2}}},
		{"a\r\nb\r", "", []rec{{"a", 0}, {"b\r", 3}}},
		{"a\r\r\n\r\n", "", []rec{{"a\r", 0}, {"", 4}}},
		{"a\r\nb", "\n", []rec{{"a\r", 0}, {"b", 3}}},
		{"a--b---c", "--", []rec{{"a", 0}, {"b", 3}, {"-c", 6}}},
		{"x\x00\x00", "\x00", []rec{{"x", 0}, {"", 2}}},
	} {
		var got []rec
		_ = EachLine([]byte(c.data), []byte(c.delim), func(line []byte, off int) error {
			got = append(got, rec{string(line), int64(off)})
			return nil
		})
		if !same(got, c.want) {
			t.Errorf("%q by %q: got %v, want %v", c.data, c.delim, got, c.want)
		}
	}
	stop := errors.New("stop")
	for _, delim := range []string{"", "\n\n"} {
		n := 0
		err := EachLine([]byte("a\n\nb\n\nc"), []byte(delim), func([]byte, int) error { n++; return stop })
		if err != stop || n != 1 {
			t.Errorf("by %q: %v after %d calls", delim, err, n)
		}
	}
}
