// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

var wordSchema = Schema{Keys: []Column{{"key", Bytes}}, Values: []Column{{"value", Int}}}

func wordRow(word string, n int64) Row {
	return Row{Keys: []Value{text(word)}, Values: []Value{integer(n)}}
}

func wordInfo(parts int, inputs ...string) Info {
	return Info{Job: "test", Schema: wordSchema, Parts: parts, Inputs: inputs}
}

// writePart writes a part as the engine does.
func writePart(tx Transaction, index int, rows ...Row) error {
	p, err := tx.Part(index)
	if err != nil {
		return err
	}
	if enc := p.Encoder(); enc != nil {
		buf := enc.AppendHeader(nil)
		for i := range rows {
			buf = enc.AppendRow(buf, &rows[i])
		}
		if _, err := p.Write(buf); err != nil {
			return errors.Join(err, p.Close())
		}
	} else {
		for i := range rows {
			if err := p.WriteRow(&rows[i]); err != nil {
				return errors.Join(err, p.Close())
			}
		}
	}
	return p.Close()
}

func begin(t *testing.T, target Target, info Info) Transaction {
	t.Helper()
	tx, err := target.Begin(info)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree returns all that is in a folder: content of files by path, "/" for folders.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir():
			found[name] = "/"
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			found[name] = "-> " + link
			return err
		default:
			b, err := os.ReadFile(path)
			found[name] = string(b)
			return err
		}
		return nil
	}))
	return found
}

func same(t *testing.T, dir string, wants ...map[string]string) {
	t.Helper()
	got, want := tree(t, dir), map[string]string{}
	for _, w := range wants {
		maps.Copy(want, w)
	}
	for name, content := range want {
		if have, ok := got[name]; !ok || have != content {
			t.Errorf("%s: %q, want %q", name, have, content)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s should not be there", name)
		}
	}
}

func TestDirCommit(t *testing.T) {
	root := t.TempDir()
	tx := begin(t, Dir(filepath.Join(root, "new", "sub", "out"), DirOptions{}), wordInfo(3))
	var wg sync.WaitGroup
	for i, word := range []string{"a", "b"} {
		wg.Go(func() {
			if err := writePart(tx, i*2, wordRow(word, 1)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(filepath.Join(root, "new", "sub", "out")); err == nil {
		t.Error("the target is there before Commit")
	}
	must(t, tx.Commit([]byte(`{"rows":2}`)))
	must(t, tx.Abort()) // does nothing
	same(t, root, map[string]string{
		"new": "/", "new/sub": "/", "new/sub/out": "/",
		"new/sub/out/part-00000": "a\t1\n",
		"new/sub/out/part-00001": "",
		"new/sub/out/part-00002": "b\t1\n",
		"new/sub/out/_SUCCESS":   `{"rows":2}`,
	})
	if err := tx.Commit(nil); !errors.Is(err, ErrState) {
		t.Errorf("a second Commit: %v", err)
	}
	if _, err := tx.Part(0); !errors.Is(err, ErrState) {
		t.Errorf("a part after Commit: %v", err)
	}
}

func TestDirAbort(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		root := t.TempDir()
		before := map[string]string{}
		if overwrite {
			must(t, os.Mkdir(filepath.Join(root, "out"), 0o755))
			must(t, os.WriteFile(filepath.Join(root, "out", "old"), []byte("old"), 0o644))
			before = map[string]string{"out": "/", "out/old": "old"}
		}
		path := filepath.Join(root, "out")
		if !overwrite {
			path = filepath.Join(root, "a", "b", "out")
		}
		tx := begin(t, Dir(path, DirOptions{Overwrite: overwrite}), wordInfo(3))
		must(t, writePart(tx, 0, wordRow("a", 1)))
		open, err := tx.Part(1)
		must(t, err)
		if _, err := open.Write([]byte("b\t1\n")); err != nil {
			t.Fatal(err)
		}
		must(t, tx.Abort())
		must(t, tx.Abort())
		same(t, root, before)
		if err := open.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a part closed after Abort: %v", err)
		}
		if err := tx.Commit(nil); !errors.Is(err, ErrState) {
			t.Errorf("Commit after Abort: %v", err)
		}
		same(t, root, before)
	}
}

// TestDirAbortKeepsForeign: of the folders that were made only those go that
// nobody else uses.
func TestDirAbortKeepsForeign(t *testing.T) {
	root := t.TempDir()
	tx := begin(t, Dir(filepath.Join(root, "a", "b", "out"), DirOptions{}), wordInfo(1))
	must(t, os.WriteFile(filepath.Join(root, "a", "other"), nil, 0o644))
	must(t, tx.Abort())
	same(t, root, map[string]string{"a": "/", "a/other": ""})
}

func TestDirCommitNeedsClosedParts(t *testing.T) {
	root := t.TempDir()
	tx := begin(t, Dir(filepath.Join(root, "out"), DirOptions{}), wordInfo(2))
	_, err := tx.Part(1)
	must(t, err)
	if err := tx.Commit(nil); !errors.Is(err, ErrState) {
		t.Errorf("Commit with an open part: %v", err)
	}
	if _, err := tx.Part(1); !errors.Is(err, ErrState) {
		t.Errorf("a part opened twice: %v", err)
	}
	if _, err := tx.Part(2); !errors.Is(err, ErrState) {
		t.Errorf("a part too many: %v", err)
	}
	if _, err := tx.Part(-1); !errors.Is(err, ErrState) {
		t.Errorf("part -1: %v", err)
	}
	must(t, tx.Abort())
	same(t, root, nil)
}

func TestDirExists(t *testing.T) {
	root := t.TempDir()
	out := filepath.Join(root, "out")
	must(t, os.Mkdir(out, 0o750))
	// An empty folder is fine.
	tx := begin(t, Dir(out, DirOptions{}), wordInfo(1))
	must(t, writePart(tx, 0, wordRow("first", 1)))
	must(t, tx.Commit([]byte("1")))
	first := map[string]string{"out": "/", "out/part-00000": "first\t1\n", "out/_SUCCESS": "1"}
	same(t, root, first)
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the folder's rights changed: %v, %v", info.Mode(), err)
	}

	_, err := Dir(out, DirOptions{}).Begin(wordInfo(1))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), out) || !strings.Contains(err.Error(), "--overwrite") {
		t.Errorf("a folder that is not empty: %v", err)
	}
	same(t, root, first)

	// Overwriting replaces all of it, at Commit.
	tx = begin(t, Dir(out, DirOptions{Overwrite: true, Format: CSV}), wordInfo(1))
	must(t, writePart(tx, 0, wordRow("second", 2)))
	if got := tree(t, out); got["part-00000"] != "first\t1\n" {
		t.Errorf("replaced before Commit: %v", got)
	}
	must(t, tx.Commit([]byte("2")))
	same(t, root, map[string]string{"out": "/", "out/part-00000.csv": "key,value\nsecond,2\n", "out/_SUCCESS": "2"})
}

