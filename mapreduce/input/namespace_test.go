// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/objectlab"
	"github.com/quernmr/quern/mapreduce/objects"
)

func putObject(t *testing.T, url string, data []byte) {
	t.Helper()
	client, err := objects.Open()
	if err == nil {
		var at objects.Location
		if at, err = objects.Parse(url); err == nil {
			err = client.Put(context.Background(), at, data, objects.WriteOptions{})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// manyFiles is a folder with all sorts of files.
func manyFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for i, name := range []string{
		"a.txt", "b.txt", "c.log", "d/a.txt", "d/e/b.txt", "d/e/f/g.txt", "d-x/y.txt", "d/.hidden", "d/_SUCCESS", "d/.git/x.txt",
		"[a].txt", "deep/2024-01/x.csv", "deep/2024-02/y/z.csv", "deep/2023-12/x.csv", "out.csv/part-0", "out.csv/_SUCCESS", "sp/a b:c.txt",
		"sp/line\nbreak", "sp/x%3Ay", "sp/umlaut-ü", "sp/p,q\"", "sp/plus+and&", "empty.gz",
	} {
		text := lines(3+i, uint64(i))
		if name == "empty.gz" {
			text = nil
		}
		write(t, dir, name, text)
	}
	write(t, dir, "big.txt", lines(5_000, 1))
	for _, name := range []string{"gzip", "zstd", "bzip2", "xz", "s2", "snappy", "lz4"} {
		write(t, dir, "packed/words."+name, pack(t, name, lines(500, 2)))
	}
	return dir
}

var manyPatterns = []string{
	"a.txt", "*.txt", "[a].txt", "[ab].txt", "?.txt", "{a,c}.*", "{a,d/a}.txt", "d", "d/", "d*", "d*/", "d/**", "d/**/*.txt",
	"d/*/*.txt", "**/b.txt", "deep/2024-*/**/*.csv", "*.csv", "d/_*", "d/.h*", "sp/*", "sp/?", "sp/umlaut-ü", "packed", "packed/*.gz*",
	"**", "", "big.txt",
	// Nothing.
	"nope.txt", "*.log2", "no/such/*.txt", "a.txt/x", "a.txt/", "empty", "**/*.none", "[", "{a",
}

// sameAsDisk compares what patterns find in a folder and elsewhere.
func sameAsDisk(t *testing.T, dir, elsewhere string, o Options, patterns ...string) {
	t.Helper()
	onDisk := o
	onDisk.Uploads = nil
	for _, pattern := range patterns {
		want, wantErr := Discover(context.Background(), []string{dir + "/" + pattern}, onDisk)
		got, err := Discover(context.Background(), []string{elsewhere + "/" + pattern}, o)
		if wantErr != nil {
			if err == nil || errors.Is(err, fs.ErrNotExist) != errors.Is(wantErr, fs.ErrNotExist) || !strings.Contains(err.Error(), pattern) {
				t.Errorf("%q: %v, want %v", pattern, err, wantErr)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", pattern, err)
			continue
		}
		if a, b := names(got, elsewhere), names(want, dir); a != b {
			t.Errorf("%q:\n got %q\nwant %q", pattern, a, b)
			continue
		}
		if a, b := strings.ReplaceAll(strings.Join(got.Notes, "\n"), elsewhere, dir), strings.Join(want.Notes, "\n"); a != b {
			t.Errorf("%q: notes %q, want %q", pattern, a, b)
		}
		if !reflect.DeepEqual(got.Splits, want.Splits) || got.TotalBytes != want.TotalBytes || !got.Exact {
			t.Errorf("%q:\n got %+v\nwant %+v", pattern, got.Splits, want.Splits)
		}
		for i := range got.Files {
			if got.Files[i].Compression != want.Files[i].Compression || got.Files[i].Size != want.Files[i].Size {
				t.Errorf("%q: %+v, want %+v", pattern, got.Files[i], want.Files[i])
			}
		}
		a, errA := content(got)
		b, errB := content(want)
		if a != b || errA != nil || errB != nil {
			t.Errorf("%q: %d bytes, want %d; %v, %v", pattern, len(a), len(b), errA, errB)
		}
	}
}

func TestObjectsLikeDisk(t *testing.T) {
	objectlab.Start(t, "box", "more")
	dir := manyFiles(t)
	// Only what can be a key, and the bucket's root is no different from a folder in it.
	for at, patterns := range map[string][]string{"s3://box": {"", "d", "*.txt"}, "s3://more/deep/below": manyPatterns} {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			putObject(t, at+strings.TrimPrefix(path, dir), data)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		sameAsDisk(t, dir, at, Options{SplitSize: 10_000}, patterns...)
	}
	// A key that ends with a slash shows an empty folder; a folder and an object may have one name.
	putObject(t, "s3://box/both/", nil)
	putObject(t, "s3://box/folder/both/x", []byte("x\n"))
	if got := names(find(t, Options{}, "s3://box/folder/*"), "s3://box"); got != "folder/both/x" {
		t.Errorf("in a folder: %q", got)
	}
	for pattern, want := range map[string]string{
		"s3://":            "no bucket",
		"s3://nowhere/x":   "no bucket nowhere",
		"s3://nowhere/*":   "no bucket nowhere",
		"s3://box/both":    "holds no file to read",
		"s3://box/missing": "does not exist",
	} {
		if _, err := Discover(context.Background(), []string{pattern}, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", pattern, err, want)
		}
	}
}

func TestUploadsLikeDisk(t *testing.T) {
	dir := manyFiles(t)
	store := t.TempDir()
	for _, root := range []string{"/far/away", "far/away", "./far"} {
		uploads := map[string]string{}
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			uploads[root+strings.TrimPrefix(path, dir)] = write(t, store, fmt.Sprint(len(uploads)), data)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		sameAsDisk(t, dir, root, Options{SplitSize: 10_000, Uploads: uploads}, manyPatterns...)
		if got := names(find(t, Options{Uploads: uploads}, dir+"/a.txt", root+"/a.txt"), dir); got != "a.txt "+root+"/a.txt" {
			t.Errorf("beside the disk: %q", got)
		}
	}
	// What is on disk by the same name is not there.
	p := find(t, Options{Uploads: map[string]string{dir + "/d/only.txt": filepath.Join(dir, "b.txt")}}, dir+"/d")
	if got := names(p, dir); got != "d/only.txt" {
		t.Errorf("over the disk: %q", got)
	}
	if line, err := p.LineAt(context.Background(), &p.Files[0], p.Files[0].Size); err != nil || line != 5 {
		t.Errorf("line %d, %v", line, err)
	}
	// Errors speak of the name.
	gone := filepath.Join(store, "gone")
	write(t, store, "gone", []byte("x\n"))
	o := Options{Uploads: map[string]string{"/far/x": gone}}
	p = find(t, o, "/far/x")
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if _, err := content(p); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/far/x") || strings.Contains(err.Error(), gone) {
		t.Errorf("a lost upload: %v", err)
	}
	if _, err := Discover(context.Background(), []string{"/far/x"}, o); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/far/x") || strings.Contains(err.Error(), gone) {
		t.Errorf("a lost upload: %v", err)
	}
}

func TestFirst(t *testing.T) {
	dir := manyFiles(t)
	uploads := map[string]string{"/up/b.csv": dir + "/b.txt", "/up/a/c.csv": dir + "/a.txt"}
	objectlab.Start(t, "box")
	putObject(t, "s3://box/x/y.csv", []byte("a\n"))
	for _, c := range []struct {
		pattern, want string
		ok            bool
	}{
		{"/up", "/up/a/c.csv", true},
		{"/up/b.csv", "/up/b.csv", true},
		{"s3://box/x", "s3://box/x/y.csv", true},
		{"s3://box/z", "", true},
		{dir, "", false},
	} {
		if got, ok := First(context.Background(), c.pattern, Options{Uploads: uploads}); got != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v", c.pattern, got, ok)
		}
	}
	if _, ok := First(context.Background(), dir, Options{}); ok {
		t.Error("a folder on disk is not ours to look into")
	}
}

