// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode"
	"unicode/utf8"
)

// plainWords is the definition that the tokenizer must agree with.
func plainWords(data []byte) []string {
	var words []string
	start := -1
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if unicode.IsSpace(r) {
			if start >= 0 {
				words = append(words, string(data[start:i]))
				start = -1
			}
		} else if start < 0 {
			start = i
		}
		i += n
	}
	if start >= 0 {
		words = append(words, string(data[start:]))
	}
	return words
}

func fastWords(data []byte) []string {
	var words []string
	var edges edgeBuffer
	t := newTokenizer(data)
	for n := t.next(&edges); n > 0; n = t.next(&edges) {
		for i := 0; i < n; i += 2 {
			words = append(words, string(data[edges[i]:edges[i+1]]))
		}
	}
	return words
}

func checkWords(t *testing.T, data []byte) {
	t.Helper()
	if got, want := fastWords(data), plainWords(data); !slices.Equal(got, want) {
		t.Fatalf("words of %q:\n got %q\nwant %q", data, got, want)
	}
}

func TestTokenizerByHand(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{" \n\t", nil},
		{"a", []string{"a"}},
		{"a b\nc", []string{"a", "b", "c"}},
		{"one\rtwo\vthree\ffour", []string{"one", "two", "three", "four"}},
		{"a\u00a0b\u2003c\u3000d\u0085e f\u200bg\n", []string{"a", "b", "c", "d", "e", "f\u200bg"}},
		{"x\x85y \xa0 a\xff\xc2 \xe2\x80", []string{"x\x85y", "\xa0", "a\xff\xc2", "\xe2\x80"}},
		{"a\x00b\x08c\x0ed\x1fe!f", []string{"a\x00b\x08c\x0ed\x1fe!f"}},
	} {
		if got := fastWords([]byte(c.in)); !slices.Equal(got, c.want) {
			t.Errorf("words of %q: got %q, want %q", c.in, got, c.want)
		}
	}
}

// TestTokenizerEveryRune puts every rune and every byte between two words, at
// every place within a stretch of 64 bytes for those near white space.
func TestTokenizerEveryRune(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		checkWords(t, append(utf8.AppendRune([]byte("a"), r), 'b'))
	}
	special := []string{
		"\u0085", "\u00a0", "\u1680", "\u2000", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000",
		"\x85", "\xc2", "\xc2\xc2\x85", "\xe2\x80", "\xe2\x80\xe2\x80\x80", "\xe1\x9a", "\xe3\x80", "\xf0\x80\x80\x80", "é", "\t", "\x00",
	}
	for _, s := range special {
		for before := range 130 {
			for after := range 3 {
				data := append(bytes.Repeat([]byte("x"), before), s...)
				checkWords(t, append(data, bytes.Repeat([]byte("y"), after)...))
			}
		}
	}
	for b := range 256 {
		for before := range 9 {
			data := append(bytes.Repeat([]byte("x"), before), byte(b), 'y')
			checkWords(t, data)
		}
	}
}

func TestTokenizerRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := []string{
		" ", "\n", "\r\n", "a", "bc", "word", "\u00a0", "\u2003", "\u3000", "\u0085", "\xc2", "\x85", "\xe2", "\x80", "é", "日本", "\xff",
		"a very long word without any spaces in it, such as this-one-that-goes-on-and-on-beyond-sixty-four-bytes-for-sure",
	}
	for range 3000 {
		var data []byte
		for range rng.IntN(400) {
			data = append(data, pieces[rng.IntN(len(pieces))]...)
		}
		checkWords(t, data)
	}
	// More edges than the buffer has room for, at every phase.
	for phase := range 70 {
		data := append(bytes.Repeat([]byte("w"), phase), bytes.Repeat([]byte("a "), 5000)...)
		checkWords(t, data)
		checkWords(t, data[:len(data)-1])
	}
}

func FuzzTokenizer(f *testing.F) {
	f.Add([]byte("a b\u2003c\xff \xc2\x85"))
	f.Fuzz(func(t *testing.T, data []byte) { checkWords(t, data) })
}

func benchmarkText(b *testing.B) []byte {
	if path := os.Getenv("QUERN_BENCH_TEXT"); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		return data
	}
	src, err := filepath.Glob("*.go")
	if err != nil {
		b.Fatal(err)
	}
	var data []byte
	for len(data) < 1<<22 {
		for _, name := range src {
			text, err := os.ReadFile(name)
			if err != nil {
				b.Fatal(err)
			}
			data = append(data, text...)
		}
	}
	return data
}

func BenchmarkTokenizer(b *testing.B) {
	data := benchmarkText(b)
	b.SetBytes(int64(len(data)))
	var edges edgeBuffer
	sum := 0
	for b.Loop() {
		t := newTokenizer(data)
		for n := t.next(&edges); n > 0; n = t.next(&edges) {
			for i := 0; i < n; i += 2 {
				sum += edges[i+1] - edges[i]
			}
		}
	}
	_ = sum
}
