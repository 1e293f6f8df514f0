// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func digestOf(b []byte) string {
	d := sha256.Sum256(b)
	return hex.EncodeToString(d[:])
}

func mustOpen(t testing.TB, dir string, limit int64) *Store {
	t.Helper()
	s, err := Open(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(s *Store, digest string, size int64, pieces ...[]byte) (err error) {
	w, err := s.Create(digest, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for _, p := range pieces {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return w.Commit()
}

func read(t testing.TB, s *Store, digest string, offset int64) []byte {
	t.Helper()
	r, _, err := s.Open(digest, offset)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	s := mustOpen(t, dir, 10)
	// SHA-256 of "abc", from FIPS 180-2.
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if err := put(s, abc, 3, []byte("a"), []byte("bc")); err != nil {
		t.Fatal(err)
	}
	empty := digestOf(nil)
	if err := put(s, empty, 0); err != nil {
		t.Fatal(err)
	}
	for digest, want := range map[string]string{abc: "abc", empty: ""} {
		if got := read(t, s, digest, 0); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
		if n, err := s.Size(digest); err != nil || n != int64(len(want)) {
			t.Errorf("size %d, %v", n, err)
		}
		if ok, err := s.Has(digest); !ok || err != nil {
			t.Errorf("has: %v, %v", ok, err)
		}
	}
	if got := read(t, s, abc, 2); string(got) != "c" {
		t.Errorf("from 2: %q", got)
	}
	other := digestOf([]byte("other"))
	if ok, err := s.Has(other); ok || err != nil {
		t.Errorf("has another: %v, %v", ok, err)
	}
	for name, tc := range map[string]struct{ got, want error }{
		"wrong":       {put(s, other, 3, []byte("abc")), ErrDigest},
		"short":       {put(s, abc, 3, []byte("ab")), ErrSize},
		"long":        {put(s, abc, 3, []byte("abcd")), ErrSize},
		"large":       {put(s, abc, 11), ErrSize},
		"negative":    {put(s, abc, -1), ErrSize},
		"upper case":  {put(s, strings.ToUpper(abc), 3, []byte("abc")), ErrDigest},
		"path":        {put(s, "../"+abc[3:], 3, []byte("abc")), ErrDigest},
		"nothing":     {put(s, "", 3, []byte("abc")), ErrDigest},
		"open":        {second(s.Open(other, 0)), ErrMissing},
		"open beyond": {second(s.Open(abc, 4)), ErrSize},
		"open before": {second(s.Open(abc, -1)), ErrSize},
		"open path":   {second(s.Open("/etc/passwd", 0)), ErrDigest},
	} {
		if !errors.Is(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", name, tc.got, tc.want)
		}
	}
	if got := files(t, dir); len(got) != 2 {
		t.Errorf("files: %q", got)
	}
}

func second[A, B any](_ A, _ B, err error) error { return err }

// What a writer that was killed has left goes when the store is opened.
func TestUnfinished(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, 0)
	w, err := s.Create(digestOf([]byte("abc")), 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("files: %q", got)
	}
	mustOpen(t, dir, 0)
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("files: %q", got)
	}
	_ = w.file.Close()
}

func TestCollect(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, 0)
	old, kept, asked, fresh := digestOf([]byte("old")), digestOf([]byte("kept")), digestOf([]byte("asked")), digestOf([]byte("fresh"))
	for _, b := range []string{"old", "kept", "asked", "fresh"} {
		if err := put(s, digestOf([]byte(b)), int64(len(b)), []byte(b)); err != nil {
			t.Fatal(err)
		}
		if b != "fresh" {
			then := time.Now().Add(-time.Hour)
			if err := os.Chtimes(s.path(digestOf([]byte(b))), then, then); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a note"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Has(asked); !ok || err != nil {
		t.Fatal(ok, err)
	}
	r, _, err := s.Open(old, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n, err := s.Collect(time.Now().Add(-time.Minute), func(d string) bool { return d == kept })
	if err != nil || n != 1 {
		t.Errorf("%d removed, %v", n, err)
	}
	for d, want := range map[string]bool{old: false, kept: true, asked: true, fresh: true} {
		if got, err := s.Has(d); got != want || err != nil {
			t.Errorf("%s: %v, %v", d, got, err)
		}
	}
	// Who has it open reads on.
	if b, err := io.ReadAll(r); err != nil || string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
}

// Many that store the same blob at once leave one.
func TestSameAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, 0)
	b := bytes.Repeat([]byte("x"), 1<<16)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := put(s, digestOf(b), int64(len(b)), b[:1000], b[1000:]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := files(t, dir); len(got) != 1 || !bytes.Equal(read(t, s, digestOf(b), 0), b) {
		t.Errorf("files: %q", got)
	}
}
