// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Outcome is what a step did.
type Outcome struct {
	Name   string
	Output string // of a test binary: for go tool test2json
	Ended  bool   // the step came to its end, whatever that was
	Exit   int
	Took   time.Duration
}

// Result is what came out of a machine's second serial port.
type Result struct {
	Notes    []string
	Outcomes []Outcome
	Done     bool // the plan came to its end
}

// Parse reads a log. Whatever it holds, there is a result: a log may break off
// anywhere.
func Parse(log string) Result {
	var r Result
	var open *Outcome
	var text strings.Builder
	end := func() {
		if open != nil {
			open.Output = text.String()
			r.Outcomes = append(r.Outcomes, *open)
		}
		open = nil
		text.Reset()
	}
	for line := range strings.Lines(log) {
		line = strings.ReplaceAll(line, "\r", "")
		said := strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(said, markBegin):
			end()
			open = &Outcome{Name: said[len(markBegin):], Exit: -1}
		case strings.HasPrefix(said, markEnd):
			f := strings.Fields(said[len(markEnd):])
			if open == nil || len(f) != 3 || f[0] != open.Name {
				continue
			}
			code, err := strconv.Atoi(f[1])
			ms, err2 := strconv.ParseInt(f[2], 10, 48)
			if err == nil && err2 == nil {
				open.Ended, open.Exit, open.Took = true, code, time.Duration(ms)*time.Millisecond
			}
			end()
		case strings.HasPrefix(said, markNote):
			r.Notes = append(r.Notes, said[len(markNote):])
		case said == markDone:
			end()
			r.Done = true
		case open != nil:
			text.WriteString(line)
		}
	}
	end()
	return r
}

// Check returns an error unless every one of the tests ran to its end and passed.
func (r *Result) Check(tests []TestBinary) error {
	for _, t := range tests {
		var o *Outcome
		for i := range r.Outcomes {
			if r.Outcomes[i].Name == t.Name {
				o = &r.Outcomes[i]
			}
		}
		switch {
		case o == nil:
			return fmt.Errorf("the tests of %s were not begun", t.Name)
		case !o.Ended:
			return fmt.Errorf("the tests of %s did not come to their end", t.Name)
		case o.Exit != 0:
			return fmt.Errorf("the tests of %s failed (exit code %d)", t.Name, o.Exit)
		}
	}
	if !r.Done {
		return fmt.Errorf("the machine did not come to the end of its plan")
	}
	return nil
}

// verifiedLine is how tests tell of the verifier; see the package's comment.
var verifiedLine = regexp.MustCompile(`(?m)^\s*[\w.-]+\.go:\d+: (\w+) +(\d+) verified\b`)

// Verified returns the instructions that the verifier went through, by program.
// Of several counts the largest is taken.
func (r *Result) Verified() map[string]int {
	m := map[string]int{}
	for _, o := range r.Outcomes {
		for _, f := range verifiedLine.FindAllStringSubmatch(o.Output, -1) {
			if n, err := strconv.Atoi(f[2]); err == nil {
				m[f[1]] = max(m[f[1]], n)
			}
		}
	}
	return m
}
