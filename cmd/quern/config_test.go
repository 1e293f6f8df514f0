// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// words has a three times, b twice and c once.
const words = "a b a c\na b\n"

func TestPrecedence(t *testing.T) {
	const (
		config = "wordcount:\n  min-count: 3\n"
		all    = "a\t3\nb\t2\nc\t1\n"
		two    = "a\t3\nb\t2\n"
		three  = "a\t3\n"
	)
	for _, c := range []struct {
		name   string
		config string
		env    []string
		args   []string
		want   string
	}{
		{"default", "", nil, nil, all},
		{"file", config, nil, nil, three},
		{"environment over file", config, []string{"QUERN_MIN_COUNT=2"}, nil, two},
		{"flag over environment", config, []string{"QUERN_MIN_COUNT=2"}, []string{"--min-count=1"}, all},
		{"flag that repeats the default", config, nil, []string{"--min-count=0"}, all},
		{"empty variable is unset", config, []string{"QUERN_MIN_COUNT="}, nil, three},
		{"common key", "format: csv\n", nil, nil, "word,count\na,3\nb,2\nc,1\n"},
		{"common key in a section", "wordcount: {format: tsv}\nformat: csv\n", nil, nil, all},
		{"other job's section", "count: {format: csv, min-count: 3}\n", nil, nil, all},
		{"other job's variable", "", []string{"QUERN_GROUP_BY=x"}, nil, all},
		{"a switch", "wordcount: {lower: true}\n", []string{"QUERN_LOWER=false"}, nil, all},
		{"null is unset", "format: null\nwordcount:\n", nil, nil, all},
		{"cluster variables", "", []string{
			"QUERN_PORT=tcp://10.0.0.1:80", "QUERN_SERVICE_HOST=10.0.0.1",
			"QUERN_PORT_80_TCP_ADDR=10.0.0.1", "QUERN_MASTER_SERVICE_PORT_HTTP=80",
		}, nil, all},
		{"aliases", "format: &f csv\nwordcount: {format: *f}\n", nil, nil, "word,count\na,3\nb,2\nc,1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"wordcount", file(t, "in", words)}, c.args...)
			if c.config != "" {
				args = append(args, "--config", file(t, "c.yaml", c.config))
			}
			if got := run(t, call{args: args, env: c.env}).success(t); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhereTheFileIs(t *testing.T) {
	in := file(t, "in", words)
	folder := t.TempDir()
	for path, text := range map[string]string{
		"home/.config/quern/config.yaml": "wordcount: {min-count: 2}\n",
		"xdg/quern/config.yaml":          "wordcount: {min-count: 3}\n",
		"named.yaml":                     "wordcount: {min-count: 4}\n",
	} {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	home := "HOME=" + filepath.Join(folder, "home")
	xdg := "XDG_CONFIG_HOME=" + filepath.Join(folder, "xdg")
	named := "QUERN_CONFIG=" + filepath.Join(folder, "named.yaml")
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{home}, "a\t3\nb\t2\n"},
		{[]string{home, xdg}, "a\t3\n"},
		{[]string{home, "XDG_CONFIG_HOME=relative"}, "a\t3\nb\t2\n"},
		{[]string{home, xdg, named}, ""},
	} {
		if got := run(t, call{args: []string{"wordcount", in}, env: c.env}).success(t); got != c.want {
			t.Errorf("%v: got %q, want %q", c.env, got, c.want)
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	in := file(t, "in", words)
	for _, c := range []struct {
		name   string
		config string
		env    string
		says   []string
	}{
		{"variable", "", "QUERN_MEMROY=1GiB", []string{"QUERN_MEMROY", "did you mean QUERN_MEMORY?"}},
		{"variable like nothing", "", "QUERN_XYLOPHONE=1", []string{"QUERN_XYLOPHONE"}},
		{"variable that is no number", "", "QUERN_WORKERS=two", []string{"QUERN_WORKERS", `"two"`, "no whole number"}},
		{"top", "format: tsv\nmemroy: 1GiB\n", "", []string{"c.yaml:2:", "memroy", "did you mean memory?"}},
		{"job", "wordcuont:\n  lower: true\n", "", []string{"c.yaml:1:", "wordcuont", "did you mean wordcount?"}},
		{"section", "wordcount:\n  mincount: 2\n", "", []string{"c.yaml:2:", "wordcount.mincount", "did you mean wordcount.min-count?"}},
		{"other job's section", "count:\n\n  lower: true\n", "", []string{"c.yaml:3:", "count.lower"}},
		{"option of a job at the top", "min-count: 2\n", "", []string{"c.yaml:1:", "min-count"}},
		{"capitals", "Memory: 1GiB\n", "", []string{"Memory", "did you mean memory?"}},
		{"twice", "format: tsv\nformat: csv\n", "", []string{"c.yaml", "format"}},
		{"value", "wordcount:\n  min-count: many\n", "", []string{"c.yaml:2:", "min-count", `"many"`, "no whole number"}},
		{"list for a value", "format: [tsv, csv]\n", "", []string{"c.yaml:1:", "format", "not a list"}},
		{"mapping for a value", "format: {a: b}\n", "", []string{"c.yaml:1:", "format"}},
		{"value for a section", "wordcount: 3\n", "", []string{"c.yaml:1:"}},
		{"list at the top", "- a\n", "", []string{"c.yaml:1:"}},
		{"no yaml", "a: [\n", "", []string{"c.yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"wordcount", in}
			if c.config != "" {
				args = append(args, "--config", file(t, "c.yaml", c.config))
			}
			var env []string
			if c.env != "" {
				env = []string{c.env}
			}
			run(t, call{args: args, env: env}).failure(t, exitUsage, c.says...)
		})
	}
	t.Run("missing file", func(t *testing.T) {
		quern(t, "wordcount", in, "--config", "nowhere.yaml").failure(t, exitUsage, "nowhere.yaml")
	})
	t.Run("help needs no sound environment", func(t *testing.T) {
		run(t, call{args: []string{"help", "wordcount"}, env: []string{"QUERN_X=1"}}).success(t)
	})
}

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		"", "# nothing\n", "memory: 1GiB\nwordcount:\n  lower: true\n", "a: &x [*x]\n", "wordcount: {<<: {lower: true}}\n",
		"format: !!binary aGk=\n", "? [a]\n: b\n", "wordcount: [1]\n", "\xff\xfe", "format: &a\n  - *a\n", "--- \n...\n---\nformat: x\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		settings, lines, err := parseConfig(text, "wordcount")
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without text")
			}
			return
		}
		for key, value := range settings {
			if lines[key] < 1 {
				t.Errorf("%s: line %d", key, lines[key])
			}
			switch value.(type) {
			case string, []string:
			default:
				t.Errorf("%s has a value of type %T", key, value)
			}
		}
	})
}
