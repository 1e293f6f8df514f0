// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/quernmr/quern/mapreduce/input"
)

// noHeader stands for files whose beginning is not to be asked for.
func noHeader(*input.File) ([]byte, error) { return nil, errors.New("not to be called") }

// fileOf gives a file and the HeaderFunc that knows its content.
func fileOf(path, content string) (*input.File, HeaderFunc) {
	return &input.File{Path: path, Size: int64(len(content))}, func(f *input.File) ([]byte, error) {
		if f.Path != path {
			return nil, fmt.Errorf("no file %s", f.Path)
		}
		return []byte(content), nil
	}
}

// blockAt is the block [from, to) of a file, with other bytes behind it that
// must not be taken for data.
func blockAt(f *input.File, content string, from, to int) input.Block {
	data := append([]byte(content[from:to]), "\n,\"x\",;\t\n9999999999999999999999999999999999999999999999999999"...)
	line := 1 + bytes.Count([]byte(content[:from]), []byte{'\n'})
	return input.Block{Data: data[:to-from], File: f, Offset: int64(from), Line: int64(line)}
}

// row is a record as a parser gives it; nil fields are "<nil>".
type row struct {
	offset int64
	record string
	fields []string
}

// collect reads the content in blocks cut at the given places.
func collect(t testing.TB, format Format, want []string, content string, cuts ...int) ([]row, *Parser, error) {
	t.Helper()
	file, header := fileOf("a.txt", content)
	p, err := format.NewParser(want, header)
	if err != nil {
		return nil, nil, err
	}
	var got []row
	cuts = append(cuts, len(content))
	from := 0
	for _, to := range cuts {
		if to == from && len(content) > 0 {
			continue
		}
		if err := p.Reset(blockAt(file, content, from, to)); err != nil {
			return got, p, err
		}
		for p.Next() {
			r := row{offset: p.Offset(), record: string(p.Record()), fields: []string{}}
			for i := range want {
				f := p.Field(i)
				if f == nil {
					r.fields = append(r.fields, "<nil>")
				} else {
					r.fields = append(r.fields, string(f))
				}
				if (f == nil) != (p.Type(i) == Missing) {
					t.Fatalf("field %d is %q but its type is %d", i, f, p.Type(i))
				}
			}
			got = append(got, r)
		}
		if err := p.Err(); err != nil {
			return got, p, err
		}
		from = to
	}
	return got, p, nil
}

func fieldsOf(rs []row) [][]string {
	out := [][]string{}
	for _, r := range rs {
		out = append(out, r.fields)
	}
	return out
}