// TestDirFilledMeanwhile: the target got content from elsewhere while the job ran.
func TestDirFilledMeanwhile(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		root := t.TempDir()
		out := filepath.Join(root, "out")
		tx := begin(t, Dir(out, DirOptions{Overwrite: overwrite}), wordInfo(1))
		must(t, os.Mkdir(out, 0o755))
		must(t, os.WriteFile(filepath.Join(out, "foreign"), nil, 0o644))
		err := tx.Commit([]byte("{}"))
		if overwrite {
			must(t, err)
			same(t, root, map[string]string{"out": "/", "out/part-00000": "", "out/_SUCCESS": "{}"})
			continue
		}
		if !errors.Is(err, ErrExists) {
			t.Errorf("commit: %v, want ErrExists", err)
		}
		must(t, tx.Abort())
		same(t, root, map[string]string{"out": "/", "out/foreign": ""})
	}
}

func TestDirFileMeanwhile(t *testing.T) {
	root := t.TempDir()
	out := filepath.Join(root, "out")
	tx := begin(t, Dir(out, DirOptions{Overwrite: true}), wordInfo(1))
	must(t, os.WriteFile(out, []byte("foreign"), 0o644))
	if err := tx.Commit(nil); !errors.Is(err, ErrTarget) {
		t.Errorf("commit: %v, want ErrTarget", err)
	}
	must(t, tx.Abort())
	same(t, root, map[string]string{"out": "foreign"})
}

func TestDirGone(t *testing.T) {
	root := t.TempDir()
	out := filepath.Join(root, "out")
	must(t, os.Mkdir(out, 0o755))
	must(t, os.WriteFile(filepath.Join(out, "old"), nil, 0o644))
	tx := begin(t, Dir(out, DirOptions{Overwrite: true}), wordInfo(1))
	must(t, os.RemoveAll(out))
	must(t, tx.Commit(nil))
	same(t, root, map[string]string{"out": "/", "out/part-00000": "", "out/_SUCCESS": ""})
}

