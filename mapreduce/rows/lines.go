// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"errors"
)

// nextLine is Next for the kinds in which a line (or what stands between the
// delimiters) is a record.
func (p *Parser) nextLine() bool {
	for p.pos < len(p.data) {
		p.cutLine()
		line := p.data[p.start:p.end]
		switch p.kind {
		case Lines:
			for i := range p.fields {
				p.fields[i] = line
			}
			return true
		case Regexp:
			if p.match(line) {
				return true
			}
			if p.layout.format.Unmatched == Fail {
				return p.refuse(errors.New("the pattern does not match the line"))
			}
			p.skipped++
		case JSONL:
			if isBlank(line) {
				continue
			}
			if err := p.json.read(line, p.layout.paths); err != nil {
				return p.refuse(err)
			}
			return true
		}
	}
	return false
}

// cutLine sets start and end to those of the record at pos and moves on.
func (p *Parser) cutLine() {
	p.start = p.pos
	delim := p.layout.format.Delimiter
	if len(delim) > 0 {
		n := bytes.Index(p.data[p.pos:], delim)
		if n < 0 {
			p.end, p.pos = len(p.data), len(p.data)
			return
		}
		p.end, p.pos = p.pos+n, p.pos+n+len(delim)
		return
	}
	n := bytes.IndexByte(p.data[p.pos:], '\n')
	if n < 0 {
		p.end, p.pos = len(p.data), len(p.data)
		return
	}
	p.end = len(trimCR(p.data[:p.pos+n], p.pos))
	p.pos += n + 1
}

// match takes the line apart by the pattern.
func (p *Parser) match(line []byte) bool {
	m := p.layout.format.Pattern.FindSubmatchIndex(line)
	if m == nil {
		return false
	}
	for i, c := range p.cols {
		from, to := m[2*c+2], m[2*c+3]
		if from < 0 {
			p.fields[i] = nil
			continue
		}
		p.fields[i] = line[from:to]
	}
	return true
}

// isBlank tells that a line holds nothing but JSON's white space.
func isBlank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return false
		}
	}
	return true
}