// TestObjectSplits reads every kind of input split by split, while connections
// break, and holds it against the disk.
func TestObjectSplits(t *testing.T) {
	s := objectlab.Start(t, "box")
	dir := t.TempDir()
	var csv strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&csv, "%d,\"a \"\"quoted\"\"\nfield, %d\",x\n", i, i*i)
	}
	for name, c := range map[string]struct {
		data []byte
		o    Options
	}{
		"lines":    {lines(30_000, 3), Options{SplitSize: 50_000}},
		"quotes":   {[]byte(csv.String()), Options{Format: QuotedLines, SplitSize: 10_000}},
		"overlaps": {[]byte(strings.Repeat("a\n\n\nb\n\n", 9000)), Options{Delimiter: []byte("\n\n"), SplitSize: 7_000}},
		"utf-16":   {[]byte(strings.Repeat("a\x00\n\x00", 20_000)), Options{Encoding: "utf-16le"}},
		"parquet":  {packParquet(t, 700, smallRows(3000)), Options{Format: Parquet}},
		"columns":  {packParquet(t, 700, smallRows(3000)), Options{Format: Parquet, Columns: []string{"b"}}},
		"bzip2":    {pack(t, "bzip2", lines(20_000, 4)), Options{}},
	} {
		path := write(t, dir, name, c.data)
		url := "s3://box/" + name
		putObject(t, url, c.data)
		want, err := content(find(t, c.o, path))
		if err != nil {
			t.Fatal(name, err)
		}
		for fault, f := range map[string]func(n int, r *http.Request) objectlab.Fault{
			"no fault": nil,
			"cut":      func(n int, _ *http.Request) objectlab.Fault { return objectlab.Fault{Cut: int64(n%3) * 40_000} },
			"errors": func(n int, _ *http.Request) objectlab.Fault {
				return objectlab.Fault{Status: []int{0, 0, 0, 0, 0, 0, 0, 0, 0, http.StatusServiceUnavailable}[n%10]}
			},
		} {
			p := find(t, c.o, url)
			s.Proxy.Set(f)
			got, err := content(p)
			seen := s.Proxy.Seen()
			s.Proxy.Set(nil)
			if err != nil || got != want {
				t.Errorf("%s, %s: %d bytes, want %d: %v", name, fault, len(got), len(want), err)
			}
			if name == "lines" && fault == "no fault" && len(seen) > 2*len(p.Splits) {
				t.Errorf("%d requests for %d splits", len(seen), len(p.Splits))
			}
		}
	}
	p := find(t, Options{}, "s3://box/lines")
	if line, err := p.LineAt(context.Background(), &p.Files[0], p.Files[0].Size); err != nil || line != 30_001 {
		t.Errorf("line %d, %v", line, err)
	}
}

