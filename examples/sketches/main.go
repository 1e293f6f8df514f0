// SPDX-License-Identifier: Apache-2.0

// Command sketches says of texts, in one pass and without keeping their words, how
// many different ones they have and how long their paragraphs are.
//
// It shows two sketches as one fold with numbered parts: the registers of a
// HyperLogLog, which keep maxima, and the bins of a histogram, which keep
// counts. Both are merged by the same lanes, so texts are merged by their key. For
// plain cases mapreduce.Distinct and mapreduce.Histogram are ready-made.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"unicode"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	precision := flag.Int("bits", 12, "2 to that power are the registers that count words, 4 to 16; the standard error is 1.04 / square root of their number")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *precision, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sketches:", err)
		os.Exit(1)
	}
}

// seen is what Map emits: a word, or without one the length of a paragraph.
type seen struct {
	word   []byte
	length int64
}

// sketch is a row of the result; its key is the name of a file, or all.
type sketch struct {
	Words    int64
	Distinct int64 // words, estimated

	Paragraphs int64
	Median     int64 // of their lengths in bytes; at most 1/64 off, like the next ones
	P90        int64
	P99        int64
}

// all is the key of all files together.
const all = "(all)"

// registers is the first of the parts that are registers; those before it are bins.
const registers = 1 << 16

// sketches makes the job.
func sketches(precision int) *mapreduce.Job[string, seen, sketch] {
	return &mapreduce.Job[string, seen, sketch]{
		Name: "sketches",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, seen]) error {
			paragraph := bytes.TrimSpace(rec.Value)
			if len(paragraph) == 0 {
				return nil
			}
			emit.Emit(rec.File, seen{length: int64(len(paragraph))})
			emit.Emit(all, seen{length: int64(len(paragraph))})
			for word := range bytes.FieldsFuncSeq(bytes.ToLower(paragraph), notInWords) {
				if word = bytes.Trim(word, "'"); len(word) > 0 {
					emit.Emit(rec.File, seen{word: word})
					emit.Emit(all, seen{word: word})
				}
			}
			return nil
		},
		// Of both kinds of parts the first lane counts the values. The second is
		// the rank of a register.
		Fold: mapreduce.NewSubFold([]mapreduce.Op{mapreduce.OpSum, mapreduce.OpMax},
			func(lanes []int64, s seen) uint32 {
				lanes[0], lanes[1] = 1, 0
				if s.word == nil {
					return bin(s.length)
				}
				r, rank := register(s.word, precision)
				lanes[1] = rank
				return registers + r
			},
			func(parts iter.Seq2[uint32, mapreduce.Lanes]) (sketch, error) {
				return result(parts, precision), nil
			}),
		KeyColumns: []string{"file"},
	}
}

// result reads a key's bins and registers, which come in order of their numbers.
func result(parts iter.Seq2[uint32, mapreduce.Lanes], precision int) sketch {
	var s sketch
	var h histogram
	var l logs
	for part, lanes := range parts {
		if part < registers {
			h = append(h, count{part, lanes.V[0]})
			s.Paragraphs += lanes.V[0]
		} else {
			l.add(lanes.V[1])
			s.Words += lanes.V[0]
		}
	}
	s.Distinct = l.estimate(precision)
	s.Median, s.P90, s.P99 = h.quantile(50), h.quantile(90), h.quantile(99)
	return s
}

// notInWords says of a character that it ends a word.
func notInWords(r rune) bool { return !unicode.IsLetter(r) && r != '\'' }

func run(ctx context.Context, inputs []string, precision int, dir string, stdout io.Writer) error {
	if precision < 4 || precision > 16 {
		return fmt.Errorf("2^%d registers: want 2^4 to 2^16", precision)
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, sketches(precision), mapreduce.Options{
		Inputs: inputs,
		Input:  input.Options{Delimiter: []byte("\n\n")}, // a record is a paragraph
		Output: target,
	})
	return err
}
