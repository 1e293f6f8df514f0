// SPDX-License-Identifier: Apache-2.0

package input

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
)

func benchRead(b *testing.B, o Options, data []byte) {
	path := write(b, b.TempDir(), "data", data)
	b.ReportAllocs()
	var buf []byte
	var out int64
	for b.Loop() {
		out = 0
		p, err := Discover(context.Background(), []string{path}, o)
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range p.Splits {
			r, err := p.Open(context.Background(), s)
			if err != nil {
				b.Fatal(err)
			}
			for {
				blk, err := r.ReadBlock(buf)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				out += int64(len(blk.Data))
				buf = blk.Data[:0]
			}
			r.Close()
		}
	}
	b.SetBytes(out)
}

func BenchmarkPlain(b *testing.B) { benchRead(b, Options{}, bigText(128<<20)) }

func BenchmarkQuoted(b *testing.B) {
	benchRead(b, Options{Format: QuotedLines}, bytes.Repeat([]byte("12,\"some, text\",abc,4.5\n"), 4<<20))
}

func BenchmarkLongDelimiter(b *testing.B) {
	benchRead(b, Options{Delimiter: []byte("\n\n")}, bytes.Repeat([]byte("a paragraph of\nsome lines\n\n"), 4<<20))
}

func BenchmarkShortLimit(b *testing.B) {
	benchRead(b, Options{MaxLine: 100, LongLines: LongLinesSkip}, bigText(32<<20))
}

func BenchmarkCompressed(b *testing.B) {
	text := bigText(24 << 20)
	for _, name := range packings {
		if name == "bzip2" {
			continue // the test's own packer is slow
		}
		b.Run(name, func(b *testing.B) { benchRead(b, Options{}, pack(b, name, text)) })
	}
}

func BenchmarkBzip2(b *testing.B) {
	benchRead(b, Options{}, bytes.Repeat(packBzip2(lines(40000, 1)), 12))
}

func BenchmarkEachLine(b *testing.B) {
	text := bigText(16 << 20)
	b.SetBytes(int64(len(text)))
	n := 0
	for b.Loop() {
		_ = EachLine(text, nil, func([]byte, int) error { n++; return nil })
	}
}

func BenchmarkDiscoverTinyFiles(b *testing.B) {
	dir := b.TempDir()
	const files = 50_000
	for i := range files {
		write(b, dir, fmt.Sprintf("%02d/%06d.txt", i%50, i), []byte("tiny\n"))
	}
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			p, err := Discover(context.Background(), []string{dir}, Options{})
			if err != nil || len(p.Files) != files {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/files, "ns/file")
	})
	b.Run("read", func(b *testing.B) {
		p, err := Discover(context.Background(), []string{dir}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := content(p); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/files, "ns/file")
	})
}

func bigText(n int) []byte {
	line := []byte("static int some_function(struct thing *t, unsigned long flags) /* and more */\n")
	return bytes.Repeat(line, n/len(line))
}
