// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/quernmr/quern/mapreduce/input"
)

// Kind is the way records are written.
type Kind string

// The kinds.
const (
	// CSV is RFC 4180: fields may stand in quotes, and then hold commas,
	// doubled quotes and newlines.
	CSV Kind = "csv"
	// TSV is one record a line with tabs between the fields; a quote is data
	// like any other. (For tabs and quotes as in RFC 4180 use CSV with Comma '\t'.)
	TSV Kind = "tsv"
	// JSONL is one JSON object a line. Wanted names are paths (see [Format.Prepare]).
	JSONL Kind = "jsonl"
	// Regexp takes lines apart by a pattern; its named groups are the columns.
	Regexp Kind = "regexp"
	// Lines has one column, "line", which is the whole record.
	Lines Kind = "lines"
)

// Policy says what becomes of a record that is not as it should be.
type Policy uint8

const (
	// Fail ends the job with an error that names file and line.
	Fail Policy = iota
	// Skip drops the record; [Parser.Skipped] counts it.
	Skip
	// Pad takes the record as it is: fields it lacks are nil, fields too many
	// are ignored. Only for Ragged.
	Pad
)

// Format says what records look like.
type Format struct {
	Kind Kind

	// Comma stands between the fields of CSV; 0: ','. It is a single ASCII byte
	// other than NUL, '"', CR and LF.
	Comma byte
	// Header says that the first record of each file (CSV, TSV) names the
	// columns. The files of a job may have them in different order.
	Header bool
	// Columns names the columns of CSV and TSV without a header. Empty: they
	// are called "1", "2", ..., as many as the first record of a file has.
	Columns []string
	// LazyQuotes lets a quote stand inside an unquoted CSV field, and a single
	// one inside a quoted field, as data. Every line is then a record by
	// itself: a newline ends it even between quotes.
	LazyQuotes bool
	// Escapes undoes the \t, \n, \r and \\ with which Quern writes TSV.
	Escapes bool
	// Ragged is for records with too few or too many fields (CSV, TSV).
	Ragged Policy

	// Pattern takes lines apart (Regexp). Groups without a name are columns
	// "1", "2", ... by their number; a group that took no part is nil.
	Pattern *regexp.Regexp
	// Unmatched is for lines that the pattern does not match: Fail or Skip.
	Unmatched Policy

	// Delimiter ends a record of JSONL, Regexp and Lines. Empty: LF, and one CR
	// before it is no data.
	Delimiter []byte
}

// Input says how the files of this format are to be cut into records.
func (f *Format) Input() input.Format {
	if f.Kind == CSV && !f.LazyQuotes {
		return input.QuotedLines
	}
	return input.Lines
}

// HeaderFunc gives the beginning of a file (decompressed, without a byte order
// mark): its whole first record at least. It is only called for blocks that are
// not at the start of their file, and may be called by several goroutines at once.
type HeaderFunc func(file *input.File) ([]byte, error)

// Prepare checks the format and which columns are wanted, and gives what all
// parsers of a job share. Columns are asked for by name. In CSV and TSV "#2" is
// the second column unless one has that very name. In JSON lines a name is a
// path: "a.b" is the member b of a's object, "a.0" the first element of a's
// array, and a dot or backslash that belongs to a name is escaped (`a\.b`).
//
// For CSV and TSV with a header, header must not be nil, and errors about
// columns that are not there come from [Parser.Reset], for they may differ from
// file to file.
func (f *Format) Prepare(want []string, header HeaderFunc) (*Layout, error) {
	l := &Layout{format: *f, want: append([]string(nil), want...), header: header}
	if err := f.validate(); err != nil {
		return nil, err
	}
	var err error
	switch f.Kind {
	case CSV, TSV:
		if l.format.Comma == 0 {
			l.format.Comma = ','
		}
		if f.Kind == TSV {
			l.format.Comma = '\t'
		}
		if len(f.Columns) > 0 {
			l.fixed, err = resolve(f.Columns, want)
		} else if header == nil {
			err = errors.New("rows: Prepare needs a function that reads the first record of a file")
		}
	case JSONL:
		l.paths, err = parsePaths(want)
	case Regexp:
		l.fixed, err = resolveGroups(f.Pattern, want)
	case Lines:
		l.fixed, err = resolve([]string{"line"}, want)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// NewParser is Prepare for a single goroutine.
func (f *Format) NewParser(want []string, header HeaderFunc) (*Parser, error) {
	l, err := f.Prepare(want, header)
	if err != nil {
		return nil, err
	}
	return l.NewParser(), nil
}

func (f *Format) validate() error {
	delimited := f.Kind == CSV || f.Kind == TSV
	switch f.Kind {
	case CSV, TSV, JSONL, Regexp, Lines:
	case "":
		return errors.New("no format given: say csv, tsv, jsonl, regexp or lines")
	default:
		return fmt.Errorf("unknown format %q: say csv, tsv, jsonl, regexp or lines", f.Kind)
	}
	if f.Kind == CSV {
		if c := f.Comma; c == '"' || c == '\r' || c == '\n' || c >= 0x80 {
			return fmt.Errorf("%q cannot stand between fields: use a single ASCII character other than a quote or a line end", string(rune(c)))
		}
	} else if f.Comma != 0 && !(f.Kind == TSV && f.Comma == '\t') {
		return fmt.Errorf("format %s has no field separator to choose: use csv", f.Kind)
	}
	if !delimited && (f.Header || len(f.Columns) > 0) {
		return fmt.Errorf("format %s has no header and no column list", f.Kind)
	}
	if f.Header && len(f.Columns) > 0 {
		return errors.New("either a header or a list of columns names the columns, not both")
	}
	if (f.Kind == Regexp) != (f.Pattern != nil) {
		if f.Pattern == nil {
			return errors.New("format regexp needs a pattern")
		}
		return fmt.Errorf("format %s takes no pattern: use regexp", f.Kind)
	}
	if f.LazyQuotes && f.Kind != CSV {
		return fmt.Errorf("lazy quotes are for csv, not for %s", f.Kind)
	}
	if f.Escapes && f.Kind != TSV {
		return fmt.Errorf("escapes are for tsv, not for %s", f.Kind)
	}
	if delimited && len(f.Delimiter) > 0 && string(f.Delimiter) != "\n" {
		return fmt.Errorf("records of %s end with a newline: a delimiter of one's own is for lines, jsonl and regexp", f.Kind)
	}
	if f.Ragged > Pad || f.Unmatched > Skip {
		return errors.New("unknown policy: Ragged is Fail, Skip or Pad, Unmatched is Fail or Skip")
	}
	return nil
}

func quoteAll(names []string) string {
	const most = 50 // names listed in an error
	quoted := make([]string, 0, len(names))
	for i, n := range names {
		if i == most {
			quoted = append(quoted, fmt.Sprintf("and %d more", len(names)-most))
			break
		}
		quoted = append(quoted, fmt.Sprintf("%q", n))
	}
	return strings.Join(quoted, ", ")
}
