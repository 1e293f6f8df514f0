// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func TestRunGivesBackWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		pairs := somePairs(3).Draw(t, "pairs")
		slices.SortFunc(pairs, comparePairs)
		written := writeRun(t, runPath(freshDir(t, dir), "run"), someOptions().Draw(t, "options"), pairs)
		defer written.Remove()
		reopened, err := Open(written.Path())
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		defer reopened.Close()
		lo, hi := someBound(t, "lo"), someBound(t, "hi")
		for _, r := range []*Run{written, reopened} {
			if r.Pairs() != int64(len(pairs)) {
				t.Fatalf("%d pairs, want %d", r.Pairs(), len(pairs))
			}
			for part := range 4 {
				mustEqual(t, "all", mustDrain(t, r.Cursor(part, nil, nil), part), inRange(pairs, part, nil, nil))
				mustEqual(t, "range", mustDrain(t, r.Cursor(part, lo, hi), part), inRange(pairs, part, lo, hi))
				// Ranges between borders taken from the run make up the whole.
				borders := append(slices.Clone(r.FirstKeys(part)), nil)
				var parts []pair
				var from []byte
				for _, b := range borders {
					parts = append(parts, mustDrain(t, r.Cursor(part, from, b), part)...)
					if from = b; from == nil {
						break
					}
				}
				mustEqual(t, "ranges", parts, inRange(pairs, part, nil, nil))
			}
		}
	})
}

func TestPairsOfAnySize(t *testing.T) {
	noise := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(noise)
	zeros := strings.Repeat("\x00", 1<<20)
	pairs := []pair{
		{0, "", ""},
		{0, "", string(noise)},
		{0, "", zeros},
		{0, "a", ""},
		{0, "a", zeros},
		{0, zeros, "1"},
		{0, zeros + "\x00", "2"},
		{0, zeros + "\x00\x01", "3"},
		{0, zeros + "\x01", zeros},
		{0, string(noise), "x"},
		{0, string(noise) + "y", string(noise)},
		{0, string(noise) + "yy", ""},
		{7, "a", "b"},
		{7, "a", "b"},
		{70000, zeros, zeros},
		{1<<31 - 1, "", ""},
	}
	slices.SortFunc(pairs, comparePairs)
	for _, c := range []Compression{S2, Zstd, None} {
		r := writeRun(t, runPath(t.TempDir(), "run"), Options{Compression: c}, pairs)
		for _, part := range r.Parts() {
			mustEqual(t, c.String(), mustDrain(t, r.Cursor(part, nil, nil), part), inRange(pairs, part, nil, nil))
			for i, p := range inRange(pairs, part, nil, nil) {
				if c != S2 || i%3 != 0 {
					continue // megabytes take their time
				}
				k := []byte(p.key)
				mustEqual(t, c.String(), mustDrain(t, r.Cursor(part, k, nil), part), inRange(pairs, part, k, nil))
				mustEqual(t, c.String(), mustDrain(t, r.Cursor(part, nil, k), part), inRange(pairs, part, nil, k))
			}
			m := NewMerger([]Cursor{r.Cursor(part, nil, nil), r.Cursor(part, nil, nil)})
			twice := append(inRange(pairs, part, nil, nil), inRange(pairs, part, nil, nil)...)
			slices.SortStableFunc(twice, comparePairs)
			mustEqual(t, c.String()+" merged", mustDrain(t, m, part), twice)
		}
		if r.IndexMemory() > 64<<10 {
			t.Errorf("index takes %d bytes: keys are not cut", r.IndexMemory())
		}
		if err := r.Remove(); err != nil {
			t.Error(err)
		}
	}
}

func TestEmptyRun(t *testing.T) {
	r := writeRun(t, runPath(t.TempDir(), "run"), Options{}, nil)
	defer r.Remove()
	again, err := Open(r.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, r := range []*Run{r, again} {
		if r.Pairs() != 0 || len(r.Parts()) != 0 || len(r.FirstKeys(0)) != 0 {
			t.Errorf("pairs %d, parts %v", r.Pairs(), r.Parts())
		}
		mustEqual(t, "empty", mustDrain(t, r.Cursor(0, nil, nil), 0), nil)
		mustEqual(t, "part that cannot be", mustDrain(t, r.Cursor(-1, nil, nil), 0), nil)
	}
}

func TestBlocksKeepTheirSize(t *testing.T) {
	w, err := Create(runPath(t.TempDir(), "run"), Options{BlockSize: 1000, Compression: None})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := w.Append(0, fmt.Appendf(nil, "%06d", i), bytes.Repeat([]byte{1}, i%90)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Remove()
	for _, b := range r.index.blocks {
		if b.raw > 1000 {
			t.Errorf("a block of %d bytes", b.raw)
		}
	}
	if got, limit := r.CursorMemory(), CursorMemory(1000); got > limit {
		t.Errorf("cursor takes %d, more than %d", got, limit)
	}
	info, err := os.Stat(r.Path())
	if err != nil || info.Size() != r.Bytes() || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v; Bytes %d", info, err, r.Bytes())
	}
	if r.PartPairs(0) != 1000 || r.PartPairs(1) != 0 || r.PartBytes(0) < 40_000 {
		t.Errorf("part: %d pairs, %d bytes", r.PartPairs(0), r.PartBytes(0))
	}
}

func TestWriterRefusesDisorder(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second pair
		bad           bool
	}{
		{"equal", pair{1, "b", "x"}, pair{1, "b", "x"}, false},
		{"key goes back", pair{1, "b", "x"}, pair{1, "a", "y"}, true},
		{"key becomes shorter", pair{1, "bb", "x"}, pair{1, "b", "y"}, true},
		{"key becomes empty", pair{1, "b", "x"}, pair{1, "", "y"}, true},
		{"part goes back", pair{1, "b", "x"}, pair{0, "c", "y"}, true},
		{"key goes back in the next part", pair{1, "b", "x"}, pair{2, "a", "y"}, false},
		{"negative part", pair{0, "b", "x"}, pair{-1, "a", "y"}, true},
		{"payload goes back", pair{1, "b", "x"}, pair{1, "b", "w"}, invariants},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := Create(runPath(t.TempDir(), "run"), Options{BlockSize: 1})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Append(c.first.part, []byte(c.first.key), []byte(c.first.payload)); err != nil {
				t.Fatal(err)
			}
			err = w.Append(c.second.part, []byte(c.second.key), []byte(c.second.payload))
			if (err != nil) != c.bad {
				t.Fatalf("error %v, expected one: %v", err, c.bad)
			}
			if r, err := w.Close(); (err != nil) != c.bad {
				t.Errorf("close: %v", err)
			} else if r != nil {
				r.Remove()
			}
			if _, err := os.Stat(w.path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("file is still there: %v", err)
			}
		})
	}
}

