// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Why a job file can't be run by other machines.
var (
	// ErrStandardInput means that standard input is among the inputs, which nobody
	// else can read.
	ErrStandardInput = errors.New("standard input can't be read by a cluster")
	// ErrNoOutput means that no folder is named for the result.
	ErrNoOutput = errors.New("no output is named, and a cluster has no standard output")
)

// Portable returns the job with paths that mean the same in every working folder:
// inputs, output and spill-dir are absolute; names of objects (s3://bucket/key) stay as they
// are. Errors are ErrStandardInput, ErrNoOutput, or that the working folder is not known.
func (f *File) Portable() (*File, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("the working folder: %w", err)
	}
	out := *f
	out.Inputs = make([]string, len(f.Inputs))
	for i, in := range f.Inputs {
		if in == "-" || in == "/dev/stdin" {
			return nil, ErrStandardInput
		}
		out.Inputs[i] = absolutePattern(here, in)
	}
	if out.Common.Output == "" {
		return nil, ErrNoOutput
	}
	out.Common.Output = absolutePath(here, out.Common.Output)
	out.Common.SpillDir = absolutePath(here, out.Common.SpillDir)
	return &out, nil
}

// IsObject reports whether a path names an object of a store, as s3://bucket/key does.
func IsObject(path string) bool { return strings.HasPrefix(path, "s3://") }

// absolutePath makes a path absolute; "" stays.
func absolutePath(here, path string) string {
	if path == "" || IsObject(path) || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(here, path)
}

// absolutePattern makes an input absolute. It is not cleaned otherwise: a slash at
// the end of a pattern means something.
func absolutePattern(here, pattern string) string {
	if pattern == "" || IsObject(pattern) || filepath.IsAbs(pattern) {
		return pattern
	}
	if strings.ContainsAny(pattern, `*?[{\`) {
		if _, err := os.Lstat(pattern); err != nil {
			// It will be taken as a pattern, so the folder's own name must not be.
			here = escapePattern(here)
		}
	}
	for strings.HasPrefix(pattern, "./") {
		pattern = strings.TrimLeft(pattern[2:], "/")
	}
	if pattern == "." || pattern == "" {
		return here
	}
	return strings.TrimSuffix(here, "/") + "/" + pattern
}

func escapePattern(path string) string {
	var b strings.Builder
	for _, r := range []byte(path) {
		if strings.IndexByte(`*?[]{}\`, r) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(r)
	}
	return b.String()
}

// Marshal writes the job as a job file. Settings that have their defaults are left out;
// ParseFile makes the same job of it.
func (f *File) Marshal() ([]byte, error) {
	top := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
		{Kind: yaml.ScalarNode, Value: "job"}, {Kind: yaml.ScalarNode, Value: f.Definition.Name},
	}}
	inputs := f.Inputs
	if inputs == nil {
		inputs = []string{}
	}
	if err := addEntry(top, "inputs", inputs); err != nil {
		return nil, err
	}
	own, err := changed(f.Options, f.Definition.New())
	if err != nil {
		return nil, err
	}
	if len(own.Content) > 0 {
		top.Content = append(top.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "options"}, own)
	}
	common, err := changed(&f.Common, new(Common))
	if err != nil {
		return nil, err
	}
	top.Content = append(top.Content, common.Content...)
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(top); err != nil {
		return nil, fmt.Errorf("write the job file of %s: %w", f.Definition.Name, err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("write the job file of %s: %w", f.Definition.Name, err)
	}
	if b.Len() > maxFile {
		return nil, fmt.Errorf("the job file of %s would have %d bytes, %d at most are read: name a folder or a pattern in place of %d inputs", f.Definition.Name, b.Len(), maxFile, len(f.Inputs))
	}
	return b.Bytes(), nil
}

// changed returns the settings that differ from their defaults as a mapping.
func changed(options, defaults any) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.MappingNode}
	were := Settings(defaults)
	for i, s := range Settings(options) {
		value, was := s.Value.Interface(), were[i].Value.Interface()
		if list, ok := value.([]string); ok {
			if old, _ := was.([]string); len(list) == 0 && len(old) == 0 {
				continue
			}
			if list == nil {
				value = []string{}
			}
		}
		if reflect.DeepEqual(value, was) {
			continue
		}
		if err := addEntry(out, s.Name, value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func addEntry(mapping *yaml.Node, key string, value any) error {
	node := &yaml.Node{}
	switch v := value.(type) {
	case string:
		node = textNode(v)
	case []string:
		node.Kind = yaml.SequenceNode
		for _, text := range v {
			node.Content = append(node.Content, textNode(text))
		}
		if len(v) == 0 {
			node.Style = yaml.FlowStyle
		}
	default:
		if err := node.Encode(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, node)
	return nil
}

// plainText matches texts that need no quotes: nothing else can be meant by them.
var plainText = regexp.MustCompile(`^(/|s3://)[A-Za-z0-9/._-]*$`)

// textNode is a text that is read back as it is. Block styles, which the library would
// choose for some, do not do that for all.
func textNode(text string) *yaml.Node {
	switch {
	case !utf8.ValidString(text):
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!binary", Value: base64.StdEncoding.EncodeToString([]byte(text))}
	case plainText.MatchString(text):
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Style: yaml.DoubleQuotedStyle}
}
