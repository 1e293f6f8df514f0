// SPDX-License-Identifier: Apache-2.0

// Command broadcastjoin adds up what was sold by category: sales are joined with a
// price list as they are read.
//
// It shows a map-side join. The price list is small and a side input: every mapper
// looks its products up in one table in memory. So sales are never sorted or sent
// by product, what is sold of products that the list does not have goes no further than
// Map, and the sums are a fold. Compare it with the join beside it, which brings both
// sides together by key.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"

	"github.com/quernmr/quern/mapreduce"
	"github.com/quernmr/quern/mapreduce/output"
)

func main() {
	dir := flag.String("o", "", "write part files to this folder instead of standard output")
	prices := flag.String("prices", "examples/broadcastjoin/testdata/prices.txt", "the price list: lines product;category;cents")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	unknown, err := run(ctx, flag.Args(), *prices, *dir, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "broadcastjoin:", err)
		os.Exit(1)
	}
	if unknown > 0 {
		fmt.Fprintf(os.Stderr, "broadcastjoin: %d sales of products that have no price were left out\n", unknown)
	}
}

// product is a line of the price list.
type product struct {
	category []byte // lies in the side input: nothing is copied
	cents    int64
}

// readPrices makes the table that all mappers of a process share.
func readPrices(list []byte) (map[string]product, error) {
	table := make(map[string]product, bytes.Count(list, []byte("\n")))
	number := 0
	for line := range bytes.Lines(list) {
		number++
		name, rest, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(";"))
		category, price, ok := bytes.Cut(rest, []byte(";"))
		cents, err := strconv.ParseInt(string(price), 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("line %d: %q: want product;category;cents", number, line)
		}
		if _, twice := table[string(name)]; twice {
			return nil, fmt.Errorf("line %d: product %q has a price already", number, name)
		}
		table[string(name)] = product{category, cents}
	}
	return table, nil
}

// unknown counts the sales that found no partner.
const unknown = "sales of unknown products"

var errLine = errors.New("want sale;product;pieces")

// turnover makes the job: category -> cents.
func turnover(prices string) *mapreduce.Job[[]byte, int64, int64] {
	job := &mapreduce.Job[[]byte, int64, int64]{
		Name:       "turnover",
		Fold:       mapreduce.Sum[int64](),
		KeyColumns: []string{"category"},
		Columns:    []string{"cents"},
	}
	table := mapreduce.Parse(job.SideInput("prices", mapreduce.FileSource(prices)), readPrices)
	job.Map = func(rec mapreduce.Record, emit *mapreduce.Emitter[[]byte, int64]) error {
		products, err := table()
		if err != nil {
			return err
		}
		_, rest, _ := bytes.Cut(rec.Value, []byte(";"))
		name, count, ok := bytes.Cut(rest, []byte(";"))
		pieces, err := strconv.ParseInt(string(count), 10, 64)
		if !ok || err != nil {
			return fmt.Errorf("%q: %w", rec.Value, errLine)
		}
		p, ok := products[string(name)]
		if !ok {
			emit.Counter(unknown).Add(1)
			return nil // an inner join leaves it out
		}
		emit.Emit(p.category, pieces*p.cents)
		return nil
	}
	return job
}

// run returns how many sales found no price.
func run(ctx context.Context, sales []string, prices, dir string, stdout io.Writer) (int64, error) {
	target := output.Stream(stdout, output.StreamOptions{})
	if dir != "" {
		target = output.Dir(dir, output.DirOptions{})
	}
	res, err := mapreduce.Run(ctx, turnover(prices), mapreduce.Options{Inputs: sales, Output: target})
	if err != nil {
		return 0, err
	}
	return res.Counters[unknown], nil
}
