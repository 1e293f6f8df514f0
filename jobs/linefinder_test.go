// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"regexp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func foundLines(f *lineFinder, data string) []string {
	var lines []string
	f.find([]byte(data), func(start, end int) { lines = append(lines, data[start:end]) })
	return lines
}

func TestLineFinder(t *testing.T) {
	const text = "an error here\r\nnothing\n\nerror\nERROR at the end\nlast error"
	for _, c := range []struct {
		pattern string
		invert  bool
		want    []string
	}{
		{"error", false, []string{"an error here", "error", "last error"}},
		{"error", true, []string{"nothing", "", "ERROR at the end"}},
		{"(?i)error", false, []string{"an error here", "error", "ERROR at the end", "last error"}},
		{"^error$", false, []string{"error"}},
		{"here$", false, []string{"an error here"}},
		{"e\nE", false, nil},
		{"(at|an) (the|er+or)", false, []string{"an error here", "ERROR at the end"}},
		{"", false, []string{"an error here", "nothing", "", "error", "ERROR at the end", "last error"}},
		{"^$", false, []string{""}},
		{"^$", true, []string{"an error here", "nothing", "error", "ERROR at the end", "last error"}},
	} {
		f := newLineFinder(regexp.MustCompile(c.pattern), c.invert, recordCutter{})
		if got := foundLines(f, text); !slices.Equal(got, c.want) {
			t.Errorf("lines with %q (inverted: %v): got %q, want %q", c.pattern, c.invert, got, c.want)
		}
	}
}

func TestRequiredLiteral(t *testing.T) {
	for pattern, want := range map[string]string{
		"abc":             "abc",
		"a.*longest.*b":   "longest",
		"(foo)+x?":        "foo",
		"foo|bar":         "",
		"(?i)foo":         "",
		"x*":              "",
		`\d+ error: (.*)`: " error: ",
		"(ab){2,3}":       "ab",
		"^GET /index$":    "GET /index",
		"a(?i)b(?-i)cde":  "cde",
	} {
		if got := string(newLineFinder(regexp.MustCompile(pattern), false, recordCutter{}).literal); got != want {
			t.Errorf("literal of %q: %q, want %q", pattern, got, want)
		}
	}
}

// TestLineFinderAgreesWithPlainLoop compares the search by literal with asking
// the expression about each line.
func TestLineFinderAgreesWithPlainLoop(t *testing.T) {
	patterns := []string{"a", "ab", "a.*b", "^ab", "b$", "a+b", "ab|ba", "(ab)+", "b\ra", "\n", "aba", "a,b"}
	delimiters := []string{"", "\n", ",", "a", "\r\n", ",,"}
	rapid.Check(t, func(t *rapid.T) {
		re := regexp.MustCompile(rapid.SampledFrom(patterns).Draw(t, "pattern"))
		cut := recordCutter{[]byte(rapid.SampledFrom(delimiters).Draw(t, "delimiter"))}
		invert := rapid.Bool().Draw(t, "invert")
		data := rapid.StringOf(rapid.SampledFrom([]rune("ab,\r\n"))).Draw(t, "data")
		var want []string
		for rest := []byte(data); len(rest) > 0; {
			var record []byte
			record, rest = cut.next(rest)
			if re.Match(record) != invert {
				want = append(want, string(record))
			}
		}
		if got := foundLines(newLineFinder(re, invert, cut), data); !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
