// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
)

// cutter knows where records end. Its methods take bytes in which the first
// byte begins a record unless they say otherwise.
//
// A delimiter is found from left to right without overlap, so where records end
// depends on where the first one begins. That only matters for delimiters such
// as "\n\n" that can overlap with themselves (overlaps is true then).
type cutter struct {
	delim    []byte
	strip    bool // LF by default: one CR before it is no content
	quoted   bool // delimiters between double quotes are data
	overlaps bool
}

func newCutter(o Options) cutter {
	c := cutter{delim: o.Delimiter, quoted: o.Format == QuotedLines}
	if len(c.delim) == 0 {
		c.delim, c.strip = []byte{'\n'}, true
	}
	for n := 1; n < len(c.delim); n++ {
		if bytes.HasPrefix(c.delim, c.delim[n:]) {
			c.overlaps = true
		}
	}
	return c
}

// next returns the end of the first record in b, or -1. inQuote says whether
// b[0] stands between quotes; the state after the record or after b comes back.
func (c *cutter) next(b []byte, inQuote bool) (end int, quoteAfter bool) {
	if !c.quoted {
		i := bytes.Index(b, c.delim)
		if i < 0 {
			return -1, false
		}
		return i + len(c.delim), false
	}
	at, sep := 0, -1 // sep: the first delimiter from at on, once known
	for {
		if inQuote {
			i := bytes.IndexByte(b[at:], '"')
			if i < 0 {
				return -1, true
			}
			at += i + 1
		}
		if sep < at {
			i := bytes.IndexByte(b[at:], c.delim[0])
			if i < 0 {
				return -1, bytes.Count(b[at:], quote)&1 == 1
			}
			sep = at + i
		}
		q := bytes.IndexByte(b[at:sep], '"')
		if q < 0 {
			return sep + 1, false
		}
		at += q + 1
		inQuote = true
	}
}

var quote = []byte{'"'}

// last returns the end of the last whole record in b, or 0.
func (c *cutter) last(b []byte) int {
	switch {
	case c.quoted:
		return c.lastQuoted(b)
	case len(c.delim) == 1:
		return bytes.LastIndexByte(b, c.delim[0]) + 1
	case !c.overlaps:
		i := bytes.LastIndex(b, c.delim)
		if i < 0 {
			return 0
		}
		return i + len(c.delim)
	}
	at := 0
	for {
		e, _ := c.next(b[at:], false)
		if e < 0 {
			return at
		}
		at += e
	}
}

// lastQuoted goes back from the end, line by line, until it finds a newline
// that an even number of quotes precedes.
func (c *cutter) lastQuoted(b []byte) int {
	odd := bytes.Count(b, quote)&1 == 1
	for {
		i := bytes.LastIndexByte(b, c.delim[0])
		if i < 0 {
			return 0
		}
		if bytes.Count(b[i+1:], quote)&1 == 1 {
			odd = !odd
		}
		if !odd {
			return i + 1
		}
		b = b[:i]
	}
}

// firstFrom returns the first end of a record in b that is at least min, or -1.
func (c *cutter) firstFrom(b []byte, min int) int {
	if min > len(b) {
		return -1
	}
	at := 0
	switch {
	case c.overlaps:
		// Only a scan from the first record on knows which matches count.
	case c.quoted:
		// The byte before min may be the newline that ends a record at min.
		if at = min - 1; at < 0 {
			at = 0
		}
		e, _ := c.next(b[at:], bytes.Count(b[:at], quote)&1 == 1)
		if e < 0 {
			return -1
		}
		return at + e
	default:
		if at = min - len(c.delim); at < 0 {
			at = 0
		}
	}
	for {
		e, _ := c.next(b[at:], false)
		if e < 0 {
			return -1
		}
		if at += e; at >= min {
			return at
		}
	}
}

// content returns how many bytes of the record rec (with its delimiter, if it
// has one) are content.
func (c *cutter) content(rec []byte) int {
	n := len(rec)
	if !bytes.HasSuffix(rec, c.delim) {
		return n
	}
	n -= len(c.delim)
	if c.strip && n > 0 && rec[n-1] == '\r' {
		n--
	}
	return n
}

// firstLong returns the borders of the first record in b that has more than
// max bytes of content, or ok = false. b ends where a record ends or the file does.
func (c *cutter) firstLong(b []byte, max int64) (from, to int, ok bool) {
	for at := 0; at < len(b); {
		end, _ := c.next(b[at:], false)
		if end < 0 {
			// The last record of a file has no delimiter, however it ends.
			return at, len(b), int64(len(b)-at) > max
		}
		end += at
		if int64(c.content(b[at:end])) > max {
			return at, end, true
		}
		at = end
	}
	return 0, 0, false
}

// EachLine calls fn for every record in data, which must begin where a record
// begins, with the record without its delimiter and its position in data. The
// last record need not have a delimiter. An empty delim means LF, and one CR
// before it is no data either; a CR elsewhere (before the end of data, too) is.
// Iteration ends with the first error, which comes back as it is.
func EachLine(data []byte, delim []byte, fn func(line []byte, off int) error) error {
	if len(delim) > 1 {
		return eachLong(data, delim, fn)
	}
	sep, strip := byte('\n'), true
	if len(delim) == 1 {
		sep, strip = delim[0], false
	}
	for at := 0; at < len(data); {
		i := bytes.IndexByte(data[at:], sep)
		if i < 0 {
			return fn(data[at:], at)
		}
		line := data[at : at+i]
		if strip && i > 0 && line[i-1] == '\r' {
			line = line[:i-1]
		}
		if err := fn(line, at); err != nil {
			return err
		}
		at += i + 1
	}
	return nil
}

func eachLong(data, delim []byte, fn func(line []byte, off int) error) error {
	for at := 0; at < len(data); {
		i := bytes.Index(data[at:], delim)
		if i < 0 {
			return fn(data[at:], at)
		}
		if err := fn(data[at:at+i], at); err != nil {
			return err
		}
		at += i + len(delim)
	}
	return nil
}
