// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce/output"
)

// casesFile holds inputs that broke other engines.
type casesFile struct {
	Cases []testCase `json:"cases"`
}

type testCase struct {
	Name  string     `json:"name"`
	Job   string     `json:"job"`
	Args  []string   `json:"args"`
	Files []caseFile `json:"files"`
	Want  map[string]json.RawMessage
	Error []string `json:"error"`
}

type caseFile struct {
	Path   string `json:"path"`
	Base64 []byte `json:"base64"`
}

// rows returns the result that is wanted, as run gives it, sorted.
func (c *testCase) rows(t *testing.T) []string {
	t.Helper()
	want := c.Want
	for _, wrapper := range []string{"rows", "rows_base64"} {
		inner, ok := c.Want[wrapper]
		if !ok {
			continue
		}
		want = map[string]json.RawMessage{}
		if err := json.Unmarshal(inner, &want); err != nil {
			t.Fatal(err)
		}
		if wrapper == "rows_base64" {
			decoded := map[string]json.RawMessage{}
			for key, value := range want {
				b, err := base64.StdEncoding.DecodeString(key)
				if err != nil {
					t.Fatal(err)
				}
				decoded[string(b)] = value
			}
			want = decoded
		}
	}
	var rows []string
	for key, value := range want {
		if key == "xxxxxxxx..." {
			key = strings.Repeat("x", 300000)
		}
		r := output.Row{
			Keys:   []output.Value{{Kind: output.Bytes, B: []byte(key)}},
			Values: []output.Value{{Kind: output.Bytes, B: value}},
		}
		rows = append(rows, rowText(t, &r))
	}
	slices.Sort(rows)
	return rows
}

func readCases(t *testing.T) []testCase {
	t.Helper()
	text, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var f casesFile
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Cases) == 0 {
		t.Fatal("no cases")
	}
	return f.Cases
}

// ways are those that every case must give the same result in: every split size
// with every number of workers, memory and partitions taking turns.
func ways() []way {
	var all []way
	for i, split := range []int64{1, 2, 3, 7, 64, 0} {
		for j, workers := range []int{1, 2, 4} {
			w := way{split, workers, 64 << 20, 1}
			if (i+j)%2 == 0 {
				w.memory = 16 << 20
			}
			if (i+j)%3 == 0 {
				w.partitions = 3
			}
			all = append(all, w)
		}
	}
	return all
}

func TestCases(t *testing.T) {
	for _, c := range readCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			largest := 0
			for _, f := range c.Files {
				largest = max(largest, len(f.Base64))
			}
			for _, w := range ways() {
				if w.split > 0 && int64(largest)/w.split > 5000 {
					continue // nothing but time would be lost in so many splits
				}
				c.check(t, w)
			}
		})
	}
}

func (c *testCase) check(t *testing.T, w way) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range c.Files {
		path := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Base64, 0o600); err != nil {
			t.Skipf("this system cannot have a file of that name: %v", err)
		}
	}
	before := tree(t, dir)
	args := c.Args
	if args == nil {
		args = []string{"IN"}
	}
	args = slices.Clone(args)
	for i := range args {
		if args[i] == "IN" || strings.HasPrefix(args[i], "IN/") {
			args[i] = dir + strings.TrimPrefix(args[i], "IN")
		}
	}
	rows, _, err := run(t, w, c.Job, args...)
	if c.Error != nil {
		if err == nil {
			t.Fatalf("%+v: no error, but rows %.200q", w, rows)
		}
		for _, part := range c.Error {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: error does not contain %q: %v", w, part, err)
			}
		}
		if after := tree(t, dir); !maps.Equal(before, after) {
			t.Errorf("%+v: the failed job changed files:\n got %q\nwant %q", w, after, before)
		}
		return
	}
	if err != nil {
		t.Fatalf("%+v: %v", w, err)
	}
	slices.Sort(rows)
	if want := c.rows(t); !slices.Equal(rows, want) {
		t.Fatalf("%+v:\n got %.300q\nwant %.300q", w, rows, want)
	}
}

// tree gives the files below a folder and a digest of their content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		files[path] = fmt.Sprintf("%d bytes, %.50q", len(content), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
