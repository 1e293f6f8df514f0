// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// Open opens a split of p for reading. ctx also ends the reads that follow.
func (p *Plan) Open(ctx context.Context, s Split) (Reader, error) {
	if p.set == nil {
		return nil, errors.New("input: this plan does not come from Discover")
	}
	for _, i := range s.Files {
		if i < 0 || i >= len(p.Files) {
			return nil, fmt.Errorf("input: split %d names file %d, but there are %d", s.Index, i, len(p.Files))
		}
	}
	if p.set.Format == Parquet {
		return p.openParquet(ctx, s)
	}
	if len(s.Files) == 1 && s.End >= 0 {
		return p.openRange(ctx, s)
	}
	return &groupReader{ctx: ctx, plan: p, split: s, ahead: p.newAhead(ctx, s.Files)}, nil
}

// rangeReader reads a part of a plain file.
type rangeReader struct {
	*recordReader
	src *diskSource
}

func (p *Plan) openRange(ctx context.Context, s Split) (Reader, error) {
	file := &p.Files[s.Files[0]]
	if s.Start < 0 || s.Start > s.End || s.End > file.Size {
		return nil, fmt.Errorf("input: split %d is bytes %d to %d of %s, which has %d", s.Index, s.Start, s.End, file.Path, file.Size)
	}
	from := max(0, s.Start-int64(len(p.set.cut.delim)))
	src, err := p.set.openDisk(ctx, file, from, s.End+overread)
	if err != nil {
		return nil, err
	}
	r := newRecordReader(ctx, src, file, p.set)
	r.end = s.End
	if s.Start > 0 {
		if err := r.seek(src, s, from); err != nil {
			src.Close()
			return nil, err
		}
	}
	return &rangeReader{r, src}, nil
}

// seek goes to the first record that begins at s.Start or later. src stands at
// from, just far enough ahead to see a delimiter that ends at s.Start.
func (r *recordReader) seek(src *diskSource, s Split, from int64) error {
	r.fresh = false
	if r.cut.overlaps {
		var err error
		if from, err = inStep(src.f, from, r.cut.delim); err != nil {
			return fmt.Errorf("input: reading %s before byte %d: %w", r.file.Path, s.Start, err)
		}
		src.off.Store(from)
		src.told = from
	}
	r.pos = from
	var have [1]byte
	inQuote := false
	if r.cut.quoted {
		// s.Quoted is about s.Start, one byte further on.
		if _, err := io.ReadFull(src, have[:]); err != nil {
			return err
		}
		inQuote = s.Quoted != (have[0] == '"')
		_, err := r.drop(have[:], inQuote, s.Start)
		return err
	}
	_, err := r.drop(nil, false, s.Start)
	return err
}

// inStep returns the last position at or before at that no delimiter found from
// left to right can span, whatever stands further left: looking for delimiters
// from there on finds the same ones as from the begin of the file. It goes back
// as long as places where the delimiter matches overlap.
func inStep(f io.ReaderAt, at int64, delim []byte) (int64, error) {
	d := int64(len(delim))
	buf := make([]byte, max(4<<10, 4*d))
	var lo, hi int64 // buf holds [lo, hi)
	for at > 0 {
		// A match that spans at begins in [at-d+1, at-1] and ends by at+d-1.
		need := max(0, at-d+1)
		end := at + d - 1
		if need < lo || hi == 0 || end > hi {
			lo = max(0, end-int64(len(buf)))
			n, err := f.ReadAt(buf[:end-lo], lo)
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, err
			}
			hi = lo + int64(n)
		}
		i := bytes.Index(buf[need-lo:min(end, hi)-lo], delim)
		if i < 0 {
			break
		}
		at = need + int64(i)
	}
	return at, nil
}

func (r *rangeReader) ReadBlock(buf []byte) (Block, error) {
	b, err := r.recordReader.ReadBlock(buf)
	b.Read = r.src.taken()
	if err == io.EOF {
		if changed := r.src.unchanged(); changed != nil {
			err = changed
		}
	}
	return b, err
}

func (r *rangeReader) Close() error { return r.src.Close() }

// groupReader reads whole files, one after another.
type groupReader struct {
	ctx   context.Context
	plan  *Plan
	split Split
	next  int
	ahead *ahead
	cur   *wholeFile
	read  int64 // of files that had no block, to be told with the next one

	skipped, truncated int64
	err                error
}

func (g *groupReader) ReadBlock(buf []byte) (Block, error) {
	for {
		if g.err != nil {
			return Block{}, g.err
		}
		if g.cur == nil {
			if g.next == len(g.split.Files) {
				g.err = io.EOF
				continue
			}
			g.cur, g.err = g.open(g.split.Files[g.next])
			g.next++
			continue
		}
		b, err := g.cur.rec.ReadBlock(buf)
		g.read += g.cur.src.taken()
		if err == nil {
			b.Read, g.read = g.read, 0
			return b, nil
		}
		closeErr := g.closeFile()
		switch {
		case !errors.Is(err, io.EOF):
			g.err = err
		case closeErr != nil:
			g.err = fmt.Errorf("input: %w", closeErr)
		}
	}
}

