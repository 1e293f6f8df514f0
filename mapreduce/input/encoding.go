// SPDX-License-Identifier: Apache-2.0

package input

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/text/encoding/unicode"
)

// encodedReader names the file in what a transcoder complains about.
type encodedReader struct {
	r    io.Reader
	file *File
	set  *settings
}

func (e *encodedReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, unicode.ErrMissingBOM) {
		err = fmt.Errorf("input: %s does not begin with a byte order mark, so there is no telling which UTF-16 it is; say --encoding utf-16le or utf-16be: %w", e.file.Path, err)
	}
	return n, err
}
