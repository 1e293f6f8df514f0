// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestIndexByHand(t *testing.T) {
	dog, fox := filepath.Join("testdata", "dog.txt"), filepath.Join("testdata", "fox.txt")
	want := ""
	for _, row := range []struct {
		word  string
		files []string
	}{
		{"a", []string{fox}},
		{"dog", []string{dog, fox}},
		{"fox", []string{fox}},
		{"no", []string{fox}},
		{"quick", []string{fox}},
		{"sleeps", []string{dog}},
		{"snores", []string{dog}},
		{"the", []string{dog, fox}},
	} {
		want += line(t, row.word, row.files)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"testdata"}, "", &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// Two books, against sets in plain Go.
func TestIndexBooks(t *testing.T) {
	books, err := filepath.Glob("../../testdata/books/[bt]*.txt")
	if err != nil || len(books) != 2 {
		t.Fatalf("%d books, %v", len(books), err)
	}
	files := map[string]map[string]bool{}
	for _, book := range books {
		text, err := os.ReadFile(book)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsFuncSeq(strings.ToLower(string(text)), noLetter) {
			if files[word] == nil {
				files[word] = map[string]bool{}
			}
			files[word][book] = true
		}
	}
	var want strings.Builder
	for _, word := range slices.Sorted(maps.Keys(files)) {
		want.WriteString(line(t, word, slices.Sorted(maps.Keys(files[word]))))
	}
	dir := filepath.Join(t.TempDir(), "index")
	if err := run(t.Context(), books, dir, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("the index differs from that of sets")
	}
}

// line is a row as the program prints it.
func line(t *testing.T, word string, files []string) string {
	t.Helper()
	list, err := json.Marshal(files)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s\t%s\n", word, strings.ReplaceAll(string(list), `\`, `\\`))
}
