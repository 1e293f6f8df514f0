// SPDX-License-Identifier: Apache-2.0

// Command cooccurrence counts which words stand near each other in texts: the
// input of word2vec, GloVe and other ways to make vectors of words.
//
// It shows a job whose keys are pairs, many of them, and a fold of two sums. A
// pair's count is how often the two words are at most a window apart. Its weight
// is the larger the nearer they are, in whole numbers, so that it is exact.
package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"unicode"
	"unicode/utf8"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	var s settings
	flag.IntVar(&s.window, "window", 5, "how many words apart two words of a pair may be, 1 to 1000")
	flag.Int64Var(&s.least, "least", 5, "leave out pairs that are seen less often")
	flag.IntVar(&s.top, "top", 0, "only that many pairs, those of the largest weight; 0: all")
	flag.StringVar(&s.dir, "o", "", "write part files to this folder instead of standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cooccurrence:", err)
		os.Exit(1)
	}
}

type settings struct {
	window, top int
	least       int64
	dir         string
}

// pair is a key: the word that sorts first comes first, whichever stands first in
// the text, since the table of all pairs is symmetric.
type pair struct{ Word, Other []byte }

// near is a row of the result.
type near struct{ Count, Weight int64 }

// cooccurrence makes the job.
//
// word2vec draws the size of its window anew for each word, from 1 to window. So a
// pair that is d words apart counts with a chance of (window + 1 - d) / window.
// The weight is the expected count times window, which is an integer.
func cooccurrence(s settings) *mapreduce.Job[pair, int64, near] {
	window := s.window
	job := &mapreduce.Job[pair, int64, near]{
		Name: "cooccurrence",
		NewMap: func() func(rec mapreduce.Record, emit *mapreduce.Emitter[pair, int64]) error {
			var lower []byte
			var words [][]byte
			return func(rec mapreduce.Record, emit *mapreduce.Emitter[pair, int64]) error {
				lower, words = split(rec.Value, lower, words)
				for i, word := range words {
					for d, other := range words[i+1 : min(i+1+window, len(words))] {
						p := pair{word, other}
						if bytes.Compare(word, other) > 0 {
							p = pair{other, word}
						}
						emit.Emit(p, int64(window-d)) // d is 0 for neighbours
					}
				}
				return nil
			}
		},
		Fold: mapreduce.NewFold([]mapreduce.Op{mapreduce.OpSum, mapreduce.OpSum},
			func(lanes []int64, weight int64) { lanes[0], lanes[1] = 1, weight },
			func(l mapreduce.Lanes) (near, error) { return near{l.V[0], l.V[1]}, nil }),
		Top:  s.top,
		Rank: func(a, b near) int { return cmp.Compare(b.Weight, a.Weight) },
	}
	if s.least > 1 {
		job.Keep = func(_ pair, n near) bool { return n.Count >= s.least }
	}
	return job
}

// split makes the words of a text lower case and cuts it into them. It uses the
// memory that it is handed and returns it, so that a mapper needs no other.
func split(text, lower []byte, words [][]byte) ([]byte, [][]byte) {
	lower, words = lower[:0], words[:0]
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		lower = utf8.AppendRune(lower, unicode.ToLower(r))
		text = text[n:]
	}
	for word := range bytes.FieldsFuncSeq(lower, notInWords) {
		if word = bytes.Trim(word, "'"); len(word) > 0 {
			words = append(words, word)
		}
	}
	return lower, words
}

// notInWords says of a character that it ends a word.
func notInWords(r rune) bool { return !unicode.IsLetter(r) && r != '\'' }

// maxWindow is beyond any use; a larger one is a mistake that would take very long.
const maxWindow = 1000

func run(ctx context.Context, inputs []string, s settings, stdout io.Writer) error {
	if s.window < 1 || s.window > maxWindow {
		return fmt.Errorf("a window of %d words: want 1 to %d", s.window, maxWindow)
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if s.dir != "" {
		target = output.Dir(s.dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, cooccurrence(s), mapreduce.Options{
		Inputs: inputs,
		// A record is a paragraph, so that a pair may stand in two lines of one.
		Input:  input.Options{Delimiter: []byte("\n\n")},
		Output: target,
	})
	return err
}