func TestSwapInTwoSteps(t *testing.T) {
	root := t.TempDir()
	temp, target := filepath.Join(root, "temp"), filepath.Join(root, "target")
	must(t, os.Mkdir(target, 0o755))
	must(t, os.WriteFile(filepath.Join(target, "old"), nil, 0o644))
	// The second step fails: the first is taken back.
	if _, _, err := swapInTwoSteps(temp, target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a new folder: %v", err)
	}
	before := map[string]string{"target": "/", "target/old": ""}
	same(t, root, before)

	must(t, os.Mkdir(temp, 0o755))
	must(t, os.WriteFile(filepath.Join(temp, "new"), nil, 0o644))
	before["temp"], before["temp/new"] = "/", ""
	for name, f := range map[string]func(string, string) (string, func() error, error){"swap": swap, "two steps": swapInTwoSteps} {
		old, undo, err := f(temp, target)
		must(t, err)
		same(t, target, map[string]string{"new": ""})
		same(t, old, map[string]string{"old": ""})
		must(t, undo())
		t.Log(name)
		same(t, root, before)
	}
}

func TestDirTargets(t *testing.T) {
	root := t.TempDir()
	in := func(names ...string) string { return filepath.Join(append([]string{root}, names...)...) }
	must(t, os.MkdirAll(in("data", "deep"), 0o755))
	must(t, os.MkdirAll(in("elsewhere"), 0o755))
	for _, f := range []string{in("data", "a"), in("data", "deep", "b"), in("elsewhere", "c"), in("file")} {
		must(t, os.WriteFile(f, []byte("x"), 0o644))
	}
	links := map[string]string{
		in("link-to-data"):      in("data"),
		in("link-to-b"):         in("data", "deep", "b"),
		in("data", "link-to-c"): in("elsewhere", "c"),
		in("nowhere"):           in("missing"),
		in("loop"):              in("loop"),
	}
	for link, to := range links {
		if err := os.Symlink(to, link); err != nil {
			t.Skip("no symbolic links here: ", err)
		}
	}
	before := tree(t, root)

	cases := []struct {
		name, path string
		inputs     []string
		want       error
	}{
		{"the folder of an input", in("data"), []string{in("data", "a")}, ErrOverlap},
		{"a folder far above", root, []string{"-", in("elsewhere", "c"), in("data", "deep", "b")}, ErrOverlap},
		{"an input itself", in("file"), []string{in("file")}, ErrOverlap},
		{"through a link to the target", in("link-to-data"), []string{in("data", "a")}, ErrOverlap},
		{"through a link to the input's folder", in("data"), []string{in("link-to-data", "a")}, ErrOverlap},
		{"through a link that is the input", in("data"), []string{in("link-to-b")}, ErrOverlap},
		{"a link in the target that is the input", in("data"), []string{in("data", "link-to-c")}, ErrOverlap},
		{"what a link in the target leads to", in("elsewhere"), []string{in("data", "link-to-c")}, ErrOverlap},
		{"not tidy", in("data", "deep", "..", ".", "deep"), []string{in("data", "..", "data", "deep", "b")}, ErrOverlap},
		{"a file", in("file"), []string{in("data", "a")}, ErrTarget},
		{"a folder below a file", in("file", "out"), nil, nil}, // the system's own error
		{"a link that leads nowhere", in("nowhere"), nil, ErrTarget},
		{"below a link that leads nowhere", in("nowhere", "out"), nil, ErrTarget},
		{"a loop", in("loop", "out"), nil, nil},
		{"nothing", "", nil, ErrTarget},
		{"the root", string(filepath.Separator), nil, ErrTarget},
		{"the current folder", ".", nil, ErrTarget},
		{"above the current folder", "..", nil, ErrTarget},
		{"a name with NUL", in("a\x00b"), nil, nil},
	}
	for _, c := range cases {
		tx, err := Dir(c.path, DirOptions{Overwrite: true}).Begin(wordInfo(1, c.inputs...))
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			must(t, tx.Abort())
		} else if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		} else if !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: the path is missing in %v", c.name, err)
		}
	}
	same(t, root, before)

	// Beside and below inputs is fine; so is a link to a folder, which stays.
	for _, path := range []string{in("data2"), in("data", "out"), in("data", "deep", "out"), in("elsewhere2")} {
		tx := begin(t, Dir(path, DirOptions{Overwrite: true}), wordInfo(1, in("data", "a"), in("link-to-b"), in("gone")))
		must(t, tx.Abort())
	}
	same(t, root, before)
	tx := begin(t, Dir(in("link-to-data"), DirOptions{Overwrite: true}), wordInfo(1, in("file")))
	must(t, tx.Commit(nil))
	after := tree(t, root)
	if after["link-to-data"] != before["link-to-data"] || after["data"] != "/" || after["data/_SUCCESS"] != "" || after["data/a"] != "" {
		t.Errorf("through a link: %v", after)
	}
}

