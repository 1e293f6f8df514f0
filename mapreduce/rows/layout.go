// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"github.com/quernmr/quern/mapreduce/input"
)

// maxHeaders bounds how many different headers a layout remembers.
const maxHeaders = 1 << 10

// Layout is a checked format together with the wanted columns. All goroutines
// of a job share it; it remembers where in which file the columns are.
type Layout struct {
	format Format
	want   []string
	header HeaderFunc
	fixed  *columns // the same in all files; nil: every file has its own
	paths  *pathNode

	mu       sync.Mutex
	byHeader map[string]*columns // first record -> columns
	byFile   map[string]*columns // path -> columns
}

// columns says where the wanted columns are.
type columns struct {
	width int   // fields of a record
	at    []int // wanted column -> field number
	tail  []int // wanted columns that are a record's last field
}

// Want gives the names of the wanted columns.
func (l *Layout) Want() []string { return l.want }

// Learn notes the columns of b's file if b is at its start. Blocks of a stream
// that cannot be read twice (standard input, a pipe) and that are spread over
// several parsers go by Learn, in order, before they are spread; for all other
// files it is not needed.
func (l *Layout) Learn(b input.Block) error {
	if !l.perFile() || !atStart(b) || len(b.Data) == 0 {
		return nil
	}
	_, _, err := l.fromStart(b.File, b.Data, false)
	return err
}

func (l *Layout) perFile() bool {
	return l.fixed == nil && (l.format.Kind == CSV || l.format.Kind == TSV)
}

// atStart tells if a block begins with its file's first record. A byte order
// mark that was dropped makes the offset 3 there, hence the look at the line.
func atStart(b input.Block) bool { return b.Offset == 0 || b.Line == 1 }

// columnsOf gives the columns of a block's file and how many bytes at the
// block's start are header.
func (l *Layout) columnsOf(b input.Block) (*columns, int, error) {
	if !l.perFile() {
		return l.fixed, 0, nil
	}
	if atStart(b) {
		whole := b.File.Compression == "" && b.File.Size >= 0 && int64(len(b.Data)) >= b.File.Size
		return l.fromStart(b.File, b.Data, whole)
	}
	l.mu.Lock()
	c := l.byFile[b.File.Path]
	l.mu.Unlock()
	if c != nil {
		return c, 0, nil
	}
	first, err := l.header(b.File)
	if err != nil {
		return nil, 0, fmt.Errorf("read the first record of %s: %w", b.File.Path, err)
	}
	c, _, err = l.fromStart(b.File, first, false)
	return c, 0, err
}

// fromStart takes the columns from the beginning of a file. A file that was
// seen whole need not be remembered.
func (l *Layout) fromStart(file *input.File, data []byte, whole bool) (*columns, int, error) {
	s := newSplitter(&l.format)
	_, next, err := s.split(data, 0)
	if err != nil {
		return nil, 0, &Error{File: file.Path, Line: 1, Err: err}
	}
	record := data[:next]

	l.mu.Lock()
	c := l.byHeader[string(record)]
	l.mu.Unlock()
	if c == nil {
		if c, err = l.fromFirst(s, record); err != nil {
			return nil, 0, &Error{File: file.Path, Line: 1, Err: err}
		}
	}

	l.mu.Lock()
	if l.byHeader == nil {
		l.byHeader, l.byFile = map[string]*columns{}, map[string]*columns{}
	}
	if l.format.Header && len(l.byHeader) < maxHeaders {
		l.byHeader[string(record)] = c
	}
	if !whole {
		l.byFile[file.Path] = c
	}
	l.mu.Unlock()
	if !l.format.Header {
		next = 0
	}
	return c, next, nil
}

// fromFirst makes columns of a first record that s has split.
func (l *Layout) fromFirst(s *splitter, record []byte) (*columns, error) {
	blank := len(s.fields) == 1 && len(s.fields[0]) == 0 && (len(record) == 0 || record[0] != '"')
	if !l.format.Header {
		if blank {
			return nil, errors.New("the first line is empty, so the number of columns is not known: name the columns")
		}
		names := make([]string, len(s.fields))
		for i := range names {
			names[i] = strconv.Itoa(i + 1)
		}
		return resolve(names, l.want)
	}
	if blank {
		return nil, errors.New("the first line is empty but should name the columns: remove it, or name the columns and say that there is no header")
	}
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = string(f)
	}
	return resolve(names, l.want)
}

// resolve finds the wanted columns among those there are.
func resolve(names, want []string) (*columns, error) {
	c := &columns{width: len(names), at: make([]int, len(want))}
	for i, w := range want {
		at, err := position(names, w)
		if err != nil {
			return nil, err
		}
		c.at[i] = at
		if at == len(names)-1 {
			c.tail = append(c.tail, i)
		}
	}
	return c, nil
}

func position(names []string, want string) (int, error) {
	at := -1
	for i, n := range names {
		if n != want {
			continue
		}
		if at >= 0 {
			return 0, fmt.Errorf("there are several columns called %q (fields %d and %d): say which by its number, as in \"#%d\"", want, at+1, i+1, at+1)
		}
		at = i
	}
	if at >= 0 {
		return at, nil
	}
	if len(want) > 1 && want[0] == '#' {
		if n, err := strconv.Atoi(want[1:]); err == nil && n >= 1 && n <= len(names) {
			return n - 1, nil
		}
	}
	return 0, fmt.Errorf("there is no column %q; the columns are %s", want, quoteAll(names))
}

// resolveGroups finds the wanted groups of a pattern.
func resolveGroups(re *regexp.Regexp, want []string) (*columns, error) {
	names := re.SubexpNames()[1:]
	if len(names) == 0 {
		return nil, fmt.Errorf("the pattern %q has no groups: mark fields as (?P<name>...)", re)
	}
	known := make([]string, len(names))
	for i, n := range names {
		if n == "" {
			n = strconv.Itoa(i + 1)
		}
		known[i] = n
	}
	return resolve(known, want)
}