func (g *groupReader) open(index int) (*wholeFile, error) {
	f, err := g.ahead.take(index)
	if err != nil {
		return nil, err
	}
	return g.plan.openWhole(g.ctx, index, g.split.Stream, f)
}

func (g *groupReader) closeFile() error {
	s, t := g.cur.rec.Skipped()
	g.skipped += s
	g.truncated += t
	err := g.cur.Close()
	g.cur = nil
	return err
}

// Skipped adds up the files read so far.
func (g *groupReader) Skipped() (skipped, truncated int64) {
	skipped, truncated = g.skipped, g.truncated
	if g.cur != nil {
		s, t := g.cur.rec.Skipped()
		skipped, truncated = skipped+s, truncated+t
	}
	return skipped, truncated
}

// Close ends all that works for the reader.
func (g *groupReader) Close() error {
	if g.err == nil {
		g.err = errors.New("input: the reader is closed")
	}
	g.ahead.close()
	if g.cur == nil {
		return nil
	}
	return g.closeFile()
}

// wholeFile is a file that is read from front to back.
type wholeFile struct {
	bytes  io.Reader // decompressed and transcoded
	src    source
	dec    *decoder
	rec    *recordReader
	cancel context.CancelFunc
}

func (w *wholeFile) Close() error {
	w.cancel()
	if w.dec != nil {
		w.dec.Close()
	}
	return w.src.Close()
}

// openWhole opens a file to be read from front to back, with several
// goroutines if wide. fetched, if not nil, is the file, open already.
func (p *Plan) openWhole(ctx context.Context, index int, wide bool, fetched diskFile) (*wholeFile, error) {
	file := &p.Files[index]
	ctx, cancel := context.WithCancel(ctx)
	w := &wholeFile{cancel: cancel}
	fail := func(err error) (*wholeFile, error) {
		if w.src != nil {
			w.Close()
		}
		cancel()
		return nil, err
	}
	var err error
	switch {
	case file.Path == stdinPath:
		w.src = openStdin(ctx, p.set.Stdin)
	case file.Size < 0:
		w.src, err = openPipe(ctx, file.Path)
	case fetched != nil:
		w.src = &diskSource{f: fetched, path: file.Path, size: file.Size, limit: file.Size}
	default:
		w.src, err = p.set.openDisk(ctx, file, 0, file.Size)
	}
	if err != nil {
		w.src = nil
		return fail(err)
	}
	head, name, err := p.sniffSource(w.src, file)
	if err != nil {
		return fail(err)
	}
	if name != file.Compression {
		seen := *file
		seen.Compression = name
		file = &seen
	}
	w.bytes = head
	if name != "" {
		if w.dec, err = newDecoder(ctx, w.src, head, file.Path, name, file.Size, wide); err != nil {
			return fail(err)
		}
		w.bytes = w.dec
	}
	if p.set.decoder != nil {
		w.bytes = newEncodedReader(w.bytes, p.set.decoder, file)
	}
	w.rec = newRecordReader(ctx, w.bytes, file, p.set)
	w.rec.count = file.Size < 0
	if file.Size >= 0 && name == "" && p.set.decoder == nil && file.Size < int64(p.set.block) {
		w.rec.block = max(int(file.Size)+1, 4) // one more byte: to see the end
		w.rec.target = w.rec.block
	}
	return w, nil
}

// sniffSource finds out what a file is, unless that is known, and returns a
// reader of all its bytes (leading skippable frames, which hold nothing, may be gone).
func (p *Plan) sniffSource(src source, file *File) (io.Reader, string, error) {
	if disk, ok := src.(*diskSource); ok {
		if p.sniffed(file) {
			return src, file.Compression, nil
		}
		name, head, err := sniffAt(disk.f, file.Size)
		if err != nil {
			return nil, "", fmt.Errorf("input: reading %s: %w", file.Path, err)
		}
		if isParquet(disk.f, head, file.Size) {
			return nil, "", parquetError(file.Path)
		}
		return src, name, nil
	}
	skipped := false
	head := make([]byte, 0, sniffSize)
	for {
		n, err := io.ReadFull(src, head[len(head):sniffSize])
		head = head[:len(head)+n]
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, "", err
		}
		size := skippable(head)
		if size == 0 {
			break
		}
		skipped = true
		if size >= int64(len(head)) {
			size -= int64(len(head))
			head = head[:0]
			if n, err := io.CopyN(io.Discard, src, size); n < size {
				if errors.Is(err, io.EOF) {
					err = fmt.Errorf("input: %s: a skippable frame is cut off at byte %d: %w", file.Path, src.at(), io.ErrUnexpectedEOF)
				}
				return nil, "", err
			}
		} else {
			head = head[:copy(head, head[size:])]
		}
	}
	name := compression(head)
	if skipped && name != "lz4" {
		name = "zstd"
	}
	return io.MultiReader(bytes.NewReader(head), src), name, nil
}

// sniffed says whether discovery looked into a file.
func (p *Plan) sniffed(file *File) bool {
	return p.set.whole || len(p.Files) <= sniffAll || file.Size > min(p.set.SplitSize, streamSize)
}
