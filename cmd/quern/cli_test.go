// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/quernmr/quern/jobs"
)

func TestEachJob(t *testing.T) {
	const (
		lines = "pear\napple\npear\n\nApple\n"
		sales = "city,amount\nOslo,2.50\nRome,1\nOslo,-0.5\n"
	)
	for _, c := range []struct {
		name  string
		args  []string // IN is the input's path
		file  string
		text  string
		want  string
		stdin bool // the text comes on standard input
	}{
		{name: "wordcount", args: []string{"wordcount", "--lower", "IN"}, text: lines, want: "apple\t2\npear\t2\n"},
		{name: "wordcount top", args: []string{"wordcount", "-n", "1", "IN"}, text: "b a b", want: "b\t2\n"},
		{name: "grep", args: []string{"grep", "^p", "IN"}, text: lines, want: "pear\npear\n"},
		{name: "grep by flag", args: []string{"grep", "-e", "^p", "IN"}, text: lines, want: "pear\npear\n"},
		{name: "grep pattern with dash", args: []string{"grep", "--", "-x", "IN"}, text: "a-x\nx\n", want: "a-x\n"},
		{name: "grep without match", args: []string{"grep", "zzz", "IN"}, text: lines, want: ""},
		{name: "grep on standard input", args: []string{"grep", "^A"}, text: lines, want: "Apple\n", stdin: true},
		{name: "count", args: []string{"count", "IN"}, text: lines, want: "\t1\nApple\t1\napple\t1\npear\t2\n"},
		{
			name: "aggregate", args: []string{"aggregate", "--group-by", "city", "--sum", "amount", "--count", "IN"}, file: "s.csv", text: sales,
			want: "Oslo\t2\t2\nRome\t1\t1\n",
		},
		{name: "distinct", args: []string{"distinct", "IN"}, text: lines, want: "4\n"},
		{name: "topk", args: []string{"topk", "-k", "1", "IN"}, text: lines, want: "pear\t2\n"},
		{name: "histogram", args: []string{"histogram", "--width", "10", "IN"}, text: "3\n12\n7\n", want: "0\t2\n10\t1\n"},
		{name: "sort", args: []string{"sort", "IN"}, text: lines, want: "\nApple\napple\npear\npear\n"},
		{name: "dedup", args: []string{"dedup", "IN"}, text: lines, want: "\nApple\napple\npear\n"},
		{name: "standard input", args: []string{"count"}, text: "x\nx\n", want: "x\t2\n", stdin: true},
		{name: "standard input by name", args: []string{"count", "-"}, text: "x\nx\n", want: "x\t2\n", stdin: true},
		{name: "csv", args: []string{"count", "--format=csv", "IN"}, text: "x,\n", want: "line,count\n\"x,\",1\n"},
		{name: "jsonl", args: []string{"count", "--format=jsonl", "IN"}, text: "x\n", want: "{\"key\":\"x\",\"value\":1}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			one := call{args: slices.Clone(c.args)}
			if c.stdin {
				one.stdin = c.text
			} else {
				path := file(t, cmp.Or(c.file, "in.txt"), c.text)
				one.args[slices.Index(one.args, "IN")] = path
			}
			o := run(t, one)
			if got := o.success(t); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if o.stderr != "" {
				t.Errorf("stderr: %q", o.stderr)
			}
		})
	}
}

func TestJoin(t *testing.T) {
	left, right := file(t, "left.csv", "id,name\n1,ann\n2,bob\n"), file(t, "right.csv", "id,city\n2,Rome\n3,Oslo\n")
	got := quern(t, "join", "--on", "id", left, right).success(t)
	if !strings.Contains(got, "bob") || !strings.Contains(got, "Rome") || strings.Contains(got, "ann") {
		t.Errorf("got %q", got)
	}
	for strategy, why := range map[string]string{"auto": "broadcast: the smaller side is the left one", "repartition": "repartition: it was asked for"} {
		args := []string{"join", "--on", "id", "--strategy", strategy, left, right}
		if said := quern(t, append([]string{"explain"}, args...)...).success(t); !strings.Contains(said, why) {
			t.Errorf("%q is not explained: %s", why, said)
		}
		if same := quern(t, args...).success(t); same != got {
			t.Errorf("--strategy %s gives %q, want %q", strategy, same, got)
		}
	}
	quern(t, "join", "--on", "id", "--strategy", "broadcast", "--type", "full", left, right).failure(t, exitUsage, "--strategy broadcast is not possible", "full join")
}

