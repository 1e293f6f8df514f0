// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"io"
)

// split makes splits of the files found. It looks at nothing but them and the
// options, so the same input has the same splits everywhere.
func (p *Plan) split(ctx context.Context) error {
	var group Split
	flush := func() {
		if len(group.Files) > 0 {
			p.add(group)
			group = Split{}
		}
	}
	for i := range p.Files {
		f := &p.Files[i]
		switch {
		case f.Size < 0:
			p.Exact = false
			flush()
			p.add(Split{Files: []int{i}, End: -1, Stream: true})
		case p.rangeable(f):
			flush()
			if err := p.splitRanges(ctx, f); err != nil {
				return err
			}
		default:
			if len(group.Files) > 0 && (group.Bytes+f.Size > p.set.SplitSize || len(group.Files) == groupFiles) {
				flush()
			}
			if p.streams(f) {
				flush()
				p.add(Split{Files: []int{i}, End: -1, Stream: true, Bytes: f.Size})
				break
			}
			group.Files = append(group.Files, i)
			group.End = -1
			group.Bytes += f.Size
		}
		if f.Size > 0 {
			p.TotalBytes += f.Size
		}
	}
	flush()
	return nil
}

func (p *Plan) add(s Split) {
	s.Index = len(p.Splits)
	p.Splits = append(p.Splits, s)
}

// rangeable says whether a file is worth several splits and can be read from
// the middle.
func (p *Plan) rangeable(f *File) bool {
	return f.Compression == "" && p.set.decoder == nil && f.Size > p.set.SplitSize
}

// streams says whether a file that is read whole is worth a reader of its own.
func (p *Plan) streams(f *File) bool {
	return (f.Compression != "" || p.set.decoder != nil) && f.Size > streamSize
}

func (p *Plan) splitRanges(ctx context.Context, f *File) error {
	first := len(p.Splits)
	for at := int64(0); at < f.Size; at += p.set.SplitSize {
		end := min(at+p.set.SplitSize, f.Size)
		p.add(Split{Files: []int{f.Index}, Start: at, End: end, Bytes: end - at})
	}
	if p.set.Format != QuotedLines {
		return nil
	}
	return p.countQuotes(ctx, f, p.Splits[first:])
}

// countQuotes finds out which splits of a file begin between quotes: those that
// an odd number of quotes precedes.
func (p *Plan) countQuotes(ctx context.Context, f *File, splits []Split) error {
	odd := make([]bool, len(splits))
	err := parallel(ctx, p.lookers(), len(splits)-1, func(i int) error {
		part, err := p.set.openDisk(ctx, f, splits[i].Start, splits[i].End)
		if err != nil {
			return err
		}
		defer part.Close()
		part.limit = splits[i].End
		n := 0
		buf := make([]byte, min(defaultBlock, splits[i].Bytes))
		for {
			m, err := part.Read(buf)
			n += bytes.Count(buf[:m], quote)
			if err == io.EOF {
				break
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
		}
		odd[i] = n&1 == 1
		return nil
	})
	if err != nil {
		return err
	}
	for i := 1; i < len(splits); i++ {
		splits[i].Quoted = splits[i-1].Quoted != odd[i-1]
	}
	return nil
}
