// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// A reader of a header must be able to tell where a file begins, with a byte
// order mark in front too.
func TestFirstBlockHasLineOne(t *testing.T) {
	for _, mark := range []string{"", "\xef\xbb\xbf"} {
		for _, size := range []int64{0, 1, 4} {
			path := filepath.Join(t.TempDir(), "a.csv")
			if err := os.WriteFile(path, []byte(mark+"k,v\na,1\nb,2\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := Discover(context.Background(), []string{path}, Options{SplitSize: size, Format: QuotedLines})
			if err != nil {
				t.Fatal(err)
			}
			first := 0
			for _, s := range p.Splits {
				r, err := p.Open(context.Background(), s)
				if err != nil {
					t.Fatal(err)
				}
				for {
					b, err := r.ReadBlock(nil)
					if err != nil {
						break
					}
					if b.Line == 1 {
						first++
						if string(b.Data[:4]) != "k,v\n" {
							t.Errorf("line 1 is %q", b.Data)
						}
					}
				}
				r.Close()
			}
			if first != 1 {
				t.Errorf("mark %q, split size %d: %d blocks begin at line 1", mark, size, first)
			}
		}
	}
}
