// SPDX-License-Identifier: Apache-2.0

package benchdata

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

func TestTemperatures(t *testing.T) {
	var a, b, other bytes.Buffer
	for _, c := range []struct {
		w    *bytes.Buffer
		seed uint64
	}{{&a, 7}, {&b, 7}, {&other, 8}} {
		if err := Temperatures(c.w, 40_000, 413, c.seed); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same seed made different rows")
	}
	if bytes.Equal(a.Bytes(), other.Bytes()) {
		t.Error("different seeds made the same rows")
	}
	row := regexp.MustCompile(`^[\pL]+( \pL+)?;-?\d{1,2}\.\d$`)
	stations := map[string]bool{}
	lines := bytes.Split(bytes.TrimSuffix(a.Bytes(), []byte("\n")), []byte("\n"))
	for _, l := range lines {
		if !row.Match(l) {
			t.Fatalf("row %q", l)
		}
		name, _, _ := bytes.Cut(l, []byte(";"))
		stations[string(name)] = true
	}
	if len(lines) != 40_000 || len(stations) != 413 {
		t.Errorf("%d rows of %d stations, want 40000 of 413", len(lines), len(stations))
	}
	if err := Temperatures(&a, 1, 0, 1); err == nil {
		t.Error("no error for no stations")
	}
}

func TestKeys(t *testing.T) {
	var a, b bytes.Buffer
	for _, w := range []*bytes.Buffer{&a, &b} {
		if err := Keys(w, 30_000, 1000, 3); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same seed made different lines")
	}
	key := regexp.MustCompile(`^user0000\d{3}$`)
	keys := map[string]int{}
	for _, l := range bytes.Split(bytes.TrimSuffix(a.Bytes(), []byte("\n")), []byte("\n")) {
		if !key.Match(l) {
			t.Fatalf("line %q", l)
		}
		keys[string(l)]++
	}
	if len(keys) != 1000 {
		t.Errorf("%d distinct keys, want 1000", len(keys))
	}
	for _, distinct := range []int{0, 10_000_001} {
		if err := Keys(&a, 1, distinct, 1); err == nil {
			t.Errorf("no error for %d distinct keys", distinct)
		}
	}
}

// TestBytesStayTheSame fails when a change of ours, or of Go's generators, makes
// other data than what docs/benchmarks.md was measured with.
func TestBytesStayTheSame(t *testing.T) {
	h := sha256.New()
	if err := errors.Join(Temperatures(h, 10_000, 413, 1), Keys(h, 10_000, 4_000_000, 1)); err != nil {
		t.Fatal(err)
	}
	const want = "c4d47b6ee33a309d538188cd6c21dbe9391189abe4d03ae68ad93b46736ba97e"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

func TestRepeat(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	for name, text := range map[string]string{one: "a\n", two: "b"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := Repeat(&b, 3, one, two); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "a\nba\nba\nb"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := Repeat(&b, 1, filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want one that is os.ErrNotExist", err)
	}
}

func TestWriteErrorEnds(t *testing.T) {
	if err := Temperatures(failing{}, 1_000_000, 5, 1); !errors.Is(err, errFull) {
		t.Errorf("Temperatures: %v", err)
	}
	if err := Keys(failing{}, 1_000_000, 5, 1); !errors.Is(err, errFull) {
		t.Errorf("Keys: %v", err)
	}
}

var errFull = errors.New("full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }
