// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a pair of the model.
type pair struct {
	part         int
	key, payload string
}

func comparePairs(a, b pair) int {
	return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.key, b.key), cmp.Compare(a.payload, b.payload))
}

func compareKeys(a, b pair) int {
	return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.key, b.key))
}

type pairSource []pair

func (s pairSource) Len() int                     { return len(s) }
func (s pairSource) At(i int) ([]byte, []byte)    { return []byte(s[i].key), []byte(s[i].payload) }
func (s pairSource) rangeOf(lo, hi []byte) []pair { return inRange(s, 0, lo, hi) }

// plainCursor is a Cursor as somebody else might write one: it reuses its memory.
type plainCursor struct {
	pairs        []pair
	key, payload []byte
	err          error
	closed       bool
}

func (c *plainCursor) Next() bool {
	for i := range c.key {
		c.key[i] = '!'
	}
	if len(c.pairs) == 0 {
		return false
	}
	c.key = append(c.key[:0], c.pairs[0].key...)
	c.payload = append(c.payload[:0], c.pairs[0].payload...)
	c.pairs = c.pairs[1:]
	return true
}
func (c *plainCursor) Key() []byte     { return c.key }
func (c *plainCursor) Payload() []byte { return c.payload }
func (c *plainCursor) Err() error      { return c.err }
func (c *plainCursor) Close()          { c.closed = true }

// inRange is what a cursor over sorted pairs must yield.
func inRange(pairs []pair, part int, lo, hi []byte) []pair {
	var out []pair
	for _, p := range pairs {
		if p.part == part && (lo == nil || p.key >= string(lo)) && (hi == nil || p.key < string(hi)) {
			out = append(out, p)
		}
	}
	return out
}

type failer interface {
	Helper()
	Fatalf(string, ...any)
}

func writeRun(t failer, path string, opt Options, pairs []pair) *Run {
	t.Helper()
	w, err := Create(path, opt)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	for _, p := range pairs {
		if err := w.Append(p.part, []byte(p.key), []byte(p.payload)); err != nil {
			t.Fatalf("append %.50q: %v", p.key, err)
		}
	}
	r, err := w.Close()
	if err != nil {
		t.Fatalf("close: %v", err)
	}
	return r
}

// drain reads a cursor to its end and closes it.
func drain(c Cursor, part int) ([]pair, error) {
	defer c.Close()
	var out []pair
	for c.Next() {
		out = append(out, pair{part, string(c.Key()), string(c.Payload())})
	}
	if c.Next() {
		panic("cursor went on after its end")
	}
	return out, c.Err()
}

func mustDrain(t failer, c Cursor, part int) []pair {
	t.Helper()
	got, err := drain(c, part)
	if err != nil {
		t.Fatalf("cursor: %v", err)
	}
	return got
}

func mustEqual(t failer, what string, got, want []pair) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("%s: %d pairs, want %d; the first difference is at %d: %s, want %s", what, len(got), len(want), i, show(got, i), show(want, i))
		}
	}
}

func show(pairs []pair, i int) string {
	if i >= len(pairs) {
		return "none"
	}
	return fmt.Sprintf("%d %.100q=%.100q", pairs[i].part, pairs[i].key, pairs[i].payload)
}

// keys is a generator of keys that share much with each other: few letters, NULs,
// 0xFFs, lengths around the columns of codes.
func keys() *rapid.Generator[string] {
	letters := []byte{0, 0, 'a', 'b', 0xFF}
	short := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom(letters), 0, 14).Draw(t, "letters"))
	})
	long := rapid.Custom(func(t *rapid.T) string {
		n := rapid.SampledFrom([]int{5, 6, 7, 12, 16, 17, 127, 128, 255, 256, 257, 300}).Draw(t, "length")
		return string(bytes.Repeat([]byte{rapid.SampledFrom(letters).Draw(t, "letter")}, n)) + short.Draw(t, "tail")
	})
	return rapid.OneOf(short, short, short, long)
}

func somePairs(maxParts int) *rapid.Generator[[]pair] {
	one := rapid.Custom(func(t *rapid.T) pair {
		return pair{rapid.IntRange(0, maxParts-1).Draw(t, "part"), keys().Draw(t, "key"), keys().Draw(t, "payload")}
	})
	return rapid.SliceOfN(one, 0, 60)
}

func someOptions() *rapid.Generator[Options] {
	return rapid.Custom(func(t *rapid.T) Options {
		return Options{
			BlockSize:   rapid.SampledFrom([]int{0, 1, 40, 100, 1000}).Draw(t, "block size"),
			Compression: rapid.SampledFrom([]Compression{S2, Zstd, None}).Draw(t, "compression"),
		}
	})
}

func someBound(t *rapid.T, name string) []byte {
	if rapid.Bool().Draw(t, name+" is open") {
		return nil
	}
	return []byte(keys().Draw(t, name))
}

// freshDir returns a new folder for one round of a property.
func freshDir(t *rapid.T, under string) string {
	dir, err := os.MkdirTemp(under, "round")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd here")
	}
	return len(entries)
}

func runPath(dir, name string) string { return filepath.Join(dir, name) }
