// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"path/filepath"
	"slices"

	"github.com/quernmr/quern/internal/benchdata"
)

// dataset is an input with the tools that are to find the same in it.
type dataset struct {
	name  string
	title string
	file  string // in the bench folder
	// make writes the file; nil: scripts/bench does.
	make func(b *bench, w io.Writer) error
	// result says what the tools' outputs mean.
	result    resultKind
	contender []contender
}

// contender is a tool with its way to do a data set's work.
type contender struct {
	label string
	tool  string   // quern, mawk, sort or duckdb
	needs []string // programs that must be there
	// argv is the command. {in} stands for the input, {out} for a file that
	// the command writes itself; otherwise its standard output is the result.
	argv []string
	form form
	// inexact tools do something easier, for comparison; their results are not.
	inexact bool
}

// shell runs a pipeline in which the first failure counts.
func shell(line string) []string {
	return []string{"bash", "-o", "pipefail", "-c", "export LC_ALL=C; " + line, "bench", "{in}"}
}

const (
	mawkWords = `mawk '{for(i=1;i<=NF;i++)c[$i]++}END{for(w in c)print w"\t"c[w]}' "$1"`
	mawkLines = `mawk '{c[$0]++}END{for(k in c)print k"\t"c[k]}' "$1"`
	mawkRows  = `mawk -F';' '{t=$2+0;if(!($1 in n)||t<lo[$1])lo[$1]=t;if(!($1 in n)||t>hi[$1])hi[$1]=t;s[$1]+=t;n[$1]++}` +
		`END{for(k in n)printf "%s\t%.1f\t%.9f\t%.1f\n",k,lo[k],s[k]/n[k],hi[k]}' "$1"`
	sortWords = `tr -s '[:space:]' '\n' <"$1" | sort | uniq -c`
	sortLines = `sort "$1" | uniq -c`
)

func quernTool(label string, form form, args ...string) contender {
	return contender{label: label, tool: "quern", argv: append([]string{"{quern}"}, args...), form: form}
}

func shellTool(label, tool string, form form, line string, needs ...string) contender {
	return contender{label: label, tool: tool, needs: append([]string{"bash"}, needs...), argv: shell(line), form: form}
}

func duckdbTool(query string) contender {
	return contender{label: "DuckDB", tool: "duckdb", needs: []string{"node"}, argv: []string{"node", "{duckdb}", query, "{in}", "{out}"}, form: plainTab}
}

var datasets = []dataset{
	{
		name: "linux", title: "Linux source text, words", file: "linux.txt", result: wordCounts,
		contender: []contender{
			quernTool("quern wordcount", escapedTab, "wordcount", "{in}"),
			quernTool("quern wordcount --memory 512MiB", escapedTab, "wordcount", "--memory", "512MiB", "{in}"),
			shellTool("mawk", "mawk", plainTab, mawkWords, "mawk"),
			duckdbTool("words"),
			{
				label: "DuckDB, words split at spaces only", tool: "duckdb", needs: []string{"node"},
				argv: []string{"node", "{duckdb}", "spaces", "{in}", "{out}"}, inexact: true,
			},
		},
	},
	{
		name: "rows", title: "50 million rows station;temperature, min, mean and max by station", file: "temperatures.txt", result: minMeanMax,
		make: func(_ *bench, w io.Writer) error { return benchdata.Temperatures(w, 50_000_000, 413, 1) },
		contender: []contender{
			quernTool("quern aggregate", escapedTab, "aggregate", "--comma", ";", "--columns", "station,temperature",
				"--group-by", "station", "--min", "temperature", "--mean", "temperature", "--max", "temperature", "{in}"),
			shellTool("mawk", "mawk", plainTab, mawkRows, "mawk"),
			duckdbTool("rows"),
		},
	},
	{
		name: "books", title: "The books of testdata 33 times over, words", file: "books.txt", result: wordCounts,
		make: func(b *bench, w io.Writer) error {
			files, err := filepath.Glob(filepath.Join(b.books, "*.txt"))
			if err != nil {
				return err
			}
			return benchdata.Repeat(w, 33, files...)
		},
		contender: []contender{
			quernTool("quern wordcount", escapedTab, "wordcount", "{in}"),
			shellTool("mawk, sort", "mawk", plainTab, mawkWords+" | sort", "mawk", "sort"),
			shellTool("tr, sort, uniq -c", "sort", uniqCount, sortWords, "tr", "sort", "uniq"),
			duckdbTool("words"),
		},
	},
	{
		name: "keys", title: "5 million lines with keys from 4 million", file: "keys.txt", result: lineCounts,
		make: func(_ *bench, w io.Writer) error { return benchdata.Keys(w, 5_000_000, 4_000_000, 1) },
		contender: []contender{
			quernTool("quern count", escapedTab, "count", "{in}"),
			shellTool("mawk", "mawk", plainTab, mawkLines, "mawk"),
			shellTool("sort, uniq -c", "sort", uniqCount, sortLines, "sort", "uniq"),
			duckdbTool("lines"),
		},
	},
}

func datasetNames() []string {
	var names []string
	for _, d := range datasets {
		names = append(names, d.name)
	}
	return names
}

func findDataset(name string) *dataset {
	i := slices.IndexFunc(datasets, func(d dataset) bool { return d.name == name })
	if i < 0 {
		return nil
	}
	return &datasets[i]
}