func TestDirRelativePaths(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	must(t, os.Mkdir("data", 0o755))
	must(t, os.WriteFile(filepath.Join("data", "a"), nil, 0o644))
	if _, err := Dir("data", DirOptions{Overwrite: true}).Begin(wordInfo(1, filepath.Join("data", "a"))); !errors.Is(err, ErrOverlap) {
		t.Errorf("overlap: %v", err)
	}
	tx := begin(t, Dir("out", DirOptions{}), wordInfo(1, filepath.Join("data", "a")))
	must(t, tx.Commit(nil))
	same(t, root, map[string]string{"data": "/", "data/a": "", "out": "/", "out/part-00000": "", "out/_SUCCESS": ""})
}

func TestDirLongName(t *testing.T) {
	root := t.TempDir()
	out := filepath.Join(root, strings.Repeat("ä", 127))
	tx := begin(t, Dir(out, DirOptions{}), wordInfo(1))
	must(t, tx.Commit(nil))
	if _, err := os.Stat(filepath.Join(out, "_SUCCESS")); err != nil {
		t.Error(err)
	}
}

func TestDirRefusesBeforeItStarts(t *testing.T) {
	root := t.TempDir()
	out := filepath.Join(root, "out")
	for name, c := range map[string]struct {
		opts DirOptions
		info Info
		want error
	}{
		"format":         {DirOptions{Format: "xml"}, wordInfo(1), ErrUnsupported},
		"compression":    {DirOptions{Compression: "rar"}, wordInfo(1), ErrUnsupported},
		"no parts":       {DirOptions{}, wordInfo(0), ErrState},
		"parquet schema": {DirOptions{Format: Parquet}, Info{Parts: 1}, ErrUnsupported},
		"parquet names":  {DirOptions{Format: Parquet}, Info{Parts: 1, Schema: Schema{Keys: []Column{{"a", Int}}, Values: []Column{{"a", Int}}}}, ErrUnsupported},
	} {
		if _, err := Dir(out, c.opts).Begin(c.info); !errors.Is(err, c.want) || !strings.Contains(err.Error(), out) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	same(t, root, nil)
}

// faultyFile fails after some bytes, or when it is synced or closed.
type faultyFile struct {
	file
	room        *int64
	sync, close error
}

var errDisk = errors.New("the disk is broken")

func (f *faultyFile) Write(p []byte) (int, error) {
	if *f.room -= int64(len(p)); *f.room < 0 {
		return 0, errDisk
	}
	return f.file.Write(p)
}

func (f *faultyFile) Sync() error { return errors.Join(f.file.Sync(), f.sync) }

func (f *faultyFile) Close() error { return errors.Join(f.file.Close(), f.close) }

// TestDirFaults lets every operation on files fail in turn: nothing is left,
// and the target stays as it was.
func TestDirFaults(t *testing.T) {
	for _, opts := range []DirOptions{
		{Overwrite: true},
		{Overwrite: true, Format: CSV, Compression: Gzip},
		{Overwrite: true, Format: JSONL, Compression: Zstd},
		{Overwrite: true, Format: Parquet},
	} {
		root := t.TempDir()
		out := filepath.Join(root, "out")
		must(t, os.Mkdir(out, 0o755))
		must(t, os.WriteFile(filepath.Join(out, "old"), []byte("old"), 0o644))

		run := func(fault func(n int, f *faultyFile) error) error {
			room, n := int64(1<<40), 0
			target := Dir(out, opts).(*dirTarget)
			target.create = func(path string) (file, error) {
				inner, err := createFile(path)
				if err != nil {
					return nil, err
				}
				f := &faultyFile{file: inner, room: &room}
				n++
				if err := fault(n, f); err != nil {
					return nil, errors.Join(err, inner.Close())
				}
				return f, nil
			}
			tx, err := target.Begin(wordInfo(3))
			if err != nil {
				return err
			}
			defer func() { must(t, tx.Abort()) }()
			for i := range 2 {
				if err := writePart(tx, i, wordRow("some", 1), wordRow("words", 2)); err != nil {
					return err
				}
			}
			return tx.Commit([]byte("{}"))
		}

		for at := 1; at <= 4; at++ { // three parts and _SUCCESS
			for name, fault := range map[string]func(f *faultyFile) error{
				"create": func(f *faultyFile) error { return errDisk },
				"write":  func(f *faultyFile) error { *f.room = 1; return nil },
				"sync":   func(f *faultyFile) error { f.sync = errDisk; return nil },
				"close":  func(f *faultyFile) error { f.close = errDisk; return nil },
			} {
				err := run(func(n int, f *faultyFile) error {
					if n == at {
						return fault(f)
					}
					return nil
				})
				if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), out) {
					t.Errorf("%+v, %s of file %d: %v", opts, name, at, err)
				}
				same(t, root, map[string]string{"out": "/", "out/old": "old"})
			}
		}
		must(t, run(func(int, *faultyFile) error { return nil }))
		got := tree(t, root)
		if len(got) != 5 || got["out/_SUCCESS"] != "{}" {
			t.Errorf("%+v, without a fault: %v", opts, got)
		}
	}
}

