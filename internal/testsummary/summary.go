// SPDX-License-Identifier: Apache-2.0

package testsummary

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Skip is a test that was skipped.
type Skip struct {
	Package string
	Test    string
	Reason  string // one line; "" if the test gave none
}

func (s Skip) String() string {
	reason := s.Reason
	if reason == "" {
		reason = "no reason given"
	}
	return s.Package + " " + s.Test + ": " + reason
}

// Summary is what became of tests.
type Summary struct {
	Passed  int // tests, subtests included
	Failed  []string
	Skipped []Skip
	// Broken are packages that did not compile or ended without a result.
	Broken []string
}

// OK says whether nothing failed.
func (s *Summary) OK() bool { return len(s.Failed) == 0 && len(s.Broken) == 0 }

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action     string
	Package    string
	Test       string
	ImportPath string // of build output
	Output     string
}

// key names a test, or with an empty test a package.
type key struct{ pkg, test string }

// Reader gathers a Summary from events.
type Reader struct {
	// Out is where lines per package and the output of what failed go; nil: nowhere.
	Out io.Writer
	// Verbose writes all output as it comes.
	Verbose bool

	sum    Summary
	output map[key]*bytes.Buffer // of tests in progress and of packages
}

// Read reads events until the end. Lines that are no events are output of the go
// command itself and are passed on.
func (r *Reader) Read(in io.Reader) error {
	if r.output == nil {
		r.output = map[key]*bytes.Buffer{}
	}
	if r.Out == nil {
		r.Out = io.Discard
	}
	lines := bufio.NewReaderSize(in, 1<<16)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				e = event{Action: "build-output", Output: string(line)}
			}
			if werr := r.event(e); werr != nil {
				return fmt.Errorf("write the summary of tests: %w", werr)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events of go test: %w", err)
		}
	}
}

func (r *Reader) event(e event) (err error) {
	write := func(text string) {
		if err == nil {
			_, err = io.WriteString(r.Out, text)
		}
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		write(e.Output)
	case "build-fail":
		r.sum.Broken = append(r.sum.Broken, e.ImportPath)
	case "output":
		if r.Verbose {
			write(e.Output)
		} else if e.Test == "" && packageLine(e.Output) {
			write(e.Output)
			return err
		}
		b := r.output[k]
		if b == nil {
			b = new(bytes.Buffer)
			r.output[k] = b
		}
		b.WriteString(e.Output)
	case "pass":
		if e.Test != "" {
			r.sum.Passed++
		}
		delete(r.output, k)
	case "skip":
		if e.Test != "" {
			r.sum.Skipped = append(r.sum.Skipped, Skip{e.Package, e.Test, reason(r.output[k])})
		}
		delete(r.output, k)
	case "fail":
		if e.Test != "" {
			r.sum.Failed = append(r.sum.Failed, e.Package+" "+e.Test)
		} else if !slices.ContainsFunc(r.sum.Failed, func(f string) bool { return strings.HasPrefix(f, e.Package+" ") }) {
			r.sum.Broken = append(r.sum.Broken, e.Package)
		}
		if b := r.output[k]; b != nil && !r.Verbose {
			write(b.String())
		}
		delete(r.output, k)
	}
	return err
}

// packageLine says whether a line is a package's result.
func packageLine(s string) bool {
	return strings.HasPrefix(s, "ok  \t") || strings.HasPrefix(s, "FAIL\t") || strings.HasPrefix(s, "?   \t")
}

// logPrefix is what the testing package puts before a logged line.
var logPrefix = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason finds what a test said last before it was skipped.
func reason(b *bytes.Buffer) string {
	if b == nil {
		return ""
	}
	var said []string
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", strings.HasPrefix(line, "=== "), strings.HasPrefix(line, "--- "):
		case logPrefix.MatchString(line):
			said = []string{logPrefix.ReplaceAllString(line, "")}
		case len(said) > 0: // the rest of a message of several lines
			said = append(said, line)
		}
	}
	return strings.Join(said, "; ")
}

// Summary returns what was read so far. Skips and failures are in order of
// packages and tests, whatever ran first.
func (r *Reader) Summary() *Summary {
	s := r.sum
	s.Failed, s.Broken = slices.Sorted(slices.Values(s.Failed)), slices.Sorted(slices.Values(s.Broken))
	s.Failed, s.Broken = slices.Compact(s.Failed), slices.Compact(s.Broken)
	s.Skipped = slices.SortedFunc(slices.Values(s.Skipped), func(a, b Skip) int { return strings.Compare(a.String(), b.String()) })
	return &s
}

// Expected knows which skips are meant.
type Expected []*regexp.Regexp

// ParseExpected reads a list of skips that are meant: one regular expression a
// line, matched against the whole of Skip.String(). Empty lines and those that
// begin with # say why.
func ParseExpected(text string) (Expected, error) {
	var e Expected
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		re, err := regexp.Compile("^(?:" + line + ")$")
		if err != nil {
			return nil, fmt.Errorf("line %d of the expected skips: %w", i+1, err)
		}
		e = append(e, re)
	}
	return e, nil
}

// Unexpected returns the skips that are not meant.
func (e Expected) Unexpected(skips []Skip) (out []Skip) {
	for _, s := range skips {
		if !slices.ContainsFunc(e, func(re *regexp.Regexp) bool { return re.MatchString(s.String()) }) {
			out = append(out, s)
		}
	}
	return out
}
