// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ulikunitz/xz"
)

// TestMain also stands in for the programs that steps run.
func TestMain(m *testing.M) {
	switch os.Getenv("VMTEST_CHILD") {
	case "ok":
		fmt.Println("said", os.Args[1:])
		os.Exit(0)
	case "bad":
		fmt.Print("no newline")
		os.Exit(3)
	case "hang":
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// entry is a member of an archive.
type entry struct {
	name  string
	mode  int
	major int
	minor int
	data  string
}

// readArchive is a reader of our own for what archive writes.
func readArchive(t *testing.T, b []byte) (all []entry) {
	t.Helper()
	all = nil
	for at := 0; ; {
		if len(b) < at+110 || string(b[at:at+6]) != "070701" {
			t.Fatalf("no header at %d", at)
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		size, nameSize := field(6), field(11)
		e := entry{mode: field(1), major: field(9), minor: field(10), name: string(b[at+110 : at+110+nameSize-1])}
		data := (at + 110 + nameSize + 3) &^ 3
		e.data = string(b[data : data+size])
		at = (data + size + 3) &^ 3
		if e.name == "TRAILER!!!" {
			if at != len(b) {
				t.Fatalf("%d bytes behind the trailer", len(b)-at)
			}
			return all
		}
		all = append(all, e)
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := newArchive(&b)
	a.device("dev/console", 5, 1)
	a.file("/a/b/c.txt", 0o644, []byte("hello"))
	a.file("a/b/d", 0o755, nil)
	a.dir("a/b/")
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	// The first header by hand: inode 1, folder, two links, name of 4 bytes with
	// its zero, padded from 114 to 116.
	want := "070701" + "00000001" + "000041ED" + "00000000" + "00000000" + "00000002" + "00000000" + "00000000" +
		"00000000" + "00000000" + "00000000" + "00000000" + "00000004" + "00000000" + "dev\x00\x00\x00"
	if got := b.String()[:116]; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	got := readArchive(t, b.Bytes())
	if w := []entry{
		{"dev", 0o40755, 0, 0, ""},
		{"dev/console", 0o20600, 5, 1, ""},
		{"a", 0o40755, 0, 0, ""},
		{"a/b", 0o40755, 0, 0, ""},
		{"a/b/c.txt", 0o100644, 0, 0, "hello"},
		{"a/b/d", 0o100755, 0, 0, ""},
	}; !reflect.DeepEqual(got, w) {
		t.Errorf("got  %v\nwant %v", got, w)
	}
}

// TestPrograms adds a dynamic program and looks for its loader and its library.
func TestPrograms(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("programs of Linux on x86-64 alone can be added")
	}
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("needs sh: ", err)
	}
	var b bytes.Buffer
	a := newArchive(&b)
	text := write(t, filepath.Join(t.TempDir(), "text"), "no program")
	if without := addPrograms(a, []string{"sh", "sh"}); len(without) != 0 {
		t.Fatalf("without %q", without)
	}
	if err := addELF(a, "/text", text, map[string]bool{}); err == nil {
		t.Error("a text was added")
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, e := range readArchive(t, b.Bytes()) {
		if e.mode&modeDir == 0 {
			seen[e.name]++
		}
	}
	if want := map[string]int{"usr/bin/sh": 1, "lib64/ld-linux-x86-64.so.2": 1, "lib/x86_64-linux-gnu/libc.so.6": 1, "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": 1}; !reflect.DeepEqual(seen, want) {
		t.Errorf("added %v, want %v", seen, want)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "kernel")
	if _, err := FindKernel(root); err == nil {
		t.Error("found a kernel where there is none")
	}
	image := write(t, filepath.Join(root, "boot", "vmlinuz-6.1-x"), "kernel")
	modules := filepath.Join(root, "lib", "modules", "6.1-x")
	write(t, filepath.Join(modules, "kernel", "net", "veth.ko"), "plain module")
	var packed strings.Builder
	w, err := xz.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte("packed module"))
	w.Close()
	write(t, filepath.Join(modules, "kernel", "net", "stp.ko.xz"), packed.String())
	write(t, filepath.Join(modules, "kernel", "net", "llc.ko.xz.old"), "no module")
	k, err := FindKernel(root)
	if err != nil || k != (Kernel{Release: "6.1-x", Image: image, Modules: modules}) {
		t.Fatalf("%+v, %v", k, err)
	}

	source := filepath.Join(dir, "source")
	write(t, filepath.Join(source, "testdata", "x"), "data")
	write(t, filepath.Join(source, ".hidden", "y"), "no")
	tests := []TestBinary{
		{Name: "m/a", Path: write(t, filepath.Join(dir, "a.test"), "binary a"), Source: source, Run: "TestA", Env: []string{"A=1"}},
		{Name: "m/b", Path: write(t, filepath.Join(dir, "b.test"), "binary b"), Timeout: 10 * time.Second, Skip: "TestB", Long: true},
	}
	old := Programs
	Programs = []string{"vmtest-no-such-program"}
	defer func() { Programs = old }()
	var b bytes.Buffer
	if err := WriteImage(&b, k, write(t, filepath.Join(dir, "init"), "the init"), tests); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range readArchive(t, b.Bytes()) {
		if e.mode&modeDir == 0 {
			files["/"+e.name] = e.data
		}
	}
	var p Plan
	if err := json.Unmarshal([]byte(files[PlanFile]), &p); err != nil {
		t.Fatal(err)
	}
	delete(files, PlanFile)
	if want := map[string]string{
		"/init": "the init", "/dev/console": "",
		"/modules/veth.ko": "plain module", "/modules/stp.ko": "packed module",
		"/tests/0/test": "binary a", "/tests/0/source/testdata/x": "data", "/tests/1/test": "binary b",
	}; !reflect.DeepEqual(files, want) {
		t.Errorf("got  %v\nwant %v", files, want)
	}
	if len(p.Without) != 1 || !strings.HasPrefix(p.Without[0], "vmtest-no-such-program: ") {
		t.Errorf("without %q", p.Without)
	}
	p.Without = nil
	env := []string{"QUERN_VM=1", "HOME=/root", "TMPDIR=/tmp", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	flags := []string{"-test.v=test2json", "-test.count=1"}
	if want := (Plan{
		Modules: []string{"/modules/veth.ko", "/modules/stp.ko"},
		Steps: []Step{
			{
				Name: "m/a", Path: "/tests/0/test", Dir: "/tests/0/source", Timeout: 3 * time.Minute, Env: append(env[:4:4], "A=1"),
				Args: append(flags[:2:2], "-test.timeout=2m42s", "-test.short", "-test.run=TestA"),
			},
			{
				Name: "m/b", Path: "/tests/1/test", Dir: "/tests/1/source", Timeout: 10 * time.Second, Env: env,
				Args: append(flags[:2:2], "-test.timeout=9s", "-test.skip=TestB"),
			},
		},
	}); !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	tests[0].Path = filepath.Join(dir, "nothing")
	if err := WriteImage(&b, k, image, tests); err == nil {
		t.Error("no error for a binary that is not there")
	}
}

// TestRunAndParse runs steps as the init does, and reads the log as Boot does.
func TestRunAndParse(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := Plan{Steps: []Step{
		{Name: "m/ok", Path: self, Args: []string{"x"}, Env: append(os.Environ(), "VMTEST_CHILD=ok")},
		{Name: "m/bad", Path: self, Env: append(os.Environ(), "VMTEST_CHILD=bad")},
		{Name: "m/hang", Path: self, Env: append(os.Environ(), "VMTEST_CHILD=hang"), Timeout: 50 * time.Millisecond},
		{Name: "m/none", Path: filepath.Join(t.TempDir(), "nothing")},
	}}
	var log strings.Builder
	Note(&log, "kernel %s", "6.1")
	p.Run(&log)
	r := Parse(log.String())
	if !r.Done || !reflect.DeepEqual(r.Notes, []string{"kernel 6.1"}) || len(r.Outcomes) != 4 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []struct {
		exit   int
		output string
	}{{0, "said [x]\n"}, {3, "no newline\n"}, {-1, "killed after 50ms"}, {-1, "nothing"}} {
		o := r.Outcomes[i]
		if o.Name != p.Steps[i].Name || !o.Ended || o.Exit != want.exit || !strings.Contains(o.Output, want.output) {
			t.Errorf("%+v, want exit %d and %q", o, want.exit, want.output)
		}
	}
	all := []TestBinary{{Name: "m/ok"}}
	if err := r.Check(all); err != nil {
		t.Error(err)
	}
	// However short the log is cut, it is no success.
	whole := log.String()
	for cut := range len(whole) - len(markDone) {
		r := Parse(whole[:cut])
		if err := r.Check(all); err == nil {
			t.Fatalf("a log that ends after %q passes", whole[:cut])
		}
	}
}

func TestCheck(t *testing.T) {
	tests := []TestBinary{{Name: "m/a"}, {Name: "m/b"}}
	for _, tt := range []struct{ log, want string }{
		{"", "m/a were not begun"},
		{"@@vmtest begin m/a\n@@vmtest end m/a 0 10\n@@vmtest done\n", "m/b were not begun"},
		{"@@vmtest begin m/a\nmiddle", "m/a did not come to their end"},
		{"@@vmtest begin m/a\n@@vmtest end m/a 1 10\n@@vmtest begin m/b\n@@vmtest end m/b 0 10\n@@vmtest done\n", "m/a failed (exit code 1)"},
		{"@@vmtest begin m/a\n@@vmtest end m/a 0 10\n@@vmtest begin m/b\n@@vmtest end m/b 0 10\n", "end of its plan"},
		{"@@vmtest begin m/a\n@@vmtest end m/b 0 10\n@@vmtest begin m/b\n@@vmtest end m/b 0 10\n@@vmtest done\n", "m/a did not come"},
		{"@@vmtest begin m/a\n@@vmtest end m/a none 10\n@@vmtest begin m/b\n@@vmtest end m/b 0 10\n@@vmtest done\n", "m/a did not come"},
		{"@@vmtest begin m/a\r\n@@vmtest end m/a 0 10\r\n@@vmtest begin m/b\r\n@@vmtest end m/b 0 10\r\n@@vmtest done\r\n", ""},
	} {
		r := Parse(tt.log)
		err := r.Check(tests)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %v, want %q", tt.log, err, tt.want)
		}
	}
}

func TestVerified(t *testing.T) {
	r := Parse("@@vmtest begin m/a\n" +
		"=== RUN   TestLoad\n    load_test.go:12: dispatch   120 verified, 99 bytes\n    load_test.go:12: find_16_1 1433 verified\r\n" +
		"    load_test.go:12: dispatch 130 verified\n    x no 1 verified\n    load_test.go:12: no -1 verified\n    load_test.go:12: no 1 2 verified\n")
	if want := map[string]int{"dispatch": 130, "find_16_1": 1433}; !reflect.DeepEqual(r.Verified(), want) {
		t.Errorf("got %v, want %v", r.Verified(), want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("")
	f.Add("@@vmtest begin a\nx\n@@vmtest end a 0 1\n@@vmtest done\n")
	f.Add("@@vmtest begin \n@@vmtest end  0 1\n@@vmtest note \xff")
	f.Fuzz(func(t *testing.T, log string) {
		r := Parse(log)
		r.Verified()
		if err := r.Check([]TestBinary{{Name: "a"}}); err == nil && !strings.Contains(log, "@@vmtest end a 0 ") {
			t.Errorf("%q passes", log)
		}
	})
}
