// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"regexp"
	"regexp/syntax"
)

// A lineFinder finds the records of a block that match. Goroutines may share it.
type lineFinder struct {
	re     *regexp.Regexp
	invert bool
	cut    recordCutter
	// literal is text that every match contains; empty: none is known. Then
	// whole blocks are searched for it, and the expression looks only at the
	// lines where it was found.
	literal []byte
	// exact: a line matches if it contains literal.
	exact bool
}

func newLineFinder(re *regexp.Regexp, invert bool, cut recordCutter) *lineFinder {
	f := &lineFinder{re: re, invert: invert, cut: cut}
	if tree, err := syntax.Parse(re.String(), syntax.Perl); err == nil {
		f.literal = []byte(requiredLiteral(tree.Simplify()))
		f.exact = tree.Op == syntax.OpLiteral && len(f.literal) > 0
	}
	return f
}

// find calls yield with the place of each record of data that is looked for.
func (f *lineFinder) find(data []byte, yield func(start, end int)) {
	if len(f.cut.delimiter) <= 1 && len(f.literal) > 0 {
		f.findByLiteral(data, yield)
		return
	}
	for pos := 0; pos < len(data); {
		record, rest := f.cut.next(data[pos:])
		if f.matches(record) != f.invert {
			yield(pos, pos+len(record))
		}
		pos = len(data) - len(rest)
	}
}

func (f *lineFinder) matches(record []byte) bool {
	if f.exact {
		return bytes.Contains(record, f.literal)
	}
	return f.re.Match(record)
}

func (f *lineFinder) findByLiteral(data []byte, yield func(start, end int)) {
	delimiter := byte('\n')
	if len(f.cut.delimiter) == 1 {
		delimiter = f.cut.delimiter[0]
	}
	for pos := 0; pos < len(data); {
		hit := bytes.Index(data[pos:], f.literal)
		start := len(data) // of the record that has the literal
		if hit >= 0 {
			start = pos + bytes.LastIndexByte(data[pos:pos+hit], delimiter) + 1
		}
		if f.invert {
			for pos < start {
				record, rest := f.cut.next(data[pos:])
				yield(pos, pos+len(record))
				pos = len(data) - len(rest)
			}
		}
		if start == len(data) {
			return
		}
		record, rest := f.cut.next(data[start:])
		// The literal may reach beyond the record, so look again.
		if f.matches(record) != f.invert {
			yield(start, start+len(record))
		}
		pos = len(data) - len(rest)
	}
}

// requiredLiteral returns text that every match of re contains: the longest
// that is easily seen, or "".
func requiredLiteral(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return string(re.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return requiredLiteral(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return requiredLiteral(re.Sub[0])
		}
	case syntax.OpConcat:
		longest := ""
		for _, sub := range re.Sub {
			if s := requiredLiteral(sub); len(s) > len(longest) {
				longest = s
			}
		}
		return longest
	}
	return ""
}
