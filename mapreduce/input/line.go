// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// LineAt returns the 1-based number of the line in which the byte at offset of
// a file stands, where offset counts decompressed (and transcoded) bytes as
// [Block.Offset] does. Lines are ended by Options.Delimiter, quoted newlines
// count too. It reads the file from its begin, so it is for messages only. What
// cannot be read again (pipes, standard input) and Parquet files, whose blocks
// know their line, are errors.
func (p *Plan) LineAt(ctx context.Context, file *File, offset int64) (int64, error) {
	if p.set == nil || file.Index < 0 || file.Index >= len(p.Files) {
		return 0, errors.New("input: the file is not of this plan")
	}
	known := &p.Files[file.Index]
	if known.Size < 0 {
		return 0, fmt.Errorf("input: %s cannot be read a second time to count lines", known.Path)
	}
	if p.set.Format == Parquet {
		return 0, fmt.Errorf("input: %s is a Parquet file, which has no lines", known.Path)
	}
	w, err := p.openWhole(ctx, file.Index, false, nil)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	line := int64(1)
	delim := p.set.cut.delim
	buf := make([]byte, 64<<10+len(delim))
	kept := 0 // bytes at the begin of buf that may be part of a delimiter
	in := io.LimitReader(w.bytes, offset)
	for {
		n, err := in.Read(buf[kept:])
		b := buf[:kept+n]
		for {
			i := bytes.Index(b, delim)
			if i < 0 {
				break
			}
			line++
			b = b[i+len(delim):]
		}
		kept = copy(buf, b[max(0, len(b)-len(delim)+1):])
		if errors.Is(err, io.EOF) {
			return line, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, err
		}
	}
}
