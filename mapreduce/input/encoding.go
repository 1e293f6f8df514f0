// SPDX-License-Identifier: Apache-2.0

package input

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// encodedReader transcodes a file to UTF-8.
type encodedReader struct {
	bytes *countReader
	text  io.Reader
	file  *File
}

// countReader counts what is read from it.
type countReader struct {
	io.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

func newEncodedReader(r io.Reader, enc encoding.Encoding, file *File) *encodedReader {
	c := &countReader{Reader: r}
	return &encodedReader{bytes: c, text: transform.NewReader(c, enc.NewDecoder()), file: file}
}

func (e *encodedReader) Read(p []byte) (int, error) {
	n, err := e.text.Read(p)
	if errors.Is(err, unicode.ErrMissingBOM) {
		if e.bytes.n == 0 {
			return 0, io.EOF // an empty file needs no mark
		}
		err = fmt.Errorf("input: %s does not begin with a byte order mark, so there is no telling which UTF-16 it is; say --encoding utf-16le or utf-16be: %w", e.file.Path, err)
	}
	return n, err
}
