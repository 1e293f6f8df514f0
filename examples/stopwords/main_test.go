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

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestByHand(t *testing.T) {
	in := write(t, "in.txt", "The 'mill', and THE miller's mill. '\nAnd a stone!\n")
	for list, want := range map[string]string{
		"the and\na": "mill\t2\nmiller's\t1\nstone\t1\n",
		"Mill":       "a\t1\nand\t2\nmiller's\t1\nstone\t1\nthe\t2\n",
		"":           "a\t1\nand\t2\nmill\t2\nmiller's\t1\nstone\t1\nthe\t2\n",
	} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{in}, write(t, "list.txt", list), "", &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("without %q: got %q, want %q", list, out.String(), want)
		}
	}
}

// The books without the list that comes with this, against a map in plain Go.
func TestBooks(t *testing.T) {
	books, err := filepath.Glob("../../testdata/books/*.txt")
	if err != nil || len(books) == 0 {
		t.Fatalf("%d books, %v", len(books), err)
	}
	list, err := os.ReadFile("testdata/english.txt")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, book := range books {
		text, err := os.ReadFile(book)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.FieldsFunc(strings.ToLower(string(text)), notInWords) {
			if word = strings.Trim(word, "'"); word != "" {
				counts[word]++
			}
		}
	}
	before := len(counts)
	for _, word := range strings.Fields(string(list)) {
		delete(counts, word)
	}
	if before-len(counts) < 100 {
		t.Errorf("only %d of the list are in the books", before-len(counts))
	}
	var want strings.Builder
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&want, "%s\t%d\n", word, counts[word])
	}
	dir := filepath.Join(t.TempDir(), "counts")
	if err := run(t.Context(), []string{"../../testdata/books"}, "testdata/english.txt", dir, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("the counts differ from those of a map")
	}
}

func TestErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.txt")
	var out bytes.Buffer
	err := run(t.Context(), []string{write(t, "in.txt", "x\n")}, missing, "", &out)
	if err == nil || !strings.Contains(err.Error(), `side input "stop words": input: `+missing) || out.Len() != 0 {
		t.Errorf("error %v, standard output %q", err, out.String())
	}
}
