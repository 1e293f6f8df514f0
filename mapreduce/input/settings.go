// SPDX-License-Identifier: Apache-2.0

package input

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
)

const (
	defaultMaxLine   = 64 << 20
	defaultSplitSize = 16 << 20
	// streamSize is the compressed size from which on a file is worth a reader
	// of its own.
	streamSize = 4 << 20
	// groupFiles is how many small files one split takes at most.
	groupFiles = 4096
	// longestLine bounds MaxLine so that sums with it cannot overflow.
	longestLine = 1 << 56
)

// settings are Options with every default filled in.
type settings struct {
	Options
	cut     cutter
	decoder encoding.Encoding // nil: bytes as they are
	block   int               // bytes of a block
	open    func(path string) (diskFile, error)
	uploads map[string]string // Uploads by tidy names
	whole   bool              // files are read whole, whatever is in them, and were looked into
}

func newSettings(o Options) (*settings, error) {
	o.Uploads = processUploads(o.Uploads)
	s := &settings{Options: o, block: defaultBlock, open: openFile}
	switch {
	case o.MaxLine < 0:
		return nil, fmt.Errorf("input: the longest line is %d bytes; give a positive number with --max-line", o.MaxLine)
	case o.SplitSize < 0:
		return nil, fmt.Errorf("input: the split size is %d bytes; give a positive number", o.SplitSize)
	case o.MaxLine == 0:
		s.MaxLine = defaultMaxLine
	}
	s.MaxLine = min(s.MaxLine, longestLine)
	if s.SplitSize == 0 {
		s.SplitSize = defaultSplitSize
	}
	if o.Format > Parquet {
		return nil, fmt.Errorf("input: unknown format %d", o.Format)
	}
	if o.LongLines > LongLinesTruncate {
		return nil, fmt.Errorf("input: unknown way %d to deal with long lines", o.LongLines)
	}
	if o.Format == QuotedLines {
		if len(o.Delimiter) > 0 && string(o.Delimiter) != "\n" {
			return nil, errors.New("input: lines with quotes (CSV) end with LF or CRLF; leave --delimiter out")
		}
		s.Delimiter = nil
	}
	if o.Format == Parquet && o.Encoding != "" {
		return nil, errors.New("input: Parquet files have no text encoding; leave --encoding out")
	}
	switch strings.ToLower(o.Encoding) {
	case "", "utf-8", "utf8":
	case "utf-16":
		s.decoder = unicode.UTF16(unicode.LittleEndian, unicode.ExpectBOM)
	case "utf-16le":
		s.decoder = unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM)
	case "utf-16be":
		s.decoder = unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM)
	case "latin1", "iso-8859-1":
		s.decoder = charmap.ISO8859_1
	case "windows-1252":
		s.decoder = charmap.Windows1252
	default:
		return nil, fmt.Errorf("input: unknown encoding %q; known are utf-8, utf-16, utf-16le, utf-16be, latin1 and windows-1252", o.Encoding)
	}
	if len(o.Uploads) > 0 {
		s.uploads = make(map[string]string, len(o.Uploads))
		for name, local := range o.Uploads {
			s.uploads[path.Clean(name)] = local
		}
	}
	s.cut = newCutter(s.Options)
	return s, nil
}
