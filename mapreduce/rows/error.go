// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"strings"
)

// Error says which record of which file is not as it should be.
type Error struct {
	File   string // path as found; "-" is standard input
	Offset int64  // of the record's first byte in the (decompressed) file
	Line   int64  // 1-based number of the line where the record begins; 0: unknown, to be filled in from Offset
	Column string // the field, if it is about one
	Err    error
}

// Error gives "path:line: message", or "path: offset N: message" if the line is
// not known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d: ", e.Line)
	} else {
		fmt.Fprintf(&b, ": offset %d: ", e.Offset)
	}
	if e.Column != "" {
		fmt.Fprintf(&b, "field %q: ", e.Column)
	}
	fmt.Fprint(&b, e.Err) // a user's may have none
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