// TestBooks compares the words of real text with a count made another way.
func TestBooks(t *testing.T) {
	t.Parallel()
	books, err := filepath.Glob("../../testdata/books/*.txt")
	if err != nil || len(books) == 0 {
		t.Fatalf("no books: %v", err)
	}
	counts := map[string]int{}
	for _, book := range books {
		text, err := os.ReadFile(book)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range strings.FieldsFunc(strings.TrimPrefix(string(text), "\ufeff"), unicode.IsSpace) {
			counts[w]++
		}
	}
	var want strings.Builder
	for _, w := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&want, "%s\t%d\n", strings.ReplaceAll(w, `\`, `\\`), counts[w])
	}
	for _, more := range [][]string{nil, {"--workers=1"}, {"--split-size=10kB"}, {"--memory=64MiB"}} {
		got := quern(t, append([]string{"wordcount", "../../testdata/books"}, more...)...).success(t)
		if got != want.String() {
			t.Errorf("%v: the result differs from the count made here (%d and %d bytes)", more, len(got), want.Len())
		}
	}
}

func TestExitCodes(t *testing.T) {
	folder := t.TempDir()
	in := filepath.Join(folder, "in.txt")
	full := filepath.Join(folder, "full")
	for path, text := range map[string]string{in: words, filepath.Join(full, "x"): "x", filepath.Join(folder, "bad.csv"): "k,v\na,x7\n", filepath.Join(folder, "broken.yaml"): "job: wordcuont\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"wordcuont", in}, exitUsage, []string{`unknown command "wordcuont"`, `"wordcount"`, "hint: see 'quern --help'"}},
		{[]string{"wordcuont", in, "--lower"}, exitUsage, []string{`unknown command "wordcuont"`}},
		{[]string{"help", "wordcuont"}, exitUsage, []string{`unknown command "wordcuont"`}},
		{[]string{"--frobnicate"}, exitUsage, []string{"unknown flag --frobnicate"}},
		{[]string{"wordcount", "--lowre", in}, exitUsage, []string{"--lowre", "did you mean --lower?", "hint: see 'quern wordcount --help'"}},
		{[]string{"wordcount", "-lower", in}, exitUsage, []string{"did you mean --lower?"}},
		{[]string{"wordcount", "-Z", in}, exitUsage, []string{"unknown flag -Z"}},
		{[]string{"wordcount", "--top=many", in}, exitUsage, []string{"--top", `"many"`, "no whole number"}},
		{[]string{"wordcount", "--top=99999999999999999999", in}, exitUsage, []string{"--top", "out of range"}},
		{[]string{"wordcount", in, "--top"}, exitUsage, []string{"--top needs a value"}},
		{[]string{"wordcount", "--ngrams=0", in}, exitUsage, []string{"ngrams"}},
		{[]string{"wordcount", "--format=xml", in}, exitUsage, []string{"xml"}},
		{[]string{"wordcount", "--memory=much", in}, exitUsage, []string{"memory", "much"}},
		{[]string{"wordcount"}, exitUsage, []string{"no input"}}, // standard input is the null device
		{[]string{"grep"}, exitUsage, []string{"PATTERN"}},
		{[]string{"grep", "(", in}, exitUsage, []string{"("}},
		{[]string{"version", "x"}, exitUsage, []string{`"x"`}},
		{[]string{"run"}, exitUsage, []string{"JOBFILE"}},
		{[]string{"run", filepath.Join(folder, "broken.yaml")}, exitUsage, []string{"broken.yaml", "wordcuont"}},
		{[]string{"run", filepath.Join(folder, "none.yaml")}, exitUsage, []string{"none.yaml"}},
		{[]string{"explain", "wordcuont"}, exitUsage, []string{"wordcuont", "wordcount"}},
		{[]string{"aggregate", "--group-by=k", "--sum=v", filepath.Join(folder, "bad.csv")}, exitFailed, []string{"bad.csv", ":2", "x7"}},
		{[]string{"wordcount", filepath.Join(folder, "none.txt")}, exitInput, []string{"none.txt"}},
		{[]string{"wordcount", filepath.Join(folder, "*.log")}, exitInput, []string{"*.log"}},
		{[]string{"join", "--on", "k", filepath.Join(folder, "none.csv"), filepath.Join(folder, "none.csv")}, exitInput, []string{"none.csv"}},
		{[]string{"wordcount", filepath.Join(folder, "none.txt"), "-o", filepath.Join(folder, "out")}, exitInput, []string{"none.txt"}},
		{[]string{"explain", "wordcount", filepath.Join(folder, "none.txt")}, exitInput, []string{"none.txt"}},
		{[]string{"wordcount", in, "-o", full}, exitOutput, []string{"full", "--overwrite"}},
		{[]string{"wordcount", in, "-o", folder, "--overwrite"}, exitOutput, []string{folder}},
		{[]string{"wordcount", in, "-o", in}, exitOutput, []string{"in.txt"}},
		{[]string{"wordcount", in, "-o", filepath.Join(in, "below")}, exitOutput, []string{"in.txt"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			quern(t, c.args...).failure(t, c.code, c.says...)
		})
	}
	t.Cleanup(func() {
		if names := entries(t, folder); len(names) != 4 {
			t.Errorf("left behind: %q", names)
		}
	})
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read and write everything")
	}
	folder := t.TempDir()
	in := filepath.Join(folder, "in.txt")
	if err := os.WriteFile(in, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	quern(t, "wordcount", in).failure(t, exitInput, "in.txt")
	locked := filepath.Join(folder, "locked")
	if err := os.Mkdir(locked, 0o500); err != nil {
		t.Fatal(err)
	}
	quern(t, "wordcount", file(t, "in", words), "-o", filepath.Join(locked, "out")).failure(t, exitOutput, "locked")
}

func TestFolderOutput(t *testing.T) {
	in, out := file(t, "in", words), filepath.Join(t.TempDir(), "out")
	o := quern(t, "wordcount", in, "-o", out)
	if got := o.success(t); got != "" || o.stderr != "" {
		t.Errorf("stdout %q, stderr %q", got, o.stderr)
	}
	if names := entries(t, out); !slices.Equal(names, []string{"_SUCCESS", "part-00000"}) {
		t.Errorf("in the folder: %q", names)
	}
	quern(t, "wordcount", "--lower", "--partitions=3", "--format=jsonl", "--overwrite", in, "-o", out).success(t)
	if names := entries(t, out); len(names) != 4 || names[1] != "part-00000.jsonl" {
		t.Errorf("in the folder: %q", names)
	}
}

func TestQuietVerboseJSON(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"in.txt", ".hidden"} { // the second makes a note
		if err := os.WriteFile(filepath.Join(folder, name), []byte(words), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const rows = "a\t3\nb\t2\nc\t1\n"
	plain := quern(t, "wordcount", folder)
	if plain.success(t) != rows || strings.Count(plain.stderr, "\n") != 1 || !strings.HasPrefix(plain.stderr, "note: ") || !strings.Contains(plain.stderr, ".hidden") {
		t.Errorf("plain: stdout %q, stderr %q", plain.stdout, plain.stderr)
	}
	if o := quern(t, "wordcount", "--quiet", folder); o.success(t) != rows || o.stderr != "" {
		t.Errorf("quiet: stdout %q, stderr %q", o.stdout, o.stderr)
	}
	if o := quern(t, "wordcount", "--verbose", folder); o.success(t) != rows || !strings.Contains(o.stderr, "quern wordcount: 1 file, 12 B, ") || !strings.Contains(o.stderr, "3 rows") {
		t.Errorf("verbose: stdout %q, stderr %q", o.stdout, o.stderr)
	}
	floats := filepath.Join(t.TempDir(), "floats.csv")
	if err := os.WriteFile(floats, []byte("x\n1\nNaN\n2\nnan\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := quern(t, "aggregate", "--floats", "--sum", "x", "--nan", "skip", "--verbose", floats); !strings.Contains(o.success(t), "3") || !strings.Contains(o.stderr, "quern aggregate: NaN values skipped: 2\n") {
		t.Errorf("values that were left out: stdout %q, stderr %q", o.stdout, o.stderr)
	}
	o := quern(t, "wordcount", "--json", folder)
	if o.success(t) != rows || strings.Count(o.stderr, "\n") != 1 {
		t.Errorf("json: stdout %q, stderr %q", o.stdout, o.stderr)
	}
	got := o.lastJSON(t)
	for key, want := range map[string]any{"job": "wordcount", "ok": true, "bytes": 12.0, "rows": 3.0, "spills": 0.0, "files": 1.0} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	audit, _ := got["audit"].(map[string]any)
	if audit["pairs_emitted"] != 6.0 || audit["keys"] != 3.0 || audit["sum_check_map"] != audit["sum_check_drain"] {
		t.Errorf("audit: %v", audit)
	}
	for _, key := range []string{"counters", "notes", "records", "seconds", "peak_rss_bytes"} {
		if got[key] == nil {
			t.Errorf("%s is missing", key)
		}
	}
	if notes, _ := got["notes"].([]any); len(notes) != 1 {
		t.Errorf("notes: %v", got["notes"])
	}

	failed := quern(t, "wordcount", "--quiet", "--json", "nowhere")
	if got := failed.lastJSON(t); got["ok"] != false || got["exit_code"] != 3.0 || got["job"] != "wordcount" || !strings.Contains(fmt.Sprint(got["error"]), "nowhere") {
		t.Errorf("failure: %v", got)
	}
	if usage := quern(t, "wordcount", "--bogus", "--json").lastJSON(t); usage["exit_code"] != 2.0 {
		t.Errorf("usage error: %v", usage)
	}
	if env := run(t, call{args: []string{"wordcount", folder}, env: []string{"QUERN_JSON=1"}}); env.lastJSON(t)["ok"] != true {
		t.Errorf("QUERN_JSON: %q", env.stderr)
	}
}

func TestJobFile(t *testing.T) {
	in := file(t, "in.txt", words)
	job := file(t, "job.yaml", fmt.Sprintf("job: wordcount\ninputs: [%q]\noptions:\n  min-count: 2\nformat: csv\n", in))
	const asCSV, asTSV = "word,count\na,3\nb,2\n", "a\t3\nb\t2\n"
	config := file(t, "c.yaml", "format: jsonl\nwordcount: {min-count: 3}\n")
	for _, c := range []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{"file", nil, nil, asCSV},
		{"flag over file", []string{"--format=tsv"}, nil, asTSV},
		{"variable over file", nil, []string{"QUERN_FORMAT=tsv"}, asTSV},
		{"flag over variable", []string{"--format=tsv"}, []string{"QUERN_FORMAT=jsonl"}, asTSV},
		{"file over configuration", []string{"--config", config}, nil, asCSV},
		{"the job's own variables do not count", nil, []string{"QUERN_MIN_COUNT=3"}, asCSV},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := run(t, call{args: append([]string{"run", job}, c.args...), env: c.env}).success(t)
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	quern(t, "run", job, "--min-count=1").failure(t, exitUsage, "--min-count")
	quern(t, "run", job, job).failure(t, exitUsage, "JOBFILE")
}

func TestExplain(t *testing.T) {
	in := file(t, "in.txt", words)
	job := file(t, "job.yaml", fmt.Sprintf("job: wordcount\ninputs: [%q]\n", in))
	for _, args := range [][]string{{"wordcount", "--lower", in}, {job}} {
		text := quern(t, append([]string{"explain"}, args...)...).success(t)
		for _, s := range []string{"wordcount", "1 file, 12 B", "splits", "fold", "memory", "why:"} {
			if !strings.Contains(text, s) {
				t.Errorf("%v does not say %q:\n%s", args, s, text)
			}
		}
		var e map[string]any
		o := quern(t, append([]string{"explain", "--json"}, args...)...)
		if err := json.Unmarshal([]byte(o.success(t)), &e); err != nil || e["files"] != 1.0 || e["bytes"] != 12.0 || o.stderr != "" {
			t.Errorf("%v: %v, %v, stderr %q", args, err, e, o.stderr)
		}
	}
	grouped := quern(t, "explain", "sort", in).success(t)
	if !strings.Contains(grouped, "reduce") {
		t.Errorf("sort:\n%s", grouped)
	}
}

func TestVersion(t *testing.T) {
	if got := quern(t, "version").success(t); !strings.HasPrefix(got, "quern 9.8.7") || strings.Count(got, "\n") != 1 {
		t.Errorf("version: %q", got)
	}
	if got := quern(t, "--version").success(t); !strings.HasPrefix(got, "quern 9.8.7") {
		t.Errorf("--version: %q", got)
	}
	var b build
	if err := json.Unmarshal([]byte(quern(t, "version", "--json").success(t)), &b); err != nil || b.Version != "9.8.7" || !strings.HasPrefix(b.Go, "go") {
		t.Errorf("version --json: %v, %v", b, err)
	}
}

func TestHelp(t *testing.T) {
	all := quern(t).success(t)
	for _, d := range jobs.All() {
		if !strings.Contains(all, d.Name+" ") {
			t.Errorf("help does not list %s", d.Name)
		}
		help := quern(t, d.Name, "--help").success(t)
		if got := quern(t, "help", d.Name).success(t); got != help {
			t.Errorf("help %s and %s --help differ", d.Name, d.Name)
		}
		for _, key := range append(keysOf(d.New()), generalKeys()...) {
			if !strings.Contains(help, "--"+key) {
				t.Errorf("help of %s does not show --%s", d.Name, key)
			}
		}
	}
	for _, code := range []string{"0", "1", "2", "3", "4", "130", "141"} {
		if text := quern(t, "help", "exit-codes").success(t); !strings.Contains(text, " "+code+"  ") {
			t.Errorf("exit code %s is not explained", code)
		}
	}
	if text := quern(t, "help", "configuration").success(t); !strings.Contains(text, "QUERN_") {
		t.Errorf("configuration:\n%s", text)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := quern(t, "completion", shell).success(t); !strings.Contains(got, "quern") {
			t.Errorf("%s: %q", shell, got)
		}
	}
	quern(t, "completion", "tcsh").failure(t, exitUsage, "tcsh", "fish")
	quern(t, "completion", "bash", "x").failure(t, exitUsage, `"x"`)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"word"}, "wordcount\t"},
		{[]string{"explain", "word"}, "wordcount\t"},
		{[]string{"bench", "word"}, "wordcount\n"},
		{[]string{"help", ""}, "exit-codes\t"},
		{[]string{"wordcount", "--form"}, "--format\t"},
		{[]string{"wordcount", "--format", "j"}, "jsonl\n"},
		{[]string{"wordcount", ""}, ":0\n"}, // file names
		{[]string{"run", ""}, "yaml\n"},
	} {
		if got := quern(t, append([]string{"__complete"}, c.args...)...).success(t); !strings.Contains(got, c.want) {
			t.Errorf("%q completes to %q, want %q in it", c.args, got, c.want)
		}
	}
}

// TestEveryOptionIsAFlag finds options of a type that no flag is made of.
func TestEveryOptionIsAFlag(t *testing.T) {
	for _, d := range jobs.All() {
		a := &app{args: []string{d.Name}}
		cmd := a.jobCommand(d, a.prepared(a.runJob))
		keys := append(keysOf(d.New()), generalKeys()...)
		slices.Sort(keys)
		if unique := slices.Compact(slices.Clone(keys)); len(unique) != len(keys) {
			t.Errorf("%s has two options of one name: %q", d.Name, keys)
		}
		for _, key := range keys {
			if cmd.Flags().Lookup(key) == nil {
				t.Errorf("%s: no flag --%s", d.Name, key)
			}
		}
		if d.Short == "" || d.Long == "" || d.Example == "" {
			t.Errorf("%s: help is incomplete", d.Name)
		}
	}
}
