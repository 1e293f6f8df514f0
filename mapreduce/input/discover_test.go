// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// names returns the files of a plan relative to dir.
func names(p *Plan, dir string) string {
	var out []string
	for _, f := range p.Files {
		out = append(out, strings.TrimPrefix(f.Path, dir+"/"))
	}
	return strings.Join(out, " ")
}

func find(t *testing.T, o Options, patterns ...string) *Plan {
	t.Helper()
	p, err := Discover(context.Background(), patterns, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPatterns(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"a.txt", "b.txt", "c.log", "d/a.txt", "d/e/b.txt", "d/e/f/g.txt", "d-x/y.txt", "d/.hidden", "d/_SUCCESS", "d/.git/x.txt",
		"[a].txt", "deep/2024-01/x.csv", "deep/2024-02/y/z.csv", "deep/2023-12/x.csv", "out.csv/part-0", "out.csv/_SUCCESS", "sp/a b:c.txt",
		"sp/line\nbreak", "sp/x%3Ay", "sp/umlaut-ü", "sp/\xff\xfe", "sp/\xfe", "sp/p,q\"",
	} {
		write(t, dir, name, []byte("x\n"))
	}
	for _, c := range []struct{ pattern, want string }{
		{"a.txt", "a.txt"},
		{"*.txt", "[a].txt a.txt b.txt"},
		{"[a].txt", "[a].txt"},
		{"[ab].txt", "a.txt b.txt"},
		{"?.txt", "a.txt b.txt"},
		{"{a,c}.*", "a.txt c.log"},
		{"{a,d/a}.txt", "a.txt d/a.txt"},
		{"d", "d/a.txt d/e/b.txt d/e/f/g.txt"},
		{"d/", "d/a.txt d/e/b.txt d/e/f/g.txt"},
		{"d*", "d-x/y.txt d/a.txt d/e/b.txt d/e/f/g.txt deep/2023-12/x.csv deep/2024-01/x.csv deep/2024-02/y/z.csv"},
		{"d*/", "d-x/y.txt d/a.txt d/e/b.txt d/e/f/g.txt deep/2023-12/x.csv deep/2024-01/x.csv deep/2024-02/y/z.csv"},
		{"d/**", "d/a.txt d/e/b.txt d/e/f/g.txt"},
		{"d/**/*.txt", "d/a.txt d/e/b.txt d/e/f/g.txt"},
		{"d/*/*.txt", "d/e/b.txt"},
		{"**/b.txt", "b.txt d/e/b.txt"},
		{"deep/2024-*/**/*.csv", "deep/2024-01/x.csv deep/2024-02/y/z.csv"},
		{"*.csv", "out.csv/part-0"},
		{"d/_*", "d/_SUCCESS"},
		{"d/.h*", "d/.hidden"},
		{"sp/*", "sp/a b:c.txt sp/line\nbreak sp/p,q\" sp/umlaut-ü sp/x%3Ay sp/\xfe sp/\xff\xfe"},
		{"sp/\xff*", "sp/\xff\xfe"},
		{"sp/?", "sp/\xfe"},
		{"sp/\xfe", "sp/\xfe"},
	} {
		if got := names(find(t, Options{}, dir+"/"+c.pattern), dir); got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.pattern, got, c.want)
		}
	}
	t.Chdir(dir)
	if got := names(find(t, Options{}, "*.log", "d/e"), dir); got != "c.log d/e/b.txt d/e/f/g.txt" {
		t.Errorf("relative: %q", got)
	}
	p := find(t, Options{}, "a.txt", "a.txt", "./a.txt")
	if got, err := content(p); err != nil || got != "x\nx\nx\n" || p.Files[1].Index != 1 || p.TotalBytes != 6 || !p.Exact {
		t.Errorf("named three times: %q, %v", got, err)
	}
	p = find(t, Options{}, "d", "deep/*")
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "3 names") {
		t.Errorf("notes %q", p.Notes)
	}
}

func TestNothingFound(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.txt", []byte("x\n"))
	if err := os.Mkdir(dir+"/empty", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"nope.txt", "*.log", "no/such/*.txt", "a.txt/x", "empty", "**/*.log"} {
		_, err := Discover(context.Background(), []string{dir + "/a.txt", dir + "/" + pattern}, Options{})
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), pattern) || !strings.Contains(err.Error(), "--allow-empty") {
			t.Errorf("%s: %v", pattern, err)
		}
		p := find(t, Options{AllowEmpty: true}, dir+"/a.txt", dir+"/"+pattern)
		if len(p.Files) != 1 || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], pattern) {
			t.Errorf("%s allowed: %q", pattern, p.Notes)
		}
	}
	for _, pattern := range []string{"", "a\x00b", dir + "/[", dir + "/{a"} {
		if _, err := Discover(context.Background(), []string{pattern}, Options{}); err == nil {
			t.Errorf("%q: no error", pattern)
		}
	}
	if p := find(t, Options{}); len(p.Splits) != 0 {
		t.Error("splits of nothing")
	}
}

func TestLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "d/a.txt", []byte("a\n"))
	write(t, dir, "far/b.txt", []byte("b\n"))
	for link, to := range map[string]string{
		"d/up": "..", "d/self": "self", "d/far": "../far", "d/file": "../far/b.txt", "d/here": ".", "far/back": "../d",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Skip(err)
		}
	}
	p := find(t, Options{}, dir+"/d")
	// d/up leads to the directory that holds d, which is another one, but d in there is d again.
	want := "d/a.txt d/far/b.txt d/file d/up/far/b.txt"
	if got := names(p, dir); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if all := strings.Join(p.Notes, "\n"); !strings.Contains(all, dir+"/d/self skipped") || !strings.Contains(all, dir+"/d/here skipped") || !strings.Contains(all, dir+"/d/far/back skipped") || !strings.Contains(all, dir+"/d/up/d skipped") {
		t.Errorf("notes %q", p.Notes)
	}
	if got := names(find(t, Options{}, dir+"/d/**/b.txt"), dir); got != "d/far/b.txt d/up/far/b.txt" {
		t.Errorf("glob: %q", got)
	}
	if _, err := Discover(context.Background(), []string{dir + "/d/self"}, Options{}); err == nil || !strings.Contains(err.Error(), "back to itself") {
		t.Errorf("itself: %v", err)
	}
	if err := os.Symlink("gone", dir+"/far/dangling"); err != nil {
		t.Fatal(err)
	}
	if _, err := Discover(context.Background(), []string{dir + "/far"}, Options{}); err == nil || !strings.Contains(err.Error(), "dangling is a symbolic link to nothing") {
		t.Errorf("dangling: %v", err)
	}
	if p := find(t, Options{AllowEmpty: true}, dir+"/far"); len(p.Files) == 0 || !strings.Contains(strings.Join(p.Notes, "\n"), "dangling") {
		t.Errorf("dangling allowed: %q", p.Notes)
	}
}

func TestUnreadable(t *testing.T) {
	if os.Getuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("everything is readable for this user")
	}
	dir := t.TempDir()
	path := write(t, dir, "d/a.txt", []byte("a\n"))
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Discover(context.Background(), []string{dir}, Options{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), path) {
		t.Errorf("file: %v", err)
	}
	if err := os.Chmod(dir+"/d", 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir+"/d", 0o700)
	if _, err := Discover(context.Background(), []string{dir}, Options{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("directory: %v", err)
	}
}

func TestGrouping(t *testing.T) {
	dir := t.TempDir()
	for i, n := range []int{3, 3, 3, 12, 4, 0, 6, 1} {
		write(t, dir, fmt.Sprint(i), []byte(strings.Repeat("x", n)))
	}
	p := find(t, Options{SplitSize: 10}, dir)
	var got []string
	for _, s := range p.Splits {
		got = append(got, fmt.Sprint(s.Files, s.Start, s.End, s.Bytes))
	}
	want := "[0 1 2] 0 -1 9|[3] 0 10 10|[3] 10 12 2|[4 5 6] 0 -1 10|[7] 0 -1 1"
	if g := strings.Join(got, "|"); g != want {
		t.Errorf("got %s, want %s", g, want)
	}
	if p.TotalBytes != 32 {
		t.Errorf("%d bytes", p.TotalBytes)
	}
	for range groupFiles + 1 - 8 {
		p.Files = append(p.Files, File{Path: "x", Index: len(p.Files), Size: 0})
	}
	p.Splits, p.set.SplitSize = nil, 1<<20
	if err := p.split(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(p.Splits) != 2 || len(p.Splits[0].Files) != groupFiles {
		t.Errorf("%d splits", len(p.Splits))
	}
}

func TestOptionsRefused(t *testing.T) {
	for _, o := range []Options{
		{MaxLine: -1},
		{SplitSize: -1},
		{Format: 9},
		{LongLines: 9},
		{Encoding: "ebcdic"},
		{Format: QuotedLines, Delimiter: []byte(";")},
		{Format: Parquet, Encoding: "utf-16"},
	} {
		if _, err := Discover(context.Background(), nil, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestCancelledDiscovery(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", []byte("a\n"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Discover(ctx, []string{dir}, Options{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
