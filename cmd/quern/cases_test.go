// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce/output"
)

// hardCase is an input that is easy to get wrong (see jobs/testdata).
type hardCase struct {
	Name  string
	Job   string
	Args  []string
	Files []struct{ Path, Base64 string }
	// Want is the whole result, key to value; rows_base64 holds the same with
	// keys in base64.
	Want  map[string]json.RawMessage
	Error []string
}

func TestHardCases(t *testing.T) {
	text, err := os.ReadFile("../../jobs/testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Cases []hardCase }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	cases := all.Cases
	if len(cases) < 30 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		for _, format := range []string{"tsv", "jsonl"} {
			t.Run(c.Name+"/"+format, func(t *testing.T) {
				t.Parallel()
				c.check(t, format)
			})
		}
	}
}

func (c hardCase) check(t *testing.T, format string) {
	folder := t.TempDir()
	args := []string{c.Job, "--format", format}
	for _, a := range c.Args {
		args = append(args, strings.ReplaceAll(a, "IN", folder))
	}
	for _, f := range c.Files {
		path := filepath.Join(folder, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		content, err := base64.StdEncoding.DecodeString(f.Base64)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Skipf("this system has no such file names: %v", err)
		}
		if len(c.Args) == 0 {
			args = append(args, path)
		}
	}
	before := everything(t, folder)
	o := quern(t, args...)
	if c.Error != nil {
		if o.code == 0 || o.stdout != "" {
			t.Errorf("exit code %d, stdout %q; want a failure without rows", o.code, o.stdout)
		}
		for _, s := range c.Error {
			if !strings.Contains(o.stderr, s) {
				t.Errorf("stderr does not say %q: %s", s, o.stderr)
			}
		}
		if after := everything(t, folder); !maps.Equal(before, after) {
			t.Errorf("files changed: %q before, %q after", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
		}
		return
	}
	want := map[string]string{}
	for key, value := range c.Want {
		switch key {
		case "rows_base64":
			var rows map[string]json.RawMessage
			if err := json.Unmarshal(value, &rows); err != nil {
				t.Fatal(err)
			}
			for key, value := range rows {
				plain, err := base64.StdEncoding.DecodeString(key)
				if err != nil {
					t.Fatal(err)
				}
				want[string(plain)] = string(value)
			}
		case "xxxxxxxx...": // stands for 300,000 of them
			want[strings.Repeat("x", 300_000)] = string(value)
		default:
			want[key] = string(value)
		}
	}
	read := readTSV
	if format == "jsonl" {
		read = readJSONL
	}
	if got := read(t, o.success(t)); !maps.Equal(got, want) {
		t.Errorf("rows %.1000s, want %.1000s", fmt.Sprintf("%q", got), fmt.Sprintf("%q", want))
	}
}

// everything returns the content of all files below a folder.
func everything(t *testing.T, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readTSV(t *testing.T, text string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		plain, err := output.UnescapeTSV([]byte(key))
		if !ok || err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if _, twice := got[string(plain)]; twice {
			t.Errorf("key %q is there twice", plain)
		}
		got[string(plain)] = value
	}
	return got
}

func readJSONL(t *testing.T, text string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for line := range strings.Lines(text) {
		var row struct{ Key, Value json.RawMessage }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		var key string
		if json.Unmarshal(row.Key, &key) != nil { // bytes that are no UTF-8 are marked
			var marked map[string]string
			if err := json.Unmarshal(row.Key, &marked); err != nil || len(marked) != 1 {
				t.Fatalf("line %q: %v", line, err)
			}
			for encoding, encoded := range marked {
				plain, err := base64.StdEncoding.DecodeString(encoded)
				if err != nil {
					t.Fatalf("line %q, %s: %v", line, encoding, err)
				}
				key = string(plain)
			}
		}
		value := string(row.Value)
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		got[key] = value
	}
	return got
}
