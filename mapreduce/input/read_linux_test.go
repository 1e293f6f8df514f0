// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func fifo(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	return path
}

func TestNamedPipe(t *testing.T) {
	for _, packing := range append(packings, "") {
		path := fifo(t, "pipe")
		data := lines(20000, 7)
		packed := data
		if packing != "" {
			packed = pack(t, packing, data)
		}
		go func() {
			if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
				f.Write(packed)
				f.Close()
			}
		}()
		p := find(t, Options{}, path)
		got, err := content(p)
		if err != nil || got != string(data) {
			t.Errorf("%q: %d bytes, want %d: %v", packing, len(got), len(data), err)
		}
	}
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/p", 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a", []byte("a\n"))
	p := find(t, Options{}, dir)
	if names(p, dir) != "a" || len(p.Notes) != 1 {
		t.Errorf("a pipe in a directory: %q, %q", names(p, dir), p.Notes)
	}
}

// Cancelling ends the wait for a writer, for bytes, and for standard input.
func TestCancelWaiting(t *testing.T) {
	t.Run("no writer", func(t *testing.T) {
		p := find(t, Options{}, fifo(t, "p"))
		ctx, cancel := context.WithCancel(context.Background())
		r, err := p.Open(ctx, p.Splits[0])
		if err != nil {
			t.Fatal(err)
		}
		go cancel()
		if _, err := r.ReadBlock(nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		r.Close()
	})
	t.Run("silent writer", func(t *testing.T) {
		for _, begin := range []string{"", "one line\n", string(pack(t, "bzip2", lines(20000, 1))[:50000]), string(pack(t, "zstd", lines(200000, 1))[:500000])} {
			path := fifo(t, "p")
			w, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			p := find(t, Options{}, path)
			ctx, cancel := context.WithCancel(context.Background())
			r, err := p.Open(ctx, p.Splits[0])
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				w.WriteString(begin)
				cancel()
			}()
			for err == nil {
				_, err = r.ReadBlock(nil)
			}
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			r.Close()
		}
	})
	t.Run("standard input", func(t *testing.T) {
		in, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		defer w.Close()
		p := find(t, Options{Stdin: in}, "-")
		ctx, cancel := context.WithCancel(context.Background())
		r, err := p.Open(ctx, p.Splits[0])
		if err != nil {
			t.Fatal(err)
		}
		go cancel()
		if _, err := r.ReadBlock(nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		r.Close()
	})
}

func TestFilesWithoutSize(t *testing.T) {
	p := find(t, Options{}, "/proc/self/status", "/dev/null")
	got, err := content(p)
	if err != nil || len(got) < 100 || p.Files[0].Size != -1 || !p.Splits[0].Stream {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
