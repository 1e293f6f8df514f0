// SPDX-License-Identifier: Apache-2.0

package input

import (
	"testing"

	"github.com/bmatcuk/doublestar/v4"
)

// Any bytes, delimiter, split and block size: the records are those of the model.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("a\nb\r\n\nc"), "", false, 3, 2)
	f.Add([]byte("\xef\xbb\xbfa--b---c"), "--", false, 2, 1)
	f.Add([]byte("a,\"x\ny\"\r\nb,\"\"\"\n\"\n"), "", true, 4, 3)
	f.Fuzz(func(t *testing.T, data []byte, delim string, quoted bool, split, block int) {
		if len(data) > 2000 || len(delim) > 20 || split < 1 || block < 1 || block > 5000 || isUTF16(data) {
			return
		}
		o := Options{Delimiter: []byte(delim), SplitSize: int64(split)}
		if quoted {
			delim = ""
			o.Delimiter, o.Format = nil, QuotedLines
		}
		p := planFor(t, data, o, block)
		got, _, _, err := readPlan(p, delim, quoted)
		if err != nil {
			t.Fatal(err)
		}
		if want := model(data, delim, quoted); !same(got, want) {
			t.Fatalf("%q by %q split %d block %d:\n got %v\nwant %v", data, delim, split, block, got, want)
		}
	})
}

// What a glob rules out by its parts, the whole pattern does not match either.
func FuzzGlob(f *testing.F) {
	f.Add("a*/**/b?", "ax/c/b1")
	f.Add("{a,b/c}/*", "b/c/d")
	f.Add("\\*/[a-c]", "*/b")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if len(pattern) > 40 || len(path) > 40 || !doublestar.ValidatePattern(pattern) {
			return
		}
		g := newGlob(pattern)
		if !g.match(path) {
			return
		}
		for i := 1; i < len(path); i++ {
			if path[i] == '/' && path[i-1] != '/' && path[0] != '/' && !g.below(path[:i]) && !g.match(path[:i]) {
				t.Fatalf("%q matches %q but nothing below %q", pattern, path, path[:i])
			}
		}
	})
}
