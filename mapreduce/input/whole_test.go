// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/internal/objectlab"
)

// readWhole finds files and reads them.
func readWhole(opt Options, patterns ...string) (*Whole, []byte, error) {
	w, err := FindWhole(context.Background(), patterns, opt)
	if err != nil {
		return nil, nil, err
	}
	r := w.Open(context.Background())
	b, err := io.ReadAll(r)
	return w, b, errors.Join(err, r.Close())
}

// What is read is what was packed, whatever with, in the order in which it was asked for.
func TestWhole(t *testing.T) {
	dir := t.TempDir()
	var want []byte
	var names []string
	for i, name := range []string{"gzip", "zstd", "", "bzip2", "xz", "s2", "snappy", "lz4"} {
		text := lines(3000*i, uint64(i))
		want = append(want, text...)
		if name != "" {
			text = pack(t, name, text)
		}
		names = append(names, write(t, dir, string(rune('a'+i)), text))
	}
	large := bytes.Repeat([]byte("\x00\xff\xfe\n"), 3<<20) // no text, and enough for several goroutines
	for _, c := range []struct {
		name     string
		patterns []string
		opt      Options
		want     []byte
		size     int64
	}{
		{name: "named", patterns: names, want: want, size: -1},
		{name: "pattern", patterns: []string{filepath.Join(dir, "?")}, want: want, size: -1},
		{name: "folder", patterns: []string{dir}, want: want, size: -1},
		{name: "nothing", want: []byte{}},
		{name: "one", patterns: names[2:3], want: lines(6000, 2), size: int64(len(lines(6000, 2)))},
		{name: "empty", patterns: []string{write(t, t.TempDir(), "x", nil)}, want: []byte{}},
		{name: "UTF-16", patterns: []string{write(t, t.TempDir(), "x", []byte("\xff\xfea\x00"))}, want: []byte("\xff\xfea\x00"), size: 4},
		{name: "Parquet", patterns: []string{write(t, t.TempDir(), "x", []byte("PAR1....PAR1"))}, want: []byte("PAR1....PAR1"), size: 12},
		{name: "large", patterns: []string{write(t, t.TempDir(), "x", pack(t, "zstd", large))}, want: large, size: -1},
		{name: "upload", patterns: []string{"no/such"}, opt: Options{Uploads: map[string]string{"no/such": names[0], "other": names[1]}}, want: []byte{}, size: -1},
		// Records are not looked for, so what says what they are does not matter.
		{name: "options", patterns: names[2:3], opt: Options{Encoding: "utf-16", Format: Parquet, MaxLine: 1, AllowEmpty: true}, want: lines(6000, 2), size: int64(len(lines(6000, 2)))},
	} {
		w, got, err := readWhole(c.opt, c.patterns...)
		if err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %d bytes of %d, %v", c.name, len(got), len(c.want), err)
		} else if w.Size() != c.size || w.Once() != "" || len(w.Notes()) != 0 {
			t.Errorf("%s: size %d, once %q, notes %q", c.name, w.Size(), w.Once(), w.Notes())
		}
	}
	w, _, err := readWhole(Options{}, names[3], names[0])
	if err != nil || !slices.Equal(w.Paths(), []string{names[3], names[0]}) {
		t.Errorf("%v, %v", w, err)
	}
}

func TestWholeErrors(t *testing.T) {
	dir := t.TempDir()
	cut := pack(t, "gzip", lines(1000, 1))
	for name, c := range map[string]struct {
		pattern, want string
		is            error
	}{
		"missing":  {pattern: filepath.Join(dir, "none"), want: "none does not exist; check the name: ", is: fs.ErrNotExist},
		"no match": {pattern: filepath.Join(dir, "none*"), want: "none* matches no file; check the name: ", is: fs.ErrNotExist},
		"empty":    {pattern: filepath.Dir(write(t, dir, "e/.x", nil)), want: "holds no file to read", is: fs.ErrNotExist},
		"stdin":    {pattern: "/dev/stdin", want: "standard input"},
		"no name":  {pattern: "", want: "an empty name"},
		"cut off":  {pattern: write(t, dir, "cut", cut[:len(cut)/2]), want: "cut: the gzip data is cut off", is: io.ErrUnexpectedEOF},
	} {
		_, _, err := readWhole(Options{AllowEmpty: true}, c.pattern)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) || strings.Contains(err.Error(), "allow-empty") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that changes between being found and being read is an error, and a reader that is closed or
// whose context is done reads no more.
func TestWholeEnds(t *testing.T) {
	path := write(t, t.TempDir(), "x", lines(100, 1))
	w, err := FindWhole(context.Background(), []string{path}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	one := make([]byte, 1)
	for name, end := range map[string]func(r io.ReadCloser){
		"closed":   func(r io.ReadCloser) { _ = r.Close() },
		"canceled": func(io.ReadCloser) { cancel() },
	} {
		r := w.Open(ctx)
		if n, err := r.Read(one); n != 1 && ctx.Err() == nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		end(r)
		if n, err := r.Read(one); n != 0 || err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		_ = r.Close()
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(w.Open(context.Background())); err == nil || !strings.Contains(err.Error(), "shrank") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(os.DevNull); err != nil {
		return
	}
	if w, err := FindWhole(context.Background(), []string{os.DevNull}, Options{}); err != nil || w.Once() != os.DevNull || w.Size() != -1 {
		t.Errorf("%+v, %v", w, err)
	}
}

// Objects are read like files, and again where the way to them fails.
func TestWholeObjects(t *testing.T) {
	s := objectlab.Start(t, "box")
	a, b := lines(40_000, 1), lines(500, 2)
	putObject(t, "s3://box/in/a", a)
	putObject(t, "s3://box/in/b.zst", pack(t, "zstd", b))
	s.Proxy.Set(func(n int, r *http.Request) objectlab.Fault {
		if r.Method == http.MethodGet && n%4 == 3 {
			return objectlab.Fault{Cut: 10_000}
		}
		return objectlab.Fault{}
	})
	w, got, err := readWhole(Options{}, "s3://box/in/b.zst", "s3://box/in")
	if err != nil || !bytes.Equal(got, slices.Concat(b, a, b)) || w.Size() != -1 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, _, err := readWhole(Options{}, "s3://box/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
