// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
)

var wordcountDefinition = Definition{
	Name:  "wordcount",
	Short: "count how often each word occurs",
	Long: `Words are runs of characters that are not white space as Unicode defines it;
bytes that are no valid UTF-8 belong to words and stay as they are. With
--letters, words are runs of letters and marks (of any script), with apostrophes
between them; all else only separates words. --lower turns letters into lower
case first, rune by rune. With --ngrams N a key is N words in a row on one line,
joined by one space.

A row is a word and its count. --top shows the most frequent ones first, equal
ones in order of the word.`,
	Example: `  quern wordcount --letters --lower --top 20 books/*.txt
  quern wordcount --ngrams 2 --min-count 10 -o pairs corpus/`,
	New: func() Options { return &wordcountOptions{Ngrams: 1} },
}

type wordcountOptions struct {
	Lower    bool  `name:"lower" help:"count words in lower case"`
	Letters  bool  `name:"letters" help:"words are runs of letters, with apostrophes between them"`
	Ngrams   int   `name:"ngrams" help:"count that many words in a row as one"`
	MinCount int64 `name:"min-count" help:"keep only what occurs at least that often"`
	Top      int   `name:"top" short:"n" help:"only that many rows: the most frequent, ties by key"`
}

func (o *wordcountOptions) Build(in *input.Options, _ []string) (mapreduce.Runnable, error) {
	if o.Ngrams < 1 {
		return nil, fmt.Errorf("--ngrams %d: must be at least 1", o.Ngrams)
	}
	keep := frequency{o.MinCount, o.Top}
	if err := keep.check(); err != nil {
		return nil, err
	}
	if err := linesOnly("wordcount", in); err != nil {
		return nil, err
	}
	cut := recordCutter{in.Delimiter}
	job := &mapreduce.Job[[]byte, int64, int64]{
		Name: "wordcount",
		NewBlockMap: func() func(mapreduce.Block, *mapreduce.Emitter[[]byte, int64]) error {
			return o.newMap(cut)
		},
		Fold:       mapreduce.Sum[int64](),
		KeyColumns: []string{"word"},
		Columns:    []string{"count"},
	}
	keep.apply(job)
	return job, nil
}

func (o *wordcountOptions) newMap(cut recordCutter) func(mapreduce.Block, *wordEmitter) error {
	plain := o.Ngrams == 1 && !o.Letters && cut.isWhiteSpace()
	switch {
	case plain && !o.Lower:
		edges := new(edgeBuffer)
		return func(b mapreduce.Block, emit *wordEmitter) error {
			t := newTokenizer(b.Data)
			for n := t.next(edges); n > 0; n = t.next(edges) {
				for i := 0; i+1 < n && i+1 < len(edges); i += 2 {
					emit.Emit(b.Data[edges[i]:edges[i+1]], 1)
				}
			}
			return nil
		}
	case plain:
		edges := new(edgeBuffer)
		var text, word []byte
		return func(b mapreduce.Block, emit *wordEmitter) error {
			text = appendLowerASCII(text[:0], b.Data)
			t := newTokenizer(text)
			for n := t.next(edges); n > 0; n = t.next(edges) {
				for i := 0; i+1 < n && i+1 < len(edges); i += 2 {
					w := text[edges[i]:edges[i+1]]
					if !isASCII(w) {
						word = appendLower(word[:0], w)
						w = word
					}
					emit.Emit(w, 1)
				}
			}
			return nil
		}
	default:
		s := &phraseScanner{lower: o.Lower, letters: o.Letters, n: o.Ngrams}
		return func(b mapreduce.Block, emit *wordEmitter) error {
			for data := b.Data; len(data) > 0; {
				var record []byte
				record, data = cut.next(data)
				for i, phrases := 0, s.scan(record); i < phrases; i++ {
					emit.Emit(s.phrase(i), 1)
				}
			}
			return nil
		}
	}
}

// A phraseScanner finds the phrases of a record: every run of n words, joined
// by one space.
type phraseScanner struct {
	lower, letters bool
	n              int

	edges edgeBuffer
	text  []byte // the record's words with one space between them
	start []int  // of the words in text
	end   []int
}

// scan takes a record and returns how many phrases it has.
func (s *phraseScanner) scan(record []byte) int {
	s.text, s.start, s.end = s.text[:0], s.start[:0], s.end[:0]
	if s.letters {
		l := letterScanner{data: record}
		for start, end, ok := l.next(); ok; start, end, ok = l.next() {
			s.add(record[start:end])
		}
	} else {
		t := newTokenizer(record)
		for n := t.next(&s.edges); n > 0; n = t.next(&s.edges) {
			for i := 0; i < n; i += 2 {
				s.add(record[s.edges[i]:s.edges[i+1]])
			}
		}
	}
	return max(0, len(s.start)-s.n+1)
}

func (s *phraseScanner) add(word []byte) {
	if len(s.text) > 0 {
		s.text = append(s.text, ' ')
	}
	s.start = append(s.start, len(s.text))
	if s.lower {
		s.text = appendLower(s.text, word)
	} else {
		s.text = append(s.text, word...)
	}
	s.end = append(s.end, len(s.text))
}

// phrase returns the i-th phrase; it is valid until the next scan.
func (s *phraseScanner) phrase(i int) []byte { return s.text[s.start[i]:s.end[i+s.n-1]] }
