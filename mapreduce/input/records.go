// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

const (
	defaultBlock = 1 << 20
	// smallBlock is where blocks start to grow again after a record that was
	// too long, so that a file of many of them is not copied over and over.
	smallBlock = 64 << 10
	// overread is how much is read beyond the end of a split at first, in the
	// hope that its last record ends there.
	overread = 16 << 10
)

var utf8BOM = []byte("\xef\xbb\xbf")

// recordReader cuts the bytes of one file, or of a range of it, into blocks of
// whole records.
type recordReader struct {
	ctx   context.Context
	src   io.Reader
	file  *File
	cut   cutter
	long  LongLines
	max   int64 // content bytes of a record
	block int   // bytes of a block, unless a record is longer

	pos    int64  // in the file: of carry[0]
	carry  []byte // read, but not handed out
	eof    bool
	end    int64 // records that begin here or later are not ours
	target int   // current block size, up to block
	fresh  bool  // nothing handed out yet: a byte order mark may come
	mark   int64 // length of the byte order mark that was dropped: the first record begins there
	plain  bool  // bytes as they are: refuse UTF-16
	count  bool  // count lines, since nobody can read the file again
	line   int64

	skipped, truncated int64
}

func newRecordReader(ctx context.Context, src io.Reader, file *File, o *settings) *recordReader {
	return &recordReader{
		ctx: ctx, src: src, file: file, cut: o.cut, long: o.LongLines, max: o.MaxLine,
		block: o.block, target: o.block, end: math.MaxInt64, fresh: true,
		plain: o.decoder == nil, line: 1,
	}
}

// room returns buf with at least n bytes of length and Slack beyond them,
// keeping the first keep bytes.
func room(buf []byte, keep, n int) []byte {
	if cap(buf) >= n+Slack {
		return buf[:n]
	}
	bigger := make([]byte, n+Slack)
	copy(bigger, buf[:keep])
	return bigger[:n]
}

// fill reads until buf[:want] is full or the input ends; n bytes are there already.
func (r *recordReader) fill(buf []byte, n, want int) (int, error) {
	idle := 0
	for n < want && !r.eof {
		m, err := r.src.Read(buf[n:want])
		n += m
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return n, err
			}
			r.eof = true
		}
		if m == 0 {
			if idle++; idle > 100 {
				return n, fmt.Errorf("input: reading %s: %w", r.file.Path, io.ErrNoProgress)
			}
			continue
		}
		idle = 0
	}
	return n, nil
}

// ReadBlock returns the next run of whole records.
func (r *recordReader) ReadBlock(buf []byte) (Block, error) {
	if err := r.ctx.Err(); err != nil {
		return Block{}, err
	}
	target := r.target
	if c := cap(buf) - Slack; c >= 4<<10 && c < target {
		target = c
	}
	for r.pos < r.end {
		b, err := r.step(&buf, target)
		if err != nil || len(b.Data) > 0 {
			return b, err
		}
		if r.eof && len(r.carry) == 0 {
			break
		}
	}
	return Block{}, io.EOF
}

// step makes one block, or none (Data is empty then) if all it met were
// records to be skipped.
func (r *recordReader) step(bufp *[]byte, target int) (Block, error) {
	want := target
	if left := r.end - r.pos; left < int64(want) {
		want = min(want, int(left)+overread)
	}
	want = max(want, len(r.carry), 4) // 4: enough for a byte order mark
	buf := room(*bufp, 0, want)
	n := copy(buf, r.carry)
	r.carry = r.carry[:0]
	enough := r.max + int64(len(r.cut.delim)) // bytes after which a record without end is too long
	if r.cut.strip {
		enough++
	}
	var err error
	for {
		if n, err = r.fill(buf, n, want); err != nil {
			return Block{}, err
		}
		if r.fresh {
			if n, err = r.dropMark(buf, n); err != nil {
				return Block{}, err
			}
		}
		cut := r.findCut(buf[:n])
		if cut > 0 || r.eof {
			*bufp = buf
			return r.emit(buf, cut, n)
		}
		if int64(n) >= enough {
			*bufp = buf
			return r.tooLong(buf, n)
		}
		want = int(min(2*int64(want), max(enough, int64(n)+1)))
		buf = room(buf, n, want)
	}
}

// findCut returns where the block ends in b, or 0 if more bytes are needed.
func (r *recordReader) findCut(b []byte) int {
	if left := r.end - r.pos; int64(len(b)) >= left {
		if e := r.cut.firstFrom(b, int(left)); e >= 0 {
			return e
		}
		if r.eof {
			return len(b)
		}
	} else if r.eof {
		return len(b)
	}
	return r.cut.last(b)
}

