// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A file that is replaced or rewritten between planning and reading must not
// give a mixture of both; one that grows is read as it was.
func TestChangedFiles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string) error
		err    string
	}{
		"replaced": {func(path string) error {
			other := path + ".new"
			return errors.Join(os.WriteFile(other, []byte("bbbb\nbbbb\n"), 0o600), os.Rename(other, path))
		}, "replaced"},
		"rewritten": {func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("bbbb\nbbbb\n"), 0o600), os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)))
		}, "changed"},
		"grown": {func(path string) error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("more\n")
			return errors.Join(err, f.Close())
		}, ""},
	} {
		for _, split := range []int64{0, 3} {
			path := filepath.Join(t.TempDir(), "a.txt")
			if err := os.WriteFile(path, []byte("aaaa\naaaa\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := Discover(context.Background(), []string{path}, Options{SplitSize: split})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(path); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			var failed error
			for _, s := range p.Splits {
				r, err := p.Open(context.Background(), s)
				for err == nil {
					var b Block
					if b, err = r.ReadBlock(nil); err == nil {
						got.Write(b.Data)
					}
				}
				if r != nil {
					r.Close()
				}
				if !errors.Is(err, io.EOF) && failed == nil {
					failed = err
				}
			}
			if c.err == "" && (failed != nil || got.String() != "aaaa\naaaa\n") {
				t.Errorf("%s, split %d: %q, %v", name, split, got.String(), failed)
			}
			if c.err != "" && (failed == nil || !strings.Contains(failed.Error(), c.err) || !strings.Contains(failed.Error(), path)) {
				t.Errorf("%s, split %d: %q, %v", name, split, got.String(), failed)
			}
		}
	}
}
