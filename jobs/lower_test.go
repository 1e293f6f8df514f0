// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestLowerASCII(t *testing.T) {
	for shift := range 9 {
		text := []byte(strings.Repeat("x", shift))
		want := slices.Clone(text)
		for b := range 256 {
			text = append(text, byte(b))
			if 'A' <= b && b <= 'Z' {
				b += 'a' - 'A'
			}
			want = append(want, byte(b))
		}
		if got := appendLowerASCII(nil, text); !slices.Equal(got, want) {
			t.Fatalf("shifted by %d: got %q", shift, got)
		}
	}
}

// TestLower compares with the definition: rune by rune, invalid bytes as they are.
func TestLower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(rapid.StringOf(rapid.SampledFrom([]rune("aZÄßİΣ日k\u212a.\ufffd"))).Draw(t, "text"))
		if len(text) > 2 && rapid.Bool().Draw(t, "invalid") {
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] = 0xFF
		}
		var want []byte
		for rest := text; len(rest) > 0; {
			r, n := utf8.DecodeRune(rest)
			if r == utf8.RuneError && n == 1 {
				want = append(want, rest[0])
			} else {
				want = utf8.AppendRune(want, unicode.ToLower(r))
			}
			rest = rest[n:]
		}
		if got := appendLower(nil, text); !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", text, got, want)
		}
		ascii := true
		for _, b := range text {
			ascii = ascii && b < 0x80
		}
		if isASCII(text) != ascii {
			t.Fatalf("%q: isASCII is %v", text, !ascii)
		}
	})
}

func TestLetters(t *testing.T) {
	for text, want := range map[string][]string{
		"":                          nil,
		"it's 'quoted' rock'n'roll": {"it's", "quoted", "rock'n'roll"},
		"a''b c' 'd ''":             {"a", "b", "c", "d"},
		"l’eau ’tis":                {"l’eau", "tis"},
		"x1y2 3":                    {"x", "y"},
		"e\u0301te\u0301 日本。語":      {"e\u0301te\u0301", "日本", "語"},
		"a\xffb\xc3":                {"a", "b"},
		"a'":                        {"a"},
		"a’":                        {"a"},
	} {
		var got []string
		s := letterScanner{data: []byte(text)}
		for start, end, ok := s.next(); ok; start, end, ok = s.next() {
			got = append(got, text[start:end])
		}
		if !slices.Equal(got, want) {
			t.Errorf("words of %q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzLetters(f *testing.F) {
	f.Add([]byte("it's l’eau \xff 日本"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := letterScanner{data: text}
		last := 0
		for start, end, ok := s.next(); ok; start, end, ok = s.next() {
			if start < last || end <= start || end > len(text) {
				t.Fatalf("word %d:%d after %d", start, end, last)
			}
			last = end
		}
	})
}
