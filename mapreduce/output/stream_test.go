// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestStreamOrder(t *testing.T) {
	for _, memory := range []int64{0, -1, 1, 3000} {
		for _, compression := range []string{NoCompression, Gzip, Zstd} {
			dir := t.TempDir()
			var w bytes.Buffer
			const parts = 5
			tx := begin(t, Stream(&w, StreamOptions{Format: CSV, Compression: compression, SpoolMemory: memory, SpoolDir: dir}), wordInfo(parts))
			want := "key,value\n"
			var wg sync.WaitGroup
			for i := range parts {
				if i == 2 {
					continue // never opened
				}
				var rows []Row
				for j := range 200 {
					word := fmt.Sprintf("word%d-%d", i, j)
					rows = append(rows, wordRow(word, int64(j)))
					want += fmt.Sprintf("%s,%d\n", word, j)
				}
				wg.Go(func() {
					if err := writePart(tx, i, rows...); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if w.Len() > 0 {
				t.Error("written before Commit")
			}
			must(t, tx.Commit(nil))
			must(t, tx.Abort())
			if got := decompress(t, w.Bytes(), compression); string(got) != want {
				t.Errorf("memory %d, %q: %d bytes, want %d", memory, compression, len(got), len(want))
			}
			same(t, dir, nil)
		}
	}
}

func TestStreamWithoutRows(t *testing.T) {
	var w bytes.Buffer
	tx := begin(t, Stream(&w, StreamOptions{Format: CSV}), wordInfo(3))
	must(t, tx.Commit(nil))
	if w.String() != "key,value\n" {
		t.Errorf("%q, want the header once", w.String())
	}
}

func TestStreamAbort(t *testing.T) {
	dir := t.TempDir()
	var w bytes.Buffer
	tx := begin(t, Stream(&w, StreamOptions{SpoolMemory: -1, SpoolDir: dir}), wordInfo(2))
	must(t, writePart(tx, 0, wordRow("a", 1)))
	open, err := tx.Part(1)
	must(t, err)
	must(t, tx.Abort())
	if err := tx.Commit(nil); !errors.Is(err, ErrState) {
		t.Errorf("Commit after Abort: %v", err)
	}
	if _, err := open.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("written to after Abort: %v", err)
	}
	if w.Len() > 0 {
		t.Error("something was written")
	}
	same(t, dir, nil)
}

type brokenPipe struct{ room int }

func (w *brokenPipe) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

func TestStreamWriterFails(t *testing.T) {
	for _, memory := range []int64{0, -1} {
		dir := t.TempDir()
		tx := begin(t, Stream(&brokenPipe{room: 5}, StreamOptions{SpoolMemory: memory, SpoolDir: dir}), wordInfo(1))
		must(t, writePart(tx, 0, wordRow("a long word", 1)))
		if err := tx.Commit(nil); !errors.Is(err, errDisk) {
			t.Errorf("commit: %v", err)
		}
		must(t, tx.Abort())
		same(t, dir, nil)
	}
	tx := begin(t, Stream(&brokenPipe{}, StreamOptions{SpoolMemory: -1, SpoolDir: filepath.Join(t.TempDir(), "missing")}), wordInfo(1))
	if err := writePart(tx, 0, wordRow("a", 1)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder for the spool: %v", err)
	}
	must(t, tx.Abort())
}

func TestStreamRefuses(t *testing.T) {
	var w bytes.Buffer
	for name, c := range map[string]struct {
		target Target
		parts  int
		want   error
	}{
		"parquet in parts": {Stream(&w, StreamOptions{Format: Parquet}), 2, ErrUnsupported},
		"compression":      {Stream(&w, StreamOptions{Compression: "rar"}), 1, ErrUnsupported},
		"no parts":         {Stream(&w, StreamOptions{}), 0, ErrState},
		"no writer":        {Stream(nil, StreamOptions{}), 1, ErrTarget},
	} {
		if _, err := c.target.Begin(wordInfo(c.parts)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestSpool: whatever the budget and the cuts, the bytes come out as they went
// in, and the memory is given back or kept within the budget.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(-1, 20_000).Draw(t, "budget")
		b := &budget{dir: dir}
		b.left.Store(limit)
		spools := make([]*spool, 3)
		want := make([][]byte, len(spools))
		for i := range spools {
			spools[i] = &spool{budget: b}
		}
		for n := range rapid.IntRange(0, 20).Draw(t, "writes") {
			i := rapid.IntRange(0, 2).Draw(t, "spool")
			p := bytes.Repeat([]byte{byte(n)}, rapid.IntRange(0, 5000).Draw(t, "size"))
			if got, err := spools[i].Write(p); got != len(p) || err != nil {
				t.Fatalf("wrote %d of %d: %v", got, len(p), err)
			}
			want[i] = append(want[i], p...)
		}
		var held int64
		for i, s := range spools {
			for _, c := range s.chunks {
				held += int64(cap(c))
			}
			var out bytes.Buffer
			if err := s.copyTo(&out); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), want[i]) {
				t.Fatalf("spool %d: %d bytes, want %d", i, out.Len(), len(want[i]))
			}
			if err := s.drop(); err != nil {
				t.Fatal(err)
			}
		}
		if held > max(limit, 0) || b.left.Load() != limit-held {
			t.Fatalf("%d bytes held, %d left of %d", held, b.left.Load(), limit)
		}
	})
	same(t, dir, nil)
}

func TestFunc(t *testing.T) {
	var mu sync.Mutex
	got := map[int][]string{}
	tx := begin(t, Func(func(part int, r *Row) error {
		mu.Lock()
		defer mu.Unlock()
		got[part] = append(got[part], string(r.Keys[0].B))
		return nil
	}), wordInfo(3))
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			if err := writePart(tx, i, wordRow("a", 1), wordRow("b", 2)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must(t, tx.Commit(nil))
	must(t, tx.Abort())
	if fmt.Sprint(got) != "map[0:[a b] 1:[a b]]" {
		t.Errorf("rows %v", got)
	}
}

func TestFuncFails(t *testing.T) {
	for name, fn := range map[string]func(int, *Row) error{
		"error": func(int, *Row) error { return errDisk },
		"panic": func(int, *Row) error { panic("the disk is broken") },
	} {
		tx := begin(t, Func(fn), wordInfo(2))
		if err := writePart(tx, 1, wordRow("a", 1)); err == nil || !strings.Contains(err.Error(), "part 1") || !strings.Contains(err.Error(), "the disk is broken") {
			t.Errorf("%s: %v", name, err)
		}
		if err := tx.Commit(nil); err == nil {
			t.Errorf("%s: committed", name)
		}
		must(t, tx.Abort())
	}
	if _, err := Func(nil).Begin(wordInfo(1)); err == nil {
		t.Error("no function: accepted")
	}
}
