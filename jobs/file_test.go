// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/quernmr/quern/mapreduce"
)

func TestJobFile(t *testing.T) {
	path := write(t, "a.csv", "k,v\na,1\nb,2\na,3.5\n")
	f, err := ParseFile("job.yaml", []byte(`
# Sums by key.
job: aggregate
inputs: [`+path+`]
format: jsonl
partitions: 2
memory: 64MiB
options:
  group-by: k
  sum: [v]
  min: [v]
  decimals: 1
`))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	job, opts, err := f.Prepare(&out)
	if err != nil {
		t.Fatal(err)
	}
	if opts.Memory != 64<<20 || opts.Partitions != 2 {
		t.Errorf("memory %d, partitions %d", opts.Memory, opts.Partitions)
	}
	opts.TotalOrder = true
	if _, err := mapreduce.Run(context.Background(), job, opts); err != nil {
		t.Fatal(err)
	}
	const want = `{"key":"a","value":{"sum_v":4.5,"min_v":1}}` + "\n" + `{"key":"b","value":{"sum_v":2,"min_v":2}}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestJobFileErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "empty"},
		{"job: wordcount", "j.yaml:1: inputs"},
		{"inputs: a", "j.yaml:1: job"},
		{"job: nope\ninputs: a", `j.yaml:1: unknown job "nope"`},
		{"job: wordcount\ninputs: a\nparts: 3", `j.yaml:3: unknown key "parts"`},
		{"job: wordcount\ninputs: a\noptions:\n  tops: 3", `j.yaml:4: unknown option of wordcount "tops"`},
		{"job: wordcount\ninputs: a\noptions:\n  top: many", "j.yaml:4: top: must be a whole number"},
		{"job: wordcount\ninputs: a\noptions:\n  lower: 1", "j.yaml:4: lower: must be true or false"},
		{"job: wordcount\ninputs: a\noptions: [top]", "j.yaml:3: options must be a mapping"},
		{"job: wordcount\ninputs: a\ninputs: b", "j.yaml:3: inputs: is there twice"},
		{"job: wordcount\ninputs: {a: b}", "j.yaml:2: inputs: must be a list of texts"},
		{"job: wordcount\ninputs: a\n---\njob: count", "second document"},
		{"job: [", "j.yaml: yaml"},
		{"just text", "j.yaml:1: a job file must be a mapping"},
	} {
		_, err := ParseFile("j.yaml", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q in it", c.text, err, c.want)
		}
	}
}

func FuzzJobFile(f *testing.F) {
	f.Add([]byte("job: wordcount\ninputs: [a]\noptions: {top: 3}"))
	f.Add([]byte("a: &x [*x]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := ParseFile("j.yaml", text)
		if (file == nil) == (err == nil) {
			t.Fatalf("file %v, error %v", file, err)
		}
	})
}

// TestSettings checks that every option of every job has a name and a help text,
// a type that flags and job files can set, and clashes with no other.
func TestSettings(t *testing.T) {
	check := func(owner string, names, shorts map[string]bool, settings []Setting) {
		for _, s := range settings {
			if s.Name == "" || s.Help == "" || strings.HasSuffix(s.Help, ".") {
				t.Errorf("%s: --%s has no name, no help, or help with a full stop", owner, s.Name)
			}
			if names[s.Name] || s.Short != "" && shorts[s.Short] {
				t.Errorf("%s: --%s (-%s) is there twice", owner, s.Name, s.Short)
			}
			names[s.Name], shorts[s.Short] = true, true
			switch s.Value.Interface().(type) {
			case bool, string, int, int64, float64, []string:
			default:
				t.Errorf("%s: --%s has type %s", owner, s.Name, s.Value.Type())
			}
		}
	}
	for _, d := range All() {
		names, shorts := map[string]bool{}, map[string]bool{}
		check("common options", names, shorts, Settings(new(Common)))
		check(d.Name, names, shorts, Settings(d.New()))
		if d.Short == "" || d.Long == "" || !strings.Contains(d.Example, "quern "+d.Name) {
			t.Errorf("%s lacks a description or an example", d.Name)
		}
		if reflect.TypeOf(d.New()).Kind() != reflect.Pointer {
			t.Errorf("%s: options are no pointer", d.Name)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "1": 1, "64KiB": 65536, "512MiB": 512 << 20, "2GB": 2e9, "1.5k": 1500} {
		if got, err := parseSize("memory", text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "-1", "0", "10 elephants", "1e40"} {
		if got, err := parseSize("memory", text); err == nil || !strings.Contains(err.Error(), "--memory") {
			t.Errorf("%q: %d, %v; want an error", text, got, err)
		}
	}
}

func TestDelimiters(t *testing.T) {
	for text, want := range map[string]string{"": "", ",": ",", `\0`: "\x00", `\t`: "\t", `\x1e`: "\x1e", `"`: `"`, "\n": "\n", `\r\n`: "\r\n", "é": "é", `\\`: `\`, `\u2028`: "\u2028", `\0a`: "\x00a"} {
		if got, err := parseDelimiter(text); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`\`, `\q`, `\x1`} {
		if got, err := parseDelimiter(text); err == nil {
			t.Errorf("%q: %q, want an error", text, got)
		}
	}
}