func TestFilesComeAndGo(t *testing.T) {
	before := openFiles(t)
	dir := t.TempDir()
	path := runPath(dir, "run")
	w, err := Create(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second run of that name: %v", err)
	}
	w.Append(0, []byte("k"), nil)
	w.Abort()
	w.Abort()
	if err := w.Append(0, nil, nil); err == nil {
		t.Error("append after abort")
	}
	if _, err := w.Close(); err == nil {
		t.Error("close after abort")
	}
	r := writeRun(t, path, Options{}, []pair{{0, "k", "v"}})
	c := r.Cursor(0, nil, nil)
	if err := r.Remove(); err != nil {
		t.Error(err)
	}
	if c.Next() || c.Err() == nil {
		t.Errorf("a cursor of a removed run: %v", c.Err())
	}
	c.Close()
	if err := r.Remove(); err != nil {
		t.Error(err)
	}
	r = writeRun(t, path, Options{}, nil)
	os.Remove(path)
	if err := r.Remove(); err != nil {
		t.Errorf("file was gone: %v", err)
	}
	if _, err := Open(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open: %v", err)
	}
	for _, o := range []Options{{BlockSize: -1}, {BlockSize: maxBlockSize + 1}, {Compression: 9}} {
		if _, err := Create(path, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open, before %d", after, before)
	}
}

// fullDisk takes some bytes, then no more.
type fullDisk struct {
	room int
	err  error
}

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) > d.room {
		return d.room, d.err
	}
	d.room -= len(b)
	return len(b), nil
}

func TestDiskFull(t *testing.T) {
	for _, room := range []int{0, 1000, 5000} {
		path := runPath(t.TempDir(), "run")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w := newWriter(path, Options{BlockSize: 500, Compression: None}, f, &fullDisk{room, &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}})
		for i := 0; i < 5000 && err == nil; i++ {
			err = w.Append(0, fmt.Appendf(nil, "%08d", i), nil)
		}
		if room < 5000 && err == nil {
			t.Error("no error")
		}
		_, err = w.Close()
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "--spill-dir") {
			t.Errorf("error: %v", err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("file is still there: %v", err)
		}
	}
}

func TestCursorsOfOneRunAtOnce(t *testing.T) {
	var pairs []pair
	for i := range 3000 {
		pairs = append(pairs, pair{0, fmt.Sprintf("%05d", i/3), fmt.Sprint(i % 3)})
	}
	r := writeRun(t, runPath(t.TempDir(), "run"), Options{BlockSize: 400}, pairs)
	defer r.Remove()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			lo, hi := fmt.Appendf(nil, "%05d", g*50), fmt.Appendf(nil, "%05d", 1000-g*50)
			got, err := drain(r.Cursor(0, lo, hi), 0)
			if err != nil || !slices.Equal(got, inRange(pairs, 0, lo, hi)) {
				t.Errorf("goroutine %d: %d pairs, %v", g, len(got), err)
			}
		})
	}
	wg.Wait()
}

func TestReadingDoesNotAllocatePerPair(t *testing.T) {
	var pairs []pair
	for i := range 20000 {
		pairs = append(pairs, pair{0, fmt.Sprintf("key-%07d", i), "payload"})
	}
	r := writeRun(t, runPath(t.TempDir(), "run"), Options{}, pairs)
	defer r.Remove()
	allocs := testing.AllocsPerRun(5, func() {
		m := NewMerger([]Cursor{r.Cursor(0, nil, nil), r.Cursor(0, nil, nil), r.Cursor(0, nil, nil)})
		n := 0
		for m.Next() {
			n += len(m.Key())
		}
		if m.Err() != nil || n != 3*20000*11 {
			t.Fatal(n, m.Err())
		}
		m.Close()
	})
	if allocs > 200 {
		t.Errorf("%v allocations for 60000 pairs", allocs)
	}
}
