// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
)

// RowFormat are the options of jobs that read records with fields.
type RowFormat struct {
	InputFormat string   `name:"input-format" help:"csv, tsv, jsonl, parquet or regexp; default: by the name of the first input, else csv"`
	Comma       string   `name:"comma" help:"what stands between the fields of csv; default: ,"`
	Columns     []string `name:"columns" help:"names of the columns of csv or tsv without a header line, with commas between them"`
	NoHeader    bool     `name:"no-header" help:"csv or tsv has no header line: columns are 1, 2, ... (or as --columns says)"`
	Pattern     string   `name:"pattern" help:"regular expression with named groups, (?P<name>...), which are the columns; implies --input-format regexp"`
	OnMismatch  string   `name:"on-mismatch" help:"lines the pattern does not match, csv records with too few or too many fields: error or skip"`
	Escapes     bool     `name:"escapes" help:"tsv: undo the escapes \\t \\n \\r \\\\ that quern itself writes"`
	LazyQuotes  bool     `name:"lazy-quotes" help:"a quote may stand inside a csv field that does not begin with one"`
}

// unused refuses the options if the job does not look at fields.
func (f *RowFormat) unused() error {
	for _, o := range []struct {
		name string
		set  bool
	}{
		{"input-format", f.InputFormat != ""},
		{"comma", f.Comma != ""},
		{"columns", len(f.Columns) > 0},
		{"no-header", f.NoHeader},
		{"pattern", f.Pattern != ""},
		{"on-mismatch", f.OnMismatch != ""},
		{"lazy-quotes", f.LazyQuotes},
		{"escapes", f.Escapes},
	} {
		if o.set {
			return fmt.Errorf("--%s is about fields of rows: say which one with --field", o.name)
		}
	}
	return nil
}

// kind returns how records are written: as the options say, or else by the name
// of the first input; "" if neither tells.
func (f *RowFormat) kind(in *input.Options, inputs []string) (string, error) {
	switch f.InputFormat {
	case "csv", "tsv", "jsonl", "parquet", "regexp":
		return f.InputFormat, nil
	case "":
	case "json", "ndjson":
		return "jsonl", nil
	default:
		return "", fmt.Errorf("--input-format %q: say csv, tsv, jsonl, parquet or regexp", f.InputFormat)
	}
	switch {
	case f.Pattern != "":
		return "regexp", nil
	case in.Format == input.Parquet:
		return "parquet", nil
	case f.Comma != "" || f.LazyQuotes:
		return "csv", nil
	case len(inputs) == 0:
		return "", nil
	}
	name := inputs[0]
	if first, ok := input.First(context.Background(), name, *in); ok {
		name = first
	} else if info, err := os.Stat(name); err == nil && info.IsDir() {
		name = firstFile(name)
	}
	return kindByName(name), nil
}

// firstFile returns the first file in a folder that a job would read; "" if
// there is none, which the job itself will say.
func firstFile(dir string) string {
	first := ""
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		hidden := path != dir && (d.Name()[0] == '.' || d.Name()[0] == '_')
		switch {
		case err != nil || hidden && d.IsDir():
			return filepath.SkipDir
		case !hidden && !d.IsDir():
			first = path
			return filepath.SkipAll
		}
		return nil
	})
	return first
}

func kindByName(name string) string {
	name = strings.ToLower(filepath.Base(name))
	for _, ext := range []string{".gz", ".zst", ".zstd", ".bz2", ".xz", ".sz", ".s2", ".lz4"} {
		if trimmed, ok := strings.CutSuffix(name, ext); ok {
			name = trimmed
			break
		}
	}
	switch filepath.Ext(name) {
	case ".csv":
		return "csv"
	case ".tsv", ".tab":
		return "tsv"
	case ".jsonl", ".ndjson", ".json":
		return "jsonl"
	case ".parquet":
		return "parquet"
	}
	return ""
}

// open makes a source of records of whose columns the wanted ones are read. It
// sets in to read such records.
func (f *RowFormat) open(in *input.Options, inputs, want []string) (*source, error) {
	kind, err := f.kind(in, inputs)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		kind = "csv"
	}
	format, err := f.rowsFormat(kind)
	if err != nil {
		return nil, err
	}
	format.Delimiter = in.Delimiter
	if kind == "parquet" {
		format.Delimiter = nil // rows come as JSON lines
		in.Format, in.Columns = input.Parquet, topLevel(want)
	} else {
		in.Format = format.Input()
	}
	s := &source{typed: format.Kind == rows.JSONL}
	if s.layout, err = format.Prepare(want, newHeaderFunc(*in)); err != nil {
		return nil, err
	}
	return s, nil
}

func (f *RowFormat) rowsFormat(kind string) (*rows.Format, error) {
	format := &rows.Format{LazyQuotes: f.LazyQuotes, Escapes: f.Escapes}
	switch kind {
	case "csv":
		format.Kind = rows.CSV
	case "tsv":
		format.Kind = rows.TSV
	case "jsonl", "parquet":
		format.Kind = rows.JSONL
	case "regexp":
		format.Kind = rows.Regexp
		re, err := regexp.Compile(f.Pattern)
		if f.Pattern == "" {
			err = errors.New("needed for --input-format regexp")
		}
		if err != nil {
			return nil, fmt.Errorf("--pattern: %w", err)
		}
		format.Pattern = re
	}
	if f.Pattern != "" && kind != "regexp" {
		return nil, fmt.Errorf("--pattern is for --input-format regexp, not %s", kind)
	}
	if format.Kind == rows.CSV || format.Kind == rows.TSV {
		format.Header = !f.NoHeader && len(f.Columns) == 0
		for _, list := range f.Columns {
			format.Columns = append(format.Columns, strings.Split(list, ",")...)
		}
	} else if f.NoHeader || len(f.Columns) > 0 {
		return nil, fmt.Errorf("--columns and --no-header are for csv and tsv, not %s", kind)
	}
	if f.Comma != "" {
		comma := f.Comma
		if comma == `\t` {
			comma = "\t"
		}
		if len(comma) != 1 || comma[0] >= utf8.RuneSelf {
			return nil, fmt.Errorf("--comma %q: must be one ASCII character", f.Comma)
		}
		format.Comma = comma[0]
	}
	switch f.OnMismatch {
	case "", "error":
	case "skip":
		format.Ragged, format.Unmatched = rows.Skip, rows.Skip
	default:
		return nil, fmt.Errorf("--on-mismatch %q: say error or skip", f.OnMismatch)
	}
	return format, nil
}

// topLevel returns the columns of a Parquet file that paths lead into; empty,
// which reads all, if there is no path.
func topLevel(paths []string) []string {
	var names []string
	seen := map[string]bool{}
	for _, path := range paths {
		name := []byte(nil)
		for i := 0; i < len(path) && path[i] != '.'; i++ {
			if path[i] == '\\' && i+1 < len(path) {
				i++
			}
			name = append(name, path[i])
		}
		if !seen[string(name)] {
			seen[string(name)] = true
			names = append(names, string(name))
		}
	}
	return names
}
