// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quernmr/quern/mapreduce"
)

// Common are the settings that every job has, on the command line and in a job
// file alike (tags as in Options).
type Common struct {
	Output        string `name:"output" short:"o" help:"folder for the result; without it rows go to standard output"`
	Format        string `name:"format" help:"tsv, csv, jsonl, parquet or plain (as tsv, nothing escaped); default: plain for grep, sort and dedup, tsv for all else"`
	ParquetBinary bool   `name:"parquet-binary" help:"parquet: write strings as binary, which need not be UTF-8"`
	Compress      string `name:"compress" help:"compress the output: gzip or zstd"`
	Overwrite     bool   `name:"overwrite" help:"replace an output folder that exists, whatever it holds, once the job has succeeded"`
	Partitions    int    `name:"partitions" help:"number of parts of the result"`
	TotalOrder    bool   `name:"total-order" help:"parts follow each other in key order"`
	Memory        string `name:"memory" help:"memory budget such as 512MiB; default: half of what the machine grants"`
	Workers       int    `name:"workers" help:"goroutines that map and reduce; default: the CPUs granted"`
	SpillDir      string `name:"spill-dir" help:"folder for what does not fit in memory"`
	AllowEmpty    bool   `name:"allow-empty" help:"an input that matches nothing is no error"`
	MaxLine       string `name:"max-line" help:"longest record, such as 64MiB"`
	LongLines     string `name:"long-lines" help:"records over that: error, skip or truncate"`
	Delimiter     string `name:"delimiter" help:"what ends a record (escapes as in Go: \\0 \\t \\x1e); default: newline"`
	Encoding      string `name:"encoding" help:"transcode the input: utf-16, utf-16le, utf-16be, latin1, windows-1252"`
	SplitSize     string `name:"split-size" help:"bytes of a split, such as 16MiB"`
}

// File is a job file: a YAML mapping of
//
//	job: wordcount            # the job's name
//	inputs: [books/, "-"]     # paths and patterns, relative to the working folder
//	options: {top: 20}        # the job's own settings, named as its flags
//	output: counts            # and any of the Common settings, named as their flags
type File struct {
	Definition Definition
	Inputs     []string
	Options    Options
	Common     Common
}

// maxFile bounds a job file, in bytes.
const maxFile = 1 << 20

// ReadFile reads a job file; "-" is standard input. Errors name the file and
// the line.
func ReadFile(path string) (*File, error) {
	if path == "-" {
		return readFile("standard input", os.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("job file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	return readFile(path, f)
}

func readFile(name string, r io.Reader) (*File, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("job file: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("job file %s is larger than %d bytes: is it the input?", name, maxFile)
	}
	return ParseFile(name, text)
}

// ParseFile reads the text of a job file; name is for errors.
func ParseFile(name string, text []byte) (*File, error) {
	f, err := parseFile(text)
	if err == nil {
		return f, nil
	}
	var at *lineError
	if errors.As(err, &at) {
		return nil, fmt.Errorf("%s:%d: %w", name, at.line, at.err)
	}
	return nil, fmt.Errorf("%s: %w", name, err)
}

// lineError is an error about a line of a job file.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

func atNode(n *yaml.Node, format string, args ...any) error {
	return &lineError{n.Line, fmt.Errorf(format, args...)}
}

func parseFile(text []byte) (*File, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("the job file is empty; it needs at least the keys job and inputs")
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, atNode(&more, "a second document: a job file holds one job")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	top, err := mapping(doc.Content[0], "a job file")
	if err != nil {
		return nil, err
	}
	f := &File{}
	name := top.take("job")
	if name == nil {
		return nil, atNode(doc.Content[0], "job: is missing; it is one of %s", jobNames())
	}
	var ok bool
	if f.Definition, ok = Lookup(name.Value); !ok || name.Kind != yaml.ScalarNode {
		return nil, atNode(name, "unknown job %q; it is one of %s", name.Value, jobNames())
	}
	f.Options = f.Definition.New()

	inputs := top.take("inputs")
	if inputs == nil {
		return nil, atNode(doc.Content[0], "inputs: is missing: a list of files, folders or patterns")
	}
	if f.Inputs, err = texts(inputs, "inputs"); err != nil {
		return nil, err
	}
	if own := top.take("options"); own != nil {
		options, err := mapping(own, "options")
		if err != nil {
			return nil, err
		}
		if err := options.apply(Settings(f.Options), "option of "+f.Definition.Name); err != nil {
			return nil, err
		}
	}
	if err := top.apply(Settings(&f.Common), "key"); err != nil {
		return nil, err
	}
	return f, nil
}

// Prepare is the function Prepare for the job of the file.
func (f *File) Prepare(stdout io.Writer) (mapreduce.Runnable, mapreduce.Options, error) {
	return Prepare(f.Definition, f.Options, f.Common, f.Inputs, stdout)
}

// entries are the keys and values of a YAML mapping that are not yet dealt with.
type entries struct {
	keys   []*yaml.Node
	values []*yaml.Node
}

func mapping(n *yaml.Node, what string) (*entries, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return nil, atNode(n, "%s must be a mapping of names to values", what)
	}
	e := &entries{}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			return nil, atNode(key, "a key must be a name")
		}
		if seen[key.Value] {
			return nil, atNode(key, "%s: is there twice", key.Value)
		}
		seen[key.Value] = true
		e.keys, e.values = append(e.keys, key), append(e.values, n.Content[i+1])
	}
	return e, nil
}

// take removes and returns the value of a key, or nil.
func (e *entries) take(name string) *yaml.Node {
	for i, key := range e.keys {
		if key.Value == name {
			value := e.values[i]
			e.keys = append(e.keys[:i], e.keys[i+1:]...)
			e.values = append(e.values[:i], e.values[i+1:]...)
			return value
		}
	}
	return nil
}

// apply sets settings to what the entries say; there must be one for each.
func (e *entries) apply(settings []Setting, what string) error {
	for _, s := range settings {
		node := e.take(s.Name)
		if node == nil {
			continue
		}
		var value any
		if err := node.Decode(&value); err != nil {
			return atNode(node, "%s: %w", s.Name, err)
		}
		if err := s.Set(value); err != nil {
			return atNode(node, "%s: %w", s.Name, err)
		}
	}
	if len(e.keys) > 0 {
		names := make([]string, len(settings))
		for i, s := range settings {
			names[i] = s.Name
		}
		return atNode(e.keys[0], "unknown %s %q; known ones are %s", what, e.keys[0].Value, strings.Join(names, ", "))
	}
	return nil
}

func texts(n *yaml.Node, what string) ([]string, error) {
	var value any
	if err := n.Decode(&value); err != nil {
		return nil, atNode(n, "%s: %w", what, err)
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	items := make([]string, len(list))
	for i, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil, atNode(n, "%s: must be a list of texts", what)
		}
		items[i] = text
	}
	return items, nil
}

func jobNames() string {
	var names []string
	for _, d := range All() {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}
