// SPDX-License-Identifier: Apache-2.0

// Command wordcount counts the words of files: the smallest complete program.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "wordcount:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, inputs []string, dir string, stdout io.Writer) error {
	job := &mapreduce.Job[[]byte, int64, int64]{
		Name: "wordcount",
		Map: func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
			for word := range bytes.FieldsSeq(rec.Value) {
				emit.Emit(word, 1)
			}
			return nil
		},
		Fold: mapreduce.Sum[int64](),
	}
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	_, err := mapreduce.Run(ctx, job, mapreduce.Options{Inputs: inputs, Output: target})
	return err
}
