// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// TestLogKeepsBothEnds holds the log to what it says of itself, at every moment and when closed.
func TestLogKeepsBothEnds(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		limit := rapid.IntRange(2, 60).Draw(t, "limit")
		half := limit / 2
		path := ""
		if rapid.Bool().Draw(t, "file") {
			path = filepath.Join(dir, fmt.Sprint(n))
		}
		l := NewLog(path, limit)
		var all []byte
		expect := func() []byte {
			first := half
			if path == "" {
				first = 0
			}
			first = min(first, len(all))
			rest := all[first:]
			left := len(rest) - half
			if left <= 0 {
				return all
			}
			return append(fmt.Appendf(append([]byte{}, all[:first]...), "\n[... %d bytes left out ...]\n", left), rest[left:]...)
		}
		for _, size := range rapid.SliceOfN(rapid.IntRange(0, 50), 0, 10).Draw(t, "writes") {
			p := make([]byte, size)
			for i := range p {
				p[i] = byte('a' + (len(all)+i)%26)
			}
			if m, err := l.Write(p); m != size || err != nil {
				t.Fatalf("write: %d, %v", m, err)
			}
			all = append(all, p...)
			if got := l.Bytes(); !bytes.Equal(got, expect()) {
				t.Fatalf("got %q, want %q", got, expect())
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if got := l.Bytes(); !bytes.Equal(got, expect()) {
			t.Fatalf("closed: got %q, want %q", got, expect())
		}
		if path == "" {
			return
		}
		if b, err := os.ReadFile(path); !bytes.Equal(b, expect()) || (err != nil) != (len(all) == 0) {
			t.Fatalf("the file has %q, %v", b, err)
		}
		_ = os.Remove(path)
		_, _ = l.Write([]byte("late"))
		if got := l.Bytes(); len(got) != 0 {
			t.Fatalf("after its end it took %q", got)
		}
	})
}

func TestLogWithoutFile(t *testing.T) {
	l := NewLog(filepath.Join(t.TempDir(), "none", "log"), 10)
	_, _ = l.Write([]byte("0123456789"))
	if got := string(l.Bytes()); got != "\n[... 5 bytes left out ...]\n56789" {
		t.Errorf("got %q", got)
	}
}

func TestLastWords(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"a\nb\nc\nd\n\n":           "b\nc\nd",
		"x\npanic: oh\na\nb\nc\nd": "panic: oh\na\nb",
		"SIGSEGV: segmentation violation\na\nb\nc\nd\ne": "SIGSEGV: segmentation violation\na\nb",
		"fatal error: all goroutines are asleep":         "fatal error: all goroutines are asleep",
		"no panic: here\nb\nc\nd":                        "b\nc\nd",
		"\xff\n":                                         "?",
		"0123456789012345678901234567890123456789abc":    "3456789012345678901234567890123456789abc",
	} {
		l := NewLog("", 0)
		_, _ = l.Write([]byte(text))
		if got := l.lastWords(3, 40); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
}
