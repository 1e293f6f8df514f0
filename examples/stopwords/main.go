// SPDX-License-Identifier: Apache-2.0

// Command stopwords counts the words of files, but for those on a list.
//
// It shows a side input: something that every Map needs whole beside its records.
// It is read once per job, wherever and in however many processes the job runs.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"unicode"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	list := flag.String("list", "examples/stopwords/testdata/english.txt", "the words that are not counted, separated by white space")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *list, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stopwords:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, inputs []string, list, dir string, stdout io.Writer) error {
	job := &mapreduce.Job[[]byte, int64, int64]{Name: "stopwords", Fold: mapreduce.Sum[int64]()}
	// The list becomes a set once per process, which all of its mappers share.
	stopWords := mapreduce.Parse(job.SideInput("stop words", mapreduce.FileSource(list)), parseList)
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		stop, err := stopWords()
		if err != nil {
			return err
		}
		for word := range bytes.FieldsFuncSeq(bytes.ToLower(rec.Value), notInWords) {
			if word = bytes.Trim(word, "'"); len(word) > 0 && !stop[string(word)] {
				emit.Emit(word, 1)
			}
		}
		return nil
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, job, mapreduce.Options{Inputs: inputs, Output: target})
	return err
}

func parseList(text []byte) (map[string]bool, error) {
	set := map[string]bool{}
	for word := range bytes.FieldsSeq(text) {
		set[string(bytes.ToLower(word))] = true
	}
	return set, nil
}

// notInWords says of a character that it ends a word.
func notInWords(r rune) bool { return !unicode.IsLetter(r) && r != '\'' }
