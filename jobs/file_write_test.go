// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Every setting of every job comes back from the file that Marshal writes.
func TestMarshalEachSetting(t *testing.T) {
	for _, d := range All() {
		whole := &File{Definition: d, Inputs: []string{"/a", "s3://b/k"}, Options: d.New()}
		for _, settings := range [][]Setting{Settings(whole.Options), Settings(&whole.Common)} {
			for _, s := range settings {
				change(t, s)
				checkMarshal(t, whole)
			}
		}
		// One at a time, so that none hides behind another.
		for i := range Settings(d.New()) {
			f := &File{Definition: d, Inputs: []string{"/a"}, Options: d.New()}
			change(t, Settings(f.Options)[i])
			if text := checkMarshal(t, f); !strings.Contains(text, "options:\n  "+Settings(f.Options)[i].Name+":") {
				t.Errorf("%s: --%s is not in the file:\n%s", d.Name, Settings(f.Options)[i].Name, text)
			}
		}
		plain := &File{Definition: d, Inputs: []string{"/a"}, Options: d.New()}
		plain.Common.Output = "/o"
		if text := checkMarshal(t, plain); text != "job: "+d.Name+"\ninputs:\n  - /a\noutput: /o\n" {
			t.Errorf("%s: defaults are written:\n%s", d.Name, text)
		}
	}
}

// change gives a setting a value that is not its default.
func change(t *testing.T, s Setting) {
	t.Helper()
	switch v := s.Value.Addr().Interface().(type) {
	case *bool:
		*v = !*v
	case *string:
		*v += "07"
	case *int:
		*v += 3
	case *int64:
		*v += 1 << 40
	case *float64:
		*v += 2
	case *[]string:
		*v = append(*v, "null", "1.5")
	default:
		t.Fatalf("--%s has a type that the test does not know", s.Name)
	}
}

func checkMarshal(t interface {
	Helper()
	Fatalf(string, ...any)
}, f *File,
) string {
	t.Helper()
	text, err := f.Marshal()
	if err != nil {
		t.Fatalf("%v", err)
	}
	got, err := ParseFile("j", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if got.Definition.Name != f.Definition.Name || !reflect.DeepEqual(got.Inputs, f.Inputs) || !reflect.DeepEqual(got.Options, f.Options) || got.Common != f.Common {
		t.Fatalf("got %#v %#v\nwant %#v %#v\n%s", got.Options, got.Common, f.Options, f.Common, text)
	}
	return string(text)
}

// Whatever texts are in it, it comes back: numbers, dates, bytes that are no UTF-8, line ends.
func TestMarshalAnyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.SampledFrom([]string{"1", "0x1f", "yes", "null", "~", "2001-01-01", "1e3", "- a", "a: b", "#", "\\0", "!!int 3", "&a", "*a", "<<", "\u2028", "\ufeff", " a ", "\r\n", "|\n a"}),
		)
		d := rapid.SampledFrom(All()).Draw(t, "job")
		f := &File{Definition: d, Inputs: rapid.SliceOfN(text, 1, 4).Draw(t, "inputs"), Options: d.New()}
		f.Common.Output, f.Common.Delimiter = text.Draw(t, "output"), text.Draw(t, "delimiter")
		for _, s := range Settings(f.Options) {
			switch v := s.Value.Addr().Interface().(type) {
			case *string:
				*v = text.Draw(t, s.Name)
			case *[]string:
				if list := rapid.SliceOf(text).Draw(t, s.Name); len(list) > 0 {
					*v = list
				}
			}
		}
		checkMarshal(t, f)
	})
}

func TestPortable(t *testing.T) {
	here := filepath.Join(t.TempDir(), "we[i]rd")
	if err := os.MkdirAll(filepath.Join(here, "a*"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	escaped := strings.NewReplacer("[", `\[`, "]", `\]`).Replace(here)
	d, _ := Lookup("wordcount")
	f := &File{Definition: d, Options: d.New(), Inputs: []string{"books/", "./x", "a*", "b*/", "../y", "/z/**/*.txt", "s3://bucket/k*", "."}}
	f.Common.Output, f.Common.SpillDir = "out/", "spill"
	got, err := f.Portable()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{here + "/books/", here + "/x", here + "/a*", escaped + "/b*/", here + "/../y", "/z/**/*.txt", "s3://bucket/k*", here}
	if !reflect.DeepEqual(got.Inputs, want) {
		t.Errorf("inputs %q, want %q", got.Inputs, want)
	}
	if got.Common.Output != here+"/out" || got.Common.SpillDir != here+"/spill" {
		t.Errorf("output %q, spill-dir %q", got.Common.Output, got.Common.SpillDir)
	}
	if f.Inputs[0] != "books/" {
		t.Error("the job itself was changed")
	}

	f.Common.Output = "s3://bucket/out"
	if got, err := f.Portable(); err != nil || got.Common.Output != "s3://bucket/out" {
		t.Errorf("output %q, %v", got.Common.Output, err)
	}
	f.Common.Output = ""
	if _, err := f.Portable(); !errors.Is(err, ErrNoOutput) {
		t.Errorf("no output: %v", err)
	}
	for _, in := range []string{"-", "/dev/stdin"} {
		f.Inputs = []string{"a", in}
		if _, err := f.Portable(); !errors.Is(err, ErrStandardInput) {
			t.Errorf("%s: %v", in, err)
		}
	}
}
