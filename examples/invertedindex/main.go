// SPDX-License-Identifier: Apache-2.0

// Command invertedindex lists for every word the files that contain it.
//
// It shows a grouped reduce: Reduce sees the values of a key as a sequence, in
// order, which need not fit in memory; Combine drops repetitions early.
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
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "invertedindex:", err)
		os.Exit(1)
	}
}

// index makes the job: word -> the files that contain it, sorted.
func index() *mapreduce.Job[string, string, []string] {
	return &mapreduce.Job[string, string, []string]{
		Name: "inverted index",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[string, string]) error {
			for word := range bytes.FieldsFuncSeq(rec.Value, noLetter) {
				emit.Emit(string(bytes.ToLower(word)), rec.File)
			}
			return nil
		},
		// A word that a file holds a thousand times is one pair from here on.
		Combine: func(_ string, files iter.Seq[string], yield func(string)) error {
			for file := range unrepeated(files) {
				yield(file)
			}
			return nil
		},
		Reduce: func(_ string, files iter.Seq[string], yield func([]string)) error {
			var list []string
			for file := range unrepeated(files) {
				list = append(list, file)
			}
			yield(list)
			return nil
		},
		KeyColumns: []string{"word"},
		Columns:    []string{"files"},
	}
}

func noLetter(r rune) bool { return !unicode.IsLetter(r) }

// unrepeated passes on what differs from the value before it. The values of a
// key come sorted, so what is left has no repetitions.
func unrepeated(values iter.Seq[string]) iter.Seq[string] {
	return func(yield func(string) bool) {
		last, any := "", false
		for v := range values {
			if any && v == last {
				continue
			}
			if !yield(v) {
				return
			}
			last, any = v, true
		}
	}
}

func run(ctx context.Context, inputs []string, dir string, stdout io.Writer) error {
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, index(), mapreduce.Options{Inputs: inputs, Output: target})
	return err
}