// TestCommitOfFailedPart: a part that failed cannot be committed, though its
// error was ignored.
func TestCommitOfFailedPart(t *testing.T) {
	root := t.TempDir()
	target := Dir(filepath.Join(root, "out"), DirOptions{}).(*dirTarget)
	target.create = func(path string) (file, error) {
		f, err := createFile(path)
		room := int64(0)
		return &faultyFile{file: f, room: &room}, err
	}
	tx := begin(t, target, wordInfo(1))
	_ = writePart(tx, 0, wordRow("a", 1))
	if err := tx.Commit(nil); !errors.Is(err, errDisk) {
		t.Errorf("commit: %v", err)
	}
	must(t, tx.Abort())
	same(t, root, nil)
}

func TestPartNames(t *testing.T) {
	for _, c := range []struct {
		format      Format
		compression string
		want        string
	}{
		{TSV, "", "part-00007"},
		{"", "", "part-00007"},
		{TSV, Gzip, "part-00007.gz"},
		{TSV, Zstd, "part-00007.zst"},
		{CSV, "", "part-00007.csv"},
		{CSV, Gzip, "part-00007.csv.gz"},
		{JSONL, Zstd, "part-00007.jsonl.zst"},
		{Parquet, "", "part-00007.parquet"},
		{Parquet, Gzip, "part-00007.parquet"},
	} {
		if got := PartName(7, c.format, c.compression); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.format, c.compression, got, c.want)
		}
	}
}

func decompress(t testing.TB, b []byte, compression string) []byte {
	t.Helper()
	var r io.Reader
	switch compression {
	case Gzip:
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		r = z
	case Zstd:
		z, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	default:
		return b
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDirCompressed(t *testing.T) {
	for _, compression := range []string{Gzip, Zstd} {
		root := t.TempDir()
		tx := begin(t, Dir(filepath.Join(root, "out"), DirOptions{Format: CSV, Compression: compression}), wordInfo(2))
		must(t, writePart(tx, 0, wordRow("a", 1)))
		must(t, tx.Commit(nil))
		got := tree(t, filepath.Join(root, "out"))
		for i, want := range []string{"key,value\na,1\n", "key,value\n"} {
			name := PartName(i, CSV, compression)
			if text := decompress(t, []byte(got[name]), compression); string(text) != want {
				t.Errorf("%s: %q, want %q", name, text, want)
			}
		}
	}
}

func ExampleDir() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	target := Dir(filepath.Join(dir, "counts"), DirOptions{Format: JSONL})
	tx, err := target.Begin(Info{Schema: Schema{Keys: []Column{{"key", Bytes}}, Values: []Column{{"value", Int}}}, Parts: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Abort() // does nothing after Commit
	part, err := tx.Part(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	row := Row{Keys: []Value{{Kind: Bytes, B: []byte("hello")}}, Values: []Value{{Kind: Int, I: 2}}}
	part.Write(part.Encoder().AppendRow(nil, &row))
	if err := part.Close(); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit([]byte("{}")); err != nil {
		fmt.Println(err)
		return
	}
	b, err := os.ReadFile(filepath.Join(dir, "counts", PartName(0, JSONL, NoCompression)))
	fmt.Print(string(b), err)
	// Output:
	// {"key":"hello","value":2}
	// <nil>
}
