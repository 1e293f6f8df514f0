// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/quernmr/quern/mapreduce/input"
)

// benchBlock repeats what line writes until there is a megabyte of it.
func benchBlock(line func(b *bytes.Buffer, r *rand.Rand)) (input.Block, int) {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	n := 0
	for ; b.Len() < 1<<20; n++ {
		line(&b, r)
	}
	size := b.Len()
	b.Write(make([]byte, input.Slack))
	return input.Block{Data: b.Bytes()[:size], File: &input.File{Path: "bench"}, Offset: 100}, n
}

func benchParser(b *testing.B, f Format, want []string, line func(b *bytes.Buffer, r *rand.Rand)) {
	block, n := benchBlock(line)
	l, err := f.Prepare(want, nil)
	if err != nil {
		b.Fatal(err)
	}
	p := l.NewParser()
	b.SetBytes(int64(len(block.Data)))
	b.ReportAllocs()
	sum := 0
	for b.Loop() {
		if err := p.Reset(block); err != nil {
			b.Fatal(err)
		}
		rows := 0
		for p.Next() {
			for _, f := range p.Fields() {
				sum += len(f)
			}
			rows++
		}
		if p.Err() != nil || rows != n {
			b.Fatal(p.Err(), rows, n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
}

func station(b *bytes.Buffer, r *rand.Rand) {
	fmt.Fprintf(b, "%s;%.1f\n", "Petropavlovsk-Kamchatsky"[:3+r.IntN(14)], r.Float64()*120-50)
}

func wide(quoted bool) func(b *bytes.Buffer, r *rand.Rand) {
	return func(b *bytes.Buffer, r *rand.Rand) {
		for i := range 20 {
			if i > 0 {
				b.WriteByte(',')
			}
			if quoted && i%4 == 1 {
				fmt.Fprintf(b, "\"%s, x\"", "some words of text"[:r.IntN(18)])
			} else {
				fmt.Fprintf(b, "%d", r.IntN(1000000))
			}
		}
		b.WriteByte('\n')
	}
}

func names(n int) (s []string) {
	for i := range n {
		s = append(s, fmt.Sprint(i+1))
	}
	return s
}

func BenchmarkCSVTwoColumns(b *testing.B) {
	benchParser(b, Format{Kind: CSV, Comma: ';', Columns: names(2)}, names(2), station)
}

func BenchmarkCSVTwoColumnsDecimal(b *testing.B) {
	block, n := benchBlock(station)
	p, err := (&Format{Kind: CSV, Comma: ';', Columns: names(2)}).NewParser(names(2), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(block.Data)))
	b.ReportAllocs()
	var sum int64
	for b.Loop() {
		if err := p.Reset(block); err != nil {
			b.Fatal(err)
		}
		for p.Next() {
			m, _, err := ParseDecimal(p.Field(1))
			if err != nil {
				b.Fatal(err)
			}
			sum += m + int64(len(p.Field(0)))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
}

func BenchmarkCSVTwoOfTwenty(b *testing.B) {
	benchParser(b, Format{Kind: CSV, Columns: names(20)}, []string{"3", "7"}, wide(false))
}

func BenchmarkCSVAllOfTwenty(b *testing.B) {
	benchParser(b, Format{Kind: CSV, Columns: names(20)}, names(20), wide(false))
}

func BenchmarkCSVQuoted(b *testing.B) {
	benchParser(b, Format{Kind: CSV, Columns: names(20)}, []string{"2", "7"}, wide(true))
}

func BenchmarkCSVFewQuotes(b *testing.B) {
	plain, quoted := wide(false), wide(true)
	benchParser(b, Format{Kind: CSV, Columns: names(20)}, []string{"2", "7"}, func(b *bytes.Buffer, r *rand.Rand) {
		if r.IntN(50) == 0 {
			quoted(b, r)
		} else {
			plain(b, r)
		}
	})
}

func BenchmarkJSONL(b *testing.B) {
	benchParser(b, Format{Kind: JSONL}, []string{"user.name", "value"}, func(b *bytes.Buffer, r *rand.Rand) {
		fmt.Fprintf(b, `{"id":%d,"user":{"name":"u%d","tags":["a","b"]},"text":"some text of a record","value":%d.5}`+"\n", r.Int64(), r.IntN(1000), r.IntN(1000))
	})
}

func BenchmarkRegexp(b *testing.B) {
	re := regexp.MustCompile(`^(?P<host>\S+) (?P<status>\d+) (?P<bytes>\d+)$`)
	benchParser(b, Format{Kind: Regexp, Pattern: re}, []string{"host", "bytes"}, func(b *bytes.Buffer, r *rand.Rand) {
		fmt.Fprintf(b, "10.0.0.%d 200 %d\n", r.IntN(256), r.IntN(100000))
	})
}

var sink int64

func benchDecimal(b *testing.B, texts ...string) {
	var all []byte
	var at []int
	for i := range 1024 {
		at = append(at, len(all))
		all = append(all, texts[i%len(texts)]...)
	}
	at = append(at, len(all))
	all = append(all, make([]byte, input.Slack)...)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		j := i & 1023
		m, _, err := ParseDecimal(all[at[j]:at[j+1]])
		if err != nil {
			b.Fatal(err)
		}
		sink += m
	}
}

func BenchmarkParseDecimal(b *testing.B) {
	b.Run("-12.3", func(b *testing.B) { benchDecimal(b, "-12.3") })
	b.Run("123456", func(b *testing.B) { benchDecimal(b, "123456") })
	b.Run("mixed", func(b *testing.B) {
		r := rand.New(rand.NewPCG(1, 2))
		var texts []string
		for range 1024 {
			texts = append(texts, fmt.Sprintf("%.1f", r.Float64()*120-50))
		}
		benchDecimal(b, texts...)
	})
	b.Run("1234567890.12", func(b *testing.B) { benchDecimal(b, "1234567890.12") })
	b.Run("9007199254740993", func(b *testing.B) { benchDecimal(b, "9007199254740993") })
	b.Run("1e3", func(b *testing.B) { benchDecimal(b, "1e3") })
}
