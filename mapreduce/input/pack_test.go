// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/task"
)

// readAll returns what a split's blocks hold.
func readAll(t *testing.T, p *Plan, s Split) (string, error) {
	t.Helper()
	r, err := p.Open(context.Background(), s)
	if err != nil {
		return "", err
	}
	defer r.Close()
	var all strings.Builder
	for {
		b, err := r.ReadBlock(nil)
		if errors.Is(err, io.EOF) {
			return all.String(), nil
		}
		if err != nil {
			return "", err
		}
		all.Write(b.Data)
		if b.File.Index < 0 || b.File.Index >= len(p.Files) || p.Files[b.File.Index].Path != b.File.Path {
			t.Errorf("a block of file %d, %s", b.File.Index, b.File.Path)
		}
	}
}

// Each split of a plan reads the same in a process that got only its part of it.
func TestPackedSplitsReadTheSame(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a": strings.Repeat("some line or other\n", 100), "b": "x\ny\n", "c": "", "d \xff": "odd\n",
		"e": strings.Repeat("\"quoted\nline\",1\n", 100), "f": "z\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, opt := range []Options{{SplitSize: 300}, {SplitSize: 200, Format: QuotedLines}, {}} {
		whole, err := Discover(context.Background(), []string{dir}, opt)
		if err != nil {
			t.Fatal(err)
		}
		packed, err := whole.Pack()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Unpack(packed, opt)
		if err != nil || len(again.Files) != len(whole.Files) || !reflect.DeepEqual(again.Splits, whole.Splits) || !again.Exact || again.TotalBytes != whole.TotalBytes {
			t.Fatalf("%+v, %v", again, err)
		}
		splits, err := task.ParsePlan(packed)
		if err != nil || splits.Len() != len(whole.Splits) {
			t.Fatal(err)
		}
		for i, s := range whole.Splits {
			want, err := readAll(t, whole, s)
			if err != nil {
				t.Fatal(err)
			}
			part, err := splits.Split(i)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Unpack(part, opt)
			if err != nil || len(p.Splits) != 1 || p.Splits[0].Index != 0 || len(p.Files) != len(whole.Files) || p.TotalBytes != s.Bytes {
				t.Fatalf("split %d: %+v, %v", i, p, err)
			}
			got, err := readAll(t, p, p.Splits[0])
			if err != nil || got != want {
				t.Errorf("split %d: %q, %v; want %q", i, got, err, want)
			}
			file := &p.Files[s.Files[0]]
			if n, err := p.LineAt(context.Background(), file, 0); err != nil || n != 1 {
				t.Errorf("line %d, %v", n, err)
			}
		}
	}
}

func TestPackedFilesThatChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string) error
		want   string
	}{
		"touched": {func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(5, 0)) }, "was changed while the job ran"},
		"shrunk":  {func(path string) error { return os.Truncate(path, 2) }, "shrank"},
		"gone":    {os.Remove, "no such file"},
		"a folder": {func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		}, "was replaced by another file"},
		// What was added behind is not read.
		"grown": {func(path string) error { return os.WriteFile(path, []byte("one\ntwo\nthree\n"), 0o600) }, ""},
		// Another machine gives the same file another number.
		"copied with its time": {func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path+".new", []byte("one\ntwo\n"), 0o600); err != nil {
				return err
			}
			if err := os.Chtimes(path+".new", info.ModTime(), info.ModTime()); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}, ""},
	} {
		path := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(path, []byte("one\ntwo\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Discover(context.Background(), []string{path}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		packed, err := p.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(path); err != nil {
			t.Fatal(err)
		}
		if p, err = Unpack(packed, Options{}); err != nil {
			t.Fatal(err)
		}
		got, err := readAll(t, p, p.Splits[0])
		switch {
		case c.want == "" && (err != nil || got != "one\ntwo\n"):
			t.Errorf("%s: %q, %v", name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":         "",
		"no plan":         "[]",
		"files missing":   `{"total":0,"files":[{"i":0}]}`,
		"too many files":  `{"total":1000000000}`,
		"index":           `{"total":1,"files":[{"i":1}]}`,
		"negative index":  `{"total":1,"files":[{"i":-1}]}`,
		"twice":           `{"total":2,"files":[{"i":1},{"i":1}]}`,
		"a file not here": `{"total":2,"files":[{"i":1}],"splits":[{"files":[0]}]}`,
	} {
		if p, err := Unpack([]byte(text), Options{}); err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if _, err := Unpack([]byte("{}"), Options{MaxLine: -1}); err == nil {
		t.Error("bad options")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte(`{"total":2,"files":[{"i":1,"p":"/dev/null","s":0,"t":5,"f":true}],"splits":[{"files":[1],"start":0,"end":-1,"bytes":3}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var head struct{ Total int }
		if json.Unmarshal(b, &head) == nil && head.Total > 1<<12 {
			return // so much memory it may take
		}
		p, err := Unpack(b, Options{})
		if err != nil {
			return
		}
		for i, s := range p.Splits {
			if s.Index != i {
				t.Fatal("a split has another's number")
			}
			for _, f := range s.Files {
				if p.Files[f].Index != f {
					t.Fatal("a split names a file that is not there")
				}
			}
		}
		again, err := p.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(again, Options{}); err != nil {
			t.Fatal(err)
		}
	})
}

// Where Options.Uploads is nil, what the process was told holds.
func TestUploadsOfTheProcess(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	SetUploads(map[string]string{"/there/x": filepath.Join(dir, "one")})
	defer stands.Store(nil)
	for want, opt := range map[string]Options{
		"one\n": {},
		"two\n": {Uploads: map[string]string{"/there/x": filepath.Join(dir, "two")}},
	} {
		p, err := Discover(context.Background(), []string{"/there/x"}, opt)
		if err != nil {
			t.Fatal(err)
		}
		packed, err := p.Pack()
		if err != nil {
			t.Fatal(err)
		}
		// A copy that was made at another time is the same file.
		if err := os.Chtimes(filepath.Join(dir, strings.TrimSpace(want)), time.Time{}, time.Unix(7, 0)); err != nil {
			t.Fatal(err)
		}
		if p, err = Unpack(packed, opt); err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(t, p, p.Splits[0]); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if _, err := Discover(context.Background(), []string{"/there/x"}, Options{Uploads: map[string]string{}}); err == nil {
		t.Error("an empty map is none of its own")
	}
}
