// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == measureArg {
		os.Exit(measureMain(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var b bench
	flags.StringVar(&b.dir, "dir", ".bench", "folder for data and results")
	flags.StringVar(&b.quern, "quern", "bin/quern", "the quern to measure")
	flags.StringVar(&b.duckdb, "duckdb", "", "script that runs DuckDB (empty: skip it)")
	flags.StringVar(&b.books, "books", "testdata/books", "folder of the books")
	flags.IntVar(&b.runs, "runs", 3, "runs of each tool; the median counts")
	sets := flags.String("only", "", "data sets to run, with commas between (empty: all of "+strings.Join(datasetNames(), ",")+")")
	tools := flags.String("tools", "", "tools to run, with commas between: quern, mawk, sort, duckdb (empty: all)")
	dataOnly := flags.Bool("data", false, "make the data and stop")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.runs < 1 {
		return fmt.Errorf("-runs %d: want 1 or more", b.runs)
	}
	for _, p := range []*string{&b.dir, &b.quern, &b.duckdb, &b.books} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	b.tools = list(*tools)
	only := list(*sets)
	for _, name := range only {
		if findDataset(name) == nil {
			return fmt.Errorf("-only %s: no such data set; there are %s", name, strings.Join(datasetNames(), ", "))
		}
	}
	return b.all(ctx, only, *dataOnly)
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
