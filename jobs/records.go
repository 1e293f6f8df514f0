// SPDX-License-Identifier: Apache-2.0

package jobs

import "bytes"

// A recordCutter takes the records of a block apart.
type recordCutter struct {
	delimiter []byte // nil: LF, and one CR before it is no data
}

// next returns the record that data begins with and what follows its delimiter.
func (c recordCutter) next(data []byte) (record, rest []byte) {
	if len(c.delimiter) == 0 {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return data, nil
		}
		rest = data[i+1:]
		if i > 0 && data[i-1] == '\r' {
			i--
		}
		return data[:i], rest
	}
	i := bytes.Index(data, c.delimiter)
	if i < 0 {
		return data, nil
	}
	return data[:i], data[i+len(c.delimiter):]
}

// isWhiteSpace reports whether the delimiter is nothing but ASCII white space,
// so that no word can span two records and a block may be cut into words as a
// whole.
func (c recordCutter) isWhiteSpace() bool {
	for _, b := range c.delimiter {
		switch b {
		case '\t', '\n', '\v', '\f', '\r', ' ':
		default:
			return false
		}
	}
	return true
}
