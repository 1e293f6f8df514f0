// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCountsByHand(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(in, []byte("to be or\nnot to be\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "be\t2\nnot\t1\nor\t1\nto\t2\n"
	var out bytes.Buffer
	if err := run(t.Context(), []string{in}, "", &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}

	out.Reset()
	dir := filepath.Join(t.TempDir(), "counts")
	if err := run(t.Context(), []string{in}, dir, &out); err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile(filepath.Join(dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if string(part) != want || out.Len() != 0 {
		t.Errorf("part %q, standard output %q", part, out.String())
	}
}

// The books, against a map in plain Go.
func TestCountsBooks(t *testing.T) {
	books, err := filepath.Glob("../../testdata/books/*.txt")
	if err != nil || len(books) == 0 {
		t.Fatalf("%d books, %v", len(books), err)
	}
	counts := map[string]int{}
	for _, book := range books {
		text, err := os.ReadFile(book)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(text)) {
			counts[word]++
		}
	}
	var want strings.Builder
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&want, "%s\t%d\n", strings.ReplaceAll(word, `\`, `\\`), counts[word])
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"../../testdata/books"}, "", &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want.String() {
		t.Error("the counts differ from those of a map")
	}
}

func TestErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.txt")
	var out bytes.Buffer
	err := run(t.Context(), []string{missing}, "", &out)
	if err == nil || !strings.Contains(err.Error(), missing) || out.Len() != 0 {
		t.Errorf("error %v, standard output %q", err, out.String())
	}
}