func TestObjectChanged(t *testing.T) {
	objectlab.Start(t, "box")
	for _, split := range []int64{0, 3} {
		putObject(t, "s3://box/a", []byte("aaaa\naaaa\n"))
		p := find(t, Options{SplitSize: split}, "s3://box/a")
		packed, err := p.Pack()
		if err != nil {
			t.Fatal(err)
		}
		putObject(t, "s3://box/a", []byte("bbbb\nbbbb\n"))
		there, err := Unpack(packed, Options{SplitSize: split})
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range map[string]*Plan{"here": p, "in another process": there} {
			if got, err := content(p); !errors.Is(err, objects.ErrChanged) || !strings.Contains(err.Error(), "s3://box/a") {
				t.Errorf("%s, split %d: %q, %v", name, split, got, err)
			}
		}
	}
	putObject(t, "s3://box/p", packParquet(t, 700, smallRows(3000)))
	p := find(t, Options{Format: Parquet}, "s3://box/p")
	putObject(t, "s3://box/p", packParquet(t, 800, smallRows(3000)))
	if _, err := content(p); !errors.Is(err, objects.ErrChanged) {
		t.Errorf("parquet: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Discover(ctx, []string{"s3://box/*"}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// TestManyObjects: small objects are fetched several at a time, and come in order.
func TestManyObjects(t *testing.T) {
	s := objectlab.Start(t, "box")
	var want strings.Builder
	for i := range 40 {
		text := fmt.Sprintf("file %d\n", i)
		if i%7 == 0 {
			text = ""
		}
		want.WriteString(text)
		putObject(t, fmt.Sprintf("s3://box/many/%02d", i), []byte(text))
	}
	p := find(t, Options{}, "s3://box/many")
	if len(p.Splits) != 1 {
		t.Fatalf("%d splits", len(p.Splits))
	}
	second := make(chan struct{})
	s.Proxy.Set(func(n int, _ *http.Request) objectlab.Fault {
		switch n {
		case 1: // it is answered only once there is another one
			select {
			case <-second:
			case <-time.After(time.Minute):
				t.Error("one after the other")
			}
		case 2:
			close(second)
		}
		return objectlab.Fault{Lose: n%5 == 3}
	})
	got, err := content(p)
	if err != nil || got != want.String() {
		t.Errorf("%q, %v", got, err)
	}
	s.Proxy.Set(nil)
	r, err := p.Open(context.Background(), p.Splits[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadBlock(nil); err != nil { // and no further
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	putObject(t, "s3://box/many/30", []byte("another\n"))
	if _, err := content(p); !errors.Is(err, objects.ErrChanged) || !strings.Contains(err.Error(), "s3://box/many/30") {
		t.Errorf("after a change: %v", err)
	}
}