// emit hands out buf[:cut] and keeps the rest up to n, after looking for
// records that are too long.
func (r *recordReader) emit(buf []byte, cut, n int) (Block, error) {
	if int64(cut) > r.max {
		if from, to, found := r.cut.firstLong(buf[:cut], r.max); found {
			switch {
			case r.long == LongLinesError:
				return Block{}, r.longError(r.pos + int64(from))
			case from > 0:
				cut = from
			default:
				r.target = min(r.target, smallBlock)
				r.keep(buf[to:n])
				data, lines := buf[:0], r.lines(buf[:to])
				if r.long == LongLinesTruncate {
					data = r.truncate(buf)
				} else {
					r.skipped++
				}
				return r.hand(data, to, lines), nil
			}
		} else {
			r.target = min(2*r.target, r.block)
		}
	} else {
		r.target = min(2*r.target, r.block)
	}
	r.keep(buf[cut:n])
	return r.hand(buf[:cut], cut, r.lines(buf[:cut])), nil
}

func (r *recordReader) lines(b []byte) int64 {
	if !r.count {
		return 0
	}
	return int64(bytes.Count(b, r.cut.delim))
}

// hand makes a block of data, which stands for size bytes of the file.
func (r *recordReader) hand(data []byte, size int, lines int64) Block {
	b := Block{Data: data, File: r.file, Offset: r.pos}
	if r.count {
		b.Line = r.line
		r.line += lines
	} else if r.pos == r.mark {
		b.Line = 1
	}
	r.pos += int64(size)
	return b
}

func (r *recordReader) keep(rest []byte) { r.carry = append(r.carry[:0], rest...) }

// truncate makes a block of the first r.max bytes of buf. It has no delimiter:
// bytes that were cut could make one together with it at another place.
func (r *recordReader) truncate(buf []byte) []byte {
	r.truncated++
	return buf[:r.max]
}

// tooLong deals with a record that begins at buf[0], has no end in buf[:n] and
// is too long already.
func (r *recordReader) tooLong(buf []byte, n int) (Block, error) {
	if r.long == LongLinesError {
		return Block{}, r.longError(r.pos)
	}
	r.target = min(r.target, smallBlock)
	_, inQuote := r.cut.next(buf[:n], false)
	var data []byte
	lines := r.lines(buf[:n])
	// The delimiter may begin in what was read and end in what was not.
	tail := min(n, len(r.cut.delim)-1)
	start := r.pos
	rest := append([]byte(nil), buf[n-tail:n]...)
	if r.long == LongLinesTruncate {
		data = r.truncate(buf)
	} else {
		r.skipped++
	}
	r.pos += int64(n - tail)
	dropped, err := r.drop(rest, inQuote, r.pos)
	if err != nil {
		return Block{}, err
	}
	after := r.pos
	r.pos = start
	return r.hand(data, int(after-start), lines+dropped), nil
}

// drop reads on to the first end of a record that is at or beyond min in the
// file and makes it r.pos, with what follows in r.carry. buf are the bytes from
// r.pos on that were read already; it is drop's to change. It returns the number
// of lines dropped.
func (r *recordReader) drop(buf []byte, inQuote bool, min int64) (lines int64, err error) {
	piece := 4 << 10
	for {
		end, q := r.cut.next(buf, inQuote)
		if end >= 0 {
			inQuote = false
			lines += r.lines(buf[:end])
			r.pos += int64(end)
			buf = buf[end:]
			if r.pos >= min {
				r.keep(buf)
				return lines, nil
			}
			continue
		}
		keep := 0
		if !r.cut.quoted && !r.eof {
			// A delimiter may begin here and end in what comes next.
			keep = len(r.cut.delim) - 1
			if keep > len(buf) {
				keep = len(buf)
			}
		}
		inQuote = q
		gone := len(buf) - keep
		lines += r.lines(buf[:gone])
		r.pos += int64(gone)
		if r.eof {
			r.keep(nil)
			return lines, nil
		}
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		tail := buf[gone:]
		if cap(buf) < keep+piece {
			buf = make([]byte, keep+piece)
		}
		buf = buf[:keep+piece]
		copy(buf, tail)
		n, err := r.fill(buf, keep, len(buf))
		if err != nil {
			return 0, err
		}
		buf = buf[:n]
		if piece < defaultBlock {
			piece *= 4
		}
	}
}

// dropMark takes a UTF-8 byte order mark away and refuses UTF-16.
func (r *recordReader) dropMark(buf []byte, n int) (int, error) {
	r.fresh = false
	if r.pos != 0 {
		return n, nil
	}
	if r.plain && isUTF16(buf[:n]) {
		return 0, utf16Error(r.file.Path)
	}
	if !bytes.HasPrefix(buf[:n], utf8BOM) || strings.ContainsAny(string(r.cut.delim), string(utf8BOM)) {
		return n, nil
	}
	copy(buf, buf[len(utf8BOM):n])
	r.pos = int64(len(utf8BOM))
	r.mark = r.pos
	// The first record begins at 0 all the same: no split of fewer bytes than
	// the mark may lose it. No record ends within the mark.
	r.end = max(r.end, r.pos+1)
	return n - len(utf8BOM), nil
}

func (r *recordReader) longError(at int64) error {
	return fmt.Errorf("input: %s: the record at byte %d is longer than %d bytes; allow longer ones with --max-line, or pass over them with --long-lines skip or truncate", r.file.Path, at, r.max)
}

// Skipped returns how many records were dropped or cut short.
func (r *recordReader) Skipped() (skipped, truncated int64) { return r.skipped, r.truncated }
